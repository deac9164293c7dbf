"""Types of options with a range. `check` reads them from a constructor's signature.

Every whole number has an upper bound. Bounds of resources are far beyond any model, data set or machine, so that a
typing error is refused before anything is allocated or started. `Because` gives the reason for a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AllowInfNan, StringConstraints

LARGEST_COUNT = 10**9
LARGEST_FLOAT = 3.4e38  # of float32
LARGEST_SEED = 2**63 - 1
WIDEST = 65_536
DEEPEST = 1_024
LARGEST_EXPANSION = 65_536


@dataclass(frozen=True)
class Because:
    """The reason for an upper bound, told to whoever exceeds it."""

    reason: str


@dataclass(frozen=True)
class PerCore:
    """An upper bound for each CPU core of the machine that the run is on."""

    count: int


# The options with which a choice would be built, by name: its declarations may depend on them. `check` has compared
# them with the signature of the class.
ChoiceOptions = Mapping[str, Any]

_COUNTED = Because("a billion steps of a millisecond take twelve days")
_FINITE = Because("larger numbers are infinite in float32")

Count = Annotated[int, Ge(1), Le(LARGEST_COUNT), _COUNTED]
CountOrZero = Annotated[int, Ge(0), Le(LARGEST_COUNT), _COUNTED]
Positive = Annotated[float, Gt(0), Le(LARGEST_FLOAT), AllowInfNan(False), _FINITE]
NonNegative = Annotated[float, Ge(0), Le(LARGEST_FLOAT), AllowInfNan(False), _FINITE]
Rate = Annotated[float, Ge(0), Lt(1)]  # of dropout
LayerDecay = Annotated[float, Gt(0), Le(1)]
RateFactors = dict[str, Positive]  # by the name of a part of a model
DecayFactors = dict[str, NonNegative]
Seed = Annotated[int, Ge(0), Le(LARGEST_SEED), Because("a seed has 64 bits")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000, pattern=r"^[^\x00-\x1f\x7f]+$")]
# A folder's name may hold any character but one.
FolderPath = Annotated[str, StringConstraints(min_length=1, max_length=4_096, pattern=r"^[^\x00]+$")]

Width = Annotated[
    int, Ge(1), Le(WIDEST), Because("one square map of 65,536 channels has 16 GiB of weights, and 64 GiB in training")
]
Heads = Annotated[int, Ge(1), Le(4_096), Because("each head has channels of its own")]
Depth = Annotated[int, Ge(1), Le(DEEPEST), Because("every block is built of modules of its own, one after the other")]
DepthOrZero = Annotated[int, Ge(0), Le(DEEPEST), Because("no model has more blocks")]
# The indices of blocks in the order in which they run.
BlockOrder = Annotated[tuple[Annotated[int, Ge(0), Lt(DEEPEST)], ...], MinLen(1), MaxLen(DEEPEST)]
Expansion = Annotated[
    float, Gt(0), Le(LARGEST_EXPANSION), AllowInfNan(False), Because("hidden channels are that many times the width")
]
Length = Annotated[
    int, Ge(1), Le(1_048_576), Because("attention over a million tokens compares a trillion pairs of them")
]
Side = Annotated[int, Ge(1), Le(4_096), Because("an image of 4,096 x 4,096 pixels takes 192 MiB, in a batch of one")]
Vocabulary = Annotated[int, Ge(1), Le(1_114_112), Because("Unicode has no more characters, and no text more words")]
BatchSize = Annotated[int, Ge(1), Le(1_048_576), Because("a batch is kept in memory as a whole")]
Samples = Annotated[int, Ge(1), Le(100_000_000), Because("samples are numbered and drawn in memory")]
Processes = Annotated[int, Ge(1), Le(1_024), PerCore(4), Because("each is a process that imports torch")]
Workers = Annotated[int, Ge(0), Le(1_024), PerCore(4), Because("each is a process that imports torch")]
Threads = Annotated[int, Ge(1), Le(1_024), PerCore(4), Because("more threads than cores wait for each other")]
