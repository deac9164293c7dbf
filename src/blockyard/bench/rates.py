"""Learning-rate range test: of all weights together, and of one part of the model at a time.

Source: Smith 2017, Cyclical Learning Rates for Training Neural Networks (arXiv 1506.01186), section 3.3; the smoothing,
    the end at a multiple of the least loss and the rate at the steepest fall are as in Lightning's finder
Reference: pytorch_lightning.tuner.Tuner.lr_find, for all weights together; it divides by 1 - 0.98^(t + 1)
Equation: rate of step t of T, from 0: lowest (highest / lowest)^(t / T); its smoothed loss: an exponential average
    with 0.98, over 1 - 0.98^t
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as pl

from blockyard.atomic_files import write_text
from blockyard.errors import UserError, fold
from blockyard.inspect._canvas import canvas, plain_ticks, save
from blockyard.model._part_names import is_in, unknown_part
from blockyard.optimizer._param_groups import rate_factors
from blockyard.terminal import table

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from blockyard.engine.plain_trainer import TrainerData, TrainerModule

ALL = "all"  # part of a test with a rising rate of all weights
NONE = "none"  # part of a test without a rising rate
SMOOTHING = 0.98
DIVERGED = 4.0  # times the least smoothed loss, at which a test ends
TOLERANCE = 0.02  # share of the loss by which it has to rise before a rate counts as unstable
SKIPPED = 10  # steps at the start do not count: the average of few losses is noise
# A factor beside 1 gives the weights of a part separate groups in the optimizer, and changes no float32.
APART = 1 + 1e-12


@dataclass
class RateTest:
    """The curve of a range test.

    part: the part with a rising rate; `ALL`, or `NONE` if no rate rose
    rates: the learning rate of each step, before the factors of single weights
    losses: the smoothed training loss of each step, computed before the step changes the weights
    diverged: the rate at which the test ended before its last step, or None
    without: for a part, the same steps without a rising rate, for comparison
    """

    part: str
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    diverged: float | None = None
    without: RateTest | None = None

    @property
    def steepest(self) -> float | None:
        """The rate at the fastest fall of the smoothed loss; None if it never falls, or for too few steps."""
        losses = np.array(self.losses)[SKIPPED:-1]
        if len(losses) < 2 or not np.isfinite(losses).all():
            return None
        falls = np.gradient(losses)
        lowest = int(falls.argmin())
        if falls[lowest] < 0:
            return self.rates[SKIPPED + lowest]
        return None

    def highest_stable(self, start: float) -> float | None:
        """Return the last rate before the smoothed loss has risen by `TOLERANCE` of itself; None if it never does.

        For a part, the loss is the difference to the same steps without a rising rate, from rate `start` on: at lower
        rates the part learns too little, and is not unstable. Steps that the other test did not reach are left out.
        """
        losses = np.array(self.losses)
        allowed = np.full(len(losses), TOLERANCE * np.nanmin(losses))
        if self.without is not None:
            count = min(len(losses), len(self.without.losses))
            without = np.array(self.without.losses[:count])
            losses, allowed = losses[:count] - without, TOLERANCE * without
        least = math.inf
        last = None
        for rate, loss, rise in zip(self.rates, losses, allowed, strict=False):
            if self.without is not None and rate < start:
                continue
            least = min(least, loss)
            if not loss <= least + rise:
                return last
            last = rate
        return None


class RateRise(pl.Callback):
    """Raise the learning rate from step to step, for all weights or for a part.

    lr: of the config; members: ids of the weights with a rising rate; None is all of them
    """

    def __init__(
        self, test: RateTest, lr: float, lowest: float, highest: float, steps: int, members: set[int] | None
    ) -> None:
        self.test = test
        self.lr = lr
        self.lowest = lowest
        self.highest = highest
        self.steps = steps
        self.members = members
        self._average = 0.0
        self._micro: list[float] = []  # losses of the micro-batches of this step

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Any) -> None:
        """Set the rates of this step."""
        rate = self.lowest * (self.highest / self.lowest) ** (trainer.global_step / self.steps)
        for group in optimizer.param_groups:
            rises = self.members is None or all(id(p) in self.members for p in group["params"])
            # The initial rate of a group has the factors of its weights, which stay.
            factor = rate / self.lr if rises else 1.0
            group["lr"] = group["initial_lr"] * factor
        self.test.rates.append(rate)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the smoothed loss, and end the test if it is much above the least one."""
        self._micro.append(float(outputs["loss"]) * trainer.accumulate_grad_batches)  # by which Lightning divides it
        if len(self.test.losses) == len(self.test.rates):
            return  # more micro-batches follow before the step
        loss = math.fsum(self._micro) / len(self._micro)
        self._micro.clear()
        self._average = SMOOTHING * self._average + (1 - SMOOTHING) * loss
        # The average starts at 0, and is divided by the sum of the weights so far.
        smoothed = self._average / (1 - SMOOTHING ** (len(self.test.losses) + 1))
        least = min([loss for loss in self.test.losses if math.isfinite(loss)], default=math.inf)
        self.test.losses.append(smoothed)
        if not smoothed <= DIVERGED * least:  # also for NaN
            self.test.diverged = self.test.rates[-1]
            trainer.should_stop = True


def parts_of(model: nn.Module, parts: Sequence[str]) -> list[str]:
    """Return the names of the tested parts. Raises UserError for a name that the model does not have.

    parts: names of parts, or `top` for the children of the model with trained weights, or `layers` for the same with
        each block by itself
    """
    if tuple(parts) not in (("top",), ("layers",)):
        problem = unknown_part(model, parts)
        if problem:
            raise UserError(f"parts: {problem}")
        return list(parts)
    names = []
    for parameter_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        path = parameter_name.split(".")
        depth = 1
        if parts[0] == "layers" and "blocks" in path[:-1]:
            depth = path.index("blocks") + 2  # up to the number of the block
        names.append(".".join(path[:depth]))
    return list(dict.fromkeys(names))


