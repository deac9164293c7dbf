"""`blockyard tokenize`: its shards hold the ids of data=text_file, survive a kill, and refuse what does not fit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from blockyard.cli import main
from blockyard.data.text_file import TextFile
from blockyard.data.tokens import Tokens
from blockyard.engine.run import train
from blockyard.token_shards import plan, text_files
from blockyard.token_shards import tokenize as tokenize_module
from blockyard.token_shards.text_files import Span, cut, scan
from blockyard.tokenizer.bpe import BPE
from blockyard.tokenizer.byte import Byte
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.word import Word
from tests.support.engine_runs import assert_same_bits, folder, rows, run
from tests.support.fork import forked
from tests.support.paths import SHARED
from tests.support.tiny import DECODER, ON_CPU, ONE_LAYER
from tests.support.token_files import TEXT

SHAKESPEARE = SHARED / "tinyshakespeare" / "input.txt"
MORE = "".join(f"café {n} — naïve\r\n\r\n  日本語 {n}{n}\n" for n in range(200))
TRAIN = (
    *(*ON_CPU, *DECODER, *ONE_LAYER, "trainer.max_steps=12", "trainer.max_epochs=null", "trainer.eval_every=4"),
    *("trainer.log_every=1", "data.context=16", "data.batch_size=4", "trainer.limit_val=3", "trainer.limit_test=3"),
)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts"
    path.mkdir()
    (path / "a.txt").write_text(TEXT, encoding="utf-8")
    (path / "b.txt").write_text(MORE, encoding="utf-8-sig", newline="")
    (path / "c.txt").write_text(TEXT.upper(), encoding="utf-8")
    return path


def tokenize(*arguments: object) -> int:
    return main(["tokenize", *map(str, arguments)])


@pytest.mark.parametrize(
    ("choice", "make"),
    [
        ("tokenizer=byte", Byte),
        ("tokenizer=char", Char),
        pytest.param("tokenizer=word", Word, marks=pytest.mark.full),
        ("tokenizer=bpe tokenizer.vocab_size=300", lambda: BPE(vocab_size=300)),
    ],
)
@pytest.mark.parametrize("split_by", ["range", "document"])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.sampled(8)
def test_the_ids_are_those_of_text_file(
    choice: str, make: Any, split_by: str, small: bool, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every split, with the same vocabulary and bytes a token, however the texts are cut for the workers."""
    if small:
        monkeypatch.setattr(plan, "ENCODED", 150)
        monkeypatch.setattr(plan, "MEGABYTE", 16)
        monkeypatch.setattr(text_files, "_WINDOW", 16)
    assert tokenize(texts, f"out={tmp_path / 'out'}", *choice.split(), f"split_by={split_by}") == 0
    one, two = make(), make()
    expected = TextFile(path=str(texts), context=8, split_by=split_by).load(one)
    splits = Tokens(path=str(tmp_path / "out"), context=8).load(two)
    assert one.state() == two.state()
    count = len(list((tmp_path / "out").glob("train-*.bin")))
    assert count > 5 if small else count == 1
    for split, other in zip(splits, expected, strict=True):
        ids = np.concatenate([shard.ids for shard in split.streams[0].shards])
        np.testing.assert_array_equal(ids, other.stream.numpy())
        assert split.bytes_per_token == other.bytes_per_token


def losses(outputs: Path, *overrides: str) -> list[dict[str, float]]:
    """The metrics of every step of a run, without the clock."""
    return rows(run(outputs, *overrides, base=TRAIN))


def assert_same_losses(texts: Path, tmp_path: Path, *choice: str) -> None:
    out = tmp_path / "tokens"
    assert tokenize(texts, f"out={out}", *choice) == 0
    expected = losses(tmp_path / "runs", "data=text_file", f"data.path={texts}", *choice)
    result = losses(tmp_path / "runs", "data=tokens", f"data.path={out}", *choice)
    assert len(expected) >= 12
    assert any(row.get("val/bits_per_byte") for row in expected)
    assert result == expected


