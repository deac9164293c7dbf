"""Text tokenizers: round trips, saved state, and fitting on the training split only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockyard.contracts import Context, DataSpec, Embedder, TextTokenizer, Tokenizer
from blockyard.data.files.cache import cache_dir
from blockyard.position.sinusoidal import Sinusoidal
from blockyard.tokenizer._lookup import REPLACEMENT
from blockyard.tokenizer.bpe import BPE
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.symbols import Symbols
from blockyard.tokenizer.word import Word
from blockyard.weight_init import initialise

TEXT = "The block stands.\n\n    def f(x):\n        return x  # twice  \u00e4\u00f6 \u4e16\n" * 3
MAKERS: dict[str, Callable[[], TextTokenizer]] = {
    "byte": Byte,
    "char": Char,
    "word": Word,
    "bpe": lambda: BPE(vocab_size=300),
}
SPEC = DataSpec("text", (16,))


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BLOCKYARD_CACHE", str(folder))
    return folder


def fitted(name: str, texts: list[str] | None = None) -> TextTokenizer:
    tokenizer = MAKERS[name]()
    tokenizer.fit(texts or [TEXT])
    return tokenizer


@pytest.mark.parametrize("name", MAKERS)
def test_round_trip(name: str) -> None:
    tokenizer = fitted(name)
    token_ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(token_ids) == TEXT
    vocabulary = tokenizer.spec(SPEC).vocabulary
    assert vocabulary is not None
    assert min(token_ids) >= 0
    assert max(token_ids) < vocabulary


ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(deadline=None)
@given(ANY)
def test_bytes_round_trip_any_text(text: str) -> None:
    assert Byte().decode(Byte().encode(text)) == text
    assert LEARNED.decode(LEARNED.encode(text)) == text


@settings(deadline=None)
@given(ANY)
def test_char_and_word_round_trip_what_they_learned(text: str) -> None:
    for tokenizer in (Char(max_symbols=10_000), Word()):
        tokenizer.fit([text])
        assert tokenizer.decode(tokenizer.encode(text)) == text


def _learned() -> BPE:
    from blockyard.tokenizer.bpe import _train

    tokenizer = BPE(vocab_size=300)
    tokenizer._trained = _train([TEXT], 300)
    return tokenizer


LEARNED = _learned()


@pytest.mark.parametrize("name", MAKERS)
def test_state_is_json_and_comes_back(name: str) -> None:
    tokenizer = fitted(name)
    state = json.loads(json.dumps(tokenizer.state()))
    again = MAKERS[name]()
    again.load_state(state)
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert again.spec(SPEC) == tokenizer.spec(SPEC)
    assert again.state() == tokenizer.state()


@pytest.mark.parametrize("name", MAKERS)
def test_fitting_is_deterministic(name: str) -> None:
    assert fitted(name).state() == fitted(name).state()


@pytest.mark.parametrize("name", MAKERS)
def test_before_fit_the_vocabulary_is_the_largest(name: str) -> None:
    before, after = MAKERS[name]().spec(SPEC).vocabulary, fitted(name).spec(SPEC).vocabulary
    assert before is not None
    assert after is not None
    assert after <= before


@pytest.mark.parametrize("name", ["char", "word"])
def test_the_unknown_token_is_explicit(name: str) -> None:
    tokenizer = fitted(name)
    token_ids = tokenizer.encode("\u2603")
    assert token_ids == [0]
    assert tokenizer.decode(token_ids) == REPLACEMENT
    assert 0 not in tokenizer.encode(TEXT)


def test_small_vocabularies_keep_the_frequent() -> None:
    char = Char(max_symbols=3)
    with pytest.warns(UserWarning, match=r"1 of 3 characters .* tokenizer.max_symbols=4 would keep all"):
        char.fit(["aaabbc"])
    assert char.encode("abc") == [1, 2, 0]
    assert char.spec(SPEC).vocabulary == 3
    tokenizer = Word(max_words=2)
    tokenizer.fit(["to be to be to"])
    assert tokenizer.state() == {"words": [" be"]}  # " be" twice, " to" twice, "to" once


def test_bpe_cache_is_by_content(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    first = fitted("bpe")
    files = list((cache / "bpe").iterdir())
    assert len(files) == 1

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    with monkeypatch.context() as patch:
        patch.setattr("blockyard.tokenizer.bpe._train", never)
        assert fitted("bpe").state() == first.state()
        with pytest.raises(AssertionError, match="trained again"):
            fitted("bpe", [TEXT + "!"])
    for damage in ("{}", "{", '{"tokenizer": 1}', "[]"):
        files[0].write_text(damage)
        assert fitted("bpe").state() == first.state()


def assert_learned_from_training_only(fit: Callable[[BPE, list[str], list[str]], None]) -> None:
    """A word that the test part repeats must not become a token."""
    tokenizer = BPE(vocab_size=400)
    fit(tokenizer, ["some plain words " * 50], ["zqzqzqzq" * 50])
    assert len(tokenizer.encode("words words words")) < 17
    assert len(tokenizer.encode("zqzqzqzq")) == 8


def test_bpe_learns_from_the_texts_passed_to_fit() -> None:
    assert_learned_from_training_only(lambda tokenizer, train, test: tokenizer.fit(train))
    with pytest.raises(AssertionError):
        assert_learned_from_training_only(lambda tokenizer, train, test: tokenizer.fit(train + test))


def test_bpe_of_text_data_learns_from_the_training_part(tmp_path: Path) -> None:
    from blockyard.data.text_file import TextFile

    def fit(tokenizer: BPE, train: list[str], test: list[str]) -> None:
        whole = train[0] + test[0] + "tail " * 30  # 850, 400 and 150 characters
        (tmp_path / "text.txt").write_text(whole)
        validation, test_size = 150 / len(whole), 400 / len(whole)
        data = TextFile(
            path=str(tmp_path / "text.txt"), validation_fraction=validation, test_fraction=test_size, context=8
        )
        assert "zq" not in data.documents().train[0]
        data.load(tokenizer)

    assert_learned_from_training_only(fit)


def test_messages_of_bpe() -> None:
    with pytest.raises(ValueError, match="is not fitted"):
        BPE().encode("x")
    with pytest.raises(ValueError, match="not the saved state of a bpe tokenizer"):
        BPE().load_state({"tokenizer": {"model": 3}})


def test_images_are_refused() -> None:
    with pytest.raises(ValueError, match="reads text"):
        Char().spec(DataSpec("image", (1, 8, 8)))


@pytest.mark.parametrize("name", MAKERS)
def test_the_embedder_gives_vectors_and_facts(name: str) -> None:
    tokenizer = fitted(name)
    tokens = tokenizer.spec(SPEC)
    ctx = Context(dim=8, depth=1, heads=2, causal=True, tokens=tokens, data=SPEC, outputs=5)
    embedder = tokenizer.embedder(ctx)
    assert embedder.table is not None
    assert embedder.table.shape == (tokens.vocabulary, 8)
    inputs = torch.randint(0, tokens.vocabulary or 1, (2, 6))
    x, seq = embedder(inputs)
    torch.testing.assert_close(x, embedder.table[inputs])
    torch.testing.assert_close(seq.index, torch.arange(6))
    torch.testing.assert_close(seq.coords, torch.arange(6.0).view(1, 6, 1))
    assert (seq.valid, seq.segment, seq.grid) == (None, None, (6,))
    _, later = embedder(inputs, start=10)
    torch.testing.assert_close(later.index, torch.arange(10, 16))
    torch.testing.assert_close(later.coords[0, :, 0], torch.arange(10.0, 16.0))


SCALED: dict[str, tuple[Callable[..., Tokenizer], DataSpec]] = {
    **{name: (maker, SPEC) for name, maker in {"byte": Byte, "char": Char, "word": Word, "bpe": BPE}.items()},
    "symbols": (Symbols, DataSpec("symbols", (16,), vocabulary=5)),
}


@pytest.mark.parametrize("name", SCALED)
def test_vectors_may_be_scaled_by_the_root_of_their_width(name: str) -> None:
    """The embeddings and the sinusoids are scaled; the table that a tied head shares is not."""
    make, data = SCALED[name]

    def parts(scale: str) -> tuple[Context, Embedder]:
        tokenizer = make(scale=scale)
        ctx = Context(dim=16, depth=1, heads=2, causal=True, tokens=tokenizer.spec(data), data=data, outputs=5)
        return ctx, initialise(tokenizer.embedder(ctx), 0)

    (plain_ctx, plain), (scaled_ctx, scaled) = parts("one"), parts("sqrt_dim")
    inputs = torch.randint(5, (2, 6))
    torch.testing.assert_close(scaled.table, plain.table)
    torch.testing.assert_close(scaled(inputs)[0], 4 * plain(inputs)[0])
    torch.testing.assert_close(plain(inputs)[0], plain.table[inputs])
    assert (plain.scale, scaled.scale) == (1.0, 4.0)
    assert Sinusoidal(scaled_ctx).scale == 4 * Sinusoidal(plain_ctx).scale == 4 * plain_ctx.init_std


def test_lengths_and_segments_become_facts() -> None:
    ctx = Context(dim=8, depth=1, heads=2, causal=True, tokens=Byte().spec(SPEC), data=SPEC, outputs=5)
    segment = torch.tensor([[0, 0, 1, 1, 1, 4], [3, 2, 2, 2, 3, 3]])
    _, seq = Byte().embedder(ctx)(torch.zeros(2, 6, dtype=torch.long), torch.tensor([2, 6]), segment)
    assert seq.valid is not None
    assert seq.valid.tolist() == [[True, True, False, False, False, False], [True] * 6]
    assert seq.coords[..., 0].tolist() == [[0, 1, 0, 1, 2, 0], [0, 0, 1, 2, 0, 1]]
    torch.testing.assert_close(seq.segment, segment)


@pytest.mark.parametrize("name", MAKERS)
@settings(deadline=None, max_examples=60)
@given(text=ANY)
def test_the_library_gives_equal_ids_and_texts(name: str, text: str) -> None:
    tokenizer = fitted(name)
    theirs = tokenizer.to_tokenizers()
    assert theirs is not None
    for one in (text, TEXT + text, f"a{REPLACEMENT}<unk> {text}"):
        token_ids = tokenizer.encode(one)
        assert theirs.encode(one).ids == token_ids
        assert theirs.decode(token_ids, skip_special_tokens=False) == tokenizer.decode(token_ids)


def test_the_library_splits_words_as_python_does() -> None:
    """Oniguruma's classes are others: without ranges, combining marks would be words, and \\x1c no space.

    Of every run of characters of one kind the first and the last, and some between.
    """
    theirs = fitted("word").to_tokenizers()
    assert theirs is not None
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    kinds = [(one.isalnum(), one.isspace()) for one in characters]
    ends = [n for n in range(1, len(kinds) - 1) if n % 211 == 0 or not kinds[n - 1] == kinds[n] == kinds[n + 1]]
    text = "".join(f"a {characters[n]}{characters[n]}" for n in ends)
    assert [part for part, _ in theirs.pre_tokenizer.pre_tokenize_str(text)] == Word().pieces(text)


def test_the_library_replaces_invalid_bytes_as_python_does() -> None:
    theirs, generator = Byte().to_tokenizers(), torch.Generator().manual_seed(0)
    for _ in range(300):
        token_ids = torch.randint(128, 256, (12,), generator=generator).tolist()
        assert theirs.decode(token_ids) == Byte().decode(token_ids)


def test_the_library_has_no_tokenizer_before_fit() -> None:
    assert [MAKERS[name]().to_tokenizers() for name in ("char", "word", "bpe")] == [None] * 3
