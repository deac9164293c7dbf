"""The base of heads of one prediction per sequence: from the pooled vector to the outputs."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from torch import Tensor

from blockyard.channel_mixer._activation import ACTIVATIONS
from blockyard.contracts import Context, Head, Seq, Width
from blockyard.ops.linear import Linear, linear, output

Activation: TypeAlias = Literal["gelu", "relu", "tanh"]


def check_one_document(head: Head, seq: Seq) -> None:
    """Raise ValueError for packed sequences: one prediction per sequence would mix documents."""
    if seq.segment is not None:
        raise ValueError(
            f"head {type(head).__name__} makes one prediction per sequence and this sequence packs several documents; "
            "pass one document per sequence, or use head=token"
        )


class Pooled(Head):
    """Predicts from one vector that subclasses pool from the tokens: W h + b, or W activation(U h + c) + b.

    Options:
        bias: use a bias on the outputs
        hidden: activation of a hidden layer before the outputs; null means none
        width: channels of the hidden layer; null means model.dim

    Raises ValueError for a width without a hidden layer.
    """

    gives: ClassVar[str] = "sequence"

    def __init__(
        self, ctx: Context, *, bias: bool = True, hidden: Activation | None = None, width: Width | None = None
    ) -> None:
        super().__init__()
        if width is not None and hidden is None:
            raise ValueError(
                f"head.width={width} is the width of a hidden layer; use head.hidden=gelu or head.width=null"
            )
        self.activation = None if hidden is None else ACTIVATIONS[hidden]
        self.features = self.pooled_width(ctx)
        inner = self.features
        self.hidden: Linear | None = None
        if hidden is not None:
            inner = width or ctx.dim
            make = linear if width is None else output  # a width as an option does not grow with the model
            self.hidden = make(ctx, self.features, inner, bias=True)
        self.proj: Linear = output(ctx, inner, ctx.outputs, bias=bias, place="logits")
        if width is not None:
            self.proj.roles["weight"] = "fixed"
            self.proj.factor = self.proj.factor * ctx.width_ratio  # undoes the factor of a growing input
        self.rescaled = ctx.tokens.rescaled

    def pooled_width(self, ctx: Context) -> int:
        """Return the number of features that are pooled from a sequence: model.dim."""
        return ctx.dim

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, V)."""
        return self.predict(self.pool(x, seq), seq)

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """Pool x (B, prefix + N, D) -> (B, features)."""
        raise NotImplementedError

    def predict(self, h: Tensor, seq: Seq) -> Tensor:
        """Predict from the pooled vector h (B, features) -> (B, V). Raises ValueError for several documents."""
        check_one_document(self, seq)
        if self.hidden is not None and self.activation is not None:
            h = self.activation(self.hidden(h))  # (B, width)
        prediction = self.proj(h)  # (B, V)
        if self.rescaled:
            return rescale(prediction, seq)
        return prediction


def rescale(prediction: Tensor, seq: Seq) -> Tensor:
    """Return the prediction (B, steps C) in the units of the inputs: times their size, plus their offset."""
    if seq.scale is None:
        return prediction
    offset, size = seq.scale  # 2 x (B, 1, C)
    steps = prediction.unflatten(1, (-1, offset.shape[2]))  # (B, steps, C)
    return (steps * size + offset).flatten(1)


def rescale_tokens(prediction: Tensor, seq: Seq) -> Tensor:
    """Return the predictions (B, N, steps C) of each token's values in the units of the inputs."""
    if seq.scale is None:
        return prediction
    offset, size = (part[:, None] for part in seq.scale)  # 2 x (B, 1, 1, C)
    steps = prediction.unflatten(2, (-1, offset.shape[3]))  # (B, N, steps, C)
    return (steps * size + offset).flatten(2)


def tokens_and_mask(x: Tensor, seq: Seq) -> tuple[Tensor, Tensor | None]:
    """Return the tokens behind the prefix (B, N, D), and a mask of real ones (B, N), or None if all are real."""
    valid = None if seq.valid is None else seq.valid[:, seq.num_prefix :]
    return x[:, seq.num_prefix :], valid
