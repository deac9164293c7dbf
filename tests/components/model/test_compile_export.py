"""Every preset as a whole: `torch.export` takes it, and `torch.compile` makes one graph of it.

Neither works where a forward branches on the values of a tensor, drains a generator or calls what cannot be traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.contracts import Batch, Seq
from blockyard.model._transformer import Tower
from blockyard.ops import attend
from blockyard.weights.convert.exporting import by_name
from tests.config.preset_data import small
from tests.config.product_batches import batch_for
from tests.support.helpers import tiny, token_ids
from tests.support.tolerances import float32

PRESETS = sorted(catalog.choices("preset"))
CLOSE = float32(terms=128, layers=8)  # gradients add up tokens, and what a layer gives goes through all others
# One of each way through a model is traced or exported; the full suite does both to every preset.
TRACED = ("graphormer", "mixer", "original_transformer")
EXPORTED = ("bert", "deep_sets", "dlinear", "git", "llama", "perceiver", "rnn", "wav2vec2")


def short(names: Sequence[str]) -> list[Any]:
    """All presets; those that are not named are left to the full suite."""
    return [preset if preset in names else pytest.param(preset, marks=pytest.mark.full) for preset in PRESETS]


def components(preset: str, *overrides: str) -> Components:
    """The parts of a preset, small, over data that it reads."""
    return Components(compose([*small(preset), "logger=none", *overrides]).config)


def inputs(parts: Components, size: int) -> Batch:
    """What a model reads, for a batch of `size` samples; another size has other values and lengths."""
    return parts.objective.ready(batch_for(parts, size))


def export(model: nn.Module, example: Batch) -> nn.Module:
    """The exported program, for batches of any size."""
    batch = torch.export.Dim("batch", min=2)
    facts = example.facts()
    shapes = {name: {0: batch} for name in facts}
    return torch.export.export(by_name(model), (), facts, dynamic_shapes=shapes, strict=False).module()


def compiled(model: nn.Module, backend: str) -> Any:
    """The model in one graph. Recurrent cells are torch's own, which it traces where its configuration allows it."""
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend=backend)


def outputs(model: nn.Module, call: Any, batch: Batch) -> list[Tensor]:
    """A prediction, and the gradient of every parameter after a backward pass from its mean square."""
    model.zero_grad()
    prediction = call(batch)
    prediction.square().mean().backward()
    return [prediction.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def compare(preset: str, backend: str) -> None:
    """Predictions and gradients of the compiled model are those of the plain one."""
    parts = components(preset)
    model, batch = parts.model(0).train(), inputs(parts, 2)
    pairs = zip(outputs(model, compiled(model, backend), batch), outputs(model, model, batch), strict=True)
    for fast, plain in pairs:
        assert_close(fast, plain, **CLOSE)


@pytest.mark.sampled(100)
@pytest.mark.filterwarnings("ignore:.*_flat_weights.*were assigned during export")  # torch's own recurrent cells
@pytest.mark.parametrize("preset", short(EXPORTED))
def test_a_preset_exports(preset: str) -> None:
    """The exported program gives what the model gives, for a batch of another size with other values and lengths."""
    parts = components(preset)
    model = parts.model(0).eval()
    with torch.no_grad():
        exported = export(model, inputs(parts, 2))
        for size in (2, 3):
            batch = inputs(parts, size)
            assert_close(exported(**batch.facts()), model(batch), **CLOSE)


@pytest.mark.full
@pytest.mark.parametrize("preset", short(TRACED))
def test_a_preset_compiles_into_one_graph(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "allow_rnn", True)
    compare(preset, "aot_eager")


@pytest.mark.full
@pytest.mark.parametrize("preset", ["llama", "original_transformer", "vit"])
def test_a_preset_compiles_to_kernels(preset: str) -> None:
    compare(preset, "inductor")


@pytest.mark.full
@pytest.mark.parametrize(
    ("preset", "override"),
    [
        ("original_transformer", "token_mixer.bias=true"),
        ("gpt2", "token_mixer=windowed_attention"),
    ],
)
@torch.no_grad()
def test_block_masks_compile_with_the_model(preset: str, override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where FlexAttention takes padding and windows: its block masks are made inside the graph."""
    parts = components(preset, override)
    model, batch = parts.model(0).eval(), inputs(parts, 2)
    plain = model(batch)
    monkeypatch.setattr(attend, "refusal", lambda *_: None)
    monkeypatch.setattr(attend, "FEWEST", 0)
    monkeypatch.setattr(attend, "not_worth_it", lambda *_: None)
    assert_close(compiled(model, "eager")(batch), plain, **CLOSE)


@pytest.mark.full
def test_a_planted_branch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that asks a tensor for its values neither exports nor compiles into one graph."""
    add_prefix = Tower._add_prefix

    def branching(tower: Tower, x: Tensor, seq: Seq, past: int) -> tuple[Tensor, Seq]:
        return add_prefix(tower, x * 2 if bool((x > 0).any()) else x, seq, past)

    parts = components("vit")
    model, batch = parts.model(0).eval(), inputs(parts, 2)
    monkeypatch.setattr(Tower, "_add_prefix", branching)
    with pytest.raises(Exception, match="data-dependent"):
        export(model, batch)
    with pytest.raises(Exception, match=r"[Dd]ata-dependent"):
        compiled(model, "eager")(batch)


STATES = ("delta_rule", "decayed_attention", "mamba2", "mlstm", "selective_ssm", "gated_conv")


@pytest.mark.full
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mixer", STATES)
@torch.no_grad()
def test_states_restart_at_documents_in_a_graph(mixer: str, causal: bool) -> None:
    """Where documents start depends on the data: a graph of one batch serves another with other documents."""
    model = tiny(causal=causal, token_mixer=mixer).eval()
    first = {"segment": torch.tensor([[0, 0, 1, 1, 1, 2]] * 2), "lengths": torch.tensor([6, 4])}
    second = {"segment": torch.tensor([[0, 1, 1, 1, 2, 2]] * 3), "lengths": torch.tensor([6, 3, 5])}
    exported = export(model, Batch(token_ids(2, 6), **first))
    torch._dynamo.reset()
    whole = torch.compile(model, fullgraph=True, backend="aot_eager")
    for facts in (first, second):
        batch = Batch(token_ids(len(facts["lengths"]), 6), **facts)
        expected = model(batch)
        assert_close(exported(**batch.facts()), expected)
        assert_close(whole(batch), expected)
