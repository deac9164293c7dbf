"""Options of softmax attention that change what is computed, with the token mixers that have them."""

from __future__ import annotations

from typing import Any

MIXERS = ("attention", "windowed_attention", "memory_attention", "strict_attention")
OPTIONS: list[dict[str, Any]] = [
    {"gate": "head"},
    {"gate": "channel", "num_kv_heads": 2, "bias": True},
    {"qk_norm": "full", "num_kv_heads": 2},
    {"qk_norm": "layer"},
    {"qk_norm": "cosine"},
]
# One of each mixer, and of attention all.
CASES = [("attention", options) for options in OPTIONS]
CASES += [(MIXERS[1 + number % 3], options) for number, options in enumerate(OPTIONS)]
