"""ListOps: the value of nested lists such as [MAX 4 3 [MIN 2 3] 1 0], one of ten digits.

Source: Nangia and Bowman 2018, ListOps: A Diagnostic Dataset for Latent Tree Learning (arXiv 1804.06028), section 3;
    as a test of long sequences Tay et al. 2021, Long Range Arena (arXiv 2011.04006)
Reference: nyu-mll/spinn python/spinn/data/listops/make_data.py

The operators are MAX, MIN, MED (the median, rounded down between two) and SM (the sum modulo ten). Each has
2 to `max_args` arguments: digits or, less often, lists. Sequences of one digit are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from blockyard.contracts import DataSpec, Length
from blockyard.data.splits.split import Fraction
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch

DIGITS = 10
OPERATORS = ("MAX", "MIN", "MED", "SM")
CLOSE = DIGITS + len(OPERATORS)
PAD = CLOSE + 1


@dataclass(kw_only=True, eq=False)
class ListOps(SyntheticTask):
    """All sequences are generated in parallel, token by token, each with a stack of its open lists.

    Options:
        length: maximum tokens of a sequence
        least: minimum tokens of a sequence
        max_depth: maximum nesting depth of lists
        max_args: maximum arguments of a list
        nested: share of the arguments that are lists, where the depth allows it
    """

    least: Length = 8
    max_depth: Length = 5
    max_args: Length = 5
    nested: Fraction = 0.3

    def __post_init__(self) -> None:
        if self.max_args < 2:
            raise ValueError(f"data.max_args={self.max_args}: lists have two arguments or more")
        if self.least > self.length:
            raise ValueError(f"data.least={self.least} is more than data.length={self.length}")

    @property
    def vocabulary(self) -> int:
        """Ten digits, four operators with their opening bracket, the closing bracket, and padding."""
        return PAD + 1

    def token_name(self, token_id: int) -> str:
        """Return a digit, [MAX and the like, ] or pad."""
        return [*map(str, range(DIGITS)), *(f"[{name}" for name in OPERATORS), "]", "pad"][token_id]

    @property
    def spec(self) -> DataSpec:
        """Sequences of different lengths with one of ten classes."""
        return DataSpec(
            "symbols",
            (self.length,),
            variable=True,
            target="class",
            classes=DIGITS,
            vocabulary=self.vocabulary,
            resizable=True,
        )

    def lengthened(self, factor: int) -> Self:
        """Return the task with longer expressions: the minimum length grows too."""
        task = super().lengthened(factor)
        task.least = self.least * factor
        return task

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate sequences with an outermost list of `least` to `length` tokens."""
        samples = torch.arange(len(random.order))
        operator = random.integers("operators", self.length, len(OPERATORS))  # (n, N), read where a list opens
        num_args = 2 + random.integers("arguments", self.length, self.max_args - 1)
        digit = random.integers("digits", self.length, DIGITS)
        opens = random.uniform("nested", self.length) < self.nested
        inputs = torch.full_like(digit, PAD)
        level = torch.zeros_like(samples)  # (n,) open lists
        # One level more than may be open: the value of the outermost list is stored as an argument of level 0.
        stack = torch.zeros(len(samples), self.max_depth + 1, dtype=torch.int64)  # operator of each open list
        missing = torch.zeros_like(stack)  # arguments that each open list still needs
        counts = torch.zeros(len(samples), self.max_depth + 1, DIGITS, dtype=torch.int64)  # arguments by value
        lengths = torch.zeros_like(samples)
        for position in range(self.length):
            active = lengths == 0
            closing = active & (level > 0) & (missing[samples, level] == 0)
            opening = active & ~closing & ((level == 0) | (opens[:, position] & (level < self.max_depth)))
            plain = active & ~closing & ~opening
            value = digit[:, position].clone()
            closed = samples[closing]
            value[closed] = evaluate(stack[closed, level[closed]], counts[closed, level[closed]])
            token = torch.where(plain, value, PAD)
            token = torch.where(opening, DIGITS + operator[:, position], token)
            inputs[:, position] = torch.where(closing, CLOSE, token)
            # From here on, a value belongs to list `level`: the value of a closed list to the list around it.
            level = level + opening.long() - closing.long()
            opened = samples[opening]
            valued = samples[closing | plain]
            stack[opened, level[opened]] = operator[opened, position]
            missing[opened, level[opened]] = num_args[opened, position]
            counts[opened, level[opened]] = 0
            missing[valued, level[valued]] -= 1
            counts[valued, level[valued], value[valued]] += 1
            lengths[closing & (level == 0)] = position + 1
        # Sequences that have not closed yet have length 0, and are left out with the short ones.
        return TaskBatch(inputs, counts[:, 0].argmax(1), lengths).select(lengths >= self.least)


def evaluate(operator: Tensor, counts: Tensor) -> Tensor:
    """Return the values (n,) of lists from their operators (n,) and their arguments, counted by digit (n, 10)."""
    digits = torch.arange(DIGITS)
    present = counts > 0
    high = (present * digits).amax(1)
    low = torch.where(present, digits, DIGITS).amin(1)
    # Doubled, the median is the sum of the two middle arguments, which may be the same one.
    number = counts.sum(1, keepdim=True)
    up_to = counts.cumsum(1)  # (n, 10), arguments of at most each digit
    lower = (up_to <= (number - 1) // 2).sum(1)
    upper = (up_to <= number // 2).sum(1)
    median = (lower + upper) // 2
    total = (counts * digits).sum(1) % DIGITS
    return torch.stack([high, low, median, total], 1).gather(1, operator[:, None])[:, 0]
