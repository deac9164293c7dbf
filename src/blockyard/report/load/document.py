"""A comparison as one tree of dataclasses: `compare` computes it, and tables, pages and W&B show it.

`plain` turns the tree into the data of `comparison.json`, which the page's script and notebooks read; `read_document`
reads such data again. A mean or an interval is None where there are too few values; an interval is [low, high].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from blockyard.sweep.spec.keys import Floors

Limits = tuple[float, float]  # (low, high); a list in plain data, and where it was read from there
Numbers = list[list[float | None]]  # a table of numbers, row by row
Part = TypeVar("Part")
EFFECT = "d_z with Hedges' correction: mean over standard deviation of the paired differences"
_IN_JSON = "json"
OPTIONAL = {_IN_JSON: "unless None"}  # metadata of a field that plain data lacks where it is None
NOT_EMPTY = {_IN_JSON: "unless empty"}  # metadata of a field that plain data lacks where it is empty
INTERNAL = {_IN_JSON: "never"}  # metadata of a field that further computations need, and plain data lacks


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparisonDocument:
    """A comparison: the question, the answer, and the content of tables and page.

    question: the sweep file; baseline: an arm; tasks: of the selected runs, of which this comparison is about one
    stale: since when a later start of its sweep makes a saved comparison outdated
    margin: the smallest difference that matters, where one was set
    decisions: of a ladder: whether its rungs order the arms alike
    evidence: of a sweep that stops when it is decided
    baselines: rules and simple models, see `arms.simple_baselines`
    better_baseline: a sentence where every arm is worse than one of these
    external: figures from papers and other tools
    savings: of arms whose learning curves have enough evaluations
    tuned_by: the metric on validation that chose among the settings of `tuning`
    ranges: of metrics that are shares: where the intervals of their means end
    repeats: arms of the same settings, where there are some
    """

    title: str
    claim: str | None = None
    source: str | None = None
    question: Mapping[str, Any] | None = None
    metric: str
    direction: str
    metrics: list[str] = field(default_factory=list)
    directions: dict[str, str] = field(default_factory=dict)
    baseline: str | None = None
    answer: str
    tasks: list[str] = field(default_factory=list)
    stale: str | None = None
    margin: float | None = None
    expect: ExpectRow | None = None
    ladder: LadderRow | None = None
    decisions: list[DecisionRow] | None = field(default=None, metadata=OPTIONAL)
    evidence: EvidenceRow | None = None
    warnings: list[str] = field(default_factory=list)
    baselines: list[BaselineRow] = field(default_factory=list)
    better_baseline: str | None = None
    external: list[ExternalRow] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    arms: list[ArmRow] = field(default_factory=list)
    savings: list[SavingRow] = field(default_factory=list)
    effects: EffectsRow | None = None
    cells: list[CellRow] = field(default_factory=list)
    curves: list[CurveRow] = field(default_factory=list)
    tuning: list[SettingRow] = field(default_factory=list)
    tuned_by: str | None = None
    attention: list[MapRow] = field(default_factory=list)
    predictions: list[PictureRow] = field(default_factory=list)
    samples: SampleTables | None = None
    written: WrittenTable | None = None
    cost_axis: str | None = "flops"
    provenance: ProvenanceRow = field(default_factory=lambda: ProvenanceRow())
    ranges: dict[str, list[float]] = field(default_factory=dict)
    repeats: list[RepeatRow] = field(default_factory=list, metadata=NOT_EMPTY)
    importance: list[ImportanceRow] = field(default_factory=list, metadata=NOT_EMPTY)


@dataclass(frozen=True, kw_only=True)
class ImportanceRow:
    """Option -> the share of the differences that it explains alone, see `stats.importance`.

    arm: whose settings were tried; None for the arms of a grid; count: of the settings, or of the arms
    fit: of a search, the coefficient of determination on trials that were left out; where it is low, `shares` is empty
    """

    arm: str | None
    count: int
    shares: dict[str, float]
    fit: float | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class RepeatRow:
    """Arms of the same settings, on the seeds that all of them have.

    equal: the number of seeds on which all metrics are equal to the bit
    within: the standard deviation of the metric over the arms, pooled over the seeds
    between: that of the first arm over its seeds; None of one seed
    """

    arms: list[str]
    seeds: list[int]
    equal: int
    within: float
    between: float | None


@dataclass(frozen=True)
class Difference:
    """An arm minus another over their common seeds, in the metric's unit.

    interval: 95 %, Student's t; t_p: paired t test; both None where all differences are equal. Both hold for all looks
        where a sweep is decided by a boundary
    permutation_p: two-sided sign-flip test; sampled: whether the flips were sampled instead of enumerated
    smallest_p: the smallest permutation p that n seeds allow; holm_p: corrected over the arms (Holm)
    effect: see EFFECT; deviation: standard deviation of the differences
    e: the largest e-value so far, where the number of seeds follows from the results; `holm_p` is then made of it, and
        `interval` is a confidence sequence
    over: "samples" or "both" where the test is over test samples, see `stats.crossed`; "splits" where each seed has its
        own split, see `stats.resplit`
    signs: seeds on which the arm is ahead, behind and level, where outcomes are compared by their order alone; no
        test is then made of `mean`
    error, free: the standard error of the mean and its degrees of freedom where the test is over samples or splits
    diverged: how many runs of which arm diverged, as a clause of a sentence; None where none did
    """

    n: int
    mean: float | None = None
    interval: Limits | None = None
    t_p: float | None = None
    permutation_p: float | None = None
    smallest_p: float | None = None
    sampled: bool = False
    holm_p: float | None = None
    effect: float | None = None
    effect_kind: str = EFFECT
    e: float | None = field(default=None, metadata=OPTIONAL)
    over: str | None = field(default=None, metadata=OPTIONAL)
    deviation: float | None = field(default=None, metadata=INTERNAL)
    signs: tuple[int, int, int] | None = field(default=None, metadata=INTERNAL)
    error: float | None = field(default=None, metadata=INTERNAL)
    free: float | None = field(default=None, metadata=INTERNAL)
    diverged: str | None = field(default=None, metadata=INTERNAL)

    @property
    def p(self) -> float | None:
        """The p that decides: of the t test, or of the permutation test where all differences are equal."""
        return self.permutation_p if self.t_p is None else self.t_p


@dataclass(frozen=True, kw_only=True)
class ChangesRow:
    """The changes of an arm: options and classes of modules as [baseline's, arm's], and numbers of parameters."""

    config: dict[str, list[Any]]
    modules: dict[str, list[str | None]]
    parameters: list[int | None] | None


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """How many settings of an arm were tried, and the one that validation chose."""

    settings: int
    chosen: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class MeanRow:
    """The mean of a metric over seeds."""

    mean: float | None
    interval: Limits | None
    n: int


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """One arm. values: by seed; words: the verdict as a sentence; other: of each metric.

    against: the arm that it is compared with, where that is not the baseline of all: the one at its rung of a ladder
    diverged: the seeds whose runs ended with a loss that is not finite, where there are any
    """

    name: str
    n: int
    planned: int
    failed: int
    values: dict[str, float]
    mean: float | None
    interval: Limits | None
    interval_kind: str
    difference: Difference | None
    verdict: str
    words: str
    overrides: list[str]
    levels: dict[str, str]
    changes: ChangesRow
    cost: dict[str, float | None]
    cost_ratio: dict[str, float | None]
    pareto: bool
    budget: BudgetRow | None
    other: dict[str, MeanRow]
    against: str | None = field(default=None, metadata=OPTIONAL)
    diverged: list[int] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class SavedRow:
    """The training that an arm takes to the value with which its baseline ends, over what the baseline takes.

    share: the geometric mean over seeds, and its interval; None where the arm does not get there on one of them
    never: on how many seeds it does not; shares: by seed, None where it does not
    """

    share: float | None
    interval: Limits | None
    never: int
    shares: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class SavingRow:
    """The training that an arm saves, see `arms.savings`; None in a unit that was not recorded.

    against: the baseline; metric: on validation, whose last value of the baseline is the target
    """

    arm: str
    against: str
    metric: str
    steps: SavedRow | None
    seconds: SavedRow | None
    flops: SavedRow | None


@dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """One simple baseline.

    arms: its arms, where arms change the data or the tokens and so their baselines; else None
    value: of the comparison's metric; missing: why it has no values, else None
    """

    name: str
    arms: list[str] | None
    value: float | None
    values: dict[str, float]
    note: str | None
    missing: str | None


@dataclass(frozen=True, kw_only=True)
class ExternalGapRow:
    """The difference of an arm's mean to a figure from elsewhere, which shares no seeds with it."""

    arm: str
    mean: float | None
    interval: Limits | None
    p: float | None
    holm_p: float | None
    verdict: str


