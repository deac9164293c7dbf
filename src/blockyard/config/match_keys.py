"""The keys of `match`, which solves a size for a budget, and the options that it may solve for."""

from __future__ import annotations

KEY = "match"  # of the config; removed once it is solved
BUDGETS = {"params": "parameters", "flops": "FLOPs per sample"}
KEYS = (*BUDGETS, "by")
# The options of each size; the first that the config has is solved for.
SIZES = {
    "dim": ("model.dim",),
    "depth": ("model.depth",),
    "expansion": ("channel_mixer.expansion", "token_mixer.expansion"),
}
