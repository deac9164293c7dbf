"""Sounds that an encoder-decoder writes from texts: heard by a judge, as WAV files, on the page; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scipy.io import wavfile

import blockyard
from blockyard.cli import main
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch
from blockyard.data.dial_numbers import DialNumbers
from blockyard.data.dial_tones import DialTones
from blockyard.data.splits.recordings import SpokenSplit
from blockyard.evaluate.api import evaluate_written
from blockyard.generate.codes import generate_outputs, outputs_of
from blockyard.generate.judge import heard_by
from blockyard.objective._text_scores import scores
from blockyard.report.arms import attention_maps
from blockyard.runs.folder import RunFolder
from blockyard.tokenizer.audio_vq import AudioVQ
from blockyard.tokenizer.char import Char
from tests.support.engine_runs import run
from tests.support.every import every
from tests.support.tiny import ON_CPU, ONE_LAYER, steps

pytestmark = pytest.mark.xdist_group("generate_sounds")  # its runs are made once

SMALL = (*ON_CPU, *ONE_LAYER, *steps(2, None), "data.samples=40", "data.eval_samples=3", "data.batch_size=6")
SPEAKS = (
    *("experiment=tones_speak", *SMALL, "model.encoder_depth=1"),
    *("tokenizer.levels=2", "tokenizer.codes=8", "tokenizer.mels=24", "tokenizer.rounds=2"),
    *("tokenizer.window_ms=160", "tokenizer.hop_ms=80"),
)
HEARS = ("experiment=tones_ctc", *SMALL)


@pytest.fixture(scope="module")
def speaks(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("speaks"), base=SPEAKS)


@pytest.fixture(scope="module")
def hears(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("hears"), base=HEARS)


def test_a_sound_is_that_of_its_own_codes_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three frames of two levels and six of one level are as many codes, and sounds of two lengths."""
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path))
    codec = AudioVQ(levels=2, codes=8, mels=24, rounds=2)
    DialNumbers(samples=40, eval_samples=3).load_both(codec, Char())
    both = [[0, codec.count, 1, codec.count + 1, 2, codec.count + 2], [0, 1, 2, 3, 4, 5]]
    alone = [outputs_of(codec, [token_ids])[0] for token_ids in both]
    assert len(alone[0]) < len(alone[1])
    for own, together in zip(alone, outputs_of(codec, both), strict=True):
        assert torch.equal(together, own)


def test_a_split_has_texts_as_sources_and_codes_of_sounds_as_targets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path))
    data, codec, reader = DialNumbers(samples=40, eval_samples=3), AudioVQ(codes=8, mels=24, rounds=2), Char()
    split = data.load_both(codec, reader).test
    assert isinstance(split, SpokenSplit)
    recordings = DialTones(samples=40, eval_samples=3, noise=(10.0, 20.0)).recordings()[2]
    assert split.texts == [recording.text for recording in recordings]
    assert every(torch.equal(sound, own.samples) for sound, own in zip(split.sounds, recordings, strict=True))
    batch, tokens = split.batch(torch.tensor([2, 0]), None), codec.spec(data.spec)
    assert batch.lengths is not None
    assert batch.source is not None
    assert batch.source_lengths is not None
    for index, number in enumerate((2, 0)):
        expected = [tokens.start, *codec.encode(split.sounds[number][None])[0].tolist(), tokens.end]
        assert batch.inputs[index, : int(batch.lengths[index])].tolist() == expected
        source = batch.source[index, : int(batch.source_lengths[index])].tolist()
        assert reader.decode(source) == split.texts[number]
    assert 0 < split.reconstruction_lsd < 10
    with pytest.raises(ValueError, match="source_tokenizer=char"):
        data.load(codec)
    with pytest.raises(ValueError, match="turn them round"):
        DialNumbers(noise=(20.0, 10.0))


@pytest.mark.full
def test_greedy_codes_are_the_most_likely_ones_up_to_the_end(speaks: RunFolder) -> None:
    """Against whole passes over what was written so far, without a cache and without the loop of `generate`."""
    loaded = blockyard.load(speaks.path)
    tokens, source = loaded.model.ctx.tokens, torch.tensor([loaded.components.source_tokenizer.encode("123A")])  # type: ignore[attr-defined]
    written = [tokens.start]
    with torch.inference_mode():
        while len(written) <= tokens.max_len:
            scores_ = loaded.model(Batch(torch.tensor([written]), source=source))[0, -1]
            scores_[tokens.start] = -torch.inf
            if (token_id := int(scores_.argmax())) == tokens.end:
                break
            written.append(token_id)
    sound = loaded.tokenizer.decode(torch.tensor([written[1:]]))[0]  # type: ignore[attr-defined]
    result = generate_outputs(loaded, ["123A"], temperature=0)
    assert torch.equal(result.outputs[0][0], sound)
    assert result.readings is None


