"""What `tools/structure.py` counts, in the tree at a path: files, functions, docstrings, imports, names, commits."""

from __future__ import annotations

import ast
import io
import os
import re
import statistics
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools import import_graph as layers  # noqa: E402
from tools import walks  # noqa: E402

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# Names that say nothing of what they hold, as locals, parameters and functions.
_WORDS = "found made said asked told given known word words rows places symbols way ways turn piece pieces whose"
PRIVATE_WORDS = frozenset(_WORDS.split())
# `rows` is the term for the rows of a table, a matrix or a grid. It is not counted in a function that names one of
# these or their columns, in code or in words; there its docstring and that of the module count as well.
TABLE = re.compile(r"(?i)(?<![a-z])(tables?|columns?|cols|csv|header|grid|matrix|matrices)(?![a-z])|\w(Rows|Table)\b")
# Words that are the right ones where they stand: file, name, reason.
STANDARD = {
    ("data/associative_recall.py", "symbols"): "an option of conf/data, part of every run's identity",
    ("tokenizer/word.py", "word"): "the tokens are words",
    ("generate/images.py", "given"): "an option of `blockyard generate`",
    ("commands/generate.py", "given"): "the same option",
    ("sweep/plan/sweep_plan.py", "asked"): "a key of plan.json",
    ("objective/tag.py", "piece"): "an option of conf/objective, part of a run's identity",
    **dict.fromkeys(
        (("contracts/batch.py", "given"), ("contracts/specs.py", "given")),
        "what layers gave to later ones, beside `gives` and `takes` in the contract of token mixers",
    ),
    **dict.fromkeys(
        (
            *(("tokenizer/char.py", "pieces"), ("tokenizer/word.py", "pieces"), ("contracts/tokenizers.py", "pieces")),
            *(("data/splits/tagged.py", "pieces"), ("data/tagged_text.py", "pieces"), ("evaluate/tagged.py", "pieces")),
        ),
        "the parts of a word that are tokens, as SentencePiece calls them",
    ),
    ("engine/setup_model.py", "asked"): "a key of run.json",
    ("report/load/document.py", "words"): "a key of comparison.json",
}
RIDDLES = re.compile(r"\bis no \w|\bare no \w|nothing reads|has no say|does not fit\b|there is no such")
SHAPE = re.compile(r"\((?:\.{3}, )?[A-Z]\w{0,2}(?:, [^()]*|,)?\)|\([A-Z] ?[|*+,]|\(\.{3}, \w+\)")


