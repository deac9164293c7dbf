"""The validation metric that stands for a sweep's test metric, and its direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from blockyard.config.instantiate import instantiate
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import locate
from blockyard.contracts import any_split
from blockyard.errors import UserError
from blockyard.evaluate.inside import DIRECTIONS as INSIDE
from blockyard.objective._text_scores import DIRECTIONS
from blockyard.objective._torchmetrics import import_torchmetrics
from blockyard.runs.metric_name import MetricName
from blockyard.sweep.plan.sizes import training_samples


def validation_metric(metric: str | None, config: Node, allow: list[str]) -> tuple[str, str]:
    """Return the validation metric of a sweep, val/NAME, and "max" or "min".

    A score of generated texts (test/written_cer) and a number from inside the model (test/inspect_outliers) exist on
    test alone. Their validation metric is the objective's own.

    metric: the sweep's metric, reported on test; None is the objective's own. It ends in `@4x` where the config
        evaluates sequences of that length, `@4loops` where it evaluates this number of loops, `@ema` where a callback
        of that name averages the weights, `@NAME` for a slice of the data, `@last5` for the mean of the last five
        evaluations
    Raises UserError where runs of this config do not measure it.
    """
    measured = MetricName.parse(metric or "")
    if measured.last:
        if measured.split == "test":
            raise UserError(
                f"metric: {metric} is a mean of evaluations, and test data is evaluated once, at the end; "
                f"write {measured.on('val')}"
            )
        validation, direction = validation_metric(str(measured.logged()), config, allow)
        return f"{validation}@{measured.variant}", direction
    import_torchmetrics(allow)
    objective = instantiate(config["objective"], allow)
    best, mode = objective.best()
    name = best if metric is None else metric.removeprefix("test/").removeprefix("val/")
    plain, at, after = name.partition("@")
    trainer = config.get("trainer") or {}
    factors = trainer.get("extrapolate") or []
    lengths = [f"{factor}x" for factor in sorted({1, *factors})] if factors else []
    loops = [f"{times}loops" for times in trainer.get("loops") or []]
    suffixes = [*lengths, *loops, *_averaging_callbacks(config)]
    data = instantiate(config["data"], allow).spec
    counts = range(data.classes or 0) if data.class_names else None
    unit = getattr(instantiate(config["tokenizer"], allow), "unit", None)  # of tokens of images
    if unit is None:
        split = any_split(class_counts=counts, units=(), bytes_per_token=1.0)
    else:
        split = any_split(class_counts=counts, units=(unit,), bytes_per_token=None)
    metrics = objective.metrics(split)
    if plain in metrics and plain != best and getattr(metrics[plain], "higher_is_better", None) is None:
        raise UserError(
            f"metric: {metric} has no better direction; its class says it: higher_is_better = True or False"
        )
    if name.startswith("written_"):
        return f"val/{best}", _written(metric, name.removeprefix("written_"), config)
    if name.startswith("inspect_"):
        return f"val/{best}", _inspected(metric, name.removeprefix("inspect_"), config)
    higher = getattr(metrics.get(plain), "higher_is_better", None)
    if plain == best:
        higher = mode == "max"
    of_slice = after in data.slices and (plain == best or data.mixed)
    if higher is None or (at and after not in suffixes and not of_slice):
        available: list[str] = []
        for key in sorted(metrics):
            available += [f"test/{key}", *(f"test/{key}@{suffix}" for suffix in suffixes)]
        for slice_name in data.slices:
            available += [f"test/{key}@{slice_name}" for key in (sorted(metrics) if data.mixed else [best])]
        hint = "; base: [trainer.extrapolate=[2,4]] evaluates longer sequences" if at and not lengths else ""
        raise UserError(
            f"metric: {metric} is not measured on validation and test; available: {', '.join(available)}{hint}"
        )
    return f"val/{name}", "max" if higher else "min"


def _written(metric: str | None, score: str, config: Node) -> str:
    """Return the better direction of a score of generated texts. Raises UserError where runs do not compute it."""
    if not (config.get("trainer") or {}).get("write"):
        raise UserError(
            f"metric: {metric} is a score of generated texts; base: [trainer.write=true] generates them at the end"
        )
    if score not in DIRECTIONS or str(metric).startswith("val/"):
        raise UserError(
            f"metric: {metric} is not a score of generated texts; available: "
            f"{', '.join(f'test/written_{key}' for key in DIRECTIONS)}"
        )
    return DIRECTIONS[score]


def _inspected(metric: str | None, name: str, config: Node) -> str:
    """Return the better direction of a number from inside the model. Raises UserError where runs do not measure it."""
    if name not in INSIDE or str(metric).startswith("val/"):
        available = ", ".join(f"test/inspect_{key}" for key in INSIDE)
        raise UserError(f"metric: {metric} is not measured inside a model; available: {available}")
    if name not in ((config.get("trainer") or {}).get("inspect") or ()):
        raise UserError(f"metric: {metric} is measured at the end with base: [trainer.inspect=[{name}]]")
    return INSIDE[name]


def _averaging_callbacks(config: Node) -> list[str]:
    """Return the names of the callbacks that average the weights."""
    names = []
    for name, node in (config.get("callbacks") or {}).items():
        if is_node(node) and getattr(locate(node["_target_"]), "averages", False):
            names.append(name)
    return names


def too_few_evaluations(names: Iterable[str], config: Node, train_size: Callable[[], int | None]) -> str | None:
    """Return why a run has no value of a metric among `names` that is a mean of last evaluations, or None.

    train_size: returns the samples of the training split; None where unknown, and then a run in epochs is not refused
    """
    for name in names:
        last = MetricName.parse(name).last
        if not last:
            continue
        count = _evaluations(config, train_size)
        if count is not None and count < last:
            return (
                f"metric: {name} is the mean of {last} evaluations, and a run has {count}; "
                "base: [trainer.eval_every=STEPS] evaluates more often"
            )
    return None


def _evaluations(config: Node, train_size: Callable[[], int | None]) -> int | None:
    """Return the number of evaluations of a run; None where the length of an epoch is unknown."""
    trainer = config["trainer"]
    samples = training_samples(config, train_size)
    if samples is None:
        return None
    batch_size = config["data"]["batch_size"]
    every = trainer.get("eval_every")
    if every is None:
        epoch = training_samples({**config, "trainer": {**trainer, "max_steps": None, "max_epochs": 1}}, train_size)
        if epoch is None:
            return None
        every = epoch / batch_size
    return math.ceil(samples / batch_size / every)
