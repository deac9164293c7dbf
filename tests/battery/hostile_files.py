"""Files from a stranger: images, saved tokenizers, configs and checkpoints of run folders, and texts for pages."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.battery.hostile_folders import CANARY

Damage = Callable[[Path], object]  # of a file that exists


def png(width: int, height: int, *chunks: tuple[bytes, bytes], data: bytes = b"") -> bytes:
    """A PNG of 8-bit grey whose header says `width` x `height`; its data hold no more than 100,000 pixels."""
    header = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    parts = [header, *chunks, (b"IDAT", data or zlib.compress(bytes(min(width, 100_000) + 1))), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    return b"\x89PNG\r\n\x1a\n" + body


@cache
def _bomb() -> bytes:
    """80 MB of zeros, compressed: by the tests that need it, and not where the cases are listed."""
    return zlib.compress(b"\x00" * 80_000_000, 9)


def bad_images() -> dict[str, Damage]:
    """What takes the place of one image of a folder; each must be named."""
    contents = {
        "empty": b"",
        "one byte": b"\x89",
        "text": b"hello\n",
        "html": b"<html><script>alert(1)</script></html>",
        "lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "elf": b"\x7fELF" + bytes(200),
        "zip": b"PK\x03\x04" + bytes(100),
        "pickle": pickle.dumps(Call()),
        "shell script": f"#!/bin/sh\ntouch {CANARY}\n".encode(),
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(EXECUTED) (w) file\n%%EOF\n",
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "svg entity": b"<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><svg>&a;</svg>",
        "fits": b"SIMPLE  =                    T" + b" " * 2850,
        "wmf": b"\xd7\xcd\xc6\x9a" + bytes(100),
        "psd": b"8BPS\x00\x01" + bytes(100),
        "ico": b"\x00\x00\x01\x00\x01\x00" + bytes(50),
        "huge in the header": png(2**31 - 1, 2**31 - 1),
        "many pixels": png(20_000, 20_000),
        "more than 89 million pixels": png(10_000, 9_000),
        "no pixels": png(0, 0),
        "no width": png(0, 5),
        "no data": png(8, 8, data=zlib.compress(b"")),
        "not compressed": png(8, 8, data=b"\x00" * 100),
        "wrong type": png(8, 8).replace(b"IHDR", b"IHDX"),
        "cut header": png(8, 8)[:20],
        "cut data": png(8, 8)[:50],
        "gif header": b"GIF89a\xff\xff\xff\xff",
        "bmp header": b"BM" + b"\xff" * 60,
        "jpeg header": b"\xff\xd8\xff\xe0" + b"\xff" * 60,
        "tiff header": b"II*\x00\x08\x00\x00\x00" + b"\xff" * 60,
        "tiff loop": b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00",
        "webp header": b"RIFF\xff\xff\xff\xffWEBPVP8 " + b"\xff" * 60,
        "ppm of no size": b"P6\n-1 -1\n255\n",
        "ppm of any size": b"P6\n99999 99999\n255\n",
        "ppm of letters": b"P6\na b c\n",
        "ppm cut": b"P6\n8 8\n255\nabc",
    }
    result: dict[str, Damage] = {
        name: lambda path, content=content: path.write_bytes(content) for name, content in contents.items()
    }
    bombs: dict[str, Callable[[], bytes]] = {
        "data bomb": lambda: png(9_400, 9_400, data=_bomb()[:2000]),
        "text bomb": lambda: png(8, 8, (b"zTXt", b"k\x00\x00" + _bomb())),
        "profile bomb": lambda: png(8, 8, (b"iCCP", b"k\x00\x00" + _bomb())),
        "international text bomb": lambda: png(8, 8, (b"iTXt", b"k\x00\x01\x00\x00\x00" + _bomb())),
    }
    result |= {name: lambda path, content=content: path.write_bytes(content()) for name, content in bombs.items()}
    for number in (1, 8, 16, 33, 45):
        result[f"cut at {number}"] = lambda path, number=number: path.write_bytes(path.read_bytes()[:number])
    return result | special_files(folders=False)


def special_files(*, folders: bool = True) -> dict[str, Damage]:
    """What is no plain file."""

    def make(how: Callable[[Path], object]) -> Damage:
        def work(path: Path) -> None:
            path.unlink(missing_ok=True)
            how(path)

        return work

    result = {
        "fifo": make(os.mkfifo),
        "zero": make(lambda path: path.symlink_to("/dev/zero")),
        "terminal": make(lambda path: path.symlink_to("/dev/tty")),
        "dangling": make(lambda path: path.symlink_to("/nowhere/at/all")),
        "loop": make(lambda path: path.symlink_to(path)),
    }
    return {**result, "folder": make(Path.mkdir)} if folders else result


class Call:
    """A pickle that creates the canary when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {CANARY}",)


# The content of tokenizer.json in a run of a `char` tokenizer.
TOKENIZERS = (
    "", "[]", "null", "true", "3", '"x"', "{}", "[[]]", '{"x": 1}', '{"symbols": null}', '{"symbols": 3}',
    '{"symbols": ["a", "b"]}', '{"symbols": {"a": 1}}', '{"symbols": true}', '{"symbols": "ab"}', '{"symbols": ""}',
    '{"symbols": "' + "a" * 100_000 + '"}', '{"words": ["a"]}', '{"tokenizer": {}}', '{"tokenizer": null}', "{",
    "[" * 100_000, '{"symbols": 1e999}', "NaN", '{"a": ' * 5000 + "1" + "}" * 5000, "\x00", "\ufeff{}", "not json",
    "9" * 10_000, '{"symbols": "ab", "symbols": [1]}', '{"symbols": "\\ud800"}',
)  # fmt: skip

