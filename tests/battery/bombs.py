"""Compressed files that hold far more than they are large, or something else than they say."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

Bomb = Callable[[Path], object]  # writes the file
BIG = 100_000_000  # bytes of the larger ones, in 100 kB


def gzipped(blocks: Iterator[bytes]) -> bytes:
    """A gzip member of all blocks; they are not in memory together."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(block) for block in blocks), packer.flush()])


def _repeated(head: bytes, block: bytes) -> bytes:
    many = block * max(1, 1_000_000 // len(block))
    return gzipped(iter([head, *[many] * (BIG // len(many))]))


def _contents(kind: str) -> dict[str, Callable[[], bytes]]:
    """What makes the bytes of a table of `kind`, csv or jsonl, gzipped."""
    csv = kind == "csv"
    head = b"text,label\n" if csv else b""
    row = b"a,b\n" if csv else b'{"text": "a", "label": "b"}\n'
    good = head + row * 50
    packed = gzip.compress(good)
    return {
        "one line without end": lambda: _repeated(head, b"a"),
        "one line of zeros": lambda: _repeated(head, b"\0"),
        "one line of quotes": lambda: _repeated(head, b'"'),
        "one line of commas": lambda: _repeated(b"", b","),
        "one line of brackets": lambda: _repeated(head, b"["),
        "one line of braces": lambda: _repeated(head, b'{"a":'),
        "blank lines": lambda: _repeated(b"", b"\n"),
        "carriage returns": lambda: _repeated(b"", b"\r"),
        "spaces": lambda: _repeated(b"", b" "),
        "a packed file in a packed file": lambda: gzip.compress(gzip.compress(good)),
        "ten layers": lambda: _layers(good, 10),
        "empty members": lambda: gzip.compress(b"") * 20_000,
        "no member": lambda: b"",
        "a cut header": lambda: packed[:8],
        "a cut body": lambda: packed[: len(packed) // 2],
        "a cut end": lambda: packed[:-6],
        "a changed checksum": lambda: packed[:-8] + bytes(4) + packed[-4:],
        "a changed length": lambda: packed[:-4] + struct.pack("<I", 2**32 - 1),
        "not packed": lambda: good,
        "something after the end": lambda: packed + b"\x1f\x8bjunk",
        "a zip file": lambda: _zip({"a": good}),
        "zlib without a header": lambda: zlib.compress(good),
        "another method": lambda: packed[:2] + b"\x07" + packed[3:],
        "all flags": lambda: packed[:3] + b"\xff" + packed[4:],
        "a long name": lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 2_000_000,
        "a long comment": lambda: b"\x1f\x8b\x08\x10" + bytes(6) + b"c" * 2_000_000 + b"\0" + packed[10:20],
    }


def _layers(content: bytes, count: int) -> bytes:
    for _ in range(count):
        content = gzip.compress(content)
    return content


def tables() -> dict[str, Bomb]:
    """Tables by name: .csv.gz and .jsonl.gz."""
    return {
        f"{kind} {name}": lambda path, content=content: path.write_bytes(content())
        for kind in ("csv", "jsonl")
        for name, content in _contents(kind).items()
    }


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text) & (0xFFFF if version[0] == 1 else 0xFFFFFFFF))
    return b"\x93NUMPY" + version + size + text + data


def arrays() -> dict[str, Bomb]:
    """An .npz whose array `x` is not what its header says, or too much."""

    def header(shape: object, descr: object = "<f8") -> str:
        return str({"descr": descr, "fortran_order": False, "shape": shape})

    shapes = {
        "a shape of 8 TB": (10**6, 10**6),
        "a shape of 2^63": (2**62, 2),
        "a shape of 2^70": (2**70,),
        "a negative shape": (-1, 4),
        "a shape of texts": ("a", 3),
        "a shape that is a number": 7,
        "many axes": (1,) * 100,
        "more rows than there are": (1000, 4),
        "a shape of fractions": (1.5, 2),
    }
    members = {name: _npy(header(shape), bytes(256)) for name, shape in shapes.items()}
    kinds = {
        "objects": "|O",
        "nothing": "|V0",
        "a record": [("a", "<f8"), ("b", "|O")],
        "text of 2 GB": "<U500000000",
        "a kind that is none": "<q99",
        "a list": [],
        "times": "<M8[ns]",
        "complex numbers": "<c16",
    }
    members |= {f"values of {name}": _npy(header((8,), kind), bytes(256)) for name, kind in kinds.items()}
    members |= {
        "a header that calls": _npy("{'descr': __import__('os').system('x'), 'shape': (1,)}"),
        "a header of another version": _npy(header((8,)), bytes(64), b"\x09\x00"),
        "a header that is cut": _npy(header((8,)))[:30],
        "no header": b"",
        "a pickle": b"\x80\x04K\x01.",
        "zeros": bytes(1000),
    }
    result: dict[str, Bomb] = {
        name: lambda path, content=content: path.write_bytes(_zip({"x.npy": content, "y.npy": _labels()}))
        for name, content in members.items()
    }
    return result | {
        "not a zip": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)),
        "a zip without members": lambda path: path.write_bytes(_zip({})),
        "a member that is longer than it says": lambda path: path.write_bytes(_flagged(22, 4)),
    }


def _labels() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(64) % 2)
    return buffer.getvalue()


def _good() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((64, 4)))
    return _zip({"x.npy": buffer.getvalue(), "y.npy": _labels()})


