"""What cannot work between the options of a trainer and the data, objective and model that it is to train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockyard.contracts import Architecture, DataModule, Objective
from blockyard.engine.context_problems import sequence_problems

if TYPE_CHECKING:
    from blockyard.engine.trainer import TrainerPlan


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
