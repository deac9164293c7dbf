"""The structure of the source tree as a table: lengths, imports, docstrings, names, hops.

    python tools/structure.py [TREE] [--against TREE] [--since COMMIT]

TREE is a checkout, by default the one this file lies in. With --against, a first column shows another checkout:

    git worktree add --detach /tmp/before 810676c
    python tools/structure.py --against /tmp/before --since 810676c --write

--since says from which commit on TREE's own commits are counted; --write puts the table into docs/structure.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.gauges import Gauges  # noqa: E402
from tools.measures import Tree  # noqa: E402

PAGE = ROOT / "docs" / "structure.md"
BEGIN, END = "<!-- begin structure -->", "<!-- end structure -->"

# What is counted, and the aim.
ROWS = {
    "files that name a token mixer, median": (Tree.files_for_a_mixer, "2"),
    "hops of a batch (network as one hop) / calls back up": (Tree.batch, "8 / 0"),
    "files that run in one forward pass / their lines": (Tree.forward_files, "22"),
    "files that run in one training step / their lines": (Tree.step_files, ""),
    "modules / lines": (Tree.package_size, ""),
    "file length: median / p90 / p95 / longest": (Tree.file_lengths, "median <= 120"),
    "function length: median / p95 / longest": (Tree.function_lengths, ""),
    "comment lines / docstring lines": (Tree.prose, ""),
    "definitions with docstring: public / all": (Tree.docstrings, "100 %"),
    "functions fully annotated": (Tree.annotated, "100 %"),
    "raise : assert": (Tree.raises, ""),
    "forwards that state shapes": (Tree.shapes, "90 %"),
    "test lines : source lines": (Tree.test_lines, "1"),
    "modules under 40 lines / with one importer": (Tree.small_modules, "70 with one"),
    "import statements in lines of code": (Tree.import_share, "<= 10 %"),
    "circles of files": (Tree.file_circles, "0"),
    "circles of folders, two levels deep": (Tree.inner_circles, "0"),
    "class names defined twice": (Tree.duplicate_classes, "0"),
    "`dict[str, Any]`": (Tree.untyped_dicts, "< 250"),
    "lines that mypy checks": (Tree.checked_lines, "100 %"),
    "options in YAML that repeat a default": (Tree.repeated_defaults, "0"),
    "folders and loose files / loose files": (Tree.rooms, "7 loose"),
    "floors": (Tree.floors, "<= 12"),
    "arrows between folders / that climb": (Tree.arrows, "0 climb"),
    "folders in the largest import cycle": (Tree.cycles, "0"),
    "imports inside functions": (Tree.lazy_imports, ""),
    "fullest folders (files)": (Tree.full_folders, ""),
    "names from a private vocabulary": (Tree.private_words, "0"),
    "the same in tests": (Tree.private_words_of_tests, "0"),
    "messages that are riddles": (Tree.riddles, "0"),
    "README: lines / words / longest line": (Tree.readme, "<= 130 lines"),
}
# Density and repetition: what is counted, and the aim.
GAUGES = {
    "lines: source / core without outbuildings / tests": (Gauges.sizes, "<= 95 k / <= 80 k / <= 78 k"),
    "options that repeat one of their family": (Gauges.repeated_options, "< 120"),
    "files in which a training step is taken": (Gauges.training_steps, "1"),
    "private parts of Lightning": (Gauges.lightning_parts, "<= 10"),
    "imports of the core into outbuildings": (Gauges.imports_of_outbuildings, "0"),
    "conditional expressions / comprehensions in 1,000 lines of code": (Gauges.packed, "<= 22 / <= 32"),
    "private functions of at most 6 lines that are used once": (Gauges.short_private_functions, "< 60"),
    "comment blocks in mid-file / constants after the first function": (Gauges.seams, "< 20 / < 60"),
    "what, those, whose, which in 1,000 words of docstrings / docstrings that open so": (
        Gauges.docstring_words,
        "<= 5 / <= 1 %",
    ),
    "lines of comments": (Gauges.comments, ">= 2.5 %"),
}


def table(trees: dict[str, Tree], since: str | None) -> Iterator[str]:
    """The lines of the table, a column a tree."""
    yield f"| | {' | '.join(trees)} | aim |"
    yield f"|---|{'---|' * len(trees)}---|"
    for name, (measure, aim) in ROWS.items():
        yield f"| {name} | {' | '.join(measure(tree) for tree in trees.values())} | {aim} |"
    for name, (gauge, aim) in GAUGES.items():
        yield f"| {name} | {' | '.join(gauge(Gauges(tree)) for tree in trees.values())} | {aim} |"
    commits = [tree.commits(since if label == "now" else None) for label, tree in trees.items()]
    yield f"| commits / longest subject / with a body | {' | '.join(commits)} | 72 characters |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--against", type=Path, metavar="TREE", help="a checkout shown in a column before")
    parser.add_argument("--since", metavar="COMMIT", help="count the commits after this one")
    parser.add_argument("--write", action="store_true", help="put the table into docs/structure.md")
    args = parser.parse_args()
    trees = {"before": Tree(args.against)} if args.against else {}
    lines = list(table(trees | {"now": Tree(args.tree)}, args.since))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if args.write:
        text = PAGE.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        PAGE.write_text("\n".join([head + BEGIN, *lines, END + rest.partition(END)[2]]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
