"""Entropy, the weights of one query and a masked sample against plain definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockyard.inspect.attention_weights import attention_layers, query_weights
from blockyard.inspect.kinds.attention import table_row
from blockyard.inspect.kinds.mixing import LayerMixing
from tests.inspect.small_models import build_model
from tests.support.every import every


def test_a_memory_is_not_on_the_grid_of_the_sequence() -> None:
    """With as many latents as patches, what the latents read is not a window on the grid of patches."""
    from blockyard.inspect.kinds.mixing import layer_pattern

    norms = torch.eye(9)
    norms[0, 1] = 1.0
    layer = LayerMixing("read", "Attention", norms, None, 0, 0.0, False, 0, (3, 3), [], [])
    assert layer_pattern(layer) == "window of 1 x 3"
    layer.memory = True
    assert "window" not in layer_pattern(layer)


def test_entropy_counts_visible_keys_only(tmp_path: Path) -> None:
    model, samples = build_model(tmp_path, "model=decoder", "position=rope")
    with torch.no_grad():
        for mixer in model.mixers:
            mixer.proj_in.weight[: mixer.widths[0]] = 0  # no query prefers a key
    for layer in attention_layers(model, samples):
        count = len(layer.queries)
        torch.testing.assert_close(layer.share, torch.ones(2))
        expected = torch.arange(1, count + 1).float().log().mean()
        torch.testing.assert_close(layer.entropy, expected.expand(2))
    with torch.no_grad():
        for mixer in model.mixers:
            mixer.proj_in.weight.mul_(1e4)
            mixer.proj_in.weight[: mixer.widths[0]] = 1e4
    assert every(layer.share.max() < 0.5 for layer in attention_layers(model, samples))


def test_a_sink_is_one_more_key(tmp_path: Path) -> None:
    """With scores of zero it has as much weight as each key that a query sees."""
    model, samples = build_model(tmp_path, "model=decoder", "position=rope", "token_mixer.sink=zero")
    with torch.no_grad():
        for mixer in model.mixers:
            mixer.proj_in.weight[: mixer.widths[0]] = 0
    for layer in attention_layers(model, samples):
        keys = torch.arange(1, len(layer.queries) + 1).float()
        torch.testing.assert_close(layer.entropy, (keys + 1).log().mean().expand(2))
        torch.testing.assert_close(layer.share, torch.ones(2))
        torch.testing.assert_close(layer.sink, (1 / (keys + 1)).mean().expand(2))
        row = table_row(layer, 0)
        assert (row["on the sink"] or "").endswith("%")
        assert row["on what is asked"] is None


def test_the_weights_and_name_of_one_query(tmp_path: Path) -> None:
    model, samples = build_model(
        tmp_path, "head=class_token", "model.prefix.class_token=true", "model.prefix.registers=1"
    )
    (layer, _) = attention_layers(model, samples[:1])
    assert layer.queries[:4] == ["class", "reg 0", "0,0", "0,1"]
    assert query_weights(layer, None)[1] == "the class token"
    weights, name = query_weights(layer, 3)
    assert name == "token 3 (0,3)"
    torch.testing.assert_close(weights, layer.weights[:, 5])
    torch.testing.assert_close(query_weights(layer, "mean")[0], layer.weights.mean(1))
    with pytest.raises(ValueError, match="query=16 is out of range: the sequence has 16 tokens"):
        query_weights(layer, 16)


class Stopped(Exception):
    """Raised once the batch is recorded."""


def test_a_sample_is_masked_as_in_evaluation() -> None:
    """Masks depend on the sample's index: `inspect` and the attention maps use those of evaluation."""
    from types import SimpleNamespace

    from blockyard.contracts import Batch, TokenSpec
    from blockyard.engine.callbacks.attention_maps import AttentionMaps
    from blockyard.inspect.options import Options
    from blockyard.inspect.samples import load_samples

    class Split:
        def __len__(self) -> int:
            return 9

        def batch(self, order: Tensor, key: int | None) -> Batch:
            return Batch(order[:, None].expand(-1, 4))

    prepared: list[Any] = []

    def prepare(batch: Batch) -> Batch:
        prepared.append(None if batch.sample is None else batch.sample.tolist())
        return batch

    objective = SimpleNamespace(ready=prepare)
    splits = SimpleNamespace(validation=Split())
    names = {"token_name": lambda token_id: str(token_id)}
    data = SimpleNamespace(missing=lambda: None, prepare=lambda: None, **names)
    parts = {
        "model": SimpleNamespace(ctx=SimpleNamespace(tokens=TokenSpec((4,)))),
        "tokenizer": SimpleNamespace(**names),
    }
    loaded = SimpleNamespace(data=data, objective=objective, components=SimpleNamespace(load=lambda: splits), **parts)
    samples = load_samples(loaded, Options(sample=5, samples=2))
    assert [sample.batch.inputs[0, 0].item() for sample in samples] == [5, 6]
    assert prepared == [[5], [6]]

    def stop(batch: Batch) -> Batch:
        prepare(batch)
        raise Stopped

    learner = SimpleNamespace(device="cpu", objective=SimpleNamespace(ready=stop))
    with pytest.raises(Stopped):
        AttentionMaps(sample=7)._maps(SimpleNamespace(validation=Split(), learner=learner))
    assert prepared[-1] == [7]
