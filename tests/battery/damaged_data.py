"""Damaged data files and weights from elsewhere: bytes that changed, and files made to exhaust or confuse a reader."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.support.image_files import samples, write_shard
from tests.support.tiny import ON_CPU, ONE_LAYER, SHORTEST

SEEDS = 20  # damages of each format
SMALL = (*ON_CPU, *ONE_LAYER)
TABLE = (*SMALL, "data=table", "tokenizer=byte", "data.context=16")
ARRAYS = (*SMALL, "data=arrays", "tokenizer=columns", "position=none")
SHARDS = (*SMALL, "data=webdataset", "data.size=12", "tokenizer=patch")
ROWS = [{"text": f"row number {n}", "label": n % 2, "split": ("train", "val", "test")[n // 2 % 3]} for n in range(48)]
# The overrides that read each file.
FORMATS = {
    "x.parquet": TABLE,
    "x.arrow": TABLE,
    "x.feather": TABLE,
    "x.csv.gz": TABLE,
    "x.jsonl.gz": TABLE,
    "x.npz": ARRAYS,
    "x.npy": ARRAYS,
    "train-x.tar": SHARDS,
    "x.safetensors": SHORTEST,
}


class Case(NamedTuple):
    """A file, and how it is damaged."""

    file: str
    name: str
    write: Callable[[Path], object]  # the damaged file, in place of a whole one where there is one
    refused: bool = False  # whether it must be, where other damages may be harmless

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


def overrides(file: str, path: Path) -> list[str]:
    """Arguments of `check` that read a file."""
    if file.endswith(".safetensors"):
        return [*FORMATS[file], f"init.from={path}"]
    base = FORMATS.get(file, TABLE if file.endswith((".csv", ".jsonl")) else ARRAYS)
    # An .npy has its targets in another: the inputs are their own targets.
    more = ["objective=regress", f"data.target={path}"] if file.endswith(".npy") else []
    return [*base, f"data.path={path}", *more]


def write_whole(folder: Path) -> None:
    """Write every format, undamaged."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table({key: [row[key] for row in ROWS] for key in ROWS[0]})
    pyarrow.parquet.write_table(table, folder / "x.parquet")
    pyarrow.feather.write_feather(table, folder / "x.feather", compression="uncompressed")
    with pa.OSFile(str(folder / "x.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    lines = ["text,label,split", *(f"{row['text']},{row['label']},{row['split']}" for row in ROWS)]
    (folder / "x.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    (folder / "x.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode(), mtime=0))
    values = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(folder / "x.npz", x=values, y=np.arange(60) % 3)
    np.save(folder / "x.npy", values)
    write_shard(folder / "train-x.tar", samples(0, 24))
    _write_weights(folder / "x.safetensors")


def _write_weights(path: Path) -> None:
    from safetensors.torch import save_file

    from blockyard.config.build import Components
    from blockyard.config.compose import compose

    model = Components(compose([*SHORTEST]).config).model(0)
    save_file({name: value.detach().clone() for name, value in model.state_dict().items()}, path)


def cases() -> Iterator[Case]:
    """Every damage of every format, and files that are hostile as a whole."""
    for file, seed in itertools.product(FORMATS, range(SEEDS)):
        yield Case(file, f"three bytes changed, seed {seed}", _changed(seed, 3))
    for file, share in itertools.product(FORMATS, (0.1, 0.5, 0.95)):
        yield Case(file, f"cut at {share:.0%}", _cut(share))
    for file in FORMATS:
        yield Case(file, "a run of ones", _run_of_ones)
    yield Case("train-x.tar", "names of 5,000 letters", _renamed)
    for file, at in itertools.product(("x.csv.gz", "x.jsonl.gz"), (0, 1, 2, 20, 60, 100, -8, -1)):
        yield Case(file, f"byte {at} changed", _changed_at(at), refused=True)
    for file, name, write in _hostile():
        yield Case(file, name, write, refused=True)


def _changed(seed: int, count: int) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        data, chance = bytearray(path.read_bytes()), random.Random(seed)
        # Headers and footers decide how the rest is read: half of the damages are there.
        span = len(data) if seed % 2 else min(len(data), 600)
        start = chance.choice((0, len(data) - span))
        for _ in range(count):
            data[start + chance.randrange(span)] = chance.randrange(256)
        path.write_bytes(data)

    return write


def _changed_at(position: int) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[position] ^= 0x55
        path.write_bytes(data)

    return write


def _cut(share: float) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def _run_of_ones(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) * 2 // 3
    data[middle : middle + 64] = b"\xff" * len(data[middle : middle + 64])
    path.write_bytes(data)


def _hostile() -> Iterator[tuple[str, str, Callable[[Path], object]]]:
    """Files that are hostile as a whole; each must be refused."""
    deep = json.dumps(ROWS[0])[:-1] + ', "x": ' + "[" * 100_000
    yield ("x.jsonl", "100,000 brackets", lambda path: path.write_text(f"{json.dumps(ROWS[0])}\n{deep}\n"))
    yield ("x.jsonl", "objects in objects", lambda path: path.write_text('{"a": ' * 50_000 + "\n"))
    yield ("x.csv", "a long cell in a short row", _long_cell)
    yield ("x.csv", "a header of 200,000 characters", lambda path: path.write_text("a" * 200_000 + ",b\n1,2\n"))
    yield ("x.npz", "encrypted members", _member_flag)
    yield ("x.npz", "another compression", _member_field(8, 99))
    for brackets in (90, 9_000):
        yield ("x.npz", f"a header of {brackets} brackets", _npz_header(b"[" * brackets))
        yield ("x.npy", f"a header of {brackets} brackets", _npy_header(b"(" * brackets))
    for shape in (
        "(10**30,)",
        "(-1,)",
        "(99999999999999,)",
        "(True,)",
        "(4, True)",
        "True",
        "'a'",
        "((1,),)",
        "(4, 0)",
    ):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
        yield ("x.npy", f"shape {shape}", _npy_header(header))
    for kind in ("|O", "<f999", "[('a', '<f4')]", "|V8", "<M8[s]"):
        header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': (4,), }}".encode()
        yield ("x.npy", f"type {kind}", _npy_header(header))
    yield ("train-x.tar", "3,000 long names", _long_names)
    for declared in (2**33, 2**60, 2**80):
        yield ("train-x.tar", f"a member of {declared} bytes", _declared(tarfile.REGTYPE, declared))
        yield ("train-x.tar", f"a name of {declared} bytes", _declared(tarfile.GNUTYPE_LONGNAME, declared))
        yield ("train-x.tar", f"a header of {declared} bytes", _declared(tarfile.XHDTYPE, declared))
    for number in (-1, -1536, 2**60, 2**80):  # with -1,536 its own header would come next
        yield ("train-x.tar", f"a header that declares {number} bytes", _declared_in_header(number))
    yield ("train-x.tar", "a sparse member", _typed(b"S"))
    yield ("train-x.tar", "links only", _typed(tarfile.SYMTYPE))
    yield ("train-x.tar", "devices only", _typed(tarfile.CHRTYPE))
    for length in (2**63, 2**40, 10**8):
        yield ("x.safetensors", f"a header of {length} bytes", _safetensors(struct.pack("<Q", length), b"{}"))
    for header in ("[" * 100_000, '{"a": 1}', "[]", '{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}'):
        yield ("x.safetensors", f"header {header[:12]}...", _safetensors(None, header.encode()))
    for shape, offsets in (([2**62, 4], [0, 4]), ([-1], [0, 4]), ([1], [0, 2**62]), ([1], [4, 0])):
        entry = {"blocks.0.x": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
        yield ("x.safetensors", f"shape {shape}, offsets {offsets}", _safetensors(None, json.dumps(entry).encode()))


def _long_cell(path: Path) -> None:
    lines = ["text,label,split", *(f"{row['text']},{row['label']},{row['split']}" for row in ROWS)]
    path.write_text("\n".join([*lines, "x" * 200_000]) + "\n")


def _member_flag(path: Path) -> None:
    """Set the flag that says that a member is encrypted."""
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(mark, at + 1)) >= 0:
            data[at + offset] |= 1
    path.write_bytes(data)


def _member_field(offset: int, value: int) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        data = bytearray(path.read_bytes())
        for mark, more in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
            at = -1
            while (at := data.find(mark, at + 1)) >= 0:
                data[at + offset + more] = value
        path.write_bytes(data)

    return write


def _npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header) + 1) + header + b"\n" + bytes(64)


