"""Solves the sizes of arms: the widths that `match` asks for, and widths and steps at every rung of a ladder.

With `match` all arms have the baseline's parameters, FLOPs, active parameters or state. The state is the cache of a
decoder, in bytes after a full sequence of the arm's data. The width is `model.dim`. It must be a multiple of the heads
and of whatever else the arm's components need: a width that the model refuses is skipped. Sizes then
agree only approximately; the remaining mismatch is recorded.

Of a ladder:

    C = 3 F B S        C: FLOPs of training; F: of the forward pass of a sample; B: samples of a batch; S: steps

A rung of `flops` is C. The width of the baseline is the one whose C is that of the rung where it sees
`tokens_per_param` tokens for each of its parameters; the other arms have its FLOPs of a forward pass, or what `match`
names; and every arm takes the steps that make its own C that of the rung. A rung of `params` is the parameters of the
baseline; the other arms have as many, or what `match` names, and all take the baseline's steps: those of
`tokens_per_param`, or of the base.

Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (arXiv 2203.15556), section 3.3; the
factor of 3 is that of a backward pass of twice the forward pass.
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

TRAINING = 3  # FLOPs of training in those of the forward pass
FEWEST_STEPS = 10
_UNEVEN = 1.25  # ratio of tokens a parameter that is pointed out
_LARGE = 0.05  # of the target, or of the rung: a larger mismatch is pointed out


class MatchedWidth(TypedDict):
    """The width of one arm, its size, and by which part of the target the size is off.

    unit: widths are multiples of it, the number of heads; plans of earlier releases lack it
    """

    dim: int
    value: int
    off: float
    unit: NotRequired[int]


class MatchedSizes(TypedDict, total=False):
    """The size that the arms share: by which quantity, the baseline's, and each arm's width. Empty where none is."""

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
    """Widths by arm, and their record.

    quantity: "params", "flops", "active" or "state"; overrides: by arm. An arm whose model cannot be
    built is left out: checking it gives the reason.
    """
    composed = {name: compose(line) for name, line in overrides.items()}
    arms = {name: each.config for name, each in composed.items() if not each.issues}
    arms = {name: config for name, config in arms.items() if isinstance(config["model"].get("dim"), int)}
    target = sizes.measure(arms[baseline], quantity) if baseline in arms else None
    if target is None:
        return {}, {}
    widths: dict[str, int] = {}
    record: MatchedSizes = {"by": quantity, "target": target, "arms": {}}
    for name, config in arms.items():
        along = axis(config)
        if along is None:
            continue
        if name == baseline:
            width, value = config["model"]["dim"], target
        elif solved := nearest(config, quantity, target, sizes, along):
            width, value = int(along.value(solved[0])), solved[1]
        else:
            continue
        widths[name] = width
        record["arms"][name] = {"dim": width, "value": value, "off": value / target - 1, "unit": int(along.unit)}
    return widths, record


def width_notes(record: MatchedSizes) -> list[str]:
    """The note about matched sizes, with the arms whose mismatch is large."""
    if not record:
        return []
    arms = record["arms"]
    matched = f"model.dim of each arm is solved to match {record['target']:,} {BUDGETS[record['by']]}"
    large = {name: arm["off"] for name, arm in arms.items() if abs(arm["off"]) > _LARGE}
    if large:
        listed = ", ".join(f"{name} {off:+.1%}" for name, off in large.items())
        units = {arms[name].get("unit", 1) for name in large}
        of_heads = f"multiples of the heads, here of {' and '.join(map(str, sorted(units)))}"
        widths = "whole numbers" if units == {1} else of_heads
        return [f"{matched}; widths are {widths}, so some sizes differ much: {listed}"]
    worst = max(arms, key=lambda name: abs(arms[name]["off"]))
    return [f"{matched}; the largest mismatch is {arms[worst]['off']:+.1%} ({worst})"]


class RungSize(TypedDict):
    """One arm at one rung.

    value: the size that is matched; params: the parameters; off: by which part of the rung its number is missed
    steps, flops: of training; None where the budget of the base counts epochs of data that were not read
    tokens: for each parameter, where the ladder says how many
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

    by: the size that the arms share at each rung; baseline: the arm of the file whose size that is; arms: by name
    """

    by: str
    baseline: str
    arms: dict[str, RungSize]


@dataclass
class Climb:
    """The widths and steps of a ladder.

    overrides: by arm, what makes it that of its rung; sizes: of each arm; refused: arm -> why it has no such size
    """

    overrides: dict[str, list[str]] = field(default_factory=dict)
    sizes: LadderSizes = field(default_factory=LadderSizes)
    refused: dict[str, str] = field(default_factory=dict)


def training_samples(config: Node, train_size: Callable[[], int | None]) -> float | None:
    """The samples that training processes; None where the length of an epoch is unknown.

    train_size: the samples of the training split, where they are known
    """
    trainer, batch = config["trainer"], config["data"].get("batch_size")
    if not isinstance(batch, int):
        return None
    steps, epochs = trainer.get("max_steps"), trainer.get("max_epochs")
    limits = [float(steps)] if steps is not None else []
    if epochs is not None:
        length = train_size()
        per_epoch = [] if length is None else [max(1, length // batch)]
        per_epoch += [trainer[limit] for limit in ("limit_train", "overfit") if trainer.get(limit)]
        limits += [float(min(per_epoch) * epochs)] if per_epoch else []
    return min(limits) * batch if limits else None


def solve_rungs(
    ladder: Ladder,
    match: str | None,
    baseline: str,
    arms: dict[str, Composed],
    sizes: ModelSizes,
    train_size: Callable[[Node], int | None],
) -> Climb:
    """Return the widths and steps of every arm at every rung. Raises UserError where the baseline has none.

    match: the size that arms share with the baseline at each rung; None is what the rungs are numbers of
    baseline: an arm of the file; arms: of the file, composed without a rung
    """
    rungs, kind = ladder[ladders.kind(ladder)], ladders.kind(ladder)
    climb = Climb(sizes={"by": match or kind, "baseline": baseline, "arms": {}})
    configs = {name: one.config for name, one in arms.items() if not one.issues}
    if baseline not in configs:
        return climb  # checking it gives the reasons
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
            steps = [f"trainer.max_steps={size['steps']}", "trainer.max_epochs=null"]
            climb.overrides[arm] = [f"model.dim={size['dim']}", *(steps if "tokens_per_param" in ladder else [])]
    for name in configs:
        _refuse_equal(name, [label(rung) for rung in rungs], climb, is_baseline=name == baseline)
    return climb


def _refuse_equal(name: str, labels: Sequence[str], climb: Climb, *, is_baseline: bool) -> None:
    """Refuse the rungs of an arm that have the width of the rung below. Raises UserError for those of the baseline."""
    below: dict[int, str] = {}
    for rung in labels:
        arm = ladders.at_rung(Arm(name), rung).name
        if arm not in climb.sizes["arms"]:
            continue
        dim = climb.sizes["arms"][arm]["dim"]
        if (other := below.setdefault(dim, rung)) != rung:
            text = f"ladder: the rungs {other} and {rung} of {name} both have model.dim={dim}; set them farther apart"
            if is_baseline:
                raise UserError(text)
            climb.refused[arm] = text
            del climb.sizes["arms"][arm], climb.overrides[arm]


@dataclass
class _Rungs:
    """Solves one arm at one rung."""

    ladder: Ladder
    by: str
    sizes: ModelSizes
    train_size: Callable[[Node], int | None]

    def baseline(self, name: str, config: Node, rung: float) -> RungSize:
        """The baseline at a rung. Raises UserError where no width has that number."""
        along = self._axis(name, config)

        def count(n: int) -> int | None:
            at = along.put(config, n)
            params = self.sizes.measure(at, "params")
            if "flops" not in self.ladder or params is None:
                return params
            cost = self._cost(at)
            return None if cost is None else round(cost * self._samples(name, at, params))

        search = SizeSearch(count, round(rung), LARGEST["dim"] / along.unit)
        n = search.solve(along.current)
        value = None if n is None else search.counts[n]
        if n is None or value is None:
            reason = self.sizes.failure(along.put(config, along.current), "params")
            raise UserError(
                f"ladder: no model of {name} can be built near {along.key}={along.value(along.current)}"
                + (f" ({reason})" if reason else "")
            )
        if not rung / MAX_FACTOR <= value <= rung * MAX_FACTOR:
            raise UserError(
                f"ladder: {self._rung(rung)} are out of reach of {name} by {along.key}; the nearest is "
                f"{along.value(n):g}: {value:.3g}"
            )
        return self._size(name, along.put(config, n), rung, None)

    def other(self, name: str, config: Node, rung: float, base: RungSize) -> RungSize:
        """Another arm at a rung, of the baseline's size. Raises UserError where no width has it."""
        along, target = self._axis(name, config), base["value"]
        solved = nearest(config, self.by, target, self.sizes, along)
        if solved is None:
            reason = self.sizes.failure(along.put(config, along.current), self.by)
            raise UserError(f"ladder: no width (model.dim) gives a model that can be counted ({reason})")
        n, value = solved
        if not target / MAX_FACTOR <= value <= target * MAX_FACTOR:
            raise UserError(
                f"ladder: the baseline's {target:,} {BUDGETS[self.by]} at {self._rung(rung)} are out of reach by "
                f"{along.key}; the nearest is {along.value(n):g}: {value:,}"
            )
        return self._size(name, along.put(config, n), rung, base)

    def _axis(self, name: str, config: Node) -> Any:
        along = axis(config)
        if along is None:
            raise UserError(f"ladder: {name} has no model.dim to solve for")
        return along

    def _size(self, name: str, config: Node, rung: float, base: RungSize | None) -> RungSize:
        """The sizes and steps of a config of the width of its rung."""
        params, value, cost = self.sizes.measure(config, "params"), self.sizes.measure(config, self.by), None
        if params is None or value is None:
            raise UserError(f"ladder: {name} cannot be counted ({self.sizes.failure(config, self.by)})")
        cost, batch = self._cost(config), config["data"].get("batch_size")
        if cost is None:
            reason = self.sizes.failure(config, "flops")
            raise UserError(f"ladder: the FLOPs of {name} cannot be counted ({reason})")
        samples: float | None
        if "tokens_per_param" not in self.ladder:
            samples = training_samples(config, partial(self.train_size, config))
        elif not isinstance(batch, int):
            raise UserError(f"ladder: {name} has no data.batch_size, from which steps follow")
        elif "flops" in self.ladder:
            samples = rung / cost
        elif base is not None and base["steps"] is not None:
            samples = base["steps"] * batch
        else:
            samples = self._samples(name, config, params)
        steps = None if samples is None or not isinstance(batch, int) else round(samples / batch)
        if steps is not None and steps < FEWEST_STEPS and "tokens_per_param" in self.ladder:
            raise UserError(
                f"ladder: {name} would train {steps} steps at {self._rung(rung)}; the fewest are {FEWEST_STEPS}: "
                "choose larger rungs, or a smaller data.batch_size"
            )
        flops = None if steps is None else float(cost * steps * batch)
        reached = flops if "flops" in self.ladder else params
        off = 0.0 if reached is None else reached / rung - 1
        tokens = None
        if steps is not None and "tokens_per_param" in self.ladder:
            tokens = steps * batch * Components(config).tokens().max_len / params
        return RungSize(
            dim=config["model"]["dim"], value=value, params=params, off=off, steps=steps, flops=flops, tokens=tokens
        )

    def _cost(self, config: Node) -> int | None:
        """FLOPs of training on one sample."""
        forward = self.sizes.measure(config, "flops")
        return None if forward is None else TRAINING * forward

    def _samples(self, name: str, config: Node, params: int) -> float:
        """The samples with so many tokens for each parameter. Raises UserError where tokens are not those of a text."""
        components = Components(config)
        spec, tokens = components.data.spec, components.tokens()
        kinds = {"texts with a source": spec.source is not None, "labelled texts": spec.target is not None}
        kinds |= {"texts of different lengths": tokens.variable}
        what = next((what for what, is_so in kinds.items() if is_so), None)
        if spec.modality != "text" or what:
            raise UserError(
                f"ladder: tokens_per_param counts the tokens of running text, and the data of {name} are "
                f"{spec.things if spec.modality != 'text' else what}; write ladder: {{params: [1e4, 3e4, 1e5, 3e5]}}, "
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
    """What a reader of a ladder should know: sizes that are off, one rate for all widths, data that is read again.

    configs: of one variant of each arm; tuned: the keys that are chosen for every arm
    """
    if ladder is None or not configs:
        return []
    shared = BUDGETS[sizes["by"]]
    notes = [f"model.dim of each arm is solved at each rung, so that all arms of a rung have the same {shared}"]
    if vocabulary := Components(next(iter(configs.values()))).tokens().vocabulary:
        notes[0] += f", counted with a vocabulary of {vocabulary:,}"
    large = [f"{name} {size['off']:+.1%}" for name, size in sizes["arms"].items() if abs(size["off"]) > _LARGE]
    if large:
        listed = ", ".join(large[:6]) + (f" and {len(large) - 6} more" if len(large) > 6 else "")
        notes[0] += f"; widths are multiples of the heads and steps whole numbers, so some miss their rung: {listed}"
    own = [ladders.at_rung(Arm(sizes["baseline"]), label(rung)).name for rung in ladder[ladders.kind(ladder)]]
    tokens = [float(size["tokens"] or 0) for name in own if (size := sizes["arms"].get(name)) and size["tokens"]]
    if tokens and max(tokens) > _UNEVEN * min(tokens):
        notes.append(
            f"widths are multiples of the heads, so that {sizes['baseline']} sees {min(tokens):.3g} to "
            f"{max(tokens):.3g} tokens a parameter, where the ladder says {ladder['tokens_per_param']:g}"
        )
    config = next(iter(configs.values()))
    if "optimizer.lr" not in tuned and "MuP" not in str((config.get("parametrization") or {}).get("_target_")):
        notes.append(
            f"every rung trains with optimizer.lr={config['optimizer'].get('lr')}, which may suit one width alone: "
            "base: [parametrization=mup] carries a rate over, and tune: {optimizer.lr: [...]} tries some at every rung"
        )
    again = {}
    for name, config in configs.items():
        there = train_size(config)
        samples = training_samples(config, partial(train_size, config))
        if samples and there and samples > there and "tokens_per_param" in ladder:
            again[name] = samples / there
    if again:
        most = max(again, key=lambda name: again[name])
        notes.append(
            f"{len(again)} of {len(configs)} arms read their training data more than once, {most} {again[most]:.1f} "
            "times; the law of a ladder is that of fresh data"
        )
    return notes
