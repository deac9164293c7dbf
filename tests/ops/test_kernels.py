"""Which kernel runs: by torch's own profile, and by what the model records of itself."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from blockyard.contracts import Context, Inputs, Position
from blockyard.engine.cost_card import slow_layers
from blockyard.ops import flex, kernel
from blockyard.ops.flex import FEW, FEWEST, READS_TWICE, not_worth_it
from blockyard.ops.kernel import expected
from blockyard.weight_init import Init
from tests.support.helpers import axes_of, choices, context, factory, node, reads_later, tiny, token_ids

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def operators(model: nn.Module, *args: object, **kwargs: object) -> set[str]:
    """The torch operators that a forward pass runs."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as trace:
        model(*args, **kwargs)
    return {event.name for event in trace.events()}


def biases(position: str) -> bool:
    """Whether a scheme adds something to the scores."""
    return bool({"bias", "relate"} & node("position", position)[0].acts_on)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"qk_norm": True}], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", [p for p in choices("position") if not biases(p)])
def test_flash_without_a_mask(position: str, causal: bool, options: dict[str, object]) -> None:
    if causal and reads_later(position):
        return
    model = tiny(causal=causal, position=position, axes=axes_of("position", position), options={"token_mixer": options})
    ran = operators(model, token_ids(2, 6))
    assert FLASH in ran
    assert "aten::_scaled_dot_product_attention_math" not in ran
    assert [entry["kernel"] for entry in model.kernels(token_ids(2, 6))] == ["flash", "flash"]
    assert {entry["reason"] for entry in model.kernels(token_ids(2, 6))} == {""}


