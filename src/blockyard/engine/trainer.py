"""Where and how long a run trains: the options of conf/trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le
from torch import nn

from blockyard.config.lightning import refused_flags
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
    Seed,
    Threads,
    TokenMixer,
    Workers,
)
from blockyard.contracts.objective import writes_from_source
from blockyard.engine import context_parallel
from blockyard.engine.context_parallel import CONTEXT
from blockyard.engine.growth import Growth, Ramp
from blockyard.errors import UserError
from blockyard.model._block_stack import loops_problem
from blockyard.ops.kernel import Kernel
from blockyard.ops.shaping import FORGETS
from blockyard.position.xpos import XPos
from blockyard.schedule._warmup import Length, check_length, to_steps

Factor = Annotated[int, Ge(2), Le(1_024), Because("a thousand times the tokens are a million times the pairs")]


Loops = Annotated[int, Ge(1), Le(1_024), Because("each is a pass through the blocks of the loop")]
Seconds = Annotated[float, Gt(0), Le(7 * 24 * 3600)]  # a week; torch counts milliseconds in 32 bits
UNLIMITED = 2**40  # steps of a run that something else ends
_LARGEST_HALF = 8.0  # keys of usual sizes times e^8 are below 65,504, the largest number of float16


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
        max_epochs: epochs after which the run ends; of several limits, the one that is reached first counts
        max_seconds: seconds of training after which the run ends, without evaluations and checkpoints. Schedules then
            follow the time: a share of the run is a share of the seconds
        max_flops: training FLOPs after which the run ends, in whole steps
        eval_every: steps between two evaluations; null evaluates once an epoch
        log_every: steps between two rows of training metrics
        gradient_clip: largest norm of all gradients together, null for no limit
        group: batches that are sorted by length together, so that less of a batch is padding; 0 leaves them random
        sampling: random takes every training sample once an epoch; balanced takes as many of each class, those of rare
            ones several times
        order_seed: seed of the order of the training samples; null is the run's seed
        first_batch: samples of the first step, over all processes; later ones have more, in multiples of it, up to
            data.batch_size. null: every step has all
        batch_warmup: steps until then; an int counts steps, a float below 1 is a share of the run
        first_context: tokens of each text in the first step, likewise; evaluation reads whole ones
        context_warmup: steps until texts are whole, likewise
        accumulate: micro-batches that a process computes its share of a batch in, to save memory; the step is the same
        checkpoint_blocks: compute the inside of each block again in the backward pass, to save memory
        compile: compile every block with torch.compile
        require_flash: refuse to train where a layer cannot use a flash attention kernel and that would be faster
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
        loops: numbers of times through the loop of `model.order` with which the validation and test splits are
            evaluated once more at the end, as test/loss@4loops
        write: write the target of every test source at the end, greedily, as `blockyard eval write=true` does, with its
            scores among the test metrics, as test/written_cer; for runs that write a text, or codes, from a source
        inspect: numbers from inside the model that are measured over the test split at the end: outliers, the share of
            tokens whose norm after the last block is more than twice the median, as test/inspect_outliers; asked, the
            share of attention on the part of a picture that a question asks for, as test/inspect_asked
        overfit: train on the first so many batches again and again; 0 is off
        deterministic: refuse operations that do not give the same bits every time
        threads: CPU threads of torch; auto is one, and one more for every 0.3 GFLOPs of a batch, up to the cores
        peak_flops: peak of one device in the precision of the run, in FLOP/s, of which `device/mfu` is the share; null
            takes the peak of a GPU from its data sheet
        profile: write the time of each operation to fit-profile.txt in the run folder
        extra: further flags of pytorch_lightning.Trainer, such as {detect_anomaly: true}; not those a run sets itself
    """

    incidental: ClassVar[frozenset[str]] = frozenset(
        {"accelerator", "devices", "num_nodes", "strategy", "num_workers", "require_flash", "attention", "profile"}
        | {"log_every", "threads", "accumulate", "timeout", "checkpoint_blocks", "peak_flops"}
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
        max_seconds: Positive | None = None,
        max_flops: Positive | None = None,
        eval_every: Count | None = None,
        log_every: Count = 50,
        gradient_clip: Positive | None = 1.0,
        group: CountOrZero = 0,
        sampling: Literal["random", "balanced"] = "random",
        order_seed: Seed | None = None,
        first_batch: BatchSize | None = None,
        batch_warmup: Length = 0,
        first_context: Count | None = None,
        context_warmup: Length = 0,
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
        loops: tuple[Loops, ...] = (),
        write: bool = False,
        inspect: tuple[Literal["outliers", "asked"], ...] = (),
        overfit: CountOrZero = 0,
        deterministic: bool = False,
        threads: Literal["auto"] | Threads = "auto",
        peak_flops: Positive | None = None,
        profile: bool = False,
        extra: dict[str, Any] = {},  # noqa: B006 - never changed; the default that a config shows
    ) -> None:
        self.accelerator = accelerator
        self.devices = devices
        self.num_nodes = num_nodes
        self.strategy = strategy
        self.precision = precision
        self.max_steps = max_steps
        self.max_epochs = max_epochs
        self.max_seconds = max_seconds
        self.max_flops = max_flops
        self.eval_every = eval_every
        self.log_every = log_every
        self.gradient_clip = gradient_clip
        self.group = group
        self.sampling = sampling
        self.order_seed = order_seed
        self.first_batch = first_batch
        self.batch_warmup = batch_warmup
        self.first_context = first_context
        self.context_warmup = context_warmup
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
        self.loops = loops
        self.write = write
        self.inspect = inspect
        self.extrapolate = extrapolate
        self.overfit = overfit
        self.deterministic = deterministic
        self.threads = threads
        self.peak_flops = peak_flops
        self.profile = profile
        self.extra = extra
        check_options(self)

    @property
    def world(self) -> int:
        """Return the number of processes in all."""
        return self.devices * self.num_nodes

    @property
    def sharded(self) -> bool:
        """Return whether each process holds a part of the weights."""
        return self.strategy == "fsdp"

    @property
    def distributed(self) -> bool:
        """Return whether the processes of the run are connected, as with strategy=ddp also for a single one."""
        return self.sharded or self.world > 1 or self.strategy == "ddp"

    @property
    def context(self) -> bool:
        """Return whether every sequence is cut among the processes."""
        return self.strategy == "context"

    def device_type(self) -> str:
        """Return cpu or cuda. Raises UserError if GPUs are requested and the machine has none, or too few."""
        import torch

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.accelerator == "cpu" or (self.accelerator == "auto" and not gpus):
            if self.precision == "16-mixed":
                # Lightning would train in bfloat16 in its place.
                raise UserError(
                    "trainer.precision=16-mixed needs a GPU, and this machine has none; use 32, bf16-mixed or auto"
                )
            return "cpu"
        if gpus < self.devices:
            raise UserError(
                f"trainer.devices={self.devices} with trainer.accelerator={self.accelerator}: "
                f"this machine has {gpus} GPUs; use trainer=cpu or fewer devices"
            )
        return "cuda"

    def step_limits(self, steps_per_epoch: int, step_flops: int | None = None) -> dict[str, int]:
        """Return the steps after which each of the options ends the run, by its name; `max_seconds` counts no steps.

        step_flops: training FLOPs of a step; without them `max_flops` is left out

        Raises UserError where `max_flops` is less than a step.
        """
        limits = {}
        if self.max_steps is not None:
            limits["max_steps"] = self.max_steps
        if self.max_epochs is not None:
            limits["max_epochs"] = self.max_epochs * steps_per_epoch
        if self.max_flops is not None and step_flops:
            steps = int(self.max_flops // step_flops)
            if not steps:
                raise UserError(
                    f"trainer.max_flops={self.max_flops:g} is less than a step of {step_flops:.3g} FLOPs; use "
                    f"{step_flops} or more, or a smaller data.batch_size"
                )
            limits["max_flops"] = steps
        return limits

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the steps of the run by the options that count steps or epochs; UNLIMITED without either."""
        return min(self.step_limits(steps_per_epoch).values(), default=UNLIMITED)

    def growth(self, batch_size: int, tokens: int, total: int) -> Growth | None:
        """Return the growth of batches to `batch_size` samples of `tokens` tokens in `total` steps, or None."""
        if self.first_batch is None and self.first_context is None:
            return None
        batch = Ramp(self.first_batch or batch_size, batch_size, to_steps(self.batch_warmup, total))
        return Growth(batch, Ramp(self.first_context or tokens, tokens, to_steps(self.context_warmup, total)))

    def problems(self, data: DataModule, objective: Objective, model: Architecture) -> list[str]:
        """Return the problems with this data, objective and model, one sentence each; known before anything is read."""
        return trainer_problems(self, data, objective, model)

    def model_problems(self, model: nn.Module) -> list[str]:
        """Return why this trainer cannot train a built model, one sentence each."""
        issues = [*_kernel_problems(model, self.attention)]
        if self.context:
            issues += context_parallel.model_problems(model, self.world)
        mixers = [module for module in model.modules() if isinstance(module, TokenMixer)]
        if self.first_context is not None and not all(mixer.traits.any_length for mixer in mixers):
            issues.append(
                f"trainer.first_context={self.first_context} trains on shorter texts first, and a token mixer of this "
                "model takes texts of one length; use another token_mixer, or trainer.first_context=null"
            )
        if self.precision == "16-mixed":
            problems = [_too_large(module) for module in model.modules() if isinstance(module, XPos)]
            issues += filter(None, problems)
        if self.loops and (problem := loops_problem(model)):
            issues.append(f"trainer.loops={list(self.loops)}: {problem}")
        return issues


def _kernel_problems(model: nn.Module, kernel: Kernel) -> Iterator[str]:
    """Yield why a kernel that was chosen by name cannot compute the scores of a mixer, as it would refuse them."""
    # sdpa takes a bias on the scores and nothing else; the chunks of the online softmax cannot forget either.
    shapes = {getattr(module, "shapes_scores", None) for module in model.modules()}
    for shaped in sorted(filter(None, shapes)):
        if kernel == "sdpa" or (kernel == "online" and shaped == FORGETS):
            yield (
                f"trainer.attention={kernel} cannot serve: {shaped}, between the products and the softmax; use "
                "trainer.attention=auto"
            )


def _too_large(scheme: XPos) -> str | None:
    """Return why keys that a scheme scales are too large for float16, or None."""
    largest = scheme.largest(1)
    if largest <= _LARGEST_HALF:
        return None
    span = math.ceil(scheme.span * largest / _LARGEST_HALF)
    return (
        f"trainer.precision=16-mixed holds numbers up to 65,504, and position=xpos makes keys e^{largest:.0f} times "
        f"larger; use position.span={span} or more, or trainer.precision=bf16-mixed"
    )


def check_options(plan: TrainerPlan) -> None:
    """Raise ValueError for options of a trainer that do not work together."""
    limits = (plan.max_steps, plan.max_epochs, plan.max_seconds, plan.max_flops)
    if all(limit is None for limit in limits):
        raise ValueError("trainer.max_steps and trainer.max_epochs are both null; give one, such as max_epochs=30")
    if plan.max_seconds is not None:
        _check_timed(plan)
    if plan.max_flops is not None and (plan.first_batch is not None or plan.first_context is not None):
        raise ValueError(
            f"trainer.max_flops={plan.max_flops:g} counts steps of one size, and trainer.first_batch or "
            "trainer.first_context makes the first ones smaller; use trainer.max_steps"
        )
    if plan.precision == "16-mixed" and plan.accelerator == "cpu":
        raise ValueError("trainer.precision=16-mixed needs a GPU; on a CPU use 32, bf16-mixed or auto")
    if plan.precision == "16-mixed" and plan.strategy == "fsdp":
        raise ValueError("trainer.precision=16-mixed does not work with trainer.strategy=fsdp; use bf16-mixed")
    if plan.attention == "online" and (plan.compile or plan.strategy == "fsdp"):
        other = "compile=true" if plan.compile else "strategy=fsdp"
        raise ValueError(
            f"trainer.attention=online does not work with trainer.{other}: its backward pass is not compiled and "
            "reads the weights of position biases whole; leave one of them out"
        )
    for name in ("batch", "context"):
        start, warmup = getattr(plan, f"first_{name}"), getattr(plan, f"{name}_warmup")
        check_length(f"trainer.{name}_warmup", warmup)
        if start is not None and warmup == 0:
            raise ValueError(f"trainer.first_{name}={start} says nothing alone; set trainer.{name}_warmup=0.2 too")
        if start is None and warmup > 0:
            raise ValueError(f"trainer.{name}_warmup={warmup} says nothing alone; set trainer.first_{name} too")
    if plan.strategy == "context":
        problem = context_parallel.plan_problem(
            plan.devices * plan.num_nodes, plan.attention, plan.compile, plan.precision
        )
        if problem:
            raise ValueError(problem)
    if plan.extra:
        issues = refused_flags(plan.extra, profile=plan.profile)
        if issues:
            raise ValueError("; ".join(issues))


def _check_timed(plan: TrainerPlan) -> None:
    """Raise ValueError for options that do not work in a run whose length is a time."""
    timed = f"trainer.max_seconds={plan.max_seconds:g}"
    processes = plan.devices * plan.num_nodes
    if processes > 1:
        # Each process has its own clock, so that their learning rates, and then their weights, would differ.
        raise ValueError(
            f"{timed} ends a run of one process, and this one has {processes}; use trainer.max_steps or "
            "trainer.max_flops, or trainer.devices=1"
        )
    for name in ("batch_warmup", "context_warmup"):
        length = getattr(plan, name)
        if isinstance(length, float) and length > 0:
            raise ValueError(
                f"trainer.{name}={length} is a share of the steps, whose number is not known with {timed}; use a "
                f"number of steps, such as trainer.{name}=100"
            )


def growth_problems(plan: TrainerPlan, data: DataModule, objective: Objective, shards: int) -> Iterator[str]:
    """Yield why batches, or texts, cannot be smaller in the first steps."""
    if plan.first_batch is not None:
        start = f"trainer.first_batch={plan.first_batch}"
        if plan.group:
            yield f"{start} would take the shortest samples, which trainer.group={plan.group} puts first; use group=0"
        if data.batch_size % plan.first_batch or plan.first_batch % shards:
            problem = f"{start}: batches grow in multiples of it; use a divisor of data.batch_size={data.batch_size}"
            if shards > 1:
                problem += f" that is a multiple of {shards}, processes times micro-batches"
            yield problem
    if plan.first_context is not None:
        start = f"trainer.first_context={plan.first_context}"
        if data.spec.modality != "text" or not data.spec.resizable or objective.takes != "token":
            yield f"{start} cuts windows of running text with a target for each token; use it with data.sample=window"
        elif data.spec.shape[0] % plan.first_context:
            yield (
                f"{start}: texts grow in multiples of it to {data.spec.shape[0]} tokens; use a divisor of "
                f"{data.spec.shape[0]}"
            )
        if plan.context:
            yield f"{CONTEXT} cuts every sequence among processes, and {start} makes it shorter; use one of both"


def trainer_problems(plan: TrainerPlan, data: DataModule, objective: Objective, model: Architecture) -> list[str]:
    """Return the problems of these parts together, one sentence each; known before anything is read."""
    issues = []
    readers = 1 if plan.context else plan.world  # with context, every process reads all samples
    shards = plan.accumulate * readers
    if data.batch_size % shards:
        issues.append(
            f"data.batch_size={data.batch_size} does not divide into {readers} processes times "
            f"trainer.accumulate={plan.accumulate} micro-batches; use a multiple of {shards}"
        )
    if data.eval_batch_size % plan.world:
        issues.append(
            f"data.eval_batch_size={data.eval_batch_size} does not divide among {plan.world} processes; "
            f"use a multiple of {plan.world}"
        )
    ahead = getattr(objective, "ahead", 1)
    if plan.context and ahead > 1:
        cut = f"{CONTEXT} cuts sequences, and objective.ahead={ahead} reads later targets"
        issues.append(f"{cut}; use objective.ahead=1")
    if plan.checkpoint_blocks and not model.stacks:
        issues.append("trainer.checkpoint_blocks=true: this model has no blocks; use false")
    if plan.group and not data.spec.variable:
        issues.append(
            f"trainer.group={plan.group} sorts samples by length, and all samples of this data are of one length; "
            "use trainer.group=0"
        )
    if data.spec.mixed and (plan.group or plan.sampling == "balanced"):
        option, other = "trainer.sampling=balanced", "trainer.sampling=random"
        if plan.group:
            option, other = f"trainer.group={plan.group}", "trainer.group=0"
        issues.append(
            f"{option} says which samples meet in a batch, and so does data=mixture by its weights; use {other}"
        )
    issues += growth_problems(plan, data, objective, shards)
    if plan.max_seconds is not None and data.spec.mixed and getattr(data, "schedule", None):
        issues.append(
            f"trainer.max_seconds={plan.max_seconds:g}: data.schedule changes the weights at shares of the steps, "
            "whose number is not known; use data.weights, or trainer.max_steps or trainer.max_flops"
        )
    if plan.sampling == "balanced" and data.spec.target != "class" and not data.spec.mixed:
        issues.append("trainer.sampling=balanced needs a class for each sample, and this data has none; use random")
    if plan.sampling == "balanced" and plan.group:
        issues.append(
            f"trainer.sampling=balanced and trainer.group={plan.group} both say which samples meet; use "
            "trainer.group=0 or trainer.sampling=random"
        )
    if plan.extrapolate and not (data.spec.resizable and model.causal):
        issues.append(
            f"trainer.extrapolate={list(plan.extrapolate)} evaluates a decoder on longer sequences of running "
            "text or of a generated task; use model=decoder and a text with data.sample=window, or "
            "trainer.extrapolate=[]"
        )
    if plan.write and not writes_from_source(data.spec, objective):
        issues.append(
            "trainer.write=true is for runs that write a text, or codes, from a source, such as objective=translate "
            "and objective=ctc; leave it out"
        )
    if plan.context:
        issues += context_parallel.sequence_problems(data.spec, objective)
    return issues