@dataclass(frozen=True, kw_only=True)
class ExternalRow:
    """A figure from a paper or another tool. n, sd: of its runs, where they are known."""

    name: str
    value: float
    n: int | None
    sd: float | None
    source: str
    arms: list[ExternalGapRow]


@dataclass(frozen=True, kw_only=True)
class LadderArmRow:
    """The ladder of an arm, see `stats.ladder.ArmLadder`.

    floor, scale, power: of the law; worst: the largest relative error of a rung
    held_out, held_out_interval: the relative error of the largest rung by the law of the others
    """

    name: str
    compute: list[float]
    loss: list[float]
    floor: float
    scale: float
    power: float
    worst: float
    held_out: float
    multiplier: float | None
    interval: Limits | None
    farther: float | None
    farther_interval: Limits | None
    trend: str | None
    held_out_interval: Limits | None = None
    withheld: str | None = None
    farther_withheld: str | None = None


@dataclass(frozen=True, kw_only=True)
class LadderMisfitRow:
    """An arm that no law fits; worst: the largest relative error of the best law."""

    name: str
    compute: list[float]
    loss: list[float]
    worst: float


@dataclass(frozen=True, kw_only=True)
class LadderRow:
    """Arms over a ladder of sizes.

    factor: its levels are the rungs; farther: how many times the largest rung is extrapolated
    floors: whether the laws share one E; unfitted: the arms that no law fits
    """

    factor: str
    baseline: str
    farther: float
    floors: Floors
    arms: list[LadderArmRow]
    unfitted: list[LadderMisfitRow] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DecisionRow:
    """The number of pairs of arms that have at a rung their order at the largest one, see `stats.decisions`."""

    metric: str
    rung: str
    largest: str
    pairs: int
    kept: int
    decided: int
    decided_kept: int


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One cell, whether it has a run or not.

    files: the files of its folder that a reader may open; folder: its path; a page has a link in its place
    """

    arm: str
    seed: int
    setting: Mapping[str, Any]
    state: str
    reason: str | None
    run: str | None
    seconds: float | None
    started: str | None
    folder: str | None = None
    files: list[str]
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class CurveRow:
    """The learning curve of one run: a value of each axis and of each metric at every kept step."""

    arm: str
    seed: int
    run: str
    setting: Mapping[str, Any]
    step: list[int]
    samples: list[float | None]
    flops: list[float | None]
    seconds: list[float | None]
    metrics: dict[str, list[float | None]]


@dataclass(frozen=True, kw_only=True)
class SettingRow:
    """One setting that was tried, with its mean on validation. state: of a trial of a search."""

    arm: str
    setting: Mapping[str, Any]
    mean: float | None
    values: Mapping[str, float | None]
    chosen: bool
    state: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class MapRow:
    """The attention map of one layer."""

    arm: str
    seed: int
    layer: str
    image: None = None
    map: Numbers


@dataclass(frozen=True, kw_only=True)
class PictureRow:
    """A picture, or a sound, that a run has, as a data URL."""

    arm: str
    seed: int
    name: str
    image: str


@dataclass(frozen=True, kw_only=True)
class MainEffectRow:
    """The effect of a level of a factor against its first level."""

    factor: str
    level: str
    reference: str | None
    effect: float | None
    interval: Limits | None
    p: float | None
    holm_p: float | None


@dataclass(frozen=True, kw_only=True)
class InteractionRow:
    """The test of two factors' interaction. cells: means by level of the first, then of the second."""

    factors: list[str]
    F: float | None
    p: float | None
    holm_p: float | None
    cells: Numbers
    levels: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class EffectsRow:
    """Main effects and interactions, and the formula of the model that was fitted."""

    main: list[MainEffectRow]
    interactions: list[InteractionRow]
    formula: str


