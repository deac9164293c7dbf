"""`objective.shift=0`: each token is predicted at its own position, by a model in which no token reads itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch
from blockyard.objective.next_token import NextToken
from blockyard.token_mixer.beside import Beside
from blockyard.token_mixer.strict_attention import StrictAttention
from tests.support.helpers import LENGTH, VOCABULARY, tiny, token_ids

STRICT = {"asks": "learned"}
IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])


def test_inputs_and_targets_stand_at_the_same_positions() -> None:
    both = [NextToken(shift=shift).prepare(Batch(IDS)) for shift in (0, 1)]
    assert_close(both[0].inputs, IDS[:, 1:])
    assert_close(both[1].inputs, IDS[:, :-1])
    assert_close(both[0].target, both[1].target)


def test_padding_and_documents() -> None:
    """The same targets count as with shift=1, and documents are those of the inputs."""
    segment = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 2]])
    batch = Batch(IDS, lengths=torch.tensor([5, 3]), segment=segment)
    own, after = (NextToken(shift=shift).prepare(batch) for shift in (0, 1))
    assert_close(own.target, after.target)
    assert_close(own.lengths, after.lengths)
    assert_close(own.segment, segment[:, 1:])
    assert (own.target == own.inputs).logical_or(own.target == Batch.ignore).all()


def of_blocks(block: str, **options: object) -> nn.Module:
    """A decoder of strict layers."""
    return tiny(
        causal=True,
        token_mixer="strict_attention",
        block=block,
        position="rope",
        options={"token_mixer": {**STRICT, **options}},
        sizes={"depth": 3},
    )


def reads(model: nn.Module) -> Tensor:
    """Whether output n depends on token m, (N, N)."""
    ids, seen = token_ids(2, LENGTH), torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        before = model(ids)
        for m in range(LENGTH):
            other = ids.clone()
            other[:, m] = (other[:, m] + 1) % VOCABULARY
            seen[:, m] = (model(other) - before).abs().amax((0, 2)) > 1e-9
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": "all"},
        {"layers": "all", "value_residual": "mixed"},
        {"layers": "all", "value_embedding": "all"},
        {"sink": "learned", "qk_norm": True, "tied_kv": True},
    ],
    ids=str,
)
def test_strict_mixers_read_earlier_tokens_alone(options: dict[str, object]) -> None:
    assert StrictAttention.traits_for({**STRICT, **options}).strict
    seen = reads(of_blocks("no_residual", **options))
    before = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(-1)
    assert not seen[~before].any()
    assert seen[-1, : LENGTH - 3].all()  # of three layers, each of which may leave a token out


@pytest.mark.parametrize("options", [{"asks": "own"}, {"value_residual": "mixed"}, {"value_embedding": "all"}], ids=str)
def test_what_is_not_declared_strict_leaks(options: dict[str, object]) -> None:
    """So that the declaration is not narrower than it has to be."""
    assert not StrictAttention.traits_for({**STRICT, **options}).strict
    assert reads(of_blocks("no_residual", **options)).diagonal().any()


@pytest.mark.parametrize("block", ["pre_norm", "post_norm", "parallel"])
def test_blocks_with_a_residual_leak(block: str) -> None:
    assert reads(of_blocks(block)).diagonal().all()


def test_a_mixer_beside_it_is_not_strict() -> None:
    members = {"strict": _partial(STRICT), "plain": _partial({})}
    assert not Beside.traits_for({"mixers": ("strict", "plain"), "members": members}).strict


def _partial(options: dict[str, object]) -> object:
    from functools import partial

    return partial(StrictAttention, **options)


def test_it_is_shift_1_with_plain_attention_over_moved_inputs() -> None:
    """Strict attention over t at n reads what plain attention over t without its last token reads at n - 1."""
    model = tiny(
        causal=True,
        token_mixer="strict_attention",
        block="no_residual",
        options={"token_mixer": STRICT},
        sizes={"depth": 1},
    )
    ids = token_ids(2, LENGTH)
    own = model(ids)
    for mixer in model.mixers:
        mixer.strict = False
    plain = model(ids[:, :-1])
    assert_close(own[:, 1:], plain)
    strict, after = NextToken(shift=0), NextToken()
    target = ids[:, 1:]
    assert_close(strict.loss(own[:, 1:], target), after.loss(plain, target))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("", "with token_mixer=attention a token reads itself"),
        ("token_mixer=strict_attention", "with token_mixer=strict_attention a token reads itself"),
        ("block=pre_norm", "block=pre_norm passes the token on to its own output: block=no_residual"),
        ("residual=x0", "residual=x0 passes earlier states of the stream on: residual=add"),
        ("model.order=[1,0,2]", "visits another block before the first one: model.order=null"),
        ("model.backout=1", "takes an earlier stream out of the last one: model.backout=null"),
        ("head=multi_token", "head=multi_token reads their ids"),
    ],
)
def test_models_that_read_the_token_are_refused(overrides: str, message: str) -> None:
    strict = "token_mixer=strict_attention token_mixer.asks=learned block=no_residual"
    if "token_mixer" in overrides or not overrides:
        strict = "block=no_residual"
    options = f"experiment=gpt_code_small objective.shift=0 {strict} {overrides}".split()
    issues = [str(issue) for issue in check(compose(options))]
    assert any(message in issue for issue in issues), issues


def test_what_is_strict_is_let_through() -> None:
    options = "experiment=gpt_code_small objective.shift=0 token_mixer=strict_attention token_mixer.asks=learned"
    assert check(compose([*options.split(), "block=no_residual"])) == []


@pytest.mark.full
def test_it_trains_and_does_not_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = (
        "experiment=gpt_code_small objective.shift=0 token_mixer=strict_attention token_mixer.asks=learned "
        f"block=no_residual model.dim=16 model.depth=1 trainer.max_steps=2 logger=none "
        f"trainer.max_epochs=null outputs={tmp_path} name=strict"
    )
    assert main(["train", *overrides.split()]) == 0
    (run,) = tmp_path.glob("strict-*/s0")
    capsys.readouterr()
    assert main(["generate", f"run={run}", "prompt=def"]) == 2
    assert "predicts each token at its own position (objective.shift=0)" in capsys.readouterr().err
