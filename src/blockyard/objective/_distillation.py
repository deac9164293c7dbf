"""Distillation: a trained model's predictions as further targets of objectives on classes or token ids.

Source: Hinton, Vinyals and Dean 2015, Distilling the Knowledge in a Neural Network (arXiv 1503.02531), section 2; with
    mixed images Beyer et al. 2022, Knowledge distillation: A good teacher is patient and consistent (arXiv 2106.05237)
Reference: torch.nn.functional.kl_div of log-softmaxes, with log_target=True
Equation: (1 - w) L + w T^2 mean over targets of sum_v p_v (log p_v - log q_v), p = softmax(z_teacher / T),
    q = softmax(z / T), with L the objective's own loss

The factor T^2 keeps the gradients of both parts of one size: the gradients of the second shrink by 1 / T^2. The teacher
reads the same prepared batch as the model does: the same crop, the same mixed images, the same hidden tokens. Targets
that the loss leaves out are left out of both parts. Label smoothing, z-loss, weights of classes and further tokens
ahead are parts of L alone.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from blockyard.contracts import Batch, Distillation, Positive, Text
from blockyard.contracts.inherited_options import with_options_of
from blockyard.objective._classes import ClassObjective
from blockyard.ops.projection import Projection

TEMPERATURE = 2.0
WEIGHT = 0.5

TeacherWeight = Annotated[float, Gt(0), Le(1)]


def divergence(prediction: Tensor, teacher: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """Return T^2 times the mean KL divergence of the model's predictions from the teacher's, in nats; 0 of no target.

    prediction, teacher: (..., V) logits
    counted: (...) bool, the targets that count
    """
    exact = torch.promote_types(prediction.dtype, torch.float32)
    student = (prediction.to(exact) / temperature).log_softmax(-1)
    guide = (teacher.to(exact) / temperature).log_softmax(-1)
    losses = (guide.exp() * (guide - student)).sum(-1)  # (...)
    return temperature**2 * losses.masked_fill(~counted, 0.0).sum() / counted.sum().clamp_min(1)


class DistilledObjective(ClassObjective):
    """Cross entropy, and with a teacher the divergence from its predictions.

    Options:
        teacher: a trained model with predictions as further targets: a finished run (a path, a name, an id or last), or
            hf:NAME or timm:NAME in the local cache; it must predict the same classes or token ids
        temperature: divisor of both models' logits before they are compared
        teacher_weight: share of the divergence from the teacher in the loss; the rest is the cross entropy
        teacher_sha256: hash of the config and the weights of `teacher`; filled in, and checked if it is there
    """

    # `teacher_sha256` identifies the model; its place does not.
    incidental: ClassVar[frozenset[str]] = frozenset({"teacher"})

    @with_options_of(ClassObjective)
    def __init__(
        self,
        *,
        teacher: Text | None = None,
        temperature: Positive = TEMPERATURE,
        teacher_weight: TeacherWeight = WEIGHT,
        teacher_sha256: Text | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if teacher is None:
            idle = {
                "temperature": temperature != TEMPERATURE,
                "teacher_weight": teacher_weight != WEIGHT,
                "teacher_sha256": teacher_sha256 is not None,
            }
            names = [name for name, is_set in idle.items() if is_set]
            if names:
                text = ", ".join(f"objective.{name}" for name in names)
                raise ValueError(f"{text}: nothing is compared without objective.teacher; name a run there")
            return
        self.distillation = Distillation(teacher, teacher_sha256, temperature, teacher_weight)

    def distilled(self, loss: Tensor, prediction: Any, teacher: Tensor, target: Any) -> Tensor:
        """Return the objective's own loss and the divergence from the teacher, weighted.

        loss: the objective's own loss, a scalar
        prediction: (..., V), or a `Projection` that computes it
        teacher: (..., V)
        target: as in `loss`
        """
        assert self.distillation is not None
        logits = prediction.logits() if isinstance(prediction, Projection) else prediction
        first = target if isinstance(target, Tensor) else target[0]
        share = self.distillation.weight
        own_loss = (1 - share) * loss if share < 1 else torch.zeros_like(loss)  # 0 times NaN would be NaN
        return own_loss + share * divergence(logits, teacher, Batch.counted(first), self.distillation.temperature)
