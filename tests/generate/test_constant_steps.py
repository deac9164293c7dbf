"""What a decoding step costs: the same at any length where a cache does not grow, more where it does."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from blockyard.ops.flops import counter
from blockyard.token_mixer.linear_recurrence import LinearRecurrence
from tests.support.helpers import choices, has, node, tiny, token_ids, traits

EARLY, LATE, GROWN = 20, 60, 90  # tokens before the step; windows and rows of neighbours are full by the first
SAID = "a decoding step takes constant time and memory"


class Numbers(TorchDispatchMode):
    """Counts the numbers that operations give out: elementwise work, of which no FLOPs are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count += sum(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out


@torch.no_grad()
def steps(model: torch.nn.Module) -> list[tuple[int, int, int]]:
    """FLOPs, numbers given out and bytes kept, of the step after each of three lengths."""
    ids, states, past = token_ids(1, GROWN + 1), [], 0
    cache = model.init_cache(1)
    for t in (EARLY, LATE, GROWN):
        model(ids[:, past:t], cache=cache)
        with counter() as flops, Numbers() as numbers:
            model(ids[:, t : t + 1], cache=cache)
        states.append((flops.get_total_flops(), numbers.count, cache.bytes))
        past = t + 1
    return states


def decoder(mixer: str, **options: Any) -> torch.nn.Module:
    """A tiny one of rows long enough, in float32."""
    picks = {"options": {"token_mixer": options}, "sizes": {"grid": (GROWN + 1,)}}
    return tiny(causal=True, token_mixer=mixer, **picks).float()


def cached() -> list[str]:
    """Every mixer that decodes from a cache of its own."""
    mixers = [name for name in choices("token_mixer") if traits(name).causal and has(name, "init_cache")]
    return [name for name in mixers if not hasattr(node("token_mixer", name)[0], "nested_choices")]


def says_so(mixer: str) -> bool:
    """Whether its file promises it."""
    return SAID in " ".join(inspect.getmodule(node("token_mixer", mixer)[0]).__doc__.split())


@pytest.mark.parametrize("mixer", cached())
@pytest.mark.sampled(2)
def test_a_step_costs_more_only_where_the_cache_grows(mixer: str) -> None:
    first, second, third = steps(decoder(mixer))
    if first[2] == third[2]:
        assert first == second == third
    else:
        assert first[2] < second[2] < third[2]
        assert first[0] < second[0] < third[0]
        assert not says_so(mixer)


def test_those_that_say_so_are_heard() -> None:
    assert {"linear_attention", "linear_recurrence", "rnn", "gru", "lstm"} <= set(filter(says_so, cached()))
    (first, _, third) = steps(decoder("attention"))
    assert first[0] < third[0]


@pytest.mark.parametrize("feature", ["relu", "polynomial"])
def test_other_maps_of_linear_attention(feature: str) -> None:
    assert len(set(steps(decoder("linear_attention", feature=feature)))) == 1


def test_planted_reading_of_all_that_came_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a recurrence that keeps its state, and works on every token so far to get it."""
    inner, past = LinearRecurrence.mix, []

    def mix(self: LinearRecurrence, h: Tensor, seq: Any, cache: Any = None) -> Tensor:
        past.append(h)
        torch.cat(past, dim=1).cumsum(dim=1)
        return inner(self, h, seq, cache)

    monkeypatch.setattr(LinearRecurrence, "mix", mix)
    with pytest.raises(AssertionError):
        test_a_step_costs_more_only_where_the_cache_grows("linear_recurrence")
