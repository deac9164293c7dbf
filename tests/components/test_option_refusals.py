"""Options that a component alone can refuse, each in a message of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blockyard.contracts import Memory
from tests.components.reference.inputs import sequence
from tests.support.helpers import context, factory


@pytest.mark.parametrize(
    ("family", "name", "options", "sizes", "message"),
    [
        ("residual", "dense", {"period": 3}, {"depth": 2}, r"residual\.period=3 takes no average in 2 visits"),
        (
            *("token_mixer", "shift", {}, {"dim": 3, "heads": 1, "axes": 2}),
            r"model\.dim=3 has fewer channels than the 4 directions",
        ),
        (
            *("channel_mixer", "experts", {"num_groups": 8}, {}),
            "num_groups=8 of 8 experts: a group has as many as others, and two or more",
        ),
    ],
)
def test_an_option_that_cannot_work_is_refused(
    family: str, name: str, options: dict[str, Any], sizes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        factory(family, name, options)(context(**sizes))


@pytest.mark.parametrize("name", ["attention", "linear_attention"])
def test_a_cache_and_a_memory_do_not_go_together(name: str) -> None:
    mixer: Any = factory("token_mixer", name)(context(causal=True))
    x = torch.randn(2, 3, 16)
    with pytest.raises(ValueError, match="pass either cache or memory"):
        mixer(x, sequence(3), mixer.init_cache(2), Memory(x, sequence(3)))


def test_a_cache_is_for_as_many_sequences_as_it_was_made_for() -> None:
    mixer: Any = factory("token_mixer", "shift")(context(causal=True))
    with pytest.raises(ValueError, match="the cache is for 2 sequences, not 3"):
        mixer(torch.randn(3, 4, 16), sequence(4), mixer.init_cache(2))
