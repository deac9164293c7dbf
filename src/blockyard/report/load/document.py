"""The parts of a comparison as JSON holds them: what `compare` computes, and what tables, pages and W&B show.

`comparison.json`, the page's script and notebooks read the same keys, so the parts are dicts with the types of their
keys. A mean or an interval is None where there are too few values; an interval is [low, high].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from blockyard.sweep.spec.keys import Floors

Limits = Sequence[float]  # [low, high]
Numbers = list[list[float | None]]  # a table of numbers, row by row


class GapRow(TypedDict, total=False):
    """The difference of an arm to the baseline, see `stats.paired.Difference`; empty for an arm without one.

    e: the largest e-value so far, in a sweep that stops when it is decided
    over: "samples" or "both" where the test is over test samples, "splits" where each seed has its own split
    """

    n: int
    mean: float | None
    interval: Limits | None
    t_p: float | None
    permutation_p: float | None
    smallest_p: float | None
    sampled: bool
    holm_p: float | None
    effect: float | None
    effect_kind: str
    e: float | None
    over: str


class ChangesRow(TypedDict):
    """What an arm changes: options and classes of modules as [baseline's, arm's], and numbers of parameters."""

    config: dict[str, list[Any]]
    modules: dict[str, list[str | None]]
    parameters: list[int | None] | None


class BudgetRow(TypedDict):
    """How many settings of an arm were tried, and the one that validation chose."""

    settings: int
    chosen: Mapping[str, Any] | None


class MeanRow(TypedDict):
    """The mean of a metric over seeds."""

    mean: float | None
    interval: Limits | None
    n: int


class ArmRow(TypedDict):
    """One arm. values: by seed; words: the verdict as a sentence; other: of each metric.

    against: the arm that it is compared with, where that is not the baseline of all: the one at its rung of a ladder
    """

    name: str
    n: int
    planned: int
    failed: int
    values: dict[str, float]
    mean: float | None
    interval: Limits | None
    interval_kind: str
    difference: GapRow | None
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
    against: NotRequired[str]


class BaselineRow(TypedDict):
    """One simple baseline.

    arms: those that it belongs to, where arms change the data or the tokens and so their baselines; else None
    value: of the comparison's metric; missing: why it has no values, else None
    """

    name: str
    arms: list[str] | None
    value: float | None
    values: dict[str, float]
    note: str | None
    missing: str | None


class ExternalGapRow(TypedDict):
    """The difference of an arm's mean to a figure from elsewhere, which shares no seeds with it."""

    arm: str
    mean: float
    interval: Limits | None
    p: float | None
    holm_p: float | None
    verdict: str


class ExternalRow(TypedDict):
    """A figure from a paper or another tool. n, sd: of its runs, where they are known."""

    name: str
    value: float
    n: int | None
    sd: float | None
    source: str
    arms: list[ExternalGapRow]


class LadderArmRow(TypedDict):
    """The ladder of an arm, see `stats.ladder.ArmLadder`.

    floor, scale, power: of the law; worst: the largest relative error of a rung; held_out: that of the largest rung
    by the law of the others
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


class LadderMisfitRow(TypedDict):
    """An arm that no law fits; worst: the largest relative error of the best law."""

    name: str
    compute: list[float]
    loss: list[float]
    worst: float


class LadderRow(TypedDict):
    """Arms over a ladder of sizes.

    factor: whose levels are the rungs; farther: times the largest, extrapolated; floors: the E of the laws, one for all
    arms or one each; unfitted: the arms that no law fits
    """

    factor: str
    baseline: str
    farther: float
    floors: Floors
    arms: list[LadderArmRow]
    unfitted: NotRequired[list[LadderMisfitRow]]


class CellRow(TypedDict):
    """One cell, whether it has a run or not.

    files: those of its folder that a reader may open; folder: its path, in place of which a page has a link
    """

    arm: str
    seed: int
    setting: Mapping[str, Any]
    state: str
    reason: str | None
    run: str | None
    seconds: float | None
    started: str | None
    folder: NotRequired[str | None]
    link: NotRequired[str | None]
    files: list[str]
    metrics: dict[str, float]


class CurveRow(TypedDict):
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


class SettingRow(TypedDict):
    """One setting that was tried, with its mean on validation. state: of a trial of a search."""

    arm: str
    setting: Mapping[str, Any]
    mean: float | None
    values: dict[str, float | None]
    chosen: bool
    state: NotRequired[str | None]


class MapRow(TypedDict):
    """The attention map of one layer."""

    arm: str
    seed: int
    layer: str
    image: None
    map: Numbers


class PictureRow(TypedDict):
    """A picture, or a sound, that a run has, as a data URL."""

    arm: str
    seed: int
    name: str
    image: str


class MainEffectRow(TypedDict):
    """The effect of a level of a factor against its first level."""

    factor: str
    level: str
    reference: str | None
    effect: float | None
    interval: Limits | None
    p: float | None
    holm_p: float | None


class InteractionRow(TypedDict):
    """The test of two factors' interaction. cells: means by level of the first, then of the second."""

    factors: list[str]
    F: float | None
    p: float | None
    holm_p: float | None
    cells: Numbers
    levels: list[list[str]]


