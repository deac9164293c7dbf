"""Source and sequence in one row: what a joint model equals, what sees what, caches, heads and rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.config.check import reasons
from blockyard.config.compose import compose
from blockyard.contracts import DataSpec, Inputs, TokenSpec
from blockyard.model._prefix import Prefix
from blockyard.model.decoder import Decoder
from blockyard.model.joint import Joint
from blockyard.model.joint_encoder import JointEncoder
from blockyard.ops import mask
from blockyard.weight_init import initialise
from tests.components.model.tiny_models import tiny_parts
from tests.components.properties.checks import differs
from tests.support.helpers import choices, node, stir, token_ids

EXACT = {"rtol": 1e-9, "atol": 1e-9}
N, M = 6, 7  # tokens of the sequence and of the source
PLACED = ("position=none", "source_position=none")


def tiny(plan: Any, length: int = N, **picks: str) -> nn.Module:
    """A model of token ids in double precision, with a source of `M` where its plan takes one."""
    source = DataSpec("text", (M,)) if plan.takes_source else None
    data = DataSpec("text", (length,), source=source)
    ctx = plan.context(data, TokenSpec((length,), vocabulary=11), 11)
    return stir(initialise(plan.build(ctx, tiny_parts(**picks)), 0)).double().eval()


def joint(sees: Any = "past", prefix: Prefix | None = None, types: bool = True, **picks: str) -> nn.Module:
    plan = Joint(dim=16, depth=2, heads=4, sees=sees, types=types, prefix=prefix or Prefix())
    return tiny(plan, **{"position": "learned", **picks})


def joint_encoder(prefix: Prefix | None = None, **picks: str) -> nn.Module:
    return tiny(JointEncoder(dim=16, depth=2, heads=4, prefix=prefix or Prefix()), **{"position": "learned", **picks})


@torch.no_grad()
@pytest.mark.parametrize("mixer", ["attention", "linear_attention", "gru"])
def test_a_joint_model_is_a_decoder_over_both(mixer: str) -> None:
    """Without types, source and sequence are the two parts of a row, each with its part of the positions."""
    ours = joint(types=False, token_mixer=mixer)
    theirs = tiny(Decoder(dim=16, depth=2, heads=4), M + N, position="learned", token_mixer=mixer)
    weights = theirs.state_dict()
    for name, value in ours.state_dict().items():
        if name.startswith("source.embedder"):
            value.copy_(weights[name.removeprefix("source.")])
        elif name in weights and weights[name].shape == value.shape:
            value.copy_(weights[name])
    ((name, both),) = theirs.position.state_dict().items()
    ours.source.position.state_dict()[name].copy_(both[:M])
    ours.position.state_dict()[name].copy_(both[M:])
    inputs, source = token_ids(2, N), token_ids(2, M, 1)
    expected = theirs(torch.cat([source, inputs], 1))[:, M:]
    assert_close(ours(Inputs(inputs, source=source)), expected, **EXACT)
    ours.types, typed = None, joint(token_mixer=mixer)
    assert typed.types.vectors.shape == (2, 16)
    typed.load_state_dict(ours.state_dict(), strict=False)
    differs(typed(Inputs(inputs, source=source)), expected)


def attending() -> list[str]:
    """Causal mixers that compare pairs of tokens by their index, and mix in tokens in front."""
    traits = {name: node("token_mixer", name)[0].traits_for(node("token_mixer", name)[1]) for name in MIXERS}
    return [name for name, t in traits.items() if t.causal and t.prefix and "scores" in t.ports and 1 in t.axes]


MIXERS = [name for name in choices("token_mixer") if name not in ("cycle", "fixed_features")]


def streams(model: nn.Module, inputs: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of the source after the first block (B, M, D), and the predictions (B, N, V)."""
    steps = model.steps(Inputs(inputs, source=source))
    return steps["block.0"][:, :M], steps["prediction"]


