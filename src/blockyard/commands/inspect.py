"""blockyard inspect run=RUN attention|mixing|circuits [key=value ...]

Look inside a run; pictures (PNG) and numbers (JSON) go to RUN/inspect/ and the pictures to its logger.

  attention   weights of each layer and head, over the picture or the tokens, and their entropy
  mixing      |dy_i/dx_j|, which token reads from which, of any mixer
  circuits    QK and OV circuits of attention heads: norms, spectra, copying scores

layers=0,2-3     which layers (all)               heads=0,1      which heads (attention, circuits)
sample=0         first validation sample          samples=4      so many go into averages (both: attention, mixing)
prompt=TEXT      a text in place of samples (both)  query=mean   whose attention: mean, class, last, a number
of=mixer|block   what mixing looks at             probes=16      random directions a token; 0 is exact (mixing)
vocabulary=TEXT  symbols of the circuits; else    which=best     the checkpoint: best, last or previous
                 the most frequent of 64 samples
out=FOLDER       in place of RUN/inspect          log=false      leave the run's logger out
outputs=FOLDER   where runs lie                   allow=[PACKAGE]  a package of your own that the run uses

An option holds for all that is looked at; one that a kind does not read is refused.

example: blockyard inspect run=last attention layers=0-1 sample=3
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blockyard.commands._args import CHECKPOINTS, only, packages, read
from blockyard.errors import UserError
from blockyard.inspect.options import KEYS, KINDS, options

OTHERS = ("run", "which", "out", "log", "outputs", "allow")


def run(arguments: Sequence[str]) -> int:
    """Look, draw, and print a short table of each kind."""
    words = read(arguments, {})
    kinds = tuple(dict.fromkeys(word for word in words.overrides if "=" not in word))
    words.overrides = [word for word in words.overrides if "=" in word]
    wrong = [kind for kind in kinds if kind not in KINDS]
    if wrong or not kinds:
        from blockyard.errors import near

        hint = "".join(f"; nearest: {word}" for word in near(wrong[0], KINDS)[:1]) if wrong else ""
        raise UserError(f"{wrong[0] + ': ' if wrong else ''}inspect takes one of {', '.join(KINDS)}{hint}")
    name, which, log = words.take("run"), words.take("which", "best"), words.take("log", "true")
    out, outputs, allow = words.take("out"), words.take("outputs", "outputs"), packages(words)
    given = {key: text for key in KEYS if (text := words.take(key)) is not None}
    only(words, "inspect", (*OTHERS, *KEYS))
    if not name:
        raise UserError("inspect takes run=RUN: a path, an id, part of a name, or last")
    for key, value, legal in (("which", which, CHECKPOINTS), ("log", log, ("true", "false"))):
        if value not in legal:
            raise UserError(f"{key}={value}: takes one of {', '.join(legal)}")
    if out is not None and (not out or (Path(out).exists() and not Path(out).is_dir())):
        raise UserError(f"out={out}: takes a folder")
    wanted = options(kinds, given)
    from blockyard.inspect.run import inspect

    inspect(name, kinds, wanted, which=which, out=out, log=log == "true", outputs=outputs, allow=allow)
    return 0
