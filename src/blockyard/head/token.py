"""Token head: one prediction per token, optionally tied to the embedding table.

Source: Press and Wolf 2017, Using the Output Embedding to Improve Language Models (arXiv 1608.05859), for tying;
    Devlin et al. 2019, BERT (arXiv 1810.04805), whose code has the hidden layer; Gemma Team 2024, Gemma 2
    (arXiv 2408.00118), section 2, for the soft cap; Granite's and Cohere's models for the factor; Loshchilov et al.
    2024, nGPT (arXiv 2410.01131), eq. 3, for gain
Reference: transformers GPT2LMHeadModel.lm_head, BertLMPredictionHead, Gemma2ForCausalLM, CohereForCausalLM
Equation: z = s W x_t, with W the embedder's table if tied; with a hidden layer s W norm(activation(U x_t + b)); with a
    gain g each output times its g; with a cap c the logits are c tanh(z / c)
Cost: O(N D V) time, V D parameters unless tied
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from blockyard.channel_mixer._activation import ACTIVATIONS
from blockyard.contracts import ChoiceOptions, Context, Embedder, Head, Positive, Seq
from blockyard.head._pooled import rescale_tokens
from blockyard.norm.layer import Layer
from blockyard.ops.linear import Linear, linear, output
from blockyard.ops.projection import Projection, defers, leaves_raw, soft_cap
from blockyard.ops.scaled_vector import ScaledVector

BERT_EPS = 1e-12


class Token(Head):
    """Leaves out prefix tokens. Initial weights have standard deviation init_std.

    Options:
        tied: share the embedding table instead of learning a separate weight
        zero: start at zero, so that the first predictions are uniform, as in modded-nanogpt
        bias: use a bias on the outputs
        hidden: activation of a hidden layer of model.dim channels with a layer norm after it; null means none
        hidden_bias: use biases in the hidden layer and its norm, as in BERT; ModernBERT has none
        hidden_eps: epsilon of that norm; 1e-12 is BERT's
        scale: factor on the outputs
        gain: a trained factor on each output, one at first, for vectors of length one (block=sphere,
            model.unit_weights)
        softcap: bound on the outputs, by a tanh; 30 in Gemma 2, null means none
    """

    gives: ClassVar[str] = "token"

    def __init__(
        self,
        ctx: Context,
        *,
        tied: bool = False,
        zero: bool = False,
        bias: bool = False,
        hidden: Literal["gelu", "gelu_tanh", "relu"] | None = None,
        hidden_bias: bool = True,
        hidden_eps: Positive = BERT_EPS,
        scale: Positive = 1.0,
        gain: bool = False,
        softcap: Positive | None = None,
    ) -> None:
        super().__init__()
        if tied and ctx.tokens.vocabulary != ctx.outputs:
            raise ValueError(
                f"head.tied=true shares an embedding table of {ctx.tokens.vocabulary} token ids, but the head has "
                f"{ctx.outputs} outputs; use head.tied=false"
            )
        if tied and zero:
            raise ValueError(
                "head.zero=true is for a weight of the head's own, and head.tied=true shares that of the tokens; use "
                "one of both"
            )
        if hidden is None and (not hidden_bias or hidden_eps != BERT_EPS):
            raise ValueError(
                "head.hidden_bias and head.hidden_eps have no effect without a hidden layer; use head.hidden=gelu, or "
                "leave them out"
            )
        self.tied = tied
        self.hidden = None if hidden is None else Hidden(ctx, ACTIVATIONS[hidden], bias=hidden_bias, eps=hidden_eps)
        self.proj = output(ctx, ctx.dim, ctx.outputs, bias=bias, gain=0.0 if zero else 1.0, place="logits")
        self.rescaled = ctx.tokens.rescaled
        self.scale = scale
        self.softcap = softcap
        self.gain = ScaledVector(ctx, ctx.outputs, role="fixed") if gain else None

    @classmethod
    def ties(cls, options: ChoiceOptions) -> bool:
        """Return whether the head shares the embedder's table."""
        return bool(options.get("tied", False))

    def tie(self, embedder: Embedder) -> None:
        """Share the embedding table, if tied. Raises ValueError without a table of the head's shape."""
        if not self.tied:
            return
        if embedder.table is None or embedder.table.shape != self.proj.weight.shape:
            table = "none" if embedder.table is None else f"one of shape {tuple(embedder.table.shape)}"
            raise ValueError(
                f"head.tied=true needs an embedding table of shape {tuple(self.proj.weight.shape)}, the tokenizer's "
                f"embedder has {table}; use head.tied=false"
            )
        self.proj.weight = embedder.table

    def forward(self, x: Tensor, seq: Seq) -> Any:
        """x (B, N, D) -> (B, N, V), without prefix tokens.

        Inside `ops.projection.deferred` it returns a `Projection` in place of many logits, or their `RawLogits` where
        the loss is compiled.
        """
        x = x[:, seq.num_prefix :]
        if self.hidden is not None:
            x = self.hidden(x)
        if type(self.proj) is Linear and not self.rescaled:
            if defers(x, len(self.proj.weight)):
                return self._projection(x)
            if leaves_raw(x, len(self.proj.weight)):
                return self._projection(x).raw_logits()
        logits = self.proj(x)  # (B, N, V)
        if self.gain is not None:
            logits = logits * self.gain()
        prediction = soft_cap(logits, self.scale, self.softcap)
        if self.rescaled:
            prediction = rescale_tokens(prediction, seq)
        return prediction  # (B, N, V)

    def _projection(self, x: Tensor) -> Projection:
        """Return the last layer on x (B, N, D), to be computed with the loss."""
        if self.proj.factor != 1.0:
            x = x * self.proj.factor
        weight = self.proj.weight
        bias: Tensor | None = self.proj.bias
        if self.gain is not None:
            # A factor on an output is one on a row of the weight, so that the loss needs to know no gain.
            gain = self.gain()
            weight = gain[:, None] * weight
            bias = None if bias is None else gain * bias
        return Projection(x, weight, bias, self.scale, self.softcap)


class Hidden(nn.Module):
    """norm(activation(U x + b)), model.dim channels wide."""

    def __init__(self, ctx: Context, activation: Callable[[Tensor], Tensor], *, bias: bool, eps: float) -> None:
        super().__init__()
        self.proj = linear(ctx, ctx.dim, ctx.dim, bias=bias)
        self.activation = activation
        self.norm = Layer(ctx, eps=eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.norm(self.activation(self.proj(x)))
