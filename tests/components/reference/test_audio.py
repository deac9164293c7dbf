"""Features of sound against transformers and torch.stft."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import Wav2Vec2Config, WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2FeatureEncoder, Wav2Vec2FeatureProjection

from blockyard.contracts import DataSpec
from blockyard.tokenizer.log_mel import hann, log_mel, mel_filters
from blockyard.tokenizer.waveform import Waveform
from tests.support.helpers import context, stir
from tests.support.tolerances import FLOAT64, float32


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("window", "mels", "rate"), [(400, 80, 16_000), (200, 40, 8_000), (401, 23, 11_025)])
def test_filters_are_those_of_transformers(window: int, mels: int, rate: int) -> None:
    theirs = mel_filter_bank(1 + window // 2, mels, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney")
    if window % 2:  # they space the frequencies of an odd window as if it were even
        assert mel_filters(window, mels, rate).shape == theirs.T.shape
        return
    np.testing.assert_allclose(
        mel_filters(window, mels, rate).numpy(), theirs.T, **float32(terms=1, size=float(theirs.max()))
    )


def test_features_are_those_of_whisper() -> None:
    """Its frames are centred and its ends reflected: with a hop of half a window, frame t of theirs is t - 1 here."""
    samples = noise(1, 16_000) * torch.hann_window(16_000)
    theirs = WhisperFeatureExtractor(feature_size=80, hop_length=200, chunk_length=1, sampling_rate=16_000)
    expected = theirs(samples[0].numpy(), sampling_rate=16_000, return_tensors="pt").input_features
    ours = log_mel(samples.double(), hann(400).double(), 200, mel_filters(400, 80, 16_000).double())
    # Theirs are float32: in a quiet frame the logarithm multiplies the rounding of the loud ones.
    assert_close(ours.float(), expected[..., 1 : 1 + ours.shape[2]], rtol=1e-3, atol=1e-3)


def test_power_is_that_of_torch_stft() -> None:
    samples, window = noise(2, 1000).double(), hann(200).double()
    theirs = torch.stft(samples, 200, 80, window=window, center=False, return_complex=True).abs().square()
    identity = torch.eye(101, dtype=torch.float64)
    ours = log_mel(samples, window, 80, identity)
    logs = theirs.clamp_min(1e-10).log10()
    expected = (torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8) + 4) / 4
    assert_close(ours, expected, **FLOAT64)


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_waveform_is_the_encoder_of_wav2vec2(norm: str) -> None:
    kernels, strides = (10, 3, 2), (5, 2, 2)
    config = Wav2Vec2Config(
        hidden_size=16,
        conv_dim=(8, 8, 8),
        conv_kernel=kernels,
        conv_stride=strides,
        num_feat_extract_layers=3,
        feat_extract_norm=norm,
        feat_extract_activation="gelu",
        conv_bias=False,
        feat_proj_dropout=0.0,
    )
    encoder = stir(Wav2Vec2FeatureEncoder(config)).double()
    projection = stir(Wav2Vec2FeatureProjection(config)).double()
    options = Waveform(kernels=kernels, strides=strides, channels=8, norm=norm, standardize=False)  # type: ignore[arg-type]
    data = DataSpec("audio", (400,), rate=8000)
    ours = options.embedder(replace(context(), data=data, tokens=options.spec(data))).double()
    copied = {}
    for number, layer in enumerate(encoder.conv_layers):
        copied[f"convs.{number}.weight"] = layer.conv.weight
        if hasattr(layer, "layer_norm"):
            copied |= {f"norms.{number}.{kind}": getattr(layer.layer_norm, kind) for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        copied[f"final_norm.{kind}"] = getattr(projection.layer_norm, kind)
        copied[f"proj.{kind}"] = getattr(projection.projection, kind)
    ours.load_state_dict(copied)
    samples = noise(3, 400).double()
    expected = projection(encoder(samples).transpose(1, 2))[0]
    assert_close(ours(samples)[0], expected)
    with torch.no_grad():
        ours.convs[1].weight[0] += 1
    assert not torch.allclose(ours(samples)[0], expected)
