"""Segmentation: cross entropy of one class per image patch.

Source: Long, Shelhamer and Darrell 2015, Fully Convolutional Networks for Semantic Segmentation (arXiv 1411.4038),
    section 5, pixel accuracy and mean IoU; with a transformer Strudel et al. 2021, Segmenter (arXiv 2105.05633)
Reference: torch.nn.functional.cross_entropy; torchmetrics MulticlassJaccardIndex
Equation: mean over patches of -log softmax(prediction_n)[class of patch n]

The class of a patch is the one that covers most of it besides the background (class 0), if all classes but the
background together cover at least a share `cover` of it, and the background otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, Split, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.data.splits.split import Fraction
from blockyard.objective._classes import ClassObjective

if TYPE_CHECKING:
    import torchmetrics

BACKGROUND = 0


class Segment(ClassObjective):
    """Predicts one class per patch from classes per pixel.

    Options:
        cover: share of a patch that other classes must cover, or else it is background
    """

    takes = "token"
    target = "pixels"

    @with_options_of(ClassObjective)
    def __init__(self, *, cover: Fraction = 0.2, **options: Any) -> None:
        super().__init__(**options)
        self.cover = cover
        self._tokens: TokenSpec | None = None
        self._classes: int | None = None

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens unchanged. Their grid defines the patches."""
        self._tokens = tokens
        return tokens

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per class. Raises ValueError without classes, or for tokens that are not on a 2-D grid."""
        if data.classes is None or tokens.axes != 2:
            raise ValueError(
                f"objective=segment needs classes and tokens on 2 coordinate axes; this {data.modality} data has "
                f"{data.classes} classes and tokens on {tokens.axes} axes"
            )
        self._classes = data.classes
        return data.classes

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch with classes of patches (B, N), in row-major order, for classes of pixels."""
        assert self._tokens is not None, "tokens() and outputs() come before prepare()"
        assert self._classes is not None, "tokens() and outputs() come before prepare()"
        assert batch.target is not None
        patches = self._patches(batch.target, Batch.ignore)  # (B, N, pixels)
        pixels = self._patches(torch.ones_like(batch.target[:1]), 0).sum(2)  # (1, N), pixels of the image in each patch
        counted = patches != Batch.ignore
        covered = F.one_hot(patches.clamp_min(0), self._classes).mul(counted[..., None]).sum(2)  # (B, N, V)
        shares = covered / pixels[..., None]
        foreground = shares[..., BACKGROUND + 1 :]
        best = foreground.argmax(-1) + BACKGROUND + 1
        # The tolerance lets a share of exactly `cover` count after rounding.
        target = best.where(foreground.sum(-1) >= self.cover - 1e-6, BACKGROUND).where(counted.any(2), Batch.ignore)
        return replace(batch, target=target)

    def _patches(self, pixels: Tensor, outside: int) -> Tensor:
        """Cut (B, height, width) into patches (B, N, pixels), with `outside` for pixels that the tokenizer adds."""
        assert self._tokens is not None
        rows, cols = self._tokens.grid
        if self._tokens.padding is not None:
            pixels = F.pad(pixels, self._tokens.padding, value=outside)
        height, width = (side // count for side, count in zip(pixels.shape[1:], (rows, cols), strict=True))
        crop = pixels[:, : rows * height, : cols * width]
        cells = crop.reshape(-1, rows, height, cols, width).transpose(2, 3)  # (B, rows, cols, height, width)
        return cells.flatten(3).flatten(1, 2)  # (B, N, pixels)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss, accuracy over patches, and mean intersection over union over classes."""
        from blockyard.objective._metrics import Accuracy, MeanCrossEntropy, MeanIoU

        # A plan of a sweep asks for names and directions before outputs() is called: any number of classes will do.
        classes = 2 if self._classes is None else self._classes
        return self.further({"loss": MeanCrossEntropy(), "accuracy": Accuracy(), "mean_iou": MeanIoU(classes)})

    def best(self) -> tuple[str, str]:
        """Return the highest mean IoU as the best one: background everywhere has a high accuracy."""
        return "mean_iou", "max"
