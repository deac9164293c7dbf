"""Image data: disjoint splits, readers, and messages for missing files."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from blockyard.contracts import Splits
from blockyard.data.cifar10 import CIFAR10
from blockyard.data.digits import Digits
from blockyard.data.fashion_mnist import FashionMNIST
from blockyard.data.image_folder import ImageFolder
from blockyard.data.mnist import FILES, MNIST, read_idx
from blockyard.data.splits.split import stratified
from blockyard.tokenizer.patch import Patch
from tests.support.every import every
from tests.support.tolerances import FLOAT32_STEPS

Splitter = Callable[[Tensor, float, int], tuple[Tensor, Tensor]]


def assert_split(split: Splitter, target: Tensor, fraction: float, seed: int) -> None:
    kept, held_out = split(target, fraction, seed)
    torch.testing.assert_close(torch.cat([kept, held_out]).sort().values, torch.arange(len(target)))
    assert abs(len(held_out) - fraction * len(target)) <= 1
    for label in target.unique():
        share = (target[held_out] == label).sum() - fraction * (target == label).sum()
        assert abs(share) <= 1


@given(st.integers(1, 300), st.integers(1, 12), st.floats(0.01, 0.99), st.integers(0, 99))
def test_stratified_splits_are_disjoint_complete_and_balanced(n: int, classes: int, share: float, seed: int) -> None:
    target = torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))
    assert_split(stratified, target, share, seed)


def test_planted_bugs_in_the_split_are_caught() -> None:
    target = torch.arange(100) % 5

    def overlapping(target: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
        return torch.arange(len(target)), stratified(target, fraction, seed)[1]

    def by_position(target: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
        order = target.argsort()
        count = int(len(target) * fraction)
        return order[count:], order[:count]

    for broken in (overlapping, by_position):
        with pytest.raises(AssertionError):
            assert_split(broken, target, 0.2, 0)


def image_sets(splits: Splits) -> list[set[bytes]]:
    return [{image.numpy().tobytes() for image in split.images} for split in splits]


def test_digits_split_is_disjoint_and_the_same_for_the_same_seed() -> None:
    first, again, other = (Digits(split_seed=seed).load(Patch()) for seed in (0, 0, 1))
    assert [len(split) for split in first] == [1295, 143, 359]
    whole = torch.cat([split.images for split in first])
    assert len(whole) == 1797
    train, validation, test = image_sets(first)
    repeated = 1797 - len({image.numpy().tobytes() for image in whole})
    assert len(train & validation) + len(train & test) + len(validation & test) <= repeated
    for a, b, c in zip(first, again, other, strict=True):
        torch.testing.assert_close(a.images, b.images)
        torch.testing.assert_close(a.target, b.target)
        assert not torch.equal(a.images, c.images)


def test_digits_fingerprint_repeats_and_follows_the_split() -> None:
    modules = [Digits(split_seed=seed) for seed in (0, 0, 1)]
    for data in modules:
        data.load(Patch())
    first, again, other = (data.fingerprint() for data in modules)
    assert first == again != other


def test_a_batch_is_normalized_by_the_training_split() -> None:
    data = Digits(shift=1)
    assert data.spec.shape == (1, 8, 8)
    assert data.spec.classes == 10
    splits = data.load(Patch())
    batch = splits.train.batch(torch.arange(len(splits.train)), None)
    assert batch.inputs.dtype == torch.float32
    torch.testing.assert_close(batch.inputs.double().mean(), torch.zeros(()).double(), **FLOAT32_STEPS)
    torch.testing.assert_close(batch.inputs.double().std(correction=0), torch.ones(()).double(), **FLOAT32_STEPS)
    torch.testing.assert_close(splits.test.preprocess.moments, splits.train.preprocess.moments)
    # Only training images are augmented, and only with a key.
    order = torch.arange(16)
    torch.testing.assert_close(splits.test.batch(order, 5).inputs, splits.test.batch(order, None).inputs)
    assert not torch.equal(splits.train.batch(order, 5).inputs, splits.train.batch(order, None).inputs)


def write_idx(folder: Path, *, gzipped: bool, train: int = 40, test: int = 10) -> None:
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for name in FILES:
        count = train if name.startswith("train") else test
        shape = (count, 28, 28) if "images" in name else (count,)
        values = torch.randint(0, 10, shape, dtype=torch.uint8, generator=generator)
        head = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)
        data = head + values.numpy().tobytes()
        (folder / (f"{name}.gz" if gzipped else name)).write_bytes(gzip.compress(data) if gzipped else data)


@pytest.mark.parametrize(("cls", "folder"), [(MNIST, "MNIST"), (FashionMNIST, "FashionMNIST")])
def test_idx_files_gzipped_or_plain_are_the_same(tmp_path: Path, cls: type[MNIST], folder: str) -> None:
    write_idx(tmp_path / "a" / folder / "raw", gzipped=True)
    write_idx(tmp_path / "b" / folder / "raw", gzipped=False)
    one, two = cls(root=str(tmp_path / "a")), cls(root=str(tmp_path / "b"))
    assert one.missing() is None
    splits = one.load(Patch())
    two.load(Patch())
    assert [len(split) for split in splits] == [36, 4, 10]
    assert one.fingerprint() == two.fingerprint()
    assert sorted(path.name for path in (tmp_path / "a" / folder / "raw").iterdir()) == sorted(f"{f}.gz" for f in FILES)


def test_idx_agrees_with_torchvision(tmp_path: Path) -> None:
    from torchvision import datasets

    write_idx(tmp_path / "MNIST" / "raw", gzipped=False)
    train, test = MNIST(root=str(tmp_path)).read()
    for ours, official in ((train, True), (test, False)):
        theirs = datasets.MNIST(str(tmp_path), train=official)
        torch.testing.assert_close(ours.images[:, 0], theirs.data)
        torch.testing.assert_close(ours.target, theirs.targets)


@pytest.mark.parametrize("damage", ["cut", "foreign", "cut_gz"])
def test_a_damaged_idx_file_is_refused(tmp_path: Path, damage: str) -> None:
    good = bytes([0, 0, 8, 1, 0, 0, 0, 5]) + bytes(5)
    data = {"cut": good[:-1], "foreign": b"PNG" + good, "cut_gz": gzip.compress(good)[:-3]}[damage]
    path = tmp_path / ("x.gz" if damage == "cut_gz" else "x")
    path.write_bytes(data)
    with pytest.raises(ValueError, match="fetch it again"):
        read_idx(path)


@pytest.mark.parametrize(
    ("cls", "hints"),
    [
        (MNIST, ["train-images-idx3-ubyte", "MNIST/raw", "data.root=", "data.download=true"]),
        (FashionMNIST, ["FashionMNIST/raw", "data.root="]),
        (CIFAR10, ["data_batch_1", "cifar-10-batches-py", "data.root=", "data.download=true"]),
        (ImageFolder, ["train", "data.root=", "CLASS"]),
    ],
)
def test_missing_data_names_the_folder_and_the_option(tmp_path: Path, cls: type[MNIST], hints: list[str]) -> None:
    message = cls(root=str(tmp_path / "empty")).missing()
    assert message is not None
    for hint in [str(tmp_path / "empty"), *hints]:
        assert hint in message


def test_missing_files_are_no_problem_with_download(tmp_path: Path) -> None:
    assert MNIST(root=str(tmp_path), download=True).missing() is None
    assert CIFAR10(root=str(tmp_path), download=True).missing() is None


def test_prepare_downloads_only_with_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(MNIST, "fetch", lambda self: fetched.append(str(self.root)))
    MNIST(root=str(tmp_path)).prepare()
    assert fetched == []
    MNIST(root=str(tmp_path), download=True).prepare()
    assert fetched == [str(tmp_path)]


def test_cifar10_reads_what_torchvision_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    import torchvision

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    generator = np.random.default_rng(0)
    pixels = {}
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        pixels[name] = generator.integers(0, 256, (20, 3072), dtype=np.uint8)
        entry = {"data": pixels[name], "labels": [i % 10 for i in range(20)]}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(n) for n in range(10)]}))
    # The hashes are those of the real files.
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    data = CIFAR10(root=str(tmp_path))
    assert data.missing() is None
    splits = data.load(Patch())
    assert [len(split) for split in splits] == [90, 10, 20]
    torch.testing.assert_close(splits.test.images, torch.from_numpy(pixels["test_batch"]).view(20, 3, 32, 32))


@pytest.mark.shared_data
def test_real_mnist_from_a_read_only_folder(shared_data: Path) -> None:
    data = MNIST(root=str(shared_data))
    assert data.missing() is None
    splits = data.load(Patch())
    assert [len(split) for split in splits] == [54_000, 6_000, 10_000]
    # The constants everyone uses, here from nine tenths of the training set.
    torch.testing.assert_close(splits.train.preprocess.moments.mean.item() / 255, 0.1307, atol=1e-3, rtol=0)
    torch.testing.assert_close(splits.train.preprocess.moments.std.item() / 255, 0.3081, atol=1e-3, rtol=0)


def test_fewer_training_images_are_a_stratified_subset_of_more() -> None:
    tokenizer = Patch(size=2)
    whole = Digits().load(tokenizer)
    parts = [Digits(train_size=size).load(tokenizer) for size in (50, 200)]
    for part, size in zip(parts, (50, 200), strict=True):
        assert len(part.train) == size
        assert every(
            torch.equal(getattr(part, name).target, getattr(whole, name).target) for name in ("validation", "test")
        )
        counts = part.train.target.bincount(minlength=10)
        assert int(counts.max() - counts.min()) <= 2 + size // 100
    small, large = ({image.numpy().tobytes() for image in part.train.images} for part in parts)
    assert small < large


def test_too_large_a_train_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.train_size=5000: the train split has 1295 samples"):
        Digits(train_size=5000).load(Patch(size=2))
