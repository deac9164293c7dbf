"""Lightning's trainer, built from the options of conf/trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl

from blockyard.engine.system.processes import RunDDP, RunFSDP2

if TYPE_CHECKING:
    from pytorch_lightning.loggers.logger import Logger

    from blockyard.engine.trainer import TrainerPlan

_PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed"}


def lightning_trainer(
    plan: TrainerPlan,
    *,
    total: int,
    epochs: int,
    precision: str,
    device_type: str,
    callbacks: list[pl.Callback],
    logger: Logger | None,
    io: Any,
    root: Path,
) -> pl.Trainer:
    """Lightning's trainer, which draws, saves and validates nothing itself: `LoopCallback` does.

    epochs: -1, or the number of epochs if Lightning callbacks need it
    logger: what Lightning callbacks log to, or None
    """
    return pl.Trainer(
        accelerator="gpu" if device_type == "cuda" else "cpu",
        devices=plan.devices,
        num_nodes=plan.num_nodes,
        strategy=_strategy(plan, root),
        precision=_PRECISIONS[precision],
        max_steps=total,
        max_epochs=epochs,
        accumulate_grad_batches=plan.accumulate,
        callbacks=callbacks,
        plugins=[io],
        default_root_dir=root,
        logger=logger or False,
        log_every_n_steps=plan.log_every,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        deterministic=plan.deterministic or None,
        **{"profiler": _profiler(plan, root), **plan.extra},
    )


def _profiler(plan: TrainerPlan, root: Path) -> Any:
    if not plan.profile:
        return None
    from pytorch_lightning.profilers import SimpleProfiler

    return SimpleProfiler(dirpath=root, filename="profile")


def _strategy(plan: TrainerPlan, root: Path) -> Any:
    if plan.sharded:
        return RunFSDP2(root, plan.world, plan.timeout)
    if plan.world > 1 or plan.strategy == "ddp":
        return RunDDP(root, plan.timeout)
    return "auto"
