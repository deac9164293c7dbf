"""The sizes of splits: every data set keeps as many samples as the options say, or refuses."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import yaml
from torch import Tensor

from blockyard.config.choices import catalog
from blockyard.config.untrusted.targets import locate
from blockyard.contracts import Split, Splits
from blockyard.data.digits import Digits
from blockyard.data.splits.simple_models import equally_spaced
from blockyard.errors import UserError
from blockyard.tokenizer.patch import Patch
from tests.battery import run_catalogue
from tests.battery.data_files import accept_small_cifar, data_overrides, write_data
from tests.support.helpers import node

PARTS = Splits._fields
NAMES = sorted(set(catalog.choices("data")) - {"mixture"})  # whose parts have sizes
WRITTEN = {"canvas_drawings": "patch_codes", "dial_numbers": "audio_vq"}
TOKENIZERS = {
    "image": "patch",
    "views": "view_cnn",
    "text": "byte",
    "symbols": "symbols",
    "series": "series_patch",
    "graph": "nodes",
    "audio": "waveform",
    "vector": "columns",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    accept_small_cifar()
    return write_data(tmp_path_factory.mktemp("data"))


def loaded(name: str, files: Path, **options: int) -> Splits:
    """The splits of a choice of `data`, at the sizes of the battery; texts are whole, as cut ones may be left out."""
    target, defaults = node("data", name)
    pairs = (
        override.removeprefix("data.").partition("=")
        for override in data_overrides(name, files)
        if "allow" not in override
    )
    small = {
        key: value for key, value in run_catalogue.SMALL["data"].items() if key in defaults and "context" not in key
    }
    values = {key: yaml.safe_load(value) for key, _, value in pairs}
    classes = {key.removesuffix("._target_"): locate(values.pop(key)) for key in list(values) if "_target_" in key}
    data = target(**{**defaults, **small, **values, **classes, **options})
    tokenizer, own = node("tokenizer", "ids" if name == "tokens" else WRITTEN.get(name, TOKENIZERS[data.spec.modality]))
    if name in WRITTEN:  # codes are written from texts
        reader, options_of_reader = node("tokenizer", "char")
        both: Splits = data.load_both(tokenizer(**own), reader(**options_of_reader))
        return both
    splits: Splits = data.load(tokenizer(**own))
    return splits


@cache
def whole(name: str, files: Path) -> Splits:
    return loaded(name, files)


def first_target(split: Split) -> Tensor | None:
    target = split.batch(torch.arange(len(split)), None).target
    return target if isinstance(target, Tensor) and target.ndim == 1 else None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_each_split_has_the_size_that_is_asked_for(name: str, files: Path) -> None:
    most = [len(split) for split in whole(name, files)]
    windows = getattr(whole(name, files).train, "apart", False) and whole(name, files).train.values.shape[1]  # type: ignore[attr-defined]
    each = windows or 1  # samples of a window
    sizes = [max(count // each - 1 - number % 2, 1) for number, count in enumerate(most)]
    options = {f"{part}_size": size for part, size in zip(PARTS, sizes, strict=True)}
    splits = loaded(name, files, **options)
    assert [len(split) for split in splits] == [size * each for size in sizes]
    for split in splits:
        split.batch(torch.tensor([0, len(split) - 1]), None)
        lengths = getattr(split, "lengths", None)
        assert lengths is None or len(lengths) == len(split)


def test_indices_of_very_many_samples_are_exact() -> None:
    """In single precision the last of 16,777,220 is their number."""
    for count in (5, 2**24, 2**24 + 4, 33_554_436):
        chosen = equally_spaced(count, 10)
        assert (int(chosen[0]), int(chosen[-1])) == (0, count - 1)
        assert len(chosen.unique()) == min(count, 10)


@pytest.mark.parametrize("name", ["digits", "text_file", "table", "molecules"])
def test_more_samples_than_there_are_are_refused(name: str, files: Path) -> None:
    most = len(whole(name, files).test)
    with pytest.raises(UserError, match=rf"data\.test_size={most + 1}: the test split has {most} samples; use at most"):
        loaded(name, files, test_size=most + 1)


def test_a_smaller_size_is_a_subset_with_each_class_its_share() -> None:
    small, large = (Digits(test_size=size).load(Patch(size=2)).test for size in (50, 200))
    images = [{tuple(image.flatten().tolist()) for image in split.images} for split in (small, large)]  # type: ignore[attr-defined]
    assert images[0] < images[1]
    target = first_target(small)
    assert target is not None
    counts = target.bincount(minlength=10)
    assert counts.min() >= 4
    assert counts.max() <= 6


def test_the_test_notices_an_option_that_is_ignored(files: Path) -> None:
    """The planted bug: all samples are kept."""
    with (
        patch("blockyard.data.splits.loaded.LoadedData.size_of", lambda self, part, count: count),
        pytest.raises(AssertionError),
    ):
        test_each_split_has_the_size_that_is_asked_for("digits", files)
