"""What flows between layers besides the stream: values, keys, and token ids. The traits of mixers stay.

The full suite also has every mixer with every setting, and every setting compiled.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Inputs, Seq, TokenSpec
from blockyard.engine.module import checkpoint_blocks
from blockyard.generate.compiled_step import CompiledStep
from blockyard.model._block_stack import BlockStack, loops
from blockyard.model._carry import Carry, carried_text
from blockyard.model._embedding import MaskToken
from blockyard.model._prefix import Prefix
from blockyard.model._stack import crossing
from blockyard.ops.cache import KVCache
from blockyard.runs.identity import identity
from blockyard.token_mixer._caches import EmptyCache
from blockyard.token_mixer._values import Values
from blockyard.token_mixer.attention import Attention, SharedKeys
from tests.components.model.carried_models import LOOPED, SETTINGS, built, options
from tests.components.model.tiny_models import build_tiny
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.generate.decoding import beam, greedy
from tests.support.every import every
from tests.support.helpers import LENGTH, choices, combinations, context, cycle_model, factory, node, tiny, token_ids
from tests.support.pairwise import each_once
from tests.support.tiny import DECODER

WITH_VALUES = [name for name in choices("token_mixer") if "value_residual" in node("token_mixer", name)[1]]
WITH_KEYS = [name for name in choices("token_mixer") if "kv_every" in node("token_mixer", name)[1]]
EACH = [(mixer, setting) for mixer in WITH_VALUES for setting in SETTINGS if options(mixer, setting)]


def settings_of_mixers() -> list[Any]:
    """Attention with every setting, another mixer with one setting in turn and with all of them."""
    other = {mixer: list(SETTINGS)[number % 5] for number, mixer in enumerate(WITH_VALUES)}
    kept = [case for case in EACH if case[0] == "attention" or case[1] in ("all", other[case[0]])]
    return [case if case in kept else pytest.param(*case, marks=pytest.mark.full) for case in EACH]


@pytest.mark.parametrize(("mixer", "setting"), settings_of_mixers())
@pytest.mark.sampled(3)
def test_traits_of_mixers_stay(mixer: str, setting: str) -> None:
    for causal in (False, True):
        model = built(mixer, setting, causal=causal)
        padding(model, LENGTH)
        packing(model, LENGTH)
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)


POSITIONS = sorted({name for _, name, axes in combinations("causal") if axes == 1})


@pytest.mark.parametrize(("mixer", "position"), each_once([*product(WITH_KEYS, POSITIONS)]))
@pytest.mark.sampled(2)
def test_every_position(mixer: str, position: str) -> None:
    """Behind class and register tokens too, whose keys no scheme rotates."""
    prefix = Prefix(registers=2)
    model = built(mixer, position=position, prefix=prefix)
    padding(model, LENGTH)
    packing(model, LENGTH)
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)


@pytest.mark.parametrize(
    ("block", "residual"),
    [
        *((block, "add") for block in ("parallel", "post_norm", "sandwich")),
        *((block, "hyper") for block in ("parallel", "sandwich")),  # streams need a block that adds
    ],
)
def test_other_blocks_and_streams(block: str, residual: str) -> None:
    model = built(block=block, residual=residual, position="rope")
    causality(model, LENGTH)
    packing(model, LENGTH)
    cached_decoding(model, LENGTH)


def test_fused_equals_unfused() -> None:
    fused, plain = (
        built("attention", "gated", block="parallel")
        if on
        else tiny(
            causal=True,
            block="parallel",
            sizes=LOOPED,
            options={"block": {"fused": False}, "token_mixer": SETTINGS["gated"]},
        )
        for on in (True, False)
    )
    assert_close(fused(token_ids(2, LENGTH)), plain(token_ids(2, LENGTH)))


@pytest.mark.parametrize("setting", ["learned", "keys", "all"])
def test_order_is_that_of_the_unrolled_model(setting: str) -> None:
    """Block 0 gives at both of its visits, and each visit of block 1 reads what was given last."""
    sizes = {"depth": 4, "order": (0, 1, 2, 3, 0, 1, 2, 3)}
    looped = tiny(causal=True, sizes=sizes, options={"token_mixer": SETTINGS[setting]})
    inputs = token_ids(2, LENGTH)
    x, seq = looped.embed_tokens(Inputs(inputs))
    latest: dict[str, Any] = {}
    for index in looped.order:
        own = Seq(seq.index, seq.coords, ids=seq.ids, position=seq.position, carry=dict(latest), given={})
        x = looped.blocks[index](x, own, None, None)
        latest |= own.given or {}
    assert_close(looped.steps(inputs)["normed"], looped.final_norm(x))


@torch.no_grad()
@pytest.mark.parametrize("setting", SETTINGS)
def test_more_loops_than_in_training(setting: str) -> None:
    """As the model whose order has them from the start."""
    trained = built(setting=setting)
    longer = built(setting=setting, sizes={"depth": 4, "order": (0, 1, 2, 1, 2, 1, 2, 3)})
    longer.load_state_dict(trained.state_dict())
    with loops(trained, 3):
        assert_close(trained(token_ids(2, LENGTH)), longer(token_ids(2, LENGTH)))


@pytest.mark.parametrize("setting", SETTINGS)
def test_checkpointed_blocks_have_the_same_gradients(setting: str) -> None:
    plain = built(setting=setting, position="rope").train()
    again = copy.deepcopy(plain)
    checkpoint_blocks(again)
    for model in (plain, again):
        model(token_ids(2, LENGTH)).square().sum().backward()
    gradients = dict(again.named_parameters())
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
        assert torch.equal(parameter.grad, gradients[name].grad), name


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS)
def test_one_graph(setting: str) -> None:
    """For torch.export, torch.compile of the whole model, and of each block, whose gradients are the same."""
    model = built(setting=setting, position="rope", sizes={"depth": 3, "order": (0, 1, 1, 2)})
    inputs = token_ids(2, LENGTH)
    expected = model(inputs)
    assert_close(torch.export.export(model, (inputs,), strict=False).module()(inputs), expected)
    torch.compiler.reset()
    assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(inputs), expected)
    torch.compiler.reset()
    compiled = copy.deepcopy(model).train()
    for block in compiled.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    for one in (model.train(), compiled):
        one(inputs).square().sum().backward()
    for (name, parameter), other in zip(model.named_parameters(), compiled.parameters(), strict=True):
        assert_close(other.grad, parameter.grad, msg=name)


# Caches.


@torch.no_grad()
@pytest.mark.parametrize("mixer", WITH_KEYS)
def test_a_cache_holds_keys_once(mixer: str) -> None:
    """Four blocks at six visits, of which those of blocks 1 and 3 store nothing; no cache holds what is carried."""
    sizes = []
    for setting in ({}, {"kv_every": 2}):
        model = tiny(causal=True, token_mixer=mixer, sizes=LOOPED, options={"token_mixer": setting})
        cache = model.init_cache(2)
        model(token_ids(2, LENGTH), cache=cache)
        sizes.append(cache.bytes)
    assert sizes[1] * 6 == sizes[0] * 3  # visits of blocks 0, 2, 2
    kinds = [type(layer) for layer in cache.layers]
    assert [kind is EmptyCache for kind in kinds] == [False, True, False, True, False, True]
    assert every(not layer.seq.carry and layer.seq.given is None for layer in cache.layers[::2])


@torch.no_grad()
@pytest.mark.parametrize("mixer", WITH_KEYS)
@pytest.mark.parametrize("taken_back", ["crop", "snapshot"])
def test_tokens_are_taken_back(mixer: str, taken_back: str) -> None:
    """As speculative decoding does: a wrong continuation leaves no trace."""
    model = built(mixer, position="rope")
    inputs, wrong = token_ids(2, LENGTH), (token_ids(2, LENGTH) + 1) % 11
    cache = model.init_cache(2)
    cache.keep_spare(3)
    model(inputs[:, :3], cache=cache)
    if taken_back == "crop":
        model(wrong[:, 3:], cache=cache)
        cache.crop(LENGTH - 3)
    else:
        before = cache.snapshot()
        model(wrong[:, 3:], cache=cache)
        cache = before
    scores = torch.cat([model(inputs[:, [n]], cache=cache) for n in range(3, LENGTH)], 1)
    assert_close(scores, model(inputs)[:, 3:])


@pytest.mark.parametrize("mixer", WITH_KEYS)
def test_beam_search_is_that_without_a_cache(mixer: str) -> None:
    """A beam reorders the caches."""
    model = built(mixer, position="rope")
    prompts = [[1, 2], [5, 3, 1]]
    with_cache, _ = beam(model, prompts, width=3)
    assert with_cache == [beam(model, [prompt], width=3, cache=False)[0][0] for prompt in prompts]


def test_generation_reports_the_smaller_cache() -> None:
    (tokens, stats), (full_tokens, full) = (
        greedy(built(setting=setting, position="rope"), [[1, 2]], cache=True) for setting in ("keys", "mixed")
    )
    assert stats.cache_bytes * 2 == full.cache_bytes
    assert len(tokens[0]) == len(full_tokens[0])


@pytest.mark.full
@torch.inference_mode()
def test_the_compiled_step_skips_layers_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.generate.compiled_step.BACKEND", "eager")
    model = built(position="rope")
    inputs = token_ids(2, 7)
    cache = model.init_cache(2)
    model(inputs[:, :1], cache=cache)
    step = CompiledStep(model, cache)
    assert_close(torch.cat([step(inputs[:, [n]]) for n in range(1, 7)], 1), model(inputs)[:, 1:])
    torch.compiler.reset()


# Token ids.


def ids_of(model: nn.Module, inputs: Inputs, block: nn.Module | None = None) -> Tensor:
    """The token ids that a block of a model sees."""
    seen: list[Tensor] = []
    handle = (block or model.blocks[0]).register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1].ids))
    model(inputs)
    handle.remove()
    return seen[0]


def test_ids_at_padding_and_prefix() -> None:
    model = built(setting="embedding", causal=False, prefix=Prefix(class_token=True, registers=1))
    inputs = token_ids(2, 4)
    ids = ids_of(model, Inputs(inputs, lengths=torch.tensor([4, 2])))
    assert ids.tolist() == [[-1, -1, *inputs[0].tolist()], [-1, -1, *inputs[1, :2].tolist(), -1, -1]]


def test_tokens_without_an_id_look_nothing_up() -> None:
    """Their values are those of their projection alone, weighted as in other tokens."""
    model = tiny(options={"token_mixer": {"value_embedding": "all"}})
    values = model.blocks[0].token_mixer.value_sources
    seq = Seq(torch.arange(2), torch.zeros(1, 2, 1), ids=torch.tensor([[-1, 3]]))
    v = torch.randn(1, 4, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own, looked_up = values.table_weights
    expected = torch.stack([own * v[:, :, 0], own * v[:, :, 1] + looked_up * values.table[3].view(1, 4, 4)], 2)
    assert_close(values(v, seq), expected)


def test_hidden_tokens_show_no_id() -> None:
    """Neither do outputs: a hidden token may be any."""
    model = tiny(sizes={"hides": True}, options={"token_mixer": {"value_embedding": "all"}})
    inputs, hidden = token_ids(2, LENGTH), torch.arange(LENGTH).expand(2, -1) % 3 == 0
    assert torch.equal(ids_of(model, Inputs(inputs, hidden=hidden)), inputs.masked_fill(hidden, -1))
    other = torch.where(hidden, (inputs + 1) % 11, inputs)
    assert_close(model(Inputs(other, hidden=hidden)), model(Inputs(inputs, hidden=hidden)))


def test_planted_id_of_a_hidden_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MaskToken.forward

    def shows(self: MaskToken, x: Tensor, seq: Seq, hidden: Tensor) -> Tensor:
        seq.ids = inputs
        return real(self, x, seq, hidden)

    inputs = token_ids(2, LENGTH)
    monkeypatch.setattr(MaskToken, "forward", shows)
    with pytest.raises(AssertionError):
        test_hidden_tokens_show_no_id()


@pytest.mark.parametrize("name", ["joint", "joint_encoder", "encoder_decoder"])
def test_models_with_a_source(name: str) -> None:
    """The tokens of a source in front have no ids, those of an encoder their own; each stack carries by itself."""
    target = node("model", name)[0]
    model = build_tiny(name, mixing={"value_residual": "mixed", "value_embedding": "all"})
    source, inputs = token_ids(2, 7, seed=1), token_ids(2, 6)
    towers = [module for module in model.modules() if isinstance(module, BlockStack)]
    assert len(towers) == (2 if name == "encoder_decoder" else 1)
    assert every(tower.carry.used for tower in towers)
    ids = [ids_of(model, Inputs(inputs, source=source), tower.blocks[0]) for tower in towers]
    front = torch.full_like(source, -1)
    expected = [torch.cat([front, inputs], 1)] if target.joins else [inputs, source]
    assert [each.tolist() for each in ids] == [each.tolist() for each in expected]


def test_inputs_without_ids_are_refused() -> None:
    model, ctx = tiny(options={"token_mixer": {"value_embedding": "all"}}), context()
    x, seq = model.embed_tokens(Inputs(token_ids(2, LENGTH)))
    seq.ids = None
    with pytest.raises(ValueError, match="looks up token ids"):
        model.blocks[0](x, seq, None, None)
    with pytest.raises(ValueError, match="the inputs are none"):
        factory("token_mixer", "attention", {"value_embedding": "all"})(replace(ctx, tokens=TokenSpec((LENGTH,))))


# Who gives and who takes.


def test_defaults_carry_nothing() -> None:
    """The blocks get the facts of the sequence themselves."""
    model = tiny(causal=True)
    seen: list[Seq] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1]))
    model(token_ids(2, LENGTH))
    assert seen[0] is seen[1]
    assert not model.carry.used


def readers(*pattern: str, **more: Any) -> nn.Module:
    """A cycle whose members `read` have no keys and values of their own."""
    members = {name: factory("token_mixer", name) for name in dict.fromkeys(pattern) if name != "read"}
    members["read"] = partial(Attention, kv_every=0)
    token_mixer = {"pattern": pattern, "members": members}
    return tiny(causal=True, token_mixer="cycle", options={"token_mixer": token_mixer}, sizes={"depth": 4}, **more)


def test_members_of_a_cycle_give_to_others() -> None:
    """As in Gemma 3n: the last layers read the keys of the last layer that has some, whatever lies between."""
    model = readers("attention", "conv", "read", "read", position="rope")
    assert carried_text(model.carry, model.order) == "keys and values of block 0 in 2, 3"
    causality(model, LENGTH)
    packing(model, LENGTH)
    cached = readers("attention", "linear_recurrence", "read", "read", position="rope")
    cached_decoding(cached, LENGTH)


def test_the_first_layer_with_values_gives() -> None:
    """Also behind layers without any."""
    attention = partial(Attention, value_residual="mixed")
    members = {"conv": factory("token_mixer", "conv"), "attention": attention}
    mixer = {"pattern": ("conv", "attention"), "members": members}
    model = tiny(causal=True, token_mixer="cycle", options={"token_mixer": mixer}, sizes={"depth": 6})
    assert carried_text(model.carry, model.order) == "values of block 1 in 3, 5"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: readers("read", "attention"), "layer 0 reads the keys and values of an earlier layer"),
        (lambda: readers("windowed_attention", "read"), "layer 1 reads the keys and values of an earlier layer"),
        (lambda: tiny(options={"token_mixer": {"kv_every": 0, "value_residual": "mixed"}}), "no values of their own"),
        (lambda: tiny(sizes={"depth": 1}, options={"token_mixer": {"value_residual": "mixed"}}), "none takes them"),
        (lambda: tiny(sizes={"depth": 1}, options={"token_mixer": {"kv_every": 2}}), "none takes them"),
        (
            lambda: tiny(sizes={"order": (1, 0)}, options={"token_mixer": {"value_residual": "mixed"}}),
            "block 1 takes the values of an earlier layer, and none that is visited before it gives them",
        ),
        (
            lambda: cycle_model(
                "attention",
                "linear_attention",
                options={
                    "token_mixer": {
                        "pattern": ("attention", "linear_attention"),
                        "members": {
                            "attention": partial(Attention, num_kv_heads=2, value_residual="mixed"),
                            "linear_attention": factory("token_mixer", "linear_attention", SETTINGS["mixed"]),
                        },
                    }
                },
            ),
            "the values of the first layer have 2 heads of 4 channels",
        ),
    ],
)
def test_mismatched_values_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


CODE = ("data=code", "tokenizer=char", *DECODER, "logger=none", "model.dim=16", "model.heads=2")


def issues(*overrides: str) -> str:
    """The issues that `check` reports, joined."""
    return "\n".join(map(str, check(compose([*CODE, *overrides]))))


READ = ("token_mixer.members.read._target_=blockyard.token_mixer.attention.Attention",)
READ += ("token_mixer.members.read._partial_=true", "token_mixer.members.read.kv_every=0")


def test_check_refuses_a_taker_without_a_giver() -> None:
    assert issues("token_mixer.kv_every=2", "model.depth=4") == ""
    text = issues("token_mixer.kv_every=0")
    assert "model with token_mixer: the layers of token_mixer=attention read the keys and values" in text
    assert "token_mixer.kv_every=2 computes them in every second layer" in text
    assert issues("token_mixer=cycle", "token_mixer.pattern=[attention,read]", *READ) == ""
    text = issues("token_mixer=cycle", "token_mixer.pattern=[read,attention]", *READ)
    assert "the layers of token_mixer=cycle read the keys and values of an earlier layer" in text
    assert "so the option has no effect" in issues("token_mixer.value_residual=mixed", "model.depth=1")


def test_kinds_of_layers_give_to_others() -> None:
    """As in Gemma 3n. Rotated keys are of no use under another scheme, nor keys of all tokens for a window."""
    depth, reads = "model.depth=4", "token_mixer.kv_every=0"
    assert issues(depth, "layers.pattern=[base,base,read,read]", f"layers.kinds.read=[{reads}]", "position=rope") == ""
    assert "layer 0 reads the keys" in issues(depth, "layers.pattern=[read,base]", f"layers.kinds.read=[{reads}]")
    kind = f"layers.kinds.read=[{reads},position=none]"
    text = issues(depth, "layers.pattern=[base,read]", kind, "position=rope")
    assert "block 1 reads the keys and values of block 0, which has another position scheme" in text
    kind = f"layers.kinds.read=[token_mixer=windowed_attention,{reads}]"
    text = issues(depth, "layers.pattern=[base,read]", kind)
    assert "read the keys and values of a window of 8 of an earlier layer, and none in front of them gives any" in text


def test_check_refuses_ids_where_there_are_none() -> None:
    text = "\n".join(map(str, check(compose(["experiment=vit_digits", "token_mixer.value_embedding=all"]))))
    assert "token_mixer=attention looks up token ids; tokenizer=patch gives none" in text
    latents = ("model=perceiver", "head=mean_pool", "position=learned", "token_mixer.value_embedding=all")
    text = "\n".join(map(str, check(compose(["experiment=vit_digits", *latents]))))
    assert "the latents of model=perceiver have none" in text


def test_cross_attention_carries_nothing() -> None:
    """Its keys and values are those of the memory."""
    for carried in ({"kv_every": 2}, {"value_residual": "mixed"}, {"value_embedding": "all"}):
        with pytest.raises(ValueError, match=r"model.cross: Attention cannot read a memory"):
            crossing(partial(Attention, **carried))


def test_identities_stay() -> None:
    """An option at its default hashes as an absent one; another value is another run."""
    plain = identity(compose([*CODE]).config)
    assert identity(compose([*CODE, "token_mixer.value_residual=none", "token_mixer.kv_every=1"]).config) == plain
    assert identity(compose([*CODE, "token_mixer.kv_every=2", "model.depth=4"]).config) != plain


def test_parameters_of_the_card() -> None:
    """A layer without keys and values has no projection for them."""
    counts = []
    for count in (1, 2):
        config = compose([*CODE, "model.depth=2", f"token_mixer.kv_every={count}"]).config
        counts.append(sum(p.numel() for p in Components(config).meta_model().parameters()))
    assert counts[0] - counts[1] == 2 * 16 * 16


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_tables_and_weights_do_not_decay(optimizer: str) -> None:
    """Nor does Muon orthogonalise a table, of which a step changes a few rows."""
    carried = ("token_mixer.value_residual=learned", "token_mixer.value_embedding=all", "model.depth=2")
    parts = Components(compose([*CODE, *carried, f"optimizer={optimizer}", "optimizer.weight_decay=0.1"]).config)
    model = parts.meta_model()
    own = {id(p) for name, p in model.named_parameters() if "value_sources" in name}
    assert len(own) == 2 * 2 + 1  # a table and two numbers a layer, two more in the second
    groups = parts.optimizer.build(model).param_groups
    inside = [group for group in groups if own & {id(p) for p in group["params"]}]
    assert sum(len(own & {id(p) for p in group["params"]}) for group in inside) == len(own)
    assert every(group["weight_decay"] == 0 and not group.get("use_muon") for group in inside)


# Planted bugs.


def test_planted_leak_over_documents_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of values that are given as the running mean of a sequence, whatever document a token is in."""
    real = Seq.give

    def running_mean(self: Seq, name: str, value: Any) -> None:
        if name == "values":
            value = value.cumsum(2) / torch.arange(1, value.shape[2] + 1)[:, None]
        real(self, name, value)

    monkeypatch.setattr(Seq, "give", running_mean)
    model = built(setting="mixed")
    causality(model, LENGTH)  # it is none of that
    with pytest.raises(AssertionError):
        packing(model, LENGTH)