class EffectsRow(TypedDict):
    """Main effects and interactions, and the formula of the model that was fitted."""

    main: list[MainEffectRow]
    interactions: list[InteractionRow]
    formula: str


class ClauseRow(TypedDict):
    """One clause of an expectation, its verdict and the reason."""

    text: str
    verdict: str
    reason: str


class ExpectRow(TypedDict):
    """The expectation of a sweep, its verdict and the reason, as a whole and clause by clause."""

    text: str
    verdict: str
    reason: str
    clauses: list[ClauseRow]


class LookRow(TypedDict):
    """One comparison after each of its seeds.

    low, high: the confidence sequence, None where it has no ends yet; threshold: log10 e that a difference takes
    outcome: the verdict on a clause, or of an arm against the baseline; at: from how many seeds on
    """

    name: str
    arms: list[str]
    seeds: list[int]
    log10_e: list[float]
    mean: list[float]
    low: list[float | None]
    high: list[float | None]
    threshold: float
    outcome: str | None
    at: int | None


class EvidenceRow(TypedDict):
    """The evidence of a sweep that stops when it is decided. reason, words: why it stopped."""

    alpha: float
    reason: str
    words: str
    looks: list[LookRow]


class WrittenRow(TypedDict):
    """What each arm wrote for one source: arm -> [text, whether it is the reference]."""

    source: str
    reference: str
    written: dict[str, list[str | bool]]


class WrittenTable(TypedDict):
    """What the arms wrote. arms: arm -> seed; of: the number of sources; left_out: arms with other sources."""

    arms: dict[str, int]
    rows: list[WrittenRow]
    of: int
    left_out: list[str]


class CalibrationRow(TypedDict):
    """Reliability by bins of the probability of the predicted class; ece_runs: of each run."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]
    ece: float | None
    ece_runs: list[float | None]


class ClassTable(TypedDict):
    """The classification of one arm over its runs. scores: [class, precision, recall, F1, support]."""

    arm: str
    runs: int
    confusion: list[list[int]] | None
    confused: list[list[int]]
    scores: list[list[float | None]]
    macro_f1: float | None
    calibration: CalibrationRow


class ValueTable(TypedDict):
    """The errors of one arm that predicts real values. dots: [true value, mean prediction]."""

    arm: str
    runs: int
    rmse: float | None
    mae: float | None
    bias: float | None
    dots: list[list[float]]


class SampleRow(TypedDict):
    """One test sample: its target, its mean loss over runs, and the answers of each arm."""

    sample: int
    loss: float
    target: int | list[float | None]
    answers: dict[str, list[list[float]] | list[list[float | None]]]
    disagreement: NotRequired[float]


class GraphView(TypedDict):
    """A graph: nodes as [x, y, code of the first column], edges as pairs of numbers of nodes."""

    nodes: list[list[float]]
    edges: list[list[int]]


class SampleView(TypedDict, total=False):
    """How a sample is shown, in one or more ways. image: a PNG as a data URL."""

    image: str
    text: str
    lines: list[list[float | None]]
    graph: GraphView


class SampleTables(TypedDict):
    """Tables and samples of the runs with predictions. of: the size of the test split; kept: samples in the files."""

    kind: str
    kept: int
    of: int | None
    classes: list[str]
    left_out: list[str]
    arms: list[ClassTable] | list[ValueTable]
    worst: dict[str, list[SampleRow]]
    disputed: list[SampleRow]
    runs: int
    views: dict[str, SampleView]
    note: str | None


class ProvenanceRow(TypedDict, total=False):
    """Where the results come from; the most common value where runs differ."""

    time: str
    code: Mapping[str, Any] | None
    versions: Mapping[str, str] | None
    host: Mapping[str, Any] | None
    command: str | list[str] | None
    data: Mapping[str, Any] | None
    notes: list[str]
    memory: str | None


class ComparisonDocument(TypedDict, total=False):
    """A comparison as plain JSON, see `Comparison`."""

    title: str
    claim: str | None
    source: str | None
    question: Mapping[str, Any] | None
    metric: str
    direction: str
    metrics: list[str]
    directions: dict[str, str]
    baseline: str | None
    answer: str
    tasks: list[str]
    stale: str | None
    margin: float | None
    expect: ExpectRow | None
    evidence: EvidenceRow | None
    ladder: LadderRow | None
    warnings: list[str]
    baselines: list[BaselineRow]
    better_baseline: str | None
    external: list[ExternalRow]
    seeds: list[int]
    arms: list[ArmRow]
    effects: EffectsRow | None
    cells: list[CellRow]
    curves: list[CurveRow]
    tuning: list[SettingRow]
    tuned_by: str | None
    attention: list[MapRow]
    predictions: list[PictureRow]
    samples: SampleTables | None
    written: WrittenTable | None
    cost_axis: str | None
    provenance: ProvenanceRow
    ranges: dict[str, list[float]]


class BoardState(TypedDict):
    """Why the last comparison of a board could not be made, or None."""

    error: str | None


class PageDocument(ComparisonDocument, total=False):
    """A comparison as a page shows it.

    home: the address of the home page; board: of a page that is served
    column_notes: what the columns mean, where another test than that of paired differences decides
    """

    home: str | None
    column_notes: list[str] | None
    board: BoardState
