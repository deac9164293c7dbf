"""Graphs: the atlas against networkx, batches, classes, and what is refused."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.data.atlas import Atlas
from blockyard.tokenizer.nodes import Nodes
from tests.support.tolerances import FLOAT32_STEPS

PROPERTIES = {
    "connectivity": networkx.algebraic_connectivity,
    "triangles": lambda graph: sum(networkx.triangles(graph).values()) / 3,
    "spanning_trees": lambda graph: np.log1p(
        round(networkx.number_of_spanning_trees(graph)) if networkx.is_connected(graph) else 0
    ),
    "planar": lambda graph: int(networkx.check_planarity(graph)[0]),
}


@pytest.mark.sampled(100)
@pytest.mark.parametrize("name", PROPERTIES)
def test_the_atlas_is_that_of_networkx(name: str) -> None:
    splits = Atlas(property=name).load(Nodes())  # type: ignore[arg-type]
    expected = {}
    for graph in networkx.graph_atlas_g()[8:]:  # the first eight have fewer than four nodes
        if name == "connectivity":
            value = float(np.linalg.eigvalsh(networkx.laplacian_matrix(graph).toarray())[1])
        else:
            value = float(PROPERTIES[name](graph))
        expected[tuple(sorted(graph.edges)), len(graph)] = value
    seen = 0
    for split in splits:
        batch = split.batch(torch.arange(len(split)), None)
        for number, count in enumerate(batch.lengths.tolist()):
            joined = (batch.pairs[number, :count, :count, 0] == 1).nonzero().tolist()
            value = batch.target[number].double()
            if name != "planar":
                value = value * split.std + split.mean
            edges = tuple(sorted((i, j) for i, j in joined if i < j))
            assert float(value) == pytest.approx(
                expected.pop((edges, count)), rel=FLOAT32_STEPS["rtol"], abs=FLOAT32_STEPS["atol"]
            )
            degrees = batch.inputs[number, :count, -1]
            assert degrees.tolist() == (batch.pairs[number, :count, :count, 0] == 1).sum(1).tolist()
            seen += 1
    assert seen == 1245
    assert expected == {}


def test_the_training_split_sets_the_scale() -> None:
    train, validation, test = Atlas().load(Nodes())
    assert [len(train), len(validation), len(test)] == [872, 124, 249]
    assert_close(train.target.double().mean(), torch.tensor(0.0).double(), **FLOAT32_STEPS)
    assert_close(train.target.double().std(correction=0), torch.tensor(1.0).double(), **FLOAT32_STEPS)
    assert validation.std is test.std is train.std


def test_batches_are_cut_to_their_largest_graph() -> None:
    train = Atlas().load(Nodes()).train
    small = (train.lengths < 7).nonzero()[:3, 0]
    batch = train.batch(small, None)
    longest = int(batch.lengths.max())
    assert longest < 7
    assert batch.inputs.shape == (3, longest, 1)
    assert batch.pairs.shape == (3, longest, longest, 1)
    assert list(batch.facts()) == ["inputs", "lengths", "pairs"]


def test_too_many_values_for_a_column() -> None:
    with pytest.raises(ValueError, match="column 0 of nodes: 300 distinct values, more than 254"):
        Nodes().fit(torch.arange(300)[:, None], torch.zeros(0, 1, dtype=torch.long))


def test_classify_on_values_names_regress(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "experiment=atlas", "objective=classify", "logger=none"]) == 2
    assert "objective=regress" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=decoder", "head=last"], "position=graph reads facts that depend on all tokens"),
        (["data=digits", "tokenizer=patch", "objective=classify"], "tokenizer=patch gives none"),
        (
            ["position=random_walk", "token_mixer=linear_attention", "objective=forecast"],
            "objective=forecast is for series",
        ),
        (["position=none", "token_mixer=graph_conv"], "does not support class and register tokens"),
        (["position.steps=3"], "position.steps=3: the data keeps 0 edges of each path; use data.path_steps=3"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "experiment=atlas", "logger=none", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.full
def test_planarity_is_a_class() -> None:
    assert main(["check", "experiment=atlas", "data.property=planar", "objective=classify", "logger=none"]) == 0
