"""YAML that no config may be: broken, ambiguous, endless, tagged; and paths that are no plain file."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.battery.hostile_folders import CANARY, GLOBAL, Folder

RUN = f"touch {CANARY}"
TAGGED = (
    f"!!python/object/apply:os.system ['{RUN}']",
    f"!!python/object/new:os.system ['{RUN}']",
    f"!!python/object/apply:subprocess.Popen [['touch', '{CANARY}']]",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/object/apply:pathlib.Path [x]",
    "!!python/object/apply:builtins.eval ['1']",
    "!!python/tuple [1, 2]",
    "!!python/none x",
    "!!python/bytes x",
    "!!binary aGk=",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!timestamp 2001-01-01",
    "!!int x",
    "!!int ''",
    "!!float x",
    "!!bool x",
    "!!str 1",
    "!!map [1]",
    "!own x",
    "! x",
    "!<tag:example.org,2000:x> 1",
)
# The value of an option of a choice.
VALUES = (
    *TAGGED,
    "*unknown",
    "&a [*a]",
    "&a {x: *a}",
    "[" * 3000 + "]" * 3000,
    "{a: " * 3000 + "}" * 3000,
    "[" * 3000,
    "'unclosed",
    '"\\xZZ"',
    '"\\u12"',
    "[1, 2",
    "{a: 1",
    "@x",
    "`x`",
    "%x",
    "{? [a, b] : 1}",
    "{? {a: 1} : 1}",
    "{1: a}",
    "{null: a}",
    "{true: a}",
    "{1.5: a}",
    "{a: 1, a: 2}",
    "9" * 5000,
    "${",
    "${}",
    "${unknown.key}",
    "${.eps}",
    "${oc.create:{a:1}}",
    "${oc.decode:'{a: 1}'}",
    "${oc.env:NO_SUCH_VARIABLE_HERE}",
    "${hydra:runtime.cwd}",
    "${now:%Y}",
    "${eval:1}",
    "${norm.${norm.x}}",
    "- a\n- b",
    "a: b: c",
    "\tx",
    "|\n x\n\ty: [",
)
# The whole content of norm/x.yaml.
CONTENTS = (
    "- a\n- b\n",
    "just text\n",
    "1\n",
    "true\n",
    "[]\n",
    "a: 1\n---\nb: 2\n",
    "--- a\n--- b\n",
    "%YAML 3.0\n---\na: 1\n",
    "%TAG ! tag:x\n%TAG ! tag:y\n---\na: 1\n",
    "a: 1\na: 2\n",
    "\"a\": 1\n'a': 2\n",
    "_target_: blockyard.norm.rms.RMS\n_target_: os.system\n",
    "on: 1\n",
    "? [a]\n: 1\n",
    "defaults: [x]\n",
    "defaults: [/norm/x]\n",
    "defaults: x\n",
    "defaults: 3\n",
    "defaults: {a: b}\n",
    "defaults: [[x]]\n",
    "defaults: [3]\n",
    "defaults: [null]\n",
    "defaults: [{a: 1, b: 2}]\n",
    "defaults: ['../../../../etc/passwd']\n",
    "defaults: [/etc/passwd]\n",
    "defaults: [no_such]\n",
    "defaults:\n  - /norm@: rms\n  - /norm@..: rms\n",
    "defaults:\n  - ${oc.env:HOME}\n",
    "# @package\na: 1\n",
    "# @package a b c\na: 1\n",
    "# @package _global_.allow\n- os\n",
    "x" * 200_000 + ": 1\n",
    "a: 1\n" + "#" * 200_000,
    "\n".join(f"k{i}: [{', '.join(['x'] * 40)}]" for i in range(1000)),
    "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
    "a0: &a0 [" + ", ".join(["x"] * 9000) + "]\na1: &a1 [*a0, *a0, *a0]\na2: [*a1, *a1, *a1]\n",
    "a: ${a}\n",
    "a: ${norm.b}\nb: ${norm.a}\n",
    "a: ${norm}\n",
    "a0: xxxxxxxxxx\n" + "".join(f"a{i}: ${{norm.a{i - 1}}}${{norm.a{i - 1}}}\n" for i in range(1, 60)),
    "a0: [x, x]\n" + "".join(f"a{i}: ['${{norm.a{i - 1}}}', '${{norm.a{i - 1}}}']\n" for i in range(1, 60)),
    "\x00",
    "a: \x07\n",
    "a: \x1b[31m\n",
    "a: \u0085b\x9b\n",
)
BYTES = (
    b"\xff\xfea\x00",
    b"\xef\xbb\xbfeps: 1\n",
    b"a: \xff\n",
    b"\x80",
    b"PK\x03\x04" + b"\x00" * 50,
    b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    b"\x00" * 5000,
    "a: ü\n".encode("latin-1"),
    "eps: 1\n".encode("utf-16"),
    "eps: 1\n".encode("utf-32"),
)


def broken() -> Iterator[Folder]:
    """Folders with one choice `norm=x` that cannot be read, or whose content is no choice."""
    node = "_target_: blockyard.norm.rms.RMS\n_partial_: true\n"
    for number, value in enumerate(VALUES):
        yield Folder(f"value {number}: {value[:30]}", {"norm/x.yaml": f"{node}eps: {value}\n"}, "norm=x")
    for number, text in enumerate(CONTENTS):
        yield Folder(f"content {number}: {text[:30]!r}", {"norm/x.yaml": text}, "norm=x")
    for number, content in enumerate(BYTES):
        yield Folder(f"bytes {number}", {}, "norm=x", lambda root, content=content: _norm(root).write_bytes(content))
    for make in (_fifo, _socket, _zero, _urandom, _loop, _dangling, _folder, _passwd, _secret, _tree, _in_a_circle):
        yield Folder(f"special: {make.__name__}", {}, "norm=x", make)


def _norm(root: Path) -> Path:
    (root / "conf" / "norm").mkdir(parents=True, exist_ok=True)
    return root / "conf" / "norm" / "x.yaml"


def _fifo(root: Path) -> None:
    os.mkfifo(_norm(root))


def _socket(root: Path) -> None:
    path = _norm(root)
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listening:  # its address is short, whatever the folder's name
        listening.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def _zero(root: Path) -> None:
    _norm(root).symlink_to("/dev/zero")


def _urandom(root: Path) -> None:
    _norm(root).symlink_to("/dev/urandom")


def _loop(root: Path) -> None:
    _norm(root).symlink_to(_norm(root))


def _dangling(root: Path) -> None:
    _norm(root).symlink_to(root / "nowhere")


def _folder(root: Path) -> None:
    _norm(root).mkdir()


def _passwd(root: Path) -> None:
    _norm(root).symlink_to("/etc/passwd")


def _secret(root: Path) -> None:
    (root / "secret").write_text("-----BEGIN PRIVATE KEY-----\nabc\n")
    _norm(root).symlink_to(root / "secret")


def _tree(root: Path) -> None:
    """Twenty files, each of which builds on the next one twice."""
    for number in range(20):
        path = _norm(root).with_name("x.yaml" if number == 0 else f"y{number}.yaml")
        after = f"y{number + 1}"
        text = f"defaults:\n  - {after}@a\n  - {after}@b\n" if number < 19 else "eps: 1\n"
        path.write_text(text)


def _in_a_circle(root: Path) -> None:
    _norm(root).write_text("defaults: [y]\n")
    _norm(root).with_name("y.yaml").write_text(f"{GLOBAL}defaults: [/norm/x]\n")
