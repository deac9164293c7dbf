"""Judges of drawn images and written sounds: the readings of another run, and the distance to training images.

A model that copies its training images draws images at a distance of zero; images of the test split, which no model
has seen, show how near an image lies to the nearest training image otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Batch, ImageTokenizer, TextTokenizer, Transcriber
from blockyard.data.splits.columns import Ragged
from blockyard.data.splits.image_tokens import ImageTokenSplit
from blockyard.errors import UserError
from blockyard.generate.images import GeneratedImages
from blockyard.generate.transcribe import transcribed
from blockyard.runs.load import Loaded, splits_of

_HEARD = 64  # sounds that are heard at a time
_CHUNK = 4096  # training images that are compared at a time


@dataclass(frozen=True)
class Reading:
    """A classifier's readings. share: of images read as the class that was asked for; read: (n,) int64"""

    share: float
    read: Tensor
    judge: str

    def __str__(self) -> str:
        count = round(self.share * len(self.read))
        return f"{self.judge} reads {count} of {len(self.read)} images as the class asked for ({self.share:.1%})"


@dataclass(frozen=True)
class Distances:
    """Root mean squared differences of pixels from 0 to 1 to the nearest training image: of drawn, of test images."""

    drawn: Tensor
    test: Tensor

    def __str__(self) -> str:
        return (
            f"distance to the nearest training image: median {float(self.drawn.median()):.3f}, least "
            f"{float(self.drawn.min()):.3f}; of as many test images {float(self.test.median()):.3f}, "
            f"{float(self.test.min()):.3f}"
        )


def read_by(judge: Loaded, result: GeneratedImages) -> Reading:
    """Return the classes that another run reads. Raises UserError for one that does not classify such images."""
    name, shape = judge.folder.name, tuple(result.images.shape[1:])
    spec = judge.data.spec
    if result.classes is None:
        raise UserError(
            f"judge={name}: {result.loaded.folder.name} draws images of no class; tokenizer.condition=class trains a "
            "run that does"
        )
    if judge.objective.target != "class" or judge.objective.takes != "sequence" or spec.modality != "image":
        raise UserError(f"judge={name} does not classify images; use a run of objective=classify on the same data")
    if isinstance(judge.tokenizer, ImageTokenizer) or spec.shape != shape or spec.levels != result.levels:
        raise UserError(
            f"judge={name} reads images {spec.shape} of {spec.levels} gray levels; those drawn are {shape} of "
            f"{result.levels}"
        )
    split: Any = splits_of(judge).test  # an image split: it normalizes as in the judge's training
    inputs = split.preprocess(result.images, torch.arange(len(result.images)), None)
    with torch.inference_mode():
        read = judge.model(Batch(inputs)).argmax(-1)  # (n,)
    return Reading(float((read == result.classes).float().mean()), read, name)


def check_hears(judge: Loaded, rate: int) -> None:
    """Raise UserError for a run that does not transcribe sounds of `rate` samples a second."""
    name, source = judge.folder.name, judge.data.spec.source
    if not isinstance(judge.objective, Transcriber) or source is None or source.modality != "audio":
        raise UserError(f"judge={name} does not write down what is in a sound; use a run of objective=ctc on sounds")
    if source.rate != rate:
        raise UserError(f"judge={name} hears {source.rate} samples a second; those written have {rate}")


def heard_by(judge: Loaded, sounds: Sequence[Tensor]) -> list[str]:
    """Return the text that another run hears in each sound (T,) int16; "" for a sound too short for a token.

    The judge has passed `check_hears`.
    """
    objective, tokenizer, model = judge.objective, judge.tokenizer, judge.model
    assert isinstance(objective, Transcriber)
    assert isinstance(tokenizer, TextTokenizer)
    device = next(model.parameters()).device
    texts, training = [], model.training
    model.eval()
    try:
        with torch.inference_mode():
            for first in range(0, len(sounds), _HEARD):
                part = sounds[first : first + _HEARD]
                padded, lengths = Ragged.of(part).take(torch.arange(len(part)))
                batch = Batch(padded, lengths=lengths).to(device)
                texts += [tokenizer.decode(written) for written in transcribed(model, objective, batch, None)]
    finally:
        model.train(training)
    return texts


def distances(result: GeneratedImages) -> Distances:
    """Return the distances of drawn images, and of as many test images, to the nearest training image."""
    train, _, test = splits_of(result.loaded)
    assert isinstance(train, ImageTokenSplit)
    assert isinstance(test, ImageTokenSplit)
    some = test.images.batch(torch.arange(min(len(result.images), len(test))), None).inputs
    return Distances(*(_nearest(images, train, result.levels) for images in (result.images, some)))


def _nearest(images: Tensor, train: ImageTokenSplit, levels: int) -> Tensor:
    """Return the distance of each image (n, C, height, width) to the nearest of the training split: (n,)."""
    flat = images.flatten(1).float() / (levels - 1)
    nearest = torch.full((len(flat),), torch.inf)
    for order in torch.arange(len(train)).split(_CHUNK):
        others = train.images.batch(order, None).inputs.flatten(1).float() / (levels - 1)
        nearest = torch.minimum(nearest, torch.cdist(flat, others).amin(1))
    return nearest / flat.shape[1] ** 0.5