def _flagged(offset: int, value: int) -> bytes:
    """A sound archive with a number of its first local header, and of that in the directory, changed."""
    content = bytearray(_good())
    content[offset : offset + 2] = struct.pack("<H", value)
    at = content.index(b"PK\x01\x02")
    content[at + offset + 2 : at + offset + 4] = struct.pack("<H", value)
    return bytes(content)


def shards() -> dict[str, Bomb]:
    """Tar shards that are packed, or name members of any size."""

    def tar(*members: tuple[str, bytes], mode: str = "w") -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as archive:
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return buffer.getvalue()

    plain = tar(("0.png", b"abcd"), ("0.cls", b"0"))
    sized = bytearray(plain)
    contents = {
        "tar.gz": gzip.compress(plain),
        "tar.xz": tar(("0.png", b"abcd"), mode="w:xz"),
        "tar.bz2": tar(("0.png", b"abcd"), mode="w:bz2"),
        "empty": b"",
        "zeros": bytes(10_240),
        "cut": plain[:700],
        "text": b"hello" * 1000,
    }
    for name, size in (("a member of 8 GB", 8 * 2**30), ("a negative member", -1)):
        info = tarfile.TarInfo("0.png")
        info.size = size
        contents[name] = info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    sized[124:136] = b"notanumber\0\0"
    contents["a size of letters"] = bytes(sized)
    link = tarfile.TarInfo("0.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    contents["a link out"] = link.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    up = tarfile.TarInfo("../../0.png")
    contents["a path out"] = up.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    result: dict[str, Bomb] = {
        name: lambda path, content=content: path.write_bytes(content) for name, content in contents.items()
    }
    return result | {"tar.gz of zeros": lambda path: path.write_bytes(gzipped(iter([bytes(1_000_000)] * 100)))}


def spaces() -> dict[str, str]:
    """Bodies of sweep files whose settings or ranges are absurd, as JSON, which is YAML."""
    numbers: dict[str, object] = {
        "nan": ".nan", "infinity": ".inf", "minus infinity": "-.inf", "1e-400": "1.0e-400", "1e400": "1.0e+400",
        "1e300": "1.0e+300", "10^400": str(10**400), "a text": "high", "true": "true", "null": "null", "a list": "[1]",
        "a mapping": "{a: 1}", "a date": "2026-01-01", "octal": "0o17x",
    }  # fmt: skip
    result = {}
    for name, text in numbers.items():
        result[f"low {name}"] = f"search: {{trials: 2, space: {{optimizer.lr: {{low: {text}, high: 0.1, log: true}}}}}}"
        result[f"high {name}"] = f"search: {{trials: 2, space: {{optimizer.lr: {{low: 0.2, high: {text}}}}}}}"
        result[f"step {name}"] = (
            f"search: {{trials: 2, space: {{optimizer.lr: {{low: 0.1, high: 0.2, step: {text}}}}}}}"
            if name not in ("null", "1e300")
            else "search: {trials: 2, space: {optimizer.lr: {low: 0.1, high: 0.2, step: -1}}}"
        )
        result[f"trials {name}"] = f"search: {{trials: {text}, space: {{optimizer.lr: [0.1, 0.2]}}}}"
    thousand = json.dumps(list(range(1, 1001)))
    many = "[" + ", ".join(["0.1"] * 12_000) + "]"
    result |= {
        "12,000 settings": f"tune: {{optimizer.lr: {many}}}",
        "a million of two keys": f"tune: {{optimizer.lr: {thousand}, model.dim: {thousand}}}",
        "12,000 choices": f"search: {{trials: 2, space: {{optimizer.lr: {many}}}}}",
        "a million trials": "search: {trials: 1000000, space: {optimizer.lr: [0.1, 0.2]}}",
        "a million seeds": "seeds: 1000000",
        "12,000 listed seeds": "seeds: [" + ", ".join(["1"] * 12_000) + "]",
        "a step of 1e-300": "search: {trials: 2, space: {optimizer.lr: {low: 0.1, high: 0.2, step: 1.0e-300}}}",
        "integers of 2^60": f"search: {{trials: 2, space: {{model.dim: {{low: 1, high: {2**60}, int: true}}}}}}",
        "a range upside down": "search: {trials: 2, space: {optimizer.lr: {low: 1, high: 0.1}}}",
        "a range of one": "search: {trials: 2, space: {optimizer.lr: {low: 0.1, high: 0.1}}}",
        "a log range from 0": "search: {trials: 2, space: {optimizer.lr: {low: 0, high: 0.1, log: true}}}",
        "a log range from -0.0": "search: {trials: 2, space: {optimizer.lr: {low: -0.0, high: 0.1, log: true}}}",
        "settings of nan": "tune: {optimizer.lr: [.nan, .nan]}",
        "settings of one value in two ways": "tune: {optimizer.lr: [0.1, 1.0e-1]}",
        "no settings": "tune: {optimizer.lr: []}",
        "no keys": "tune: {}",
        "a setting of 1,000 brackets": f"tune: {{optimizer.lr: {'[' * 1000}1{']' * 1000}}}",
        "settings of 2,000 keys": f"tune: {json.dumps({f'a.k{n}': [1, 2] for n in range(2000)})}",
    }
    return result