@dataclass
class Source:
    """One Python file."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """How long it is."""
        return self.text.count("\n")

    @property
    def comments(self) -> int:
        """Lines with a comment."""
        return sum(t.type == tokenize.COMMENT for t in tokenize.generate_tokens(io.StringIO(self.text).readline))

    @property
    def docstring_lines(self) -> int:
        """Lines of docstrings."""
        nodes = (n.body[0] for n in ast.walk(self.tree) if _has_docstring(n))
        return sum(node.end_lineno - node.lineno + 1 for node in nodes)

    def definitions(self) -> Iterator[tuple[Definition | ast.Module, bool]]:
        """The module, its classes, functions and methods, and whether each is public."""
        public = not any(part.startswith("_") and part != "__init__" for part in self.path.with_suffix("").parts)
        yield self.tree, public
        yield from _definitions(self.tree, public)


class Tree:
    """A checkout of the project."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.package = self.path / "src" / "blockyard"

    @cached_property
    def sources(self) -> list[Source]:
        """Every module of the package."""
        return self._read("src/blockyard")

    @cached_property
    def tests(self) -> list[Source]:
        """Every file of the tests."""
        return self._read("tests")

    def _read(self, folder: str) -> list[Source]:
        paths = sorted((self.path / folder).rglob("*.py"))
        return [Source(path.relative_to(self.path / folder), path.read_text(encoding="utf-8")) for path in paths]

    @cached_property
    def functions(self) -> list[Function]:
        """Every function and method."""
        return [n for source in self.sources for n in ast.walk(source.tree) if isinstance(n, Function)]

    # -- a mixer, a batch ----------------------------------------------------------------------------

    def files_for_a_mixer(self) -> str:
        """The files of the package and of conf/ that name a token mixer: its own, its YAML, who imports it."""
        mixers = {p.stem for p in (self.path / "conf/token_mixer").glob("*.yaml")}
        paths = [*self.package.rglob("*.py"), *(self.path / "conf").rglob("*.yaml")]
        texts = {path: path.read_text(encoding="utf-8") for path in paths}
        counts = []
        for mixer in sorted(mixers):
            dotted = re.compile(rf"blockyard\.token_mixer\.{mixer}\b")
            # Mixers may be made of other mixers, and experiments choose them; neither is a place to register one.
            elsewhere = [p for p, text in texts.items() if p.parent.name != "token_mixer" and dotted.search(text)]
            own = [self.package / "token_mixer" / f"{mixer}.py", self.path / "conf/token_mixer" / f"{mixer}.yaml"]
            counts.append(sum(path.is_file() for path in own) + len(elsewhere))
        return f"{statistics.median(counts):.0f} (largest {max(counts)})"

    def batch(self) -> str:
        """The hops of a batch, where the walk of today is that of this tree."""
        calls = walks.read(walks.WALKS["batch"])
        if list(walks.problems(calls, self.package)):
            return "another walk"
        count, back = walks.hops(calls)
        return f"{count} / {back}"

    # -- length ----------------------------------------------------------------------------------------

    def file_lengths(self) -> str:
        """Median, p90, p95, the longest, and how many exceed 200 lines; `__init__.py` are left out."""
        lengths = [source.lines for source in self.sources if source.path.name != "__init__.py"]
        return f"{quantiles(lengths, 50, 90, 95)} / {max(lengths)} ({sum(n > 200 for n in lengths)} over 200)"

    def function_lengths(self) -> str:
        """Median, p95, the longest, and how many exceed 50 lines."""
        lengths = [node.end_lineno - node.lineno + 1 for node in self.functions]
        return f"{quantiles(lengths, 50, 95)} / {max(lengths)} ({sum(n > 50 for n in lengths)} over 50)"

    def package_size(self) -> str:
        """Modules and lines."""
        return f"{len(self.sources)} / {sum(s.lines for s in self.sources):,}"

    def test_lines(self) -> str:
        """Lines of tests for each line of source."""
        tests, source = (sum(one.lines for one in files) for files in (self.tests, self.sources))
        return f"{tests / source:.2f} ({tests:,} : {source:,})"

    # -- prose -----------------------------------------------------------------------------------------

    def prose(self) -> str:
        """The share of lines that are comments, and that are docstrings."""
        lines = sum(source.lines for source in self.sources)
        comments = sum(source.comments for source in self.sources)
        docstrings = sum(source.docstring_lines for source in self.sources)
        return f"{100 * comments / lines:.1f} % / {100 * docstrings / lines:.1f} %"

    def docstrings(self) -> str:
        """The share of definitions with a docstring: public ones, all."""
        every = [(node, public) for source in self.sources if source.lines for node, public in source.definitions()]
        public = [node for node, is_public in every if is_public]
        return f"{_share(public, _has_docstring)} / {_share([node for node, _ in every], _has_docstring)}"

    def annotated(self) -> str:
        """The share of functions with every parameter and the result annotated."""
        return _share(self.functions, _annotated)

    def raises(self) -> str:
        """Statements that raise, against assertions."""
        kinds = Counter(type(n) for source in self.sources for n in ast.walk(source.tree))
        return f"{kinds[ast.Raise]} : {kinds[ast.Assert]}"

    def shapes(self) -> str:
        """The forwards whose docstring or comments state a shape."""
        forwards = []
        for source in self.sources:
            for node in ast.walk(source.tree):
                if isinstance(node, Function) and node.name == "forward":
                    forwards.append(bool(SHAPE.search(ast.get_source_segment(source.text, node) or "")))
        return f"{100 * sum(forwards) / len(forwards):.0f} % ({sum(forwards)} of {len(forwards)})"

    # -- imports ----------------------------------------------------------------------------------------

    @cached_property
    def imports(self) -> list[layers.Import]:
        """Every import between the package's own modules, one for each pair and line."""
        each = {(i.importer, i.imported, i.line): i for i in layers.imports(self.package)}
        return list(each.values())

    def small_modules(self) -> str:
        """Modules shorter than 40 lines, and modules that one other imports.

        Some of these stand alone by rule: what is found by its name (a choice, a preset, a command), and what its
        folder's `__init__` passes on to whoever imports the folder. Others are imported inside functions only: merged
        with their importer, they would load their libraries wherever it is imported.
        """
        importers: dict[str, set[str]] = {}
        late: dict[str, bool] = {}
        for each in self.imports:
            importers.setdefault(each.imported, set()).add(each.importer)
            late[each.imported] = each.inside_function and late.get(each.imported, True)
        single = {name: next(iter(names)) for name, names in importers.items() if len(names) == 1}
        package = self.package.name
        named = {target.rpartition(".")[0] for target in self._targets()}
        rules = {
            name
            for name, importer in single.items()
            if name in named
            or name.startswith(f"{package}.weights.convert.preset.")
            or (name.startswith(f"{package}.commands.") and "._" not in name and name.count(".") == 2)
            or importer == name.rpartition(".")[0]
        }
        short = sum(s.lines < 40 for s in self.sources if s.path.name != "__init__.py")
        loaded_late = sum(late[name] for name in single.keys() - rules)
        return f"{short} / {len(single)} of {len(self.sources)} ({len(rules)} by rule, {loaded_late} loaded late)"

    def _targets(self) -> Iterator[str]:
        """The `_target_` of every choice."""
        for path in (self.path / "conf").rglob("*.yaml"):
            yield from re.findall(r"^\s*_target_:\s*(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)

    def import_share(self) -> str:
        """The share of import statements in the lines of code: all but blank lines, comments and docstrings."""
        code = imports = 0
        for source in self.sources:
            lines = source.text.splitlines()
            nodes = (n.body[0] for n in ast.walk(source.tree) if _has_docstring(n))
            docstrings = {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}
            statements = (n for n in ast.walk(source.tree) if isinstance(n, ast.Import | ast.ImportFrom))
            importing = {line for node in statements for line in range(node.lineno, node.end_lineno + 1)}
            for number, line in enumerate(lines, 1):
                if line.strip() and not line.strip().startswith("#") and number not in docstrings:
                    code += 1
                    imports += number in importing
        return f"{100 * imports / code:.1f} %"

    def file_circles(self) -> str:
        """Groups of modules that import one another in a circle, imports for annotations included."""
        return _groups(layers.file_cycles(self.package))

    def inner_circles(self) -> str:
        """The same for folders, two levels deep; a folder and the folders in it count as different ones."""
        return _groups(layers.inner_cycles(self.package))

    def duplicate_classes(self) -> str:
        """Public class names that more than one module defines."""
        defined: dict[str, set[Path]] = {}
        for source in self.sources:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined.setdefault(node.name, set()).add(source.path)
        return str(sum(len(paths) > 1 for paths in defined.values()))

    def untyped_dicts(self) -> str:
        """How often `dict[str, Any]` is written."""
        return str(sum(source.text.count("dict[str, Any]") for source in self.sources))

    def checked_lines(self) -> str:
        """The share of lines that mypy checks, by `files` of pyproject.toml."""
        settings = tomllib.loads((self.path / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
        roots = [self.path / name for name in settings["files"]]
        total = checked = 0
        for source in self.sources:
            path = self.package / source.path
            total += source.lines
            checked += source.lines * any(path.is_relative_to(root) for root in roots)
        return f"{100 * checked / total:.0f} %"

    def repeated_defaults(self) -> str:
        """Options in the YAML of a choice whose value is the default of its constructor, of all options there."""
        return _traced(self.path, "repeated_defaults")

    def forward_files(self) -> str:
        """Files of the package that run in one forward pass of `experiment=vit_digits`, and their lines."""
        return _traced(self.path, "forward_files")

    def step_files(self) -> str:
        """Files that run in one training step of the same, from batch to optimizer, the forward pass included."""
        return _traced(self.path, "step_files")

    def rooms(self) -> str:
        """Folders and loose files at the top of the package."""
        rooms = {layers.room(name) for name in layers.modules(self.package)}
        loose = len(list(self.package.glob("*.py")))
        return f"{len(rooms)} / {loose}"

    def arrows(self) -> str:
        """Arrows between rooms, and how many of them climb by the table of tools/import_graph.py."""
        pairs = {(layers.room(i.importer), layers.room(i.imported)) for i in self.imports}
        pairs = {pair for pair in pairs if pair[0] != pair[1]}
        rooms = {room for pair in pairs for room in pair}
        if rooms <= set(layers.FLOOR):
            return f"{len(pairs)} / {len(layers.climbs(self.package))}"
        return f"{len(pairs)} / no table of floors"

    def cycles(self) -> str:
        """The rooms that import one another in a cycle: the largest group, function-level imports included."""
        groups = layers.cycles(self.package)
        return f"{max(map(len, groups), default=0)} ({len(groups)} groups)" if groups else "0"

    def floors(self) -> str:
        """The floors of the table where it has every room; else the longest path of imports, a cycle being one."""
        if {layers.room(i.importer) for i in self.imports} <= set(layers.FLOOR):
            return f"{len(layers.FLOORS)} in the table"
        families = dict.fromkeys(layers.FAMILIES.split(), "families")
        rooms = [(layers.room(i.importer), layers.room(i.imported)) for i in self.imports]
        return f"no table; longest path {_floors({(families.get(a, a), families.get(b, b)) for a, b in rooms})}"

    def lazy_imports(self) -> str:
        """Imports inside functions, of all imports between the package's own modules."""
        return f"{sum(i.inside_function for i in self.imports)} of {len(self.imports)}"

    def full_folders(self) -> str:
        """The folders with the most files."""
        counts = Counter(str(source.path.parent) for source in self.sources)
        return ", ".join(f"{'top' if name == '.' else name} {n}" for name, n in counts.most_common(6))

    # -- names and messages ------------------------------------------------------------------------------

    def private_words(self) -> str:
        """Locals, parameters and functions whose name is one of PRIVATE_WORDS; TABLE and STANDARD say what is not."""
        return self._private_words(self.sources)

    def private_words_of_tests(self) -> str:
        """The same in the tests."""
        return self._private_words(self.tests)

    def _private_words(self, sources: list[Source]) -> str:
        names = Counter(word for source in sources for word in _private_names(source))
        counts = {word: names[word] for word in PRIVATE_WORDS if names[word]}
        top = ", ".join(f"{word} {n}" for word, n in sorted(counts.items(), key=lambda item: -item[1])[:5])
        return f"{sum(counts.values())}" + (f" ({top}, ...)" if len(counts) > 5 else f" ({top})" if top else "")

    def riddles(self) -> str:
        """Strings outside docstrings that match RIDDLES."""
        count = 0
        for source in self.sources:
            docstrings = {id(n.body[0].value) for n in ast.walk(source.tree) if _has_docstring(n)}
            texts = (n for n in ast.walk(source.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
            count += sum(bool(RIDDLES.search(node.value)) for node in texts if id(node) not in docstrings)
        return str(count)

    def readme(self) -> str:
        """Lines, words and the longest line of README."""
        text = (self.path / "README.md").read_text(encoding="utf-8")
        lines = text.splitlines()
        return f"{len(lines)} / {len(text.split()):,} / {max(map(len, lines))}"

    def commits(self, since: str | None = None) -> str:
        """How many, the longest subject, and the share with a body."""
        span = [f"{since}..HEAD"] if since else ["HEAD"]
        log = subprocess.run(
            ["git", "-C", str(self.path), "log", "--no-merges", "--format=%s%x1f%b%x1e", *span],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        commits = [entry.strip("\n").split("\x1f") for entry in log.split("\x1e") if entry.strip()]
        if not commits:
            return "none"
        bodies = sum(bool(body.strip()) for _, body in commits)
        return f"{len(commits)} / {max(len(subject) for subject, _ in commits)} / {100 * bodies / len(commits):.0f} %"


def quantiles(values: list[int], *percents: int) -> str:
    """These percentiles of some lengths."""
    ordered = sorted(values)
    return " / ".join(str(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]) for percent in percents)


def _groups(groups: list[set[str]]) -> str:
    return f"{len(groups)} (of {', '.join(str(len(group)) for group in groups)})" if groups else "0"


def _traced(tree: Path, measure: str) -> str:
    """What `tools/traced_files.py` prints for a checkout: it imports that checkout's package, in its own process."""
    script = ROOT / "tools" / "traced_files.py"
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "BLOCKYARD_PROJECT": "none"}
    command = [sys.executable, str(script), measure, str(tree)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    return done.stdout.strip()


def _share(nodes: list, test: Callable) -> str:
    return f"{100 * sum(map(test, nodes)) / len(nodes):.1f} %"


def _has_docstring(node: ast.AST) -> bool:
    return isinstance(node, Definition | ast.Module) and ast.get_docstring(node) is not None


def _definitions(parent: ast.AST, public: bool) -> Iterator[tuple[Definition, bool]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Definition):
            mine = public and not node.name.startswith("_")
            yield node, mine
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node, mine)


def _annotated(node: Function) -> bool:
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    return node.returns is not None and all(a.annotation for a in every if a.arg not in ("self", "cls", "_"))


def _private_names(source: Source) -> Iterator[str]:
    module = ast.get_docstring(source.tree) or ""
    for name, scope in _names(source.tree, source.tree):
        word = name.strip("_")
        if word not in PRIVATE_WORDS or (source.path.as_posix(), word) in STANDARD:
            continue
        if word == "rows" and TABLE.search(f"{module}\n{ast.get_source_segment(source.text, scope) or ''}"):
            continue
        yield word


def _names(node: ast.AST, scope: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Every name that is bound below a node, with the outermost function around it, or else the class or module."""
    for child in ast.iter_child_nodes(node):
        inner = child if isinstance(child, Definition) and not isinstance(scope, Function) else scope
        if isinstance(child, Function):
            yield child.name, inner
        elif isinstance(child, ast.arg):
            yield child.arg, scope
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id, scope
        yield from _names(child, inner)


def _floors(pairs: set[tuple[str, str]]) -> int:
    graph: dict[str, set[str]] = {}
    for importer, imported in pairs:
        if importer != imported:
            graph.setdefault(importer, set()).add(imported)
            graph.setdefault(imported, set())
    reach = {room: layers.reachable(graph, room) for room in graph}
    group = {room: frozenset({room, *(o for o in reach[room] if room in reach[o])}) for room in graph}
    below = {g: {group[o] for room in g for o in graph[room]} - {g} for g in set(group.values())}

    def height(g: frozenset[str]) -> int:
        return 1 + max((height(lower) for lower in below[g]), default=0)

    return max(map(height, below))
