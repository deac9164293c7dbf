"""blockyard completion bash|zsh|fish

Print a script that completes commands, families, choices, options and runs in a shell.

Example:
  eval "$(blockyard completion bash)"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from blockyard.config import catalog, match_keys
from blockyard.errors import UserError

SCRIPTS = {
    "bash": """_blockyard() {
  local IFS=$'\\n' line="${COMP_LINE:0:$COMP_POINT}"
  COMPREPLY=($(blockyard _complete "$line" 2>/dev/null))
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}
complete -F _blockyard blockyard
""",
    "zsh": """_blockyard() {
  local -a words_; words_=("${(@f)$(blockyard _complete "${BUFFER[1,$CURSOR]}" 2>/dev/null)}")
  compadd -Q -S '' -- $words_
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
    if arguments and arguments[0].startswith("blockyard"):
        sys.stdout.write("".join(f"{completion}\n" for completion in complete(arguments[0])))
        return 0
    raise UserError(f"completion needs a shell: one of {', '.join(SCRIPTS)}")


def complete(line: str) -> list[str]:
    """The completions of the last argument of a line."""
    from blockyard.commands import COMMANDS

    arguments = line.split()
    typed = "" if line.endswith(" ") else arguments.pop()
    if len(arguments) <= 1:
        candidates = list(COMMANDS) if arguments else []
    else:
        candidates = _arguments(arguments[1], arguments[2:], typed)
    return [candidate for candidate in candidates if candidate.startswith(typed)]


def _arguments(command: str, before: list[str], typed: str) -> list[str]:
    """What may follow a command and the arguments before."""
    if command == "list":
        compatible = _overrides(typed, catalog.run_keys()) if "--compatible" in before else []
        return [*catalog.groups(), "--compatible", *compatible]
    if command in ("train", "check"):
        return _runs("resume=") if typed.startswith("resume=") else _overrides(typed, catalog.run_keys())
    if command == "explain":
        return _overrides(typed, catalog.groups(), options=False)
    if command in ("sweep", "compare", "board"):
        return _sweep(command, before, typed)
    if command == "new":
        from blockyard.commands.templates import TEMPLATES

        return [] if before else list(TEMPLATES)
    if command == "bench":
        own = ("tokens", "of", "kernels", "batch", "device", "out")
        return ["cost", *(f"{key}=" for key in own), *_overrides(typed, catalog.groups())]
    for key in ("run=", "draft="):
        if typed.startswith(key):
            return [*_runs(key), *(["draft=ngram"] if key == "draft=" else [])]
    if command == "inspect":
        from blockyard.inspect.options import KEYS, KINDS

        return [*KINDS, *(f"{key}=" for key in ("run", *KEYS, "which", "out"))]
    if command in ("import", "export"):
        return _conversion(command, typed)
    keys = ("run", "split", "which", "prompt", "max_tokens", "temperature", "top_k", "draft", "draft_tokens")
    return [f"{key}=" for key in keys]


def _conversion(command: str, typed: str) -> list[str]:
    """The keys of import and export, and the values of those that have a few."""
    from blockyard.commands.export import FORMATS, KEYS

    if typed.startswith("format=") and command == "export":
        return [f"format={name}" for name in FORMATS]
    if typed.startswith("as="):
        return [f"as={name}" for name in catalog.choices("preset")]
    if command == "export":
        return [f"{key}=" for key in KEYS]
    return [*(f"{key}=" for key in ("out", "as", "timm")), *_overrides(typed, catalog.groups())]


def _runs(key: str) -> list[str]:
    """The run folders below outputs/, newest first."""
    folders = sorted(Path("outputs").glob("*/s[0-9]*/status.json"), key=lambda path: -path.stat().st_mtime)
    return [f"{key}last", *(f"{key}{path.parent}" for path in folders)]


def _sweep(command: str, before: list[str], typed: str) -> list[str]:
    """The name of a sweep first; then, to run it, flags and overrides."""
    from blockyard.commands._sweep_args import parser
    from blockyard.sweep.spec.locate import sweep_names

    if before and before[-1] == "--executor":
        return list(catalog.choices("executor"))
    if typed.startswith("-"):
        return parser().flags() if command == "sweep" else []
    named = any(not argument.startswith("-") for argument in before)
    return _overrides(typed, catalog.groups()) if named and command == "sweep" else list(sweep_names())


def _overrides(typed: str, families: Sequence[str], options: bool = True) -> list[str]:
    """Choices behind `family=`, options behind `family.`, and before either the families themselves."""
    family, equals, _ = typed.partition("=")
    if equals and family in families:
        return [f"{family}={name}" for name in catalog.choices(family)]
    family, dot, _ = typed.partition(".")
    if dot and family in families and options:
        keys = {key for choice in catalog.choices(family).values() for key in choice.options}
        return sorted(f"{family}.{key}=" for key in keys)
    return [*(f"{name}=" for name in families), *(f"{match_keys.KEY}.{name}=" for name in match_keys.KEYS)]