def test_eval_is_the_error_rate_of_what_the_judge_hears(
    speaks: RunFolder, hears: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", f"run={speaks.path}", "write=true", f"judge={hears.path}"]) == 0
    assert "test/written_cer@truth" in capsys.readouterr().out
    written, loaded = evaluate_written(speaks.path, judge=str(hears.path))
    split, judge = loaded.components.load().test, blockyard.load(hears.path)
    assert isinstance(split, SpokenSplit)
    for name, sounds in (("@truth", split.sounds), ("@codes", split.coded(torch.arange(3)))):
        expected = scores(heard_by(judge, sounds), split.texts)
        assert written.scores[f"cer{name}"] == pytest.approx(expected["cer"])
    texts = [text for text, _, _ in written.texts]
    assert texts == split.texts
    assert written.scores["cer"] == pytest.approx(scores([heard for *_, heard in written.texts], texts)["cer"])
    head = json.loads((speaks.path / "written-test.jsonl").read_text().splitlines()[0])
    assert head["scores"] == written.scores
    for number, (_, sound) in enumerate(written.outputs, start=1):
        rate, samples = wavfile.read(speaks.path / f"spoken-test-{number}.wav")
        assert (rate, samples.dtype) == (8000, "int16")
        assert torch.equal(torch.from_numpy(samples), sound)


@pytest.mark.full
def test_the_page_has_a_player_and_a_picture(speaks: RunFolder, hears: RunFolder) -> None:
    from types import SimpleNamespace

    main(["eval", f"run={speaks.path}", "write=true", f"judge={hears.path}"])
    record = SimpleNamespace(path=speaks.path, done=True, arm="arm", seed=0)
    shown = attention_maps.pictures([record])  # type: ignore[list-item]
    kinds = {row["name"]: row["image"].partition(";")[0] for row in shown}
    assert kinds == {
        "sounds, true and written": "data:image/png",
        "first written sound": "data:audio/wav",
        "second written sound": "data:audio/wav",
    }
    (speaks.path / "spoken-test-2.wav").write_bytes(b"<script>")
    (speaks.path / "spoken-test-1.wav").write_bytes(b"RIFF" + bytes(attention_maps.MAX_SOUND_BYTES))
    assert [row["name"] for row in attention_maps.pictures([record])] == ["sounds, true and written"]  # type: ignore[list-item]


def test_generate_and_predict_write_wavs(
    speaks: RunFolder, hears: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, lines = tmp_path / "x.wav", tmp_path / "numbers.txt"
    assert main(["generate", f"run={speaks.path}", "source=123A", f"out={out}", f"judge={hears.path}"]) == 0
    assert "123A: read as" in capsys.readouterr().out
    alone = wavfile.read(out)[1]
    assert main(["predict", f"run={speaks.path}", "123A", f"out={out}"]) == 0
    assert (wavfile.read(out)[1] == alone).all()
    lines.write_text("123A\n55\n")
    assert main(["generate", f"run={speaks.path}", f"sources={lines}", f"out={out}"]) == 0
    assert (wavfile.read(tmp_path / "x-1.wav")[1] == alone).all()
    assert (tmp_path / "x-2.wav").is_file()
    assert main(["generate", f"run={speaks.path}", "source=1", f"out={tmp_path / 'x.png'}"]) == 2
    assert "expected the name of a WAV file" in capsys.readouterr().err
    assert main(["generate", f"run={speaks.path}", "source=1", "images=2"]) == 2
    assert "writes sounds" in capsys.readouterr().err
    assert main(["predict", f"run={speaks.path}", "1", f"out={tmp_path / 'x.csv'}"]) == 2
    assert "written as .wav" in capsys.readouterr().err


def test_judges_that_cannot_hear_are_refused(
    speaks: RunFolder, hears: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for run_, options, problem in (
        (speaks, ["write=true"], "experiment=tones_ctc"),
        (speaks, ["write=true", f"judge={speaks.path}"], "does not write down what is in a sound"),
        (hears, ["write=true", f"judge={hears.path}"], "hears sounds, and"),
        (speaks, [f"judge={hears.path}"], "write=true only"),
    ):
        assert main(["eval", f"run={run_.path}", *options]) == 2
        assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["data=key_tones", "tokenizer=audio_vq", "objective=classify", "head=mean_pool", "model=encoder"],
            "sounds to read",
        ),
        (["experiment=tones_ctc", "source_tokenizer=audio_vq"], "sounds to read"),
        (["experiment=tones_speak", "tokenizer=log_mel"], "tokenizer=audio_vq"),
        (["experiment=tones_speak", "objective=ctc"], "ctc"),
    ],
)
def test_codes_are_for_sounds_that_are_written(overrides: list[str], problem: str) -> None:
    assert problem in " ".join(map(str, check(compose(overrides))))
