"""Which properties are checked, in which small model, and what a component must declare for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockyard.contracts import Traits
from blockyard.verify import checks

if TYPE_CHECKING:
    from torch import nn

LENGTH = 6  # tokens
# The families of which components are held to properties; choices of others are the context.
FAMILIES = (
    *("token_mixer", "channel_mixer", "norm", "block", "residual", "layers", "position", "head", "model"),
    "parametrization",
)
_SMALL = (
    *("data=code", "tokenizer=byte", f"data.context={LENGTH}", "model.dim=16", "model.depth=2", "model.heads=4"),
    *("position=none", "logger=none", "head=token"),
)
DECODER = (*_SMALL, "model=decoder", "objective=next_token")
ENCODER = (*_SMALL, "model=encoder", "objective=masked_token")


@dataclass(frozen=True)
class Property:
    """One property of a model.

    base: the model's overrides, before those of the user
    declared: whether the token mixer says that it has it; None where every component must
    check: raises `checks.BrokenError` where the model has it not
    causal: whether it is one of causal models (True) or of bidirectional ones (False); None for one of both
    """

    name: str
    base: tuple[str, ...]
    declared: Callable[[Traits], bool] | None
    check: Callable[[nn.Module, int], None]
    causal: bool | None = None

    @property
    def of_tokens(self) -> bool:
        """Whether it is about the outputs of single tokens, which a head for whole sequences does not give."""
        return self.declared is not None


PROPERTIES = (
    Property("causality", DECODER, lambda traits: traits.causal, checks.causality, True),
    Property("padding", ENCODER, lambda traits: traits.padding and traits.any_length, checks.padding),
    Property("auxiliary", ENCODER, lambda traits: traits.padding and traits.any_length, checks.auxiliary_padding),
    Property("packing", ENCODER, lambda traits: traits.packing and traits.any_length, checks.packing),
    Property("packing, causal", DECODER, lambda t: t.causal and t.packing and t.any_length, checks.packing, True),
    Property("cached decoding", DECODER, lambda traits: traits.causal, checks.cached_decoding, True),
    Property("permutation", ENCODER, lambda traits: traits.equivariant, checks.permutation, False),
    Property("determinism", ENCODER, None, checks.determinism),
    Property("gradients", ENCODER, None, checks.gradients),
    Property("bf16", ENCODER, None, checks.bfloat16),
    Property("compile", ENCODER, None, checks.compiles),
)
# The check of a property in a model with one prediction for each sequence, where it has one.
OF_SEQUENCES = {"padding": checks.padding_of_sequences}
