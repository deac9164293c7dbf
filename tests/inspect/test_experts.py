"""`blockyard inspect experts`: loads by definition, without padding, and the command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.contracts import Batch, Inputs
from blockyard.errors import UserError
from blockyard.inspect.kinds.experts import expert_loads
from blockyard.inspect.samples import Sample
from tests.support import engine_runs
from tests.support.helpers import tiny, token_ids
from tests.support.tiny import SHORTEST


def test_loads_are_those_of_a_forward_pass_without_padding() -> None:
    model = tiny(channel_mixer="experts", sizes={"variable": True})
    batch = Batch(token_ids(1, 6), lengths=torch.tensor([4]))
    layers = expert_loads(model, [Sample(batch, 0), Sample(batch, 1)])
    assert [layer.path for layer in layers] == ["blocks.0.channel_mixer", "blocks.1.channel_mixer"]
    model.train()(Inputs(batch.inputs, lengths=batch.lengths))
    for layer, block in zip(layers, model.blocks, strict=True):
        assert layer.loads.tolist() == (2 * block.channel_mixer.loads).tolist()
        assert layer.tokens == 8
        assert_close(layer.scores.sum(), torch.ones((), dtype=torch.float64))


def test_a_model_without_experts_and_a_layer_that_is_not_there_are_refused() -> None:
    sample = Sample(Batch(token_ids(1, 6)), 0)
    with pytest.raises(UserError, match="no layer of this model has experts"):
        expert_loads(tiny(), [sample])
    with pytest.raises(UserError, match="no such layer"):
        expert_loads(tiny(channel_mixer="experts"), [sample], (7,))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = engine_runs.run(tmp_path, "channel_mixer=experts", base=SHORTEST)
    assert main(["inspect", f"run={trained.path}", "experts", "samples=3", "log=false"]) == 0
    numbers = read_json(trained.path / "inspect" / "experts.json")
    (layer,) = numbers["layers"]
    assert sum(layer["loads"]) == 2 * layer["tokens"]
    assert numbers["pictures"] == ["experts.png"]
    assert "without tokens" in capsys.readouterr().out
