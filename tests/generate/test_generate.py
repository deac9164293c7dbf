"""Text from a decoder: the same with a cache and without, whole characters, clear refusals."""

from __future__ import annotations

import inspect
import itertools
import logging
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import blockyard
from blockyard.cli import main
from blockyard.contracts import Inputs, TokenSpec
from blockyard.errors import UserError
from blockyard.generate.api import Detokenizer, generate, generate_all, stream_to_terminal
from blockyard.generate.decode import collected, decode_batch
from blockyard.generate.request import encode_text, read_lines
from blockyard.generate.sampling import Sampler
from blockyard.generate.stats import Stats
from blockyard.runs.load import Loaded
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.ids import Ids
from tests.support import engine_runs
from tests.support.every import every

pytestmark = pytest.mark.xdist_group("generate")  # its runs are made once


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loaded]:
    """A decoder for each way of knowing places and each kind of text."""
    outputs = tmp_path_factory.mktemp("text")
    (outputs / "module.py").write_text(inspect.getsource(textwrap))  # of all modules, BPE takes most of the time
    data = ("data=text_file", f"data.path={outputs / 'module.py'}")
    kinds = {
        "learned": ("position=learned", "tokenizer=char"),
        "rope": ("position=rope", "tokenizer=byte"),
        "alibi": ("position=alibi", "tokenizer=bpe", "tokenizer.vocab_size=300", "token_mixer.num_kv_heads=1"),
        "sinusoidal": ("position=sinusoidal", "tokenizer=word"),
    }
    return {
        name: blockyard.load(engine_runs.text_run(outputs, *data, *arguments).path) for name, arguments in kinds.items()
    }


