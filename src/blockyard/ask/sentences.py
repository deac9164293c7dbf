"""Say in sentences what a sweep can and cannot show: before it has run, from short runs with two seeds of each arm."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from blockyard.ask.choose import Resolution, SweepLength, seeds_to_decide
from blockyard.ask.draft import SweepDraft
from blockyard.ask.measure import Measurement
from blockyard.ask.subject import FileContents
from blockyard.report.stats.metric_range import SHARE, metric_range
from blockyard.report.stats.sensitivity import samples_noise
from blockyard.sweep.execution.estimate import format_duration

# The way on where a small model from nothing stays below a simple one, by the modality of the data.
WAYS_ON = {
    "text": "a model that was trained on other texts before, init.from=hf:NAME",
    "image": "a model that was trained on other images before, init.from=timm:NAME",
    "vector": "more samples; on a few columns a simple model may be all that is needed",
}
WAY_ON = "pre-training on more data of the kind, then init.from=RUN"
HALF = 0.5  # of the steps, from which on the short runs show where the whole ones end
NAMES = 12  # columns of the names of lines
WIDTH = 110  # columns of a line

Line = tuple[str, str]  # its name and its text


@dataclass(frozen=True)
class Findings:
    """Everything that is known of a sweep before it has run. hours: that it may take"""

    subject: FileContents
    draft: SweepDraft
    measurement: Measurement
    length: SweepLength
    result: Resolution
    hours: float

    @cached_property
    def means(self) -> Mapping[str, float]:
        """The mean score of each arm in the short runs."""
        return {arm: math.fsum(scores) / len(scores) for arm, scores in self.measurement.scores.items()}

    @property
    def sign(self) -> float:
        """Return 1 where more of the metric is better, else -1."""
        return 1.0 if self.measurement.direction == "max" else -1.0

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the answer."""
        metric = self.measurement.metric
        others = " and ".join(list(self.draft.arms)[1:])
        yield "data", self._data()
        yield "compares", f"{others} with {self.draft.baseline}, by {metric}"
        yield (
            "can show",
            f"differences of {self.result.smallest:.2g} in {metric} or more, with {self.length.seeds} seeds of each "
            f"arm at most; arms that differ by less than {self.result.margin:g} count as equal",
        )
        yield "cannot", self._cannot()
        yield "so far", self._so_far()
        if self.measurement.baselines:
            yield "simple", self._simple()
            name, value = self._best_simple()
            if self.sign * (value - self._best_arm()) >= 0:
                yield "warning", self._warning(name, value)
        yield "time", self._time()

    def _data(self) -> str:
        splits = self.measurement.splits
        text = (
            f"{self.subject.summary}; {len(splits.train):,} training, {len(splits.validation):,} validation and "
            f"{len(splits.test):,} test samples"
        )
        sample = self.subject.sample
        if sample is None:
            return text
        return f"a sample of {sample.num_rows:,} of {sample.of_rows:,} rows, since the table is large: {text}"

    def _cannot(self) -> str:
        """Return the differences that the sweep cannot show, and why."""
        size = len(self.measurement.splits.test)
        text = (
            f"smaller differences: two runs that differ in their seed alone differ by about {self.result.deviation:.2g}"
        )
        level = math.fsum(self.means.values()) / len(self.means)
        if metric_range(self.measurement.metric, self.means.values()) == SHARE and size:
            text += f"; one of {size:,} test samples is {1 / size:.2g}"
            if 0 < level < 1:
                noise = samples_noise(level, size)
                text += f", and other test samples would move a difference by up to {noise:.2g}"
        return f"{text}. Nor does it say anything of other data, sizes or longer runs"

    def _so_far(self) -> str:
        """Return how many seeds would decide about each arm if it went on to differ as in the short runs."""
        seeds = self.length.seeds
        compared = len(self.means) - 1
        parts = []
        for arm, mean in self.means.items():
            if arm == self.draft.baseline:
                continue
            gain = self.sign * (mean - self.means[self.draft.baseline])
            better = "better" if gain > 0 else "worse"
            count = seeds_to_decide(self.result, gain, compared, seeds)
            decided = f"{seeds} seeds do not decide" if count is None else f"{count} seeds decide"
            parts.append(f"if {arm} stays {better} by {abs(gain):.2g}, {decided}")
        return f"on validation, after {self.measurement.steps:,} steps of two seeds: {'; '.join(parts)}"

    def _simple(self) -> str:
        """Return the validation values of the simple models, the best first, and of the arms in the short runs."""
        ordered = sorted(self.measurement.baselines.items(), key=lambda item: -self.sign * item[1])
        models = ", ".join(f"{name} {value:.3g}" for name, value in ordered)
        arms = ", ".join(f"{arm} {mean:.3g}" for arm, mean in self.means.items())
        return f"on validation, {models}; the arms after {self.measurement.steps:,} steps: {arms}"

    def _best_simple(self) -> tuple[str, float]:
        return max(self.measurement.baselines.items(), key=lambda item: self.sign * item[1])

    def _best_arm(self) -> float:
        return max(self.means.values(), key=lambda mean: self.sign * mean)

    def _warning(self, name: str, value: float) -> str:
        """Return that a simple model is better than the arms so far, and the way on."""
        seen = self.measurement.steps / self.length.steps
        arms = "the arms" if seen >= HALF else "what the arms have so far"
        way_on = WAYS_ON.get(self.draft.recipe.partition("_")[0], WAY_ON)
        return (
            f"{name} ({value:.3g}) is better than {arms} ({self._best_arm():.3g} after {seen:.0%} of the steps), and "
            f"may stay so; if it does, the way on is {way_on}"
        )

    def _time(self) -> str:
        runs = self.length.seeds * len(self.draft.arms)
        return (
            f"about {format_duration(self.length.seconds)} of {format_duration(3600 * self.hours)} for {runs} runs of "
            f"{self.length.steps:,} steps at most, {self.measurement.parallel} in parallel"
        )


def folded(lines: Sequence[Line]) -> list[str]:
    """Return lines with their names in the first columns, and their texts folded behind them."""
    printed = []
    for name, text in lines:
        first, *others = textwrap.wrap(text, WIDTH - NAMES, break_on_hyphens=False)
        printed.append(f"{name:<{NAMES}}{first}")
        printed += [" " * NAMES + other for other in others]
    return printed
