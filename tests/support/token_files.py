"""Shards of token ids on the disk, in the formats that data=tokens reads."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

TEXT = "".join(f"line {n}: {'to be or not to be'[: 3 + n % 15]}\n" for n in range(400))
# A decoder that reads shards whose ids are those of tokenizer=ids.
READS = ("data=tokens", "tokenizer=ids", "model=decoder", "head=token", "objective=next_token")


def ids(count: int, vocabulary: int = 50, seed: int = 0) -> np.ndarray:
    """Random token ids (count,) uint16."""
    return np.random.default_rng(seed).integers(0, vocabulary, count, dtype=np.uint16)


def write_litdata(folder: Path, chunks: list[np.ndarray]) -> Path:
    """Chunks of one item each as litdata writes them, int32, with its index.json."""
    import json

    folder.mkdir(parents=True)
    listed = []
    for number, chunk in enumerate(chunks):
        data = chunk.astype(np.int32).tobytes()
        head = struct.pack("<3I", 1, 12, 12 + len(data))
        (folder / f"chunk-0-{number}.bin").write_bytes(head + data)
        listed.append({"filename": f"chunk-0-{number}.bin", "chunk_size": 1, "dim": len(chunk)})
    config = {"compression": None, "data_format": ["no_header_tensor:16"]}
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": config}))
    return folder


def litpkds(values: np.ndarray, code: int = 8) -> bytes:
    """The bytes of a lit-gpt PackedDataset file."""
    return b"LITPKDS" + struct.pack("<QBQ", 1, code, len(values)) + values.tobytes()


def llm_c(values: np.ndarray) -> bytes:
    """The bytes of a data file of llm.c."""
    head = np.zeros(256, dtype=np.int32)
    head[:3] = 20240520, 1, len(values)
    return head.tobytes() + values.tobytes()
