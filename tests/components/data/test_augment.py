"""Vectorised augmentation equals one image at a time, and repeats."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

from blockyard.contracts import Splits
from blockyard.data.arrays import Arrays
from blockyard.data.digits import Digits
from blockyard.data.splits.augment import Augment, seeded
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.images import Moments, Preprocess
from blockyard.data.splits.order import mix
from blockyard.data.table import Table
from blockyard.errors import UserError
from blockyard.tokenizer.patch import Patch

KEY = 987654321


def images(count: int = 40, side: int = 9) -> Tensor:
    return torch.randint(1, 256, (count, 2, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def reference_shift_and_flip(augment: Augment, image: Tensor, index: int) -> Tensor:
    """One image, moved by slices."""
    flip, down, right = uniform(KEY, torch.tensor([index]), 3)[:, 0].tolist()
    if augment.flip and flip < 0.5:
        image = image.flip(-1)
    dy, dx = (int(draw * (2 * augment.shift + 1)) - augment.shift for draw in (down, right))
    out = torch.zeros_like(image)
    height, width = image.shape[1:]
    for y in range(height):
        for x in range(width):
            if 0 <= y + dy < height and 0 <= x + dx < width:
                out[:, y, x] = image[:, y + dy, x + dx]
    return out


def assert_matches_reference(augment: Augment) -> None:
    store, order = images(), torch.tensor([7, 3, 3, 39, 0])
    moved = augment.shift_and_flip(store[order], order, KEY)
    expected = torch.stack([reference_shift_and_flip(augment, store[i], i) for i in order.tolist()])
    torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize("augment", [Augment(shift=2), Augment(flip=True), Augment(shift=3, flip=True)])
def test_shift_and_flip_equal_one_by_one(augment: Augment) -> None:
    assert_matches_reference(augment)


def test_a_planted_bug_is_caught() -> None:
    class ByRow(Augment):
        """Draws by the position in the batch, not by the sample index."""

        def shift_and_flip(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
            return super().shift_and_flip(images, torch.arange(len(order)), key)

    with pytest.raises(AssertionError):
        assert_matches_reference(ByRow(shift=2))


def test_crop_equals_one_by_one() -> None:
    augment, order = Augment(crop=0.5), torch.tensor([5, 11, 2])
    floats = images().float()
    cropped = augment.random_crop(floats[order], order, KEY)
    for position, index in enumerate(order.tolist()):
        draw = uniform(KEY, torch.tensor([index]), 6)[3:, 0]
        side = 1 - 0.5 * draw[0]
        assert 0.5 <= side <= 1
        x, y = ((1 - side) * (2 * draw[1:] - 1)).tolist()
        theta = torch.tensor([[[side, 0, x], [0, side, y]]]).float()
        image = floats[index][None]
        grid = F.affine_grid(theta, list(image.shape), align_corners=False)
        expected = F.grid_sample(image, grid, padding_mode="border", align_corners=False)
        torch.testing.assert_close(cropped[position], expected[0])


def test_augmentation_is_repeatable_and_independent_of_the_batch() -> None:
    store, augment = images(), Augment(shift=2, flip=True, crop=0.3)

    def run(order: Tensor, key: int) -> Tensor:
        return augment.random_crop(augment.shift_and_flip(store[order], order, key).float(), order, key)

    order = torch.randperm(40)
    whole = run(order, KEY)
    torch.manual_seed(99)
    torch.testing.assert_close(run(order, KEY), whole, rtol=0, atol=0)
    torch.testing.assert_close(run(order[5:9], KEY), whole[5:9])
    assert not torch.equal(run(order, KEY + 1), whole)


def test_no_key_no_augmentation() -> None:
    store, order = images(), torch.arange(40)
    augment = Augment(shift=2, flip=True, crop=0.3)
    torch.testing.assert_close(augment.shift_and_flip(store, order, None), store)
    torch.testing.assert_close(augment.random_crop(store.float(), order, None), store.float())


def test_draws_are_uniform_and_uncorrelated() -> None:
    draws = uniform(KEY, torch.arange(20_000), 4)
    assert draws.shape == (4, 20_000)
    assert (draws >= 0).all()
    assert (draws < 1).all()
    torch.testing.assert_close(draws.mean(1), torch.full((4,), 0.5).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(draws.var(1), torch.full((4,), 1 / 12).double(), atol=0.003, rtol=0)
    other = uniform(KEY + 1, torch.arange(20_000), 4)
    together = torch.corrcoef(torch.cat([draws, other])) - torch.eye(8).double()
    assert together.abs().max() < 0.03


def test_every_shift_is_drawn() -> None:
    store = torch.zeros(500, 1, 5, 5, dtype=torch.uint8)
    store[:, 0, 2, 2] = 1
    moved = Augment(shift=2).shift_and_flip(store, torch.arange(500), KEY)
    assert (moved.sum(0)[0] > 0).all()
    assert moved.sum() == 500


@pytest.mark.parametrize("size", [8, 128])
def test_large_images_are_treated_as_small_ones(size: int) -> None:
    """Image by image, to the same bits."""
    images = torch.randint(256, (5, 3, size, size), dtype=torch.uint8)
    order, before = torch.arange(5), images.clone()
    moments = Moments(
        torch.tensor([3.0, 90.0, 200.0]).view(1, 3, 1, 1), torch.tensor([7.0, 60.0, 1.0]).view(1, 3, 1, 1)
    )
    inputs = Preprocess(moments, Augment(flip=True))(images, order, 3)
    mirrored = uniform(3, order, 3)[0] < 0.5
    assert 0 < mirrored.sum() < 5
    flipped = torch.stack([image.flip(-1) if flip else image for image, flip in zip(images, mirrored, strict=True)])
    assert torch.equal(inputs, (flipped.float() - moments.mean) / moments.std)
    assert torch.equal(images, before)  # they may be those of the data set


def _digits(**options: object) -> Splits:
    return Digits(**options).load(Patch(size=2))  # type: ignore[arg-type]


def _array(folder: Path, shape: tuple[int, ...] = (40, 3, 12, 12), **options: object) -> Arrays:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    np.savez(folder / "a.npz", x=values.numpy(), y=np.arange(shape[0]) % 2)
    return Arrays(path=str(folder / "a.npz"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"rand_augment": 2},
        {"rand_augment": 3, "rand_magnitude": 20},
        {"augment": "timm:augmix-m9"},
        {"erasing": 0.8},
    ],
)
@pytest.mark.parametrize("kind", ["digits", "array"])
def test_data_sets_in_memory_have_rand_augment_and_erasing(
    kind: str, options: dict[str, object], tmp_path: Path
) -> None:
    """A training image is a function of key and sample; nothing else is changed, and torch's generator neither."""
    train, *others = _digits(**options) if kind == "digits" else _array(tmp_path, **options).load(Patch(size=2))
    order = torch.arange(12)
    torch.manual_seed(5)
    changed = train.batch(order, KEY).inputs
    torch.testing.assert_close(torch.rand(3), torch.manual_seed(5) and torch.rand(3), rtol=0, atol=0)
    alone = torch.cat([train.batch(one[None], KEY).inputs for one in order.flip(0)]).flip(0)
    torch.testing.assert_close(alone, changed, rtol=0, atol=0)
    plain = train.batch(order, None).inputs
    assert changed.shape == plain.shape
    assert (changed != plain).flatten(1).any(1).float().mean() > 0.5
    assert not torch.equal(train.batch(order, KEY + 1).inputs, changed)
    for split in others:
        torch.testing.assert_close(split.batch(order[:4], KEY).inputs, split.batch(order[:4], None).inputs)


