"""Graph encodings and convolutions against the published formulas, written with loops over networkx."""

from __future__ import annotations

import math
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import UNREACHABLE, Seq
from blockyard.model._embedding import set_pairs
from blockyard.ops.attend import attend
from blockyard.ops.mask import FULL, bias_table
from blockyard.ops.reference import chunked, eager
from blockyard.position.graph import GraphDistance
from blockyard.position.random_walk import return_probabilities
from tests.components.reference.inputs import stirred
from tests.components.reference.small_graphs import GRAPHS, SIZES, STEPS, facts_of, graph, looped_bias, path_types
from tests.support.helpers import context, factory
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64


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


@pytest.mark.parametrize("prefix", [0, 2])
def test_the_kernels_agree(prefix: int) -> None:
    """Dense masks and both references, with the gradients of every table."""
    position = GraphDistance(context(axes=0, num_prefix=prefix), max_distance=2)
    randomised(position)
    seq = sequence(GRAPHS, position, prefix)
    q, k, v = torch.randn(3, len(GRAPHS), 4, len(seq), 8, generator=torch.Generator().manual_seed(0)).double()
    outputs, gradients = [], []
    for function in (
        lambda: eager(q, k, v, seq, seq, FULL),
        lambda: chunked(q, k, v, seq, seq, FULL),
        lambda: attend(q, k, v, seq, seq, FULL),
    ):
        seq.memo.clear()
        position.zero_grad()
        out = function().masked_fill(~seq.valid[:, None, :, None], 0.0)
        out.square().sum().backward()
        outputs.append(out.detach())
        gradients.append({name: parameter.grad.clone() for name, parameter in position.named_parameters()})
    assert len(gradients[0]) == 2 + bool(prefix)
    for out, gradient in zip(outputs[1:], gradients[1:], strict=True):
        assert_close(out, outputs[0], **FLOAT64)
        for name, value in gradient.items():
            assert_close(value, gradients[0][name], **FLOAT64)


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
    with torch.autocast("cpu"):  # which would round every product to bfloat16
        actual = return_probabilities(facts_of([each])[..., 0] == 1, 8)[0]
    assert_close(actual.double(), torch.from_numpy(wanted), **FLOAT32_STEPS)


def convolved(kind: str, mixer: Any, x: Tensor, each: networkx.Graph) -> Tensor:
    """The published formula of a convolution, node by node: x (N, D) -> (N, D)."""
    vectors = []
    near = {i: [*each[i], i] for i in each}
    for i in each:
        if kind == "gin":
            total = (1 + mixer.eps) * x[i] + sum((x[j] for j in each[i]), torch.zeros_like(x[i]))
            vectors.append(mixer.proj_out(F.relu(mixer.hidden(total))))
        elif kind == "gcn":
            vectors.append(mixer.proj_out(sum(x[j] / math.sqrt(len(near[i]) * len(near[j])) for j in near[i])))
        else:
            h = [(mixer.proj_out.weight @ x[j]).view(mixer.heads, -1) for j in each]
            parts = []
            for head in range(mixer.heads):
                scores = [mixer.receives[head] @ h[i][head] + mixer.sends[head] @ h[j][head] for j in near[i]]
                weights = F.leaky_relu(torch.stack(scores), 0.2).softmax(0)
                parts.append(sum(w * h[j][head] for w, j in zip(weights, near[i], strict=True)))
            vectors.append(torch.cat(parts) + mixer.proj_out.bias)
    return torch.stack(vectors)


@pytest.mark.parametrize("kind", ["gin", "gcn", "gat"])
def test_graph_convolutions_are_the_formulas(kind: str) -> None:
    with torch.no_grad():
        mixer = stirred(factory("token_mixer", "graph_conv", {"kind": kind})(context(axes=0)))
        x = torch.randn(len(GRAPHS), max(SIZES), 16, dtype=torch.float64)
        out = mixer(x, sequence(GRAPHS))
        for number, each in enumerate(GRAPHS):
            assert_close(out[number, : len(each)], convolved(kind, mixer, x[number], each))
