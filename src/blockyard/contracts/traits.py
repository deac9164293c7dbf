"""What a token mixer declares that it can do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """What a token mixer can do. Every trait is tested for every choice that declares it.

    causal: it can run so that no output depends on later tokens; bidirectional: it can run without that
    any_length: it takes any number of tokens; otherwise exactly `tokens.max_len` + prefix
    padding: padding does not change the outputs of real tokens
    packing: several segments in one sequence give what each gives alone
    cross: it can take a `memory`
    prefix: it can mix class and register tokens
    equivariant: without positions, permuting tokens permutes outputs
    axes: the numbers of coordinate axes that it can take; 0 is a set of tokens without coordinates
    ports: what it offers to a position scheme: "queries_and_keys", "scores"
    reads_features: it mixes by `Seq.features`, which the tokenizer must provide
    reads_pairs: it mixes by `Seq.pairs`, which the data must provide
    """

    causal: bool = False
    bidirectional: bool = True
    any_length: bool = True
    padding: bool = False
    packing: bool = False
    cross: bool = False
    prefix: bool = True
    equivariant: bool = False
    axes: frozenset[int] = frozenset({0, 1, 2})
    ports: frozenset[str] = frozenset()
    reads_features: bool = False
    reads_pairs: bool = False
