"""Solves the sizes of arms: the widths for `match`, and the widths and steps at every rung of a ladder.

With `match` all arms have the baseline's parameters, FLOPs, active parameters or state. The state is the cache of a
decoder, in bytes after a full sequence of the arm's data. The width is `model.dim`. It must be a multiple of the heads
and of other numbers that the arm's components need: a width that the model refuses is skipped. Sizes then
agree only approximately, and the remaining mismatch is recorded.

On a ladder the FLOPs of training are

    C = 3 F B S        F: FLOPs of the forward pass of a sample; B: samples of a batch; S: steps

A rung of `flops` is a value of C. The baseline has the width at which `tokens_per_param` tokens for each of its
parameters cost C. The other arms share its FLOPs of a forward pass, or the size that `match` names, and every arm takes
the steps that cost C. A rung of `params` is the parameters of the baseline. The other arms share them, or the size that
`match` names, and all take the baseline's steps, which follow from `tokens_per_param` or from the base.

Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (arXiv 2203.15556), section 3.3; the
factor of 3 counts a backward pass as two forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NotRequired, TypedDict

from blockyard.config.build import Components
from blockyard.config.compose import Composed
from blockyard.config.size_matching import BUDGETS, LARGEST, MAX_FACTOR, ModelSizes, SizeSearch, axis, nearest
from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.sweep.cells import Arm
from blockyard.sweep.spec import ladder as ladders
from blockyard.sweep.spec.keys import Ladder, label
from blockyard.sweep.spec.ladder import UNITS

TRAINING = 3  # FLOPs of training, over the FLOPs of the forward pass
FEWEST_STEPS = 10
_UNEVEN_TOKENS = 1.25  # ratio of tokens a parameter between rungs from which a note says so
_LARGE_MISMATCH = 0.05  # share of the target, or of the rung, above which a note names the arm
_LISTED = 6  # arms that a note lists


class MatchedWidth(TypedDict):
    """The width of one arm, its size, and the share of the target by which the size is off.

    unit: the number of heads, of which widths are multiples; plans of earlier releases lack it
    """

    dim: int
    value: int
    off: float
    unit: NotRequired[int]


class MatchedSizes(TypedDict, total=False):
    """The size that the arms share: the quantity, the baseline's value, and each arm's width. Empty without `match`."""

    by: str
    target: int
    arms: dict[str, MatchedWidth]


def solve_widths(
    quantity: str,
    baseline: str,
    overrides: dict[str, list[str]],
    compose: Callable[[Sequence[str]], Composed],
    sizes: ModelSizes,
) -> tuple[dict[str, int], MatchedSizes]:
    """Return the widths by arm, and their record.

    An arm without a model that can be built is left out: checking it gives the reason.

    quantity: "params", "flops", "active" or "state"
    overrides: by arm
    """
    configs: dict[str, Node] = {}
    for name, arm_overrides in overrides.items():
        composed = compose(arm_overrides)
        if not composed.issues and isinstance(composed.config["model"].get("dim"), int):
            configs[name] = composed.config
    target = sizes.measure(configs[baseline], quantity) if baseline in configs else None
    if target is None:
        return {}, {}
    widths: dict[str, int] = {}
    record: MatchedSizes = {"by": quantity, "target": target, "arms": {}}
    for name, config in configs.items():
        width_axis = axis(config)
        if width_axis is None:
            continue
        width = config["model"]["dim"]
        value = target
        if name != baseline:  # which keeps its width
            solved = nearest(config, quantity, target, sizes, width_axis)
            if solved is None:
                continue
            number, value = solved
            width = int(width_axis.value(number))
        widths[name] = width
        record["arms"][name] = {"dim": width, "value": value, "off": value / target - 1, "unit": int(width_axis.unit)}
    return widths, record


def width_notes(record: MatchedSizes) -> list[str]:
    """Return the note about matched sizes. It names the arms with a large mismatch."""
    if not record:
        return []
    arms = record["arms"]
    matched = f"model.dim of each arm is solved to match {record['target']:,} {BUDGETS[record['by']]}"
    large = {name: arm["off"] for name, arm in arms.items() if abs(arm["off"]) > _LARGE_MISMATCH}
    if large:
        listed = ", ".join(f"{name} {off:+.1%}" for name, off in large.items())
        units = sorted({arms[name].get("unit", 1) for name in large})
        widths = "whole numbers"
        if units != [1]:
            widths = f"multiples of the heads, here of {' and '.join(map(str, units))}"
        return [f"{matched}; widths are {widths}, so some sizes differ much: {listed}"]
    worst = max(arms, key=lambda name: abs(arms[name]["off"]))
    return [f"{matched}; the largest mismatch is {arms[worst]['off']:+.1%} ({worst})"]


class RungSize(TypedDict):
    """The size and the training of one arm at one rung.

    value: the size that is matched
    params: the parameters
    off: the share of the rung by which its number is missed
    steps, flops: of training; None where the budget of the base counts epochs of data that were not read
    tokens: for each parameter, where the ladder sets them
    """

    dim: int
    value: int
    params: int
    off: float
    steps: int | None
    flops: float | None
    tokens: float | None


class LadderSizes(TypedDict, total=False):
    """The sizes of a ladder; empty without one.

    by: the size that the arms share at each rung
    baseline: the arm of the file that defines this size
    arms: by name
    """

    by: str
    baseline: str
    arms: dict[str, RungSize]


@dataclass
class Climb:
    """The widths and steps of a ladder.

    overrides: by arm, the overrides that set the size and the steps of its rung
    sizes: of each arm
    refused: arm -> the reason why it has no such size
    """

    overrides: dict[str, list[str]] = field(default_factory=dict)
    sizes: LadderSizes = field(default_factory=LadderSizes)
    refused: dict[str, str] = field(default_factory=dict)


def training_samples(config: Node, train_size: Callable[[], int | None]) -> float | None:
    """Return the samples that training processes; None where the length of an epoch is unknown.

    train_size: returns the samples of the training split; None where unknown
    """
    trainer = config["trainer"]
    batch_size = config["data"].get("batch_size")
    if not isinstance(batch_size, int):
        return None
    step_limits: list[float] = []
    if trainer.get("max_steps") is not None:
        step_limits.append(float(trainer["max_steps"]))
    if trainer.get("max_epochs") is not None:
        batches_per_epoch = [trainer[limit] for limit in ("limit_train", "overfit") if trainer.get(limit)]
        length = train_size()
        if length is not None:
            batches_per_epoch.append(max(1, length // batch_size))
        if batches_per_epoch:
            step_limits.append(float(min(batches_per_epoch) * trainer["max_epochs"]))
    # Training ends at the limit that comes first.
    if step_limits:
        return min(step_limits) * batch_size
    return None


def solve_rungs(
    ladder: Ladder,
    match: str | None,
    baseline: str,
    arms: dict[str, Composed],
    sizes: ModelSizes,
    train_size: Callable[[Node], int | None],
) -> Climb:
    """Return the widths and steps of every arm at every rung. Raises UserError where the baseline has none.

    match: the size that arms share with the baseline at each rung; None is the quantity of the rungs
    baseline: an arm of the file
    arms: of the file, composed without a rung
    """
    kind = ladders.kind(ladder)
    rungs = ladder[kind]
    climb = Climb(sizes={"by": match or kind, "baseline": baseline, "arms": {}})
    configs = {name: composed.config for name, composed in arms.items() if not composed.issues}
    if baseline not in configs:
        return climb  # checking the arm gives the reasons
    solver = _Rungs(ladder, climb.sizes["by"], sizes, train_size)
    for rung in rungs:
        base = solver.baseline(baseline, configs[baseline], rung)
        for name, config in configs.items():
            arm = ladders.at_rung(Arm(name), label(rung)).name
            try:
                size = base if name == baseline else solver.other(name, config, rung, base)
            except UserError as error:
                climb.refused[arm] = str(error)
                continue
            climb.sizes["arms"][arm] = size
            climb.overrides[arm] = [f"model.dim={size['dim']}"]
            if "tokens_per_param" in ladder:
                climb.overrides[arm] += [f"trainer.max_steps={size['steps']}", "trainer.max_epochs=null"]
    for name in configs:
        _refuse_equal(name, [label(rung) for rung in rungs], climb, is_baseline=name == baseline)
    return climb


def _refuse_equal(name: str, labels: Sequence[str], climb: Climb, *, is_baseline: bool) -> None:
    """Refuse the rungs of an arm that have the width of a smaller rung. Raises UserError for an arm of the baseline."""
    rung_by_width: dict[int, str] = {}
    for rung in labels:
        arm = ladders.at_rung(Arm(name), rung).name
        if arm not in climb.sizes["arms"]:
            continue
        dim = climb.sizes["arms"][arm]["dim"]
        smaller = rung_by_width.setdefault(dim, rung)
        if smaller != rung:
            text = f"ladder: the rungs {smaller} and {rung} of {name} both have model.dim={dim}; set them farther apart"
            if is_baseline:
                raise UserError(text)
            climb.refused[arm] = text
            del climb.sizes["arms"][arm], climb.overrides[arm]


@dataclass
class _Rungs:
    """Solves the size of one arm at one rung."""

    ladder: Ladder
    by: str
    sizes: ModelSizes
    train_size: Callable[[Node], int | None]

    def baseline(self, name: str, config: Node, rung: float) -> RungSize:
        """Return the size of the baseline at a rung. Raises UserError where no width has that number."""
        width_axis = self._axis(name, config)

        def count(n: int) -> int | None:
            sized = width_axis.put(config, n)
            params = self.sizes.measure(sized, "params")
            if "flops" not in self.ladder or params is None:
                return params
            cost = self._cost(sized)
            if cost is None:
                return None
            return round(cost * self._samples(name, sized, params))

        search = SizeSearch(count, round(rung), LARGEST["dim"] / width_axis.unit)
        n = search.solve(width_axis.current)
        value = None if n is None else search.counts[n]
        if n is None or value is None:
            failure = self.sizes.failure(width_axis.put(config, width_axis.current), "params")
            reason = f" ({failure})" if failure else ""
            raise UserError(
                f"ladder: no model of {name} can be built near "
                f"{width_axis.key}={width_axis.value(width_axis.current)}{reason}"
            )
        if not rung / MAX_FACTOR <= value <= rung * MAX_FACTOR:
            raise UserError(
                f"ladder: {self._rung(rung)} are out of reach of {name} by {width_axis.key}; the nearest is "
                f"{width_axis.value(n):g}: {value:.3g}"
            )
        return self._size(name, width_axis.put(config, n), rung, None)

    def other(self, name: str, config: Node, rung: float, base: RungSize) -> RungSize:
        """Return another arm at a rung with the baseline's size. Raises UserError where no width has it."""
        width_axis = self._axis(name, config)
        target = base["value"]
        solved = nearest(config, self.by, target, self.sizes, width_axis)
        if solved is None:
            reason = self.sizes.failure(width_axis.put(config, width_axis.current), self.by)
            raise UserError(f"ladder: no width (model.dim) gives a model that can be counted ({reason})")
        n, value = solved
        if not target / MAX_FACTOR <= value <= target * MAX_FACTOR:
            raise UserError(
                f"ladder: the baseline's {target:,} {BUDGETS[self.by]} at {self._rung(rung)} are out of reach by "
                f"{width_axis.key}; the nearest is {width_axis.value(n):g}: {value:,}"
            )
        return self._size(name, width_axis.put(config, n), rung, base)

    def _axis(self, name: str, config: Node) -> Any:
        width_axis = axis(config)
        if width_axis is None:
            raise UserError(f"ladder: {name} has no model.dim to solve for")
        return width_axis

    def _size(self, name: str, config: Node, rung: float, base: RungSize | None) -> RungSize:
        """Return the sizes and steps of a config that has the width of its rung."""
        params = self.sizes.measure(config, "params")
        value = self.sizes.measure(config, self.by)
        if params is None or value is None:
            raise UserError(f"ladder: {name} cannot be counted ({self.sizes.failure(config, self.by)})")
        cost = self._cost(config)
        if cost is None:
            reason = self.sizes.failure(config, "flops")
            raise UserError(f"ladder: the FLOPs of {name} cannot be counted ({reason})")
        batch_size = config["data"].get("batch_size")
        samples: float | None
        if "tokens_per_param" not in self.ladder:
            samples = training_samples(config, partial(self.train_size, config))
        elif not isinstance(batch_size, int):
            raise UserError(f"ladder: {name} has no data.batch_size, from which steps follow")
        elif "flops" in self.ladder:
            samples = rung / cost
        elif base is not None and base["steps"] is not None:  # on rungs of params all arms take the baseline's steps
            samples = base["steps"] * batch_size
        else:
            samples = self._samples(name, config, params)
        steps = None if samples is None or not isinstance(batch_size, int) else round(samples / batch_size)
        if steps is not None and steps < FEWEST_STEPS and "tokens_per_param" in self.ladder:
            raise UserError(
                f"ladder: {name} would train {steps} steps at {self._rung(rung)}; the fewest are {FEWEST_STEPS}: "
                "choose larger rungs, or a smaller data.batch_size"
            )
        flops = None if steps is None else float(cost * steps * batch_size)
        reached = flops if "flops" in self.ladder else params
        tokens = None
        if steps is not None and "tokens_per_param" in self.ladder:
            tokens = steps * batch_size * Components(config).tokens().max_len / params
        return RungSize(
            dim=config["model"]["dim"],
            value=value,
            params=params,
            off=0.0 if reached is None else reached / rung - 1,
            steps=steps,
            flops=flops,
            tokens=tokens,
        )

    def _cost(self, config: Node) -> int | None:
        """Return the FLOPs of training on one sample; None where they cannot be counted."""
        forward = self.sizes.measure(config, "flops")
        return None if forward is None else TRAINING * forward

    def _samples(self, name: str, config: Node, params: int) -> float:
        """Return the samples that hold `tokens_per_param` tokens a parameter. Raises UserError for data without texts.

        Only of running text is every sample as long as the context, so that tokens follow from samples.
        """
        components = Components(config)
        spec = components.data.spec
        tokens = components.tokens()
        unsuitable = None
        if spec.modality != "text":
            unsuitable = spec.things
        elif spec.source is not None:
            unsuitable = "texts with a source"
        elif spec.target is not None:
            unsuitable = "labelled texts"
        elif tokens.variable:
            unsuitable = "texts of different lengths"
        if unsuitable is not None:
            raise UserError(
                f"ladder: tokens_per_param counts the tokens of running text, and the data of {name} are "
                f"{unsuitable}; write ladder: {{params: [1e4, 3e4, 1e5, 3e5]}}, "
                "whose rungs train as long as the base says"
            )
        return float(self.ladder["tokens_per_param"]) * params / tokens.max_len

    def _rung(self, rung: float) -> str:
        return f"{label(rung)} {UNITS[ladders.kind(self.ladder)]}"


