"""Networks of timm as models: initial weights from the seed, and bad names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blockyard.contracts import DataSpec
from blockyard.model.encoder import Encoder
from blockyard.tokenizer.timm import Timm
from blockyard.tokenizer.view_cnn import ViewCNN
from blockyard.weight_init import initialise
from tests.support.every import every


def test_a_network_of_timm_starts_from_the_seed() -> None:
    """Equal for equal seeds, whatever torch's own stream is at; other for others; as large as the library has it."""
    data = DataSpec("image", (1, 8, 8), target="class", classes=5)
    tokenizer = Timm()
    ctx = Encoder(dim=16, heads=4).context(data, tokenizer.spec(data), 5)

    def weights(seed: int) -> dict[str, Tensor]:
        return initialise(tokenizer.embedder(ctx), seed).state_dict()

    torch.manual_seed(5)
    first = weights(0)
    again, other = weights(0), weights(1)
    assert every(torch.equal(first[name], again[name]) for name in first)
    changed = [name for name in first if not torch.equal(first[name], other[name])]
    assert {name.partition(".")[0] for name in changed} == {"network", "proj"}
    import timm

    like = timm.create_model("resnet10t", in_chans=1, features_only=True, out_indices=(-1,)).state_dict()
    for name, value in like.items():
        if value.ndim == 4:
            assert first[f"network.{name}"].std().item() == pytest.approx(value.std().item(), rel=0.2), name


def test_bad_networks_are_named() -> None:
    data = DataSpec("image", (1, 8, 8))
    with pytest.raises(ValueError, match="timm has no such model; nearest: resnet18"):
        Timm(name="resnet18x").spec(data)
    with pytest.raises(ValueError, match="reads views, the data gives images"):
        ViewCNN().spec(data)
    with pytest.raises(ValueError, match="resnet10t has 5 feature maps, 0 to 4 or -5 to -1"):
        Timm(stage=9).spec(data)
