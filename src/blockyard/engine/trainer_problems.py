"""What cannot work between the options of a trainer and the data, objective and model that it is to train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockyard.contracts import Architecture, DataModule, Objective
from blockyard.engine.context_problems import plan_problem, sequence_problems
from blockyard.engine.lightning.flags import refusals

if TYPE_CHECKING:
    from blockyard.engine.trainer import TrainerPlan


def check_options(plan: TrainerPlan) -> None:
    """Raises ValueError for options of a trainer that do not work together."""
    if plan.max_steps is None and plan.max_epochs is None:
        raise ValueError("trainer.max_steps and trainer.max_epochs are both null; give one, such as max_epochs=30")
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
    if plan.strategy == "context":
        problem = plan_problem(plan.devices * plan.num_nodes, plan.attention, plan.compile, plan.precision)
        if problem:
            raise ValueError(problem)
    if plan.extra:
        issues = refusals(plan.extra, profile=plan.profile)
        if issues:
            raise ValueError("; ".join(issues))


def trainer_problems(plan: TrainerPlan, data: DataModule, objective: Objective, model: Architecture) -> list[str]:
    """Returns what cannot work, one sentence each; known before anything is read."""
    issues = []
    readers = 1 if plan.context else plan.world
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
    if plan.checkpoint_blocks and not model.stacks:
        issues.append("trainer.checkpoint_blocks=true: this model has no blocks; use false")
    if plan.group and not data.spec.variable:
        issues.append(
            f"trainer.group={plan.group} sorts samples by length, and all samples of this data are of one length; "
            "use trainer.group=0"
        )
    if plan.sampling == "balanced" and data.spec.target != "class":
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
    if plan.context:
        issues += sequence_problems(data.spec, objective)
    return issues