def changed(token_ids: Tensor, index: int) -> Tensor:
    other = token_ids.clone()
    other[:, index] = (other[:, index] + 1) % 11
    return other


@torch.no_grad()
def assert_source_sees_itself(mixer: str) -> None:
    model, inputs, source = joint("source", token_mixer=mixer), token_ids(2, N), token_ids(2, M, 1)
    before, prediction = streams(model, inputs, source)
    for t in range(1, M):
        after, later = streams(model, inputs, changed(source, t))
        differs(after[:, 0], before[:, 0])
        differs(later[:, 0], prediction[:, 0])
    for t in range(N):  # and neither the source nor earlier tokens see what follows
        after, later = streams(model, changed(inputs, t), source)
        assert_close(after, before, **EXACT)
        assert_close(later[:, :t], prediction[:, :t], **EXACT)
        differs(later[:, t], prediction[:, t])


@pytest.mark.parametrize("mixer", [name for name in attending() if name != "strict_attention"])
def test_all_of_the_source_sees_all_of_it(mixer: str) -> None:
    assert_source_sees_itself(mixer)


def test_a_mask_of_rows_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the plain causal kernel is taken where tokens share an index."""
    planted = lambda seq, k_seq: k_seq is seq or k_seq.memo.get("ends_with") is seq  # noqa: E731
    monkeypatch.setattr(mask, "ordered_by_row", planted)
    with pytest.raises(AssertionError):
        assert_source_sees_itself("attention")


@torch.no_grad()
@pytest.mark.parametrize("mixer", ["attention", "gru", "linear_attention"])
def test_the_past_alone_is_seen(mixer: str) -> None:
    model, inputs, source = joint(token_mixer=mixer), token_ids(2, N), token_ids(2, M, 1)
    before, prediction = streams(model, inputs, source)
    after, later = streams(model, inputs, changed(source, M - 1))
    assert_close(after[:, : M - 1], before[:, : M - 1], **EXACT)
    differs(later, prediction)
    after, later = streams(model, changed(inputs, 3), source)
    assert_close(later[:, :3], prediction[:, :3], **EXACT)
    assert_close(after, before, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("sees", ["past", "source"])
@pytest.mark.parametrize("prefix", [Prefix(), Prefix(registers=2)])
def test_a_cache_continues_both(sees: str, prefix: Prefix) -> None:
    model = joint(sees, prefix, position="sinusoidal")
    inputs, source = token_ids(2, N), token_ids(2, M, 1)
    full = model(Inputs(inputs, source=source))
    memory = model.encode(source)
    assert_close(model(Inputs(inputs, memory=memory)), full, **EXACT)
    cache = model.init_cache(2)
    parts = [model(Inputs(inputs[:, :2], source=source), cache=cache)]
    parts += [model(inputs[:, t : t + 1], cache=cache) for t in range(2, 4)]
    order = torch.tensor([1, 0])
    cache.reorder(order)
    parts += [model(inputs[order, t : t + 1], cache=cache)[order] for t in range(4, N)]
    assert_close(torch.cat(parts, 1), full, **EXACT)
    assert cache.length == N
    for bad, kept in (({}, None), ({"source": source, "memory": memory}, None), ({"source": source}, cache)):
        with pytest.raises(ValueError, match="reads one source"):
            model(Inputs(inputs, **bad), kept)
    with pytest.raises(ValueError, match="of different lengths"):
        model(Inputs(inputs, source=source, source_lengths=torch.tensor([3, 7])))


@torch.no_grad()
def test_a_scheme_acts_in_the_sequence_alone() -> None:
    """The source has its own scheme, added to its tokens, and no coordinates in the joined sequence."""
    plan = JointEncoder(dim=16, depth=2, heads=4, types=False)
    data = DataSpec("text", (N,), source=DataSpec("text", (M,)))
    parts = tiny_parts(position="rope")._replace(source_position=tiny_parts(position="sinusoidal").position)
    ctx = plan.context(data, TokenSpec((N,), vocabulary=11), 11)
    model = stir(initialise(plan.build(ctx, parts), 0)).double().eval()
    inputs, source = token_ids(2, N), token_ids(2, M, 1)
    before = model(Inputs(inputs, source=source))
    differs(model(Inputs(inputs, source=changed(source, 2))), before)
    facts = model.steps(Inputs(inputs, source=source))["seq"]
    assert facts.num_prefix == M
    assert facts.coords[:, :M].abs().max() == 0
    assert facts.coords[0, M:, 0].tolist() == list(range(N))
    moved = model.steps(Inputs(inputs, source=source.flip(1)))["source.placed"]
    differs(moved.flip(1), model.steps(Inputs(inputs, source=source))["source.placed"])
    with pytest.raises(ValueError, match="mixers leave the source alone"):
        tiny(plan, position="rope")


@torch.no_grad()
def test_heads_read_the_sequence() -> None:
    """Predictions and means are over the sequence's own tokens; its padding is not there; the class token is first."""
    inputs, source, lengths = token_ids(2, N), token_ids(2, M, 1), torch.tensor([6, 4])
    pooled = joint_encoder(head="mean_pool")
    padded = pooled(Inputs(inputs, lengths=lengths, source=source))
    for row, count in enumerate(lengths.tolist()):
        alone = pooled(Inputs(inputs[row : row + 1, :count], source=source[row : row + 1]))
        assert_close(padded[row], alone[0], **EXACT)
    steps = pooled.steps(Inputs(inputs, source=source))
    assert steps["normed"].shape == (2, M + N, 16)
    assert_close(steps["prediction"], pooled.head.proj(steps["normed"][:, M:].mean(1)), **EXACT)
    classed = joint_encoder(Prefix(class_token=True, registers=1), head="class_token")
    steps = classed.steps(Inputs(inputs, source=source))
    assert steps["normed"].shape == (2, 2 + M + N, 16)
    assert_close(steps["prediction"], classed.head.proj(steps["normed"][:, 0]), **EXACT)
    assert joint_encoder().ctx.causal is False


