"""Every part of Lightning and torch that a run replaces or uses although it is not public, with its reason.

`PARTS` is the list; an upgrade of a library has this file to look at. `tests/engine/lightning/test_patches.py` fails
where a part is gone or the library is of another release than the one named here, and compares the list with
docs/architecture.md.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch

LIGHTNING, TORCH = "pytorch-lightning 2.6", "torch 2.15"
_HERE = "engine/lightning/patches.py"
_LOOPS = "pytorch_lightning.loops"
_CONNECTORS = "pytorch_lightning.trainer.connectors"


@dataclass(frozen=True)
class Part:
    """A part of a library that is not public, or is replaced.

    name: where it lies; an attribute of instances is named after its class
    release: the distribution and the release that the reason was written for
    file: the one that relies on it, below src/blockyard
    reason: why it is replaced or used
    """

    name: str
    release: str
    file: str
    reason: str


PARTS = (
    Part(
        f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop._broadcast_sigterm_tensor",
        LIGHTNING,
        _HERE,
        "left out: processes agree on SIGTERM at every step, which waits for the device; "
        "`faults.peers` does it at intervals",
    ),
    Part(
        f"{_CONNECTORS}.signal_connector._SignalConnector.register_signal_handlers",
        LIGHTNING,
        _HERE,
        "left out: the handlers let one process talk to the others in the middle of a step, which hangs or breaks the "
        "connection, and save and requeue a SLURM job by themselves; `faults.interrupts` handles the signals",
    ),
    Part(
        f"{_LOOPS}.fit_loop._FitLoop.run",
        LIGHTNING,
        _HERE,
        "followed by the evaluation that a resumed run without a step left still needs",
    ),
    *(
        Part(name, LIGHTNING, _HERE, "StopIteration of a component would end the epoch quietly; it becomes an error")
        for name in (
            f"{_LOOPS}.fit_loop._FitLoop.on_advance_start",
            f"{_LOOPS}.fit_loop._FitLoop.on_advance_end",
            f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop.advance",
        )
    ),
    *(
        Part(name, LIGHTNING, _HERE, "called to end an epoch of the data for Lightning callbacks, inside our one pass")
        for name in (
            f"{_LOOPS}.fit_loop._FitLoop.reset_restart_stage",
            f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop.update_lr_schedulers",
            f"{_CONNECTORS}.logger_connector.logger_connector._LoggerConnector.on_batch_start",
        )
    ),
    *(
        Part(name, LIGHTNING, _HERE, "read and counted up where stacked runs take steps together, without this loop")
        for name in (
            f"{_LOOPS}.fit_loop._FitLoop._data_fetcher",
            f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop._batches_that_stepped",
            f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop.batch_progress",
            f"{_LOOPS}.optimization.automatic._AutomaticOptimization.optim_progress",
        )
    ),
    Part(
        "torch.optim.adam.Adam._step_supports_amp_scaling",
        TORCH,
        _HERE,
        "false for every optimizer of a run in fp16: fused ones unscale inside their step, and the norm has to be "
        "known before it",
    ),
    Part(
        "torch._C._remove_worker_pids",
        TORCH,
        _HERE,
        "called before workers are killed: torch's handler would raise in the main thread, wherever that is",
    ),
    Part(
        "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._worker_pids_set",
        TORCH,
        _HERE,
        "false where that was called: the iterator's own end would call it again, which prints an error",
    ),
    *(
        Part(name, TORCH, "engine/loader.py", "read to watch the worker processes, which are started once")
        for name in (
            "torch.utils.data.dataloader.DataLoader._get_iterator",
            "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._workers",
        )
    ),
    Part(
        "torch.utils.data._utils.worker._worker_info",
        TORCH,
        "engine/stream_loader.py",
        "unset in a worker that reads parts of a stream: a dataset that knows workers would divide a part once more",
    ),
    Part(
        "torch.nn.modules.conv.Conv2d._conv_forward",
        TORCH,
        "engine/faults/small_maps.py",
        "called to compute a small map in float32",
    ),
    Part(
        "torch.nn.modules.dropout._DropoutNd",
        TORCH,
        "engine/callbacks/dropout_schedule.py",
        "the base class of the dropouts whose rate is set",
    ),
    Part(
        "torch._foreach_lerp_",
        TORCH,
        "engine/callbacks/ema.py",
        "all weights of an average in one call, as torch.optim.swa_utils does",
    ),
    Part(
        "torch._fused_sdp_choice",
        TORCH,
        "ops/kernel.py",
        "says which kernel scaled_dot_product_attention takes; torch itself calls it",
    ),
    Part(
        "torch._dynamo.mark_dynamic",
        TORCH,
        "generate/compiled_step.py",
        "one compiled step for all lengths; documented, and not exported from torch.compiler",
    ),
    Part(
        "torch._dynamo.config.recompile_limit",
        TORCH,
        "generate/compiled_step.py",
        "raised to the number of models that a process may decode with",
    ),
    Part(
        "torch._dynamo.config.recompile_limit",
        TORCH,
        "ops/flex.py",
        "raised to the number of shapes that FlexAttention is compiled for",
    ),
    Part(
        "torch._inductor.exc.InductorError",
        TORCH,
        "generate/compiled_step.py",
        "caught to decode without a compiled step where the compiler fails",
    ),
    Part(
        "torch._dynamo.config.allow_rnn",
        TORCH,
        "verify/checks.py",
        "torch traces its own recurrent cells only where asked",
    ),
    Part(
        "torch._compile",
        TORCH,
        "ops/meta.py",
        "stand-ins for modules of the compiler rely on where its `disable` keeps the result, `__dynamo_disable`",
    ),
    Part(
        "torch.ops.mkldnn._is_mkldnn_bf16_supported",
        TORCH,
        "token_mixer/_recurrent.py",
        "oneDNN has an LSTM in bf16 only for CPUs with bf16 of their own, and torch raises elsewhere",
    ),
    *(
        Part(f"torch.ops.aten.{name}", TORCH, "ops/flops.py", "an operator that torch's counter of FLOPs leaves out")
        for name in (
            "_cudnn_rnn",
            "_cudnn_rnn_backward",
            "_fft_c2c",
            "_fft_r2c",
            "_fft_c2r",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
        )
    ),
)


def patch_trainer(trainer: pl.Trainer) -> None:
    """Replace the handling of signals and of StopIteration in a new trainer."""
    epochs, batches = trainer.fit_loop, trainer.fit_loop.epoch_loop
    trainer._signal_connector.register_signal_handlers = _do_nothing  # type: ignore[method-assign]
    batches._broadcast_sigterm_tensor = _do_nothing  # type: ignore[method-assign]
    for loop, names in ((epochs, ("on_advance_start", "on_advance_end")), (batches, ("advance",))):
        for name in names:
            setattr(loop, name, _without_stop_iteration(getattr(loop, name)))


def run_after_loop(trainer: pl.Trainer, function: Callable[[], None]) -> None:
    """Call a function after the training loop; it is also called where the loop finds no step left."""
    run = trainer.fit_loop.run

    def run_and_call() -> None:
        run()
        function()

    trainer.fit_loop.run = run_and_call  # type: ignore[method-assign]


def start_next_epoch(trainer: pl.Trainer, batch: Any) -> None:
    """End an epoch for Lightning and its callbacks, and start the next one; `batch` is the first of it."""
    loop = trainer.fit_loop
    loop.reset_restart_stage()  # else a resumed run would leave the next epoch's start out
    loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
    loop.on_advance_end()
    loop.on_advance_start()
    # The end of an epoch resets what Lightning noted about the batch in progress.
    trainer._logger_connector.on_batch_start(batch)


def next_batch(trainer: pl.Trainer) -> Any:
    """Read the next batch of a trainer of one process, on its device, for a step that is taken without its loop."""
    loop, fetcher = trainer.fit_loop, trainer.fit_loop._data_fetcher
    assert fetcher is not None
    batch, _, _ = next(fetcher)
    loop.epoch_loop.batch_progress.is_last_batch = fetcher.done
    module = trainer.lightning_module
    return module.transfer_batch_to_device(batch, module.device, 0)


def count_steps(trainer: pl.Trainer, steps: int) -> None:
    """Let a trainer count steps of one batch each that were taken without its loop, during a step that it takes."""
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.increment_by(steps, is_last_batch=loop.batch_progress.is_last_batch)
    progress = loop.automatic_optimization.optim_progress.optimizer
    progress.step.increment_by(steps)
    progress.zero_grad.increment_by(steps)
    loop._batches_that_stepped += steps


def unscale_before_step(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer get its gradients unscaled in fp16; a fused one would unscale them in its step."""
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


