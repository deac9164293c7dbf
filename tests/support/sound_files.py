"""Sound files for tests: a table, and recordings of a second or less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import wavfile

RATE = 8000


def tone(seconds: float = 0.5, seed: int = 0, rate: int = RATE) -> Any:
    """A tone in noise, int16."""
    time = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(size=len(time))
    return ((np.sin(2 * np.pi * (300 + 50 * seed) * time) + 0.1 * noise) * 8000).astype(np.int16)


def write(path: Path, samples: Any, rate: int = RATE) -> Path:
    """A WAV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, samples)
    return path


def corpus(folder: Path, texts: dict[str, str] | None = None) -> Path:
    """A table of nine recordings of three splits; returns its path. texts: by the name of the file, in their place."""
    rows = ["path\ttext\tsplit"]
    for number in range(9):
        name = f"wav/{number}.wav"
        write(folder / name, tone(0.3 + 0.05 * number, number))
        text = (texts or {}).get(name, f"Text {'abc'[number % 3]}!")
        rows.append(f"{name}\t{text}\t{('train', 'val', 'test')[number // 3]}")
    table = folder / "speech.tsv"
    table.write_text("\n".join(rows) + "\n")
    return table
