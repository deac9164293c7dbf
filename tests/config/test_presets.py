"""Presets: named models as lists of choices, over any data that they can read."""

from __future__ import annotations

import pytest
import torch
import yaml

from blockyard.cli import main
from blockyard.config import presets
from blockyard.config.build import CONTRACTS, Components
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import Composed, compose
from blockyard.config.schema import options
from blockyard.config.untrusted.targets import locate
from blockyard.ops.cache import WindowCache
from blockyard.token_mixer.windowed_attention import WindowedAttention
from blockyard.verify.checks import BrokenError, cached_decoding
from tests.config import products
from tests.config.preset_data import data_of
from tests.config.product_batches import batch_for
from tests.support.every import every
from tests.support.helpers import stir
from tests.support.tolerances import float32

SIZES = {"dim": 16, "depth": 2, "heads": 2}
MODEL = [family for family in CONTRACTS if family not in ("data", "optimizer", "schedule")]


def pattern_of(name: str) -> list[str]:
    """The pattern of kinds that a preset has; a model of it has as many layers, or more."""
    content = yaml.safe_load(catalog.choices("preset")[name].path.read_text())
    layers = content.get("layers", {})
    pattern: list[str] = layers.get("first", []) + layers.get("pattern", [])
    return pattern


def small(name: str) -> list[str]:
    """Words that make a preset's model small; one without blocks has fewer sizes, and one of them may follow."""
    available = options(locate(str(catalog.choices("model")[presets.choices("preset", name)["model"]].target)))
    free = [key for key in SIZES if key in available and key not in products.set_by_preset(name, "model")]
    sizes = SIZES | {"depth": max(SIZES["depth"], len(pattern_of(name)))}
    return ["logger=none", *(f"model.{key}={sizes[key]}" for key in free)]


def composed(name: str, *arguments: str) -> Composed:
    """A preset over data that its tokenizer reads and its objective asks something of, without problems."""
    chosen = presets.choices("preset", name)
    result = compose([f"preset={name}", f"data={data_of(chosen)}", *arguments])
    assert check(result) == []
    return result


@pytest.mark.parametrize("name", catalog.choices("preset"))
@pytest.mark.sampled(3)
def test_a_preset_and_data_are_a_whole_command(name: str) -> None:
    """Every part is named; the model trains, and a gradient reaches every weight."""
    assert [family for family in presets.choices("preset", name) if family not in catalog.OF_SOURCE] == MODEL
    plan = Components(composed(name, *small(name)).config)
    model = plan.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        batch = plan.objective.ready(batch_for(plan))
        loss = plan.objective.loss(model(batch), batch.target)
        assert loss.isfinite()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [path for path, weight in model.named_parameters() if weight.grad is None] == []


def holds(actual: object, value: object) -> bool:
    """Whether a value arrived; of a mapping, such as the members of a mixer, whether each entry did."""
    if isinstance(value, dict) and isinstance(actual, dict):
        return every(key in actual and holds(actual[key], item) for key, item in value.items())
    return value == actual


@pytest.mark.parametrize("name", catalog.choices("preset"))
@pytest.mark.sampled(2)
def test_a_preset_is_choices_and_options_and_no_size(name: str) -> None:
    """Its options are those of the choices, and what it says arrives."""
    config = composed(name).config
    text = yaml.safe_load(catalog.choices("preset")[name].path.read_text())
    text.pop("defaults")
    for family, body in text.items():
        available = options(locate(config[family]["_target_"]))
        for key, value in body.items():
            assert key in available
            actual = config[family][key]
            if str(value).startswith("${data."):  # a size that the data determines
                assert actual == config["data"][value.removeprefix("${data.").removesuffix("}")]
                continue
            assert key not in ("dim", "heads", "encoder_depth", "num_latents")
            assert key != "depth" or value == len(pattern_of(name))
            if (family, key) == ("layers", "kinds"):  # overrides, which are composed to nodes
                assert value.keys() == actual.keys()
                continue
            assert holds(actual, value)
    assert catalog.choices("preset")[name].source


