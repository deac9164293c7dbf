"""Views and canvases: functions of key and sample, made of their own split alone."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.data.cifar10_views import CIFAR10Views
from blockyard.data.digit_canvas import INK, CanvasSplit, DigitCanvas
from blockyard.data.digits import Digits
from blockyard.data.digits_views import DigitsViews
from blockyard.data.image_folder_views import ImageFolderViews
from blockyard.data.splits.images import LabelledImages, Moments
from blockyard.data.splits.views import ANGLE, CONTRAST, NOISE, SCALE, SHIFT, ViewSplit, augmented_views, draws_of_view
from blockyard.tokenizer.patch import Patch
from tests.support.every import every
from tests.support.tolerances import float32

ORDER = torch.tensor([5, 0, 17, 40])


def is_crop(view: Tensor, image: Tensor) -> bool:
    side = view.shape[-1]
    return bool((image.unfold(1, side, 1).unfold(2, side, 1) == view[:, None, None]).all((0, 3, 4)).any())


def test_views_are_crops_of_their_image() -> None:
    views, images = DigitsViews().load(Patch()), Digits().load(Patch())
    for part, whole in zip(views, images, strict=True):
        seen, full = part.batch(ORDER, None), whole.batch(ORDER, None)
        assert seen.inputs.shape == (4, 6, 1, 5, 5)
        torch.testing.assert_close(seen.target, full.target)
        for row, image in zip(seen.inputs, full.inputs, strict=True):
            assert every(is_crop(view, image) for view in row)
        assert not is_crop(seen.inputs[0, 0] + 1, full.inputs[0])
    assert DigitsViews().spec.shape == (6, 1, 5, 5)
    assert (DigitsViews().spec.modality, DigitsViews().spec.variable) == ("views", False)


def assert_function_of_key_and_sample(part: ViewSplit) -> None:
    whole = part.batch(ORDER, 7)
    for rank in range(2):
        share = part.batch(ORDER[rank::2], 7)
        of_rank = whole.inputs[rank::2]
        torch.testing.assert_close(share.inputs, of_rank[:, : share.inputs.shape[1]])
        assert not of_rank[:, share.inputs.shape[1] :].any()
    assert (part.batch(ORDER, 8).inputs[:, 0] != whole.inputs[:, 0]).any()
    torch.testing.assert_close(part.batch(ORDER, None).inputs, part.batch(ORDER, None).inputs)


def test_views_do_not_depend_on_the_batch() -> None:
    assert_function_of_key_and_sample(DigitsViews(views=5).load(Patch()).train)
    assert_function_of_key_and_sample(DigitsViews(views=5, least_views=2).load(Patch()).train)


def test_views_drawn_by_position_in_the_batch_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockyard.data.splits import views as views_module

    real = views_module.uniform
    monkeypatch.setattr(views_module, "uniform", lambda key, order, count: real(key, torch.arange(len(order)), count))
    with pytest.raises(AssertionError):
        assert_function_of_key_and_sample(DigitsViews(views=5).load(Patch()).train)


def test_the_number_of_views_is_drawn_per_image() -> None:
    data = DigitsViews(views=5, least_views=2, eval_views=8)
    splits, order = data.load(Patch()), torch.arange(400)
    batch = splits.train.batch(order, 3)
    assert data.spec.variable
    assert data.spec.shape[0] == 8
    counts = batch.lengths.bincount(minlength=6)
    assert counts[:2].sum() == 0
    assert (counts[2:] > 60).all()
    padding = torch.arange(batch.inputs.shape[1]) >= batch.lengths[:, None]
    assert not batch.inputs[padding].any()
    assert splits.test.batch(ORDER, None).inputs.shape[1] == 8
    # The first views of many are those of few.
    few = DigitsViews(views=3).load(Patch()).test.batch(ORDER, None)
    torch.testing.assert_close(few.inputs, splits.test.batch(ORDER, None).inputs[:, :3])


def test_other_numbers_of_views_in_evaluation_make_lengths_variable() -> None:
    """`check` refuses a mixer whose weights belong to positions; the first batch does not have to."""
    assert DigitsViews(views=4, eval_views=8).spec.variable
    assert DigitsViews(views=4, eval_views=2).spec.variable
    assert not DigitsViews(views=4, eval_views=4).spec.variable
    overrides = ["experiment=views_digits", "token_mixer=token_mlp", "logger=none"]
    assert not check(compose(overrides))
    issues = [str(issue) for issue in check(compose([*overrides, "data.eval_views=2"]))]
    assert any("sequences of different lengths" in issue for issue in issues), issues


def test_views_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="larger than the images, 8 x 8"):
        DigitsViews(size=9)
    with pytest.raises(ValueError, match=r"more than data.views=3"):
        DigitsViews(views=3, least_views=4)
    assert CIFAR10Views().spec.shape == (4, 3, 16, 16)
    assert "cifar-10-batches-py" in CIFAR10Views(root="nowhere").missing()


def test_a_folder_of_images_gives_views_too(tmp_path: Path) -> None:
    from tests.support.image_files import write_photographs

    write_photographs(tmp_path)
    data = ImageFolderViews(root=str(tmp_path), views=3, size=12)
    assert (data.spec.shape, data.spec.classes) == ((3, 3, 12, 12), 2)
    splits = data.load(Patch())
    assert splits.test.batch(torch.arange(4), None).inputs.shape == (4, 3, 3, 12, 12)
    lazy = ImageFolderViews(root=str(tmp_path), views=3, size=12, memory_limit=0).load(Patch())
    assert lazy.test.batch(torch.arange(4), None).inputs.shape == (4, 3, 3, 12, 12)


def test_an_archive_has_to_be_unpacked(tmp_path: Path) -> None:
    data = ImageFolderViews(root=str(tmp_path))
    assert "unpack" not in data.missing()
    (tmp_path / "photographs.zip").touch()
    assert "unpack photographs.zip and set data.root=FOLDER" in data.missing()


def assert_made_of(part: CanvasSplit, images: set[bytes], side: int) -> None:
    """Every digit on a canvas is an image of the split, at the pixels of its class."""
    canvas, target = part.compose(torch.arange(40), 5)
    for image, classes in zip(canvas[:, 0], target, strict=True):
        half = side // 2
        for row in (0, half):
            for col in (0, half):
                cell, named = image[row : row + half, col : col + half], classes[row : row + half, col : col + half]
                assert len(set(named.unique().tolist()) - {0}) <= 1
                assert ((named > 0) == (cell >= INK)).all()
                if cell.any():
                    windows = cell.unfold(0, 8, 1).unfold(1, 8, 1).flatten(0, 1)
                    assert any(window.numpy().tobytes() in images for window in windows), "a digit of another split"


def test_canvases_show_the_digits_of_their_own_split() -> None:
    splits = DigitCanvas().load(Patch())
    images = [{i.numpy().tobytes() for i in part.digits.images[:, 0].contiguous()} for part in splits]
    assert not images[0] & images[1] | images[0] & images[2] | images[1] & images[2]
    for part, own in zip(splits, images, strict=True):
        assert_made_of(part, own, 24)
    with pytest.raises(AssertionError, match="a digit of another split"):
        assert_made_of(splits.train, images[2], 24)


def test_canvases_are_functions_of_key_and_number() -> None:
    train = DigitCanvas().load(Patch()).train
    whole = train.batch(ORDER, 3)
    torch.testing.assert_close(train.batch(ORDER[1:3], 3).inputs, whole.inputs[1:3])
    torch.testing.assert_close(train.batch(ORDER, None).target, train.batch(ORDER, None).target)
    assert (train.batch(ORDER, 4).inputs != whole.inputs).any()


def test_numbers_of_digits_are_within_their_limits() -> None:
    labels = torch.arange(10)
    solid = LabelledImages(torch.full((10, 1, 8, 8), 16, dtype=torch.uint8), labels)
    part = CanvasSplit(solid, Moments(torch.zeros(()), torch.ones(())), 32, (2, 5), 400)
    _, target = part.compose(torch.arange(400), 0)
    covered = (target > 0).flatten(1).sum(1)
    assert (covered % 64 == 0).all(), "digits overlap"
    assert sorted(set((covered // 64).tolist())) == [2, 3, 4, 5]
    for options in ({"size": 16, "digits": 5}, {"least_digits": 5}):
        with pytest.raises(ValueError, match=r"data.*digits"):
            DigitCanvas(**options)


def test_a_canvas_has_a_fingerprint() -> None:
    one, two, other = DigitCanvas(), DigitCanvas(), DigitCanvas(split_seed=1)
    for data in (one, two, other):
        data.load(Patch())
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()


def by_hand(image: Tensor, draws: Tensor, side: int, strength: float) -> Tensor:
    """One augmented view (C, side, side), pixel by pixel."""
    angle, size, right, down, contrast = ((2 * draws[:5] - 1) * strength).tolist()
    cos, sin = math.cos(angle * ANGLE), math.sin(angle * ANGLE)
    zoom = 1 + size * SCALE
    channels, height, width = image.shape
    noise = draws[5:].reshape(channels, side, side, 2)
    view = torch.zeros(channels, side, side)
    for row, column in itertools.product(range(side), range(side)):
        y, x = ((2 * each + 1) / side - 1 for each in (row, column))
        across = (cos * x - sin * y) / zoom + 2 * SHIFT * right
        along = (sin * x + cos * y) / zoom + 2 * SHIFT * down
        at = [((across + 1) * width - 1) / 2, ((along + 1) * height - 1) / 2]
        at = [min(max(place, 0.0), limit - 1.0) for place, limit in zip(at, (width, height), strict=True)]
        left, top = int(at[0]), int(at[1])
        value = torch.zeros(channels)
        for i, j in itertools.product((0, 1), (0, 1)):
            weight = (1 - abs(at[0] - left - i)) * (1 - abs(at[1] - top - j))
            value += weight * image[:, min(top + j, height - 1), min(left + i, width - 1)]
        gauss = (-2 * torch.log(1 - noise[:, row, column, 0])).sqrt() * (2 * math.pi * noise[:, row, column, 1]).cos()
        view[:, row, column] = value * (1 + contrast * CONTRAST) + gauss * NOISE * strength
    return view


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_augmented_views_are_their_formula(strength: float) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 6, 8, generator=generator)
    draws = torch.rand(2, 3, draws_of_view(3, 5) - 1, generator=generator, dtype=torch.float64)
    views = augmented_views(images, draws, 5, strength)
    for sample, view in itertools.product(range(2), range(3)):
        expected = by_hand(images[sample], draws[sample, view], 5, strength)
        torch.testing.assert_close(views[sample, view], expected, rtol=1e-4, atol=1e-4)


def test_without_strength_a_view_is_the_image() -> None:
    views = DigitsViews(look="augment", strength=0.0, size=8).load(Patch()).train.batch(ORDER, 3)
    images = Digits().load(Patch()).train.batch(ORDER, None)
    for view in range(6):
        torch.testing.assert_close(views.inputs[:, view], images.inputs, **float32(terms=4, size=2.0))


def test_augmented_views_do_not_depend_on_the_batch() -> None:
    options = {"look": "augment", "size": 8, "flip": True}
    assert_function_of_key_and_sample(DigitsViews(views=5, **options).load(Patch()).train)  # type: ignore[arg-type]
    train = DigitsViews(views=5, least_views=2, **options).load(Patch()).train  # type: ignore[arg-type]
    assert_function_of_key_and_sample(train)
    few = DigitsViews(views=2, **options).load(Patch()).train.batch(ORDER, 7).inputs  # type: ignore[arg-type]
    many = DigitsViews(views=4, **options).load(Patch()).train.batch(ORDER, 7).inputs  # type: ignore[arg-type]
    torch.testing.assert_close(many[:, :2], few)
    assert (many[:, 0] != many[:, 1]).any()


def test_strength_belongs_to_augmented_views() -> None:
    issues = check(compose(["experiment=views_digits", "data.strength=0.3", "logger=none"]))
    assert any("data.strength=0.3 is for data.look=augment" in str(issue) for issue in issues)
    issues = check(compose(["experiment=views_digits", "data.look=augment", "data.strength=1.2", "logger=none"]))
    assert any("data.strength" in str(issue) for issue in issues)
