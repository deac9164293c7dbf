"""Predictions of a model for each sample of a split, collected while the metrics are computed.

classes   logits (B, V)      -> the five most probable classes with their probabilities, and the cross entropy
values    outputs (B, V)     -> the values in the units of the data, and the objective's loss of each sample
tokens    logits (B, N, V)   -> the cross entropy of a sequence, its number of targets, and the text that it is from
other     a reason why there is no one prediction for a sample
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, HasDocuments, Objective, Split, Standardized
from blockyard.runs.predictions_file import MAX_BYTES, SLICE, Kind, SamplePredictions

TOP = 5  # classes that are kept of each sample
_NUMBER = 4  # bytes of each int32 and float32


class SampleRecorder:
    """Collects predictions batch by batch; `evaluate(..., observe=recorder)` calls it.

    total: samples of the pass; of more than fit into MAX_BYTES, evenly spaced ones are kept
    reason: why nothing is collected, or None
    """

    def __init__(self, objective: Objective, split: Split, spec: DataSpec, *, total: int) -> None:
        self.objective, self.split, self.spec, self.total = objective, split, spec, total
        self.kind: Kind | None = None
        self.reason: str | None = _refusal(objective)
        self._parts: list[dict[str, Tensor]] = []

    def __call__(self, prediction: Tensor, batch: Batch) -> None:
        """Collect a prepared batch. prediction: (B, V) or (B, N, V); samples of index -1 are dummies."""
        if self.reason is None and self.kind is None:
            self.kind, self.reason = _kind(prediction, batch, tokens=self.objective.predicts_next)
        if self.reason is not None:
            return
        assert isinstance(batch.target, Tensor)
        assert batch.sample is not None
        kept = self._kept(batch.sample.cpu(), prediction.shape[1])
        if not bool(kept.any()):
            return
        prediction, target = prediction.detach()[kept], batch.target[kept]
        sample = batch.sample[kept]
        if self.kind == "tokens":
            part = {"sample": sample.int(), **self._tokens(prediction, target, sample.cpu())}
        else:
            collect = self._classes if self.kind == "classes" else self._values
            part = {"sample": sample.int(), **collect(prediction, target)}
        if self.spec.slices and batch.slice is not None:
            part[SLICE] = batch.slice[kept].int()
        self._parts.append({name: tensor.cpu() for name, tensor in part.items()})

    def result(self, **meta: object) -> SamplePredictions | None:
        """Return the collected predictions, None where `reason` is set. meta: further facts for the file."""
        if self.reason is None and not self._parts:
            self.reason = "the split has no sample"
        if self.reason is not None or self.kind is None:
            return None
        arrays = {name: torch.cat([part[name] for part in self._parts]).numpy() for name in self._parts[0]}
        order = arrays["sample"].argsort()  # parts of a mixture are evaluated in turns
        arrays = {name: array[order] for name, array in arrays.items()}
        slices = {"slices": list(self.spec.slices)} if SLICE in arrays else {}
        classes = {"classes": self.spec.classes} if self.kind == "classes" else {}
        return SamplePredictions(self.kind, arrays, {"of": self.total, **classes, **slices, **meta})

    def record(self, predictions: SamplePredictions | None, file: str) -> dict[str, object]:
        """Return the entry of these predictions in the run's summary."""
        if predictions is None:
            return {"left_out": self.reason}
        return {"file": file, "samples": len(predictions), "of": self.total}

    def _kept(self, sample: Tensor, width: int) -> Tensor:
        """Return a mask of the samples (B,) that are kept: the same ones for every model of the same width."""
        if self.kind == "tokens":
            numbers = 4
        elif self.kind == "classes":
            numbers = 3 + 2 * min(TOP, width)
        else:
            numbers = 3 + 2 * width
        most = MAX_BYTES // (_NUMBER * numbers)
        if self.total <= most:
            return sample >= 0
        # Exactly `most` of the samples 0 to total - 1 pass a multiple of total / most, at equal distances.
        return (sample >= 0) & ((sample + 1) * most // self.total > sample * most // self.total)

    def _classes(self, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
        # In float64 on the CPU, where order and ties are the same for every kind of device.
        logits, target = logits.double().cpu(), target.cpu()
        top = _most_probable(logits, min(TOP, logits.shape[1]))
        loss = F.cross_entropy(logits, target, ignore_index=Batch.ignore, reduction="none")
        return {
            "target": target.int(),
            "loss": loss.masked_fill(~Batch.counted(target), math.nan).float(),
            "top": top.int(),
            "probability": logits.softmax(-1).gather(1, top).float(),
        }

    def _tokens(self, logits: Tensor, target: Tensor, sample: Tensor) -> dict[str, Tensor]:
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), target.flatten(), ignore_index=Batch.ignore, reduction="none"
        )
        document = self.split.document_of(sample) if isinstance(self.split, HasDocuments) else sample
        return {
            "document": document.int(),
            "count": Batch.counted(target).sum(1).int(),
            "loss": losses.view(target.shape).double().sum(1).float(),
        }

    def _values(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        prediction, target = prediction.float(), target.float()
        losses = _losses(self.objective, prediction, target)
        prediction = prediction.sigmoid() if self.objective.target == "labels" else prediction
        shape = target.shape[1:]
        target, prediction = target.cpu(), prediction.cpu().unflatten(1, shape)
        if isinstance(self.split, Standardized):
            target = target * self.split.std + self.split.mean
            prediction = prediction * self.split.std + self.split.mean
        return {
            "target": target.flatten(1).float(),
            "loss": losses.float(),
            "prediction": prediction.flatten(1).float(),
        }


def _most_probable(logits: Tensor, count: int) -> Tensor:
    """Return the `count` largest of each row of logits (B, V), (B, count), the largest first.

    The first one is `argmax`'s: metrics take the first of equal logits, and `topk` any of them.
    """
    first = logits.argmax(-1, keepdim=True)  # (B, 1)
    top = logits.topk(count).indices
    repeated = torch.cat([torch.zeros_like(first), (top == first).long()], 1)  # (B, count + 1)
    order = repeated.argsort(dim=1, stable=True)[:, :count]
    return torch.cat([first, top], 1).gather(1, order)


def _losses(objective: Objective, prediction: Tensor, target: Tensor) -> Tensor:
    """Return the objective's loss of each sample alone, (B,)."""

    def loss(one: Tensor, its: Tensor) -> Tensor:
        return objective.loss(one[None], its[None])

    try:
        values: Tensor = torch.vmap(loss)(prediction, target)
        return values
    except RuntimeError:  # a loss that asks for values, such as `if target.isnan().any()`, has no batched form
        return torch.stack([loss(one, its) for one, its in zip(prediction, target, strict=True)])


def _refusal(objective: Objective) -> str | None:
    """Return why an objective has no one prediction for each sample, or None."""
    of_sample = objective.takes == "sequence" and objective.target in ("class", "values", "labels")
    if objective.predicts_next or of_sample:
        return None
    name = type(objective).__name__
    return f"{name} predicts the parts of a sample, such as its tokens; it has no class or values of the sample"


def _kind(prediction: Tensor, batch: Batch, *, tokens: bool) -> tuple[Kind | None, str | None]:
    """Return the kind of a batch's predictions, or why they are not collected. tokens: of each next token"""
    target = batch.target
    if tokens and isinstance(prediction, Tensor) and isinstance(target, Tensor) and batch.sample is not None:
        if prediction.ndim == 3 and not target.is_floating_point():
            return "tokens", None
        return None, f"predictions of shape {tuple(prediction.shape)} are not those of one next token each"
    if prediction.ndim != 2 or not isinstance(target, Tensor) or batch.sample is None:
        return None, f"predictions of shape {tuple(prediction.shape)} are neither classes nor values of a sample"
    if target.ndim == 1 and not target.is_floating_point():
        return "classes", None
    if target.is_floating_point() and target[0].numel() == prediction.shape[1]:
        if 2 * _NUMBER * prediction.shape[1] > MAX_BYTES // 100:  # not even a hundred samples would fit
            return None, f"{prediction.shape[1]:,} values of each sample are more than the file is for"
        return "values", None
    return None, f"predictions {tuple(prediction.shape)} do not go with targets {tuple(target.shape)}"
