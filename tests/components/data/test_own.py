"""data=dataset and data=lightning: a user's classes in our order, exactly again, and what is wrong named by sample."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Splits
from blockyard.data.dataset import OwnDataset
from blockyard.data.lightning import LightningDataModule, OwnModule
from blockyard.engine.loader import BatchDataset, Layout, training_loader
from blockyard.errors import UserError
from blockyard.objective.classify import Classify
from blockyard.tokenizer.patch import Patch
from tests.support import own_data
from tests.support.engine_runs import run
from tests.support.tiny import ON_CPU, ONE_LAYER, configured, steps


def loaded(dataset: Any, **options: Any) -> Splits:
    return OwnDataset(train=lambda: dataset, **options).load(Patch(size=4))


def test_a_sample_is_that_of_the_dataset_seeded_by_itself() -> None:
    data = OwnDataset(train=own_data.Squares)
    assert (data.spec.modality, data.spec.shape, data.spec.class_names) == ("image", (1, 8, 8), ("dark", "bright"))
    splits = data.load(Patch(size=4))
    assert [len(split) for split in splits] == [72, 9, 9]
    indices = torch.cat([split.index for split in splits])  # type: ignore[attr-defined]
    assert indices.sort().values.tolist() == list(range(90))
    order = torch.tensor([5, 0, 30])
    state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    batch = splits.train.batch(order, 7)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == state[1:]
    torch.testing.assert_close(torch.get_rng_state(), state[0])
    random.seed(3)
    np.random.seed(3)
    again = torch.cat([splits.train.batch(each[None], 7).inputs for each in order])
    torch.testing.assert_close(again, batch.inputs, rtol=0, atol=0)
    assert not torch.equal(splits.train.batch(order, 8).inputs, batch.inputs)
    assert isinstance(batch.target, torch.Tensor)
    assert batch.target.tolist() == (splits.train.index[order] % 2).tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_in_the_middle_of_an_epoch_with_the_same_batches(workers: int) -> None:
    train = loaded(own_data.Squares()).train
    dataset = BatchDataset(train, Layout(seed=1, samples=len(train), batch_size=16), Classify())
    whole = list(training_loader(dataset, start=0, stop=6, workers=0, pin=False, timeout=60))
    rest = list(training_loader(dataset, start=3, stop=6, workers=workers, pin=False, timeout=60))
    for one, other in zip(whole[3:], rest, strict=True):
        torch.testing.assert_close(other.inputs, one.inputs, rtol=0, atol=0)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_two_processes_read_disjoint_shares_of_the_batches_of_one(micro_batches: int) -> None:
    """The short form of the run under DDP in tests/engine/lightning. Random transforms are the same, too."""
    train = loaded(own_data.Squares()).train
    sizes = {"seed": 1, "samples": len(train), "batch_size": 16, "micro_batches": micro_batches}

    def batches(rank: int, world: int) -> list[Tensor]:
        """A step's images of one process, for each step of an epoch and a half."""
        layout = Layout(**sizes, rank=rank, world=world)
        dataset = BatchDataset(train, layout, Classify())
        count = 6 * micro_batches
        loaded = [
            each.inputs for each in training_loader(dataset, start=0, stop=count, workers=0, pin=False, timeout=60)
        ]
        return [torch.cat(loaded[at : at + micro_batches]) for at in range(0, count, micro_batches)]

    def images(step: Tensor) -> set[bytes]:
        return {image.numpy().tobytes() for image in step}

    for whole, first, second in zip(batches(0, 1), batches(0, 2), batches(1, 2), strict=True):
        assert len(first) == len(second) == 8
        assert images(first) | images(second) == images(whole)
        assert not images(first) & images(second)


def test_kinds_of_samples() -> None:
    vectors = OwnDataset(train=own_data.Numbers)
    assert (vectors.spec.modality, vectors.spec.shape, vectors.spec.values) == ("vector", (3,), (1,))
    batch = vectors.load(Patch()).train.batch(torch.arange(2), None)
    assert batch.target.shape == (2, 1)  # type: ignore[union-attr]
    ids = OwnDataset(train=own_data.Ids, vocabulary=5)
    assert (ids.spec.modality, ids.spec.shape, ids.spec.vocabulary, ids.spec.target) == ("symbols", (9,), 5, None)
    mapping = OwnDataset(train=lambda: own_data.Squares(fault="keys"), inputs="picture", target="label")
    assert mapping.spec.target == "class"


def test_an_iterable_dataset_is_read_in_its_own_order() -> None:
    data = OwnDataset(train=own_data.Stream, validation=own_data.Stream, test=own_data.Squares, train_size=8)
    splits = data.load(Patch(size=4))
    assert [len(split) for split in splits] == [8, 12, 90]
    assert splits.train.batch(torch.tensor([5, 6]), None).inputs[:, 0, 0, 0].tolist() == [0, 1]
    assert "a resumed run reads it from the beginning of its epoch" in data.limits()[0]
    assert not any("from the beginning" in limit for limit in OwnDataset(train=own_data.Squares).limits())


