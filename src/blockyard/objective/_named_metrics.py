"""Metrics of torchmetrics by name and of the user's own, beside those of an objective on classes or tokens.

    objective.metrics=[F1Score,CalibrationError]
    objective.metrics={top5: {metric: Accuracy, top_k: 5, average: micro}}
    objective.metrics={recall_of_1: {_target_: mypackage.metrics.Recall, index: 1}} allow=[mypackage]

A name is a class of torchmetrics.classification without its `Multiclass`; options are held to its signature. A class of
the user's own derives from `torchmetrics.Metric`. All get probabilities (M, V) float64 and targets (M,) int64 of the
targets that count. Importing torchmetrics takes seconds, so this module is imported only if a name is given.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torchmetrics.classification
from torch import Tensor
from torchmetrics import Metric

from blockyard.contracts import Batch
from blockyard.errors import did_you_mean, first_line, fold

# A class of torchmetrics and its options; or a function that builds a metric of the user's own, and None.
MetricSpec = tuple[Callable[..., Metric], dict[str, Any] | None]

PREFIX = "Multiclass"
OPTION = "objective.metrics"
OBJECTIVE_COLUMNS = ("loss", "accuracy", "exact", "perplexity", "macro_f1")
_SET_HERE = ("self", "num_classes", "ignore_index", "validate_args", "kwargs", "input_format")
_TRIAL_CLASSES = 12  # a metric is computed once before a run, on as many classes
_TRIAL_SAMPLES = 24


class NamedMetric(Metric):
    """A metric of torchmetrics over the targets that count. The first logits give the number of classes.

    kind: a class of torchmetrics; or with options None, a function that builds a metric of the user's own
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, kind: Callable[..., Metric], options: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.kind = kind
        self.options = options
        declared: Any = kind if options is not None else kind()
        # torchmetrics guards this name against plain assignment.
        object.__setattr__(self, "higher_is_better", declared.higher_is_better)
        self.inner: Metric | None = None
        self.seen: Tensor
        self.add_state("seen", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (..., V) logits; target: (...) int64."""
        if self.inner is None:
            options: dict[str, Any] = {}
            if self.options is not None:
                options = {"num_classes": prediction.shape[-1], "validate_args": False, **self.options}
            self.inner = self.kind(**options).to(prediction.device)
            self.inner.sync_on_compute = self.sync_on_compute
        logits = prediction.flatten(0, -2)
        target = target.flatten()
        counted = target != Batch.ignore
        self.seen += counted.sum()
        if bool(counted.any()):  # some metrics of torchmetrics do not take an empty batch
            # Double, so that confident predictions do not tie.
            self.inner.update(logits[counted].double().softmax(-1), target[counted])

    def compute(self) -> Tensor:
        """The value over all updates; NaN without any target."""
        if self.inner is None or not int(self.seen):
            return torch.tensor(torch.nan)
        return torch.as_tensor(self.inner.compute())


def named_metrics(wanted: Sequence[str] | Mapping[str, Any]) -> dict[str, MetricSpec]:
    """Return the class and the options of each metric, by its column. Raises ValueError for an unknown name or option.

    wanted: names; or by column a name with options, or a function that builds a metric of the user's own
    """
    if isinstance(wanted, Mapping):
        entries = {str(column): entry if callable(entry) else dict(entry) for column, entry in wanted.items()}
    else:
        entries = {_snake(_spelled(name)): {"metric": name} for name in wanted}
    specs: dict[str, MetricSpec] = {}
    for column, entry in entries.items():
        if callable(entry):
            _check_column(column, "a metric of your own", "{NAME: {_target_: ...}}")
            specs[column] = entry, None
        else:
            specs[column] = _checked(column, entry)
    return specs


def check_classes(named: Mapping[str, MetricSpec], classes: int) -> None:
    """Raise ValueError for options that do not fit the number of classes, such as a top_k above it.

    A metric of the user's own is computed once.
    """
    for column, (kind, options) in named.items():
        if options is None:
            _try_own(column, kind, classes)
            continue
        try:
            kind(num_classes=classes, **options)
        except ValueError as error:
            raise ValueError(f"{OPTION}: {column} does not work with {classes} classes: {first_line(error)}") from error


def _try_own(column: str, build: Callable[..., Metric], classes: int) -> None:
    """Compute a metric of the user's own once. Raises ValueError if it fails, or its value is not one number."""
    with torch.device("cpu"):
        index = torch.arange(_TRIAL_SAMPLES)
        scores = (index[:, None] * classes + torch.arange(classes)).double().sin().softmax(-1)
        try:
            metric = build()
            metric.update(scores, index % classes)
            value = torch.as_tensor(metric.compute())
        except Exception as error:  # a user's own class may fail in any way
            shape = f"probabilities ({_TRIAL_SAMPLES}, {classes}) and targets ({_TRIAL_SAMPLES},)"
            raise ValueError(
                f"{OPTION}.{column} fails on {shape}: {type(error).__name__}: {first_line(error)}"
            ) from error
    if value.numel() != 1:
        raise ValueError(f"{OPTION}.{column} gives {value.numel()} numbers; a metric gives one")


def _check_column(column: str, name: str, example: str) -> None:
    if column in OBJECTIVE_COLUMNS or not re.fullmatch(r"[a-zA-Z]\w*", column):
        why = "which objectives have themselves" if column in OBJECTIVE_COLUMNS else "which is not letters and digits"
        raise ValueError(f"{OPTION}: {name} would be called {column!r}, {why}; name it: {example}")


def _checked(column: str, options: dict[str, Any]) -> MetricSpec:
    if "metric" not in options:
        raise ValueError(f"{OPTION}.{column} names no metric; write {{{column}: {{metric: F1Score}}}}")
    name = _spelled(str(options.pop("metric")))
    _check_column(column, name, f"{{macro_{_snake(name)}: {{metric: {name}}}}}")
    kind: type[Metric] = getattr(torchmetrics.classification, f"{PREFIX}{name}")
    declared = [option for option in inspect.signature(kind.__init__).parameters if option not in _SET_HERE]
    for key in options:
        if key not in declared:
            has = f"it has {fold(declared)}" if declared else "it has none"
            raise ValueError(f"{OPTION}.{column}.{key}: {name} has no such option{did_you_mean(key, declared)}; {has}")
    _try(column, name, kind, options)
    return kind, options


def _try(column: str, name: str, kind: type[Metric], options: Mapping[str, Any]) -> None:
    """Compute the metric once. Raises ValueError if its options are refused, or its value is not one number."""
    top = options.get("top_k")
    classes = (
        max(_TRIAL_CLASSES, top + 1) if isinstance(top, int) else _TRIAL_CLASSES
    )  # a top_k must be below the classes
    scores = torch.arange(float(_TRIAL_SAMPLES * classes)).reshape(_TRIAL_SAMPLES, classes).sin().softmax(-1)
    try:
        metric = kind(num_classes=classes, **options)
        metric.update(scores, torch.arange(_TRIAL_SAMPLES) % classes)
        value = metric.compute()
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{OPTION}.{column}: {name} refuses its options: {first_line(error)}") from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            f"{OPTION}.{column}: {name} gives more than one number; choose another metric, or average: macro"
        )


def _spelled(name: str) -> str:
    """Return the name as torchmetrics spells it, from any spelling of it. Raises ValueError for an unknown one."""
    classes = [kind for kind in dir(torchmetrics.classification) if kind.startswith(PREFIX)]
    names = [kind.removeprefix(PREFIX) for kind in classes]
    plain = name.removeprefix(PREFIX).replace("_", "").lower()
    match = next((spelling for spelling in names if spelling.lower() == plain), None)
    if match is None and "." in name:
        raise ValueError(f"{OPTION}: torchmetrics has no metric {name!r}; a class of your own is {{_target_: {name}}}")
    if match is None:
        hint = did_you_mean(name, names)
        raise ValueError(f"{OPTION}: torchmetrics has no metric {name!r} of classes{hint}; it has {', '.join(names)}")
    return match


def _snake(name: str) -> str:
    """Return a name in snake case: F1Score -> f1_score, AUROC -> auroc."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
