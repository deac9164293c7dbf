"""blockyard bench cost token_mixer=A,B tokens=[64,128,256] [of=mixer|step|decode] [kernels=auto,online,eager]
       [batch=1] [device=cuda] [out=FOLDER] [key=value ...] [--config-dir DIR]
blockyard bench rates [parts=top|layers|[A,B]] [steps=100] [lowest=1e-6] [highest=1] [out=FOLDER] [key=value ...]

`bench cost` measures what token mixers cost over the number of tokens, one after the other in one process: FLOPs,
median time and peak memory at each length, the exponent of the number of tokens, fitted over the longer half of the
lengths, and from which length on a mixer is cheaper than the first one. Prints tables, and writes cost.csv and
cost.png.

  of=mixer       forward and backward pass of one mixer (default)
  of=step        forward and backward pass of the whole model with its loss
  of=decode      the last token after all others, from the cache where the mixer has one
  kernels=auto   attention kernels, as of trainer.attention; mixers without attention are measured once
  batch=1        sequences; FLOPs are those of one
  device=cuda    default: cpu. The memory is what torch allocates, without the weights
  out=FOLDER     default: outputs/bench

Other overrides of `bench cost` change the model, a decoder of characters with two blocks of 64 channels and 4 heads:
model.dim=256, position=alibi, or model=encoder objective=masked_token for mixers that cannot be causal. Those of
trainer, optimizer and schedule are refused: passes are measured in single precision, without an optimizer.

`bench rates` is a learning-rate range test: a short training whose rate rises at every step, for all weights together,
and then for one part at a time, while the others keep the rate of the config. Each has the same first weights and
batches, and the loss of a part is compared with that of the same steps where no rate rises. Prints at which rate the
loss falls fastest, up to which rate each part is stable, and what to try as optimizer.lr and optimizer.rates; writes
rates.csv and rates.png. Overrides are those of `train`.

  parts=top      embedder, blocks, head, ... as the model names them (default); layers has each block by itself, a list
                 names parts, [] has none
  steps=100      of each test
  lowest=1e-6    the rate of the first step; highest=1: that of one more step after the last

Examples:
  blockyard bench rates experiment=gpt_code_small parts=layers
  blockyard bench cost token_mixer=attention,conv,linear_attention tokens=[64,128,256,512] kernels=auto,online,eager
  blockyard bench cost token_mixer=attention,linear_recurrence tokens=[64,128,256] of=decode model.dim=32
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from blockyard.commands._args import Args, read
from blockyard.config.option_text import indices, integer, non_empty, number, one_of, read_option
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError
from blockyard.terminal import console

KINDS = ("cost", "rates")
KERNELS = ("auto", "sdpa", "flex", "online", "eager")
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096)
LONGEST = 65_536
KEYS = (
    *("token_mixer", "tokens", "of", "kernels", "batch", "device", "out"),  # of cost, beside overrides of the model
    *("parts", "steps", "lowest", "highest"),  # of rates
)


def run(arguments: Sequence[str]) -> int:
    """Measure, print the tables, and write the files."""
    args = read("bench", arguments)
    kinds = args.pop_names()
    if len(kinds) != 1 or kinds[0] not in KINDS:
        raise UserError(f"bench needs what to measure: {' or '.join(KINDS)}{_got(kinds)}")
    return _cost(args) if kinds == ["cost"] else _rates(args)


def _rates(args: Args) -> int:
    parts = args.pop("parts", ("top",), _parts)
    steps = args.pop("steps", 100, integer(20, 100_000))
    lowest = args.pop("lowest", 1e-6, number(exclusive=True))
    highest = args.pop("highest", 1.0, number(exclusive=True))
    if highest <= lowest:
        raise UserError(f"highest={highest:g} must be more than lowest={lowest:g}")
    folder = _folder(args)
    for key in ("trainer.max_steps", "trainer.max_epochs"):
        if args.pop(key) is not None:
            raise UserError(f"{key}= has no effect on bench rates: use steps=")
    from blockyard.commands._python import lightning
    from blockyard.engine.lightning.patches import silence_libraries

    module, data = lightning(*args.overrides, config_dirs=args.config_dirs)
    from blockyard.bench import rates

    silence_libraries()
    tests = []
    for test in rates.rate_tests(module, data, parts, lowest=lowest, highest=highest, steps=steps):
        tests.append(test)
        sys.stderr.write(f"{test.part}: {len(test.losses)} steps\n")
    console().print(rates.rates_table(tests, module.lr))
    sys.stdout.write("".join(f"{sentence}\n" for sentence in rates.hints(tests, module.lr)))
    return _write(folder, lambda: rates.write_rates(tests, folder))


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.strip("[]").split(",") if part.strip())
    if wrong := [part for part in parts if not re.fullmatch(r"[\w.*]+", part)]:
        raise ValueError(f"top, layers, or parts such as [embedder,head], not {wrong[0]}")
    return parts


def _cost(args: Args) -> int:
    text = args.pop("token_mixer")
    if text is None:
        raise UserError("bench cost needs token mixers, such as token_mixer=attention,conv,linear_attention")
    mixers = read_option("token_mixer", text, names())
    tokens = args.pop("tokens", TOKENS, lengths)
    of = args.pop("of", "mixer", one_of("mixer", "step", "decode"))
    kernels = args.pop("kernels", ("auto",), names(*KERNELS))
    batch, device = args.pop("batch", 1, integer(1, 4096)), args.pop("device", "cpu", non_empty)
    folder = _folder(args)
    for key in ("data.context", "trainer.attention"):
        if args.pop(key) is not None:
            raise UserError(f"{key}= has no effect on bench cost: use {'tokens=' if 'data' in key else 'kernels='}")
    for override in args.overrides:
        key = override.partition("=")[0]
        if key.lstrip("+~").partition(".")[0] in ("trainer", "optimizer", "schedule"):
            raise UserError(
                f"{key}= has no effect on bench cost, which measures passes in single precision and no optimizer; "
                "leave it out"
            )
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    from blockyard.bench.cost import costs, crossings, draw, tables, write_csv
    from blockyard.generate.request import check_device

    check_device(device)
    settings = {"of": of, "kernels": kernels, "overrides": args.overrides, "batch": batch, "device": device}
    measured = []
    for cost in costs(mixers, tokens, config_dirs=args.config_dirs, **settings):
        measured.append(cost)
        sys.stderr.write(f"{cost.name}, {cost.tokens} tokens: {cost.milliseconds:.2f} ms\n")
    for table in tables(measured):
        console().print(table)
    sys.stdout.write("".join(f"{sentence}\n" for sentence in crossings(measured)))
    title = f"cost of={of}, batch {batch}"
    return _write(folder, lambda: [write_csv(measured, folder), draw(measured, title, folder)])


def _folder(args: Args) -> Path:
    folder = local_path(args.pop("out", "outputs/bench", non_empty), "out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out={folder}: expected a folder")
    return folder


def _write(folder: Path, write: Callable[[], list[Path]]) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = write()
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
