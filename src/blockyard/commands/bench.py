"""`blockyard bench`: measure what token mixers cost, which learning rates are stable, and what a run's noise is of."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from annotated_types import Ge, Gt, Le

from blockyard.commands._signature import command
from blockyard.commands._types import (
    OUTPUTS,
    ConfigDirs,
    Folder,
    Outputs,
    Text,
    TypedLine,
    Value,
    group_overrides,
    run_overrides,
)
from blockyard.config.option_text import indices
from blockyard.config.run_length import LENGTHS
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError
from blockyard.terminal import console

if TYPE_CHECKING:
    from blockyard.bench.noise import NoisyRun
    from blockyard.engine.data_reader import DataReader
    from blockyard.sweep.cells import Cell
    from blockyard.sweep.execution.estimate import Estimate
    from blockyard.sweep.plan.sweep_plan import SweepPlan

Kernel = Literal["auto", "sdpa", "flex", "online", "eager"]
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096)
LONGEST = 65_536
FOLDER = "outputs/bench"
# Keys that `bench noise` sets: the seeds of its sources, and the repeats.
_SEED_KEYS = ("seed", "init.seed", "trainer.order_seed", "repeat")
_AGAIN = "again"  # the arm that repeats the first one


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


@command(subcommand="cost")
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


@command(subcommand="rates")
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


@command(subcommand="noise")
def noise(
    *overrides: Annotated[str, Value("key=value", values=run_overrides, everything="overrides")],
    levels: Annotated[int, Ge(2), Le(10)] = 3,
    metric: Text | None = None,
    workers: Annotated[int, Ge(1)] | None = None,
    outputs: Outputs = OUTPUTS,
    out: Folder = FOLDER,
    config_dirs: ConfigDirs = (),
    typed: TypedLine = (),
) -> int:
    """`bench noise` tells what the noise of a run consists of: which seed moves its final metric, and by how much.

    Trains runs with every combination of a few seeds of the first weights, of the order of the data, and of the draws
    of dropout, augmentation and the objective; and one of them again with the same seeds. Where the last draws change
    nothing, the first four runs show it, and the others vary two seeds alone. Prints the share of each source in the
    variance, with intervals, and writes noise.json. The runs are cells of a sweep, so that the same command goes on
    where it was stopped.

    Options:
        levels: seeds of each source
        metric: of the end of a run; by default the objective's own, on test
        workers: runs in parallel

    Examples:
        blockyard bench noise experiment=vit_digits debug=fast
    """
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key in _SEED_KEYS:
            raise UserError(f"{key}= has no effect on bench noise, which sets the seeds; leave it out")
    folder = _folder(out)
    from blockyard.commands.check import compose_and_check
    from blockyard.errors import refuse

    composed, problems = compose_and_check(overrides, config_dirs)
    if problems:
        return refuse(problems)
    from blockyard.bench.noise import SOURCES, noise_hints, noise_result, noise_table, write_noise
    from blockyard.engine.data_reader import DataReader
    from blockyard.runs.identity import identity
    from blockyard.sweep.execution.runner import run_plan
    from blockyard.sweep.executor import build
    from blockyard.sweep.plan.history import store_plan
    from blockyard.sweep.plan.planner import make_plan

    path = folder / f"noise_{identity(composed.config)}.yaml"
    _write_question(path, overrides, levels, metric)
    command_line = ["blockyard", "bench", *typed]
    data = DataReader(None)
    plan = make_plan(path, outputs=outputs, config_dirs=config_dirs, command=command_line, data=data)
    pilot = [cell for cell in plan.cells if cell.variant in (_arm(0, 0), _AGAIN) and cell.seed < 2]
    announced = _announce(plan, data, workers)
    sys.stdout.write(f"{len(pilot) + levels**2 - 1} runs in all where dropout and augmentation draw nothing\n")
    sys.stdout.flush()
    data.release()
    plan, _ = store_plan(plan)
    code = run_plan(replace(plan, cells=tuple(pilot)), build("local", {}, workers), announced=announced)
    if code:
        return code
    sources, cells = _design(plan, SOURCES)
    code = run_plan(replace(plan, cells=tuple(cells)), build("local", {}, workers), announced=announced)
    if code:
        return code
    name = plan.facts["metric"]["name"]
    result = noise_result(name, _noisy_runs(plan, cells, name), sources)
    if result.shares:
        console().print(noise_table(result))
    for sentence in noise_hints(result, levels):
        sys.stdout.write(f"{sentence}\n")
    _write(folder, lambda: write_noise(result, folder))
    return 0


def _write_question(path: Path, overrides: Sequence[str], levels: int, metric: str | None) -> None:
    """Write a sweep file with an arm for each pair of seeds of weights and order, and the first of them once more.

    Its seeds are those of the draws.
    """
    arms = {}
    for weights in range(levels):
        for order in range(levels):
            arms[_arm(weights, order)] = [f"init.seed={weights}", f"trainer.order_seed={order}"]
    arms[_AGAIN] = [*arms[_arm(0, 0)], "repeat=1"]
    question = {
        "claim": "The noise of a run has these sources",
        "base": list(overrides),
        "baseline": _arm(0, 0),
        "arms": arms,
        "seeds": levels,
    }
    if metric is not None:
        question["metric"] = metric
    from blockyard.atomic_files import write_yaml

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_yaml(path, question)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; out=FOLDER sets another folder") from error


def _arm(weights: int, order: int) -> str:
    return f"weights{weights}_order{order}"


def _announce(plan: SweepPlan, data: DataReader, workers: int | None) -> Estimate:
    """Print how many runs there are at most and how long they take, and return the estimate."""
    from blockyard.sweep.execution.estimate import estimate
    from blockyard.sweep.execution.measured_run import MeasuredRuns
    from blockyard.sweep.execution.tables import PlanStatus
    from blockyard.sweep.executor import build

    executor = build("local", {}, workers)
    due = PlanStatus.read(plan).remaining()
    measured = MeasuredRuns(plan, executor.threads, data)
    announced = estimate(plan, due, parallel=executor.parallel, data=data, measured=measured)
    sys.stdout.write(f"at most {announced}\n")
    return announced


def _design(plan: SweepPlan, sources: Sequence[str]) -> tuple[Sequence[str], list[Cell]]:
    """Return the sources that may change a run, and the cells of their design, after the first four have run.

    The first arm and its repeat have run with two seeds of the draws. Where all four are equal to the bit, the draws
    change nothing. A repeat that is equal is not repeated further.
    """
    metrics = {}
    for cell in plan.cells:
        if cell.variant in (_arm(0, 0), _AGAIN) and cell.seed < 2:
            metrics[cell.variant, cell.seed] = _metrics(plan, cell)
    first = metrics[_arm(0, 0), 0]
    quiet = all(metrics[_arm(0, 0), seed] == metrics[_AGAIN, seed] for seed in (0, 1))
    draws = not quiet or metrics[_arm(0, 0), 1] != first
    if quiet:
        sys.stdout.write("this platform is quiet: the same seeds give the same bits\n")
    if not draws:
        sys.stdout.write("dropout and augmentation draw nothing: runs that differ in their seed alone are equal\n")
        sources = [source for source in sources if source != "draws"]
    cells = []
    for cell in plan.cells:
        repeats = cell.variant == _AGAIN
        if (repeats and quiet and cell.seed > 1) or (not repeats and not draws and cell.seed > 0):
            continue
        cells.append(cell)
    return sources, cells


def _metrics(plan: SweepPlan, cell: Cell) -> dict[str, float]:
    """Return the metrics of a finished cell, without its costs."""
    from blockyard.sweep.cell.states import final_metrics

    metrics = final_metrics(plan.path(cell), plan.metric_names)
    return {name: value for name, value in metrics.items() if "/" in name}


def _noisy_runs(plan: SweepPlan, cells: Sequence[Cell], metric: str) -> list[NoisyRun]:
    """Return the runs of these cells. Raises UserError for one without a finite value of the metric."""
    from blockyard.bench.noise import NoisyRun

    runs = []
    for cell in cells:
        config = plan.variants[cell.variant].config
        value = _metrics(plan, cell).get(metric)
        if value is None or not math.isfinite(value):
            raise UserError(
                f"{plan.path(cell)} has no finite {metric}, so that its noise has no variance; see its log.txt"
            )
        weights, order = config["init"]["seed"], config["trainer"]["order_seed"]
        runs.append(NoisyRun(weights, order, cell.seed, config["repeat"] or 0, value))
    return runs


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