def rung_notes(
    ladder: Ladder | None,
    sizes: LadderSizes,
    configs: dict[str, Node],
    tuned: Sequence[str],
    train_size: Callable[[Node], int | None],
) -> list[str]:
    """Return the notes about a ladder: sizes that are off, one rate for all widths, data that is read again.

    configs: of one variant of each arm
    tuned: the keys that are chosen for every arm
    """
    if ladder is None or not configs:
        return []
    any_config = next(iter(configs.values()))
    shared = BUDGETS[sizes["by"]]
    notes = [f"model.dim of each arm is solved at each rung, so that all arms of a rung have the same {shared}"]
    vocabulary = Components(any_config).tokens().vocabulary
    if vocabulary:
        notes[0] += f", counted with a vocabulary of {vocabulary:,}"
    large = [f"{name} {size['off']:+.1%}" for name, size in sizes["arms"].items() if abs(size["off"]) > _LARGE_MISMATCH]
    if large:
        listed = ", ".join(large[:_LISTED])
        if len(large) > _LISTED:
            listed += f" and {len(large) - _LISTED} more"
        notes[0] += f"; widths are multiples of the heads and steps whole numbers, so some miss their rung: {listed}"
    baseline_tokens: list[float] = []
    for rung in ladder[ladders.kind(ladder)]:
        size = sizes["arms"].get(ladders.at_rung(Arm(sizes["baseline"]), label(rung)).name)
        if size and size["tokens"]:
            baseline_tokens.append(float(size["tokens"]))
    if baseline_tokens and max(baseline_tokens) > _UNEVEN_TOKENS * min(baseline_tokens):
        notes.append(
            f"widths are multiples of the heads, so that {sizes['baseline']} sees {min(baseline_tokens):.3g} to "
            f"{max(baseline_tokens):.3g} tokens a parameter, where the ladder says {ladder['tokens_per_param']:g}"
        )
    # muP scales the rate with the width, so that one rate suits every rung.
    parametrization = str((any_config.get("parametrization") or {}).get("_target_"))
    if "optimizer.lr" not in tuned and "MuP" not in parametrization:
        notes.append(
            f"every rung trains with optimizer.lr={any_config['optimizer'].get('lr')}, which may suit one width alone: "
            "base: [parametrization=mup] carries a rate over, and tune: {optimizer.lr: [...]} tries some at every rung"
        )
    epochs: dict[str, float] = {}  # of arms that read their data more than once
    for name, config in configs.items():
        size_of_data = train_size(config)
        samples = training_samples(config, partial(train_size, config))
        if samples and size_of_data and samples > size_of_data and "tokens_per_param" in ladder:
            epochs[name] = samples / size_of_data
    if epochs:
        most = max(epochs, key=lambda name: epochs[name])
        notes.append(
            f"{len(epochs)} of {len(configs)} arms read their training data more than once, {most} {epochs[most]:.1f} "
            "times; the law of a ladder is that of fresh data"
        )
    return notes
