"""Recordings with a text each: tones made by rule, speech from files, and files that cannot be used."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockyard.contracts import HasLengths
from blockyard.data.dial_tones import COLUMNS, KEYS, RATE, ROWS, DialTones, play
from blockyard.data.speech import Speech
from blockyard.errors import UserError
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.word import Word
from tests.support.sound_files import corpus, tone, write


def test_dialled_numbers_are_the_same_every_time_and_in_one_split_only() -> None:
    tokenizer = Char()
    data = DialTones(samples=30, eval_samples=5)
    splits = data.load(tokenizer)
    assert [len(split) for split in splits] == [30, 5, 5]
    assert set(tokenizer.state()["symbols"]) <= set(KEYS)
    again = DialTones(samples=40, eval_samples=5).load(Char())
    order = torch.arange(5)
    for left, right in zip(splits, again, strict=True):
        torch.testing.assert_close(left.batch(order, None).source, right.batch(order, None).source)
    other = DialTones(samples=30, eval_samples=5, data_seed=1)
    other.load(Char())
    assert other.fingerprint() != data.fingerprint()
    texts = [{text for _, text in split.pairs} for split in splits]  # type: ignore[attr-defined]
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2]
    batch = splits.train.batch(order, None)
    assert isinstance(splits.train, HasLengths)
    assert batch.source is not None
    assert batch.source_lengths is not None
    assert batch.source_lengths.tolist() == splits.train.lengths[:5].tolist()
    assert batch.source.shape[1] <= data.sizes[0]
    row, length = batch.inputs[0].tolist(), int(batch.lengths[0])  # type: ignore[index]
    tokens = tokenizer.spec(data.spec)
    assert (row[0], row[length - 1]) == (tokens.start, tokens.end)
    assert splits.train.decode(row[1 : length - 1]) == splits.train.pairs[0][1]  # type: ignore[attr-defined]


def test_a_key_sounds_its_row_and_its_column() -> None:
    """The two loudest frequencies of each piece of sound, found by correlation, are those of the key."""
    generator = torch.Generator().manual_seed(3)
    number = DialTones().draw(generator)
    sound = play(number, generator).double()
    power = torch.stack(
        [
            torch.complex(
                *(
                    sound * wave(2 * math.pi * hertz * torch.arange(len(sound)) / RATE)
                    for wave in (torch.cos, torch.sin)
                )
            )
            .unfold(0, 240, 40)
            .sum(1)
            .abs()
            for hertz in (*ROWS, *COLUMNS)
        ]
    )
    loud = power.amax(0)
    keys = [
        KEYS[4 * int(power[:4, n].argmax()) + int(power[4:, n].argmax())] if loud[n] > loud.max() / 2 else " "
        for n in range(power.shape[1])
    ]
    heard = [part[len(part) // 2] for part in "".join(keys).split()]
    assert "".join(heard) == number


def test_speech_is_read_from_a_table(tmp_path: Path) -> None:
    data, tokenizer = Speech(path=str(corpus(tmp_path))), Char()
    splits = data.load(tokenizer)
    assert [len(split) for split in splits] == [3, 3, 3]
    assert splits.test.pairs[0] == ("wav/6.wav", "text a")  # type: ignore[attr-defined]
    batch = splits.train.batch(torch.tensor([0, 2]), None)
    assert batch.source is not None
    expected = torch.from_numpy(tone(0.3, 0))
    assert (batch.source[0, :2400] - expected).abs().max() <= 1
    assert batch.source[0, 2400:].abs().max() == 0
    assert batch.source_lengths.tolist() == [2400, 3200]  # type: ignore[union-attr]
    assert (data.read_source(str(tmp_path / "wav/0.wav"))[0] - expected).abs().max() <= 1


def test_the_same_speech_in_a_zip_file_beside_the_table_and_as_files_beside_texts(tmp_path: Path) -> None:
    table = corpus(tmp_path)
    plain = Speech(path=str(table))
    plain.load(Char())
    with zipfile.ZipFile(tmp_path / "sounds.zip", "w") as archive:
        for path in sorted((tmp_path / "wav").iterdir()):
            archive.write(path, f"wav/{path.name}")
            path.with_suffix(".txt").write_text("Some text")
    for path in (tmp_path / "wav").glob("*.wav"):
        path.rename(tmp_path / "wav" / f"moved {path.name}")
    zipped = Speech(path=str(table))
    zipped.load(Char())
    assert zipped.fingerprint() == plain.fingerprint()
    named = Speech(path=str(table), root=str(tmp_path / "sounds.zip"))
    named.load(Char())
    assert named.fingerprint() == plain.fingerprint()
    for path in (tmp_path / "wav").glob("moved *"):
        path.rename(tmp_path / "wav" / path.name.removeprefix("moved "))
    beside = Speech(path=str(tmp_path / "wav"), test_fraction=0.25, validation_fraction=0.25).load(Char())
    assert sorted(len(split) for split in beside) == [2, 2, 5]


def test_rates_are_converted_where_asked(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", tone(1.0, rate=16_000), 16_000)
    assert Speech().read_source(str(tmp_path / "a.wav")).shape == (1, 8000)
    table = corpus(tmp_path)
    write(tmp_path / "wav/1.wav", tone(1.0, rate=16_000), 16_000)
    with pytest.raises(UserError, match=r"line 3, wav/1.wav has 16000 samples a second, not 8000; data.sample_rate="):
        Speech(path=str(table)).load(Char())
    splits = Speech(path=str(table), resample=True).load(Char())
    assert int(splits.train.lengths[1]) == 8000  # type: ignore[attr-defined]


def float_wav(value: float) -> Any:
    samples = tone().astype(np.float32) / 32768
    samples[100] = value
    return samples


def test_samples_of_24_bits_and_floats_are_read(tmp_path: Path) -> None:
    expected = torch.from_numpy(tone())
    for name, samples in (("long", tone().astype(np.int32) * 65536), ("float", tone().astype(np.float32) / 32768)):
        write(tmp_path / f"{name}.wav", samples)
        assert (Speech().read_source(str(tmp_path / f"{name}.wav"))[0] - expected).abs().max() <= 1


def test_everything_that_cannot_be_used_is_named_at_once(tmp_path: Path) -> None:
    table = corpus(tmp_path, {"wav/8.wav": " ?! "})
    folder = tmp_path / "wav"
    (folder / "0.wav").unlink()
    write(folder / "1.wav", np.stack([tone(), tone()], 1))
    write(folder / "2.wav", np.zeros(4000, dtype=np.int16))
    write(folder / "3.wav", float_wav(math.nan))
    write(folder / "4.wav", (tone() // 256 + 128).astype(np.uint8))
    content = (folder / "5.wav").read_bytes()
    (folder / "5.wav").write_bytes(content[:2000])
    (folder / "6.wav").write_text("not a sound")
    write(folder / "7.wav", float_wav(3.0))
    with pytest.raises(UserError) as refused:
        Speech(path=str(table)).load(Char())
    parts = [
        "line 2, wav/0.wav no such file",
        "line 3, wav/1.wav has 2 channels; mix them to one",
        "line 4, wav/2.wav is silent",
        "line 5, wav/3.wav has 1 samples that are not finite",
        "line 6, wav/4.wav has 8 bits a sample",
        "line 7, wav/5.wav is cut short",
        "line 8, wav/6.wav cannot be read as WAV",
        "line 9, wav/7.wav has samples up to 3, beyond full scale",
        "line 10, wav/8.wav has no text with a letter",
    ]
    positions = [str(refused.value).find(part) for part in parts]
    assert positions == sorted(positions)
    assert min(positions) > 0


@pytest.mark.parametrize("name", ["a.flac", "a.MP3"])
def test_compressed_sounds_need_a_package(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / name).write_bytes(b"fLaC")
    with pytest.raises(UserError, match=r"needs the package soundfile: pip install 'blockyard\[audio\]'"):
        Speech().read_source(str(tmp_path / name))


@pytest.mark.parametrize(("name", "least"), [("a.flac", 1.0), ("a.ogg", 0.95), ("a.mp3", 0.95)])
def test_compressed_sounds_are_read(tmp_path: Path, name: str, least: float) -> None:
    """FLAC bit by bit; the others, which leave things out, by how alike they are at the best shift."""
    soundfile = pytest.importorskip("soundfile")
    if name[2:].upper() not in soundfile.available_formats():
        pytest.skip(f"this libsndfile writes no {name[2:]}")
    samples = tone(0.5)
    soundfile.write(tmp_path / name, samples, RATE)
    write(tmp_path / "a.wav", samples)
    read = Speech().read_source(str(tmp_path / name))[0]
    same = Speech().read_source(str(tmp_path / "a.wav"))[0]
    if least == 1.0:
        torch.testing.assert_close(read, same, rtol=0, atol=0)
        return
    assert abs(len(read) - len(same)) < 0.3 * RATE  # MP3 has frames of silence at its ends
    longer, shorter = sorted((read.double(), same.double()), key=len, reverse=True)
    windows = longer.unfold(0, len(shorter) - 200, 1)
    alike = torch.cosine_similarity(windows, shorter[100:-100][None], dim=1)
    assert float(alike.max()) > least
    soundfile.write(tmp_path / f"stereo{name[1:]}", np.stack([samples, samples], 1), RATE)
    with pytest.raises(UserError, match="has 2 channels"):
        Speech().read_source(str(tmp_path / f"stereo{name[1:]}"))
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="cannot be read"):
        Speech().read_source(str(tmp_path / name))


def test_texts_and_recordings_that_are_too_long_are_left_out_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = corpus(tmp_path, {"wav/1.wav": "longer than the others", "wav/4.wav": "text \N{WHITE SMILING FACE} zzé"})
    splits = Speech(path=str(table), context=10, max_seconds=0.66).load(Char())
    assert [len(split) for split in splits] == [2, 3, 2]
    assert "1 of 9 recordings are left out: longer than 0.66 s" in caplog.text
    assert "1 of 3 train texts are left out: too long" in caplog.text
    assert "1 of 3 validation texts hold symbols that no training text has, such as 'text zzé'" in caplog.text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"file": "sound"}, "data.file=sound: .* has no such column; it has 'path', 'text', 'split'"),
        ({"root": "nowhere"}, "data.root=nowhere is neither a folder nor a .zip file"),
        ({"context": 3}, "no text of the train split has at most 2 tokens; raise data.context"),
    ],
)
def test_options_that_do_not_fit_the_table(tmp_path: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Speech(path=str(corpus(tmp_path)), **overrides).load(Char())


def test_a_path_that_is_no_speech(tmp_path: Path) -> None:
    assert "no file" in str(Speech(path=str(tmp_path / "nothing.tsv")).missing())
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no sound"):
        Speech(path=str(tmp_path / "empty")).load(Char())
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="neither a table nor a folder"):
        Speech(path=str(tmp_path / "x.bin")).load(Char())


def test_real_speech_is_read_whole(shared_data: Path) -> None:
    table = shared_data / "asterisk_speech" / "manifest_en.tsv"
    if not table.is_file():
        pytest.skip("no asterisk_speech")
    splits = Speech(path=str(table)).load(Word())
    assert [len(split) for split in splits] == [446, 49, 43]


@pytest.mark.parametrize("rate", [0, 2_000_000_000])
def test_a_rate_that_no_recording_has_is_refused_with_the_file(tmp_path: Path, rate: int) -> None:
    """The rate of a header is bounded before anything is converted: it decides how much memory that takes."""
    table = corpus(tmp_path)
    file = tmp_path / "wav" / "3.wav"
    content = bytearray(file.read_bytes())
    content[24:32] = rate.to_bytes(4, "little") + (2 * rate).to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"3\.wav.*{rate} samples a second"):
        Speech(path=str(table), resample=True, sample_rate=8000).load(Char())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u0939\u093f\u0928\u094d\u0926\u0940!", "\u0939\u093f\u0928\u094d\u0926\u0940"),  # vowel signs of Hindi
        ("Cafe\u0301, d\u2019accord_", "café d'accord"),
        ("\u0130stanbul 2", "i\u0307stanbul 2"),
    ],
)
def test_marks_are_parts_of_letters(text: str, expected: str, tmp_path: Path) -> None:
    assert Speech(path=str(tmp_path / "x.csv"))._normalized(text) == expected
