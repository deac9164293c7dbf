"""Options of softmax attention that change what is computed, with the token mixers that have them."""

from __future__ import annotations

from functools import partial
from typing import Any

from blockyard.channel_mixer.mlp import MLP

MIXERS = ("attention", "windowed_attention", "memory_attention", "strict_attention")
# Of `attention` alone: without one product of queries, keys and values, or a projection behind them.
APART: list[dict[str, Any]] = [
    {"fused": False, "num_kv_heads": 2, "gate": "head", "bias": True},
    {"project": ("values", "output"), "qk_norm": True},
    {"project": ("output",), "map": partial(MLP, expansion=2.0)},
    {"project": (), "score_scale": 1.0},
]
OPTIONS: list[dict[str, Any]] = [
    {"gate": "head"},
    {"gate": "channel", "num_kv_heads": 2, "bias": True},
    {"qk_norm": "full", "num_kv_heads": 2},
    {"qk_norm": "layer"},
    {"qk_norm": "cosine"},
    {"qk_norm": "sphere", "num_kv_heads": 2},
    {"sink": "zero", "num_kv_heads": 2},
    {"sink": "learned"},
    {"softcap": 2.0, "sink": "learned"},
    {"score_scale": 0.3, "qk_norm": "cosine"},
    {"score_scale": "learned"},
    {"score_scale": "log_n"},
    {"exclusive": True, "num_kv_heads": 2},
    {"tied_kv": True, "qk_norm": True},
    *APART,
]
# One of each mixer, and of attention all.
CASES = [("attention", options) for options in OPTIONS]
CASES += [(mixer, {"conv": 3, "gate": "head"}) for mixer in ("attention", "windowed_attention", "memory_attention")]
CASES += [("windowed_attention", {"stride": 2, "window": 2}), ("windowed_attention", {"chunked": True})]
CASES += [(MIXERS[1 + number % 3], options) for number, options in enumerate(OPTIONS) if options not in APART]
