"""A channel's whole history as one token.

Source: Liu et al. 2024, iTransformer: Inverted Transformers Are Effective for Time Series Forecasting
    (arXiv 2310.06625), section 3.1
Reference: thuml/iTransformer, layers/Embed.py, DataEmbedding_inverted
Equation: x_c = W history_c + b
Cost: O(C L D) time for a history of L steps

With project=false, normalise=last and model=bare this is NLinear (Zeng et al. 2023, arXiv 2205.13504): preset=nlinear.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from torch import Tensor

from blockyard.contracts import Context, DataSpec, Seq, Tokenizer, TokenSpec
from blockyard.tokenizer._series import (
    HistoryEmbedder,
    Normalise,
    check_one_length,
    check_series,
    remarks_on_classes,
    resolved_normalise,
)


class SeriesChannel(Tokenizer):
    """One token per channel, without an order. A missing value becomes the value before it.

    Options:
        normalise: level and size of each history, taken out of it and put back into its prediction: its mean and
            standard deviation (instance), its last value (last), or nothing (none); auto is none for series with a
            class each, else instance
        project: map histories to model.dim with learned weights; without, model.dim is the length of the history
    """

    modality = "series"
    axes = 0

    # Runs from before `auto` have `instance`, which was the default, and keep their identities.
    same_values: ClassVar[dict[str, dict[str, str]]] = {"normalise": {"instance": "auto"}}

    def __init__(self, *, normalise: Normalise | Literal["auto"] = "auto", project: bool = True) -> None:
        self.normalise = normalise
        self.project = project

    def resolved(self, data: DataSpec) -> dict[str, Any]:
        """Return the normalisation of this data, in place of `auto`."""
        return {"normalise": resolved_normalise(self.normalise, data)}

    def remarks(self, data: DataSpec) -> Iterator[str]:
        """Yield a sentence if the normalisation may hide the classes of series."""
        return remarks_on_classes(self.normalise, data)

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return a set of one token per channel."""
        _, channels = check_series(data)
        check_one_length(data)
        return TokenSpec((), count=channels)

    def embedder(self, ctx: Context) -> ChannelEmbedder:
        """Build the projection of histories. Raises ValueError without one for another width."""
        return ChannelEmbedder(ctx, self.normalise, self.project)


class ChannelEmbedder(HistoryEmbedder):
    """Histories side by side."""

    def parts(self, history: Tensor) -> Tensor:
        """(B, steps, C) -> (B, C, steps)."""
        return history.transpose(1, 2)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Histories (B, steps, C), NaN for missing values -> x (B, C, D), Seq with the scale taken out."""
        return self.embed(inputs, lengths, segment, start)
