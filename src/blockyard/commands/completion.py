"""blockyard completion bash|zsh|fish

Prints a script that completes verbs, families, choices, options and runs:
  eval "$(blockyard completion bash)"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from blockyard.config import catalog, size_matching
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
        sys.stdout.write("".join(f"{word}\n" for word in complete(arguments[0])))
        return 0
    raise UserError(f"completion takes one of {', '.join(SCRIPTS)}")


def complete(line: str) -> list[str]:
    """What may follow a command line that is being typed."""
    from blockyard.commands import VERBS

    words = line.split()
    typed = "" if line.endswith(" ") else words.pop()
    if len(words) <= 1:
        found = list(VERBS) if words else []
    elif words[1] == "list":
        found = list(catalog.groups())
    elif words[1] in ("sweep", "compare", "board"):
        found = _sweep(words[1:], typed)
    elif words[1] in ("train", "check", "explain"):
        found = _override(typed, words[1])
    elif words[1] == "sweep":
        found = [*map(str, sorted(Path("sweeps").glob("*.yaml"))), *_override(typed, "sweep")]
    elif typed.startswith("run="):
        found = _runs("run=")
    elif words[1] == "inspect":
        from blockyard.inspect.options import KEYS, KINDS

        found = [*KINDS, *(f"{key}=" for key in ("run", *KEYS, "which", "out"))]
    else:
        found = [f"{key}=" for key in ("run", "split", "which", "prompt", "max_tokens", "temperature", "top_k")]
    return [word for word in found if word.startswith(typed)]


def _runs(key: str) -> list[str]:
    """The run folders below outputs/, newest first."""
    folders = sorted(Path("outputs").glob("*/s[0-9]*/status.json"), key=lambda path: -path.stat().st_mtime)
    return [f"{key}last", *(f"{key}{path.parent}" for path in folders)]


def _sweep(words: list[str], typed: str) -> list[str]:
    """A sweep's name first; then, to run it, flags and overrides."""
    from blockyard.commands._sweep_args import FLAGS
    from blockyard.sweep.spec.locate import sweep_names

    if words[-1] == "--executor":
        return list(catalog.choices("executor"))
    if typed.startswith("-"):
        return list(FLAGS) if words[0] == "sweep" else []
    named = any(not word.startswith("-") for word in words[1:])
    return _override(typed, "train") if named and words[0] == "sweep" else list(sweep_names())


def _override(typed: str, verb: str) -> list[str]:
    if typed.startswith("resume="):
        return _runs("resume=")
    families = catalog.groups() if verb == "explain" else catalog.BESIDE if verb == "sweep" else catalog.families()
    family, sign, _ = typed.partition("=")
    if sign and family in families:
        return [f"{family}={name}" for name in catalog.choices(family)]
    family, dot, _ = typed.partition(".")
    if dot and family in families and verb != "explain":
        return sorted({f"{family}.{key}=" for c in catalog.choices(family).values() for key in catalog.keys(c)})
    return [*(f"{name}=" for name in families), *(f"{size_matching.KEY}.{name}=" for name in size_matching.KEYS)]
