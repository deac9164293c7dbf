"""Baselines of the objectives: rules that need no training, and simple models, each with the objective's own metrics.

The cost is bounded: of a large split, samples at equal distances are tested, and a model is fitted on a limited number
of them. A note beside the metrics says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import (
    Baseline,
    Baselines,
    Batch,
    HasBaselines,
    Objective,
    ReadsOutputs,
    SimpleModel,
    Split,
    Standardized,
    TextPairs,
)
from blockyard.data.splits.order import take
from blockyard.data.splits.simple_models import (
    equally_spaced,
    linear,
    majority_model,
    most_of_classes,
    nearest_centroid,
    nearest_sources,
    ridge,
    sampled,
)
from blockyard.data.splits.split import known_classes
from blockyard.objective._text_scores import bleu, chrf

if TYPE_CHECKING:
    import torchmetrics

BATCH = 512
MAX_TESTED_SAMPLES = 10_000  # samples of the split that a model predicts
MAX_RULED_SAMPLES = 200_000  # samples of the split that a rule predicts
MAX_FITTED_SAMPLES = 5_000  # training samples of a model of features
MAX_JUDGED_OUTPUTS = 500  # outputs that a judge reads
MAX_READ_VALUES = 200_000_000  # values of inputs that are read of a split
MIN_READ_SAMPLES = 200  # samples that are read of any size
MAX_FEATURES = 1024
MAX_VOCABULARY = 4096  # token ids with counts of their pairs
_STEPS = 64  # steps of a series that are features
_LOGITS = 2**24  # logits in memory at a time
MAX_TESTED_TOKENS = 2**19  # of texts, whose pairs of tokens have logits of the whole vocabulary
OF_LOSS = ("loss", "perplexity", "bits_per_byte")  # metrics of texts that follow from the mean cross entropy
_UNSEEN_COUNT = 1e-3  # count of a token, or a pair of tokens, that is not in the training split

Rules = Callable[[Batch], Iterable[tuple[str, Tensor]]]


def chosen(split: Split, most: int) -> Tensor:
    """Return the samples of a split that are read, at equal distances: all of them if they are few and small."""
    values = split.batch(torch.zeros(1, dtype=torch.long), None).inputs.numel()
    return equally_spaced(len(split), min(most, max(MAX_READ_VALUES // max(values, 1), MIN_READ_SAMPLES)))


def rules(split: Split, objective: Objective, names: Sequence[str], predict: Rules) -> Iterator[Baseline]:
    """Yield a baseline for each of `names`. `predict` yields the predictions of all for a batch, in one pass."""
    tested = chosen(split, MAX_RULED_SAMPLES)

    @cache
    def values() -> dict[str, dict[str, float]]:
        metrics: dict[str, dict[str, torchmetrics.Metric]] = {name: dict(objective.metrics(split)) for name in names}
        for order in tested.split(BATCH):
            batch = objective.ready(take(split, order, None))
            for name, prediction in predict(batch):
                for metric in metrics[name].values():
                    metric.update(prediction, batch.target)
        return {name: computed(metrics_of_rule) for name, metrics_of_rule in metrics.items()}

    for name in names:
        yield Baseline(name, partial(lambda name: values()[name], name), sampled("tested", len(tested), len(split)))


def computed(metrics: dict[str, torchmetrics.Metric]) -> dict[str, float]:
    """Return the values of metrics."""
    return {name: float(metric.compute()) for name, metric in metrics.items()}


def models(split: Split, objective: Objective, simple: Iterable[SimpleModel]) -> Iterator[Baseline]:
    """Yield a baseline for each simple model of the split's task."""
    tested = chosen(split, MAX_TESTED_SAMPLES)

    def values(model: SimpleModel) -> dict[str, float]:
        predict = model.fit()
        metrics = {name: metric for name, metric in objective.metrics(split).items() if name not in model.without}
        for order in tested.split(BATCH):
            target = objective.ready(take(split, order, None)).target
            prediction = predict(order)
            for metric in metrics.values():
                metric.update(prediction, target)
        return computed(metrics)

    for model in simple:
        note = _joined(model.note, sampled("tested", len(tested), len(split)))
        yield Baseline(model.name, partial(values, model), note)


