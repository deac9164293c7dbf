"""blockyard bench cost token_mixer=A,B tokens=[64,128,256] [of=mixer|step|decode] [kernels=auto,online,eager]
       [batch=1] [device=cuda] [out=FOLDER] [key=value ...] [--config-dir DIR]

Measure what token mixers cost over the number of tokens, one after the other in one process: FLOPs, median time and
peak memory at each length, the exponent of the number of tokens, fitted over the longer half of the lengths, and from
which length on a mixer is cheaper than the first one. Prints tables, and writes cost.csv and cost.png.

  of=mixer       forward and backward pass of one mixer (default)
  of=step        forward and backward pass of the whole model with its loss
  of=decode      the last token after all others, from the cache where the mixer has one
  kernels=auto   attention kernels, as of trainer.attention; mixers without attention are measured once
  batch=1        sequences; FLOPs are those of one
  device=cuda    default: cpu. The memory is what torch allocates, without the weights
  out=FOLDER     default: outputs/bench

Other overrides change the model, a decoder of characters with two blocks of 64 channels and 4 heads: model.dim=256,
position=alibi, or model=encoder objective=masked_token for mixers that cannot be causal.

Examples:
  blockyard bench cost token_mixer=attention,conv,linear_attention tokens=[64,128,256,512] kernels=auto,online,eager
  blockyard bench cost token_mixer=attention,linear_recurrence tokens=[64,128,256] of=decode model.dim=32
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from blockyard.commands._args import read
from blockyard.config.option_text import indices, integer, non_empty, one_of, read_option
from blockyard.errors import UserError
from blockyard.terminal import console

KINDS = ("cost",)
KERNELS = ("auto", "sdpa", "flex", "online", "eager")
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096)
LONGEST = 65_536
KEYS = ("token_mixer", "tokens", "of", "kernels", "batch", "device", "out")  # beside overrides of the model


def run(arguments: Sequence[str]) -> int:
    """Measure, print the tables, and write the files."""
    args = read("bench", arguments)
    kinds = args.pop_names()
    if kinds != list(KINDS):
        raise UserError(f"bench needs what to measure: {', '.join(KINDS)}{_got(kinds)}")
    text = args.pop("token_mixer")
    if text is None:
        raise UserError("bench cost needs token mixers, such as token_mixer=attention,conv,linear_attention")
    mixers = read_option("token_mixer", text, names())
    tokens = args.pop("tokens", TOKENS, lengths)
    of = args.pop("of", "mixer", one_of("mixer", "step", "decode"))
    kernels = args.pop("kernels", ("auto",), names(*KERNELS))
    batch, device = args.pop("batch", 1, integer(1, 4096)), args.pop("device", "cpu", non_empty)
    folder = Path(args.pop("out", "outputs/bench", non_empty))
    for key in ("data.context", "trainer.attention"):
        if args.pop(key) is not None:
            raise UserError(f"{key}= has no effect on bench cost: use {'tokens=' if 'data' in key else 'kernels='}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out={folder}: expected a folder")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    from blockyard.bench import output
    from blockyard.bench.cost import costs
    from blockyard.generate.request import check_device

    check_device(device)
    settings = {"of": of, "kernels": kernels, "overrides": args.overrides, "batch": batch, "device": device}
    measured = []
    for cost in costs(mixers, tokens, config_dirs=args.config_dirs, **settings):
        measured.append(cost)
        sys.stderr.write(f"{cost.name}, {cost.tokens} tokens: {cost.milliseconds:.2f} ms\n")
    for table in output.tables(measured):
        console().print(table)
    sys.stdout.write("".join(f"{sentence}\n" for sentence in output.crossings(measured)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [output.write_csv(measured, folder), output.draw(measured, f"cost of={of}, batch {batch}", folder)]
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; out=FOLDER sets another folder") from error
    sys.stdout.write("".join(f"{path}\n" for path in paths))
    return 0


def names(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """A reader of names with commas between them, each once."""

    def read_names(text: str) -> tuple[str, ...]:
        values = tuple(dict.fromkeys(part.strip() for part in text.strip("[]").split(",")))
        wrong = [name for name in values if not re.fullmatch(r"\w+", name) or (allowed and name not in allowed)]
        if wrong:
            of = f" of {', '.join(allowed)}" if allowed else ""
            raise ValueError(f"names with commas between them{of}")
        return values

    return read_names


def lengths(text: str) -> tuple[int, ...]:
    """Numbers of tokens, ascending."""
    try:
        values = tuple(sorted(indices(text)))
    except ValueError:
        values = ()
    if not values or values[0] < 4 or values[-1] > LONGEST or len(values) > 64:
        raise ValueError(f"whole numbers from 4 to {LONGEST}, such as [64,128,256]")
    return values


def _got(kinds: Sequence[str]) -> str:
    return f", not {' '.join(kinds)}" if kinds else ""