@pytest.mark.parametrize("choice", ["char", "bpe"])
def test_the_losses_are_those_of_text_file(choice: str, texts: Path, tmp_path: Path) -> None:
    options = ["tokenizer.vocab_size=300"] if choice == "bpe" else []
    assert_same_losses(texts, tmp_path, f"tokenizer={choice}", *options)


@pytest.mark.full
@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="no shared data beside the checkout")
def test_the_losses_on_shakespeare_are_those_of_text_file(tmp_path: Path) -> None:
    assert_same_losses(SHAKESPEARE, tmp_path, "tokenizer=char")


@pytest.mark.full
def test_ids_in_another_order_are_noticed(texts: Path, tmp_path: Path) -> None:
    """The planted bug: shards in which the first ids of the training split are rotated by one."""
    out = tmp_path / "out"
    tokenize(texts, f"out={out}", "tokenizer=char")
    expected = losses(tmp_path / "runs", "data=text_file", f"data.path={texts}", "tokenizer=char")
    file = out / "train-00000.bin"
    ids = np.fromfile(file, dtype=np.uint16)
    ids[:5000] = np.roll(ids[:5000], 1)
    ids.tofile(file)
    assert losses(tmp_path / "runs", "data=tokens", f"data.path={out}", "tokenizer=char") != expected


def test_texts_are_cut_between_words(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(MORE.encode())
    whole = Span(str(file), 0, file.stat().st_size)
    spans = list(cut(whole, 100))
    assert len(spans) > 30
    assert "".join(span.read() for span in spans) == MORE
    unbroken = tmp_path / "b.txt"
    unbroken.write_bytes(b"x" * 1000)
    assert len(list(cut(Span(str(unbroken), 0, 1000), 100))) == 1


@pytest.mark.full
def test_a_text_is_cut_where_it_is_found_in_any_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window may begin or end within a character, be all of one, or hold a part of the place to cut."""
    path = tmp_path / "text.txt"
    path.write_text("a" * 15 + "é")
    assert list(cut(Span(str(path), 0, 17), 16)) == [Span(str(path), 0, 17)]
    draw = random.Random(0)
    for _ in range(60):
        text = "".join(draw.choices("aé€😀", (6, 2, 2, 2), k=60))
        text += draw.choice((" b", "\nb", " ", "é")) + "c€" * 9
        content = text.encode()
        path.write_bytes(content)
        span, place = Span(str(path), 0, len(content)), draw.randrange(1, 40)
        monkeypatch.setattr(text_files, "_WINDOW", 2**16)
        whole = text_files._next_cut(span, place)
        for window in (1, 2, 3, 7, 17):
            monkeypatch.setattr(text_files, "_WINDOW", window)
            assert text_files._next_cut(span, place) == whole


def test_a_killed_start_is_continued(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL in the middle: no shard is half written, none of the finished ones is written again."""
    monkeypatch.setattr(plan, "ENCODED", 150)
    monkeypatch.setattr(plan, "MEGABYTE", 16)
    arguments = (texts, "tokenizer=char", "workers=1")
    tokenize(*arguments, f"out={tmp_path / 'whole'}")
    out = tmp_path / "out"

    def killed() -> int:
        real = tokenize_module.write_json

        def strike(path: Path, *rest: Any, **settings: Any) -> None:
            real(path, *rest, **settings)
            if path.name == "train-00005.bin.json":
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(60)  # the worker ends with its parent

        plan.ENCODED, plan.MEGABYTE = 150, 16
        tokenize_module.write_json = strike  # type: ignore[assignment]
        return tokenize(*arguments, f"out={out}")

    assert forked(killed) == -signal.SIGKILL
    written = {file.name: file.stat().st_mtime_ns for file in out.glob("*.bin")}
    assert len(written) == 6
    assert (out / "unfinished.json").is_file()
    assert not (out / "manifest.json").exists()
    data = ["data=tokens", f"data.path={out}", "tokenizer=char", *DECODER, "logger=none"]
    assert main(["train", *data, f"outputs={tmp_path}"]) == 2
    assert tokenize(*arguments, f"out={out}") == 0
    assert {name: (out / name).stat().st_mtime_ns for name in written} == written
    for file in (tmp_path / "whole").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in (tmp_path / "whole").iterdir())