def forget_workers(iterator: Any) -> None:
    """Keep torch from raising when a data worker ends. iterator: of the DataLoader that started the workers.

    The iterator's own end would remove them a second time, and print the error of that.
    """
    if getattr(iterator, "_worker_pids_set", False):
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False


def silence_libraries() -> None:
    """Silence Lightning's notes, and warnings that do not hold for our training loop; errors are still shown.

    Call it after Lightning was imported: the import sets levels of its own.
    """
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "torch.distributed", "torch._dynamo"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("PL_DISABLE_TIPS", "1")
    for text in (
        ".*does not have many workers.*",
        ".*LeafSpec.*is deprecated.*",
        ".*isinstance\\(treespec.*",
        ".*pkg_resources.*",
        ".*The `srun` command is available.*",
        ".*GPU available but not used.*",
        ".*Precision 16-mixed is not supported.*",
        ".*module\\(s\\) in eval mode.*",
        ".*barrier\\(\\).*using the device under current context.*",
        ".*lr_scheduler.step.*",
        ".*TF32.*|.*set_float32_matmul_precision.*",
    ):
        warnings.filterwarnings("ignore", message=text)
    warnings.filterwarnings("ignore", module="pytorch_lightning.*")
    warnings.filterwarnings("ignore", module="lightning_fabric.*")


def _do_nothing() -> None:
    pass


def _without_stop_iteration(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make StopIteration an error: a run has one epoch without an end for Lightning, and leaves it by other means."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError(
                "a component or a callback raised StopIteration, or skipped the rest of an epoch"
            ) from error

    return call