def test_prompts_of_token_ids_are_numbers_of_the_vocabulary(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Each legal one was called unknown, and an id beyond the vocabulary was an error of torch."""
    components = SimpleNamespace(tokens=lambda: TokenSpec((4,), vocabulary=10))
    reads: Any = SimpleNamespace(tokenizer=Ids(), components=components)
    assert encode_text(reads, "prompt", "5  6\n") == [5, 6]
    assert not caplog.records
    for text, wrong in (("5 10", "10"), ("-1", "-1")):
        with pytest.raises(UserError, match=f"the prompt has token id {wrong}; the model reads ids from 0 to 9"):
            encode_text(reads, "prompt", text)
    (tmp_path / "prompts.txt").write_text("\ufeffThe cat\nA dog\n", encoding="utf-8")
    assert read_lines("prompts", str(tmp_path / "prompts.txt")) == ["The cat", "A dog"]


def _greedy(loaded: Loaded, *, cache: bool, tokens: int = 60, prompt: str = "def f(") -> tuple[list[int], Stats]:
    generated = generate(loaded, prompt, max_tokens=tokens, temperature=0, cache=cache)
    assert "".join(generated) == generated.text
    return generated.token_ids, generated.stats


@pytest.mark.parametrize("name", ["learned", "rope", "alibi", "sinusoidal"])
@pytest.mark.sampled(2)
def test_greedy_text_is_the_same_with_a_cache_and_without(loaded: dict[str, Loaded], name: str) -> None:
    with torch.no_grad():  # a model of five steps repeats one symbol: more contrast, so that history matters
        for parameter in loaded[name].model.parameters():
            parameter.mul_(1.7)
    cached, with_cache = _greedy(loaded[name], cache=True)
    plain, without = _greedy(loaded[name], cache=False)
    assert cached == plain
    assert len(set(cached)) > 1
    assert len(cached) == 60 == with_cache.tokens
    assert without.cache_bytes_per_token is None
    heads = 1 if name == "alibi" else 2
    assert with_cache.cache_bytes_per_token == 2 * 2 * heads * 8 * 4  # k and v, layers, heads, head width, float32
    assert (with_cache.cuts > 0) == (name == "learned")
    assert with_cache.cuts == without.cuts
    assert with_cache.tokens_per_second > 0


def test_the_planted_bug_of_a_stale_cache_is_seen(loaded: dict[str, Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded["learned"].model
    plain, _ = _greedy(loaded["learned"], cache=False)
    real = type(model).forward

    def forgets(self: Any, inputs: Any, *rest: Any, cache: Any = None) -> Any:
        logits = real(self, inputs, *rest, cache=cache)
        if cache is not None and inputs.inputs.shape[1] > 1:
            for layer in cache.layers:
                layer._v.mul_(-1)
        return logits

    monkeypatch.setattr(type(model), "forward", forgets)
    assert _greedy(loaded["learned"], cache=True)[0] != plain


def test_a_long_prompt_is_cut_with_a_warning(loaded: dict[str, Loaded], caplog: pytest.LogCaptureFixture) -> None:
    prompt = "return self.value + 1\n" * 5
    for cache in (True, False):
        generated = generate(loaded["learned"], prompt, max_tokens=3, temperature=0, cache=cache)
        assert len(list(generated.stream._steps)) == 3
    assert f"the prompt has {len(prompt)} tokens; the model sees the last 16" in caplog.text
    assert (
        _greedy(loaded["rope"], cache=True, prompt=prompt)[0] == _greedy(loaded["rope"], cache=False, prompt=prompt)[0]
    )


def test_a_seed_repeats_and_another_does_not(loaded: dict[str, Loaded]) -> None:
    def text(seed: int, **more: Any) -> str:
        return "".join(generate(loaded["rope"], "x", max_tokens=30, temperature=1.0, seed=seed, **more))

    assert text(1) == text(1) == text(1, cache=False)
    assert text(1) != text(2)
    assert text(1, top_k=1) == text(2, top_k=1)
    assert text(1, top_k=None) == text(1, top_k=40)


def test_choosing_follows_the_probabilities() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0, -1.0]).log_softmax(-1)
    chooser = Sampler(0.5, 3, 0)
    counts = torch.bincount(torch.tensor([chooser(scores) for _ in range(4000)]), minlength=4) / 4000
    expected = torch.softmax(torch.tensor([1.0, 2.0, 3.0, -torch.inf]) / 0.5, -1)
    torch.testing.assert_close(counts, expected, rtol=0, atol=0.03)
    assert Sampler(1e-12, None, 0)(scores) == 2
    assert Sampler(0, None, 0)(scores) == 2
    masked = torch.tensor([-torch.inf, 1.0, -torch.inf])
    assert {Sampler(t, k, 0)(masked) for t, k in ((0, None), (1.0, None), (1.0, 3))} == {1}
    nan, inf = float("nan"), float("inf")
    for broken, says in (([nan, 1.0], "NaN"), ([inf, 1.0], "infinite"), ([-inf, -inf], "infinite")):
        for temperature, top_k in ((0, None), (1.0, None), (1.0, 1)):
            with pytest.raises(UserError, match=f"scores are {says}"):
                Sampler(temperature, top_k, 0)(torch.tensor(broken))


def emitted(tokenizer: Any, token_ids: Iterable[int]) -> list[str]:
    """What a detokenizer gives after each token, and at the end."""
    detokenizer = Detokenizer(tokenizer)
    texts = [detokenizer.push(token_id) for token_id in token_ids]
    return [text for text in (*texts, detokenizer.flush()) if text]


def test_characters_of_several_bytes_come_whole() -> None:
    text = "aé漢🙂\u0301b"
    assert emitted(Byte(), text.encode()) == list(text)
    assert "".join(emitted(Byte(), b"a\xff\xfe" + b"\x80" * 20 + "é".encode())).startswith("a\ufffd")
    assert "".join(emitted(Byte(), b"ab\xc3")) == "ab\ufffd"
    # The planted bug: decoding symbol by symbol breaks them.
    assert "".join(Byte().decode([symbol]) for symbol in text.encode()) != text


def test_detokenized_parts_join_to_the_whole_for_every_tokenizer(loaded: dict[str, Loaded]) -> None:
    for one in loaded.values():
        ids = one.tokenizer.encode("def f(x):\n    return 'é漢' + x  # ok\n")
        assert "".join(emitted(one.tokenizer, ids)) == one.tokenizer.decode(ids)


def test_a_mixer_of_one_length_runs_the_padded_row(caplog: pytest.LogCaptureFixture) -> None:
    padded: list[torch.Tensor] = []

    class Fixed(torch.nn.Linear):
        ctx = SimpleNamespace(tokens=TokenSpec((8,), vocabulary=5))
        mixers = (SimpleNamespace(traits=SimpleNamespace(any_length=False)),)
        position = SimpleNamespace(bounded=False, length_scale=1.0)

        def init_cache(self, batch_size: int) -> None:
            raise ValueError("its mixer takes rows of one length only")

        def forward(self, inputs: Inputs, cache: Any = None) -> torch.Tensor:
            padded.append(inputs.inputs)
            return torch.nn.functional.one_hot((inputs.inputs + 1) % 5, 5).float()

    stats = Stats()
    steps = decode_batch(Fixed(1, 1), [[1, 2]], [Sampler(0, None, 0)], max_tokens=9, cache=True, stats=stats)
    assert collected(steps, 1) == [list(itertools.islice(itertools.cycle([3, 4, 0, 1, 2]), 9))]
    assert every(row.shape == (1, 8) for row in padded)
    assert stats.cuts == 1
    assert "rows of one length only" in caplog.text


def test_an_invalid_prompt_is_refused(loaded: dict[str, Loaded], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match="the prompt is empty"):
        generate(loaded["learned"], "")
    with pytest.raises(UserError, match="not valid text"):
        generate(loaded["rope"], "a\udcff")
    with caplog.at_level(logging.WARNING):
        "".join(generate(loaded["learned"], "def 漢字", max_tokens=2))
    assert "'字' '漢'" in caplog.text or "'漢' '字'" in caplog.text
    for bad in ({"max_tokens": 0}, {"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"seed": -1}):
        with pytest.raises(UserError, match=next(iter(bad))):
            generate(loaded["rope"], "a", **bad)


def test_a_run_that_is_not_a_decoder_of_text_is_refused(tmp_path: Path) -> None:
    generated = engine_runs.run(tmp_path, "trainer.max_steps=2", "trainer.eval_every=2")
    with pytest.raises(UserError, match="a model of images; generate needs a model of text"):
        generate(generated.path, "a")


def test_the_terminal_gets_text_on_one_channel_and_figures_on_the_other(
    loaded: dict[str, Loaded], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(loaded["rope"].folder.path)
    stats = stream_to_terminal(path, ["def "], max_tokens=5, temperature=0)
    captured = capsys.readouterr()
    assert captured.out.startswith("def ")
    assert captured.out.endswith("\n")
    assert captured.err.strip() == str(stats)
    assert "tokens/s" in captured.err
    assert "cache bytes per token" in captured.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"beam": 4, "temperature": 0.5}, "temperature=0.5 has no effect with beam=4"),
        ({"beam": 4, "seed": 1}, "seed=1 has no effect with beam=4: beam search does not sample"),
        ({"beam": 0}, "beam=0: expected an integer >= 1"),
        ({"length_penalty": 2.0}, "has an effect in beam search only; add beam=4"),
        ({"beam": 2, "length_penalty": 2.0}, "has no end token, so all hypotheses have the same length"),
        ({"top_p": 0.0}, "top_p=0.0: expected a number in (0, 1]"),
        ({"temperature": 0, "top_k": 3}, "top_k=3 has no effect with temperature=0, which does not sample"),
        ({"source": "a"}, "takes no source"),
    ],
    ids=str,
)
def test_options_without_effect_are_refused(loaded: dict[str, Loaded], options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        generate(loaded["rope"], "a", **options)


def test_several_prompts_give_what_each_gives_alone(
    loaded: dict[str, Loaded], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drawn, each from its own seed; from the command line, as lines of a file."""
    prompts, rope = ["def f(", "x", "return self"], blockyard.load(loaded["rope"].folder.path)
    stream = generate_all(rope, prompts, max_tokens=12, seed=5)
    joined = dict.fromkeys(range(3), "")
    for number, part in stream:
        joined[number] += part
    for number, prompt in enumerate(prompts):
        alone = "".join(generate(rope, prompt, max_tokens=12, seed=5 + number))
        assert stream.texts[number].text == alone == joined[number]
    (tmp_path / "prompts").write_text("\n\n".join(prompts) + "\n")
    arguments = ["generate", f"run={rope.folder.path}", "max_tokens=12", "seed=5"]
    assert main([*arguments, f"prompts={tmp_path / 'prompts'}"]) == 0
    from_file = capsys.readouterr().out
    assert main([*arguments, *(f"prompt={prompt}" for prompt in prompts)]) == 0
    assert capsys.readouterr().out == from_file
    for number, row in enumerate(stream.texts):
        assert f"--- {number + 1} of 3\n{row.prompt}{row.text}\n" in from_file
    for bad in (["prompts=nowhere"], ["prompt=a", "beam=2", "top_p=0.5"], ["prompt=a", "top_p=2"], ["source=a"]):
        assert main([*arguments[:2], *bad]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_beams_of_text(loaded: dict[str, Loaded]) -> None:
    """The whole text comes, whether from a cache or not, and is counted."""
    texts = []
    for cache in (True, False):
        generated = generate(loaded["rope"], "def f(", beam=3, max_tokens=10, cache=cache)
        assert "".join(generated) == generated.text
        assert len(generated.token_ids) == generated.stats.tokens == 10
        texts.append(generated.text)
    assert texts[0] == texts[1]
