"""State tracking: the product of the elements of a group so far, which one layer of fixed parallel depth cannot keep.

Source: Merrill, Petty and Sabharwal 2024, The Illusion of State in State-Space Models (arXiv 2404.08819), section 5.1,
    word problems of groups; Grazzi et al. 2025, Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues
    (arXiv 2411.12537), section 5; of modular sums Deletang et al. 2023, Neural Networks and the Chomsky Hierarchy
    (arXiv 2207.02098)
Reference: jopetty/word-problem; deepmind/neural_networks_chomsky_hierarchy, tasks/regular

    group=s3, three places with a, b, c              group=cyclic modulus=5
    inputs          102  021  120                    inputs          3  4  1
    state           bac  bca  cab                    target (each)   3  2  3
    target (each)   102  120  201

A token is an element of the group; those of the symmetric group of n places are its permutations in order of the
dictionary. The target is g_t o ... o g_1: g_1 acts first, and (g o h)(i) = g(h(i)).

Z_n (cyclic) is commutative: sums, for which a diagonal recurrence with complex or negative values suffices. S3 is
solvable; A5 and S5 are not, so that by Barrington's theorem their word problem is complete for NC1, and a transformer
or a diagonal state-space model of fixed depth cannot solve it at every length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, permutations
from typing import Annotated, Literal, get_args

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Because, DataSpec, Length
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch

Group = Literal["s3", "a4", "s4", "a5", "s5", "cyclic"]
Modulus = Annotated[int, Ge(2), Le(4_096), Because("each number is a token, and the table of sums is its square")]


@dataclass(kw_only=True, eq=False)
class StateTracking(SyntheticTask):
    """Elements of a group, drawn independently with equal probability.

    Options:
        group: s3, s4, s5 are all permutations of as many places; a4, a5 the even ones; cyclic the sums modulo `modulus`
        modulus: of the sums of group=cyclic; others leave it alone
        draw: all gives every element as an input; generators gives two of them alone, from which all others follow: a
            swap and a cycle of all places; of a4 two cycles of three places, of a5 one of three and one of five; 0 and
            1 of the sums. swaps gives the permutations that exchange two places, and the one that moves none, of s3,
            s4 and s5: each is a reflection, of which a delta rule with negative eigenvalues makes one a token
        ask: row gives the product of the whole sequence as a class; each gives that of the elements so far everywhere
    """

    length: Length = 32
    group: Group = "s3"
    modulus: Modulus = 5
    draw: Literal["all", "generators", "swaps"] = "all"
    ask: Literal["row", "each"] = "each"

    def __post_init__(self) -> None:
        if self.draw == "swaps" and not self.group.startswith("s"):
            raise ValueError(f"data.draw=swaps is for data.group=s3, s4 or s5; group={self.group} holds no swap")

    @property
    def elements(self) -> int:
        """The number of elements of the group."""
        if self.group == "cyclic":
            return self.modulus
        return len(permutations_of(self.group))

    @property
    def vocabulary(self) -> int:
        """The elements."""
        return self.elements

    def token_name(self, token_id: int) -> str:
        """Return a number, or a permutation as the places that 0, 1, ... go to."""
        if self.group == "cyclic":
            return str(token_id)
        return "".join(map(str, permutations_of(self.group)[token_id]))

    @property
    def spec(self) -> DataSpec:
        """A class for each sequence, or a token id at each position."""
        spec = DataSpec("symbols", (self.length,), target="symbols", vocabulary=self.vocabulary, resizable=True)
        if self.ask == "row":
            return replace(spec, target="class", classes=self.elements)
        return spec

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate the elements, and their products from the left."""
        if self.draw == "all":
            inputs = random.integers("elements", self.length, self.elements)  # (n, N)
        else:
            drawn = self._generators() if self.draw == "generators" else self._swaps()
            inputs = drawn[random.integers(self.draw, self.length, len(drawn))]
        if self.group == "cyclic":
            products = inputs.cumsum(1) % self.modulus
        else:
            product = products_of(self.group)
            state = inputs[:, 0]  # (n,)
            states = [state]
            for step in range(1, self.length):
                state = product[inputs[:, step], state]  # the new element acts last
                states.append(state)
            products = torch.stack(states, 1)  # (n, N)
        if self.ask == "row":
            return TaskBatch(inputs, products[:, -1])
        return TaskBatch(inputs, products)

    def _swaps(self) -> Tensor:
        """Return the token ids of the permutations that move two places or none."""
        token_ids = []
        for token_id, permutation in enumerate(permutations_of(self.group)):
            moved = sum(place != image for place, image in enumerate(permutation))
            if moved <= 2:
                token_ids.append(token_id)
        return torch.tensor(token_ids)

    def _generators(self) -> Tensor:
        """Return two token ids (2,) that generate the group."""
        if self.group == "cyclic":
            return torch.tensor([0, 1])
        degree = int(self.group[1])
        cycle = [(place + 1) % degree for place in range(degree)]
        if self.group.startswith("s"):
            first = [1, 0, *range(2, degree)]
        else:
            first = [1, 2, 0, *range(3, degree)]
            if degree % 2 == 0:  # a cycle of an even number of places is odd
                cycle = [0, *(1 + (place + 1) % (degree - 1) for place in range(degree - 1))]
        elements = permutations_of(self.group)
        return torch.tensor([elements.index(tuple(first)), elements.index(tuple(cycle))])


@cache
def permutations_of(group: str) -> list[tuple[int, ...]]:
    """Return the permutations of a group by its name, in order of the dictionary."""
    assert group in get_args(Group)
    symmetric = list(permutations(range(int(group[1]))))
    if group.startswith("s"):
        return symmetric
    even = []
    for permutation in symmetric:
        inversions = sum(before > after for before, after in combinations(permutation, 2))
        if inversions % 2 == 0:
            even.append(permutation)
    return even


@cache
def products_of(group: str) -> Tensor:
    """Return the token id of g o h for the token ids g and h: (G, G) int64."""
    elements = torch.tensor(permutations_of(group))  # (G, places)
    composed = elements[:, elements]  # (G, G, places): (g o h)(i) = g(h(i))
    token_ids = {permutation: token_id for token_id, permutation in enumerate(permutations_of(group))}
    table = [[token_ids[tuple(composition)] for composition in row] for row in composed.tolist()]
    return torch.tensor(table)
