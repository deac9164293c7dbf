"""Writes docs/components/: a page for each family, from conf/ and the docstrings.

    python tools/components.py

The pages are not in git; mkdocs calls `on_pre_build` before it reads docs/.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockyard.config import tree
from blockyard.config.choices import catalog
from blockyard.config.defaults import plain_default
from blockyard.config.schema import REQUIRED, Option, options
from blockyard.config.untrusted.targets import locate

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "components"
HEADINGS = ("Source", "Reference", "Equation", "Cost")
WRITTEN = "<!-- Written by `python tools/components.py` from conf/ and the docstrings. -->"
PARTS = {
    "The model": (
        *("tokenizer", "position", "token_mixer", "channel_mixer", "norm", "block", "residual", "layers", "model"),
        *("head", "preset"),
    ),
    "The task": ("data", "objective", "recipe", "experiment"),
    "The training": (
        *("parametrization", "optimizer", "schedule", "init", "trainer", "callbacks", "logger", "debug", "executor"),
    ),
}


def pages() -> dict[str, str]:
    """Every page by its file name."""
    families = [family for part in PARTS.values() for family in part]
    missing = set(catalog.groups()) ^ set(families)
    if missing:
        raise SystemExit(f"PARTS and conf/ differ: {', '.join(sorted(missing))}")
    return {"index.md": index()} | {f"{family}.md": page(family) for family in families}


def index() -> str:
    """The page that lists every choice of every family."""
    lines = [
        "# Components",
        "",
        WRITTEN,
        "",
        "A config is one choice in each family and a value for each option. `blockyard list FAMILY` prints these "
        "tables, `blockyard explain FAMILY=CHOICE` also what a choice combines with, and `blockyard explain OPTION` "
        "all that have an option.",
    ]
    for part, families in PARTS.items():
        lines += ["", f"## {part}", "", "| family | choices |", "|---|---|"]
        for family in families:
            names = ", ".join(f"[`{name}`]({family}.md#{name})" for name in catalog.choices(family))
            lines.append(f"| [`{family}`]({family}.md) | {names} |")
    return "\n".join(lines) + "\n"


def page(family: str) -> str:
    """The page of one family."""
    lines = [f"# {family}", "", WRITTEN, "", "| choice | what it is |", "|---|---|"]
    choices = catalog.choices(family).values()
    lines += [f"| [`{choice.name}`](#{choice.name}) | {_cell(choice.summary)} |" for choice in choices]
    for choice in choices:
        lines += ["", f"## {choice.name}", "", _text(choice.summary).rstrip(".") + ".", ""]
        lines += _described(choice)
    return "\n".join(lines).rstrip() + "\n"


def _described(choice: catalog.Choice) -> Iterator[str]:
    if choice.target is None:
        yield f"```yaml\n{choice.path.read_text(encoding='utf-8').rstrip()}\n```"
    else:
        doc = catalog.docstring(choice.target)
        for heading in HEADINGS:
            if text := catalog.section(doc, heading):
                yield f"- {heading}: {f'`{text}`' if heading == 'Equation' else _text(text)}"
        yield f"- Class: `{choice.target}`"
    rows = [
        _option(f"{prefix}.{option.name}", option, node)
        for prefix, node in tree.nodes(catalog.content(choice.path), choice.family)
        for option in options(locate(node["_target_"])).values()
    ]
    if rows:
        yield "\n| option | type | default | what it does |\n|---|---|---|---|"
        yield from rows


def _option(key: str, option: Option, node: dict[str, Any]) -> str:
    default = node.get(option.name, plain_default(option.default))
    if default is REQUIRED:
        shown = "required"
    elif tree.is_node(default):
        shown = f"`{default['_target_'].rpartition('.')[2]}`"
    else:
        shown = f"`{_yaml(default)}`"
    return f"| `{key}` | {_cell(option.describe())} | {_bar(shown)} | {_cell(option.help)} |"


def _yaml(value: Any) -> str:
    """A value as it is typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_yaml(each)}' for name, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return f"{value}"


def _cell(text: str) -> str:
    return _bar(_text(" ".join(text.split())))


def _bar(text: str) -> str:
    return text.replace("|", "\\|")


def _text(text: str) -> str:
    """Plain text, with the characters escaped that Markdown or HTML would read."""
    return text.replace("*", r"\*").replace("<", "&lt;")


def write(folder: Path = FOLDER) -> None:
    """Write the pages that differ from those in `folder`, and delete pages of families that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        # A page that is as it was keeps its time, or `mkdocs serve` would build for ever.
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def on_pre_build(**_: object) -> None:
    """Write the pages into docs/; mkdocs calls it, see `hooks` in mkdocs.yml."""
    write()


def main() -> int:
    """Write the pages into docs/."""
    if sys.argv[1:]:
        sys.exit(__doc__)
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
