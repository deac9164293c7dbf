"""Random crops, RandAugment and erasing are torchvision's, and the same for a sample wherever it is decoded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from blockyard.data.image_folder import ImageFolder
from blockyard.data.splits.augment import Augment, seeded
from blockyard.data.splits.order import mix
from blockyard.data.splits.photographs import ResizedCrop
from blockyard.engine.loader import BatchDataset, Layout, training_loader
from blockyard.objective.classify import Classify
from blockyard.tokenizer.patch import Patch
from tests.support.image_files import write_images

KEY = 4321
ALL = {"resized_crop": 0.3, "rand_augment": 2, "augment": "timm:rand-m9-n2", "erasing": 0.9, "flip": True, "shift": 1}


def pictures(count: int, side: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def reference(transform: object, stream: str, image: object, sample: int) -> Tensor:
    """torchvision's transform of one image, seeded by hand."""
    torch.manual_seed(mix(stream, KEY, sample))
    changed: Tensor = transform(image)  # type: ignore[operator]
    return changed


def test_crops_are_those_of_torchvision() -> None:
    picture = Image.fromarray(pictures(1, 40)[0, :, :30].permute(1, 2, 0).contiguous().numpy())
    for seed in range(8):
        torch.manual_seed(seed)
        expected = v2.functional.pil_to_tensor(v2.RandomResizedCrop(16, scale=(0.2, 1.0))(picture))
        torch.testing.assert_close(ResizedCrop(0.2, 16)(picture, seed), expected, rtol=0, atol=0)


def test_rand_augment_and_erasing_are_those_of_torchvision() -> None:
    order = torch.tensor([5, 2, 9, 7, 11, 3])
    images = pictures(len(order))
    augment = Augment(operations=2, magnitude=12, erasing=0.7)
    changed = augment.change_bytes(images, order, KEY)
    erased = augment.change_floats(images.float(), order, KEY)
    transform = v2.Compose([v2.ToPILImage(), v2.RandAugment(2, 12), v2.PILToTensor()])
    for number, sample in enumerate(order.tolist()):
        torch.testing.assert_close(changed[number], reference(transform, "rand", images[number], sample))
        expected = reference(v2.RandomErasing(0.7), "erase", images[number].float(), sample)
        torch.testing.assert_close(erased[number], expected)
    assert not torch.equal(changed, images)
    assert 0 < (erased != images).flatten(1).any(1).sum() < len(order)
    for off in (augment.change_bytes(images, order, None), augment.change_floats(images, order, None)):
        torch.testing.assert_close(off, images)


def test_torchs_generator_is_as_before() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with seeded(9):
        torch.rand(7)
    Augment(operations=1).change_bytes(pictures(2), torch.arange(2), KEY)
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_images(root, {"train": 20}, side=20)
    return root


def test_a_sample_is_the_same_whatever_the_batch_and_the_threads(photos: Path) -> None:
    one, two = (ImageFolder(root=str(photos), size=8, workers=n, **ALL).load(Patch()).train for n in (1, 4))  # type: ignore[arg-type]
    order = torch.tensor([9, 0, 31, 4, 17])
    batch = one.batch(order, KEY).inputs
    for other in (two.batch(order, KEY).inputs, torch.cat([two.batch(each[None], KEY).inputs for each in order])):
        torch.testing.assert_close(other, batch, rtol=0, atol=0)
    assert not torch.equal(one.batch(order, KEY + 1).inputs, batch)
    torch.testing.assert_close(one.batch(order, None).inputs, two.batch(order, None).inputs, rtol=0, atol=0)


def test_a_planted_bug_is_caught(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws from torch's generator as it stands, as transforms in a DataLoader do."""
    train = ImageFolder(root=str(photos), size=8, **ALL).load(Patch()).train  # type: ignore[arg-type]
    order = torch.arange(5)
    batch = train.batch(order, KEY).inputs
    monkeypatch.setattr("blockyard.data.splits.augment.seeded", lambda seed: torch.no_grad())
    assert not torch.equal(train.batch(order, KEY).inputs, batch)


def test_only_training_is_augmented_and_only_crops_keep_images_on_the_disk(photos: Path) -> None:
    data = ImageFolder(root=str(photos), size=8, rand_augment=1, erasing=0.5)
    lazy = ImageFolder(root=str(photos), size=8, rand_augment=1, erasing=0.5, memory_limit=0)
    decoded, files = data.load(Patch()), lazy.load(Patch())
    order = torch.tensor([2, 1, 0])
    torch.testing.assert_close(decoded.train.batch(order, KEY).inputs, files.train.batch(order, KEY).inputs)
    for split in (decoded.validation, files.validation):
        torch.testing.assert_close(split.batch(order, KEY).inputs, split.batch(order, None).inputs)
    cropped = ImageFolder(root=str(photos), size=8, resized_crop=0.5).load(Patch())
    assert type(cropped.train).__name__ == "LazyImageSplit"
    assert not torch.equal(cropped.train.batch(order, KEY).inputs, cropped.train.batch(order, None).inputs)


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_read_the_same_batches_from_the_middle_of_an_epoch(photos: Path, workers: int) -> None:
    train = ImageFolder(root=str(photos), size=8, **ALL).load(Patch()).train  # type: ignore[arg-type]
    dataset = BatchDataset(train, Layout(seed=5, samples=len(train), batch_size=8), Classify())

    def batches(start: int, workers: int) -> list[Tensor]:
        loader = training_loader(dataset, start=start, stop=7, workers=workers, pin=False, timeout=60)
        return [batch.inputs for batch in loader]

    assert dataset.layout.steps_per_epoch == 4
    for one, other in zip(batches(0, 0)[3:], batches(3, workers), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rand_magnitude": 5}, r"data\.rand_magnitude=5 is for data\.rand_augment=2"),
        ({"resized_crop": 0.1, "crop": 0.2}, "both crop at random; use one of them"),
    ],
)
def test_options_that_would_not_be_read_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageFolder(**options)  # type: ignore[arg-type]
