"""Config folders from a stranger: every spelling that reaches keys of Hydra itself, special files, and broken YAML.

Each payload, if it is ever called, creates the file `CANARY` in the working folder.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CANARY = "EXECUTED"
CALL = f"{{_target_: logging.FileHandler, filename: {CANARY}}}"
GLOBAL = "# @package _global_\n"

LOGGING = "{{version: 1, root: {{handlers: [h]}}, handlers: {{h: {{{key}: logging.FileHandler, filename: EXECUTED}}}}}}"

# Keys of Hydra itself, and a value for each that its application would act on.
HYDRA_KEYS = {
    "callbacks": f"{{x: {CALL}}}",
    "launcher": CALL,
    "sweeper": CALL,
    "job_logging": LOGGING.format(key="class"),
    "hydra_logging": LOGGING.format(key="()"),
    "job": f"{{env_set: {{PYTHONSTARTUP: {CANARY}}}, chdir: true}}",
    "run": f"{{dir: {CANARY}}}",
    "sweep": f"{{dir: {CANARY}, subdir: x}}",
    "output_subdir": CANARY,
    "mode": "MULTIRUN",
    "help": "{template: $CONFIG}",
    "verbose": "true",
    "typo": "1",
}

# A mapping {HYDRA: {KEY: VALUE}} as the content of a file with the package _global_.
SPELLINGS = {
    "plain": "hydra: {{{key}: {value}}}",
    "flow": "{{hydra: {{{key}: {value}}}}}",
    "double quotes": '"hydra": {{{key}: {value}}}',
    "single quotes": "'hydra': {{{key}: {value}}}",
    "hex escape": '"\\x68ydra": {{{key}: {value}}}',
    "u escape": '"h\\u0079dra": {{{key}: {value}}}',
    "U escape": '"hydr\\U00000061": {{{key}: {value}}}',
    "all escaped": '"\\x68\\x79\\x64\\x72\\x61": {{{key}: {value}}}',
    "broken line": '? "hyd\\\n  ra"\n: {{{key}: {value}}}',
    "complex key": "? hydra\n: {{{key}: {value}}}",
    "tagged key": "!!str hydra: {{{key}: {value}}}",
    "anchored key": "&k hydra: {{{key}: {value}}}",
    "alias as key": 'a: &k "\\x68ydra"\n*k : {{{key}: {value}}}',
    "alias as value": "x: &v {{{key}: {value}}}\nhydra: *v",
    "merge": 'x: &m {{"\\x68ydra": {{{key}: {value}}}}}\n<<: *m',
    "merge list": 'x: &m {{"\\x68ydra": {{{key}: {value}}}}}\n<<: [*m, *m]',
    "merge inside": 'x: &m {{{key}: {value}}}\n"\\x68ydra":\n  <<: *m',
    "interpolated": 'x: {{{key}: {value}}}\n"\\x68ydra": ${{x}}',
    "directive": "%YAML 1.1\n---\nhydra: {{{key}: {value}}}",
    "dotted": "hydra.{key}: {value}",
}

# The content of a file whose header names the package, and its value there.
PACKAGES = {
    "package": ("# @package hydra.callbacks\n", f"x: {CALL}\n"),
    "package of all": ("# @package hydra\n", f"callbacks: {{x: {CALL}}}\n"),
    "global package": ("# @package _global_.hydra.callbacks\n", f"x: {CALL}\n"),
    "global package of all": ("# @package _global_.hydra\n", f"callbacks: {{x: {CALL}}}\n"),
    "without space": ("#@package hydra.callbacks\n", f"x: {CALL}\n"),
    "more spaces": ("\n\n   #    @package    hydra.callbacks\n", f"x: {CALL}\n"),
    "twice": ("# @package norm\n# @package hydra.callbacks\n", f"x: {CALL}\n"),
    "launcher": ("# @package hydra.launcher\n", f"{CALL}\n"),
    "twice global": ("# @package _global_._global_.hydra.callbacks\n", f"x: {CALL}\n"),
    "brackets": ("# @package hydra[callbacks]\n", f"x: {CALL}\n"),
    "brackets first": ("# @package [hydra].callbacks\n", f"x: {CALL}\n"),
    "through the group": ("# @package _group_.hydra\n", f"callbacks: {{x: {CALL}}}\n"),
}

# Entries of the defaults list of an experiment; `norm/evil.yaml` holds a callback.
DEFAULTS = (
    "/norm@hydra.callbacks: evil",
    "/norm@_global_.hydra.callbacks: evil",
    '"/norm@\\x68ydra.callbacks": evil',
    '"/norm@_global_.\\x68ydra.callbacks": evil',
    "? /norm@hydra.callbacks\n    : evil",
    "/norm@hydra.callbacks: [evil]",
    "/norm@:hydra.callbacks: evil",
    "override /norm@hydra.callbacks: evil",
    "/norm/evil@hydra.callbacks",
    "/norm/evil@_global_.hydra.callbacks",
    "optional /norm@hydra.callbacks: evil",
    "/hydra/callbacks: evil",
    "override /hydra/callbacks: evil",
    "override hydra/callbacks: evil",
    "override /hydra/launcher: evil",
    "override /hydra/sweeper: evil",
    "override /hydra/job_logging: stdout",
    "override /hydra/job_logging: none",
    "override /hydra/hydra_logging: disabled",
    "override /hydra/job_logging: null",
    "/norm@hydra: deep",
    "/norm@_global_: global",
    "/norm@_global_.hydra: deep",
    "/experiment@hydra.callbacks: evil",
    "/norm/../norm@hydra.callbacks: evil",
    "/norm@hydra.callbacks: ${norm}",
    "/norm@hydra.callbacks.x: call",
    "/norm@hydra[callbacks]: evil",
    "/norm@[hydra][callbacks]: evil",
)
DEFAULTS_FILES = {
    "norm/evil.yaml": f"x: {CALL}\n",
    "norm/call.yaml": f"{CALL}\n",
    "norm/deep.yaml": f"callbacks: {{x: {CALL}}}\n",
    "norm/global.yaml": f'"\\x68ydra": {{callbacks: {{x: {CALL}}}}}\n',
    "experiment/evil.yaml": f"x: {CALL}\n",
}

# Files in the folder of Hydra's own groups, which come before those that Hydra registers in Python.
OWN_GROUPS = {
    "hydra/config.yaml": f"callbacks: {{x: {CALL}}}\n",
    "hydra/launcher/basic.yaml": f"{CALL}\n",
    "hydra/sweeper/basic.yaml": f"{CALL}\n",
    "hydra/job_logging/default.yaml": HYDRA_KEYS["job_logging"],
    "hydra/hydra_logging/default.yaml": HYDRA_KEYS["hydra_logging"],
    "hydra/callbacks/x.yaml": f"x: {CALL}\n",
    "hydra/env/default.yaml": f"# @package hydra.callbacks\nx: {CALL}\n",
    "hydra/output/default.yaml": f"callbacks: {{x: {CALL}}}\n",
    "hydra/help/default.yaml": "template: x\n",
    "hydra/hydra_help/default.yaml": "template: x\n",
}

COMMANDS = (
    ("check",),
    ("train",),
    ("train", "-m", "seed=0,1"),
    ("train", "--cfg", "job"),
    ("train", "--cfg", "all", "--resolve"),
    ("train", "--info", "all"),
    ("train", "--info", "defaults-tree"),
)


@dataclass(frozen=True)
class Folder:
    """A config folder and the choice of it that a user types.

    files: content by path; other: makes what is no plain file, in the working folder
    """

    name: str
    files: dict[str, str]
    choice: str = "experiment=x"
    other: Callable[[Path], None] | None = field(default=None, compare=False)

    def write(self, root: Path) -> None:
        """Write the folder `conf` into a working folder."""
        (root / "conf").mkdir(parents=True)
        for path, text in self.files.items():
            (root / "conf" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "conf" / path).write_text(text, encoding="utf-8")
        if self.other is not None:
            self.other(root)


def reaching_hydra() -> Iterator[Folder]:
    """Folders whose files set keys of Hydra itself."""
    for (how, text), (key, value) in itertools.product(SPELLINGS.items(), HYDRA_KEYS.items()):
        yield Folder(f"{how}: {key}", {"experiment/x.yaml": GLOBAL + text.format(key=key, value=value) + "\n"})
    for (how, (header, text)), family in itertools.product(PACKAGES.items(), ("experiment", "norm", "debug", "preset")):
        yield Folder(f"{how} in {family}", {f"{family}/x.yaml": header + text}, f"{family}=x")
    for entry in DEFAULTS:
        named = {path: text for path, text in DEFAULTS_FILES.items() if Path(path).stem in entry}
        yield Folder(f"defaults: {entry}", {**named, "experiment/x.yaml": f"{GLOBAL}defaults:\n  - {entry}\nseed: 1\n"})
    for path, text in OWN_GROUPS.items():
        yield Folder(path, {path: text, "experiment/x.yaml": f"{GLOBAL}seed: 1\n"})
    yield from _linked()


def _linked() -> Iterator[Folder]:
    evil = f"{GLOBAL}hydra: {{callbacks: {{x: {CALL}}}}}\n"

    def elsewhere(root: Path) -> Path:
        (root / "elsewhere" / "experiment").mkdir(parents=True)
        (root / "elsewhere" / "experiment" / "x.yaml").write_text(evil)
        return root / "elsewhere"

    def folder(root: Path) -> None:
        os.symlink(elsewhere(root) / "experiment", root / "conf" / "experiment")

    def relative(root: Path) -> None:
        elsewhere(root)
        os.symlink("../elsewhere/experiment", root / "conf" / "experiment")

    def file(root: Path) -> None:
        (root / "conf" / "experiment").mkdir()
        os.symlink(elsewhere(root) / "experiment" / "x.yaml", root / "conf" / "experiment" / "x.yaml")

    def chain(root: Path) -> None:
        os.symlink(elsewhere(root), root / "second")
        os.symlink(root / "second" / "experiment", root / "third")
        os.symlink(root / "third", root / "conf" / "experiment")

    def own_group(root: Path) -> None:
        (root / "groups" / "launcher").mkdir(parents=True)
        (root / "groups" / "launcher" / "basic.yaml").write_text(CALL)
        os.symlink(root / "groups", root / "conf" / "hydra")

    def whole(root: Path) -> None:
        (root / "conf").rmdir()
        os.symlink(elsewhere(root), root / "conf")

    for make in (folder, relative, file, chain, whole):
        yield Folder(f"link: {make.__name__}", {}, other=make)
    yield Folder("link: own_group", {"experiment/x.yaml": f"{GLOBAL}seed: 1\n"}, other=own_group)
    deep = f'"\\x68ydra": {{callbacks: {{x: {CALL}}}}}\n'

    def nested(root: Path) -> None:
        (root / "elsewhere").mkdir()
        (root / "elsewhere" / "y.yaml").write_text(GLOBAL + deep)
        os.symlink(root / "elsewhere", root / "conf" / "experiment" / "sub")

    yield Folder("link: nested", {"experiment/x.yaml": f"{GLOBAL}defaults:\n  - /experiment/sub/y\n"}, other=nested)
    yield Folder(
        "nested file",
        {
            "experiment/x.yaml": f"{GLOBAL}defaults:\n  - /experiment/sub/y\n",
            "experiment/sub/y.yaml": GLOBAL + deep,
        },
    )
    yield Folder(
        "a group of its own",
        {"experiment/x.yaml": f"{GLOBAL}defaults:\n  - /mine/y@_global_\n", "mine/y.yaml": deep},
    )
    yield Folder("at the top", {"experiment/x.yaml": f"{GLOBAL}defaults:\n  - /y@_global_\n", "y.yaml": deep})
