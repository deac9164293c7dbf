"""What there is to choose from: the files on disk are the registry.

Everything here is read from the tree (`conf/` and the mechanism files' docstrings, by `ast`), so
that `list`, `--help` and completion answer without importing torch.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
# Groups of conf/ that are no part of a run: who runs the cells of a sweep changes nothing of them.
BESIDE = ("executor",)


@dataclass(frozen=True)
class Choice:
    """One YAML of one family, with what its mechanism's docstring says of it."""

    family: str
    name: str
    path: Path
    target: str | None  # dotted name of the class, where the YAML has one
    summary: str  # one line
    source: str  # the paper, or ""


def conf_dir() -> Path:
    """The shipped `conf/`: inside an installed wheel, or at the top of a checkout."""
    for folder in (PACKAGE / "conf", PACKAGE.parents[1] / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no conf/ beside {PACKAGE} nor inside it; is the installation complete?")


@cache
def families() -> tuple[str, ...]:
    """The config groups, in the order of the defaults list of `config.yaml`."""
    defaults = content(conf_dir() / "config.yaml")["defaults"]
    return tuple(key for entry in defaults if isinstance(entry, dict) for key in entry)


def groups() -> tuple[str, ...]:
    """Everything there is a choice in: the families of a run, then what is beside it."""
    return (*families(), *BESIDE)


def choices(family: str, extra: tuple[Path, ...] = ()) -> dict[str, Choice]:
    """Every choice of a family, by name; `extra` are a user's own config folders."""
    found: dict[str, Choice] = {}
    for root in (conf_dir(), *extra):
        for path in sorted((root / family).glob("*.yaml")):
            found.setdefault(path.stem, _read(family, path))
    return found


def docstring(target: str) -> str:
    """The module docstring of a dotted class, without importing it; "" where there is none."""
    path = _module_file(target.rpartition(".")[0])
    return _docstring(path, _stamp(path)) if path is not None else ""


@lru_cache(maxsize=1024)
def _docstring(path: Path, _stamp: tuple[int, ...]) -> str:
    try:
        return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (SyntaxError, ValueError):  # one broken file of a user's does not hide the others
        return ""


def content(path: Path) -> Any:
    """What a YAML file holds; it is read anew after it has changed only. Raises yaml.YAMLError."""
    return deepcopy(_content(path, _stamp(path)))


@lru_cache(maxsize=1024)
def _content(path: Path, _stamp: tuple[int, ...]) -> Any:
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _stamp(path: Path) -> tuple[int, ...]:
    """What differs after a file has been written again."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size


def section(text: str, heading: str) -> str:
    """The text after `heading:` in a docstring, up to the next heading or blank line, on one line."""
    match = re.search(rf"^{heading}: *(.+?)(?=\n\S+: |\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(match.group(1).split()) if match else ""


def _read(family: str, path: Path) -> Choice:
    text = path.read_text(encoding="utf-8")
    target = re.search(r"^_target_: *([\w.]+)", text, re.MULTILINE)
    dotted = target.group(1) if target else None
    doc = docstring(dotted) if dotted else ""
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#") and "@package" not in line]
    # Several YAMLs may share one class (trainers): a comment at the top then tells them apart.
    summary = comments[0] if comments else doc.partition("\n")[0]
    return Choice(family, path.stem, path, dotted, summary, section(doc or "\n".join(comments), "Source"))


def _module_file(module: str) -> Path | None:
    """The file of a dotted module, found without running any of its packages' code."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None:
        return None
    roots = [Path(root) for root in spec.submodule_search_locations or []]
    for root in roots:
        base = root.joinpath(*rest)
        for path in (base.with_suffix(".py") if rest else base / "__init__.py", base / "__init__.py"):
            if path.is_file():
                return path
    if not roots and not rest and spec.origin:
        return Path(spec.origin)
    return None


def keys(choice: Choice) -> list[str]:
    """The options that a choice's YAML names at its top level."""
    return re.findall(r"^([a-z]\w*):", choice.path.read_text(encoding="utf-8"), re.MULTILINE)
