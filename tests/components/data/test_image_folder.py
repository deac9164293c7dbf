"""data=image_folder: what torchvision reads, the folders that are splits, and broken images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from blockyard.data.files.images import decode_image
from blockyard.data.image_folder import ImageFolder
from blockyard.errors import UserError
from blockyard.tokenizer.patch import Patch
from tests.support.image_files import write_images


def test_image_folder_agrees_with_torchvision(tmp_path: Path) -> None:
    from torchvision import datasets
    from torchvision.transforms.functional import pil_to_tensor

    write_images(tmp_path, {"train": 10, "test": 5})
    data = ImageFolder(root=str(tmp_path), size=12)
    assert data.spec.class_names == tuple(datasets.ImageFolder(str(tmp_path / "train")).classes)
    assert data.missing() is None
    assert data.spec.classes == 2
    train, validation, test = data.parts()
    for ours, part in (((train, validation), "train"), ((test,), "test")):
        theirs = datasets.ImageFolder(str(tmp_path / part))
        classes = {
            str(file): label for each in ours for file, label in zip(each.files, each.target.tolist(), strict=True)
        }
        assert classes == dict(theirs.samples)
        for each in ours:
            number = theirs.samples.index((str(each.files[0]), int(each.target[0])))
            torch.testing.assert_close(each.decode_all().images[0], pil_to_tensor(theirs[number][0]))


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_folder_of_validation_images_is_the_validation_split(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "blockyard")
    write_images(tmp_path, {"train": 20, name: 5})
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "0001.png").write_bytes(b"without a class, as ImageNet's")
    train, validation, test = ImageFolder(root=str(tmp_path), size=8, test_fraction=0.2).parts()
    assert [len(part.target) for part in (train, validation, test)] == [32, 10, 8]
    assert sorted(validation.files) == sorted((tmp_path / name).rglob("*.png"))
    assert not set(train.files) & set(test.files)
    assert set(train.files) | set(test.files) == set((tmp_path / "train").rglob("*.png"))
    assert f"validation images of {name}/, test images 0.2 of train/; test/ has no folders of classes" in caplog.text

    (tmp_path / "test" / "0001.png").unlink()
    with pytest.raises(ValueError, match=r"no images in .*test; expected"):
        ImageFolder(root=str(tmp_path), size=8).parts()
    write_images(tmp_path / "more", {"test": 3})
    (tmp_path / "test").rmdir()
    (tmp_path / "more" / "test").rename(tmp_path / "test")
    sizes = [len(part.target) for part in ImageFolder(root=str(tmp_path), size=8).parts()]
    assert sizes == [40, 10, 6]
    (tmp_path / name / "wasp").mkdir()
    with pytest.raises(ValueError, match=f"{name} has classes that train/ lacks: wasp"):
        ImageFolder(root=str(tmp_path), size=8).parts()
    (tmp_path / ("val" if name == "valid" else "valid")).mkdir()
    with pytest.raises(ValueError, match="all for validation; keep one of them"):
        ImageFolder(root=str(tmp_path), size=8).parts()


def test_folders_of_classes_alone_are_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same images lie below train/ or not: the splits are the same ones."""
    caplog.set_level("INFO", "blockyard")
    write_images(tmp_path, {"train": 20})
    with_splits = ImageFolder(root=str(tmp_path), size=8)
    without = ImageFolder(root=str(tmp_path / "train"), size=8)
    assert without.names == with_splits.names == ["ant", "bee"]
    for part, other in zip(without.parts(), with_splits.parts(), strict=True):
        assert part.files == other.files
    assert "no folder of a split, so that its folders are the classes, validation images 0.1 of train/" in caplog.text
    (tmp_path / "train" / "test").mkdir()
    assert "no folder of images" in str(without.missing())


def test_lazy_and_decoded_images_are_the_same(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 20})
    decoded, lazy = (
        ImageFolder(root=str(tmp_path), size=8, flip=True, shift=1, memory_limit=limit).load(Patch())
        for limit in (10, 0)
    )
    assert [len(split) for split in decoded] == [len(split) for split in lazy] == [33, 3, 4]
    order = torch.tensor([5, 30, 2])
    for key in (None, 3):
        one, two = decoded.train.batch(order, key), lazy.train.batch(order, key)
        torch.testing.assert_close(one.inputs, two.inputs)
        torch.testing.assert_close(one.target, two.target)


def test_image_folder_refuses_unknown_classes_and_broken_images(tmp_path: Path) -> None:
    write_images(tmp_path, {"train": 4, "test": 2})
    (tmp_path / "test" / "wasp").mkdir()
    with pytest.raises(ValueError, match="train/ lacks: wasp"):
        ImageFolder(root=str(tmp_path), size=8).load(Patch())
    (tmp_path / "test" / "wasp").rmdir()
    (tmp_path / "train" / "ant" / "000.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="cannot be read as an image"):
        ImageFolder(root=str(tmp_path), size=8).load(Patch())


@pytest.mark.shared_data
@pytest.mark.full
def test_real_photographs_from_a_folder(shared_data: Path, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(shared_data / "cifar10" / "cifar10_folder.zip") as archive:
        archive.extractall(tmp_path)
    splits = ImageFolder(root=str(tmp_path)).load(Patch())
    assert [len(split) for split in splits] == [4500, 500, 1000]
    names = (shared_data / "cifar10" / "classes.txt").read_text().split()
    labels = (shared_data / "cifar10" / "test_labels.txt").read_text().split()
    counts = torch.bincount(splits.test.target).tolist()
    assert counts == [labels.count(str(number)) for number in range(len(names))]


def test_a_class_without_a_training_image_is_refused(tmp_path: Path) -> None:
    """Its samples would be in the test split alone, of a class that the model never saw."""
    write_images(tmp_path, {"train": 10})
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(UserError, match="no training sample has the class empty"):
        ImageFolder(root=str(tmp_path)).load(Patch(size=4))


def test_class_folders_that_look_alike_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, count in (("cat", 12), ("Cat ", 3)):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 0, count)).save(tmp_path / "train" / name / f"{number}.png")
    ImageFolder(root=str(tmp_path), size=8).parts()
    assert f"{tmp_path / 'train'} has classes that look alike: 'Cat ' (3) and 'cat' (12); write them" in caplog.text


def test_a_class_with_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Names of classes are written into files of UTF-8; one that cannot be is shown with escapes."""
    write_images(tmp_path, {"train": 4})
    os.mkdir(os.fsencode(tmp_path / "train") + b"/b\xff")
    with pytest.raises(UserError, match=r"b\\udcff.*not UTF-8"):
        ImageFolder(root=str(tmp_path)).names  # noqa: B018 - the property raises


@pytest.mark.parametrize(("suffix", "channels"), [("png", 1), ("png", 3), ("tif", 1)])
def test_images_of_16_bits_are_scaled_and_not_cut(tmp_path: Path, suffix: str, channels: int) -> None:
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(ramp).save(tmp_path / f"x.{suffix}")
    image = decode_image(tmp_path / f"x.{suffix}", channels=channels, size=8)
    assert image.shape == (channels, 8, 8)
    assert image[0].tolist() == (ramp >> 8).tolist()


def test_images_of_numbers_without_a_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(UserError, match="32-bit numbers of no known range"):
        decode_image(tmp_path / "x.tif", channels=1, size=8)
