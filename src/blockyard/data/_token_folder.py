"""The shards of one source of token ids by split, and the manifest of a folder that `blockyard tokenize` wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from blockyard.atomic_files import read_json
from blockyard.data._token_shard import SUFFIXES, Shard, litdata_shards, read_shard
from blockyard.errors import UserError

MANIFEST, PLAN, TOKENIZER = "manifest.json", "unfinished.json", "tokenizer.json"
FORMAT = "blockyard token shards"
# How the names of files and folders begin, by split; of nanoGPT and litgpt, and `blockyard tokenize`.
PREFIXES = {"train": ("train",), "validation": ("val", "valid", "validation", "dev"), "test": ("test",)}
_SAMPLED = 256  # pieces of a source that its fingerprint reads
_PIECE = 4096  # bytes


@dataclass(frozen=True)
class TokenSource:
    """A file or folder of shards. manifest: of `blockyard tokenize`; empty where there is none."""

    path: Path
    shards: dict[str, list[Shard]]
    manifest: dict[str, Any] = field(default_factory=dict)

    def bytes_of_text(self, split: str) -> int | None:
        """Returns the bytes of the text of a split, where the manifest has them."""
        part = (self.manifest.get("splits") or {}).get(split)
        return part["bytes"] if part else None

    def digest(self) -> str:
        """Returns the SHA-256 of names, sizes and the manifest, and of some hundred pieces spread over all ids."""
        result = hashlib.sha256(str(sorted(self.manifest.items())).encode())
        shards = [(split, shard) for split in self.shards for shard in self.shards[split]]
        for split, shard in shards:
            result.update(f"{split} {shard.path.name} {shard.dtype} {shard.offset} {shard.count}\n".encode())
            with shard.path.open("rb") as file:
                end = shard.offset + shard.count * np.dtype(shard.dtype).itemsize
                for start in np.linspace(shard.offset, max(end - _PIECE, shard.offset), 1 + _SAMPLED // len(shards)):
                    file.seek(int(start))
                    result.update(file.read(_PIECE))
        return result.hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of a folder, empty where it has none. Raises UserError for a damaged or unfinished one."""
    if not path.is_dir():
        return {}
    file = path / MANIFEST
    if not file.is_file():
        if (path / PLAN).is_file():
            raise UserError(f"{path} is not finished: run the same `blockyard tokenize` again, which continues it")
        return {}
    try:
        manifest = read_json(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}); write the shards again with `blockyard tokenize`") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{file} is not a manifest of `blockyard tokenize`; remove it to read the shards without it")
    return manifest


def read_source(path: Path, dtype: str | None) -> TokenSource:
    """Returns the shards of a file or folder by split. Raises UserError for files that are none or do not fit.

    Files without the name of a split are all of the split "train", from which the data cuts the others.
    """
    if path.is_file():
        return TokenSource(path, {"train": [read_shard(path, dtype)]})
    if manifest := read_manifest(path):
        return TokenSource(path, dict(_manifest_shards(path, manifest)), manifest)
    if (path / "index.json").is_file():
        return TokenSource(path, {"train": _litdata(path)})
    by_split: dict[str, list[Shard]] = {}
    unnamed = []
    for file in token_files(path):
        split = split_of(file.relative_to(path).parts[0])
        shard = read_shard(file, dtype)
        by_split.setdefault(split or "train", []).append(shard)
        unnamed += [file] if split is None else []
    for folder in sorted(each.parent for each in path.glob("*/index.json")):
        split = split_of(folder.name)
        by_split.setdefault(split or "train", []).extend(_litdata(folder))
        unnamed += [folder] if split is None else []
    if unnamed and set(by_split) - {"train"}:
        raise UserError(
            f"{unnamed[0]} does not say its split, and other files of {path} do; begin its name with train, val or test"
        )
    if "train" not in by_split:
        raise UserError(f"{path} has no file for training: no name there begins with train")
    return TokenSource(path, by_split)


def token_files(path: Path) -> list[Path]:
    """Returns the `.bin` and `.npy` files under a folder, sorted; those of folders that litdata wrote are left out."""
    files: Iterable[Path] = (file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
    return sorted(file for file in files if file.is_file() and not (file.parent / "index.json").is_file())


def split_of(name: str) -> str | None:
    """Returns the split that a name begins with, as a word of its own: train.bin, val_000.bin."""
    first = name.partition(".")[0].replace("-", "_").partition("_")[0].rstrip("0123456789").lower()
    return next((split for split, prefixes in PREFIXES.items() if first in prefixes), None)


def _litdata(folder: Path) -> list[Shard]:
    try:
        index = read_json(folder / "index.json")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'index.json'} cannot be read: {error}") from error
    return litdata_shards(folder, index if isinstance(index, dict) else {})


def _manifest_shards(path: Path, manifest: dict[str, Any]) -> Iterable[tuple[str, list[Shard]]]:
    try:
        listed: dict[str, Sequence[dict[str, Any]]] = {k: v["shards"] for k, v in manifest["splits"].items()}
        dtype = np.dtype(manifest["dtype"])
        for split, shards in listed.items():
            yield split, [_listed(path / Path(each["file"]).name, int(each["tokens"]), dtype) for each in shards]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path / MANIFEST} is damaged: {type(error).__name__} {error}") from error


def _listed(file: Path, tokens: int, dtype: Any) -> Shard:
    """A shard as the manifest lists it. Raises UserError where the file has another size."""
    if not file.is_file():
        raise UserError(f"{file} is in the manifest and not there; write the shards again with `blockyard tokenize`")
    size, expected = file.stat().st_size, tokens * dtype.itemsize
    if size != expected:
        state = "is truncated" if size < expected else "has bytes after its last token id"
        raise UserError(
            f"{file} {state}: {tokens:,} token ids of {dtype} end at byte {expected:,}, the file has {size:,} bytes"
        )
    return Shard(file, dtype.name, 0, tokens)