@pytest.mark.full
def test_a_run_resumes_in_the_middle_with_the_same_bits(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tokenize(texts, f"out={out}", "tokenizer=char")
    overrides = ("data=tokens", f"data.path={out}", "tokenizer=char", "callbacks.checkpoint.every=5")
    whole = run(tmp_path / "whole", *overrides, base=TRAIN)

    def killed() -> int:
        from blockyard.engine.callbacks.loop import LoopCallback

        original = LoopCallback.on_train_batch_start

        def strike(self: Any, *arguments: Any) -> None:
            original(self, *arguments)
            if self.state.step == 7:
                os.kill(os.getpid(), signal.SIGKILL)

        LoopCallback.on_train_batch_start = strike  # type: ignore[method-assign]
        with folder(tmp_path / "half", *overrides, base=TRAIN) as half:
            return train(half, resume=False)

    assert forked(killed) == -signal.SIGKILL
    resumed = run(tmp_path / "half", *overrides, base=TRAIN)
    assert resumed.facts()["start"]["checkpoint"] == "last.ckpt"
    assert_same_bits(resumed, whole)


@pytest.mark.full
def test_options_that_are_null_stay_so(texts: Path, tmp_path: Path) -> None:
    """Of `like`: the ids of special tokens that a tokenizer of somebody else has not."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    own.train_from_iterator(["LINE 0"], trainer)
    own.save(str(tmp_path / "a,b.json"))
    first = tmp_path / "first"
    options = (f"out={first}", "tokenizer=pretrained", f"tokenizer.path='{tmp_path}/a,b.json'")
    assert tokenize(texts / "a.txt", *options) == 0
    assert tokenize(texts / "c.txt", f"out={tmp_path / 'second'}", f"like={first}") == 0


@pytest.mark.full
def test_sources_share_a_tokenizer(texts: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert tokenize(texts / "a.txt", f"out={first}", "tokenizer=bpe", "tokenizer.vocab_size=280") == 0
    assert tokenize(texts / "c.txt", f"out={second}", f"like={first}") == 0
    assert (first / "tokenizer.json").read_text() == (second / "tokenizer.json").read_text()
    tokenizer = BPE(vocab_size=280)
    data = Tokens(path=[str(first), str(second)], weights=[1.0, 2.0], context=8)
    splits = data.load(tokenizer)
    assert data.spec.slices == ("first", "second")
    assert tokenizer.decode(splits.train.streams[1].read(np.array([0]), 20)[0].tolist()).startswith("LINE 0")
    other = tmp_path / "other"
    assert tokenize(texts / "c.txt", f"out={other}", "tokenizer=bpe", "tokenizer.vocab_size=280") == 0
    with pytest.raises(ValueError, match=r"vocabulary of .*other is not that of the other sources"):
        Tokens(path=[str(first), str(other)], context=8).load(BPE(vocab_size=280))
    with pytest.raises(
        ValueError, match=r"first was written with tokenizer=bpe tokenizer\.vocab_size=280, this config"
    ):
        Tokens(path=str(first), context=8).load(Char())


def test_the_manifest_counts_and_hashes(texts: Path, tmp_path: Path) -> None:
    from hashlib import sha256

    tokenize(texts, f"out={tmp_path / 'out'}", "tokenizer=byte")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    for part in manifest["splits"].values():
        for shard in part["shards"]:
            content = (tmp_path / "out" / shard["file"]).read_bytes()
            assert sha256(content).hexdigest() == shard["sha256"]
            assert len(content) == 2 * shard["tokens"] == 2 * shard["bytes"]
    total = sum(part["tokens"] for part in manifest["splits"].values())
    assert total == sum(len(scan(file).sha256) and file.stat().st_size for file in texts.iterdir()) - 3  # one has a BOM
    source = manifest["plan"]["sources"][1]
    assert source["sha256"] == sha256((texts / "b.txt").read_bytes()).hexdigest()


def test_a_damaged_folder_is_refused(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    tokenize(texts, f"out={out}", "tokenizer=char")
    arguments = ["train", "data=tokens", f"data.path={out}", "tokenizer=char", *DECODER, "logger=none"]
    arguments += [f"outputs={tmp_path / 'runs'}"]
    content = (out / "test-00000.bin").read_bytes()

    def refused() -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        return capsys.readouterr().err

    (out / "test-00000.bin").write_bytes(content[:-3])
    assert f"test-00000.bin is truncated: {len(content) // 2:,} token ids of uint16" in refused()
    (out / "test-00000.bin").unlink()
    assert "test-00000.bin is listed in the manifest but missing" in refused()
    (out / "test-00000.bin").write_bytes(content)
    (out / "tokenizer.json").write_text('{"symbols": "abc"}')
    assert "tokenizer.json is not the one that the shards were written with" in refused()
    (out / "manifest.json").write_text("{")
    assert "manifest.json cannot be read" in refused()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs a PATH"),
        (("{texts}",), "tokenize needs out=FOLDER"),
        (("{texts}/none.txt", "out={out}"), "nothing at"),
        (("{texts}", "out={out}", "pattern=*.md"), "no file *.md under"),
        (("{texts}", "out={out}", "validation_fraction=0.9", "test_fraction=0.2"), "leave nothing to train on"),
        (("{texts}", "out={out}", "shards=3"), "unknown option of tokenize"),
        (("{texts}", "out={out}", "tokenizer=patch"), "reads images"),
        (("{texts}", "out={out}", "tokenizer=ids"), "token ids"),
        (("{texts}", "out={out}", "tokenizer=bpe", "tokenizer.size=3"), "tokenizer.size"),
        (("{texts}", "out={texts}", "tokenizer=byte"), "is not empty and holds no shards"),
        (("{texts}", "out={out}", "like={texts}"), "is not a folder that `blockyard tokenize` has finished"),
        (("{texts}", "out={texts}", "force=true"), "has no manifest.json of it"),
        (("{texts}/a.txt", "{texts}/a.txt", "out={out}"), "is named twice"),
        (("{texts}/a.txt", "out={out}", "split_by=document", "tokenizer=byte"), "needs 3 files or more"),
        (("{bad}/empty.txt", "out={out}", "tokenizer=byte"), "empty.txt is empty (0 bytes)"),
        (("{bad}/latin.txt", "out={out}", "tokenizer=byte"), "latin.txt is not UTF-8 text (byte 3)"),
        (("{bad}/rows.jsonl", "out={out}", "tokenizer=byte"), "rows.jsonl is a table; name the column"),
        (("{bad}/rows.jsonl", "out={out}", "tokenizer=byte", "column=body"), "body"),
    ],
)
def test_bad_input_is_refused(
    arguments: tuple[str, ...], message: str, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "empty.txt").write_bytes(b"")
    (bad / "latin.txt").write_bytes(b"the\xe9 au lait")
    (bad / "rows.jsonl").write_text('{"text": "a"}\n')
    out = tmp_path / "out"
    assert tokenize(*(each.format(texts=texts, out=out, bad=bad) for each in arguments)) == 2
    assert message in capsys.readouterr().err
    assert not (out / "manifest.json").exists()


@pytest.mark.full
def test_force_writes_again(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tokenize(texts, f"out={out}", "tokenizer=byte") == 0
    assert tokenize(texts, f"out={out}", "tokenizer=byte") == 0
    assert tokenize(texts, f"out={out}", "tokenizer=char") == 2
    assert tokenize(texts, f"out={out}", "tokenizer=char", "force=true") == 0
    assert "char" in (out / "manifest.json").read_text()


@pytest.mark.sampled(100)
@pytest.mark.parametrize(
    ("name", "content"),
    [("thesis.tex", "years of work"), ("train-00000.bin.bak", ""), ("manifest.json", '{"name": "an app"}')],
)
def test_force_removes_its_own_shards_only(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str
) -> None:
    """A folder with a file that tokenize did not write, be it a manifest of something else, is left as it is."""
    out = tmp_path / "out"
    assert tokenize(texts, f"out={out}", "tokenizer=byte") == 0
    (out / name).write_text(content)
    before = {path: path.read_bytes() for path in out.iterdir()}
    assert tokenize(texts, f"out={out}", "tokenizer=char", "force=true") == 2
    assert name in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.iterdir()} == before
