"""Sound files as samples of 16 bits: reading, with the reason where one cannot be used, and writing.

Reference: scipy.io.wavfile.read; soundfile.read for FLAC, OGG and MP3; scipy.signal.resample_poly
"""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.atomic_files import replacing
from blockyard.data.files.file_names import data_files, spelled

WAV = ".wav"
COMPRESSED = (".flac", ".ogg", ".mp3")
SUFFIXES = (WAV, *COMPRESSED)
FASTEST = 1_000_000  # samples a second; converting between rates takes memory in proportion to them


class BadSoundError(ValueError):
    """A file that cannot be used. The text says why, and messages put the file's name before it."""


class SoundFiles:
    """The files of a folder, or of a .zip file. Raises BadSoundError where one cannot be read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.archive = zipfile.ZipFile(root) if root.is_file() else None
        self.members = frozenset(self.archive.namelist()) if self.archive is not None else frozenset()

    def names(self) -> list[str]:
        """Return the names of all files that are data, relative to the root, sorted."""
        if self.archive is not None:
            files = {self.root / name.lstrip("/"): name for name in self.members if not name.endswith("/")}
        else:
            files = {path: str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}
        return sorted(files[path] for path in data_files(self.root, files))

    def has(self, name: str) -> bool:
        """Return whether there is such a file, in one of its spellings."""
        return spelled(name, self._exists) is not None

    def _exists(self, name: str) -> bool:
        if self.archive is not None:
            return name in self.members
        return (self.root / name).is_file()

    def content(self, name: str) -> bytes:
        """Return the bytes of a file."""
        spelling = spelled(name, self._exists)
        if spelling is None:
            raise BadSoundError("no such file")
        try:
            if self.archive is not None:
                return self.archive.read(spelling)
            return (self.root / spelling).read_bytes()
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            raise BadSoundError(f"cannot be read: {' '.join(str(error).split())}") from error


def write_wav(path: Path, samples: Tensor, rate: int) -> None:
    """Write samples (T,) int16 as a WAV file of one channel and 16 bits; never a partial file."""
    from scipy.io import wavfile

    content = io.BytesIO()
    wavfile.write(content, rate, samples.numpy())
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(content.getvalue())


def decode(content: bytes, suffix: str, rate: int, *, resample: bool) -> Tensor:
    """Return the samples of a file, (T,) int16, one channel at `rate` samples a second.

    suffix: the file's, such as ".wav"; resample: whether another rate is converted
    Raises BadSoundError saying what is wrong.
    """
    suffix = suffix.lower()
    if suffix == WAV:
        file_rate, samples = _wav(content)
    elif suffix in COMPRESSED:
        file_rate, samples = _compressed(content)
    else:
        raise BadSoundError(f"is none of {', '.join(SUFFIXES)}")
    if samples.ndim != 1 and samples.shape[1] != 1:
        raise BadSoundError(f"has {samples.shape[1]} channels; mix them to one")
    values = _to_floats(samples.reshape(-1))
    if not 0 < file_rate <= FASTEST:
        raise BadSoundError(f"has {file_rate} samples a second by its header; 1 to {FASTEST:,} can be read")
    if file_rate != rate:
        if not resample:
            raise BadSoundError(
                f"has {file_rate} samples a second, not {rate}; data.sample_rate={file_rate} or data.resample=true"
            )
        from scipy.signal import resample_poly

        divisor = math.gcd(file_rate, rate)
        values = resample_poly(values, rate // divisor, file_rate // divisor)
    if not len(values):
        raise BadSoundError("holds no samples")
    if np.ptp(values) == 0:
        raise BadSoundError("is silent: all of its samples are the same")
    return torch.from_numpy((values.clip(-1, 1) * 32767).round().astype(np.int16))


def _wav(content: bytes) -> tuple[int, Any]:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", wavfile.WavFileWarning)
            rate, samples = wavfile.read(io.BytesIO(content))
    except Exception as error:  # scipy raises whatever a broken header leads to
        raise BadSoundError(f"cannot be read as WAV: {' '.join(str(error).split()) or type(error).__name__}") from error
    early = [str(warning.message) for warning in caught if "EOF" in str(warning.message)]
    if early:
        raise BadSoundError("is cut short: it ends before the length that its header says")
    return int(rate), samples


def _compressed(content: bytes) -> tuple[int, Any]:
    if importlib.util.find_spec("soundfile") is None:
        raise BadSoundError("needs the package soundfile: pip install 'blockyard[audio]', or convert it to WAV")
    import soundfile

    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    except Exception as error:  # of libsndfile
        raise BadSoundError(f"cannot be read: {' '.join(str(error).split())}") from error
    return int(rate), samples


def _to_floats(samples: Any) -> Any:
    """Return samples as float64 in [-1, 1]. Raises BadSoundError for other values."""
    if samples.dtype == np.uint8:
        raise BadSoundError("has 8 bits a sample, too few to hear soft sounds; convert the recording to 16 bits")
    if samples.dtype.kind == "i":  # 24 bits are the upper ones of 32
        return samples / float(np.iinfo(samples.dtype).max)
    if samples.dtype.kind != "f":
        raise BadSoundError(f"has samples of an unknown kind ({samples.dtype})")
    if not np.isfinite(samples).all():
        raise BadSoundError(f"has {int((~np.isfinite(samples)).sum())} samples that are not finite")
    if np.abs(samples).max(initial=0) > 1 + 1e-6:
        raise BadSoundError(f"has samples up to {np.abs(samples).max():.3g}, beyond full scale, which is 1")
    return samples.astype(np.float64)
