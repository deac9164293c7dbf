"""A tokenizer from a file against the library itself; its file in the config, the identity and the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, DataSpec
from blockyard.errors import UserError
from blockyard.objective.masked_token import MaskedToken
from blockyard.runs.identity import identity
from blockyard.tokenizer.pretrained import Pretrained

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
TEXT = DataSpec("text", (8,))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of word pieces as BERT's, which adds [CLS] and [SEP] around a text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 4, trainer)
    around = [("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=around)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def overrides(path: Path, *more: str) -> list[str]:
    return ["data=code", "data.context=8", *MODEL, "tokenizer=pretrained", f"tokenizer.path={path}", *more]


MODEL = ("model=decoder", "head=token", "objective=next_token", "logger=none")


def test_ids_are_the_librarys(written: Path) -> None:
    ours, theirs = Pretrained(path=str(written)), Tokenizer.from_file(str(written))
    ours.fit(())
    text = "The lazy fox jumps"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text) != theirs.encode(text).ids
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text).ids)
    other = Pretrained(path="nowhere.json")
    other.load_state(json.loads(json.dumps(ours.state())))
    assert other.encode(text) == ours.encode(text)


def test_a_length_in_the_file_cuts_and_fills_nothing(written: Path, tmp_path: Path) -> None:
    theirs = Tokenizer.from_file(str(written))
    text = "The lazy fox jumps"
    whole = theirs.encode(text, add_special_tokens=False).ids
    theirs.enable_truncation(3)
    theirs.enable_padding(length=20)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Pretrained(path=str(tmp_path / "tokenizer.json"))
    ours.fit(())
    assert ours.encode(text) == whole
    other = Pretrained(path="nowhere.json")
    other.load_state({"tokenizer": json.loads(theirs.to_str())})
    assert other.encode(text) == whole


def test_the_config_records_the_content(written: Path, tmp_path: Path) -> None:
    """The hash and the vocabulary are in the config, which is whole without the file; the path does not count."""
    composed = compose(overrides(written))
    assert check(composed) == []
    node = composed.config["tokenizer"]
    assert node["vocab_size"] == Tokenizer.from_file(str(written)).get_vocab_size()
    moved = tmp_path / "moved.json"
    moved.write_bytes(written.read_bytes())
    again = compose(overrides(moved))
    assert identity(again.config) == identity(composed.config)
    moved.write_text(moved.read_text().replace("[UNK]", "[XXX]"))
    other = compose(overrides(moved))
    assert identity(other.config) != identity(composed.config)
    with pytest.raises(UserError, match="its content has changed"):
        Components(again.config).tokenizer.fit(())
    moved.unlink()
    assert check(again) == []  # a run is loaded where the file is not
    with pytest.raises(UserError, match="does not exist"):
        Components(again.config).tokenizer.fit(())


def problems(path: Path, *more: str) -> str:
    return "; ".join(map(str, check(compose(overrides(path, *more)))))


def test_files_that_cannot_be_used(written: Path, tmp_path: Path) -> None:
    assert "tokenizer.path: " in problems(tmp_path / "x.json")
    assert "does not exist" in problems(tmp_path / "x.json")
    assert len(check(compose(overrides(Path("x" * 2000))))) == 1
    assert "cannot be read" in problems(tmp_path)
    for content in ("", "{", "[]", '{"model": 3}', written.read_text()[:-200]):
        (tmp_path / "x.json").write_text(content)
        assert "damaged or no tokenizer.json" in problems(tmp_path / "x.json")
    assert "tokenizer.vocab_size=" in problems(written, "tokenizer.vocab_size=9")
    assert "not below tokenizer.vocab_size" in problems(written, "tokenizer.mask_id=900")
    assert "go together" in problems(written, "tokenizer.start_id=1")
    with pytest.raises(ValueError, match="not the saved state"):
        Pretrained().load_state({"tokenizer": {"model": 3}})
    with pytest.raises(ValueError, match="was not read"):
        Pretrained().spec(TEXT)
    with pytest.raises(ValueError, match="not read yet"):
        Pretrained().encode("a")


def test_special_tokens_of_its_own() -> None:
    tokenizer = Pretrained(vocab_size=60, mask_id=3, start_id=1, end_id=2)
    assert tokenizer.spec(TEXT).vocabulary == 60
    tokens = tokenizer.spec(DataSpec("text", (8,), source=TEXT))
    assert (tokens.vocabulary, tokens.start, tokens.end) == (60, 1, 2)
    added = Pretrained(vocab_size=60).spec(DataSpec("text", (8,), source=TEXT))
    assert (added.vocabulary, added.start, added.end) == (62, 60, 61)


def test_masking_with_a_mask_inside_the_vocabulary() -> None:
    """Nothing is added to the vocabulary, and a random token is never the mask."""
    objective = MaskedToken(rate=1.0, hidden=0.5, random=0.5)
    tokens = objective.tokens(Pretrained(vocab_size=6, mask_id=3).spec(DataSpec("text", (400,))))
    assert (tokens.vocabulary, tokens.mask) == (6, 3)
    inputs = objective.prepare(Batch(torch.zeros(4, 400, dtype=torch.int64)), 0).inputs
    shares = torch.bincount(inputs.flatten(), minlength=6) / inputs.numel()
    assert abs(shares[3] - 0.5) < 0.05
    others = shares[[0, 1, 2, 4, 5]]
    assert (others > 0.07).all()
    assert (others < 0.13).all()


def test_masking_with_a_mask_that_is_added() -> None:
    """The same draws as before the mask could stand elsewhere: floor of a uniform number times the ids below it."""
    objective = MaskedToken(rate=1.0, hidden=0.0, random=1.0)
    tokens = objective.tokens(Pretrained(vocab_size=5).spec(DataSpec("text", (400,))))
    assert (tokens.vocabulary, tokens.mask) == (6, 5)
    inputs = objective.prepare(Batch(torch.zeros(4, 400, dtype=torch.int64)), 0).inputs
    assert torch.bincount(inputs.flatten(), minlength=6)[5] == 0
    assert inputs.max() == 4
