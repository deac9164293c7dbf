"""Lightning's classes and flags that a config may use in addition to blockyard's own, and reasons against the others.

A flag is an argument of `pytorch_lightning.Trainer` that `trainer.extra` passes through. No class is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from blockyard.errors import near

# Family -> the base class whose subclasses run as well.
BASES = {
    "callbacks": "pytorch_lightning.callbacks.callback.Callback",
    "logger": "pytorch_lightning.loggers.logger.Logger",
}
# Callback of Lightning that does some of the run's own work -> the way out.
OWNED_CALLBACKS = {
    "Checkpoint": "an exact resume needs the run's own checkpoints; use callbacks.checkpoint.every",
    "ProgressBar": "use callbacks.progress",
    "ModelSummary": "parameters and FLOPs are in summary.json",
    "BatchSizeFinder": "the batch size is a part of a run's identity; use a sweep over data.batch_size",
    "LearningRateFinder": "the learning rate is a part of a run's identity; use a sweep over optimizer.lr",
    "GradientAccumulationScheduler": "use trainer.accumulate",
}
# Flags of `pytorch_lightning.Trainer` that `trainer.extra` passes on.
PASSED_ON = (
    *("benchmark", "detect_anomaly", "enable_autolog_hparams", "max_time", "model_registry", "profiler"),
    "sync_batchnorm",
)

# Lightning's loggers that connect as they are made. A check must not connect.
CONNECTING_LOGGERS = ("CometLogger", "LitLogger")
# Flag that the run sets itself -> the reason, and the option of ours to use instead.
OWNED_FLAGS: dict[str, str] = {
    "accelerator": "use trainer.accelerator",
    "devices": "use trainer.devices",
    "num_nodes": "use trainer.num_nodes",
    "strategy": "use trainer.strategy",
    "precision": "use trainer.precision",
    "max_steps": "use trainer.max_steps",
    "max_epochs": "use trainer.max_epochs",
    "min_steps": "the length of a run is known before it starts; use trainer.max_steps",
    "min_epochs": "the length of a run is known before it starts; use trainer.max_epochs",
    "accumulate_grad_batches": "micro-batches are weighted by their targets; use trainer.accumulate",
    "gradient_clip_val": "the norm is computed once for clipping, guard and log; use trainer.gradient_clip",
    "gradient_clip_algorithm": "gradients are clipped by norm; use trainer.gradient_clip",
    "deterministic": "use trainer.deterministic",
    "callbacks": "use callbacks.NAME._target_=...",
    "logger": "use logger._target_=...",
    "log_every_n_steps": "use trainer.log_every",
    "val_check_interval": "evaluation is the run's own; use trainer.eval_every",
    "check_val_every_n_epoch": "evaluation is the run's own; use trainer.eval_every",
    "num_sanity_val_steps": "evaluation is the run's own; blockyard check builds every part before a run",
    "inference_mode": "evaluation is the run's own",
    "limit_train_batches": "use trainer.limit_train",
    "limit_val_batches": "use trainer.limit_val",
    "limit_test_batches": "use trainer.limit_test",
    "limit_predict_batches": "a run does not predict; see blockyard generate",
    "overfit_batches": "use trainer.overfit",
    "fast_dev_run": "use debug=fast",
    "barebones": "use callbacks=quiet logger=none",
    "enable_checkpointing": "an exact resume needs the run's own checkpoints; use callbacks.checkpoint.every",
    "enable_progress_bar": "use callbacks.progress",
    "enable_model_summary": "parameters and FLOPs are in the run's summary; see blockyard explain",
    "use_distributed_sampler": "the order of the data is a function of seed, epoch and step; shards follow from it",
    "reload_dataloaders_every_n_epochs": "one loader serves the whole run, which makes a resume exact",
    "default_root_dir": "use outputs=...",
    "plugins": "checkpoints are written by the run's own plugin",
}


def connects(target: type) -> bool:
    """Return whether a logger connects to its service as it is made."""
    return any(
        base.__module__.startswith("pytorch_lightning.loggers.") and base.__name__ in CONNECTING_LOGGERS
        for base in target.__mro__
    )


def is_lightning(family: str, target: type) -> bool:
    """Return whether a class is one of Lightning's kind for this family."""
    return BASES.get(family) in {f"{base.__module__}.{base.__qualname__}" for base in target.__mro__}


def refusal(target: type) -> str | None:
    """Return why a Lightning callback cannot run here, or None."""
    for base in target.__mro__:
        if base.__module__.startswith("pytorch_lightning.callbacks.") and base.__name__ in OWNED_CALLBACKS:
            return f"{target.__name__} does what the run does itself: {OWNED_CALLBACKS[base.__name__]}"
    return None


def refused_flags(extra: Mapping[str, Any], *, profile: bool = False) -> list[str]:
    """Return a sentence for each flag in `trainer.extra` that is refused. Imports Lightning for an unknown name."""
    issues = [f"trainer.extra.{name} belongs to the run: {OWNED_FLAGS[name]}" for name in extra if name in OWNED_FLAGS]
    if profile and "profiler" in extra:
        issues.append("trainer.extra.profiler and trainer.profile=true exclude each other")
    rest = [name for name in extra if name not in OWNED_FLAGS]
    if rest:
        import pytorch_lightning as pl

        flags = set(inspect.signature(pl.Trainer).parameters) - set(OWNED_FLAGS)
        for name in rest:
            if name not in flags:
                nearest = near(name, sorted(flags))
                hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
                issues.append(
                    f"trainer.extra.{name}: pytorch_lightning.Trainer has no such flag{hint} "
                    f"Flags that pass through: {', '.join(sorted(flags))}"
                )
    return issues