def _joined(*notes: str | None) -> str | None:
    """Return the notes that there are, in one."""
    return "; ".join(filter(None, notes)) or None


def of_classes(split: Split, train: Split | None, objective: Objective, classes: int | None) -> Baselines:
    """Return the split's own models, the most frequent class, the nearest centroid and a linear model.

    train: the training split; None leaves out models that are fitted on it
    classes: V; None if it is unknown
    """
    simple = list(split.baselines()) if isinstance(split, HasBaselines) else []
    if train is not None and classes is not None:
        simple += _class_models(split, train, classes)
    return Baselines(models(split, objective, simple))


def _class_models(split: Split, train: Split, classes: int) -> Iterator[SimpleModel]:
    targets = known_classes(train)
    if targets is not None:
        yield majority_model(targets.bincount(minlength=classes))
    if not has_features(split):
        return
    features = Features(train, split)
    count = len(features.chosen)

    def centroid() -> Callable[[Tensor], Tensor]:
        predict = nearest_centroid(*features.fitted, classes)
        return lambda order: predict(features.of(split, order))

    def regression() -> Callable[[Tensor], Tensor]:
        values, target = features.fitted
        some = equally_spaced(count, most_of_classes(classes, count))
        predict = linear(values[some], target[some], classes, iterations=100)
        return lambda order: predict(features.of(split, order))

    yield SimpleModel("nearest_centroid", centroid, sampled("fitted", count, len(train)), ("loss",))
    yield SimpleModel("linear", regression, sampled("fitted", most_of_classes(classes, count), len(train)))


def of_values(split: Split, train: Split | None, objective: Objective) -> Baselines:
    """Return the mean of the training split and linear models.

    The split's own models come before the model that is fitted on the training split.
    """
    if not isinstance(split, Standardized):
        return Baselines()

    def mean(batch: Batch) -> Iterator[tuple[str, Tensor]]:
        assert isinstance(batch.target, Tensor)
        yield "mean", torch.zeros_like(batch.target.flatten(1))  # targets are standardized

    baselines = list(rules(split, objective, ["mean"], mean))
    if isinstance(split, HasBaselines):
        baselines += models(split, objective, split.baselines())
    if train is not None and has_features(split):
        features = Features(train, split)

        def fit() -> Callable[[Tensor], Tensor]:
            values, target = features.fitted
            predict = ridge(values, target.flatten(1))
            return lambda order: predict(features.of(split, order))

        note = sampled("fitted", len(features.chosen), len(train))
        baselines += models(split, objective, [SimpleModel("linear", fit, note)])
    return Baselines(baselines)


class Features:
    """Features of the samples of a training split, and of another one. chosen: the training samples to fit on."""

    def __init__(self, train: Split, split: Split) -> None:
        self.train = train
        self.chosen = chosen(train, MAX_FITTED_SAMPLES)
        self._known: dict[int, Tensor] = {}

    @cached_property
    def fitted(self) -> tuple[Tensor, Tensor]:
        """Features (m, F) and targets (m, ...) of the training samples."""
        batches = [self.train.batch(order, None) for order in self.chosen.split(BATCH)]
        targets = [batch.target for batch in batches]
        assert all(isinstance(target, Tensor) for target in targets)
        return torch.cat([features(batch) for batch in batches]), torch.cat(targets)  # type: ignore[arg-type]

    def of(self, split: Split, order: Tensor) -> Tensor:
        """Return the features (B, F) of samples of another split, kept for the next model."""
        first = int(order[0])
        if first not in self._known:
            self._known[first] = features(split.batch(order, None))
        return self._known[first]


