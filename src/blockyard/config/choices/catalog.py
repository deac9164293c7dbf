"""The choices of every config group: the files on disk are the registry.

Everything is read from `conf/` and from the docstrings of the mechanisms' files (by `ast`), so that `list`, `--help`
and completion answer without importing torch.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import re
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from inspect import cleandoc
from pathlib import Path
from typing import Any

from blockyard.atomic_files import stamp
from blockyard.config.untrusted.installed import installed
from blockyard.config.untrusted.package_finder import spec_unasked

PACKAGE = Path(__file__).resolve().parents[2]
# Groups of conf/ that are not part of a run: an executor of a sweep's cells does not change their results.
OUTSIDE_RUN = ("executor",)
# Keys of a run that take a choice of another family, for the source of data that has one. By default the family's own
# choice reads the source (`SAME`), and the config has no such key.
OF_SOURCE = {"source_tokenizer": "tokenizer", "source_position": "position"}
SAME = "same"
# The config key that asks for a model of some size, and its options; solved and removed by `size_matching`.
MATCH = "match"
MATCH_OPTIONS = ("params", "flops", "active", "state", "tokens", "by")
# Families of which several choices may be used together: loggers side by side, callbacks merged into one collection.
SEVERAL = ("logger", "callbacks")
# Families of which `verify` holds components to properties; choices of others are the context.
VERIFIED = (
    *("token_mixer", "channel_mixer", "norm", "block", "residual", "layers", "position", "head", "model"),
    "parametrization",
)


_NAMES = ("aka:", "related:")  # comments of a YAML with names that other projects use
_PLAIN_DOCSTRING = re.compile(r'"""((?:[^"\\]|"(?!""))*)"""\n')  # at the top of a file, without an escape


@dataclass(frozen=True)
class Choice:
    """One YAML of one family, described by the docstring of its class's module."""

    family: str
    name: str
    path: Path

    @cached_property
    def target(self) -> str | None:
        """The dotted name of the class; None where the YAML names none."""
        match = re.search(r"^_target_: *([\w.]+)", self._text, re.MULTILINE)
        if match is None:
            return None
        return match.group(1)

    @cached_property
    def summary(self) -> str:
        """One line: the YAML's first comment, as several YAMLs may have one class, or the docstring's first line."""
        if self._comments:
            return self._comments[0]
        return self._docstring.partition("\n")[0]

    @cached_property
    def source(self) -> str:
        """The paper, or ""."""
        return section(self._docstring or "\n".join(self._comments), "Source")

    @cached_property
    def options(self) -> tuple[str, ...]:
        """The options of its class, read from the source; of a YAML without a class, the keys at its top level."""
        names = list(parameters(self.target)) if self.target else []
        names += re.findall(r"^([a-z]\w*):", self._text, re.MULTILINE)
        return tuple(dict.fromkeys(names))

    @cached_property
    def chosen(self) -> frozenset[str]:
        """The choices, `family=name`, of the defaults list of an experiment."""
        entries = re.findall(r"^ *- override /(\w+): *(\w+)", self._text, re.MULTILINE)
        return frozenset(f"{family}={name}" for family, name in entries)

    @cached_property
    def aliases(self) -> tuple[str, ...]:
        """The names that other projects give to the choice, from the comment `# aka: rotary roformer` of its YAML."""
        return self._names("aka:")

    @cached_property
    def related(self) -> tuple[str, ...]:
        """The names of mechanisms that are no choice, of the same idea, from the comment `# related: rwkv s4`."""
        return self._names("related:")

    @cached_property
    def _text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def _docstring(self) -> str:
        return docstring(self.target) if self.target else ""

    @cached_property
    def _comments(self) -> list[str]:
        """The comments of the YAML, without Hydra's `@package` and the names that other projects use."""
        comments = []
        for line in self._text.splitlines():
            comment = line[1:].strip()
            if line.startswith("#") and not comment.startswith(("@package", *_NAMES)):
                comments.append(comment)
        return comments

    def _names(self, kind: str) -> tuple[str, ...]:
        """Return the names in the comment that begins with `kind`."""
        match = re.search(rf"^# {kind} (.*)$", self._text, re.MULTILINE)
        if match is None:
            return ()
        return tuple(match.group(1).split())


@cache
def conf_dir() -> Path:
    """Return the shipped `conf/`: inside an installed wheel, or at the top of a checkout."""
    for folder in (PACKAGE / "conf", PACKAGE.parents[1] / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no conf/ next to or inside {PACKAGE}; the installation is incomplete")


@cache
def default_choices() -> dict[str, str | None]:
    """Return the default choice of each family; None for experiment and preset."""
    result = {}
    for entry in content(conf_dir() / "config.yaml")["defaults"]:
        if not isinstance(entry, dict):
            continue  # `_self_`
        for family, name in entry.items():
            if "@" not in family:
                result[family] = name
    return result


@cache
def families() -> tuple[str, ...]:
    """Return the config groups of a run, in the order of the defaults list of `config.yaml`."""
    return tuple(default_choices())


def run_keys() -> tuple[str, ...]:
    """Return the keys that take a choice in a run, `key=name`: the families, and the parts of the source."""
    return (*families(), *OF_SOURCE)


def hydra_key(family: str) -> str:
    """Return the name of a family in a defaults list: `tokenizer`, or `tokenizer@source_tokenizer`."""
    if family in OF_SOURCE:
        return f"{OF_SOURCE[family]}@{family}"
    return family


def groups() -> tuple[str, ...]:
    """Return every config group: the families of a run, then the groups outside it."""
    return (*families(), *OUTSIDE_RUN)


def choices(family: str, folders: tuple[Path, ...] = ()) -> dict[str, Choice]:
    """Return every choice of a family, by name; `folders` are the user's own config folders."""
    result = dict(_shipped(family, conf_dir()))
    for root in folders:
        for name, choice in _in_folder(family, root).items():
            result.setdefault(name, choice)
    return result


@cache
def _shipped(family: str, root: Path) -> dict[str, Choice]:
    """Return the package's own choices. Only choices in a user's folders may change while a process runs."""
    return _in_folder(family, root)


def _in_folder(family: str, root: Path) -> dict[str, Choice]:
    paths = sorted((root / OF_SOURCE.get(family, family)).glob("*.yaml"))
    return {path.stem: Choice(family, path.stem, path) for path in paths}


def origin(choice: Choice) -> str:
    """Return the origin of a choice: blockyard, the name of an installed package, or a folder."""
    root = choice.path.parent.parent
    if root == conf_dir():
        return "blockyard"
    for package in installed():
        if package.folder == root:
            return package.name
    return str(root)


def docstring(target: str) -> str:
    """Return the module docstring of a dotted class, without importing it; "" where there is none."""
    path = _module_file(target.rpartition(".")[0])
    if path is None:
        return ""
    try:
        return _docstring(path, stamp(path))
    except OSError:
        return ""


@lru_cache(maxsize=1024)
def _docstring(path: Path, stamp: tuple[int, ...]) -> str:
    # The usual form is read without parsing the whole file, which took `list` half of its time.
    plain = _PLAIN_DOCSTRING.match(path.read_text(encoding="utf-8"))
    if plain:
        return cleandoc(plain[1])
    tree = _parsed(path, stamp)
    if tree is None:
        return ""
    return ast.get_docstring(tree) or ""


@lru_cache(maxsize=256)
def _parsed(path: Path, _stamp: tuple[int, ...]) -> ast.Module | None:
    """Return the syntax tree of a file; None for a broken file, so that the others are still listed."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parameters(target: str) -> tuple[str, ...]:
    """Return the keyword-only parameters of a dotted class, or the fields of a dataclass, without importing it.

    A class without a constructor has the constructor of a base, perhaps imported from another module.
    () where there is none to be read.
    """
    declared = _declared(target)
    return tuple(name for name in declared if declared[name])


def _declared(target: str) -> dict[str, bool]:
    """Return the names that a class declares, and whether each is a parameter: some fields of dataclasses are none."""
    module, _, name = target.rpartition(".")
    if module.startswith("torch."):
        return {}  # the modules of torch take no options of a config
    path = _module_file(module)
    if path is None:
        return {}
    try:
        tree = _parsed(path, stamp(path))
    except OSError:
        return {}
    if tree is None:
        return {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _declared_by(node, module, tree)
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _declared(f"{node.module}.{alias.name}")
    return {}


def _declared_by(kind: ast.ClassDef, module: str, tree: ast.Module) -> dict[str, bool]:
    """Return the names that a class definition declares: fields of a dataclass, or parameters of the constructor."""
    bases = []
    for base in kind.bases:
        generic = base.value if isinstance(base, ast.Subscript) else base
        name = _dotted(generic)
        if name:
            bases.append(_imported(name, module, tree))
    if any("dataclass" in ast.unparse(decorator) for decorator in kind.decorator_list):
        fields: dict[str, bool] = {}
        for base_target in reversed(bases):  # the first base has the last word, as in the order of resolution
            fields |= _declared(base_target)
        for node in kind.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                fields[node.target.id] = _is_parameter(node)
        return fields
    for node in kind.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            declared = {option_name(argument.arg): True for argument in node.args.kwonlyargs}
            return declared | _inherited(node, module, tree)
    for base_target in bases:
        declared = _declared(base_target)
        if declared:
            return declared
    return {}


def _inherited(constructor: ast.FunctionDef, module: str, tree: ast.Module) -> dict[str, bool]:
    """Return the options that a constructor inherits by the decorator `with_options_of(base, without=...)`."""
    for decorator in constructor.decorator_list:
        if isinstance(decorator, ast.Call) and _dotted(decorator.func) == "with_options_of":
            base = _declared(_imported(_dotted(decorator.args[0]), module, tree))
            named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in decorator.keywords}
            offered = set(named.get("only", base)) - set(named.get("without", ()))
            return {name: declared for name, declared in base.items() if name in offered}
    return {}


def _is_parameter(field: ast.AnnAssign) -> bool:
    """Return whether a field of a dataclass is a parameter of its constructor."""
    if "ClassVar" in ast.unparse(field.annotation):
        return False
    if isinstance(field.value, ast.Call):
        for argument in field.value.keywords:
            if argument.arg == "init" and ast.unparse(argument.value) == "False":
                return False
    return True


def _dotted(node: ast.expr) -> str:
    """Return a dotted name as text; "" for any other expression."""
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node)
    return ""


def _imported(name: str, module: str, tree: ast.Module) -> str:
    """Return the dotted name behind `name` in a module: imported from another one, or its own."""
    first, _, rest = name.partition(".")
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name) == first:
                    return f"{alias.name}.{rest}"
    return f"{module}.{name}"  # `_declared` follows what is imported by its name


def option_name(parameter: str) -> str:
    """Return the config key of a constructor's parameter: `from` for `from_`, as Python reserves the name."""
    bare = parameter.removesuffix("_")
    if bare != parameter and keyword.iskeyword(bare):
        return bare
    return parameter


def parameter_name(option: str) -> str:
    """Return the constructor's parameter of a config key."""
    if keyword.iskeyword(option):
        return f"{option}_"
    return option


def content(path: Path) -> Any:
    """Return the content of a YAML file, parsed again only after the file has changed. Raises yaml.YAMLError."""
    return deepcopy(_content(path, stamp(path)))


@lru_cache(maxsize=1024)
def _content(path: Path, _stamp: tuple[int, ...]) -> Any:
    import yaml

    # The loader in C takes a tenth of the time; PyYAML may have been built without it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader)


def section(text: str, heading: str) -> str:
    """Return the text after `heading:` in a docstring, up to the next heading or blank line, on one line."""
    match = re.search(rf"^{heading}: *(.+?)(?=\n\S+: |\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        return ""
    return " ".join(match.group(1).split())


def _module_file(module: str) -> Path | None:
    """Return the file of a dotted module, located without running code of its packages."""
    top, *rest = module.split(".")
    if not top:
        return None
    try:
        spec = importlib.util.find_spec(top) or spec_unasked(top)
    except (ImportError, ValueError):  # `__main__` has none
        return None
    if spec is None:
        return None
    roots = [Path(root) for root in spec.submodule_search_locations or []]
    for root in roots:
        base = root.joinpath(*rest)
        # Without `rest` the base is the package's folder: a file of its name beside it is another module.
        candidates = [base.with_suffix(".py")] if rest else []
        for path in (*candidates, base / "__init__.py"):
            if path.is_file():
                return path
    if not roots and not rest and spec.has_location and spec.origin:  # built-in and frozen modules have no file
        return Path(spec.origin)
    return None