def rate_tests(
    module: TrainerModule, data: TrainerData, parts: Sequence[str], *, lowest: float, highest: float, steps: int
) -> Iterator[RateTest]:
    """Run the test of all weights, then of no weight and of each part, from the same weights and batches.

    parts: as `parts_of` takes them; none tests all weights only
    Raises UserError for parts that are unknown or not trained, and for an optimizer without rates by part.
    """
    names = parts_of(module.model, parts) if parts else []
    if names and not hasattr(module.optimizer_builder, "rates"):
        name = type(module.optimizer_builder).__name__
        raise UserError(f"parts: optimizer {name} has no rates by part; use parts=[] or optimizer=adamw")
    frozen = [name for name in names if not _members(module.model, name)]
    if frozen:
        raise UserError(f"parts: no weight of {fold(frozen)} is trained")
    tested = [ALL]
    if names:
        tested += [NONE, *names]
    without = None
    for name in tested:
        # A copy of the module for each test, which changes weights and rates.
        test = _test(deepcopy(module), data, name, lowest, highest, steps)
        if name == NONE:
            without = test
        else:
            test.without = without
        yield test


def _members(model: nn.Module, part: str) -> set[int]:
    return {id(p) for name, p in model.named_parameters() if p.requires_grad and is_in(name, [part])}


def _test(module: TrainerModule, data: TrainerData, part: str, lowest: float, highest: float, steps: int) -> RateTest:
    test = RateTest(part)
    members: set[int] | None = None
    if part == NONE:
        members = set()
    elif part != ALL:
        members = _members(module.model, part)
        builder: Any = module.optimizer_builder
        # By single parameters: the name of the part would hide a factor that the part has by a wider name.
        factors, _ = rate_factors(module.model, builder.rates)
        builder.rates = {}
        for name, parameter in module.model.named_parameters():
            if parameter.requires_grad:
                apart = APART if is_in(name, [part]) else 1.0
                builder.rates[name] = factors.get(name, 1.0) * apart
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    validation = dict.fromkeys(("limit_val_batches", "num_sanity_val_steps"), 0)
    rise = RateRise(test, module.lr, lowest, highest, steps, members)
    limits = {"max_steps": steps, "max_epochs": -1, "callbacks": [rise]}
    pl.Trainer(**module.trainer_arguments() | quiet | validation | limits).fit(module, datamodule=data)
    return test


def hints(tests: Sequence[RateTest], lr: float) -> list[str]:
    """Return sentences: the rate at the fastest fall of the loss of all weights, and factors for the parts.

    A factor is the highest stable rate of a part over that of all weights, to one digit, from 0.1 to 10.

    lr: of the config
    """
    whole, *others = tests
    sentences = []
    if whole.steepest is None:
        sentences.append("the loss falls at no rate; try another lowest= and highest=, or more steps=")
    else:
        sentences.append(f"the loss falls fastest at optimizer.lr={whole.steepest:.2g} (now {lr:g})")
    stable = whole.highest_stable(lr)
    if any(test.part == NONE and test.diverged is not None for test in others):
        sentences.append(f"parts cannot be compared: at optimizer.lr={lr:g} the loss diverges where no rate rises")
    elif stable is not None and others:
        rates = {test.part: test.highest_stable(lr) for test in others if test.part != NONE}
        changes = []
        for part, rate in rates.items():
            if rate is None:
                continue
            ratio = min(max(rate / stable, 0.1), 10.0)
            factor = float(f"{ratio:.1g}")
            if factor != 1:
                changes.append(f"{part}: {factor:g}")
        if changes:
            factors = ", ".join(changes)
            sentences.append(f"to try: 'optimizer.rates={{{factors}}}'")
        else:
            sentences.append("all parts are stable up to the same rate")
    sentences.append("a range test of a few steps is a hint; a sweep over several seeds decides")
    return sentences


def rates_table(tests: Sequence[RateTest], lr: float) -> Table:
    """Return a row for each test. lr: of the config"""
    rows = table("learning rates", "part", "falls fastest at", "stable up to", "diverges at", "last loss")
    for test in tests:
        values = (
            test.steepest if test.part == ALL else None,
            None if test.part == NONE else test.highest_stable(lr),
            test.diverged,
            test.losses[-1],
        )
        rows.add_row(test.part, *("-" if value is None else f"{value:.3g}" for value in values))
    return rows


def write_rates(tests: Sequence[RateTest], folder: Path) -> list[Path]:
    """Write rates.csv, a line for each step, and rates.png, smoothed losses over rates."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["part", "rate", "smoothed_loss"])
    for test in tests:
        for rate, loss in zip(test.rates, test.losses, strict=True):
            writer.writerow([test.part, rate, loss])
    write_text(folder / "rates.csv", text.getvalue())
    with canvas(1, 1, (5.0, 3.2), "training loss while the learning rate rises") as (figure, axes):
        panel = axes[0][0]
        panel.set_xscale("log")
        plain_ticks(panel.xaxis)
        for test in tests:
            style = {"color": "black", "linewidth": 1.6} if test.part == ALL else {"linewidth": 1}
            panel.plot(test.rates, test.losses, label=test.part, **style)
        firsts = [test.losses[0] for test in tests if math.isfinite(test.losses[0])]
        if firsts:
            panel.set_ylim(top=1.5 * max(firsts))
        panel.set_xlabel("learning rate of the part")
        panel.set_ylabel("smoothed loss")
        panel.legend(fontsize=7, frameon=False)
        return [folder / "rates.csv", save(figure, folder, "rates")]
