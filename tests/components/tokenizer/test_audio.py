"""Tokens of sound: padding is absence, a shift of one stride is a shift of one token, and what cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import Context, DataSpec, Tokenizer
from blockyard.tokenizer import waveform
from blockyard.tokenizer._audio import AudioEmbedder, least
from blockyard.tokenizer.log_mel import LogMel, log_mel, spared
from blockyard.tokenizer.waveform import Waveform
from blockyard.weight_init import initialise
from tests.support.helpers import context, stir
from tests.support.tolerances import FLOAT64

RATE = 2000
DATA = DataSpec("audio", (900,), variable=True, rate=RATE)
SMALL = {"kernels": (10, 3, 2), "strides": (5, 2, 2), "channels": 8}
STEMS: dict[str, Tokenizer] = {
    "log_mel2": LogMel(mels=8, subsample=2),
    "log_mel4": LogMel(mels=8, subsample=4, window_ms=20),
    "group": Waveform(**SMALL),
    "layer": Waveform(**SMALL, norm="layer"),
    "none": Waveform(**SMALL, norm="none", standardize=False),
}


def place(tokenizer: Tokenizer, data: DataSpec = DATA) -> Context:
    return replace(context(), tokens=tokenizer.spec(data), data=data)


def build(tokenizer: Tokenizer) -> AudioEmbedder:
    embedder = initialise(tokenizer.embedder(place(tokenizer)), 0)
    assert isinstance(embedder, AudioEmbedder)
    return stir(embedder).double().eval()


def recordings(batch: int = 4, samples: int = 900) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, samples, generator=generator, dtype=torch.float64) * 2 - 1


def assert_padding_is_absence(embedder: AudioEmbedder) -> None:
    x, lengths = recordings(), torch.tensor([900, 751, least(embedder.stages), 3])
    padded, seq = embedder(x, lengths)
    assert seq.valid is not None
    counts = embedder.tokens.tokens_of(lengths)
    assert seq.valid.sum(1).tolist() == counts.tolist()
    assert counts.tolist()[2:] == [1, 0]
    assert padded[~seq.valid].abs().max() == 0
    for row, (length, count) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
        alone, of_row = embedder(x[row : row + 1, :length])
        assert of_row.valid is None or count == 0
        assert_close(padded[row, :count], alone[0, :count], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", STEMS)
@torch.no_grad()
def test_padding_is_absence(name: str) -> None:
    assert_padding_is_absence(build(STEMS[name]))


@torch.no_grad()
def test_statistics_over_padding_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the group norm of the reference, which takes padding for silence."""
    whole = waveform.over_time
    monkeypatch.setattr(waveform, "over_time", lambda x, lengths, epsilon: whole(x, None, epsilon))
    with pytest.raises(AssertionError):
        assert_padding_is_absence(build(STEMS["group"]))


@pytest.mark.parametrize("name", STEMS)
@torch.no_grad()
def test_a_shift_of_one_stride_is_a_shift_of_one_token(name: str) -> None:
    """Between silences, which keep statistics over a recording what they are."""
    embedder = build(STEMS[name])
    stride = int(torch.tensor([stage[1] for stage in embedder.stages]).prod())
    sound = torch.cat([torch.zeros(1, 400), recordings(1, 300).float(), torch.zeros(1, 800)], 1).double()
    before, after = embedder(sound)[0], embedder(sound.roll(stride, 1))[0]
    inner = before.shape[1] - 8
    assert_close(after[:, 4 : inner + 1], before[:, 3:inner], **FLOAT64)
    assert (before[:, 4 : inner + 1] - before[:, 3:inner]).abs().max() > 1e-3


def test_int16_is_a_fraction_of_full_scale() -> None:
    embedder = build(STEMS["log_mel2"]).float()
    whole = (recordings(2) * 32767).round().to(torch.int16)
    assert_close(embedder(whole)[0], embedder(whole.float() / 32768)[0])


def test_silence_is_finite() -> None:
    for tokenizer in STEMS.values():
        x, _ = build(tokenizer)(torch.zeros(2, 900, dtype=torch.float64), torch.tensor([900, 5]))
        assert x.isfinite().all()


def test_loudness_below_the_largest_by_eight_is_cut_off_in_the_recording_itself() -> None:
    options = LogMel(mels=8)
    embedder = build(options)
    quiet = torch.cat([recordings(1, 450), torch.zeros(1, 450)], 1)
    features = log_mel(quiet.float(), embedder.hann.float(), embedder.hop, embedder.filters.float())
    assert float(features.max() - features.min()) == pytest.approx(2)


def test_masks_hide_runs_of_bands_and_windows_in_training_only() -> None:
    torch.manual_seed(0)
    x = torch.ones(200, 8, 30)
    hidden = 1 - spared(x, 1, 3)
    assert hidden.shape == (200, 8, 1)
    widths = hidden.sum(1)[:, 0]
    assert (widths.min(), widths.max()) == (0, 6)
    assert (hidden[:, 1:].diff(dim=1) > 0).sum(1).max() <= 2
    assert (1 - spared(x, 2, 40)).sum(2).max() == 30  # a mask wider than the recording hides all of it
    embedder = build(LogMel(mels=8, mask_bands=4, mask_frames=9))
    plain, masked = embedder(recordings())[0], embedder.train()(recordings())[0]
    assert (plain - masked).abs().max() > 1e-3
    assert_close(embedder.eval()(recordings())[0], plain)
    with pytest.raises(ValueError, match=r"tokenizer.mask_bands=9 is more than all of tokenizer.mels=8"):
        LogMel(mels=8, mask_bands=9)


@pytest.mark.parametrize(
    ("tokenizer", "data", "message"),
    [
        (LogMel(), DataSpec("text", (9,)), "reads audio, the data gives text"),
        (LogMel(), DataSpec("audio", (9,)), "how many samples make a second"),
        (LogMel(mels=80), DATA, r"tokenizer.mels=80: \d+ bands hold no frequency of a window of 50 samples at 2000 Hz"),
        (LogMel(window_ms=0.1), DATA, "are 0 and 20 samples at 2000 Hz"),
        (Waveform(), DataSpec("audio", (150,), rate=8000), r"150 samples \(0.0187 s\), and the first token needs 200"),
    ],
)
def test_what_cannot_be_read_is_refused(tokenizer: Tokenizer, data: DataSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer.spec(data)


def test_a_number_for_each_convolution() -> None:
    with pytest.raises(ValueError, match=r"tokenizer.kernels=\[3\] and tokenizer.strides=\[2, 2\] need a number"):
        Waveform(kernels=(3,), strides=(2, 2))


def test_arguments_that_only_text_has_are_refused() -> None:
    embedder = build(STEMS["group"])
    with pytest.raises(ValueError, match="omit segment and cache"):
        embedder(recordings(), segment=torch.zeros(4, 900))
    with pytest.raises(ValueError, match=r"reads recordings \(batch, samples\)"):
        embedder(recordings()[..., None])
