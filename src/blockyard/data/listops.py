"""ListOps: the value of nested lists such as [MAX 4 3 [MIN 2 3] 1 0], one of ten digits.

Source: Nangia and Bowman 2018, ListOps: A Diagnostic Dataset for Latent Tree Learning (arXiv 1804.06028), section 3;
    as a test of long rows Tay et al. 2021, Long Range Arena (arXiv 2011.04006)
Reference: nyu-mll/spinn python/spinn/data/listops/make_data.py

Operators are MAX, MIN, MED (the median, rounded down between two) and SM (the sum modulo ten), with 2 to
`max_args` arguments, each a digit or, less often, a list. Rows of one digit are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Count, CountOrZero, DataSpec
from blockyard.data._split import Fraction
from blockyard.data._synthetic import Draw, Made, Probe

DIGITS, OPERATORS = 10, ("MAX", "MIN", "MED", "SM")
CLOSE = DIGITS + len(OPERATORS)
PAD = CLOSE + 1


class ListOps(Probe):
    """All rows are grown side by side, symbol by symbol, each with a stack of its open lists.

    Options:
        length: symbols of a row, at most
        least: symbols of a row, at least
        max_depth: lists in each other, at most
        max_args: arguments of a list, at most
        nested: share of the arguments that are lists, where depth allows
    """

    def __init__(
        self,
        *,
        length: Count = 64,
        least: Count = 8,
        max_depth: Count = 5,
        max_args: Count = 5,
        nested: Fraction = 0.3,
        samples: Count = 20_000,
        eval_samples: Count = 1_000,
        data_seed: CountOrZero = 0,
        batch_size: Count = 64,
        eval_batch_size: Count = 256,
    ) -> None:
        super().__init__(
            length=length,
            samples=samples,
            eval_samples=eval_samples,
            data_seed=data_seed,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
        )
        if max_args < 2:
            raise ValueError(f"data.max_args={max_args}: lists have two arguments or more")
        if least > length:
            raise ValueError(f"data.least={least} is more than data.length={length}")
        self.least, self.max_depth, self.max_args, self.nested = least, max_depth, max_args, nested

    @property
    def vocabulary(self) -> int:
        """Ten digits, four operators with their bracket, the closing one, and padding."""
        return PAD + 1

    def token_name(self, symbol: int) -> str:
        """Digits, [MAX and its like, ] and pad."""
        return [*map(str, range(DIGITS)), *(f"[{name}" for name in OPERATORS), "]", "pad"][symbol]

    @property
    def spec(self) -> DataSpec:
        """Rows of different lengths, of ten classes."""
        return DataSpec(
            "symbols",
            (self.length,),
            variable=True,
            target="class",
            classes=DIGITS,
            vocabulary=self.vocabulary,
            resizable=True,
        )

    def lengthened(self, factor: int) -> ListOps:
        """Longer expressions, not only room for them."""
        task = super().lengthened(factor)
        task.least = self.least * factor
        return task

    def make(self, draw: Draw) -> Made:
        """Rows whose outermost list closes between `least` and `length` symbols."""
        rows = torch.arange(len(draw.order))
        operator = draw.whole("operators", self.length, len(OPERATORS))  # (n, N), read where a list opens
        wanted = 2 + draw.whole("arguments", self.length, self.max_args - 1)
        digit = draw.whole("digits", self.length, DIGITS)
        opens = draw.unit("nested", self.length) < self.nested
        inputs = torch.full_like(digit, PAD)
        level = torch.zeros_like(rows)  # (n,) open lists
        # One level more than may be open: the value of the whole is an argument of nothing.
        which = torch.zeros(len(rows), self.max_depth + 1, dtype=torch.int64)  # the operator of each open list
        missing = torch.zeros_like(which)  # arguments it still needs
        counts = torch.zeros(len(rows), self.max_depth + 1, DIGITS, dtype=torch.int64)  # its arguments, by value
        lengths = torch.zeros_like(rows)
        for place in range(self.length):
            busy = lengths == 0
            closing = busy & (level > 0) & (missing[rows, level] == 0)
            opening = busy & ~closing & ((level == 0) | (opens[:, place] & (level < self.max_depth)))
            plain = busy & ~closing & ~opening
            value = digit[:, place].clone()
            done = rows[closing]
            value[done] = worth(which[done, level[done]], counts[done, level[done]])
            inputs[:, place] = torch.where(
                closing, CLOSE, torch.where(opening, DIGITS + operator[:, place], torch.where(plain, value, PAD))
            )
            level = level + opening.long() - closing.long()
            started, given = rows[opening], rows[closing | plain]
            which[started, level[started]] = operator[started, place]
            missing[started, level[started]] = wanted[started, place]
            counts[started, level[started]] = 0
            missing[given, level[given]] -= 1
            counts[given, level[given], value[given]] += 1
            lengths[closing & (level == 0)] = place + 1
        made = Made(inputs, counts[:, 0].argmax(1), lengths)
        return made.pick(lengths >= self.least)


def worth(operator: Tensor, counts: Tensor) -> Tensor:
    """The value of lists (n,) from their operators (n,) and how often each digit is an argument (n, 10)."""
    digits = torch.arange(DIGITS)
    has = counts > 0
    high, low = (has * digits).amax(1), torch.where(has, digits, DIGITS).amin(1)
    # Doubled, the median is the sum of the two arguments in the middle, which may be one and the same.
    number, below = counts.sum(1, keepdim=True), counts.cumsum(1)
    middle = sum((below <= (number + shift) // 2).sum(1) for shift in (-1, 0)) // 2
    total = (counts * digits).sum(1) % DIGITS
    return torch.stack([high, low, middle, total], 1).gather(1, operator[:, None])[:, 0]
