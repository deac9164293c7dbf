"""Flags of `pytorch_lightning.Trainer` that `trainer.extra` passes through, and those it does not, with reasons."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from blockyard.errors import near

# Flags that the run sets itself -> why, and the option of ours to use instead.
OWNED: dict[str, str] = {
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


def refusals(extra: Mapping[str, Any], *, profile: bool = False) -> list[str]:
    """What is wrong with `trainer.extra`, one sentence for each flag; unknown flags import Lightning to be found."""
    issues = [f"trainer.extra.{name} belongs to the run: {OWNED[name]}" for name in extra if name in OWNED]
    if profile and "profiler" in extra:
        issues.append("trainer.extra.profiler and trainer.profile=true exclude each other")
    rest = [name for name in extra if name not in OWNED]
    if rest:
        import pytorch_lightning as pl

        flags = set(inspect.signature(pl.Trainer).parameters) - set(OWNED)
        for name in rest:
            if name not in flags:
                nearest = near(name, sorted(flags))
                hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
                issues.append(
                    f"trainer.extra.{name}: pytorch_lightning.Trainer has no such flag{hint} "
                    f"Flags that pass through: {', '.join(sorted(flags))}"
                )
    return issues
