"""Where and how long a run trains: the options of conf/trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from blockyard.contracts import (
    Architecture,
    BatchSize,
    Because,
    Count,
    CountOrZero,
    DataModule,
    Objective,
    Positive,
    Processes,
    Threads,
    Workers,
)
from blockyard.engine.context_problems import model_problems
from blockyard.engine.trainer_problems import check_options, trainer_problems
from blockyard.errors import UserError
from blockyard.ops.kernel import Kernel

if TYPE_CHECKING:
    from torch import nn

Factor = Annotated[int, Ge(2), Le(1_024), Because("a thousand times the tokens are a million times the pairs")]


Seconds = Annotated[float, Gt(0), Le(7 * 24 * 3600)]  # a week; torch counts milliseconds in 32 bits


class TrainerPlan:
    """Devices, precision, length and intervals of a run.

    Options:
        accelerator: cpu, gpu, or auto for a GPU where there is one
        devices: processes per node, each with a device of its own
        num_nodes: machines; torchrun or SLURM starts the same command on each
        strategy: ddp copies the model to every process, fsdp (FSDP2) shards it, context also copies it and cuts every
            sequence among the processes (ring attention); auto is ddp for several processes
        precision: 32, bf16-mixed or 16-mixed; auto is 32 on a CPU and bf16-mixed on a GPU
        max_steps: steps after which the run ends
        max_epochs: epochs after which the run ends; with max_steps too, the shorter of both
        eval_every: steps between two evaluations; null evaluates once an epoch
        log_every: steps between two rows of training metrics
        gradient_clip: largest norm of all gradients together, null for no limit
        group: batches that are sorted by length together, so that less of a batch is padding; 0 leaves them random
        sampling: random takes every training sample once an epoch; balanced takes as many of each class, those of rare
            ones several times
        accumulate: micro-batches that a process computes its share of a batch in, to save memory; the step is the same
        checkpoint_blocks: compute the inside of each block again in the backward pass, to save memory
        compile: compile every block with torch.compile
        require_flash: refuse to train where a layer cannot use a flash attention kernel
        attention: the attention kernel: auto takes the fastest that can serve, layer by layer; sdpa is torch's, flex is
            FlexAttention, online the softmax by chunks of keys with memory that grows with N, eager the formula. A
            kernel that is chosen by name and cannot serve is refused
        num_workers: processes that load data; 0 loads in the training process
        timeout: seconds that a process of the run waits for another one, or for a batch from its workers; then the run
            ends as failed and names the process that did not answer
        limit_train: steps an epoch is cut to
        limit_val: validation batches to evaluate
        limit_test: test batches to evaluate
        extrapolate: sequence lengths, as multiples of training's, at which the validation and test splits are
            evaluated once more at the end, as test/loss@2x; for decoders of running text and of generated tasks
        overfit: train on the first so many batches again and again; 0 is off
        deterministic: refuse operations that do not give the same bits every time
        threads: CPU threads of torch; auto is one, and one more for every 0.3 GFLOPs of a batch, up to the cores
        profile: write the time of each operation to fit-profile.txt in the run folder
        extra: further flags of pytorch_lightning.Trainer, such as {detect_anomaly: true}; not those a run sets itself
    """

    incidental: ClassVar[frozenset[str]] = frozenset(
        {"accelerator", "devices", "num_nodes", "strategy", "num_workers", "require_flash", "attention", "profile"}
        | {"log_every", "threads", "accumulate", "timeout", "checkpoint_blocks"}
    )

    def __init__(
        self,
        *,
        accelerator: Literal["auto", "cpu", "gpu"] = "auto",
        devices: Processes = 1,
        num_nodes: Count = 1,
        strategy: Literal["auto", "ddp", "fsdp", "context"] = "auto",
        precision: Literal["auto", 32, "bf16-mixed", "16-mixed"] = "auto",
        max_steps: Count | None = None,
        max_epochs: Count | None = 30,
        eval_every: Count | None = None,
        log_every: Count = 50,
        gradient_clip: Positive | None = 1.0,
        group: CountOrZero = 0,
        sampling: Literal["random", "balanced"] = "random",
        accumulate: BatchSize = 1,
        checkpoint_blocks: bool = False,
        compile: bool = False,  # noqa: A002 - as in torch
        require_flash: bool = False,
        attention: Kernel = "auto",
        num_workers: Workers = 0,
        timeout: Seconds = 300.0,
        limit_train: Count | None = None,
        limit_val: Count | None = None,
        limit_test: Count | None = None,
        extrapolate: tuple[Factor, ...] = (),
        overfit: CountOrZero = 0,
        deterministic: bool = False,
        threads: Literal["auto"] | Threads = "auto",
        profile: bool = False,
        extra: dict[str, Any] = {},  # noqa: B006 - never changed; the default that a config shows
    ) -> None:
        self.accelerator, self.devices, self.num_nodes, self.strategy = accelerator, devices, num_nodes, strategy
        self.precision, self.max_steps, self.max_epochs = precision, max_steps, max_epochs
        self.eval_every, self.log_every, self.gradient_clip = eval_every, log_every, gradient_clip
        self.group, self.sampling = group, sampling
        self.accumulate, self.checkpoint_blocks = accumulate, checkpoint_blocks
        self.compile, self.require_flash, self.attention = compile, require_flash, attention
        self.num_workers, self.timeout = num_workers, timeout
        self.limit_train, self.limit_val, self.limit_test = limit_train, limit_val, limit_test
        self.extrapolate, self.overfit, self.deterministic = extrapolate, overfit, deterministic
        self.threads, self.profile, self.extra = threads, profile, extra
        check_options(self)

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.devices * self.num_nodes

    @property
    def sharded(self) -> bool:
        """Whether each process holds a part of the weights."""
        return self.strategy == "fsdp"

    @property
    def context(self) -> bool:
        """Whether every sequence is cut among the processes."""
        return self.strategy == "context"

    def device_type(self) -> str:
        """cpu or cuda. Raises UserError if GPUs are requested and the machine has none, or too few."""
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.accelerator == "cpu" or (self.accelerator == "auto" and not gpus):
            return "cpu"
        if gpus < self.devices:
            raise UserError(
                f"trainer.devices={self.devices} with trainer.accelerator={self.accelerator}: "
                f"this machine has {gpus} GPUs; use trainer=cpu or fewer devices"
            )
        return "cuda"

    def total_steps(self, steps_per_epoch: int) -> int:
        """Steps of the run: the shorter of max_steps and max_epochs."""
        ends = [self.max_steps, None if self.max_epochs is None else self.max_epochs * steps_per_epoch]
        return min(end for end in ends if end is not None)

    def problems(self, data: DataModule, objective: Objective, model: Architecture) -> list[str]:
        """What cannot work with this data, objective and model, one sentence each; known before anything is read."""
        return trainer_problems(self, data, objective, model)

    def model_problems(self, model: nn.Module) -> list[str]:
        """What of a built model this trainer cannot train, one sentence each."""
        return model_problems(model, self.world) if self.context else []