@dataclass(frozen=True, kw_only=True)
class ClauseRow:
    """One clause of an expectation, its verdict and the reason.

    sense: what the verdict shows, such as "the opposite is shown", where the verdict alone does not tell
    sign: of the claim; decision: see `sweep.stopping.decisions.Decision`
    arms: both sides, where they are single arms
    holm_p: corrected over the clauses with `>`
    """

    text: str
    verdict: str
    reason: str
    sense: str | None = field(default=None, metadata=OPTIONAL)
    sign: str | None = field(default=None, metadata=INTERNAL)
    decision: str | None = field(default=None, metadata=INTERNAL)
    arms: tuple[str, str] | None = field(default=None, metadata=INTERNAL)
    holm_p: float | None = field(default=None, metadata=INTERNAL)

    @property
    def judged(self) -> str:
        """The verdict with its sense: "contradicted (the opposite is shown)"."""
        return _with_sense(self.verdict, self.sense)


@dataclass(frozen=True, kw_only=True)
class ExpectRow:
    """The expectation of a sweep, its verdict and the reason, as a whole and clause by clause.

    sense: of the clauses that decide the verdict
    """

    text: str
    verdict: str
    reason: str
    clauses: list[ClauseRow]
    sense: str | None = field(default=None, metadata=OPTIONAL)

    @property
    def judged(self) -> str:
        """The verdict with its sense: "contradicted (the opposite is shown)"."""
        return _with_sense(self.verdict, self.sense)