DECODERS = [name for name in catalog.choices("preset") if data_of(presets.choices("preset", name)) == "code"]
DECODERS = [name for name in DECODERS if presets.choices("preset", name)["objective"] == "next_token"]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.sampled(2)
def test_a_decoder_continues_from_its_cache_as_from_the_whole_text(name: str) -> None:
    """All kinds of its layers together, in chunks of one or more tokens."""
    model = Components(composed(name, "data.context=12", *small(name)).config).model(0)
    cached_decoding(stir(model).double().eval(), 12)


def test_planted_windows_without_their_cache_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a window's cache forgets a token too many."""
    monkeypatch.setattr(WindowedAttention, "_key_cache", short_cache)
    model = Components(composed("mistral", "data.context=12", *small("mistral")).config).model(0)
    with pytest.raises(BrokenError):
        cached_decoding(stir(model).double().eval(), 12)


def short_cache(mixer: WindowedAttention, batch_size: int) -> WindowCache:
    assert mixer.window is not None
    return WindowCache(batch_size, mixer.kv_heads, mixer.head_dim, mixer.value_dim, window=mixer.window - 1)


def test_the_command_line_wins_and_takes_its_options_with_it() -> None:
    plain, chosen = composed("gpt2"), composed("gpt2", "norm=none", "channel_mixer=glu")
    assert plain.config["channel_mixer"]["bias"] is True
    assert chosen.config["norm"] == {"_target_": "blockyard.norm.none.NoNorm", "_partial_": True}
    assert chosen.config["channel_mixer"] == compose(["channel_mixer=glu"]).config["channel_mixer"]
    same = composed("gpt2", "channel_mixer=mlp", "channel_mixer.expansion=3.0")
    assert same.config["channel_mixer"] == plain.config["channel_mixer"] | {"expansion": 3.0}
    assert composed("gpt2", "channel_mixer=glu", "channel_mixer.bias=true").config["channel_mixer"]["bias"] is True


def test_deep_sets_are_of_patches_or_of_views() -> None:
    """As the header says; over views it is the baseline of multi_view, which mixes."""
    overrides = ["preset=deep_sets", "data=digits_views", "tokenizer=view_cnn", *small("deep_sets")]
    assert check(compose(overrides)) == []
    models = [
        Components(compose([overrides[0], f"token_mixer={mixer}", *overrides[1:]]).config).model(0)
        for mixer in ("none", "attention")
    ]
    views = torch.rand(2, 6, 1, 5, 5)
    for model, apart in zip(models, (True, False), strict=True):
        each = torch.stack([model.eval()(views[:, [view]]) for view in range(6)]).mean(0)
        assert torch.allclose(model(views), each, **float32(terms=64, layers=4)) == apart


def test_an_experiment_keeps_its_task_and_its_sizes() -> None:
    llama = compose(["experiment=vit_digits", "preset=llama"])
    assert check(llama) == []
    assert {f: llama.choices[f] for f in ("tokenizer", "head", "objective", "norm", "channel_mixer", "position")} == {
        "tokenizer": "patch",
        "head": "mean_pool",
        "objective": "classify",
        "norm": "rms",
        "channel_mixer": "glu",
        "position": "rope",
    }
    base = compose(["experiment=vit_digits"]).config
    assert llama.config["head"] == base["head"]
    assert llama.config["model"]["dim"] == base["model"]["dim"]
    assert llama.config["optimizer"] == base["optimizer"]
    assert llama.config["name"] == "vit_digits_llama"


def test_presets_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "preset"]) == 0
    listed = capsys.readouterr().out
    assert every(name in listed for name in catalog.choices("preset"))
    assert "arXiv 2302.13971" in listed
    assert main(["explain", "preset=llama"]) == 0
    assert "blockyard train preset=llama data=code" in capsys.readouterr().out
    assert main(["explain", "preset=multi_view"]) == 0
    assert "blockyard train preset=multi_view data=digits_views" in capsys.readouterr().out
    assert main(["check", "preset=lama"]) == 2
    assert "did you mean llama?" in capsys.readouterr().err
