"""Gauges of density and repetition, counted from the code of a checkout: what is said twice, packed or without a noun.

`tools/structure.py` shows them in its second table. A thousand lines of code are lines that are neither blank, nor a
comment, nor part of a docstring.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from tools import import_graph
from tools.measures import Function, Source, Tree

SHORT = 6  # lines of a private function that could stand where it is used
WITHOUT_NOUN = ("what", "those", "whose", "which")
OPENERS = ("What", "As", "Those", "Of", "Whether", "Which")
STEPPED = re.compile(r"\boptimizer\.step\(|\bscaler\.step\(")


class Gauges:
    """The gauges of one checkout, each as the text of a cell."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    @cached_property
    def code_lines(self) -> int:
        """Lines of the package that are code."""
        return sum(len(_code_lines(source)) for source in self.tree.sources)

    def sizes(self) -> str:
        """Lines of the source, of the core without the outbuildings, and of the tests, in thousands."""
        lines = {source.path: source.lines for source in self.tree.sources}
        core = sum(count for path, count in lines.items() if import_graph.outbuilding(path) is None)
        tests = sum(source.lines for source in self.tree.tests)
        return " / ".join(f"{count / 1000:.1f} k" for count in (sum(lines.values()), core, tests))

    def repeated_options(self) -> str:
        """Options of constructors with the name, type and default of another one of their family, and all options."""
        repeated = total = 0
        families: dict[str, Counter[tuple[str, str, str]]] = {}
        for source in self.tree.sources:
            for option in _options(source):
                families.setdefault(source.path.parts[0], Counter())[option] += 1
        for options in families.values():
            total += options.total()
            repeated += options.total() - len(options)
        return f"{repeated} of {total}"

    def training_steps(self) -> str:
        """Files in which an optimizer takes a step, without optimizers themselves."""
        files = {
            source.path.as_posix()
            for source in self.tree.sources
            if source.path.parts[0] != "optimizer" and STEPPED.search(source.text)
        }
        return str(len(files))

    def lightning_parts(self) -> str:
        """Private parts of Lightning in the list of patched parts."""
        code = (
            "from blockyard.engine.lightning.patches import LIGHTNING, PARTS;"
            "print(sum(part.release == LIGHTNING for part in PARTS))"
        )
        environment = {**os.environ, "PYTHONPATH": str(self.tree.path / "src")}
        printed = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        return printed.stdout.strip()

    def imports_of_outbuildings(self) -> str:
        """Imports by which a file of the core depends on an outbuilding, those inside functions too."""
        return str(len(import_graph.imports_of_outbuildings(self.tree.package)))

    def packed(self) -> str:
        """Conditional expressions and comprehensions in a thousand lines of code."""
        comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
        nodes = [node for source in self.tree.sources for node in ast.walk(source.tree)]
        conditional = sum(isinstance(node, ast.IfExp) for node in nodes)
        loops = sum(isinstance(node, comprehensions) for node in nodes)
        return f"{1000 * conditional / self.code_lines:.1f} / {1000 * loops / self.code_lines:.1f}"

    def short_private_functions(self) -> str:
        """Private functions of a module that are short and used once."""
        count = 0
        for source in self.tree.sources:
            uses = Counter(node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name))
            for node in source.tree.body:
                if isinstance(node, Function) and node.name.startswith("_") and uses[node.name] == 1:
                    count += node.end_lineno - node.lineno < SHORT
        return str(count)

    def seams(self) -> str:
        """Comments that stand alone between two functions of a file, and constants after its first function."""
        headers = constants = 0
        for source in self.tree.sources:
            lines = source.text.splitlines()
            first = next((n.lineno for n in source.tree.body if isinstance(n, Function | ast.ClassDef)), None)
            if first is None:
                continue
            constants += sum(
                isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno > first and _is_constant(node)
                for node in source.tree.body
            )
            for number in range(first, len(lines)):
                begins = lines[number].startswith("#") and not lines[number - 1].strip()
                headers += begins and not _next_code_follows(lines, number)
        return f"{headers} / {constants}"

    def docstring_words(self) -> str:
        """Words for a missing noun in a thousand words of docstrings, and docstrings that open with one."""
        texts = [text for source in self.tree.sources for text in _docstrings(source)]
        words = [word.lower() for text in texts for word in re.findall(r"[A-Za-z']+", text)]
        missing = sum(word in WITHOUT_NOUN for word in words)
        openers = sum(text.split(maxsplit=1)[0].strip(",.:") in OPENERS for text in texts if text.split())
        return f"{1000 * missing / len(words):.1f} / {100 * openers / len(texts):.1f} %"

    def comments(self) -> str:
        """Lines with a comment alone, as a share of all lines."""
        lines = [line for source in self.tree.sources for line in source.text.splitlines()]
        return f"{100 * sum(line.lstrip().startswith('#') for line in lines) / len(lines):.1f} %"


def _code_lines(source: Source) -> list[str]:
    """Return the lines that are code."""
    documented = set()
    for node in ast.walk(source.tree):
        if isinstance(node, Function | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return [
        line
        for number, line in enumerate(source.text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#") and number not in documented
    ]


def _options(source: Source) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and default of the options that constructors write, and of the fields of data classes."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                for argument, default in zip(member.args.kwonlyargs, member.args.kw_defaults, strict=True):
                    annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
                    yield argument.arg, annotation, "" if default is None else ast.unparse(default)


def _is_constant(node: ast.Assign | ast.AnnAssign) -> bool:
    """Return whether a module's assignment is to a name in capitals."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return all(isinstance(target, ast.Name) and target.id.isupper() for target in targets)


def _next_code_follows(lines: list[str], number: int) -> bool:
    """Return whether a comment stands directly above the code that it is about."""
    while number < len(lines) and lines[number].startswith("#"):
        number += 1
    return number < len(lines) and bool(lines[number].strip())


def _docstrings(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield text
