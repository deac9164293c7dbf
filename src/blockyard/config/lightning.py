"""Names of the Lightning classes that a config may use in addition to blockyard's own. Imports none of them."""

from __future__ import annotations

# Family -> the base class whose subclasses run as well.
BASES = {
    "callbacks": "pytorch_lightning.callbacks.callback.Callback",
    "logger": "pytorch_lightning.loggers.logger.Logger",
}
# Lightning's callbacks whose work the run does itself -> what to use instead.
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

# Lightning's loggers that connect as they are made, which a check must not.
CONNECTING_LOGGERS = ("CometLogger", "LitLogger")


def connects(target: type) -> bool:
    """Whether a logger connects to its service as it is made."""
    return any(
        base.__module__.startswith("pytorch_lightning.loggers.") and base.__name__ in CONNECTING_LOGGERS
        for base in target.__mro__
    )


def is_lightning(family: str, target: type) -> bool:
    """Whether a class is one of Lightning's kind for this family."""
    return BASES.get(family) in {f"{base.__module__}.{base.__qualname__}" for base in target.__mro__}


def refusal(target: type) -> str | None:
    """Why a Lightning callback cannot run here, or None."""
    for base in target.__mro__:
        if base.__module__.startswith("pytorch_lightning.callbacks.") and base.__name__ in OWNED_CALLBACKS:
            return f"{target.__name__} does what the run does itself: {OWNED_CALLBACKS[base.__name__]}"
    return None