def _npy_header(header: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(_npy(header))


def _npz_header(header: bytes) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", _npy(header))
            archive.writestr("y.npy", _npy(header))

    return write


def _long_names(path: Path) -> None:
    buffer = io.BytesIO()
    for _ in range(3000):
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 4
        buffer.write(info.tobuf(tarfile.GNU_FORMAT) + b"abc\x00" + bytes(508))
    path.write_bytes(buffer.getvalue() + bytes(1024))


def _renamed(path: Path) -> None:
    """Begin the names of all members with 5,000 letters."""
    with tarfile.open(path) as archive:
        members = [(info, archive.extractfile(info)) for info in archive]
        contents = [(info.name, b"" if stream is None else stream.read()) for info, stream in members]
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in contents:
            info = tarfile.TarInfo("x" * 5000 + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def _declared(kind: bytes, size: int) -> Callable[[Path], object]:
    """Return what appends a member that declares `size` bytes, and has 1,024."""

    def write(path: Path) -> None:
        info = tarfile.TarInfo("z.png")
        info.type, info.size = kind, size
        _append(path, info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))

    return write


def _declared_in_header(size: int) -> Callable[[Path], object]:
    """Return what appends a member whose extended header declares `size` bytes."""

    def write(path: Path) -> None:
        info = tarfile.TarInfo("__skipped__")
        info.pax_headers = {"size": str(size)}
        _append(path, info.tobuf(tarfile.PAX_FORMAT) + bytes(1024))

    return write


def _append(path: Path, member: bytes) -> None:
    """Append a member to the samples of a shard, in place of its end."""
    with tarfile.open(path) as archive:
        archive.getmembers()
        end = archive.offset
    path.write_bytes(path.read_bytes()[:end] + member)


def _typed(kind: bytes) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with tarfile.open(path, "w") as archive:
            for name in ("a.png", "a.cls"):
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, "/etc/passwd"
                archive.addfile(info)

    return write


def _safetensors(length: bytes | None, header: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes((length or struct.pack("<Q", len(header))) + header + bytes(16))


# Keys of a config.json of GPT-2, and values that no model has.
CONFIG_KEYS = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "n_inner", "layer_norm_epsilon")
CONFIG_VALUES: tuple[Any, ...] = (
    10**6, 10**9, 10**400, -1, 2.5, "2", "2 model.dim=9", True, [2], {"_target_": "os.system"}, float("nan"),
)  # fmt: skip
NAMES = ("model_type", "architectures", "activation_function", "tie_word_embeddings", "architecture", "model_args")
NAME_VALUES: tuple[Any, ...] = ([["gpt2"]], {"gpt2": 1}, 3, "os.system", [{"a": []}], "../../etc/passwd")


def configs() -> Iterator[tuple[str, Any]]:
    """A key of a config.json and the value that takes its place; a model of no such size is refused."""
    yield from itertools.product(CONFIG_KEYS, CONFIG_VALUES)
    yield from itertools.product(NAMES, NAME_VALUES)
