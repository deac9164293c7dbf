"""objective=segment: the class of a patch, and the mean IoU."""

from __future__ import annotations

import pytest
import torch

from blockyard.contracts import Batch, DataSpec, TokenSpec
from blockyard.data.digit_canvas import DigitCanvas
from blockyard.objective.segment import Segment
from blockyard.tokenizer.patch import Patch


def segment_objective(cover: float = 0.25) -> Segment:
    objective = Segment(cover=cover)
    data = DataSpec("image", (1, 8, 8), target="pixels", classes=11)
    tokens = objective.tokens(Patch(size=4).spec(data))
    assert objective.outputs(data, tokens) == 11
    return objective


def test_the_class_of_a_patch_is_what_covers_it() -> None:
    pixels = torch.zeros(2, 8, 8, dtype=torch.int64)
    pixels[0, :2, :2] = 3  # 4 of 16 pixels of the first patch: a quarter
    pixels[0, 0, 4:7] = 5  # 3 of 16: too few
    pixels[0, 4:, :4] = 7
    pixels[0, 4, :4] = 2  # 4 against 12
    pixels[1] = Batch.ignore
    prepared = segment_objective().prepare(Batch(torch.zeros(2, 1, 8, 8), pixels))
    assert prepared.target.tolist() == [[3, 0, 7, 0], [Batch.ignore] * 4]
    assert segment_objective(0.1).prepare(Batch(torch.zeros(2, 1, 8, 8), pixels)).target[0].tolist() == [3, 5, 7, 0]
    with pytest.raises(ValueError, match="on 1 axes"):
        Segment().outputs(DigitCanvas().spec, TokenSpec((4,)))


def test_mean_iou_is_the_mean_over_classes() -> None:
    metric = segment_objective().metrics()["mean_iou"]
    target = torch.tensor([[0, 0, 1, 1], [1, 2, 2, Batch.ignore]])
    guess = torch.tensor([[0, 1, 1, 1], [1, 2, 0, 5]])
    for row in range(2):
        metric.update(torch.nn.functional.one_hot(guess[row : row + 1], 11).float(), target[row : row + 1])
    # Background 1 of 3, digit 0: 3 of 4, digit 1: 1 of 2; the other classes do not occur.
    torch.testing.assert_close(metric.compute(), torch.tensor((1 / 3 + 3 / 4 + 1 / 2) / 3))