def test_planted_carry_that_visits_share_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is computed again then reads what a later visit gave. Block 0 gives twice."""

    def shared(self: Carry, index: int, seq: Seq, carried: dict[str, Any]) -> Seq:
        return replace(seq, carry=carried, given=carried)

    monkeypatch.setattr(Carry, "to", shared)
    monkeypatch.setattr(Carry, "after", lambda self, seq, carried: None)
    plain = tiny(
        sizes={"depth": 2, "order": (0, 1, 0, 1)}, options={"token_mixer": {"value_residual": "mixed"}}
    ).train()
    again = copy.deepcopy(plain)
    checkpoint_blocks(again)
    for model in (plain, again):
        model(token_ids(2, LENGTH)).square().sum().backward()
    pairs = zip(plain.parameters(), again.parameters(), strict=True)
    assert not all(torch.allclose(one.grad, other.grad) for one, other in pairs)


def test_planted_cache_of_a_taker_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Attention._read

    def stores(self: Attention, batch_size: int) -> KVCache:
        return KVCache(batch_size, self.kv_heads, self.head_dim, self.value_dim)

    def read(self: Attention, h: Tensor, seq: Seq) -> Tensor:
        shared: SharedKeys = seq.carry["keys_and_values"]
        caches[id(self)].append(shared.k[:, :, -len(seq) :], shared.v[:, :, -len(seq) :], seq)
        return real(self, h, seq)

    caches: dict[int, KVCache] = {}

    def init_cache(self: Attention, batch_size: int) -> KVCache:
        caches[id(self)] = stores(self, batch_size)
        return caches[id(self)]

    monkeypatch.setattr(Attention, "init_cache", init_cache)
    monkeypatch.setattr(Attention, "_read", read)
    with pytest.raises((AssertionError, RuntimeError)):
        test_a_cache_holds_keys_once("attention")


def test_planted_values_of_the_second_layer_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that takes must not give: the third would read those of the second."""
    real = Values.forward

    def gives(self: Values, v: Tensor, seq: Seq, gate: Tensor | None = None) -> Tensor:
        y = real(self, v, seq, gate)
        seq.give("values", y)
        return y

    model = tiny(causal=True, sizes={"depth": 3}, options={"token_mixer": {"value_residual": "mixed"}})
    right = model(token_ids(2, LENGTH))
    monkeypatch.setattr(Values, "forward", gives)
    assert (model(token_ids(2, LENGTH)) - right).abs().max() > 1e-3
