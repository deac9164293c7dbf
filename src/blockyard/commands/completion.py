"""`blockyard completion`: completion in a shell. What it offers follows from the signatures of the commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Annotated

from blockyard.commands import COMMANDS
from blockyard.commands._reader import Parser
from blockyard.commands._signature import Parameter, command, functions_of
from blockyard.commands._types import Value
from blockyard.config.option_text import boolean
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


@command()
def completion(*shell: Annotated[str, Value("bash|zsh|fish", values=tuple(SCRIPTS))]) -> None:
    """Print a script that completes commands, their flags and keys, families, choices, options and runs in a shell.

    Examples:
        eval "$(blockyard completion bash)"
    """
    if len(shell) != 1 or shell[0] not in SCRIPTS:
        raise UserError(f"completion needs a shell: one of {', '.join(SCRIPTS)}")
    sys.stdout.write(SCRIPTS[shell[0]])


def run(arguments: Sequence[str]) -> int:
    """Print the completions of a line, for the scripts."""
    line = arguments[0] if arguments else ""
    # Text before the command on its line, such as a variable, is not of interest; nor is the path to it.
    match = re.search(r"(?:^|[\s/])(blockyard\s.*)", line, re.DOTALL)
    if match:
        for candidate in complete(match[1]):
            sys.stdout.write(f"{candidate}\n")
    return 0


def complete(line: str) -> list[str]:
    """Return the completions of the last argument of a line."""
    arguments = line.split()
    typed = ""
    if not line.endswith(" "):
        typed = arguments.pop()
    candidates: list[str] = []
    if len(arguments) == 1:
        candidates = list(COMMANDS)
    elif arguments and arguments[1] in COMMANDS:
        candidates = _of_command(arguments[1], arguments[2:], typed)
    return list(dict.fromkeys(candidate for candidate in candidates if candidate.startswith(typed)))


def _of_command(name: str, before: list[str], typed: str) -> list[str]:
    """Return the candidates for the argument of a command that follows the arguments `before`."""
    functions = functions_of(name)
    subcommands = [function.subcommand for function in functions if function.subcommand]
    names = [text for text in before if "=" not in text and not text.startswith("-")]
    chosen = [function for function in functions if names and function.subcommand == names[0]]
    if chosen:
        functions = chosen
        names = names[1:]
        subcommands = []
    flags = {flag.key: flag for function in functions for flag in function.flags}
    if before and before[-1] in flags and flags[before[-1]].reader is not boolean:
        return _values(flags[before[-1]], before, typed)
    if typed.startswith("-"):
        return Parser(name, functions).flags()
    key, equals, _ = typed.partition("=")
    for function in functions:
        for parameter in function.keywords:
            if equals and parameter.key == key:
                return [f"{key}={value}" for value in _values(parameter, before, typed)]
    candidates = [] if names else subcommands
    for function in functions:
        if len(names) < len(function.positional):
            candidates += _values(function.positional[len(names)], before, typed)
        for parameter in function.keywords:
            candidates += [f"{name}=" for name in parameter.keys]
        if function.rest is not None and len(names) >= len(function.positional):
            candidates += _values(function.rest, before, typed)
    return candidates


def _values(parameter: Parameter, before: list[str], typed: str) -> list[str]:
    """Return the values of a parameter that a shell offers."""
    values = parameter.value.values
    if callable(values):
        return list(values(before, typed))
    return list(values or parameter.choices)