def has_features(split: Split) -> bool:
    """Return whether `features` exist for the samples of a split."""
    batch = split.batch(torch.zeros(1, dtype=torch.long), None)
    if not isinstance(batch.target, Tensor) or batch.source is not None:
        return False
    if batch.pairs is not None:
        return True
    inputs = batch.inputs
    if not inputs.is_floating_point():
        return False  # token ids, and sounds as levels
    return inputs.ndim in (3, 4) or (inputs.ndim == 2 and batch.lengths is None and inputs.shape[1] <= MAX_FEATURES)


def features(batch: Batch) -> Tensor:
    """Return at most `MAX_FEATURES` numbers for each sample, (B, F).

    Images give averages over rectangles, series a number of steps at equal distances, graphs the number of nodes with
    each code in each of their columns, and vectors themselves.
    """
    inputs = batch.inputs
    if batch.pairs is not None:
        return _node_counts(inputs, batch.lengths)
    if inputs.ndim == 4:
        side = math.isqrt(MAX_FEATURES // inputs.shape[1])
        size = (min(inputs.shape[2], side), min(inputs.shape[3], side))
        return F.adaptive_avg_pool2d(inputs, size).flatten(1)
    if inputs.ndim == 3:
        return _steps(inputs, batch.lengths)
    return inputs


def _steps(series: Tensor, lengths: Tensor | None) -> Tensor:
    """Return series (B, T, C) stretched linearly over a number of steps, missing values as zero: (B, steps C)."""
    count = max(min(_STEPS, MAX_FEATURES // series.shape[2]), 1)
    if lengths is None:
        lengths = torch.full((len(series),), series.shape[1])
    step = torch.linspace(0, 1, count) * (lengths[:, None] - 1)  # (B, steps)
    low = step.floor().long()
    high = torch.minimum(low + 1, lengths[:, None] - 1)
    share = (step - low)[..., None]  # (B, steps, 1)
    values = series.nan_to_num()
    batch = torch.arange(len(series))[:, None]
    stretched = values[batch, low] * (1 - share) + values[batch, high] * share  # (B, steps, C)
    return stretched.flatten(1)[:, :MAX_FEATURES]


def _node_counts(nodes: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the number of nodes with each code: (B, N, C) -> (B, F). Large codes count together."""
    size, count, columns = nodes.shape
    most = max((MAX_FEATURES - 1) // columns, 1)
    real = torch.ones(size, count) if lengths is None else (torch.arange(count) < lengths[:, None]).float()  # (B, N)
    counts = torch.zeros(size, columns, most)
    for column in range(columns):
        counts[:, column].scatter_add_(1, nodes[:, :, column].clamp(0, most - 1), real)
    return torch.cat([counts.flatten(1), real.sum(1, keepdim=True)], 1)


def of_image_tokens(split: Split, objective: Objective) -> Baselines:
    """Return two rules of the token ids of images; none for a split without `frequencies`.

    uniform: all token ids have one probability
    independent: a token id has its frequency at each index of the training split
    """
    frequencies: Tensor | None = getattr(split, "frequencies", None)  # (N, V)
    if frequencies is None:
        return Baselines()
    tested = chosen(split, MAX_RULED_SAMPLES)

    def independent() -> dict[str, float]:
        surprise = -frequencies.double().log()  # nats
        total, count = 0.0, 0
        for order in tested.split(BATCH):
            target = objective.ready(take(split, order, None)).target
            assert isinstance(target, Tensor)
            target = target.flatten(1).floor().long()  # levels without the noise of patch_density
            total += float(surprise.T.gather(0, target).sum())
            count += target.numel()
        return _of_nats(objective.metrics(split), total / count)

    uniform = math.log(frequencies.shape[1])
    return Baselines(
        [
            Baseline("uniform", lambda: _of_nats(objective.metrics(split), uniform)),
            Baseline("independent", independent, sampled("tested", len(tested), len(split))),
        ]
    )


def _of_nats(metrics: dict[str, torchmetrics.Metric], nats: float) -> dict[str, float]:
    """Return the values of all metrics for a mean cross entropy in nats."""
    # Perplexity and bits share the sums of the loss, so that setting these sets all of them.
    metrics["loss"].total = torch.tensor(nats).double()
    metrics["loss"].count = torch.tensor(1)
    for metric in metrics.values():
        metric._update_count = 1  # torchmetrics warns of a metric without one
    return {name: value for name, value in computed(metrics).items() if not math.isnan(value)}


def of_next_tokens(split: Split, train: Split | None, objective: Objective) -> Baselines:
    """Return a text's next token by its frequency alone, and by the token before it; none without a training split.

    unigram: a token has its frequency in the training split
    word_before: a token has the frequency with which it follows the one before it there
    Each token, or pair of tokens, counts a thousandth more than it occurs (additive smoothing).
    """
    if train is None:
        return Baselines()
    length = split.batch(torch.zeros(1, dtype=torch.long), None).inputs.shape[1]
    tested = chosen(split, min(MAX_TESTED_SAMPLES, max(1, MAX_TESTED_TOKENS // length)))
    fitted = chosen(train, MAX_TESTED_SAMPLES)
    notes = _joined(sampled("fitted", len(fitted), len(train)), sampled("tested", len(tested), len(split)))
    return Baselines(
        [
            Baseline("unigram", lambda: _unigram(split, train, fitted, tested, objective), notes),
            Baseline("word_before", lambda: _word_before(split, train, fitted, tested, objective), notes),
        ]
    )


def of_written_texts(split: Split, train: Split | None, objective: Objective) -> Baselines:
    """Return rivals of a model that writes from a source: the word before alone, a copy, the nearest source.

    word_before: the token that follows another one most often in the training split, without the source
    copy_source: the source itself is the text
    nearest_source: the text of the training source with the most similar words (tf-idf)

    The last two also have BLEU and chrF, under the names of `eval write=true`.
    """
    tested = chosen(split, MAX_TESTED_SAMPLES)
    note = sampled("tested", len(tested), len(split))
    fitted = None if train is None else chosen(train, MAX_TESTED_SAMPLES)
    baselines = []
    if train is not None and fitted is not None:
        notes = _joined(sampled("fitted", len(fitted), len(train)), note)
        baselines.append(Baseline("word_before", lambda: _word_before(split, train, fitted, tested, objective), notes))
    if isinstance(split, TextPairs) and _source_is_text(split):
        baselines.append(Baseline("copy_source", lambda: _copied(split, tested), note))
        if train is not None and fitted is not None and isinstance(train, TextPairs):
            baselines.append(Baseline("nearest_source", lambda: _nearest(split, train, fitted, tested), notes))
    return Baselines(baselines)


def of_written_outputs(split: ReadsOutputs, train: Split | None) -> Baselines:
    """Return a judge's scores of the output of the training source with the most similar words (tf-idf).

    The metrics have the same names as of a model's outputs in `eval write=true`.
    """
    if not isinstance(train, ReadsOutputs):
        return Baselines()
    tested = equally_spaced(len(split.pairs), MAX_JUDGED_OUTPUTS)
    fitted = equally_spaced(len(train.pairs), MAX_FITTED_SAMPLES)

    def nearest() -> dict[str, float]:
        find = nearest_sources([train.pairs[index][0] for index in fitted.tolist()])
        pairs = [split.pairs[index] for index in tested.tolist()]
        outputs = train.outputs(fitted[find([source for source, _ in pairs])])
        scores = judged(split, split.read(outputs), [reference for _, reference in pairs])
        return {f"written_{name}": value for name, value in scores.items()}

    note = _joined(sampled("fitted", len(fitted), len(train.pairs)), sampled("tested", len(tested), len(split.pairs)))
    return Baselines([Baseline("nearest_source", nearest, note)])


def judged(split: ReadsOutputs, readings: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the scores of readings of the judge of a split: exact match, and the split's own scores."""
    exact = sum(reading == reference for reading, reference in zip(readings, references, strict=True)) / len(readings)
    return {"exact": exact, **split.score(readings, references)}


def _source_is_text(split: Split) -> bool:
    source = split.batch(torch.zeros(1, dtype=torch.long), None).source
    return source is None or not source.is_floating_point()


def _unigram(split: Split, train: Split, fitted: Tensor, tested: Tensor, objective: Objective) -> dict[str, float]:
    counts = _token_counts(train, fitted, objective)
    tested_counts = _token_counts(split, tested, objective)
    size = max(len(counts), len(tested_counts))
    counts = F.pad(counts, (0, size - len(counts)))
    tested_counts = F.pad(tested_counts, (0, size - len(tested_counts)))
    smoothed = counts + _UNSEEN_COUNT
    surprise = smoothed.sum().log() - smoothed.log()  # nats
    total = tested_counts.sum()
    metrics = objective.metrics(split)
    of_loss = {name: metrics[name] for name in OF_LOSS if name in metrics}
    values = _of_nats(of_loss, float((tested_counts * surprise).sum() / total))
    return values | {"accuracy": float(tested_counts[counts.argmax()] / total)}


def _token_counts(split: Split, samples: Tensor, objective: Objective) -> Tensor:
    """Return how often each token id is a target of some samples, (V,) float64."""
    counts = torch.zeros(0, dtype=torch.float64)
    for order in samples.split(BATCH):
        target = _targets(objective.ready(take(split, order, None)))
        more = target[target != Batch.ignore].bincount(minlength=len(counts))
        counts = F.pad(counts, (0, len(more) - len(counts))) + more
    return counts


def _word_before(split: Split, train: Split, fitted: Tensor, tested: Tensor, objective: Objective) -> dict[str, float]:
    counts = torch.zeros(0, 0)
    for order in fitted.split(BATCH):
        batch = objective.ready(take(train, order, None))
        target = _targets(batch)
        counted = target != Batch.ignore
        before, after = batch.inputs[counted], target[counted]
        counts = _grown(counts, int(max(before.max(), after.max())) + 1)
        counts.index_put_((before, after), torch.ones(()), True)
    metrics = dict(objective.metrics(split))
    for order in tested.split(BATCH):
        batch = objective.ready(take(split, order, None))
        counts = _grown(counts, int(max(batch.inputs.max(), _targets(batch).max())) + 1)
    table = (counts + _UNSEEN_COUNT).log()
    table = table - table.logsumexp(1, keepdim=True)
    for order in tested.split(max(1, _LOGITS // (len(table) * batch.inputs.shape[1]))):
        batch = objective.ready(take(split, order, None))
        logits = table[batch.inputs]  # (B, N, V)
        for metric in metrics.values():
            metric.update(logits, batch.target)
    return computed(metrics)


def _targets(batch: Batch) -> Tensor:
    assert isinstance(batch.target, Tensor)
    return batch.target


def _grown(counts: Tensor, size: int) -> Tensor:
    """Return the counts grown to `size` token ids. Raises ValueError for more than `MAX_VOCABULARY`."""
    if size > MAX_VOCABULARY:
        raise ValueError(f"{size:,} token ids or more; pairs of tokens are counted for at most {MAX_VOCABULARY:,}")
    grown = max(size - len(counts), 0)
    return F.pad(counts, (0, grown, 0, grown))


def _copied(split: Any, tested: Tensor) -> dict[str, float]:
    pairs = [split.pairs[index] for index in tested.tolist()]
    return _of_texts([source for source, _ in pairs], [target for _, target in pairs])


def _nearest(split: Any, train: Any, fitted: Tensor, tested: Tensor) -> dict[str, float]:
    fitted_pairs = [train.pairs[index] for index in fitted.tolist()]
    nearest = nearest_sources([source for source, _ in fitted_pairs])
    written: list[str] = []
    references: list[str] = []
    for order in tested.split(BATCH):
        pairs = [split.pairs[index] for index in order.tolist()]
        written += [fitted_pairs[index][1] for index in nearest([source for source, _ in pairs])]
        references += [target for _, target in pairs]
    return _of_texts(written, references)


def _of_texts(written: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    same = sum(text == reference for text, reference in zip(written, references, strict=True))
    return {
        "exact": same / len(references),
        "written_exact": same / len(references),
        "written_bleu": bleu(written, references),
        "written_chrf": chrf(written, references),
    }
