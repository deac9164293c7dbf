"""blockyard completion bash|zsh|fish

Print a script that completes commands, their flags and keys, families, choices, options and runs in a shell.

Example:
  eval "$(blockyard completion bash)"
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from blockyard.commands import COMMANDS, MODULES, _reader
from blockyard.commands._args import CHECKPOINTS, Parser
from blockyard.commands._signature import Parameter, functions_of, has_functions
from blockyard.config.choices import catalog
from blockyard.config.option_text import boolean
from blockyard.config.project_file import default_outputs
from blockyard.errors import UserError

SCRIPTS = {
    "bash": """_blockyard() {
  local line="${COMP_LINE:0:$COMP_POINT}" each quoted
  COMPREPLY=()
  while IFS= read -r each; do
    printf -v quoted %q "$each"
    COMPREPLY+=("$quoted")
  done < <(blockyard _complete "$line" 2>/dev/null)
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}
complete -F _blockyard blockyard
""",
    "zsh": """_blockyard() {
  local -a words_; words_=("${(@f)$(blockyard _complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
  compadd -S '' -- $words_
}
compdef _blockyard blockyard
""",
    "fish": "complete -c blockyard -f -a '(blockyard _complete (commandline -cp) 2>/dev/null)'\n",
}


def run(arguments: Sequence[str]) -> int:
    """Print a shell's script; or, for the script, the completions of a line."""
    if len(arguments) == 1 and arguments[0] in SCRIPTS:
        sys.stdout.write(SCRIPTS[arguments[0]])
        return 0
    # What stands before the command on its line, such as a variable, is not of interest; nor is the path to it.
    if arguments and (match := re.search(r"(?:^|[\s/])(blockyard\s.*)", arguments[0], re.DOTALL)):
        sys.stdout.write("".join(f"{completion}\n" for completion in complete(match[1])))
        return 0
    raise UserError(f"completion needs a shell: one of {', '.join(SCRIPTS)}")


def complete(line: str) -> list[str]:
    """The completions of the last argument of a line."""
    arguments = line.split()
    typed = "" if line.endswith(" ") else arguments.pop()
    if len(arguments) <= 1:
        candidates = list(COMMANDS) if arguments else []
    else:
        candidates = _arguments(arguments[1], arguments[2:], typed)
    return list(dict.fromkeys(candidate for candidate in candidates if candidate.startswith(typed)))


def _arguments(command: str, before: list[str], typed: str) -> list[str]:
    """What may follow a command and the arguments before: its flags, its own keys, their values, and overrides."""
    name = MODULES.get(command, command)
    if command not in COMMANDS:
        return []
    module = importlib.import_module(f"blockyard.commands.{name}")
    if has_functions(module):
        return of_functions(command, before, typed)
    if command in ("sweep", "compare", "bundle", "board") and not typed.startswith("-"):
        return [*_sweep(command, before), *_own(module, typed), *_more(command, before, typed)]
    if command == "new" and typed.startswith("kind="):
        from blockyard.commands.new import kinds

        return [f"kind={kind}" for kind in kinds(before[0])] if before else []
    if typed.startswith("-"):
        return flags_of(command)
    return [*_names(command, before), *_own(module, typed), *_more(command, before, typed)]


def of_functions(name: str, before: list[str], typed: str) -> list[str]:
    """Return what may follow a command and the arguments before."""
    functions = functions_of(name)
    words = [function.word for function in functions if function.word]
    names = [text for text in before if "=" not in text and not text.startswith("-")]
    chosen = [function for function in functions if names and function.word == names[0]]
    if chosen:
        functions, names, words = chosen, names[1:], []
    flags = {each.key: each for function in functions for each in function.flags}
    if before and before[-1] in flags and flags[before[-1]].reader is not boolean:
        return _values(flags[before[-1]], before, typed)
    if typed.startswith("-"):
        return _reader.Parser(name, functions).flags()
    key, equals, _ = typed.partition("=")
    keywords = [each for function in functions for each in function.keywords]
    for parameter in keywords if equals else ():
        if parameter.key == key:
            return [f"{key}={value}" for value in _values(parameter, before, typed)]
    candidates = [] if names else words
    for function in functions:
        if len(names) < len(function.positional):
            candidates += _values(function.positional[len(names)], before, typed)
        candidates += [f"{key}=" for each in function.keywords for key in each.keys]
        if function.rest is not None and len(names) >= len(function.positional):
            candidates += _values(function.rest, before, typed)
    return candidates


def _values(parameter: Parameter, before: list[str], typed: str) -> list[str]:
    values = parameter.value.values
    return list(values(before, typed) if callable(values) else values or parameter.choices)


def flags_of(command: str) -> list[str]:
    """The flags of a command, as its parser has them; none for one that reads no flags."""
    if has_functions(importlib.import_module(f"blockyard.commands.{MODULES.get(command, command)}")):
        return _reader.Parser(command, functions_of(command)).flags()
    if command in ("new", "completion"):
        return ["--help"]
    if command == "sweep":
        from blockyard.commands._sweep_args import parser

        return parser().flags()
    module = importlib.import_module(f"blockyard.commands.{MODULES.get(command, command)}")
    return (module.parser() if hasattr(module, "parser") else Parser(command)).flags()


def _names(command: str, before: list[str]) -> list[str]:
    """The arguments without a `=` that a command takes."""
    if command == "list":
        return list(catalog.groups())
    if command == "new":
        from blockyard.commands.new import families

        return [] if before else families()
    if command == "soup":
        return _runs("")
    if command == "inspect":
        from blockyard.inspect.options import KINDS

        return list(KINDS)
    if command == "bench":
        from blockyard.commands.bench import KINDS as MEASURED

        return list(MEASURED)
    return list(SCRIPTS) if command == "completion" else []


def _own(module: ModuleType, typed: str) -> list[str]:
    """The keys that a command reads itself, or the values of the one that is typed."""
    keys = getattr(module, "KEYS", ())
    key, equals, _ = typed.partition("=")
    if not equals or key not in keys:
        return [f"{each}=" for each in keys]
    if key in ("run", "draft", "judge", "resume"):
        return [*_runs(f"{key}="), *(["draft=ngram"] if key == "draft" else [])]
    values: dict[str, Sequence[str]] = {
        "which": CHECKPOINTS,
        "as": list(catalog.choices("preset")),
        "format": getattr(module, "FORMATS", ()),
        "weights": getattr(module, "RECIPES", ()),
        "pool": getattr(module, "POOLS", ()),
        "projection": getattr(module, "PROJECTIONS", ()),
        "split": getattr(module, "SPLITS", ()),
        "tokenizer": list(catalog.choices("tokenizer")),
    }
    return [f"{key}={value}" for value in values.get(key, ())]


def _more(command: str, before: list[str], typed: str) -> list[str]:
    """Families, their choices and their options, where a command takes them."""
    if command in ("train", "check", "verify"):
        return _overrides(typed, catalog.run_keys())
    if command == "list":
        return _overrides(typed, catalog.run_keys()) if "--compatible" in before else []
    if command == "explain":
        return _overrides(typed, catalog.groups(), options=False)
    named = any(not argument.startswith("-") for argument in before)
    if command in ("bench", "import") or (command == "sweep" and named):
        return _overrides(typed, catalog.groups())
    return []


def _runs(key: str) -> list[str]:
    """The run folders of the project's outputs, newest first."""
    outputs = Path(default_outputs())
    folders = sorted(outputs.glob("*/s[0-9]*/status.json"), key=lambda path: -path.stat().st_mtime)
    names = dict.fromkeys(path.parts[-3].rpartition("-")[0] for path in folders)
    return [f"{key}last", *(f"{key}{name}" for name in names if name), *(f"{key}{path.parent}" for path in folders)]


def _sweep(command: str, before: list[str]) -> list[str]:
    """The names of sweeps, of which `blockyard sweep` takes one; or those of executors."""
    from blockyard.sweep.spec.locate import sweep_names

    if before and before[-1] == "--executor":
        return list(catalog.choices("executor"))
    named = any(not argument.startswith("-") for argument in before)
    if named and command in ("sweep", "bundle"):
        return []
    plans = [] if command == "sweep" else sorted(Path(default_outputs()).glob("sweeps/*/plan.json"))
    return list(dict.fromkeys([*(plan.parent.name for plan in plans), *sweep_names()]))


def _overrides(typed: str, families: Sequence[str], options: bool = True) -> list[str]:
    """Choices behind `family=`, options behind `family.`, and before either the families themselves."""
    family, equals, _ = typed.partition("=")
    if equals and family in families:
        return [f"{family}={name}" for name in catalog.choices(family)]
    family, dot, _ = typed.partition(".")
    if dot and family in families and options:
        keys = {key for choice in catalog.choices(family).values() for key in choice.options}
        return sorted(f"{family}.{key}=" for key in keys)
    return [*(f"{name}=" for name in families), *(f"{catalog.MATCH}.{name}=" for name in catalog.MATCH_OPTIONS)]