def _with_sense(verdict: str, sense: str | None) -> str:
    if sense is None:
        return verdict
    return f"{verdict} ({sense})"


@dataclass(frozen=True, kw_only=True)
class LookRow:
    """One comparison after each of its seeds.

    log10_e: log10 of e, or of 1 / p where a boundary decides; threshold: of it that a difference takes
    low, high: the interval that holds at all looks, None where it has no ends yet
    outcome: the verdict on a clause, or of an arm against the baseline; at: from how many seeds on
    """

    name: str
    arms: list[str]
    seeds: list[int]
    log10_e: list[float]
    low: list[float | None]
    high: list[float | None]
    mean: list[float]
    threshold: float
    outcome: str | None
    at: int | None


@dataclass(frozen=True, kw_only=True)
class EvidenceRow:
    """The evidence of a sweep that stops when it is decided. reason, words: why it stopped.

    by: the rule, "boundary" or "e-values", the latter in a comparison of an earlier release
    """

    alpha: float
    reason: str
    words: str
    looks: list[LookRow]
    by: str = "e-values"


@dataclass(frozen=True, kw_only=True)
class WrittenRow:
    """The text that each arm wrote for one source: arm -> [text, whether it is the reference]."""

    source: str
    reference: str
    written: dict[str, list[str | bool]]


@dataclass(frozen=True, kw_only=True)
class WrittenTable:
    """The texts that arms wrote. arms: arm -> seed; of: the number of sources; left_out: arms with other sources."""

    arms: dict[str, int]
    rows: list[WrittenRow]
    of: int
    left_out: list[str]


