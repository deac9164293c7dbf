"""Where and how long a run trains: the options of conf/trainer, and the Lightning trainer built from them."""

from __future__ import annotations

from pathlib import Path
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
from blockyard.engine.context_problems import model_problems, plan_problem
from blockyard.engine.lightning.flags import refusals
from blockyard.engine.trainer_problems import trainer_problems
from blockyard.errors import UserError
from blockyard.ops.selection import Kernel

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from pytorch_lightning.loggers.logger import Logger
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
        if max_steps is None and max_epochs is None:
            raise ValueError("trainer.max_steps and trainer.max_epochs are both null; give one, such as max_epochs=30")
        if precision == "16-mixed" and accelerator == "cpu":
            raise ValueError("trainer.precision=16-mixed needs a GPU; on a CPU use 32, bf16-mixed or auto")
        if precision == "16-mixed" and strategy == "fsdp":
            raise ValueError("trainer.precision=16-mixed does not work with trainer.strategy=fsdp; use bf16-mixed")
        if attention == "online" and (compile or strategy == "fsdp"):
            other = "compile=true" if compile else "strategy=fsdp"
            raise ValueError(
                f"trainer.attention=online does not work with trainer.{other}: its backward pass is not compiled and "
                "reads the weights of position biases whole; leave one of them out"
            )
        if strategy == "context":
            problem = plan_problem(devices * num_nodes, attention, compile, precision)
            if problem:
                raise ValueError(problem)
        if extra:
            issues = refusals(extra, profile=profile)
            if issues:
                raise ValueError("; ".join(issues))
        self.accelerator = accelerator
        self.devices = devices
        self.num_nodes = num_nodes
        self.strategy = strategy
        self.precision = precision
        self.max_steps = max_steps
        self.max_epochs = max_epochs
        self.eval_every = eval_every
        self.log_every = log_every
        self.gradient_clip = gradient_clip
        self.group = group
        self.sampling = sampling
        self.accumulate = accumulate
        self.checkpoint_blocks = checkpoint_blocks
        self.compile = compile
        self.require_flash = require_flash
        self.attention = attention
        self.num_workers = num_workers
        self.timeout = timeout
        self.limit_train = limit_train
        self.limit_val = limit_val
        self.limit_test = limit_test
        self.extrapolate = extrapolate
        self.overfit = overfit
        self.deterministic = deterministic
        self.threads = threads
        self.profile = profile
        self.extra = extra

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

    def build(
        self,
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
        import pytorch_lightning as pl

        return pl.Trainer(
            accelerator="gpu" if device_type == "cuda" else "cpu",
            devices=self.devices,
            num_nodes=self.num_nodes,
            strategy=self._strategy(root),
            precision=_PRECISIONS[precision],
            max_steps=total,
            max_epochs=epochs,
            accumulate_grad_batches=self.accumulate,
            callbacks=callbacks,
            plugins=[io],
            default_root_dir=root,
            logger=logger or False,
            log_every_n_steps=self.log_every,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            deterministic=self.deterministic or None,
            **{"profiler": self._profiler(root), **self.extra},
        )

    def _profiler(self, root: Path) -> Any:
        if not self.profile:
            return None
        from pytorch_lightning.profilers import SimpleProfiler

        return SimpleProfiler(dirpath=root, filename="profile")

    def _strategy(self, root: Path) -> Any:
        from blockyard.engine.system.processes import RunDDP, RunFSDP2

        if self.sharded:
            return RunFSDP2(root, self.world, self.timeout)
        if self.world > 1 or self.strategy == "ddp":
            return RunDDP(root, self.timeout)
        return "auto"


_PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed"}
