"""Token ids, passed through as the data gives them.

Source: Bengio et al. 2003, A Neural Probabilistic Language Model, for the embedding table
Reference: torch.nn.Embedding

For data of token ids in place of texts: the synthetic tasks. The data sets the vocabulary.
"""

from __future__ import annotations

from blockyard.contracts import DataSpec, Tokenizer, TokenSpec
from blockyard.tokenizer._lookup import LookupTokenizer


class Symbols(LookupTokenizer, Tokenizer):
    """Passes token ids through."""

    modality = "symbols"

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per id. Raises ValueError for data without a vocabulary."""
        if data.vocabulary is None:
            raise ValueError(f"tokenizer=symbols reads symbols, the data gives {data.things}")
        scaled = self.scale == "sqrt_dim"
        return TokenSpec(data.shape, variable=data.variable, vocabulary=data.vocabulary, scaled=scaled)
