"""Graph encodings and convolutions against the published formulas, written with loops over networkx."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import UNREACHABLE, Batch, Seq
from blockyard.data._graph_paths import pair_facts
from blockyard.model._positions import set_pairs
from blockyard.ops.attend import attend
from blockyard.ops.flex import flex
from blockyard.ops.mask import bias_table
from blockyard.ops.reference import chunked, eager
from blockyard.ops.visibility import FULL
from blockyard.position.graph import GraphDistance
from blockyard.position.random_walk import return_probabilities
from tests.components.properties.checks import differs
from tests.components.reference.inputs import preset, stirred
from tests.helpers import PAIRS, context, factory, stir

STEPS = len(PAIRS) - 1
SIZES = (7, 5, 1)


def graph(nodes: int, seed: int = 0) -> networkx.Graph:
    """A random graph with a node apart, several shortest paths between nodes, and edges of types 1 to 3."""
    found = networkx.gnp_random_graph(nodes, 0.5, seed=seed)
    found.remove_edges_from(list(found.edges(nodes - 1)))
    draws = np.random.default_rng(seed)
    for edge in found.edges:
        found.edges[edge]["type"] = int(draws.integers(1, 4))
    return found


def facts_of(graphs: list[networkx.Graph]) -> Tensor:
    """The padded facts of pairs (B, N, N, P), as data sets give them."""
    most = max(map(len, graphs))
    facts = torch.zeros(len(graphs), most, most, 1 + STEPS, dtype=torch.uint8)
    for number, each in enumerate(graphs):
        ends = np.array(each.edges, dtype=np.int64).reshape(-1, 2)
        types = np.array([each.edges[edge]["type"] for edge in each.edges], dtype=np.int64)
        facts[number, : len(each), : len(each)] = torch.from_numpy(pair_facts(len(each), ends, types, STEPS))
    return facts


def path_types(each: networkx.Graph, i: int, j: int) -> list[int]:
    """The types of the edges along the first of all shortest paths in dictionary order."""
    paths = networkx.all_shortest_paths(each, i, j)
    return min([each.edges[a, b]["type"] for a, b in pairwise(path)] for path in paths)


def sequence(graphs: list[networkx.Graph], position: Any = None, prefix: int = 0) -> Seq:
    """The `Seq` of graphs with `prefix` tokens in front, padded to the largest."""
    lengths = torch.tensor([len(each) for each in graphs])
    count = int(lengths.max())
    valid = torch.arange(count) < lengths[:, None]
    seq = Seq(torch.arange(count + prefix), torch.zeros(1, count + prefix, 0), valid, grid=(), position=position)
    set_pairs(seq, facts_of(graphs))
    seq.valid, seq.num_prefix = F.pad(valid, (prefix, 0), value=True), prefix
    seq.pairs = tuple(F.pad(pair, (prefix, 0, prefix, 0)) for pair in seq.pairs)
    return seq


GRAPHS = [graph(size, seed) for seed, size in enumerate(SIZES)]


@pytest.mark.parametrize("seed", range(20))
def test_facts_of_pairs(seed: int) -> None:
    each = graph(3 + seed % 7, seed)
    facts = facts_of([each])[0]
    lengths = dict(networkx.all_pairs_shortest_path_length(each))
    for i in each:
        for j in each:
            distance = lengths[i].get(j, UNREACHABLE)
            types = path_types(each, i, j)[:STEPS] if 0 < distance < UNREACHABLE else []
            assert facts[i, j].tolist() == [distance, *types, *[0] * (STEPS - len(types))]


def test_long_paths_are_cut() -> None:
    line = networkx.path_graph(300)
    networkx.set_edge_attributes(line, 2, "type")
    facts = facts_of([line])[0]
    assert facts[0, 299].tolist() == [254, 2, 2, 2, 2, 2]
    assert facts[0, 2].tolist() == [2, 2, 2, 0, 0, 0]


def randomised(position: GraphDistance) -> GraphDistance:
    """The scheme with random numbers, in float64."""
    for parameter in position.parameters():
        torch.nn.init.normal_(parameter)
    return position.double()


def looped_bias(position: GraphDistance, each: networkx.Graph, head: int) -> Tensor:
    """Graphormer, eq. 6 and 7, pair by pair: (N, N)."""
    lengths = dict(networkx.all_pairs_shortest_path_length(each))
    bias = torch.zeros(len(each), len(each), dtype=torch.float64)
    for i in each:
        for j in each:
            if j not in lengths[i]:
                bias[i, j] = position.distances[head, position.max_distance + 2]
                continue
            bias[i, j] = position.distances[head, min(lengths[i][j], position.max_distance + 1)]
            types = path_types(each, i, j)[: position.steps] if i != j else []
            weights = [position.edges[head, step, kind] for step, kind in enumerate(types)]
            bias[i, j] += sum(weights) / len(weights) if weights else 0.0
    return bias


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(("max_distance", "steps"), [(8, 5), (1, 2), (2, 1)])
def test_graph_distance_is_the_formula(max_distance: int, steps: int, prefix: int) -> None:
    with torch.no_grad():
        position = randomised(GraphDistance(context(axes=0, num_prefix=prefix), max_distance=max_distance, steps=steps))
        seq = sequence(GRAPHS, position, prefix)
        table = bias_table(seq, seq, 4)
        for number, each in enumerate(GRAPHS):
            for head in range(4):
                inside = slice(prefix, prefix + len(each))
                assert_close(table[number, head, inside, inside], looped_bias(position, each, head))
                if prefix:
                    number_of_prefix = position.prefix[head].expand(prefix, len(table[0, 0]))
                    assert_close(table[number, head, :prefix], number_of_prefix)
                    assert_close(table[number, head, :, :prefix], number_of_prefix.T)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("prefix", [0, 2])
def test_the_kernels_agree(prefix: int) -> None:
    """Dense masks, FlexAttention and both references, with the gradients of every table."""
    position = GraphDistance(context(axes=0, num_prefix=prefix), max_distance=2)
    randomised(position)
    seq = sequence(GRAPHS, position, prefix)
    q, k, v = torch.randn(3, len(GRAPHS), 4, len(seq), 8, generator=torch.Generator().manual_seed(0)).double()
    outputs, gradients = [], []
    for function in (
        lambda: eager(q, k, v, seq, seq, FULL),
        lambda: chunked(q, k, v, seq, seq, FULL),
        lambda: attend(q, k, v, seq, seq, FULL),
        lambda: flex(q, k, v, seq, seq, FULL, compiled=False),
    ):
        seq.memo.clear()
        position.zero_grad()
        out = function().masked_fill(~seq.valid[:, None, :, None], 0.0)
        out.square().sum().backward()
        outputs.append(out.detach())
        gradients.append({name: parameter.grad.clone() for name, parameter in position.named_parameters()})
    assert len(gradients[0]) == 2 + bool(prefix)
    for out, gradient in zip(outputs[1:], gradients[1:], strict=True):
        assert_close(out, outputs[0], rtol=1e-6, atol=1e-6)
        for name, value in gradient.items():
            assert_close(value, gradients[0][name], rtol=1e-5, atol=1e-6)


class Transposed(GraphDistance):
    """Planted: reads the path from the key to the query."""

    def relate(self, head: Tensor, pairs: tuple[Tensor, ...]) -> Tensor:
        return super().relate(head, tuple(pair.transpose(-1, -2) for pair in pairs))


def test_planted_direction_of_paths_is_caught() -> None:
    position = randomised(Transposed(context(axes=0)))
    seq = sequence(GRAPHS[:1], position)
    with torch.no_grad(), pytest.raises(AssertionError):
        assert_close(bias_table(seq, seq, 4)[0, 0], looped_bias(position, GRAPHS[0], 0))


def test_random_walks_are_powers_of_the_transition_matrix() -> None:
    each = GRAPHS[0]
    adjacency = networkx.to_numpy_array(each)
    degrees = adjacency.sum(1, keepdims=True)
    walk = np.divide(adjacency, degrees, out=np.zeros_like(adjacency), where=degrees > 0)
    wanted = np.stack([np.diag(np.linalg.matrix_power(walk, step)) for step in range(1, 9)], 1)
    found = return_probabilities(facts_of([each])[..., 0] == 1, 8)[0]
    assert_close(found.double(), torch.from_numpy(wanted), rtol=1e-5, atol=1e-6)


def convolved(kind: str, mixer: Any, x: Tensor, each: networkx.Graph) -> Tensor:
    """The published formula of a convolution, node by node: x (N, D) -> (N, D)."""
    rows = []
    near = {i: [*each[i], i] for i in each}
    for i in each:
        if kind == "gin":
            total = (1 + mixer.eps) * x[i] + sum((x[j] for j in each[i]), torch.zeros_like(x[i]))
            rows.append(mixer.proj_out(F.relu(mixer.hidden(total))))
        elif kind == "gcn":
            rows.append(mixer.proj_out(sum(x[j] / math.sqrt(len(near[i]) * len(near[j])) for j in near[i])))
        else:
            h = [(mixer.proj_out.weight @ x[j]).view(mixer.heads, -1) for j in each]
            parts = []
            for head in range(mixer.heads):
                scores = [mixer.receives[head] @ h[i][head] + mixer.sends[head] @ h[j][head] for j in near[i]]
                weights = F.leaky_relu(torch.stack(scores), 0.2).softmax(0)
                parts.append(sum(w * h[j][head] for w, j in zip(weights, near[i], strict=True)))
            rows.append(torch.cat(parts) + mixer.proj_out.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ["gin", "gcn", "gat"])
def test_graph_convolutions_are_the_formulas(kind: str) -> None:
    with torch.no_grad():
        mixer = stirred(factory("token_mixer", "graph_conv", {"kind": kind})(context(axes=0)))
        x = torch.randn(len(GRAPHS), max(SIZES), 16, dtype=torch.float64)
        out = mixer(x, sequence(GRAPHS))
        for number, each in enumerate(GRAPHS):
            assert_close(out[number, : len(each)], convolved(kind, mixer, x[number], each))


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
    before = model(**a_batch(GRAPHS[:1]).arguments())
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(GRAPHS[0])).tolist()
        moved = networkx.Graph()
        moved.add_nodes_from(range(len(order)))  # networkx keeps the order in which nodes were added
        for i, j, facts in GRAPHS[0].edges(data=True):
            moved.add_edge(order[i], order[j], **facts)
        assert_close(model(**a_batch([moved]).arguments()), before)
    cut = GRAPHS[0].copy()
    cut.remove_edge(*next(iter(cut.edges)))
    differs(model(**a_batch([cut]).arguments()), before)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_padded_graph_equals_the_graph_alone(name: str) -> None:
    model = whole_model(*MODELS[name])
    together = a_batch(GRAPHS)
    padded = model(**together.arguments())
    for number, each in enumerate(GRAPHS):
        assert_close(model(**a_batch([each]).arguments())[0], padded[number])
    behind = torch.arange(max(SIZES)) >= together.lengths[:, None]
    both = (behind[:, :, None] | behind[:, None])[..., None]
    other = replace(together, pairs=torch.where(both, torch.ones_like(together.pairs), together.pairs))
    assert_close(model(**other.arguments()), padded)


@torch.no_grad()
def test_without_positions_a_graph_is_a_set_of_equal_nodes() -> None:
    """No encoding, no degrees: the mean of equal tokens tells nothing, and a class token no more than how many."""
    model = whole_model("experiment=atlas", "position=none", "head=mean_pool", "model.prefix.class_token=false")
    out = model(**a_batch(GRAPHS).arguments())
    assert_close(out, out[:1].expand_as(out))
    model = whole_model("experiment=atlas", "position=none")
    graphs = [graph(6, seed) for seed in range(4)]
    out = model(**a_batch(graphs).arguments())
    assert_close(out, out[:1].expand_as(out))
    differs(whole_model("experiment=atlas")(**a_batch(graphs).arguments())[:1], out[1:2])


def test_a_model_of_graphs_refuses_to_be_called_without_pairs() -> None:
    batch = a_batch(GRAPHS)
    with pytest.raises(ValueError, match="reads facts of pairs of tokens and there are none"):
        whole_model(*MODELS["graphormer"])(batch.inputs, batch.lengths)
    with pytest.raises(ValueError, match="mixes by facts of pairs of tokens and there are none"):
        whole_model(*MODELS["gin"])(batch.inputs, batch.lengths)


@torch.no_grad()
def test_graphormer_is_the_formula_with_loops() -> None:
    """The whole preset, graph by graph and head by head, with a virtual node in front."""
    model = whole_model(*MODELS["graphormer"])
    batch = a_batch(GRAPHS)
    out = model(**batch.arguments())
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
