"""The common part of data sets of canvases with coloured digits: which digits each split shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from blockyard.data._decode import read_picture
from blockyard.data._loaded import LoadedData
from blockyard.data._scenes import SHAPE, SceneSource
from blockyard.data._split import sha256, stratified
from blockyard.data.digits import Digits


@dataclass(kw_only=True, eq=False)
class CanvasData(LoadedData):
    """Canvases of scikit-learn's digits. Subclasses declare the options and say what belongs to a canvas."""

    test_fraction: float
    validation_fraction: float
    split_seed: int

    def scenes(self, counts: tuple[int, int]) -> list[SceneSource]:
        """Returns what draws the canvases of each split, whose digits are that split's own."""
        rest, test = Digits(test_fraction=self.test_fraction, split_seed=self.split_seed).read()
        kept, held_out = stratified(rest.target, self.validation_fraction, self.split_seed)
        splits = [SceneSource(digits, counts) for digits in (rest.select(kept), rest.select(held_out), test)]
        drawn = (split.paint(split.draw(torch.arange(2), 0)) for split in splits)
        self._fingerprint = sha256([*(tensor for split in splits for tensor in split.digits), *drawn])
        return splits

    def read_source(self, path: str) -> Tensor:
        """Returns an image file as a canvas, float32 (1, 3, 24, 24) from -1 (black) to 1."""
        return read_picture(Path(path), channels=SHAPE[0], size=SHAPE[1])