JOINT = (
    *("data=canvas_captions", "tokenizer=word", "objective=translate", "head=token", "model=joint"),
    *("source_tokenizer=patch", "position=learned", "logger=none", "trainer=cpu"),
)


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        ((), None),
        (("model.sees=source",), None),
        (("token_mixer=gru",), None),
        (("token_mixer=gru", "model.sees=source"), "mixes in order of the tokens"),
        # The mean key of a block that the end of the source cuts tells of later tokens.
        (("token_mixer=block_selection", "model.sees=source"), "chooses among groups of tokens"),
        (
            ("token_mixer=cycle", "token_mixer.pattern=[attention,linear_attention]", "model.sees=source"),
            "token_mixer=linear_attention mixes in order of the tokens",
        ),
        (("position=rope",), "position=rope acts inside token mixers, which in model=joint leave the source alone"),
        (("position=rope", "source_position=sinusoidal"), None),
        (("source_position=alibi",), "source_position=alibi acts inside token mixers"),
        (("source_tokenizer=same",), "source_tokenizer=same reads texts"),
        (("token_mixer=conv",), "does not mix in tokens that stand in front"),
        (("token_mixer=windowed_attention",), None),
        (("model=joint_encoder",), "objective=translate needs a causal model"),
        (("data=translation", "source_tokenizer=same"), "sources of different lengths"),
        (("data=code", "source_tokenizer=same", "objective=next_token"), "needs a source sequence"),
    ],
)
def test_rules_of_a_joint_model(overrides: tuple[str, ...], refused: str | None) -> None:
    issues = reasons(compose([*JOINT, *overrides]))
    assert len(issues) == (refused is not None), issues
    assert refused is None or refused in issues[0]