# Changes of the config of a run: keys and values that take their place.
CONFIGS: tuple[tuple[str, Any], ...] = (
    ("model.dim", 10**7),
    ("model.dim", 10**12),
    ("model.dim", 10**30),
    ("model.heads", 0),
    ("model.dim", None),
    ("model.dim", "64"),
    ("model.dim", [64]),
    ("model.dim", {"_target_": "os.system", "command": f"touch {CANARY}"}),
    ("model", None),
    ("model", []),
    ("model", "x"),
    ("model._target_", "os.system"),
    ("model._target_", 3),
    ("model._target_", None),
    ("model._target_", "evilpackage.Evil"),
    ("model._target_", "torch.nn.Linear"),
    ("model._target_", "blockyard.model.decoder.Nothing"),
    ("norm._target_", "torch.load"),
    ("norm._target_", "subprocess.Popen"),
    ("norm", {"_target_": "os.system", "_partial_": True}),
    ("token_mixer.dropout", {"_target_": "os.system"}),
    ("tokenizer._target_", "pickle.loads"),
    ("tokenizer", {}),
    ("data._target_", "http.server.HTTPServer"),
    ("data.context", 10**9),
    ("data.context", -1),
    ("data", None),
    ("objective._target_", "logging.FileHandler"),
    ("optimizer._target_", "builtins.eval"),
    ("trainer._target_", "pytorch_lightning.Trainer"),
    ("callbacks", {"x": {"_target_": "logging.FileHandler", "filename": CANARY}}),
    ("logger", {"_target_": "logging.FileHandler", "filename": CANARY}),
    ("allow", ["evilpackage"]),
    ("allow", ["os"]),
    ("allow", "os"),
    ("allow", {"os": 1}),
    ("allow", [["os"]]),
    ("seed", "x"),
    ("seed", -1),
    ("seed", 10**400),
    ("hydra", {"callbacks": {}}),
    ("extra", 1),
)
WHOLE_CONFIGS = (
    "", "[]", "null", "x", "3", "a: 1\n---\nb: 2\n", "a: &a [*a]\n", "[" * 3000, "{a: " * 3000,
    f"!!python/object/apply:os.system ['touch {CANARY}']", "model: !!python/name:os.system\n", "\x00", "a: \x1b\n",
    "x: " + "y" * 20_000_000, "a0: &a [x]\nb: *a\n", "1: 2\n", "? [a]\n: b\n", "seed: 0\nseed: 1\n",
)  # fmt: skip


def checkpoints() -> dict[str, Damage]:
    """What takes the place of a checkpoint."""

    def archive(**members: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in members.items():
                file.writestr(name.replace("__", "/").replace("_pkl", ".pkl"), content)
        return buffer.getvalue()

    call = pickle.dumps(Call())
    contents = {
        "pickle": call,
        "old pickle": pickle.dumps(Call(), protocol=0),
        "pickle in an archive": archive(archive__data_pkl=call, archive__version=b"3\n"),
        "pickle of another name": archive(x__data_pkl=call, x__version=b"3\n"),
        "pickle twice": archive(archive__data_pkl=call, other__data_pkl=call),
        "path out of the archive": archive(**{"..__..__EXECUTED": b"x", "archive__data_pkl": call}),
        "empty archive": archive(),
        "archive of text": archive(a=b"x"),
        "text": b"hello",
        "empty": b"",
        "null": b"\x00" * 10_000,
        "cut archive": archive(archive__data_pkl=call)[:40],
        "tar": b"\x00" * 257 + b"ustar" + b"\x00" * 500,
    }
    result: dict[str, Damage] = {
        name: lambda path, content=content: path.write_bytes(content) for name, content in contents.items()
    }

    def bomb(path: Path) -> None:  # compressed by the tests that need it, and not where the cases are listed
        path.write_bytes(archive(archive__data_pkl=call, archive__data__0=b"\x00" * 300_000_000))

    return {**result, "archive bomb": bomb}


# Texts that mean something to a terminal, HTML, LaTeX, Markdown or a spreadsheet.
TEXTS = (
    "<script>window.hit=1</script>", '"><img src=x onerror="window.hit=2">', "</script><script>window.hit=3</script>",
    "<!--", "-->", "]]>", "<![CDATA[x]]>", "</style><style>*{display:none}</style>", "&lt;script&gt;", "a&amp;b",
    "javascript:alert(1)", "data:text/html,<script>1</script>", "<svg onload=alert(1)>", "' onmouseover='x", "${x}",
    "$x", "\\input{/etc/passwd}", "\\write18{touch EXECUTED}", "\\immediate\\write18{x}", "$$x^2$$", "%comment",
    "a_b^c~d#e&f{g}h\\i",
    "\\end{table}\\input{x}", "^^5cinput{x}", "| a | b |", "![x](http://127.0.0.1/x.png)", "[x](javascript:alert(1))",
    "`code`", "**bold** _it_", "# head", "- item", "<http://x>", "~~x~~", "a\n\n## b", "=1+1", "=cmd|'/C calc'!A0",
    "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "=HYPERLINK(\"http://x\")", "a,b\"c\nd", "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x9b31m", "\u202egnp.exe", "a\u2028b\u2029c", "\x00", "\x7f", "\ud800", "\ufffe", "[bold red]x[/]", "[link=http://x]x[/link]",
    "x" * 3000, " ", "\u200b", "null", "NaN", "__proto__", "constructor", "toString",
)  # fmt: skip


def locations() -> Iterator[tuple[str, str]]:
    """A text, and the format in which it must stay text."""
    for text in TEXTS:
        for form in ("html", "markdown", "latex", "csv", "terminal"):
            yield text, form
