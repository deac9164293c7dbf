"""The data module for a `pytorch_lightning.Trainer` of the user's own, in the order of a run: batches by number.

`plain_trainer` has the module that goes with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from blockyard.config.build import Components
from blockyard.contracts import Batch, Objective, Split, Splits, Streamed
from blockyard.data.splits.order import EvalOrder, take
from blockyard.engine.callbacks.base import StateDict
from blockyard.engine.loader import BatchDataset
from blockyard.engine.setup_data import lay_out, targets_vary
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError


class BatchNumbers(DistributedSampler[int]):
    """The numbers of the batches of one pass over a loader.

    It is a DistributedSampler because Lightning leaves such a sampler as it is: a number already stands for the share
    of a process.

    epoch: gives the number of the epoch; None for an evaluation: all of its passes are alike
    """

    def __init__(self, count: int, epoch: Callable[[], int | None] | None = None) -> None:
        self.count = count
        self.position: tuple[int, int] | None = None  # epoch and batch at which the next pass begins
        self._epoch_of = epoch
        self._set = 0

    def __iter__(self) -> Iterator[int]:
        position, self.position = self.position, None
        if self._epoch_of is None:
            return iter(range(self.count))
        if position is None:
            epoch_of = self._epoch_of()
            position = (self._set if epoch_of is None else epoch_of, 0)
        epoch, first = position
        return iter(range(epoch * self.count + first, (epoch + 1) * self.count))

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a loader that no data module of a trainer has made."""
        self._set = epoch


class EpochBatches(BatchDataset):
    """The training split as prepared batches by number; its length is that of the split, where BatchSizeFinder ends."""

    def __len__(self) -> int:
        return len(self.split)


class EvaluationBatches(Dataset[Batch]):
    """A split as prepared batches by number, each sample once; missing ones of a process are dummies without target."""

    def __init__(self, split: Split, objective: Objective, batch_size: int, *, rank: int = 0, world: int = 1) -> None:
        self.split, self.objective = split, objective
        self.order = EvalOrder(split, batch_size, rank, world)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Batch:
        return self.objective.ready(take(self.split, self.order(number), None), None)


class TrainingBatches(DataLoader[Batch]):
    """The training batches, one epoch a pass. Lightning saves its position, so that a fit goes on inside an epoch.

    trainer: of this fit, or None
    """

    def __init__(self, dataset: EpochBatches, trainer: pl.Trainer | None, **settings: Any) -> None:
        layout = dataset.layout
        self.numbers = BatchNumbers(layout.steps_per_epoch * layout.micro_batches, self._epoch)
        self._trainer = trainer
        super().__init__(dataset, batch_size=None, sampler=self.numbers, **settings)

    def _epoch(self) -> int | None:
        if self._trainer is None:
            return None
        if getattr(self._trainer, "overfit_batches", 0):  # the same batches again and again
            return 0
        return self._trainer.current_epoch

    def state_dict(self) -> StateDict:
        """Return the epoch and the batch that come next."""
        if self._trainer is None:
            return {}
        done = self._trainer.fit_loop.total_batch_idx + 1
        epoch, batch = divmod(done, int(self._trainer.num_training_batches))
        return {"epoch": epoch, "batch": batch}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Begin the next pass where `state_dict` says."""
        if state_dict:
            self.numbers.position = state_dict["epoch"], state_dict["batch"]


class TrainerData(pl.LightningDataModule):
    """The splits of a config for a Trainer, loaded already: a model may depend on their content.

    A step consumes one batch of `batch_size` samples over all processes and all micro-batches
    (`accumulate_grad_batches`), as in a run. Both sizes may be set, as `BatchSizeFinder` does.
    """

    def __init__(self, components: Components, splits: Splits) -> None:
        super().__init__()
        self.components, self.splits = components, splits
        self.plan: TrainerPlan = components.node("trainer")
        self.batch_size: int = components.data.batch_size
        self.eval_batch_size: int = components.data.eval_batch_size

    def train_dataloader(self) -> TrainingBatches:
        """Return the training split in the order of a run with this seed."""
        trainer, components = self.trainer, self.components
        if isinstance(self.splits.train, Streamed):
            raise UserError(
                "a plain Trainer reads batches by their number, and the training split of this data is a stream; train "
                "it with `blockyard train`"
            )
        layout = lay_out(self.splits, self.batch_size, self.plan, seed=seed_of(components), rank=0)
        if trainer is not None:
            accumulate = trainer.accumulate_grad_batches
            layout = replace(layout, rank=trainer.global_rank, world=trainer.world_size, micro_batches=accumulate)
        dataset = EpochBatches(
            self.splits.train, layout, components.objective, weighted=targets_vary(components.data.spec)
        )
        return TrainingBatches(dataset, trainer, **self._settings)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the validation split, each sample once."""
        return self._evaluation(self.splits.validation, self.plan.limit_val)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return the test split, each sample once."""
        return self._evaluation(self.splits.test, self.plan.limit_test)

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Return the test split, as `test_dataloader`."""
        return self.test_dataloader()

    def _evaluation(self, split: Split, limit: int | None) -> DataLoader[Batch]:
        rank, world = 0, 1
        if self.trainer is not None:
            rank, world = self.trainer.global_rank, self.trainer.world_size
        dataset = EvaluationBatches(split, self.components.objective, self.eval_batch_size, rank=rank, world=world)
        count = len(dataset)
        if limit:
            count = min(count, limit)
        return DataLoader(dataset, batch_size=None, sampler=BatchNumbers(count), **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        workers = self.plan.num_workers
        settings: dict[str, Any] = {"num_workers": workers, "pin_memory": torch.cuda.is_available()}
        if workers:
            settings["timeout"] = self.plan.timeout
        if workers and sys.platform == "linux":  # as in a run, whatever start method the program has set
            settings["multiprocessing_context"] = "fork"
        return settings


def seed_of(components: Components) -> int:
    """Return the seed of a config."""
    return int(components.config.get("seed") or 0)