def test_the_loaders_of_a_lightning_data_module() -> None:
    data = OwnModule(module=own_data.Module)  # type: ignore[arg-type]
    assert [len(split) for split in data.load(Patch(size=4))] == [81, 20, 9]
    assert issubclass(own_data.Module, LightningDataModule)
    assert not issubclass(own_data.Squares, LightningDataModule)
    collated = OwnModule(module=lambda: own_data.Module(collated=True))  # type: ignore[arg-type, return-value]
    one, two = (each.load(Patch(size=4)).train.batch(torch.arange(4), 5) for each in (data, collated))
    torch.testing.assert_close(two.inputs, 2 * one.inputs)
    torch.testing.assert_close(two.target, one.target)


def test_a_module_is_set_up_once_and_its_splits_are_drawn_alike() -> None:
    """`setup("fit")` was called for each loader: of a split that it draws, validation samples were training samples."""

    class Drawn(own_data.Module):
        def setup(self, stage: str) -> None:
            super().setup(stage)
            self.parts = torch.utils.data.random_split(own_data.Squares(100), [80, 20])

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.parts[0])

        def val_dataloader(self) -> Any:
            assert self.stages == ["prepare", "fit"]
            return torch.utils.data.DataLoader(self.parts[1])

    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        own = OwnModule(module=Drawn, split_seed=seed).datasets()  # type: ignore[arg-type]
        indices = [set(own[name].dataset.indices) for name in ("train", "validation")]
        assert not indices[0] & indices[1]
        drawn.append(indices)
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (own_data.Squares(fault="shape"), {}, r"\[17\] (is|: its input is) float32 of shape \(1, 7, 8\)"),
        (own_data.Squares(fault="raise"), {}, r"data\.train\[17\] cannot be read: OSError: no such file"),
        (own_data.Squares(fault="class"), {}, r"data\.train\[17\]: the target 7 is no class from 0 to 2 - 1"),
        (own_data.Squares(fault="text"), {}, r"data\.train\[0\], its input is a str; it should be a number"),
        (own_data.Squares(fault="keys"), {}, r"has the keys picture, label; set data\.inputs to one of them"),
        (own_data.Squares(0), {}, r"data\.train has no samples"),
        (own_data.Squares(3), {}, r"data\.train has 3 samples, too few to draw a test split"),
        (own_data.Numbers(gap=True), {}, r"data\.train\[5\]: the target \[?nan\]? is not finite"),
        (own_data.Ids(), {}, r"data\.train has token ids; set data\.vocabulary"),
        (own_data.Stream(), {}, r"data\.train is iterable and cannot be split; give it a validation and test dataset"),
        (own_data.Squares(), {"train_size": 99}, r"data\.train_size=99: the train split has 72 samples"),
    ],
)
def test_what_cannot_be_used_is_named(dataset: Any, options: dict[str, Any], message: str) -> None:
    def read() -> None:
        for split in loaded(dataset, **options):
            split.batch(torch.arange(len(split)), None)

    with pytest.raises(UserError, match=message):
        read()


def test_classes_come_from_packages_that_are_allowed() -> None:
    overrides = ("data=dataset", "tokenizer=patch", "tokenizer.size=4")
    target = "data.train._target_=tests.support.own_data.Squares"
    cases = {
        "is not in an allowed package": (target,),
        "own_data.Module is not a Dataset": ("data.train._target_=tests.support.own_data.Module", "allow=[tests]"),
        "has no option 'cuont'": (target, "data.train.cuont=7", "allow=[tests]"),
        "data.train names no dataset": (),
    }
    for message, own in cases.items():
        assert message in " ".join(map(str, check(compose([*overrides, *own]))))
    config, _ = configured(*overrides, target, "data.train.count=70", "allow=[tests]")
    assert (config["data"]["train"]["count"], config["data"]["train"]["fault"]) == (70, "")


def test_what_is_not_promised_is_said_and_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = ("data.train._target_=tests.support.own_data.Stream", "data.train_size=8", "data.batch_size=4")
    others = [f"data.{name}._target_=tests.support.own_data.Squares" for name in ("validation", "test")]
    overrides = (*ON_CPU, *ONE_LAYER, *steps(3, None), "tokenizer=patch", "tokenizer.size=4", "allow=[tests]")
    run_folder = run(tmp_path, "data=dataset", *stream, *others, base=overrides)
    limits = run_folder.facts()["data"]["limits"]
    assert [record.getMessage() for record in caplog.records if record.getMessage() in limits] == limits
    assert limits[0].startswith("data.train is an iterable dataset: a resumed run reads it from the beginning")