def test_rand_augment_keeps_the_gray_levels_of_a_data_set() -> None:
    """Magnitudes are for 256 levels: 17 levels are spread over them first, else nothing would be as bright as meant."""
    image = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4).repeat(40, 1, 1, 1)
    changed = Augment(operations=1, levels=17).change_bytes(image, torch.arange(40), KEY)
    wide = Augment(operations=1).change_bytes((image * 15.9375).round().to(torch.uint8), torch.arange(40), KEY)
    assert changed.max() <= 16
    torch.testing.assert_close(changed, (wide / 15.9375).round().to(torch.uint8), rtol=0, atol=0)


POLICIES = ["rand-m9-n2", "rand-m7-n3-mstd0.5-inc1-p0.9-t3aw", "augmix-m5-w4-d2", "original", "v0r-mstd0.5", "3a"]


def timm_policy(policy: str, image: Tensor, seed: int) -> Tensor:
    """Return an RGB image (3, H, W) after timm's transform, whose generators have this seed."""
    from timm.data import auto_augment

    make = auto_augment.auto_augment_transform
    if policy.startswith("rand"):
        make = auto_augment.rand_augment_transform
    if policy.startswith("augmix"):
        make = auto_augment.augment_and_mix_transform
    random.seed(seed)
    np.random.seed(seed % 2**32)
    return pil_to_tensor(make(policy)(to_pil_image(image)))


