"""Codes of sound: residual quantisation by loops and scikit-learn, Griffin and Lim's and Lee and Seung's properties."""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from sklearn.cluster import KMeans
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import DataSpec
from blockyard.data.dial_tones import KEYS, RATE, play
from blockyard.tokenizer.audio_vq import AudioVQ, griffin_lim, powers_of_bands, spectrum
from blockyard.tokenizer.log_mel import hann, mel_filters
from tests.support.every import every

TEXT = DataSpec("text", (8,), variable=True)
SOUND = DataSpec("audio", (RATE,), variable=True, rate=RATE, source=TEXT)
LEVELS, CODES = 3, 6


@pytest.fixture(scope="module")
def sounds() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [play(KEYS[2 * n : 2 * n + 3], generator, (10.0, 20.0)) for n in range(7)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path / "cache"))


def tokenizer(**options: object) -> AudioVQ:
    codec = AudioVQ(**{"levels": LEVELS, "codes": CODES, "mels": 20, "rounds": 8, **options})  # type: ignore[arg-type]
    codec.spec(SOUND)
    return codec


def fitted(sounds: list[Tensor], **options: object) -> AudioVQ:
    result = tokenizer(**options)
    result.fit(sounds)
    return result


def decode(codec: AudioVQ, token_ids: list[int]) -> Tensor:
    return codec.decode(torch.tensor([token_ids], dtype=torch.int64))[0]


def books_of(codec: AudioVQ) -> np.ndarray:
    state = codec.state()
    return np.frombuffer(base64.b64decode(state["float32"]), dtype=np.float32).reshape(state["shape"])


# -- the codes ----------------------------------------------------------------------------------------------------


def test_a_frame_is_the_sum_of_the_nearest_vectors_of_what_is_left(sounds: list[Tensor]) -> None:
    """SoundStream's equation by loops over frames, levels and codes."""
    codec = fitted(sounds)
    books, frames = books_of(codec).astype(np.float64), codec.frames(sounds[0]).double().numpy()
    token_ids = codec.encode(sounds[0][None])[0].tolist()
    assert len(token_ids) == LEVELS * len(frames)
    for number, frame in enumerate(frames):
        rest, total = frame.copy(), np.zeros_like(frame)
        for level in range(LEVELS):
            distances = [((rest - vector) ** 2).sum() for vector in books[level]]
            code = int(np.argmin(distances))
            assert token_ids[number * LEVELS + level] == level * CODES + code
            rest, total = rest - books[level][code], total + books[level][code]
        np.testing.assert_allclose(total + rest, frame)


def test_each_codebook_is_a_fixed_point_of_scikit_learn_on_what_is_left(sounds: list[Tensor]) -> None:
    codec = fitted(sounds, levels=2)
    rest = torch.cat([codec.frames(sound) for sound in sounds]).numpy()
    for book in books_of(codec):
        theirs = KMeans(CODES, init=book, n_init=1, tol=0, algorithm="lloyd").fit(rest)
        np.testing.assert_allclose(theirs.cluster_centers_, book, atol=1e-4)
        rest = rest - book[theirs.labels_]


def test_the_error_falls_with_every_level(sounds: list[Tensor]) -> None:
    codec = fitted(sounds)
    books = torch.from_numpy(books_of(codec).copy())
    frames = torch.cat([codec.frames(sound) for sound in sounds])
    codes = codec.quantize(frames)
    errors, total = [frames.square().mean()], torch.zeros_like(frames)
    for level in range(LEVELS):
        total = total + books[level][codes[:, level]]
        errors.append((frames - total).square().mean())
    assert every(later < 0.9 * earlier for earlier, later in pairwise(errors))


