"""Symbols as the data gives them, each a token.

Source: Bengio et al. 2003, A Neural Probabilistic Language Model, for a table of vectors
Reference: torch.nn.Embedding

For data that is made of symbols and not of text: the probes of a model's memory. The data names the vocabulary.
"""

from __future__ import annotations

from blockyard.contracts import DataSpec, Tokenizer, TokenSpec
from blockyard.tokenizer._symbols import Scale, Tabled


class Symbols(Tabled, Tokenizer):
    """Passes symbols through."""

    modality = "symbols"

    def __init__(self, *, scale: Scale = "one") -> None:
        self.scale = scale

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token per symbol. Raises ValueError where the data has none."""
        if data.vocabulary is None:
            raise ValueError(f"tokenizer=symbols reads symbols, the data gives {data.things}")
        scaled = self.scale == "sqrt_dim"
        return TokenSpec(data.shape, variable=data.variable, vocabulary=data.vocabulary, scaled=scaled)
