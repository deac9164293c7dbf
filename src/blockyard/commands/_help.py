"""Writes `blockyard COMMAND --help` from the signature and the docstring of the command's functions."""

from __future__ import annotations

import inspect
import textwrap

from blockyard.commands._signature import OPTIONS, Function, Parameter, functions_of
from blockyard.commands._types import CONFIG_DIRS, TYPED
from blockyard.errors import UserError

WIDTH = 120  # columns
INDENT = 22  # columns of the names of options


def help_text(name: str) -> str:
    """Return the text of `blockyard NAME --help`. Raises UserError where Python has removed the docstrings."""
    functions = functions_of(name)
    if any(function.call.__doc__ is None for function in functions):
        raise UserError("the help texts are docstrings, which PYTHONOPTIMIZE=2 and -OO remove; start without them")
    usage = []
    parts = []
    examples = []
    shown: set[str] = set()
    for function in functions:
        new = [parameter for parameter in function.parameters if parameter.typed not in shown]
        usage.append(_usage(name, function, new))
        shown |= {parameter.typed for parameter in new if parameter.help}
        text = OPTIONS.sub("", inspect.getdoc(function.call) or "")
        text, _, lines = text.partition("Examples:\n")
        examples += [line.removeprefix("  ") for line in lines.splitlines()]
        parts += [text.strip("\n"), _table(new)]
    parts.insert(0, "\n".join(usage))
    if examples:
        parts.append("\n".join(["Examples:", *examples]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _usage(name: str, function: Function, new: list[Parameter]) -> str:
    """Return the line that shows how a function is called; new: the parameters that no function before it has."""
    start = f"blockyard {name} {function.subcommand}".rstrip()
    parts = []
    for parameter in function.positional:
        parts.append(parameter.typed if parameter.required else f"[{parameter.typed}]")
    if function.rest is not None:
        parts.append(f"[{function.rest.typed} ...]")
    for parameter in [*function.keywords, *function.flags]:
        if parameter.required or parameter.key == function.key:
            parts.append(parameter.typed)
        elif parameter in new:
            parts.append(f"[{parameter.typed.split(', ')[-1]}]")
    # A part such as `[--workers N]` is not broken at its space, which textwrap does not see.
    line = " ".join([start, *(part.replace(" ", "\0") for part in parts)])
    indent = " " * 7
    lines = textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _table(parameters: list[Parameter]) -> str:
    """Return a line for each parameter with its help."""
    lines = []
    for parameter in parameters:
        if CONFIG_DIRS in parameter.metadata:
            typed, text = "--config-dir DIR", "a folder with choices of your own, in addition to the shipped ones"
        else:
            typed, text = parameter.typed, parameter.help
        if not text or TYPED in parameter.metadata:
            continue
        if len(typed) > INDENT - 4:
            lines.append(f"  {typed}")
            typed = ""
        indent = " " * INDENT
        lines.append(textwrap.fill(text, WIDTH, initial_indent=f"  {typed:<{INDENT - 2}}", subsequent_indent=indent))
    return "\n".join(lines)
