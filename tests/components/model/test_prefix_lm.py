"""`model.sees=source`: the tokens of a source see each other, and nothing else of a decoder changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import DataSpec, Inputs, TokenSpec
from blockyard.generate.draft import NgramDraft
from blockyard.generate.sampling import Sampler
from blockyard.generate.speculative import SpeculativeStats, speculate
from blockyard.model.decoder import Decoder
from blockyard.ops import mask
from blockyard.ops.kernel import attention_kernel
from blockyard.weight_init import initialise
from tests.components.model.tiny_models import tiny_parts
from tests.generate.decoding import beam, greedy
from tests.support.helpers import stir, token_ids

START, END, LENGTH = 9, 10, 24
SOURCES = (4, 6)  # tokens in front of the start token of each row


def model(sees: str = "source", **parts: str) -> nn.Module:
    """A tiny decoder of pairs."""
    plan = Decoder(dim=16, depth=2, heads=4, sees=sees)  # type: ignore[arg-type]
    data = DataSpec("text", (LENGTH,), variable=True, joined=True)
    ctx = plan.context(data, TokenSpec((LENGTH,), variable=True, vocabulary=11, start=START, end=END), 11)
    return stir(initialise(plan.build(ctx, tiny_parts(**{"position": "alibi", **parts})), 0)).double().eval()


def sequences() -> Tensor:
    """Two rows, of sources of different lengths."""
    tokens = token_ids(2, 10) % START
    for row, count in enumerate(SOURCES):
        tokens[row, count] = START
    return tokens


@torch.no_grad()
def changed(net: nn.Module, row: int, at: int) -> list[int]:
    """The positions of a row whose outputs change with its token at one of them."""
    tokens = sequences()
    before = net(tokens)
    tokens[row, at] = (tokens[row, at] + 1) % START
    different = (net(tokens) - before).abs().amax(-1) > 1e-9  # (B, N)
    assert not different[1 - row].any()
    return different[row].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    "mixer", ["attention", "memory_attention", "hard_attention", "sigmoid_attention", "windowed_attention"]
)
def test_tokens_of_a_source_see_each_other_and_no_others_look_ahead(mixer: str) -> None:
    net = model(token_mixer=mixer)
    for row, count in enumerate(SOURCES):
        if mixer in ("attention", "memory_attention"):
            assert changed(net, row, count - 1) == list(range(10))  # the last of the source
        assert min(changed(net, row, count - 1)) < count - 1
        for at in (count + 1, count + 2):  # of the target
            assert min(changed(net, row, at)) == at
    past = model("past", token_mixer=mixer)
    assert min(changed(past, 0, 2)) == 2


def test_planted_plain_causal_path_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model(position="none")
    assert changed(net, 0, 3) == list(range(10))
    monkeypatch.setattr(mask, "ordered_by_row", lambda seq, k_seq: k_seq is seq)
    monkeypatch.setattr(mask, "everything", lambda *_: False)
    assert changed(net, 0, 3) != list(range(10))


@torch.no_grad()
def test_kernels_agree_and_padding_is_absence() -> None:
    net, tokens = model(), sequences()
    expected = net(tokens)
    for name in ("eager", "online", "sdpa"):
        with attention_kernel(name):  # type: ignore[arg-type]
            assert_close(net(tokens), expected)
    assert_close(net(Inputs(tokens, lengths=torch.tensor([10, 8])))[1, :8], net(tokens[1:, :8])[0])


@torch.no_grad()
def test_written_texts_are_the_same_from_a_cache_in_batches_and_by_a_draft() -> None:
    net = model()
    prompts = [row[: count + 1].tolist() for row, count in zip(sequences(), SOURCES, strict=True)]
    settings = {"max_tokens": 8, "end": END}
    together, _ = greedy(net, prompts, cache=True, **settings)
    assert together == greedy(net, prompts, cache=False, **settings)[0]
    assert together == [greedy(net, [prompt], cache=True, **settings)[0][0] for prompt in prompts]
    assert together == beam(net, prompts, width=1, **settings)[0]
    for prompt, expected in zip(prompts, together, strict=True):
        stats, sampler = SpeculativeStats(), Sampler(0.0, None, 0)
        more = {"draft_tokens": 3, "cache": True, "stats": stats, **settings}
        drafted = speculate(net, prompt, NgramDraft(prompt), sampler, **more)
        assert [token_id for step in drafted for token_id in step] == expected
    cache = net.init_cache(1)
    net(sequences()[:1, :2], cache=cache)
    with pytest.raises(ValueError, match="in the first call; it came in several"):
        net(sequences()[:1, 2:], cache=cache)


def test_what_has_no_source_or_mixes_in_order_is_refused() -> None:
    translate = ("data=translation", "data.joined=true", "tokenizer=char", "head=token", "objective=next_token")
    decoder = ("model=decoder", "model.sees=source")
    assert not check(compose([*translate, *decoder]))
    issues = check(compose([*translate, *decoder, "token_mixer=conv"]))
    assert any("cannot see each other: sees=past" in str(issue) for issue in issues)
    text = ("data=code", "tokenizer=char", "head=token", "objective=next_token", *decoder)
    assert any("this data has none; use model.sees=past" in str(issue) for issue in check(compose(text)))


@pytest.mark.parametrize("scheme", ["t5_bias", "bias_offset"])
def test_a_bias_tells_later_tokens_of_a_source_from_earlier_ones(scheme: str) -> None:
    for sees, tells in (("source", True), ("past", False)):
        position = model(sees, position=scheme).get_submodule("position")
        query, keys = torch.tensor([[5.0]]), torch.tensor([3.0, 5.0, 6.0, 9.0])
        bias = position.bias(torch.tensor(0), (query.double(),), (keys.double(),)).flatten()
        assert (len({round(each, 6) for each in bias.tolist()}) == 4) == tells


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("position=fire", "the tokens of a source see each other"),
        ("position=xpos", "the tokens of a source see each other"),
        ("head=multi_token", "only the target is predicted: head=token"),
    ],
)
def test_what_is_wrong_for_the_tokens_of_a_source_is_refused(override: str, message: str) -> None:
    translate = ("data=translation", "data.joined=true", "tokenizer=char", "head=token", "objective=next_token")
    issues = check(compose([*translate, "model=decoder", "model.sees=source", override]))
    assert [str(issue) for issue in issues if message in str(issue)]


def test_its_operations_are_counted_without_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """On the meta device no number can be looked at."""
    translate = ("data=translation", "data.joined=true", "tokenizer=char", "head=token", "objective=next_token")
    assert main(["check", *translate, "model=decoder", "model.sees=source", "logger=none", "trainer=cpu"]) == 0
    shown = capsys.readouterr().out
    assert "FLOPs" in shown
    assert "not counted" not in shown
