"""Texts that are written for a sound in one step: from files, by `eval write=true`, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate, evaluate_written
from blockyard.generate.api import generate, generate_all
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from tests.support.engine_runs import run
from tests.support.sound_files import tone, write
from tests.support.tiny import ON_CPU, ONE_LAYER, steps

TONES = (
    *(*ON_CPU, *ONE_LAYER, *steps(2, None), "data=dial_tones", "data.samples=16", "data.eval_samples=4"),
    *("data.batch_size=8", "tokenizer=char", "source_tokenizer=log_mel", "position=rope", "model=encoder"),
    *("head=token", "objective=ctc", "schedule=constant"),
)


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("tones"), base=TONES)


def test_error_rates_of_written_texts_are_those_of_the_metrics(tones: RunFolder) -> None:
    written, _ = evaluate_written(tones.path)
    metrics = evaluate(tones.path)
    for score in ("cer", "wer"):
        assert written.scores[score] == pytest.approx(metrics[f"test/{score}"], abs=1e-6)
    assert len(written.texts) == 4


@pytest.mark.full
def test_a_decoder_writes_texts_of_sounds_and_they_are_scored(tmp_path: Path) -> None:
    """As Whisper does, token after token; files are written down as the samples of the split are."""
    whisper = ("model=encoder_decoder", "model.shared=false", "objective=translate", "source_position=sinusoidal")
    run_folder = run(tmp_path, *whisper, base=TONES)
    written, loaded = evaluate_written(run_folder.path)
    split = loaded.components.load().test
    references = [text for _, text in split.pairs]
    assert [true for _, true, _ in written.texts] == references
    own = [text for *_, text in written.texts]
    mistakes = sum(edits(text, true) for text, true in zip(own, references, strict=True))
    assert written.scores["cer"] == pytest.approx(mistakes / sum(map(len, references)), abs=1e-6)
    samples = split.sounds.stream[: int(split.sounds.lengths[0])]
    file = str(write(tmp_path / "0.wav", samples.numpy()))
    assert "".join(generate(loaded, source=file, temperature=0)) == own[0]
    assert main(["eval", f"run={run_folder.path}", "write=true", "beam=2"]) == 0


def edits(text: str, true: str) -> int:
    """The edit distance of two texts, by rows."""
    row = list(range(len(true) + 1))
    for i, letter in enumerate(text, 1):
        row, above = [i], row
        for j, other in enumerate(true, 1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (letter != other)))
    return row[-1]


@pytest.mark.parametrize("beam", [None, 3])
def test_files_are_written_down_as_samples_of_a_split_are(tones: RunFolder, tmp_path: Path, beam: int | None) -> None:
    written, loaded = evaluate_written(tones.path, beam=beam)
    split = loaded.components.load().test
    files = []
    for index in range(2):
        start, length = int(split.sounds.start[index]), int(split.sounds.lengths[index])
        samples = split.sounds.stream[start : start + length]
        files.append(str(write(tmp_path / f"{index}.wav", samples.numpy())))
    stream = generate_all(loaded, sources=files, beam=beam)
    for _ in stream:
        pass
    assert [text.text for text in stream.texts] == [text for *_, text in written.texts[:2]]
    assert stream.stats.steps == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "1"}, "writes down what is in a source and continues no prompt; give source=FILE"),
        ({"source": "nothing.wav"}, "nothing.wav no such file"),
        ({"source": "x.wav", "temperature": 0.5}, "temperature=0.5 has no effect"),
        ({"source": "x.wav", "beam": 2, "length_penalty": 1.0}, "length_penalty=1.0 has no effect"),
        ({"source": "x.txt"}, "x.txt is none of .wav"),
        ({"source": "x.wav", "steps": 4}, "steps= is about a gap that is filled"),
        ({"source": "x.wav", "order": "bogus"}, "order=bogus: expected one of"),
        ({"source": "x.wav", "suffix": "x"}, "suffix= is about a gap that is filled"),
        ({"source": "x.wav", "max_tokens": 5}, "max_tokens=5 has no effect"),
        ({"source": "x.wav", "cache": False}, "cache=False has no effect"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tones: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("x.wav"), tone())
    Path("x.txt").write_text("x")
    with pytest.raises(UserError, match=message):
        list(generate(load(tones), **settings))


def test_the_command_writes_a_line_and_exits_with_two_where_it_cannot(
    tones: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"source={write(tmp_path / 'x.wav', tone(rate=16_000), 16_000)}"
    assert main(["generate", f"run={tones.path}", name, "beam=2"]) == 0
    assert "one forward pass" in capsys.readouterr().err
    assert main(["generate", f"run={tones.path}", "source=nothing.wav"]) == 2
    assert "no such file" in capsys.readouterr().err
