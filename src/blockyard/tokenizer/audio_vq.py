"""Sounds as codes: each frame of a log-mel spectrogram is the sum of a vector from each of several codebooks.

Source: Zeghidour et al. 2021, SoundStream: An End-to-End Neural Audio Codec (arXiv 2107.03312), section 3.3, residual
    vector quantisation, here of log-mel frames in place of learned ones; the codes of a frame one after another as in
    Borsos et al. 2022, AudioLM (arXiv 2209.03143), section 3. The way back: Griffin and Lim 1984, Signal Estimation
    from Modified Short-Time Fourier Transform; Lee and Seung 2001, Algorithms for Non-negative Matrix Factorization,
    the multiplicative rule with one factor fixed, for the powers behind bands
Reference: sklearn.cluster.KMeans for each codebook; the sum by loops, in the tests
Equation: r_1 = frame; code_l = argmin over k of |r_l - c_lk|^2; r_{l+1} = r_l - c_{l, code_l}; frame is about the sum
    over l of c_{l, code_l}
    Back: x <- istft(A exp(i arg stft(x))); sum over frames and frequencies of (|stft(x)| - A)^2 never increases,
    because each of both steps is a projection. p <- p (F^T s) / (F^T F p); |s - F p|^2 never increases
Cost: that of a model over levels x seconds x 1000 / hop_ms tokens; seconds for the codebooks, once for each data set;
    back O(rounds F W log W) time for F frames of W samples

    samples   |------window------|                  50 ms, centred on its frame
                         |------window------|       one every 25 ms
    tokens    START  f0l0 f0l1  f1l0 f1l1  ...  END      levels=2: the first code of a frame, and of its remainder

The codes of a level are a vocabulary of their own, so that a token tells its level. All codes of a frame stand in one
sequence, not delayed in parallel as in MusicGen (arXiv 2306.05284): the model, its head and its decoding are the same
as for a text, and each code is predicted from all codes before it, at the price of a sequence `levels` times as long.

Codebook l is found by k-means over the remainders of the levels before it, of at most 50,000 frames of the training
split, and cached in BLOCKYARD_CACHE (or the platform's cache folder) under a hash of the sounds and the options. The
metric `reconstruction_lsd` is the log-spectral distance in decibels between a sound and its decoded codes. Losses per
token of different codes do not compare.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from blockyard.contracts import Because, Context, DataSpec, SoundTokenizer, TokenizerState, TokenSpec
from blockyard.data.splits.order import mix
from blockyard.tokenizer._cache import fit_once
from blockyard.tokenizer._image_tokens import Codes, FitSeed
from blockyard.tokenizer._lookup import TokenEmbedder
from blockyard.tokenizer._vq import kmeans, nearest
from blockyard.tokenizer.log_mel import Bands, Milliseconds, check_bands, hann, log_mel, mel_filters, window_samples

Levels = Annotated[int, Ge(1), Le(32), Because("a frame has so many tokens")]
Rounds = Annotated[int, Ge(1), Le(10_000), Because("each transforms the whole sound twice")]
MOST = 8192  # tokens of a sound: attention over more compares 67 million pairs of them
LARGEST = 50_000  # frames that a codebook is found on, at most
ROUNDS = 32  # rounds of Griffin and Lim
_DECIBELS = 40  # decibels of one unit of a frame: a frame is (log10 of the power + 4) / 4
_BAND_ROUNDS = 100
_SMALLEST = 1e-12  # smallest power, so that no division is by zero


class AudioVQ(SoundTokenizer):
    """Residual vector quantisation of log-mel frames. Griffin-Lim turns frames into sound.

    Options:
        levels: number of codebooks, each for the remainder of the codebooks before it; a frame has a token of each
        codes: vectors of a codebook
        mels: bands of frequencies, evenly spaced on the mel scale up to half the sampling rate
        window_ms: length of a window in milliseconds
        hop_ms: distance from one frame to the next in milliseconds; at most half a window, or the sound has gaps
        rounds: rounds of the Griffin-Lim algorithm
        fit_seed: seed of the first frames and centres of k-means, as for patch_codes
    """

    unit: ClassVar[str] = "code"

    def __init__(
        self,
        *,
        levels: Levels = 2,
        codes: Codes = 64,
        mels: Bands = 48,
        window_ms: Milliseconds = 50.0,
        hop_ms: Milliseconds = 25.0,
        rounds: Rounds = 32,
        fit_seed: FitSeed | None = 0,
    ) -> None:
        if 2 * hop_ms > window_ms:
            raise ValueError(
                f"tokenizer.hop_ms={hop_ms:g} is more than half of tokenizer.window_ms={window_ms:g}, so that a sound "
                "could not be put together again; use a smaller hop or a larger window"
            )
        self.levels = levels
        self.count = codes
        self.mels = mels
        self.rounds = rounds
        self.fit_seed = fit_seed
        self.window_ms = window_ms
        self.hop_ms = hop_ms
        self._books: Tensor | None = None  # (L, K, mels)

    @property
    def codes_seed(self) -> int:
        """The seed of random numbers in `fit`: `fit_seed`, or the seed of the run."""
        if self.fit_seed is None:
            return self.run_seed
        return self.fit_seed

    @property
    def filters(self) -> Tensor:
        """The triangles of the bands, (mels, W // 2 + 1)."""
        return mel_filters(self.window, self.mels, self.rate)

    @property
    def hann(self) -> Tensor:
        """The window, (W,)."""
        with torch.device("cpu"):  # also while a model is built without weights
            return hann(self.window)

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return `levels` tokens a frame, and an end token. Raises ValueError for sounds that are only read."""
        window, self.hop = window_samples(data, self.window_ms, self.hop_ms)
        if data.source is None:
            raise ValueError("tokenizer=audio_vq makes tokens of sounds that are written; this sound has no source")
        assert data.rate is not None
        check_bands(window, self.mels, data.rate)
        self.window = window
        self.rate = data.rate
        count = self.levels * self._frames(data.shape[0]) + 1
        if count > MOST:
            raise ValueError(
                f"tokenizer.levels={self.levels} and tokenizer.hop_ms={self.hop_ms:g} make {count:,} tokens of "
                f"{data.shape[0] / data.rate:g} s of sound, more than {MOST:,}; use a longer hop, or fewer levels"
            )
        self.codes = self.levels * self.count
        return TokenSpec((count,), variable=True, vocabulary=self.codes + 2, start=self.codes, end=self.codes + 1)

    def _frames(self, samples: int) -> int:
        """Return the number of frames of a sound with half a window of silence added to both ends."""
        window = self.window
        return (samples + 2 * (window // 2) - window) // self.hop + 1

    def embedder(self, ctx: Context) -> TokenEmbedder:
        """Build the embedding table."""
        return TokenEmbedder(ctx)

    def token_name(self, token_id: int) -> str:
        """Return level and number of a code, or the name of the start or end token."""
        level, code = divmod(token_id, self.count)
        if level < self.levels:
            return f"{level}.{code}"
        return "END" if code else "START"

    # -- frames -------------------------------------------------------------------------------------------------

    def frames(self, sound: Tensor) -> Tensor:
        """Return the log-mel frames (F, mels) of a sound (T,) int16."""
        samples = F.pad(sound[None].float() / 32768, (self.window // 2,) * 2)
        return log_mel(samples, self.hann, self.hop, self.filters)[0].T

    def sound(self, frames: Tensor) -> Tensor:
        """Return a sound ((F - 1) hop,) int16 with about these log-mel frames (F, mels)."""
        powers = powers_of_bands(10 ** (4 * frames - 4), self.filters)  # (F, W // 2 + 1)
        samples = griffin_lim(powers.sqrt().T[None], self.hann, self.hop, self.rounds)[0]
        return (samples.clamp(-1, 1) * 32767).round().to(torch.int16)

    def distance(self, first: Tensor, second: Tensor) -> float:
        """Return the log-spectral distance in decibels: the root mean square over bands, the mean over common frames.

        Source: Gray and Markel 1976, Distance Measures for Speech Processing
        """
        frames = [self.frames(sound) for sound in (first, second)]
        count = min(map(len, frames))
        difference = _DECIBELS * (frames[0][:count] - frames[1][:count])
        return float(difference.double().square().mean(1).sqrt().mean())

    def fit(self, values: Sequence[Tensor]) -> None:
        """Find the codebooks by k-means, level by level, or load them from the cache."""
        options = (self.levels, self.count, self.mels, self.window_ms, self.hop_ms, self.rate, self.codes_seed)
        lengths = torch.tensor([len(sound) for sound in values])
        contents: list[Tensor | str] = [torch.cat(list(values)), lengths, f"{options}", torch.__version__]
        fit_once(self, "audio_vq", contents, lambda: self._learn(values))

    def _learn(self, sounds: Sequence[Tensor]) -> None:
        generator = torch.Generator().manual_seed(mix("audio vq", self.count, self.codes_seed))
        rest = torch.cat([self.frames(sound) for sound in sounds])
        if len(rest) > LARGEST:
            rest = rest[torch.randperm(len(rest), generator=generator)[:LARGEST]]
        books = []
        for _ in range(self.levels):
            books.append(kmeans(rest, self.count, generator))
            rest = rest - books[-1][nearest(rest, books[-1])]
        self._books = torch.stack(books)

    def quantize(self, frames: Tensor) -> Tensor:
        """Return the codes (F, L) int64 of frames (F, mels), each level for the remainder of the levels before it."""
        codes = []
        rest = frames
        for book in self._fitted():
            codes.append(nearest(rest, book))
            rest = rest - book[codes[-1]]
        return torch.stack(codes, 1)

    def encode(self, values: Tensor) -> Tensor:
        """Return the codes of the frames of sounds (B, T) int16, level by level within a frame: (B, F L)."""
        codes = torch.stack([self.quantize(self.frames(sound)) for sound in values])  # (B, F, L)
        return (codes + self.count * torch.arange(self.levels)).flatten(1)  # (B, F L)

    def decode(self, token_ids: Tensor) -> Tensor:
        """Return the sounds (B, T) of token ids (B, N).

        Each code of the first level begins a frame. A code of any other level than the next one is left out: no encoded
        sound has it.
        """
        return pad_sequence([self._decode(sequence) for sequence in token_ids.tolist()], batch_first=True)

    def _decode(self, token_ids: list[int]) -> Tensor:
        books = self._fitted()
        frames: list[Tensor] = []
        last_level = 0
        for token_id in token_ids:
            level, code = divmod(token_id, self.count)
            if level == 0:
                frames.append(books[0, code])
            elif frames and level == last_level + 1 < self.levels:
                frames[-1] = frames[-1] + books[level, code]
            else:
                continue
            last_level = level
        if not frames:
            return torch.zeros(0, dtype=torch.int16)
        return self.sound(torch.stack(frames))

    def start(self, classes: Tensor) -> Tensor:
        """Return the start token of every sound, (B,)."""
        return torch.full_like(classes, self.codes)

    def state(self) -> TokenizerState:
        """Return the codebooks as base64 of float32."""
        if self._books is None:
            return {}
        data = base64.b64encode(self._books.numpy().tobytes()).decode()
        return {"shape": list(self._books.shape), "float32": data}

    def load_state(self, state: TokenizerState) -> None:
        """Restore a `state`. Raises ValueError if it is damaged, or of other options."""
        self._books = None
        if not state:
            return
        shape = (self.levels, self.count, self.mels)
        try:
            data = torch.frombuffer(bytearray(base64.b64decode(state["float32"])), dtype=torch.float32)
            books = data.view(tuple(state["shape"]))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"not the saved state of an audio_vq tokenizer: {error}") from error
        if books.shape != shape:
            raise ValueError(f"not the saved state of {self.levels} levels of {self.count} codes of {self.mels} bands")
        if not bool(books.isfinite().all()):
            raise ValueError("not the saved state of an audio_vq tokenizer: a value is not finite")
        self._books = books

    def _fitted(self) -> Tensor:
        if self._books is None:
            raise ValueError("this audio_vq tokenizer is not fitted to data")
        return self._books


def spectrum(samples: Tensor, window: Tensor, hop: int) -> Tensor:
    """Return the complex spectrum (B, W // 2 + 1, F) of samples (B, T): window f is centred on sample f hop.

    Silence stands on both sides of the samples.
    """
    return torch.stft(samples, len(window), hop, window=window, pad_mode="constant", return_complex=True)


def griffin_lim(magnitudes: Tensor, window: Tensor, hop: int, rounds: int = ROUNDS) -> Tensor:
    """Return samples (B, (F - 1) hop) with about these magnitudes of their spectrum (B, W // 2 + 1, F).

    The first phases are drawn from a fixed seed, so that the same magnitudes always sound the same. A single frame has
    no samples around it that others share, and gives none.
    """
    length = (magnitudes.shape[2] - 1) * hop
    if not length:
        return magnitudes.new_zeros(len(magnitudes), 0)
    generator = torch.Generator().manual_seed(0)
    phases = 2 * math.pi * torch.rand(magnitudes.shape[1:], generator=generator, dtype=torch.float64)
    phases = phases.to(magnitudes).expand_as(magnitudes)
    target = torch.polar(magnitudes, phases)
    samples = _inverse(target, window, hop, length)
    for _ in range(rounds):
        estimate = spectrum(samples, window, hop)
        samples = _inverse(magnitudes * estimate / estimate.abs().clamp_min(_SMALLEST), window, hop, length)
    return samples


def _inverse(target: Tensor, window: Tensor, hop: int, length: int) -> Tensor:
    """Return the samples (B, T) with the spectrum nearest to a target, by the sum of squares."""
    return torch.istft(target, len(window), hop, window=window, length=length)


def powers_of_bands(bands: Tensor, filters: Tensor, rounds: int = _BAND_ROUNDS) -> Tensor:
    """Return non-negative powers (..., frequencies) with about these bands (..., M).

    filters: (M, frequencies), not negative
    """
    powers = bands.mean(-1, keepdim=True).expand(*bands.shape[:-1], filters.shape[1]).clamp_min(_SMALLEST)
    projected = bands @ filters  # (..., frequencies)
    gram = filters.T @ filters
    for _ in range(rounds):  # factors are not negative, so neither are powers (Lee and Seung)
        powers = powers * projected / (powers @ gram).clamp_min(_SMALLEST)
    return powers
