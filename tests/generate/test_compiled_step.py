"""The compiled step: the tokens of the eager one at all lengths, and a reason where a model has no such step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import Kind, Seq
from blockyard.errors import UserError
from blockyard.generate import compiled_step
from blockyard.generate.compiled_step import CompiledStep, StoredKeys, check_compiles
from blockyard.generate.request import check_compiled
from blockyard.layers.pattern import Pattern
from blockyard.model._prefix import Prefix
from tests.generate.decoding import greedy
from tests.support.helpers import factory, tiny

PROMPTS = [[1], [4, 2, 7], [3, 3]]


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The step is traced to a graph and guarded, but no C++ is compiled, which takes a minute."""
    monkeypatch.setattr(compiled_step, "BACKEND", "eager")
    yield
    torch.compiler.reset()


def model_of(position: str, mixer: str = "attention") -> torch.nn.Module:
    prefix = {"prefix": Prefix(registers=2)} if position == "rope" else {}
    return tiny(causal=True, token_mixer=mixer, position=position, **prefix)


@pytest.mark.parametrize(
    "position", ["learned", *(pytest.param(name, marks=pytest.mark.full) for name in ("rope", "alibi"))]
)
def test_greedy_tokens_are_those_of_the_eager_step(position: str) -> None:
    model = model_of(position)
    eager, plain = greedy(model, PROMPTS, cache=True)
    compiled, stats = greedy(model, PROMPTS, cache=True, compiled=True)
    assert compiled == eager
    assert stats.method == "key-value cache, compiled step"
    assert (stats.cache_bytes, stats.cache_bytes_per_token, stats.cuts) == (
        plain.cache_bytes,
        plain.cache_bytes_per_token,
        plain.cuts,
    )


@pytest.mark.full
def test_layers_of_two_position_schemes() -> None:
    layers = Pattern(pattern=("base", "far"), kinds={"far": Kind(position=factory("position", "alibi"))})
    model = tiny(causal=True, position="rope", replace={"layers": layers}, sizes={"depth": 3})
    scores, full = steps_of(model, 4)
    assert_close(scores, full)


@torch.inference_mode()
def steps_of(model: torch.nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """Scores (B, count, V) of a step at a time from a cache, and of one full pass."""
    token_ids = torch.arange(2 * (count + 1)).reshape(2, -1) % 8
    cache = model.init_cache(2)
    model(token_ids[:, :1], cache=cache)
    step = CompiledStep(model, cache)
    scores = torch.cat([step(token_ids[:, [n]]) for n in range(1, count + 1)], 1)
    return scores, model(token_ids)[:, 1:]


@pytest.mark.parametrize("mixer", ["attention", pytest.param("strict_attention", marks=pytest.mark.full)])
def test_one_graph_serves_all_lengths(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(compiled_step, "BACKEND", count)
    scores, full = steps_of(model_of("rope", mixer), 6)
    assert_close(scores, full)
    assert len(graphs) <= 2  # a second where the storage grew


def test_planted_stale_slot_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StoredKeys.append

    def stale(self: StoredKeys, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        return real(self, k, 0 * v, seq)

    monkeypatch.setattr(StoredKeys, "append", stale)
    scores, full = steps_of(model_of("rope"), 3)
    assert not torch.allclose(scores, full)


@pytest.mark.full
@torch.inference_mode()
def test_a_cache_can_be_cropped_between_steps() -> None:
    model, token_ids = model_of("alibi"), torch.tensor([[1, 2, 3, 4]])
    cache = model.init_cache(1)
    model(token_ids[:, :2], cache=cache)
    step = CompiledStep(model, cache)
    step(torch.tensor([[7]]))
    cache.crop(1)
    assert_close(step(token_ids[:, 2:3]), model(token_ids)[:, 2:3])
    assert_close(model(token_ids[:, 3:], cache=cache), model(token_ids)[:, 3:])  # an eager pass continues


@pytest.mark.parametrize(("mixer", "kept"), [("lstm", "StateCache"), ("windowed_attention", "WindowCache")])
def test_a_model_without_growing_keys_is_refused(mixer: str, kept: str) -> None:
    with pytest.raises(UserError, match=f"needs a growing key-value cache.*{kept}; leave compile=true out"):
        check_compiles(tiny(causal=True, token_mixer=mixer, position="none"))


def test_options_that_exclude_it_are_refused() -> None:
    check_compiled(True, {"beam": None, "draft": None}, cache=True)
    check_compiled(False, {"beam": 4}, cache=False)
    for name in ("beam", "draft", "sources"):
        with pytest.raises(UserError, match=f"compile=true and {name}= exclude each other"):
            check_compiled(True, {name: 4}, cache=True)
    with pytest.raises(UserError, match="cache=false"):
        check_compiled(True, {}, cache=False)


@pytest.mark.full
def test_generated_code_gives_the_tokens_of_the_eager_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_step, "BACKEND", "inductor")
    for position in ("learned", "rope"):
        model = model_of(position)
        assert greedy(model, PROMPTS, cache=True, compiled=True)[0] == greedy(model, PROMPTS, cache=True)[0]
