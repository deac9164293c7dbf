"""Exported graphs: torch's and ONNX's programs predict what the model predicts, for batches of any size."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from blockyard.contracts import Inputs
from blockyard.errors import UserError
from blockyard.runs.load import Loaded, load
from blockyard.weights.convert.exporting import export_weights, graph_inputs
from tests.support.helpers import stir
from tests.support.tolerances import float32
from tests.support.untrained import untrained

RUNS = {
    "vit": ("preset=vit", "data=digits", "model.dim=16", "model.depth=2", "model.heads=4"),
    "gpt2": ("preset=gpt2", "data=code", "tokenizer=byte", "data.context=6", "model.dim=16", "model.depth=2"),
    "t5": (
        *("preset=t5", "data=translation", "tokenizer=byte", "data.context=6", "data.source_context=7"),
        *("model.dim=16", "model.depth=1"),
    ),
    "graphs": ("experiment=atlas", "model.dim=16", "model.depth=1"),  # nodes without columns: an empty constant
}


@pytest.fixture(params=["vit", "gpt2", "graphs", pytest.param("t5", marks=pytest.mark.full)])
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Loaded:
    """A run that was never trained, with large weights."""
    run = load(untrained(tmp_path / "run", *RUNS[request.param]))
    stir(run.model)
    return run


@pytest.mark.sampled(100)
@torch.no_grad()
def test_torch_reads_a_graph_without_pickles(loaded: Loaded, tmp_path: Path) -> None:
    export_weights(loaded, tmp_path / "out", kind="pt2")
    path = tmp_path / "out" / "model.pt2"
    with zipfile.ZipFile(path) as archive:
        assert not any(b"PK\x03\x04" in archive.read(name)[:4] or name.endswith(".pkl") for name in archive.namelist())
    program = torch.export.load(path).module()
    for batch in (1, 3):
        inputs = graph_inputs(loaded, batch)
        expected = loaded.model(Inputs(**inputs))
        # A program is compiled for float32 and may fuse operations: sums of 64 hidden channels, two blocks of four.
        assert_close(program(**inputs), expected, **float32(terms=64, layers=8, size=expected.abs().max().item()))


@pytest.mark.full
@torch.no_grad()
def test_onnx_runs_a_graph(loaded: Loaded, tmp_path: Path) -> None:
    reference = pytest.importorskip("onnx.reference")
    export_weights(loaded, tmp_path / "out", kind="onnx")
    program = reference.ReferenceEvaluator(str(tmp_path / "out" / "model.onnx"))
    inputs = graph_inputs(loaded, 3)
    (answer,) = program.run(None, {name: value.numpy() for name, value in inputs.items()})
    expected = loaded.model(Inputs(**inputs))
    close = float32(terms=64, layers=8, size=expected.abs().max().item())
    assert_close(torch.from_numpy(answer), expected, **close)


@pytest.mark.full
def test_the_one_that_is_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx.reference")
    run = load(untrained(tmp_path / "run", *RUNS["vit"]))

    class Wrong(onnx.ReferenceEvaluator):
        """Adds one to every prediction; it also runs the functions of a program."""

        def run(self, names: Any, feeds: dict[str, Any], *rest: Any, **options: Any) -> Any:
            return [each + ("inputs" in feeds) for each in super().run(names, feeds, *rest, **options)]

    monkeypatch.setattr(onnx, "ReferenceEvaluator", Wrong)
    with pytest.raises(UserError, match="differs from the model"):
        export_weights(run, tmp_path / "out", kind="onnx")
    assert not (tmp_path / "out").exists()
