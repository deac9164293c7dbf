"""Models whose layers read something of earlier ones."""

from __future__ import annotations

from typing import Any

from torch import nn

from blockyard.token_mixer.attention import Attention
from tests.support.helpers import node, tiny

ORDER = (0, 1, 2, 1, 2, 3)
LOOPED = {"depth": 4, "order": ORDER}
SETTINGS: dict[str, dict[str, Any]] = {
    "mixed": {"value_residual": "mixed"},
    "learned": {"value_residual": "learned"},
    "gated": {"value_residual": "gated"},
    "embedding": {"value_embedding": "alternate"},
    "keys": {"kv_every": 2},
    "all": {"kv_every": 2, "value_residual": "learned", "value_embedding": "all", "num_kv_heads": 2, "qk_norm": True},
}


def options(mixer: str, setting: str) -> dict[str, Any]:
    """A setting without the options that a mixer does not have."""
    has = node("token_mixer", mixer)[1]
    chosen = {name: value for name, value in SETTINGS[setting].items() if name in has}
    if chosen.get("value_residual") == "gated" and not issubclass(node("token_mixer", mixer)[0], Attention):
        return {}
    return chosen


def built(mixer: str = "attention", setting: str = "all", **more: Any) -> nn.Module:
    """A decoder of four blocks, of which two are visited twice."""
    more = {"causal": True, "sizes": LOOPED, **more}
    return tiny(token_mixer=mixer, options={"token_mixer": options(mixer, setting)}, **more)