@dataclass(frozen=True, kw_only=True)
class CalibrationRow:
    """Reliability by bins of the probability of the predicted class; ece_runs: of each run."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]
    ece: float | None
    ece_runs: list[float | None]


@dataclass(frozen=True, kw_only=True)
class ClassTable:
    """The classification of one arm over its runs. scores: [class, precision, recall, F1, support]."""

    arm: str
    runs: int
    confusion: list[list[int]] | None
    confused: list[list[int]]
    scores: list[list[float | None]]
    macro_f1: float | None
    calibration: CalibrationRow


@dataclass(frozen=True, kw_only=True)
class ValueTable:
    """The errors of one arm that predicts real values. dots: [true value, mean prediction]."""

    arm: str
    runs: int
    rmse: float | None
    mae: float | None
    bias: float | None
    dots: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """One test sample: its target, its mean loss over runs, and the answers of each arm."""

    sample: int
    loss: float
    target: int | list[float | None]
    answers: dict[str, list[list[float]] | list[list[float | None]]]
    disagreement: float | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """A graph: nodes as [x, y, code of the first column], edges as pairs of numbers of nodes."""

    nodes: list[list[float]]
    edges: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class SampleView:
    """How a sample is shown, in one or more ways. image: a PNG as a data URL."""

    image: str | None = field(default=None, metadata=OPTIONAL)
    text: str | None = field(default=None, metadata=OPTIONAL)
    lines: list[list[float | None]] | None = field(default=None, metadata=OPTIONAL)
    graph: GraphView | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, kw_only=True)
class SampleTables:
    """Tables and samples of the runs with predictions. of: the size of the test split; kept: samples in the files."""

    kind: str
    kept: int
    of: int | None
    classes: list[str]
    left_out: list[str]
    arms: list[ClassTable | ValueTable]
    worst: dict[str, list[SampleRow]]
    disputed: list[SampleRow]
    runs: int
    views: dict[str, SampleView]
    note: str | None


@dataclass(frozen=True, kw_only=True)
class ProvenanceRow:
    """Where the results come from; the most common value where runs differ."""

    time: str | None = None
    code: Mapping[str, Any] | None = None
    versions: Mapping[str, str] | None = None
    host: Mapping[str, Any] | None = None
    command: str | list[str] | None = None
    data: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    memory: str | None = None


def plain(value: Any) -> Any:
    """Return a copy that JSON can hold: dicts for dataclasses, None for NaN and infinity, text for keys and paths."""
    if is_dataclass(value):
        document = {}
        for part in fields(value):
            content = getattr(value, part.name)
            when = part.metadata.get(_IN_JSON)
            if when is None or (when == "unless None" and content is not None) or (when == "unless empty" and content):
                document[part.name] = plain(content)
        return document
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def read_document(content: object) -> ComparisonDocument:
    """Return the comparison in plain data, such as the content of a comparison.json of this or an earlier release.

    A part that the data lacks has its default, or is None. Raises ValueError for data of another form.
    """
    return _read_part(ComparisonDocument, content)


def _read_part(kind: type[Part], content: object) -> Part:
    if not isinstance(content, Mapping):
        raise ValueError(f"{kind.__name__}: expected a mapping, not {type(content).__name__}")
    hints = _type_hints(kind)  # type: ignore[arg-type]  # a class is hashable
    values: dict[str, Any] = {}
    # Keys of a later release are left out: nothing here shows them.
    for part in fields(kind):  # type: ignore[arg-type]
        if part.name in content:
            values[part.name] = _read_value(hints[part.name], content[part.name])
        elif part.default is MISSING and part.default_factory is MISSING:
            values[part.name] = None  # an earlier release did not write it
    return kind(**values)


def _read_value(kind: Any, value: Any) -> Any:
    """Return plain data as a type that is a dataclass or holds some; other types are taken as they are."""
    parts = _parts_of(kind)
    if not parts or value is None:
        return value
    if isinstance(kind, type):
        return _read_part(kind, value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, not {type(value).__name__}")
        return [_read_value(arguments[0], item) for item in value]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a mapping, not {type(value).__name__}")
        return {key: _read_value(arguments[1], item) for key, item in value.items()}
    # A union: None, or one of several parts, which have different keys.
    members = [member for member in arguments if _parts_of(member)]
    if len(members) == 1:
        return _read_value(members[0], value)
    return _read_value(max(members, key=lambda member: len(_parts_of(member) & set(value))), value)


_type_hints = cache(get_type_hints)


@cache
def _parts_of(kind: Any) -> frozenset[str]:
    """Return the names of the fields of a dataclass, or of the dataclass that a type such as list[ArmRow] holds."""
    if is_dataclass(kind):
        return frozenset(part.name for part in fields(kind))
    return frozenset().union(*(_parts_of(argument) for argument in get_args(kind)))