def test_a_cache_needs_no_mask_for_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model, masks = tiny(causal=True, position="rope"), []
    whole = torch.nn.functional.scaled_dot_product_attention

    def spy(*args: object, **kwargs: object) -> torch.Tensor:
        masks.append((kwargs["attn_mask"] is None, kwargs["is_causal"]))
        return whole(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    cache = model.init_cache(2)
    model(token_ids(2, 3), cache=cache)
    assert masks == [(True, True)] * 2
    model(token_ids(2, 1), cache=cache)
    assert masks[2:] == [(True, False)] * 2
    model(token_ids(2, 2), cache=cache)
    assert masks[4:] == [(False, False)] * 2


UNMASKED = [
    ("strict_attention", {"layers": "all"}, True),
    ("memory_attention", {}, False),
    ("attention", {"key_dim": 3, "value_dim": 7}, True),
    ("non_local", {}, True),
]


@pytest.mark.parametrize(("mixer", "options", "causal"), UNMASKED, ids=str)
def test_flash_for_more_than_attention(mixer: str, options: dict[str, object], causal: bool) -> None:
    """Strictly causal rows, trained keys, values of another width: still without a mask."""
    model = tiny(causal=causal, token_mixer=mixer, options={"token_mixer": options})
    ran = operators(model, token_ids(2, 6))
    assert FLASH in ran
    assert "aten::_scaled_dot_product_attention_math" not in ran
    assert model.kernels(token_ids(2, 6))[0] | {"layer": ""} == {"layer": "", "kernel": "flash", "reason": ""}


@pytest.mark.parametrize("mixer", ["windowed_attention", "strict_attention", "memory_attention", "attention"])
def test_one_token_after_a_cache_needs_no_mask(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, masks = tiny(causal=True, position="rope", token_mixer=mixer), []
    whole = torch.nn.functional.scaled_dot_product_attention

    def spy(*args: object, **kwargs: object) -> torch.Tensor:
        masks.append((kwargs["attn_mask"] is None, args[1].shape[2]))
        return whole(*args, **kwargs)

    cache = model.init_cache(2)
    model(token_ids(2, 5), cache=cache)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    model(token_ids(2, 1), cache=cache)
    keys = {"windowed_attention": (3, 3), "strict_attention": (5, 6), "memory_attention": (22, 22)}
    assert masks == [(True, count) for count in keys.get(mixer, (6, 6))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", ["none", "alibi"])
@pytest.mark.parametrize(
    "mixer", [m for m in choices("token_mixer") if "scores" in node("token_mixer", m)[0].traits.ports]
)
def test_each_mixer_is_expected_to_do_what_it_does(mixer: str, position: str, causal: bool) -> None:
    if not (causal or node("token_mixer", mixer)[0].traits.bidirectional):
        return
    model = tiny(token_mixer=mixer, position=position, causal=causal)
    for part, record in zip(model.mixers, model.kernels(), strict=True):
        predicted = expected(model.ctx, model.position, "cpu", torch.float32, 0.0, part)
        assert predicted == (record["kernel"], record["reason"])


@pytest.mark.parametrize("options", [{"chunked": True}, {"stride": 2}], ids=str)
@pytest.mark.parametrize("position", ["none", "alibi"])
def test_chunks_and_strides_are_expected_to_do_what_they_do(options: dict[str, object], position: str) -> None:
    options = {"token_mixer": options}
    model = tiny(token_mixer="windowed_attention", position=position, causal=True, options=options)
    for part, record in zip(model.mixers, model.kernels(), strict=True):
        assert expected(model.ctx, model.position, "cpu", torch.float32, 0.0, part) == (
            record["kernel"],
            record["reason"],
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", ["none", "alibi"])
@pytest.mark.parametrize("options", [{"softcap": 5.0}, {"sink": "learned"}, {"softcap": 5.0, "sink": "zero"}], ids=str)
@pytest.mark.parametrize("mixer", ["attention", "windowed_attention", "memory_attention", "strict_attention"])
def test_a_cap_and_a_sink_are_expected_to_do_what_they_do(
    mixer: str, options: dict[str, object], position: str, causal: bool
) -> None:
    model = tiny(token_mixer=mixer, position=position, causal=causal, options={"token_mixer": options})
    for part, record in zip(model.mixers, model.kernels(), strict=True):
        predicted = expected(model.ctx, model.position, "cpu", torch.float32, 0.0, part)
        assert predicted == (record["kernel"], record["reason"])
        assert (record["kernel"] == "eager") == ("softcap" in options)


def test_reasons_are_given() -> None:
    model = tiny(causal=True, position="alibi")
    lengths, segment = torch.tensor([6, 3]), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    (first, second) = model.kernels(Inputs(token_ids(2, 6), lengths=lengths, segment=segment))
    assert first["layer"] == "blocks.0.token_mixer"
    assert second["layer"] == "blocks.1.token_mixer"
    for text in ("position bias", "padded", "segments", "CUDA only"):
        assert text in first["reason"]


def test_dropout_costs_the_flash_kernel_on_a_cpu() -> None:
    model = tiny(options={"token_mixer": {"dropout": 0.1}})
    assert model.kernels()[0]["kernel"] == "flash"
    record = model.train().kernels()[0]
    assert record["kernel"] == "math"
    assert "dropout" in record["reason"]
    assert "aten::_scaled_dot_product_attention_math" in operators(model, token_ids(2, 6))


def deaf() -> list[str]:
    """Mixers whose file never calls on `ops.attend`, and notes no kernel itself."""
    alone = [name for name in choices("token_mixer") if not hasattr(node("token_mixer", name)[0], "nested_choices")]
    modules = [(name, inspect.getmodule(node("token_mixer", name)[0])) for name in alone]
    return [
        name
        for name, module in modules
        if not {"attend", "weigh", "Attention", "RuleAttention", "kernel"} & vars(module).keys()
    ]


@pytest.mark.parametrize("mixer", deaf())
def test_mixers_that_do_not_attend_say_so(mixer: str) -> None:
    records = tiny(token_mixer=mixer, axes=axes_of("token_mixer", mixer)).kernels()
    assert [entry["kernel"] for entry in records] == ["none", "none"]
    assert "does not attend" in records[0]["reason"]


@pytest.mark.parametrize("fused", [True, False])
def test_a_fused_block_names_its_layers(fused: bool) -> None:
    records = tiny(block="parallel", options={"block": {"fused": fused}}).kernels()
    assert [entry["layer"] for entry in records] == ["blocks.0.token_mixer", "blocks.1.token_mixer"]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("position", choices("position"))
def test_what_is_expected_is_what_happens(position: str, variable: bool, dropout: float) -> None:
    sizes, axes = {"variable": variable}, axes_of("position", position)
    model = tiny(position=position, axes=axes, sizes=sizes, options={"token_mixer": {"dropout": dropout}}).train()
    (record, _) = model.kernels()
    lengths = torch.tensor([6, 4]) if variable else None
    assert model.kernels(Inputs(token_ids(2, 6), lengths=lengths))[0] == record
    ctx = context(axes=axes, **sizes)
    predicted = expected(ctx, model.position, "cpu", torch.float32, dropout)
    assert predicted == (record["kernel"], record["reason"])


class Table(Position):
    """A learned bias, one number for each distance."""

    acts_on = frozenset({"bias"})

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(6))

    def init_weights(self, init: Init) -> None:
        init.normal("table")

    def bias(self, head: torch.Tensor, q: tuple[torch.Tensor, ...], k: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return (self.table[(q[0] - k[0]).abs().long()] * (head + 1)).float()


def test_a_learned_bias_gets_its_gradient_and_says_what_it_costs() -> None:
    model = tiny(replace={"position": Table}).float()
    (record, _) = model.kernels()
    assert record["kernel"] == "math"
    assert (record["kernel"], record["reason"]) == expected(context(), model.position, "cpu", torch.float32)
    model(token_ids(2, 6)).sum().backward()
    assert model.position.table.grad.abs().min() > 0
    with torch.no_grad():
        assert model.kernels()[0]["kernel"] == "flash"


def test_expected_on_a_gpu() -> None:
    plain, alibi = factory("position", "none"), factory("position", "alibi")
    ctx, short = context(dim=256, grid=(FEWEST,)), context(dim=256, grid=(FEWEST - 1,))
    half, full = torch.bfloat16, torch.float32
    assert expected(ctx, plain(ctx), "cuda", half) == ("flash", "")
    assert expected(ctx, alibi(ctx), "cuda", half)[0] == "flex"
    assert expected(ctx, plain(ctx), "cuda", full)[0] == "efficient"
    assert expected(ctx, alibi(ctx), "cuda", half, dropout=0.1)[0] == "efficient"
    assert expected(context(packed=True, dim=256, grid=(FEWEST,)), plain(ctx), "cuda", half)[0] == "flex"
    kernel, reason = expected(short, alibi(short), "cuda", half)
    assert kernel == "efficient"
    assert reason.endswith(FEW)
    set_of_nodes = context(dim=256, axes=0)
    assert expected(set_of_nodes, factory("position", "graph")(set_of_nodes), "cuda", half)[1].endswith(READS_TWICE)


def test_flex_attention_is_taken_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """From so many keys on, and for so many shapes."""
    monkeypatch.setattr(flex, "_shapes", set())
    few, many = (torch.zeros(1, 1, count, 16) for count in (FEWEST - 1, FEWEST))
    assert not_worth_it(many, few) == not_worth_it(few, many) == FEW
    for batch in range(2, 2 + flex.SHAPES):
        assert not_worth_it(many.expand(batch, -1, -1, -1), many) is None
    others = not_worth_it(many, many)
    assert others is not None
    assert "16 other shapes" in others
    assert not_worth_it(many.expand(2, -1, -1, -1), many) is None


def test_a_mask_that_is_faster_is_no_slow_layer() -> None:
    few, padded = ({"layer": "mixer", "kernel": "efficient", "reason": why} for why in (f"padded; {FEW}", "padded"))
    assert slow_layers([few]) == []  # type: ignore[list-item]
    assert len(slow_layers([few, padded])) == 1  # type: ignore[list-item]


def test_nothing_is_recorded_outside() -> None:
    assert not kernel.recording()
    tiny().kernels()
    assert not kernel.recording()
