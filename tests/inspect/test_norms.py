"""`blockyard inspect norms`: norms by definition, outliers that are planted, registers apart, padding left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.contracts import Batch, Inputs
from blockyard.errors import UserError
from blockyard.inspect.kinds.norms import layer_norms
from blockyard.inspect.samples import Sample
from blockyard.model._prefix import Prefix
from tests.components.model.tiny_models import build_tiny
from tests.support import engine_runs
from tests.support.helpers import tiny, token_ids
from tests.support.tiny import SHORTEST


def test_norms_are_those_of_the_stream_without_padding() -> None:
    model = tiny(prefix=Prefix(registers=2), position="learned", sizes={"variable": True})
    inputs, lengths = token_ids(1, 6), torch.tensor([4])
    layers = layer_norms(model, [Sample(Batch(inputs, lengths=lengths), 0)])
    assert [layer.name for layer in layers] == ["stream", "block.0", "block.1"]
    with torch.no_grad():
        record = model.steps(Inputs(inputs, lengths=lengths))
    for layer in layers:
        norms = record[layer.name][0].square().sum(-1).sqrt()
        assert_close(layer.prefix, norms[:2])
        assert_close(layer.tokens, norms[2:6])


def test_tokens_that_stand_out_are_counted() -> None:
    model = tiny(position="none")
    with torch.no_grad():
        model.embedder.table.copy_(torch.ones_like(model.embedder.table))
        model.embedder.table[3] = 10.0
    inputs = torch.tensor([[1, 2, 3, 4, 5, 1]])
    stream = layer_norms(model, [Sample(Batch(inputs), 0), Sample(Batch(inputs), 1)])[0]
    assert len(stream.tokens) == 12
    assert stream.outliers == pytest.approx(2 / 12)
    assert stream.median == pytest.approx(4.0)  # of 16 ones


def test_models_whose_blocks_run_over_something_else_are_refused() -> None:
    model = build_tiny("perceiver").eval()
    with pytest.raises(UserError, match="do not run over its tokens"):
        layer_norms(model, [Sample(Batch(token_ids(1, 6)), 0)])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = engine_runs.run(tmp_path, "model.prefix.registers=2", base=SHORTEST)
    assert main(["inspect", f"run={run_folder.path}", "norms", "samples=3", "log=false"]) == 0
    numbers = read_json(run_folder.path / "inspect" / "norms.json")
    assert [layer["name"] for layer in numbers["layers"]] == ["stream", "block.0"]
    assert len(numbers["layers"][0]["prefix"]) == 6
    assert numbers["pictures"] == ["norms.png"]
    assert "stand out" in capsys.readouterr().out
