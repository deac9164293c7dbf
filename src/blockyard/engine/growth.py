"""Batches and sequences that are small in the first steps: how many samples a step takes, and how many tokens of each.

Source: for batches Smith et al. 2018, Don't Decay the Learning Rate, Increase the Batch Size (arXiv 1711.00489), and
    Brown et al. 2020, Language Models are Few-Shot Learners (arXiv 2005.14165), appendix B, which grows them linearly;
    for sequences Li et al. 2022, The Stability-Efficiency Dilemma (arXiv 2108.06084), section 4
Reference: the formula, step by step
Equation: n(s) = a floor((a + (n - a) s / S) / a) in step s < S, and n from step S on, with a the first size
Cost: none; a step of half the samples, or of half the tokens, takes about half the time

A step takes the first samples of the batch that it would take without, and the first tokens of each. The order of the
data, the epochs and the learning rates stay the same, as functions of the number of the step, so a resumed run
needs no state. The samples that a small batch leaves out come again in later epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from torch import Tensor

from blockyard.contracts import Batch


@dataclass(frozen=True)
class Ramp:
    """A size that grows from `start` to `end` over the first `steps` steps, in multiples of `start`."""

    start: int
    end: int
    steps: int

    def at(self, step: int) -> int:
        """Return the size in step number `step`, from 0."""
        if step >= self.steps:
            return self.end
        grown = self.start + (self.end - self.start) * step // self.steps
        # In multiples of the start, which divides among the processes and micro-batches.
        return grown - grown % self.start


@dataclass(frozen=True)
class Growth:
    """How many samples each step takes, over all processes, and how many tokens of each.

    batch, context: over samples and over tokens; a ramp of no steps is the full size in every step
    """

    batch: Ramp
    context: Ramp

    def samples(self, step: int) -> int:
        """Return the samples of step number `step`, from 0."""
        return self.batch.at(step)

    def seen(self, steps: int) -> tuple[int, int]:
        """Return the samples and the tokens of the first `steps` steps."""
        samples, tokens = self._grown
        growing = min(steps, len(samples) - 1)
        full_samples = (steps - growing) * self.batch.end
        return samples[growing] + full_samples, tokens[growing] + full_samples * self.context.end

    @cached_property
    def _grown(self) -> tuple[list[int], list[int]]:
        """Return the samples and the tokens of the first 0, 1, ... steps, as long as sizes change."""
        steps = range(max(self.batch.steps, self.context.steps))
        samples = [self.batch.at(step) for step in steps]
        tokens = [count * self.context.at(step) for count, step in zip(samples, steps, strict=True)]
        return list(accumulate(samples, initial=0)), list(accumulate(tokens, initial=0))

    def cut(self, batch: Batch, step: int) -> Batch:
        """Return the first tokens of each text of an unprepared batch, and of all fields aligned with them.

        A text may have more token ids than the model has tokens; the last ones are targets only.
        """
        tokens = self.context.at(step)
        if tokens == self.context.end:
            return batch
        # Further targets behind the last token stay: they are the targets of the tokens that are kept.
        kept = batch.inputs.shape[1] - self.context.end + tokens

        def first(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[:, :kept]

        return replace(batch, inputs=batch.inputs[:, :kept], segment=first(batch.segment), target=first(batch.target))
