"""`blockyard bench`: measure what token mixers cost, and which learning rates are stable."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Le

from blockyard.commands._signature import command
from blockyard.commands._types import ConfigDirs, Folder, Text, Value, group_overrides, run_overrides
from blockyard.config.option_text import indices
from blockyard.config.run_length import LENGTHS
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError
from blockyard.terminal import console

Kernel = Literal["auto", "sdpa", "flex", "online", "eager"]
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096)
LONGEST = 65_536
FOLDER = "outputs/bench"


def names(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of names with commas between them, each once."""

    def read_names(text: str) -> tuple[str, ...]:
        values = tuple(dict.fromkeys(part.strip() for part in text.strip("[]").split(",")))
        wrong = [name for name in values if not re.fullmatch(r"\w+", name) or (allowed and name not in allowed)]
        if wrong:
            expected = "names with commas between them"
            if allowed:
                expected += f" of {', '.join(allowed)}"
            raise ValueError(expected)
        return values

    return read_names


def lengths(text: str) -> tuple[int, ...]:
    """Return numbers of tokens, ascending."""
    try:
        values = tuple(sorted(indices(text)))
    except ValueError:
        values = ()
    if not values or values[0] < 4 or values[-1] > LONGEST or len(values) > 64:
        raise ValueError(f"whole numbers from 4 to {LONGEST}, such as [64,128,256]")
    return values


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.strip("[]").split(",") if part.strip())
    wrong = [part for part in parts if not re.fullmatch(r"[\w.*]+", part)]
    if wrong:
        raise ValueError(f"top, layers, or parts such as [embedder,head], not {wrong[0]}")
    return parts


@command(word="cost")
def cost(
    *overrides: Annotated[str, Value("key=value", values=group_overrides, everything="overrides")],
    token_mixer: Annotated[Sequence[str], Value("A,B", names())],
    tokens: Annotated[Sequence[int], Value("[64,128,256]", lengths)] = TOKENS,
    of: Literal["mixer", "step", "decode"] = "mixer",
    kernels: Annotated[Sequence[Kernel], Value("auto,online,eager", names(*get_args(Kernel)))] = ("auto",),
    batch: Annotated[int, Ge(1), Le(4096)] = 1,
    device: Text = "cpu",
    out: Folder = FOLDER,
    config_dirs: ConfigDirs = (),
) -> None:
    """`bench cost` measures what token mixers cost over the number of tokens, one after the other in one process.

    Measures FLOPs, median time and peak memory at each length, the exponent of the number of tokens, fitted over the
    longer half of the lengths, and from which length on a mixer is cheaper than the first one. Prints tables, and
    writes cost.csv and cost.png.

    Options:
        overrides: change the model, a decoder of characters with two blocks of 64 channels and 4 heads: model.dim=256,
            position=alibi, or model=encoder objective=masked_token for mixers that cannot be causal. Overrides of
            trainer, optimizer and schedule are refused: passes are measured in single precision, without an optimizer
        token_mixer: the mixers
        tokens: the lengths
        of: mixer is the forward and backward pass of one mixer; step that of the whole model with its loss; decode the
            last token after all others, from the cache where the mixer has one
        kernels: attention kernels, as of trainer.attention; mixers without attention are measured once
        batch: sequences; FLOPs are for one
        device: the memory is what torch allocates, without the weights
        out: where the files are written

    Examples:
        blockyard bench cost token_mixer=attention,conv,linear_attention tokens=[64,128,256,512] kernels=auto,online
        blockyard bench cost token_mixer=attention,linear_recurrence tokens=[64,128,256] of=decode model.dim=32
    """
    folder = _folder(out)
    for override in overrides:
        key = override.partition("=")[0]
        if key == "data.context":
            raise UserError(f"{key}= has no effect on bench cost: use tokens=")
        if key == "trainer.attention":
            raise UserError(f"{key}= has no effect on bench cost: use kernels=")
        if key.lstrip("+~").partition(".")[0] in ("trainer", "optimizer", "schedule"):
            raise UserError(
                f"{key}= has no effect on bench cost, which measures passes in single precision and no optimizer; "
                "leave it out"
            )
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    from blockyard.bench.cost import costs, crossings, draw, tables, write_csv
    from blockyard.generate.request import check_device

    check_device(device)
    measured = []
    for measure in costs(
        token_mixer,
        tokens,
        of=of,
        kernels=kernels,
        overrides=overrides,
        config_dirs=config_dirs,
        batch=batch,
        device=device,
    ):
        measured.append(measure)
        sys.stderr.write(f"{measure.name}, {measure.tokens} tokens: {measure.milliseconds:.2f} ms\n")
    for table in tables(measured):
        console().print(table)
    for sentence in crossings(measured):
        sys.stdout.write(f"{sentence}\n")
    title = f"cost of={of}, batch {batch}"
    _write(folder, lambda: [write_csv(measured, folder), draw(measured, title, folder)])


@command(word="rates")
def rates(
    *overrides: Annotated[str, Value("key=value", values=run_overrides, everything="overrides")],
    parts: Annotated[Sequence[str], Value("top|layers|[A,B]", _parts)] = ("top",),
    steps: Annotated[int, Ge(20), Le(100_000)] = 100,
    lowest: Annotated[float, Gt(0)] = 1e-6,
    highest: Annotated[float, Gt(0)] = 1.0,
    out: Folder = FOLDER,
    config_dirs: ConfigDirs = (),
) -> None:
    """`bench rates` is a learning-rate range test: a short training whose rate rises at every step.

    It does so for all weights together, and then for one part at a time, while the others keep the rate of the config.
    Each test has the same first weights and batches, and the loss of a part is compared with that of the same steps
    where no rate rises. Prints at which rate the loss falls fastest, up to which rate each part is stable, and what to
    try as optimizer.lr and optimizer.rates; writes rates.csv and rates.png.

    Options:
        parts: top is embedder, blocks, head, ... as the model names them; layers has each block by itself, a list names
            parts, [] has none
        steps: of each test
        lowest: the rate of the first step
        highest: the rate of one more step after the last

    Examples:
        blockyard bench rates experiment=gpt_code_small parts=layers
    """
    if highest <= lowest:
        raise UserError(f"highest={highest:g} must be more than lowest={lowest:g}")
    folder = _folder(out)
    for key in LENGTHS:
        if any(override.startswith(f"{key}=") for override in overrides):
            raise UserError(f"{key}= has no effect on bench rates: use steps=")
    from blockyard.commands._python import lightning
    from blockyard.engine.lightning.patches import silence_libraries

    module, data = lightning(*overrides, config_dirs=config_dirs)
    from blockyard.bench import rates as range_test

    silence_libraries()
    tests = []
    for test in range_test.rate_tests(module, data, parts, lowest=lowest, highest=highest, steps=steps):
        tests.append(test)
        sys.stderr.write(f"{test.part}: {len(test.losses)} steps\n")
    console().print(range_test.rates_table(tests, module.lr))
    for sentence in range_test.hints(tests, module.lr):
        sys.stdout.write(f"{sentence}\n")
    _write(folder, lambda: range_test.write_rates(tests, folder))


def _folder(out: str) -> Path:
    folder = local_path(out, "out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out={folder}: expected a folder")
    return folder


def _write(folder: Path, write: Callable[[], list[Path]]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = write()
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; out=FOLDER sets another folder") from error
    for path in paths:
        sys.stdout.write(f"{path}\n")
