"""Models of graphs: the order of nodes and padding change nothing; Graphormer is its formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.contracts import Batch, Inputs
from tests.components.properties.checks import differs
from tests.components.reference.inputs import preset
from tests.components.reference.small_graphs import GRAPHS, SIZES, STEPS, facts_of, graph, looped_bias
from tests.support.helpers import stir


def whole_model(*overrides: str) -> torch.nn.Module:
    """A model of the atlas with large weights."""
    return stir(preset(*overrides, f"data.path_steps={STEPS}")).double().eval()


def a_batch(graphs: list[networkx.Graph]) -> Batch:
    """Graphs without columns, as `data=atlas` gives them; every edge is of one kind."""
    lengths = torch.tensor([len(each) for each in graphs])
    inputs = torch.zeros(len(graphs), int(lengths.max()), 1, dtype=torch.long)
    for number, each in enumerate(graphs):
        inputs[number, : len(each), 0] = torch.tensor([degree for _, degree in each.degree])
    return Batch(inputs, lengths=lengths, pairs=facts_of(graphs))


MODELS = {
    "graphormer": ["preset=graphormer", "data=atlas"],
    "random_walk": ["experiment=atlas", "position=random_walk"],
    "gin": ["experiment=atlas", "position=none", "token_mixer=graph_conv"],
    "gat": ["experiment=atlas", "position=random_walk", "token_mixer=graph_conv", "token_mixer.kind=gat"],
}


for name in ("gin", "gat"):
    MODELS[name] = [*MODELS[name], "head=mean_pool", "model.prefix.class_token=false"]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_renumbering_nodes_changes_nothing(name: str) -> None:
    model = whole_model(*MODELS[name])
    before = model(a_batch(GRAPHS[:1]))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(GRAPHS[0])).tolist()
        moved = networkx.Graph()
        moved.add_nodes_from(range(len(order)))  # networkx keeps the order in which nodes were added
        for i, j, facts in GRAPHS[0].edges(data=True):
            moved.add_edge(order[i], order[j], **facts)
        assert_close(model(a_batch([moved])), before)
    cut = GRAPHS[0].copy()
    cut.remove_edge(*next(iter(cut.edges)))
    differs(model(a_batch([cut])), before)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_padded_graph_equals_the_graph_alone(name: str) -> None:
    model = whole_model(*MODELS[name])
    together = a_batch(GRAPHS)
    padded = model(together)
    for number, each in enumerate(GRAPHS):
        assert_close(model(a_batch([each]))[0], padded[number])
    behind = torch.arange(max(SIZES)) >= together.lengths[:, None]
    both = (behind[:, :, None] | behind[:, None])[..., None]
    other = replace(together, pairs=torch.where(both, torch.ones_like(together.pairs), together.pairs))
    assert_close(model(other), padded)


@torch.no_grad()
def test_without_positions_a_graph_is_a_set_of_equal_nodes() -> None:
    """No encoding, no degrees: the mean of equal tokens tells nothing, and a class token no more than how many."""
    model = whole_model("experiment=atlas", "position=none", "head=mean_pool", "model.prefix.class_token=false")
    out = model(a_batch(GRAPHS))
    assert_close(out, out[:1].expand_as(out))
    model = whole_model("experiment=atlas", "position=none")
    graphs = [graph(6, seed) for seed in range(4)]
    out = model(a_batch(graphs))
    assert_close(out, out[:1].expand_as(out))
    differs(whole_model("experiment=atlas")(a_batch(graphs))[:1], out[1:2])


def test_a_model_of_graphs_refuses_to_be_called_without_pairs() -> None:
    batch = a_batch(GRAPHS)
    with pytest.raises(ValueError, match="reads facts of pairs of tokens and there are none"):
        whole_model(*MODELS["graphormer"])(Inputs(batch.inputs, lengths=batch.lengths))
    with pytest.raises(ValueError, match="mixes by facts of pairs of tokens and there are none"):
        whole_model(*MODELS["gin"])(Inputs(batch.inputs, lengths=batch.lengths))


@torch.no_grad()
def test_graphormer_is_the_formula_with_loops() -> None:
    """The whole preset, graph by graph and head by head, with a virtual node in front."""
    model = whole_model(*MODELS["graphormer"])
    batch = a_batch(GRAPHS)
    out = model(batch)
    for number, each in enumerate(GRAPHS):
        assert_close(looped_model(model, each), out[number])


def looped_model(model: Any, each: networkx.Graph) -> Tensor:
    """The prediction (V,) of a Graphormer for one graph, without masks and padding."""
    edged = each.copy()
    count, position = len(each), model.position
    x = [model.prefix.class_token[0]]
    for node in edged:
        x.append(model.embedder.codes[0] + model.embedder.degrees[edged.degree[node]])
    x = torch.stack(x)
    for block in model.blocks:
        mixer = block.token_mixer
        normed = block.token_norm(x)
        q, k, v = (part.unflatten(1, (4, 4)) for part in mixer.proj_in(normed).split(16, dim=1))
        heads = []
        for head in range(4):
            bias = position.prefix[head].repeat(count + 1, count + 1)
            bias[1:, 1:] = looped_bias(position, edged, head)
            scores = q[:, head] @ k[:, head].T / 2 + bias
            heads.append(scores.softmax(-1) @ v[:, head])
        x = x + mixer.proj_out(torch.cat(heads, 1))
        x = x + block.channel_mixer(block.channel_norm(x))
    return model.head.proj(model.final_norm(x)[0])