def test_decoding_sums_the_levels_and_skips_what_no_sound_has(sounds: list[Tensor]) -> None:
    codec = fitted(sounds)
    token_ids = codec.encode(sounds[0][None])[0].tolist()
    books, codes = torch.from_numpy(books_of(codec).copy()), codec.quantize(codec.frames(sounds[0]))
    frames = books[torch.arange(LEVELS), codes].sum(1)  # (F, mels)
    expected = codec.sound(frames)
    assert torch.equal(decode(codec, token_ids), expected)
    assert len(expected) == (len(frames) - 1) * codec.hop
    spoilt = [CODES, *token_ids[:3], 2 * CODES, *token_ids[3:]]  # a second level without a first, a third too many
    assert torch.equal(decode(codec, spoilt), expected)
    assert len(decode(codec, [])) == len(decode(codec, [CODES])) == len(decode(codec, token_ids[:1])) == 0
    both = codec.decode(torch.tensor([token_ids, token_ids[: len(token_ids) // 2] + [CODES] * -(-len(token_ids) // 2)]))
    assert torch.equal(both[0], expected)
    assert not both[1, len(decode(codec, token_ids[: len(token_ids) // 2])) :].any()


def test_what_is_lost_is_less_with_more_levels(sounds: list[Tensor]) -> None:
    codec = fitted(sounds, levels=8)
    lost = []
    for level in (1, 8):
        frames = codec.quantize(codec.frames(sounds[0]))
        kept = (frames + CODES * torch.arange(8))[:, :level].flatten().tolist()
        lost.append(codec.distance(sounds[0], decode(codec, kept)))
    assert lost[1] < 0.8 * lost[0]
    assert codec.distance(sounds[0], sounds[0]) == 0
    half = sounds[0] // 2  # 6 decibels, and what rounding adds in silent bands
    assert codec.distance(sounds[0], half) == pytest.approx(20 * np.log10(2), abs=0.1)


# -- the way back ---------------------------------------------------------------------------------------------------


def _by_loops(magnitudes: np.ndarray, phases: np.ndarray, window: np.ndarray, hop: int, rounds: int) -> np.ndarray:
    """Samples whose frames are put together one by one: the weighted overlap of Griffin and Lim, eq. 6."""
    size, (_, count) = len(window), magnitudes.shape
    length, half = (count - 1) * hop, len(window) // 2

    def together(target: np.ndarray) -> np.ndarray:
        total, weight = np.zeros(length + 2 * half), np.zeros(length + 2 * half)
        for frame in range(count):
            part = slice(frame * hop, frame * hop + size)
            total[part] += window * np.fft.irfft(target[:, frame], size)
            weight[part] += window**2
        inside = slice(half, half + length)
        return np.pad(total[inside] / weight[inside], half)

    def apart(samples: np.ndarray) -> np.ndarray:
        return np.stack([np.fft.rfft(window * samples[n * hop : n * hop + size]) for n in range(count)], 1)

    samples = together(magnitudes * np.exp(1j * phases))
    for _ in range(rounds):
        samples = together(magnitudes * np.exp(1j * np.angle(apart(samples))))
    return samples[half : half + length]


def test_griffin_lim_is_the_algorithm_by_loops_and_never_gets_worse() -> None:
    generator = torch.Generator().manual_seed(3)
    window, hop = hann(32).double(), 8
    magnitudes = torch.rand(1, 17, 12, generator=generator, dtype=torch.float64)
    drawn = torch.rand(17, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = _by_loops(magnitudes[0].numpy(), 2 * np.pi * drawn.numpy(), window.numpy(), hop, 6)
    assert_close(griffin_lim(magnitudes, window, hop, 6)[0], torch.from_numpy(expected), rtol=1e-8, atol=1e-8)
    weights = torch.full((17, 1), 2.0, dtype=torch.float64)
    weights[0] = weights[-1] = 1  # frequencies that have no mirror image
    errors = []
    for rounds in range(0, 24, 3):
        estimate = spectrum(griffin_lim(magnitudes, window, hop, rounds), window, hop).abs()
        errors.append(float((weights * (estimate - magnitudes).square()).sum()))
    assert every(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(errors))
    assert errors[-1] < 0.9 * errors[0]


def test_a_tone_comes_back_at_its_pitch() -> None:
    time = torch.arange(RATE // 2) / RATE
    tone = 0.3 * torch.sin(2 * torch.pi * 770 * time)
    window = hann(400)
    back = griffin_lim(spectrum(tone[None], window, 100).abs(), window, 100)[0]
    pitch = int(torch.fft.rfft(back).abs().argmax()) * RATE / len(back)
    assert pitch == pytest.approx(770, abs=RATE / len(window))  # phases are free by that much
    assert float(back.square().mean()) == pytest.approx(float(tone.square().mean()), rel=0.1)


def test_powers_of_bands_are_those_of_non_negative_least_squares() -> None:
    filters = mel_filters(64, 8, RATE).double()
    truth = torch.rand(3, 33, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 4
    bands = truth @ filters.T
    errors = [float((bands - powers_of_bands(bands, filters, rounds) @ filters.T).norm()) for rounds in (0, 10, 1000)]
    assert errors[2] < errors[1] < errors[0]
    best = sum(nnls(filters.numpy(), band.numpy())[1] ** 2 for band in bands) ** 0.5
    assert errors[2] < best + 1e-3 * float(bands.norm())
    assert bool((powers_of_bands(bands, filters) >= 0).all())


# -- options, states, refusals ------------------------------------------------------------------------------------


def test_a_state_comes_back_and_a_damaged_one_is_refused(sounds: list[Tensor]) -> None:
    codec = fitted(sounds)
    copy = tokenizer()
    copy.load_state(codec.state())
    assert torch.equal(copy.encode(sounds[1][None]), codec.encode(sounds[1][None]))
    assert tokenizer(fit_seed=0).state() == {}
    for damaged in (
        {"shape": [1], "float32": "AAAA"},
        {"float32": codec.state()["float32"]},
        {"shape": 3, "float32": ""},
    ):
        with pytest.raises(ValueError, match="not the saved state"):
            copy.load_state(damaged)
    with pytest.raises(ValueError, match="not the saved state of 2 levels"):
        tokenizer(levels=2).load_state(codec.state())
    with pytest.raises(ValueError, match="not fitted"):
        tokenizer().encode(sounds[0][None])


def test_a_fit_is_cached_and_depends_on_its_seed(sounds: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    first = fitted(sounds).state()
    assert fitted(sounds, fit_seed=1).state() != first
    monkeypatch.setattr(AudioVQ, "_learn", lambda *_: pytest.fail("not from the cache"))
    assert fitted(sounds).state() == first


def test_tokens_and_refusals() -> None:
    tokens = tokenizer().spec(SOUND)
    assert (tokens.vocabulary, tokens.start, tokens.end) == (20, 18, 19)
    assert tokens.max_len == LEVELS * 41 + 1  # a frame every 25 ms of a second, both ends included
    names = [tokenizer().token_name(token_id) for token_id in (0, 7, 18, 19)]
    assert names == ["0.0", "1.1", "START", "END"]
    with pytest.raises(ValueError, match="hop_ms=30 is more than half"):
        AudioVQ(hop_ms=30)
    with pytest.raises(ValueError, match="this sound has no source"):
        AudioVQ().spec(DataSpec("audio", (RATE,), rate=RATE))
    with pytest.raises(ValueError, match="48,003 tokens of 600 s of sound"):
        AudioVQ(levels=2).spec(DataSpec("audio", (600 * RATE,), rate=RATE, source=TEXT))
    with pytest.raises(ValueError, match="reads audio"):
        AudioVQ().spec(TEXT)