def photographs(count: int, channels: int) -> Tensor:
    return torch.randint(256, (count, channels, 16, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_of_timm_equals_timm(policy: str, channels: int) -> None:
    """Gray images have three equal channels for timm, and after it as well."""
    store, order = photographs(12, channels), torch.tensor([5, 11, 2, 8, 0, 7])
    changed = Augment(policy=f"timm:{policy}").change_bytes(store[order], order, KEY)
    for image, index in zip(changed, order.tolist(), strict=True):
        expected = timm_policy(policy, store[index].expand(3, -1, -1), mix("timm", KEY, index))
        torch.testing.assert_close(image.expand(3, -1, -1), expected, rtol=0, atol=0)
    assert not torch.equal(changed, store[order])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_of_timm_depends_on_key_and_sample_alone(policy: str) -> None:
    store, augment = photographs(12, 3), Augment(policy=f"timm:{policy}")
    order = torch.arange(12)
    random.seed(3)
    np.random.seed(4)
    changed = augment.change_bytes(store, order, KEY)
    after = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(4)
    assert after == (random.random(), np.random.rand())  # the generators are as they were
    alone = torch.cat([augment.change_bytes(store[[i]], order[[i]], KEY) for i in range(11, -1, -1)]).flip(0)
    torch.testing.assert_close(alone, changed, rtol=0, atol=0)
    assert not torch.equal(augment.change_bytes(store, order, KEY + 1), changed)
    torch.testing.assert_close(augment.change_bytes(store, order, None), store, rtol=0, atol=0)


def test_a_planted_bug_of_seeding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only torch's generator is seeded, from which timm does not draw."""
    monkeypatch.setattr("blockyard.data.splits.augment.seeded_everywhere", seeded)
    with pytest.raises(AssertionError):
        test_a_policy_of_timm_equals_timm("rand-m9-n2", 3)
    with pytest.raises(AssertionError):
        test_a_policy_of_timm_depends_on_key_and_sample_alone("rand-m9-n2")


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ("rand-m9-n2", "expected timm: and rand, augmix, original, originalr, v0, v0r, 3a, with sections, such as"),
        ("timm:random-m9", "expected timm: and rand, augmix"),
        ("timm:rand-m9-q2", "the section 'q2' is not for rand; it takes each of these at most once, with numbers"),
        ("timm:rand-m9.5", "the section 'm9.5' is not for rand"),
        ("timm:rand-m9-n", "the section 'n' is not for rand"),  # timm skips it
        ("timm:rand-tall", "the section 'tall' is not for rand"),  # timm takes the default set of operations
        ("timm:rand-m9-m5", "the section 'm5' is not for rand"),
        ("timm:rand-n100", "the section 'n100' is not for rand"),
        ("timm:rand-p2", "the section 'p2' is not for rand"),
        ("timm:augmix-a0", "timm cannot apply it: "),
        ("timm:augmix-n2", "the section 'n2' is not for augmix"),
        ("timm:3a-m9", "the section 'm9' is not for 3a"),
        ("timm:rand-n20-tweights", "timm cannot apply it: Cannot take a larger sample than population"),
    ],
)
def test_a_string_that_timm_cannot_apply_whole_is_refused(augment: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"data.augment={augment}: {message}")):
        Digits(augment=augment)


def test_making_a_data_set_leaves_the_generators_alone() -> None:
    random.seed(3)
    np.random.seed(4)
    Digits(augment="timm:rand-m9-n2")
    after = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(4)
    assert after == (random.random(), np.random.rand())


def test_augmentation_that_would_change_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.rand_magnitude=5 is for data\.rand_augment=2"):
        Digits(rand_magnitude=5)
    with pytest.raises(UserError, match="images have 4 channels; it needs 1 or 3"):
        _ = _array(tmp_path, (40, 4, 12, 12), rand_augment=1).spec
    with pytest.raises(UserError, match=r"data\.augment=timm:3a: images have 4 channels; it needs 1 or 3"):
        _ = _array(tmp_path, (40, 4, 12, 12), augment="timm:3a").spec
    np.savez(tmp_path / "v.npz", x=np.ones((4, 3), dtype=np.float32), y=[0, 1, 0, 1])
    with pytest.raises(UserError, match=r"data\.erasing=0\.5 changes images, but a row is of the kind vector"):
        _ = Arrays(path=str(tmp_path / "v.npz"), erasing=0.5).spec
    with pytest.raises(UserError, match=r"data\.rand_augment=2 changes images, but a row is no image alone"):
        _ = Table(path="absent.csv", rand_augment=2).kind
