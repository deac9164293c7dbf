"""The first test samples with their targets and predictions, as loggers show them in a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from blockyard.contracts import DataSpec, HasTexts, TextTokenizer
from blockyard.runs.predictions_file import SamplePredictions

if TYPE_CHECKING:
    from torch import Tensor

    from blockyard.config.build import Components
    from blockyard.contracts import Split

_MAX_TEXT = 2_000  # characters


@dataclass(frozen=True)
class ShownSample:
    """One test sample.

    sample: its index in the split; loss: its own; target, predicted: a class or a value, None of other objectives
    picture: (height, width, C) uint8; sound: (samples,) float32 and how many a second; text; each None where it is none
    """

    sample: int
    loss: float
    target: str | float | None
    predicted: str | float | None
    picture: np.ndarray | None = None
    sound: tuple[np.ndarray, int] | None = None
    text: str | None = None


def shown_samples(components: Components, split: Split, kept: SamplePredictions, count: int) -> list[ShownSample]:
    """Return the first `count` samples of the test split that have a prediction."""
    indices = [int(index) for index in kept["sample"][:count]]
    texts: list[str] = []
    if isinstance(components.data, HasTexts) and isinstance(components.tokenizer, TextTokenizer):
        texts = components.data.test_texts(indices, components.tokenizer)
    rows = []
    for row, index in enumerate(indices):
        content = _content(components, split, index)
        if texts and content.get("text") is not None:
            content["text"] = texts[row][:_MAX_TEXT]
        target, predicted = _answers(components, kept, row)
        rows.append(ShownSample(index, float(kept["loss"][row]), target, predicted, **content))
    return rows


def _answers(
    components: Components, kept: SamplePredictions, row: int
) -> tuple[str | float | None, str | float | None]:
    """Return the target of a row and its prediction, classes by their names; None and None for tokens."""
    if kept.kind == "tokens":
        return None, None
    if kept.kind == "values":
        return float(kept["target"][row][0]), float(kept["prediction"][row][0])
    names = components.data.spec.class_names

    def class_name(number: int) -> str | None:
        if number < 0:
            return None
        return str(names[number]) if names else str(number)

    return class_name(int(kept["target"][row])), class_name(int(kept["top"][row, 0]))


def _content(components: Components, split: Split, index: int) -> dict[str, Any]:
    """Return the input of a sample: its source if it has one, such as the image of a question."""
    batch = split.batch(torch.tensor([index]), None)
    spec, tokenizer = components.data.spec, components.tokenizer
    content = _shown(spec, tokenizer, batch.inputs[0], batch.lengths)
    if batch.source is not None and spec.source is not None:
        source = _shown(spec.source, components.source_tokenizer, batch.source[0], batch.source_lengths)
        content = {**source, **content}
    return content


def _shown(spec: DataSpec, tokenizer: Any, inputs: Tensor, lengths: Tensor | None) -> dict[str, Any]:
    if lengths is not None:
        inputs = inputs[: int(lengths[0])]
    if spec.modality == "views":
        inputs = inputs[0]
    if inputs.ndim == 3 and inputs.shape[0] in (1, 3):
        pixels = inputs.float()
        scaled = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp_min(1e-12)
        return {"picture": (scaled * 255).round().byte().permute(1, 2, 0).numpy()}
    if inputs.ndim == 1 and spec.modality == "audio" and spec.rate is not None:
        sound = inputs.float() if inputs.is_floating_point() else inputs / 32_768  # samples of 16 bits
        return {"sound": (sound.numpy(), spec.rate)}
    if inputs.ndim == 1 and not inputs.is_floating_point() and isinstance(tokenizer, TextTokenizer):
        return {"text": tokenizer.decode(inputs.tolist())[:_MAX_TEXT]}
    return {}
