"""A config's learner and a training batch of it, without a run."""

from __future__ import annotations

import torch

from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.contracts import Batch
from blockyard.data.splits.order import take
from blockyard.engine.module import Learner, LearnerSettings

SAMPLES = 4


def learner_and_batch(overrides: list[str]) -> tuple[Learner, Batch]:
    """The learner of overrides, with the weights of seed 0, and a batch that is ready for its training step."""
    components = Components(compose(overrides).config)
    if components.init is not None:
        components.init.prepare_tokenizers(components)
    splits = components.load()
    order = torch.arange(SAMPLES) % len(splits.train)
    batch = components.objective.ready(take(splits.train, order, 1), 1)
    if components.objective.mixes:
        batch = components.objective.mix(batch, batch.map(lambda tensor: tensor.flip(0)), 1)
    settings = LearnerSettings(total=1)
    model = components.model(0)
    return Learner(model, components.objective, components.optimizer, components.schedule, settings), batch
