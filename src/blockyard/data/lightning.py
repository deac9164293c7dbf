"""A LightningDataModule of your own, by the name of its class.

Source: pytorch_lightning.LightningDataModule
Reference: none in blockyard: the datasets behind its DataLoaders are read

`prepare_data` and `setup` are called, and of each DataLoader the dataset and the `collate_fn` are used. Batch size,
order, sampler and workers are blockyard's, so that a run resumes exactly in the middle of an epoch, unless a dataset is
iterable. Samples are as for data=dataset.
"""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockyard.data.splits.order import mix
from blockyard.data.splits.own_data import Own, OwnData, seeded_everywhere
from blockyard.errors import UserError

LOADER_LIMIT = "batch size, order, samplers and workers of its DataLoaders are not used: data.* and trainer.* say them"
_HOOKS = {"train": "train_dataloader", "validation": "val_dataloader", "test": "test_dataloader"}


class LightningDataModule(ABC):  # noqa: B024 - a class is one by its hooks
    """A class with the hooks of Lightning's class of this name, without importing Lightning."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return all(hasattr(other, name) for name in ("prepare_data", "setup", *_HOOKS.values()))


@dataclass(kw_only=True, eq=False)
class OwnModule(OwnData):
    """Samples of a LightningDataModule by `_target_`, in a package that `allow` names.

    Options:
        module: data.module._target_=package.Class; its arguments beside it, data.module.NAME=VALUE
    """

    module: Callable[[], LightningDataModule] | None = None

    def datasets(self) -> dict[str, Own]:
        """Set the module up and return the datasets behind its loaders."""
        if self.module is None:
            raise UserError("data.module names no class; set data.module._target_=package.Class 'allow=[package]'")
        with seeded_everywhere(mix("module", self.split_seed)):  # a split that it draws is the same in every process
            module: Any = self.module()
            if os.environ.get("LOCAL_RANK", "0") == "0":  # once on a machine
                module.prepare_data()
            own: dict[str, Own] = {}
            for stage, names in {"fit": ("train", "validation"), "test": ("test",)}.items():
                present = [name for name in names if _is_overridden(module, _HOOKS[name])]
                if present:
                    module.setup(stage)  # once: another call may draw another split
                own |= {name: _own(module, _HOOKS[name]) for name in present}
        if "train" not in own:
            raise UserError("data.module has no train_dataloader; define it")
        return own

    def limits(self) -> tuple[str, ...]:
        """Return the limits of the user's class, a sentence each."""
        return (*super().limits(), LOADER_LIMIT)


def _is_overridden(module: Any, hook: str) -> bool:
    return not getattr(type(module), hook).__module__.startswith(("pytorch_lightning.", "lightning."))


def _own(module: Any, hook: str) -> Own:
    loader = getattr(module, hook)()
    if not hasattr(loader, "dataset"):
        raise UserError(f"{hook} returns a {type(loader).__name__}; one DataLoader is read")
    return Own(f"data.module.{hook}", loader.dataset, _own_collate(loader))


def _own_collate(loader: Any) -> Any:
    """Return the collate_fn of a loader where it is not that of torch."""
    from torch.utils.data import default_collate

    if loader.collate_fn is default_collate:
        return None
    return loader.collate_fn
