"""`blockyard inspect memory`: coefficients by hand, the strongest tokens by loops, padding left out, keys planted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.contracts import Batch
from blockyard.errors import UserError
from blockyard.inspect.kinds.memory import coefficients, key_mixers, strongest
from blockyard.model._prefix import Prefix
from tests.support import engine_runs
from tests.support.every import every
from tests.support.helpers import tiny, token_ids
from tests.support.tiny import SHORTEST
from tests.support.tolerances import float32


@pytest.mark.parametrize("channel", ["mlp", "memory"])
@torch.no_grad()
def test_the_strongest_tokens_by_loops(channel: str) -> None:
    """Against the definition, block by block and token by token; the padding is what a bug would find."""
    model = tiny(channel_mixer=channel, position="learned", prefix=Prefix(registers=2), sizes={"variable": True})
    inputs, lengths = token_ids(5, 6), torch.tensor([6, 3, 1, 4, 6])
    batches = [Batch(inputs[part], lengths=lengths[part], sample=torch.tensor(part)) for part in ([0, 1], [2, 3, 4])]
    layers = strongest(model, batches, 3)
    assert [layer.name for layer in layers] == ["block 0", "block 1"]
    for number, layer in enumerate(layers):
        block = model.blocks[number]
        examples: list[list[tuple[float, int, int]]] = [[] for _ in range(len(layer.coefficients))]
        for sample in range(5):
            x = model.steps(inputs[[sample], : lengths[sample]])
            stream = x["stream" if number == 0 else "block.0"]
            middle = stream + block.token_mixer(block.token_norm(stream), x["seq"])
            h = F.linear(block.channel_norm(middle)[0, 2:], block.channel_mixer.proj_in.weight)
            if channel == "mlp":
                m = F.gelu(h)
            else:
                m = (h / 16**0.5).exp() / (h / 16**0.5).exp().sum(-1, keepdim=True) * h.shape[1] ** 0.5
            for key, example in enumerate(examples):
                value, token = m[:, key].max(0)
                example.append((float(value), sample, int(token)))
        for key, example in enumerate(examples):
            best = sorted(example, reverse=True)[:3]
            assert_close(
                layer.coefficients[key], torch.tensor([each[0] for each in best]), **float32(terms=64, layers=2)
            )
            assert layer.samples[key].tolist() == [each[1] for each in best]
            assert layer.tokens[key].tolist() == [each[2] for each in best]


def test_a_fused_block_has_the_same_coefficients() -> None:
    model = tiny(block="parallel")
    batch = Batch(token_ids(2, 6), sample=torch.arange(2))
    assert model.blocks[0].fused
    fused = coefficients(model, batch, key_mixers(model))
    for block in model.blocks:
        block.fused = False
    for path, (m, _) in coefficients(model, batch, key_mixers(model)).items():
        assert_close(m, fused[path][0])


def test_models_without_keys_are_refused() -> None:
    with pytest.raises(UserError, match="no layer of this model has keys"):
        key_mixers(tiny(channel_mixer="glu"))


@pytest.mark.full
def test_the_command_on_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = engine_runs.text_run(tmp_path, "tokenizer=char", "model.depth=2")
    arguments = ["inspect", f"run={run_folder.path}", "memory", "log=false", "train_samples=20"]
    assert main([*arguments, "keys=3,0", "layers=1", "examples=4"]) == 0
    numbers = read_json(run_folder.path / "inspect" / "memory.json")
    assert [(each["path"], each["key"]) for each in numbers["shown"]] == [
        ("blocks.1.channel_mixer", key) for key in (3, 0)
    ]
    assert numbers["train_samples"] == 20
    (layer,) = numbers["layers"]
    assert len(layer["coefficients"]) == 64
    for shown in numbers["shown"]:
        for rank, example in enumerate(shown["examples"]):
            here = example["token"] - example["context_start"]
            assert len(example["context"]) == here + 1  # a decoder reads nothing behind the token
            assert example["coefficients"][here] == pytest.approx(layer["coefficients"][shown["key"]][rank], rel=1e-3)
            assert len(set(layer["samples"][shown["key"]])) == 4
    assert numbers["pictures"] == ["memory.png"]
    assert "[" in capsys.readouterr().out
    assert main([*arguments, "keys=64"]) == 2
    assert "has 64, counted from 0" in capsys.readouterr().err
    assert main([*arguments, "samples=4"]) == 2
    assert "not of memory" in capsys.readouterr().err


def test_the_command_on_images(tmp_path: Path) -> None:
    run_folder = engine_runs.run(tmp_path, "channel_mixer=memory", "model.prefix.registers=1", base=SHORTEST)
    assert main(["inspect", f"run={run_folder.path}", "memory", "log=false", "train_samples=10", "keys=1"]) == 0
    numbers = read_json(run_folder.path / "inspect" / "memory.json")
    assert numbers["pictures"] == ["memory.png"]
    assert every(0 <= each["token"] < 4 for each in numbers["shown"][0]["examples"])  # patches of 4 x 4 on 8 x 8
