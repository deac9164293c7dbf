"""Several handwritten digits on a larger canvas, with the class of every pixel.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits; composed as in Eslami et al. 2016,
    Attend, Infer, Repeat (arXiv 1603.08575), section 4.1 (multi-MNIST)
Reference: sklearn.datasets.load_digits

    +-----------+
    | 3         |     0 is background, 1 to 10 are the digits 0 to 9, where there is ink
    |        7  |     no two digits overlap: each has a cell of its own, at a random place in it
    |  0        |
    +-----------+

A part's canvases hold that part's images alone. Training canvases are composed anew in each epoch,
those of validation and test are always the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Batch, Count, CountOrZero, DataModule, DataSpec, Splits, Tokenizer
from blockyard.data._hash import uniform
from blockyard.data._images import Labelled, Moments
from blockyard.data._order import mix
from blockyard.data._split import Fraction, sha256, stratified
from blockyard.data.digits import Digits

SIDE = 8  # pixels of a digit
CELL = 10  # pixels of a cell, at least, so that a digit has places to lie
INK = 5  # of 16 grey levels, from which a pixel belongs to the digit


class Canvases:
    """Canvases by number, composed when they are asked for."""

    def __init__(self, digits: Labelled, moments: Moments, size: int, counts: tuple[int, int], samples: int) -> None:
        self.digits, self.moments, self.size, self.counts, self.samples = digits, moments, size, counts, samples

    def __len__(self) -> int:
        return self.samples

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Inputs float32 (B, 1, size, size), target int64 (B, size, size)."""
        canvas, target = self.compose(order, 0 if key is None else key)
        return Batch((canvas.float() - self.moments.mean) / self.moments.std, target)

    def compose(self, order: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """Grey levels uint8 (B, 1, size, size) and classes (B, size, size)."""
        least, most = self.counts
        across = self.size // CELL
        cells, slack = across * across, self.size // across - SIDE + 1
        draws = uniform(key, order, 1 + cells + 3 * most).T  # (B, ...)
        number = least + (draws[:, 0] * (most - least + 1)).long()  # (B,)
        cell = draws[:, 1 : 1 + cells].topk(most, 1).indices  # (B, most), different ones
        which, down, right = draws[:, 1 + cells :].reshape(len(order), 3, most).unbind(1)
        chosen = (which * len(self.digits.target)).long()
        pixels, classes = self.digits.images[chosen, 0], self.digits.target[chosen] + 1  # (B, most, 8, 8), (B, most)
        pixels = pixels * (torch.arange(most) < number[:, None])[..., None, None]
        pitch = slack + SIDE - 1
        top = cell // across * pitch + (down * slack).long()  # (B, most)
        left = cell % across * pitch + (right * slack).long()
        edge = torch.arange(SIDE)
        rows, cols = (top[..., None] + edge)[..., :, None], (left[..., None] + edge)[..., None, :]
        where = (rows * self.size + cols).flatten(1)  # (B, most * 64)
        blank = torch.zeros(len(order), self.size * self.size, dtype=torch.int64)
        canvas = blank.scatter(1, where, pixels.long().flatten(1)).view(-1, 1, self.size, self.size)
        inked = torch.where(pixels >= INK, classes[..., None, None], 0)
        target = blank.scatter(1, where, inked.flatten(1)).view(-1, self.size, self.size)
        return canvas.to(torch.uint8), target


class DigitCanvas(DataModule):
    """Canvases of scikit-learn's digits; needs no file and no network.

    Options:
        size: side of a canvas in pixels, 10 or more; there are (size // 10) ** 2 cells
        digits: on a canvas, at most
        least_digits: on a canvas, at least
        samples: canvases in an epoch of training
        eval_samples: canvases of the validation part, and of the test part
        test_fraction: share of all digit images that only the test part shows
        validation_fraction: share of the remaining images that only the validation part shows
        split_seed: deals the images; not the run's seed, so that all seeds share one split
        batch_size: canvases in a training step, over all processes
        eval_batch_size: canvases in a validation or test step, over all processes
    """

    incidental = frozenset({"eval_batch_size"})

    def __init__(
        self,
        *,
        size: Count = 24,
        digits: Count = 4,
        least_digits: Count = 1,
        samples: Count = 4_000,
        eval_samples: Count = 500,
        test_fraction: Fraction = 0.2,
        validation_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        batch_size: Count = 64,
        eval_batch_size: Count = 256,
    ) -> None:
        cells = (size // CELL) ** 2
        if digits > cells:
            raise ValueError(f"data.digits={digits}: a canvas of data.size={size} pixels has room for {cells}")
        if least_digits > digits:
            raise ValueError(f"data.least_digits={least_digits} is more than data.digits={digits}")
        self.size, self.counts = size, (least_digits, digits)
        self.samples, self.eval_samples = samples, eval_samples
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.validation_fraction, self.split_seed = validation_fraction, split_seed
        self.source = Digits(test_fraction=test_fraction, split_seed=split_seed)
        self._fingerprint: str | None = None

    @property
    def spec(self) -> DataSpec:
        """Square images with a class of eleven for each pixel."""
        return DataSpec("image", (1, self.size, self.size), target="pixels", classes=11)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Deal the digits to the parts; canvases are made of them later."""
        rest, test = self.source.read()
        kept, taken = stratified(rest.target, self.validation_fraction, self.split_seed)
        train, validation = rest.pick(kept), rest.pick(taken)
        counts = (self.samples, self.eval_samples, self.eval_samples)
        blank = Moments(torch.zeros(()), torch.ones(()))
        some = Canvases(train, blank, self.size, self.counts, self.samples).compose(torch.arange(1000), mix("moments"))
        moments = Moments.of(some[0])
        parts = [
            Canvases(part, moments, self.size, self.counts, count)
            for part, count in zip((train, validation, test), counts, strict=True)
        ]
        looks = (part.compose(torch.arange(2), 0)[0] for part in parts)
        self._fingerprint = sha256([t for part in parts for t in part.digits] + list(looks))
        return Splits(*parts)

    def fingerprint(self) -> str:
        """SHA-256 of the digits' pixels and classes, part by part, and of two canvases of each."""
        assert self._fingerprint is not None, "fingerprint() is valid after load()"
        return self._fingerprint
