"""Models of time series against transformers, the published formulas and scikit-learn."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import PatchTSTConfig, PatchTSTForPrediction

from tests.components.reference.inputs import preset
from tests.support.helpers import stir

HISTORY, HORIZON = 40, 12
SERIES = ["data=co2", f"data.history={HISTORY}", f"data.horizon={HORIZON}"]
linear = partial(preset, *SERIES, sizes=["logger=none"])  # no blocks, and no weights but those of the head


def histories(batch: int = 3, channels: int = 1) -> Tensor:
    """Random walks (B, steps, C), which have a level and a size of their own."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, HISTORY, channels, generator=generator, dtype=torch.float64).cumsum(1) + 5


NAMES = {
    "self_attn.q_proj": "token_mixer.q",
    "self_attn.k_proj": "token_mixer.k",
    "self_attn.v_proj": "token_mixer.v",
    "self_attn.out_proj": "token_mixer.proj_out",
    "norm_sublayer1.batchnorm": "token_norm",
    "ff.0": "channel_mixer.proj_in",
    "ff.3": "channel_mixer.proj_out",
    "norm_sublayer3.batchnorm": "channel_norm",
}


def test_patchtst_is_that_of_transformers() -> None:
    model = preset("preset=patchtst", *SERIES, "tokenizer.size=8", "tokenizer.stride=4", "tokenizer.pad_end=false")
    config = PatchTSTConfig(
        num_input_channels=1,
        context_length=HISTORY,
        prediction_length=HORIZON,
        patch_length=8,
        patch_stride=4,
        d_model=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        norm_type="batchnorm",
        pre_norm=False,
        activation_function="gelu",
        scaling="std",
        loss="mse",
        pooling_type=None,
        attention_dropout=0.0,
        ff_dropout=0.0,
        positional_dropout=0.0,
        path_dropout=0.0,
        head_dropout=0.0,
    )
    theirs = stir(PatchTSTForPrediction(config)).double().eval()
    copied: dict[str, Tensor] = {}
    for name, value in theirs.state_dict().items():
        path = name.removeprefix("model.encoder.")
        if path.startswith("layers."):
            _, layer, inner = path.split(".", 2)
            module, _, kind = inner.rpartition(".")
            if module in NAMES and kind != "num_batches_tracked":
                copied[f"blocks.{layer}.{NAMES[module]}.{kind}"] = value
    for name in [name for name in copied if ".token_mixer.q." in name]:
        parts = [copied.pop(name.replace(".q.", f".{part}.")) for part in "qkv"]
        copied[name.replace(".q.", ".proj_in.")] = torch.cat(parts)
    embedding = theirs.model.encoder.embedder.input_embedding
    head = theirs.head.projection
    copied |= {"embedder.proj.weight": embedding.weight, "embedder.proj.bias": embedding.bias}
    copied |= {"position.table": theirs.model.encoder.positional_encoder.position_enc}
    copied |= {"head.proj.weight": head.weight, "head.proj.bias": head.bias}
    model.load_state_dict(copied)
    x = histories()
    expected = theirs(past_values=x).prediction_outputs.squeeze(2)
    assert_close(model(x), expected)
    with torch.no_grad():
        model.blocks[1].token_norm.weight[::2] += 0.5
    assert not torch.allclose(model(x), expected)


def test_dlinear_is_the_published_formula() -> None:
    model = linear("preset=dlinear", "tokenizer.kernel=5")
    x = histories()
    padded = F.pad(x.transpose(1, 2), (2, 2), mode="replicate")
    trend = torch.stack([padded[..., step : step + 5].mean(-1) for step in range(HISTORY)], -1)[:, 0]  # (B, L)
    season = x[..., 0] - trend
    weight = model.head.proj.weight
    expected = F.linear(trend, weight[:, :HISTORY]) + F.linear(season, weight[:, HISTORY:], model.head.proj.bias)
    assert_close(model(x), expected)


def test_nlinear_is_the_published_formula() -> None:
    model = linear("preset=nlinear")
    x = histories()
    last = x[:, -1:, 0]
    assert_close(model(x), last + F.linear(x[..., 0] - last, model.head.proj.weight, model.head.proj.bias))


def test_a_bare_linear_model_has_the_optimum_of_ridge() -> None:
    model = linear("preset=nlinear", "tokenizer.normalise=none")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, HISTORY, 1, generator=generator, dtype=torch.float64)
    y = torch.randn(200, HORIZON, generator=generator, dtype=torch.float64)
    penalty = 3.0
    parameters = [model.head.proj.weight, model.head.proj.bias]
    optimizer = torch.optim.LBFGS(parameters, max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().sum() + penalty * model.head.proj.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    reference = Ridge(alpha=penalty).fit(x[..., 0].numpy(), y.numpy())
    np.testing.assert_allclose(model.head.proj.weight.detach().numpy(), reference.coef_, atol=1e-4)
    np.testing.assert_allclose(model.head.proj.bias.detach().numpy(), reference.intercept_, atol=1e-4)


def test_what_is_taken_out_of_a_history_is_put_back() -> None:
    for normalise, power in (("instance", 1e-4), ("last", 1e-9)):
        model = linear("preset=nlinear", f"tokenizer.normalise={normalise}")
        x = histories()
        moved = partial(torch.add, torch.tensor(100.0, dtype=torch.float64))
        assert_close(model(moved(x)), moved(model(x)), rtol=power, atol=power)
    scaled = preset("preset=patchtst", *SERIES)
    assert_close(scaled(7 * histories()), 7 * scaled(histories()), rtol=1e-3, atol=1e-3)
