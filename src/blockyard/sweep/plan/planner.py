"""Makes the frozen plan of a sweep file: every cell is composed and checked before the first one starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.config import layer_kinds, model_size
from blockyard.config.compose import Composed
from blockyard.config.override_grammar import to_override, to_text
from blockyard.config.presets import RECIPE
from blockyard.config.run_length import LENGTHS
from blockyard.config.schema import options
from blockyard.config.size_matching import BUDGETS, ModelSizes
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted import placeholders
from blockyard.config.untrusted.local_path import outputs_folder
from blockyard.config.untrusted.targets import locate
from blockyard.errors import UserError, fold
from blockyard.runs.costs import COSTS
from blockyard.runs.identity import run_name
from blockyard.runs.metric_name import MetricName
from blockyard.runs.provenance import provenance
from blockyard.sweep.cells import ARM_LEVEL, Arm, Cell, Refused, Setting, Variant
from blockyard.sweep.plan import cell_settings
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.compact_json import SharedNodes
from blockyard.sweep.plan.rule_in_force import with_rule_in_force
from blockyard.sweep.plan.sizes import (
    Climb,
    LadderSizes,
    MatchedSizes,
    rung_notes,
    solve_rungs,
    solve_widths,
    width_notes,
)
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.plan.target_metric import too_few_evaluations, validation_metric
from blockyard.sweep.spec.keys import Range, Space, settings_of, space_of
from blockyard.sweep.spec.override_text import key_of, override_problem
from blockyard.sweep.spec.question import BadQuestionError, Question, read
from blockyard.sweep.spec.threshold import UNITS

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader

LISTED = 10  # problems of one kind that are reported in full
# Variants of a metric that a run has at its end alone: longer sequences, more loops, a mean of evaluations.
_MEASURED_AT_END = re.compile(r"\d+(x|loops)|last\d+")


def make_plan(
    path: Path,
    *,
    outputs: str = "outputs",
    config_dirs: Sequence[str] = (),
    overrides: Sequence[str] = (),
    command: Sequence[str] | None = None,
    elsewhere: bool = False,
    seeds: int | None = None,
    until_decided: bool = False,
    fresh_from: int | None = None,
    data: DataReader | None = None,
) -> SweepPlan:
    """Return the plan of a sweep file. Writes nothing.

    outputs: the folder of all runs
    overrides: added to the file's base
    seeds: replaces the seeds of the file
    until_decided: add seeds until every comparison is decided, whatever the file says
    fresh_from: the first of as many fresh seeds, of a confirmation
    elsewhere: whether cells run on other machines, so that GPUs missing on this one do not matter
    data: reads the data of the cells, so that data which their runs would refuse are refused here; None reads none
    Raises BadQuestionError with every problem of the file, its base or its baseline, or where two arms are the same
    run.
    """
    folder = str(outputs_folder(outputs))
    composer = CellComposer(config_dirs, elsewhere=elsewhere, outputs=folder, data=data)
    try:
        question = read(Path(path), seeds, until_decided, fresh_from)
    except BadQuestionError as error:
        unknown_names = misspelt(composer, [*error.base, *overrides], error.arms)
        raise BadQuestionError([*error.problems, *unknown_names]) from error
    planner = _Planner(question, [*question.base, *overrides], composer)
    if placeholders.installed():
        planner.refuse_without_building(overrides)
    planner.check_base(overrides)
    planner.add_variants()
    facts: Any = provenance(command) | {
        "overrides": list(overrides),
        "file": str(Path(os.path.expanduser(path)).absolute()),
        "config_dirs": [str(Path(os.path.expanduser(folder)).absolute()) for folder in config_dirs],
        "metric": planner.metric,
        "notes": planner.notes(),
        "remarks": planner.remarks(),
    }
    if planner.matched:
        facts["match"] = planner.matched
    if question.keys.ladder:
        facts["ladder"] = planner.climb.sizes
    plan = SweepPlan(
        name=question.name,
        question=question.as_dict() | {"base": planner.base},
        outputs=folder,
        arms=question.arms,
        variants=planner.variants,
        cells=() if question.keys.search else tuple(planner.cells()),  # a search has cells once it has ended
        refused=tuple(planner.refused),
        facts=facts,
    )
    return with_rule_in_force(plan)


@dataclass
class _Planner:
    question: Question
    base: list[str]
    composer: CellComposer
    sizes: ModelSizes = field(default_factory=ModelSizes)
    nodes: SharedNodes = field(default_factory=SharedNodes)
    variants: dict[str, Variant] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    metric: dict[str, str] = field(default_factory=dict)
    metric_problem: list[str] = field(default_factory=list)  # why the metric cannot be used, if it cannot
    matched: MatchedSizes = field(default_factory=MatchedSizes)
    climb: Climb = field(default_factory=Climb)
    mistakes: list[str] = field(default_factory=list)  # names that exist nowhere, in the overrides of an arm
    precisions: set[str | int] = field(default_factory=set)
    unread: dict[str, None] = field(default_factory=dict)  # why data was not read, in the order of the configs
    concerned: dict[str, list[str]] = field(default_factory=dict)  # a remark of `check` -> the arms that it concerns
    settled: list[str] = field(default_factory=list)  # what the recipe and the size of the base have set
    _folders: dict[str, str] = field(default_factory=dict)

    def refuse_without_building(self, overrides: Sequence[str]) -> None:
        """Raise BadQuestionError where no model has to be built to see why, and else NeedsTorchError."""
        self._checked_base(overrides)
        unknown_names = misspelt(self.composer, self.base, self.question.arms)
        if unknown_names:
            raise BadQuestionError(unknown_names)
        placeholders.require_torch()

    def check_base(self, overrides: Sequence[str]) -> None:
        """Check the base and find the metric. Raises BadQuestionError for a base that cannot run."""
        composed = self._checked_base(overrides)
        if (self.question.keys.matched_size or self.question.keys.ladder) and composed.matched:
            key = "match" if self.question.keys.matched_size else "ladder"
            raise BadQuestionError([f"{key}: the base sets match.{composed.matched['by']} too; remove one of them"])
        if (self.question.keys.matched_size or self.question.keys.ladder) and composed.sized:
            raise BadQuestionError(["match: the base sets model.size too; remove one of them"])
        infer_integers(self.question.space, composed.config)
        self._find_metric(composed.config)

    def _checked_base(self, overrides: Sequence[str]) -> Composed:
        """Return the config of the base. Raises BadQuestionError for one that cannot run."""
        problems = []
        for override in overrides:
            problem = None if override.startswith("allow=") else override_problem(override, "base")
            if problem:
                problems.append(problem)
            elif self.question.keys.matched_length and key_of(override) in LENGTHS:
                problems.append(f"{override}: `match` of the file sets how long every arm trains; leave it out")
        if problems:
            raise BadQuestionError(problems)
        composed, problems = self.composer.checked(self.base)
        if problems:
            unknown_names = misspelt(self.composer, self.base, self.question.arms)
            problems = [*(f"base: {problem}" for problem in problems), *unknown_names]
            raise BadQuestionError(list(dict.fromkeys(problems)))
        if composed.recipe and composed.recipe.automatic:
            # For every arm, also for one that names a tokenizer, so that arms differ in nothing else.
            self.base.append(f"{RECIPE}={composed.recipe.name}")
            self.settled = [f"{RECIPE}={'; '.join(composed.recipe.described())}"]
        if composed.sized:
            self.settled.append(f"{model_size.KEY}: {'; '.join(composed.sized.described())}")
        return composed

    def _find_metric(self, config: Node) -> None:
        """Set `metric` from the base's config, or `metric_problem`, which is reported with the problems of the arms."""
        reached = self.question.reached
        is_cost = self.question.keys.metric in COSTS
        measured = None if is_cost else self.question.keys.metric
        if reached:
            measured = reached.metric
        if reached and reached.kind in UNITS and MetricName.parse(reached.metric).last:
            self.metric_problem = [
                f"{reached.kind}: {reached.metric} is known at the end of a run alone; write "
                f"{MetricName.parse(reached.metric).logged()}"
            ]
            return
        allow = list(config.get("allow") or [])
        tune_by = self.question.keys.tune_by
        try:
            judged, direction = validation_metric(measured, config, allow)
            validation, chooses = judged, direction
            if tune_by:
                validation, chooses = validation_metric(tune_by, config, allow)
        except UserError as error:
            self.metric_problem = [str(error)]
            return
        search, suffix = self.question.keys.search, MetricName.parse(validation).variant
        if search and search["pruner"] != "none" and _MEASURED_AT_END.fullmatch(suffix):
            self.metric_problem = [
                f"search.pruner: {search['pruner']} stops trials by what training measures, and {validation} is "
                "measured at the end of a run; use pruner: none"
            ]
            return
        name = self.question.keys.metric or str(MetricName.parse(judged).on("test"))
        if reached:
            name = str(reached)
            direction = reached.direction
        elif is_cost:
            direction = COSTS[name][0]
        self.metric = {
            "name": name,
            "validation": validation,
            "direction": direction,
            "validation_direction": chooses,
        }

    def add_variants(self) -> None:
        """Add every variant, or the reasons why it is refused.

        Raises BadQuestionError for arms that cannot be compared.
        """
        settings = settings_of(self.question.tune)
        sized = self._sized()
        for arm in self.question.arms:
            for number, setting in enumerate(settings):
                key = f"{arm.name}#{number}" if self.question.tune else arm.name
                tuned = [to_override(name, value) for name, value in setting.items()]
                self._add(key, arm, setting, [*self._overrides(arm, sized), *tuned])
        baseline = self.question.keys.baseline
        problems = list(dict.fromkeys(self.mistakes))[:LISTED]
        if not problems and baseline not in {variant.arm for variant in self.variants.values()}:
            for refused in self.refused:
                if refused.arm == baseline:
                    problems += refused.problems("baseline")
        problems = [*self.metric_problem, *problems]
        if problems:
            raise BadQuestionError(list(dict.fromkeys(problems)))
        self._check_sizes(sized)
        self._check_splits()
        pairs = list(duplicates(self.question, self.variants.values(), self.folder))
        if len(pairs) > LISTED:
            raise BadQuestionError([*pairs[:LISTED], f"and {len(pairs) - LISTED} more pairs of this kind"])
        if pairs:
            raise BadQuestionError(pairs)

    def cells(self) -> Iterator[Cell]:
        """Yield all cells, variant by variant."""
        for variant in self.variants.values():
            for seed in self.question.seeds:
                yield Cell(variant.key, seed, f"{self._folder_of(variant, seed)}/s{seed}")

    def folder(self, variant: Variant) -> str:
        """Return the folder of a variant's runs. Its name ends in the identity."""
        if variant.key not in self._folders:
            self._folders[variant.key] = run_name(variant.config)
        return self._folders[variant.key]

    def _folder_of(self, variant: Variant, seed: int) -> str:
        """Return the folder of a cell's run: the variant's folder, unless each seed has data of its own."""
        if self.question.keys.resplit:
            return run_name(cell_settings.with_split(variant.config, seed))
        return self.folder(variant)

    def notes(self) -> list[str]:
        """Return the notes about the planner's decisions."""
        return [
            *self.settled,
            *cell_settings.precision_notes(self.precisions),
            *width_notes(self.matched),
            *rung_notes(
                self.question.keys.ladder,
                self.climb.sizes,
                {variant.arm: variant.config for variant in self.variants.values()},
                [*self.question.tune, *self.question.space],
                self.composer.train_size,
            ),
            *self.unread,
        ]

    def remarks(self) -> list[str]:
        """Return the remarks of `check`, each once; the names of its arms come before it where it concerns not all."""
        planned = {variant.arm for variant in self.variants.values()}
        remarks = []
        for remark, arms in self.concerned.items():
            remarks.append(remark if len(arms) == len(planned) else f"{fold(arms)}: {remark}")
        return remarks

    def _add_remarks(self, arm: str, config: Node) -> None:
        facts = self.composer.data_facts(config)
        if facts is None:
            return
        if facts.note is not None:
            self.unread[facts.note] = None
        for remark in facts.remarks:
            arms = self.concerned.setdefault(remark, [])
            if arm not in arms:
                arms.append(arm)

    def _overrides(self, arm: Arm, sized: dict[str, list[str]]) -> list[str]:
        return [*self.base, *arm.overrides, *sized.get(arm.name, ())]

    def _add(self, key: str, arm: Arm, setting: Setting, overrides: list[str]) -> None:
        composed, reasons = self.composer.checked(overrides)
        self.mistakes += [f"{arm.name}: {issue}" for issue in composed.issues if issue.unknown]
        reasons = reasons or self._refusal(arm, composed.config)
        if reasons:
            self.refused.append(Refused(arm.name, setting, tuple(reasons)))
            return
        config = composed.config
        self._add_remarks(arm.name, config)
        precision = cell_settings.precision(config, overrides)
        if precision is not None:
            self.precisions.add(precision)
            config["trainer"]["precision"] = precision
        # Thousands of variants differ in a few nodes: equal ones are one object.
        config = self.nodes.config(cell_settings.with_sweep_labels(config, self.question.name, arm.name))
        choices = self.nodes.shared(composed.choices)
        self.variants[key] = Variant(key, arm.name, config, choices, setting)

    def _refusal(self, arm: Arm, config: Node) -> list[str]:
        """Return why a sound config cannot be a cell of this sweep; empty where it can."""
        keys = self.question.keys
        if arm.name in self.climb.refused:
            return [self.climb.refused[arm.name]]
        names = [self.metric[key] for key in ("name", "validation") if key in self.metric]
        if reason := too_few_evaluations(names, config, partial(self.composer.train_size, config)):
            return [reason]
        size = keys.matched_size
        if size and not keys.ladder and arm.name not in self.matched.get("arms", {}):
            failure = self.sizes.failure(config, size)
            reason = f" ({failure})" if failure else ""
            return [
                "match: no width (model.dim) of this arm gives a model whose size can be compared with the baseline's"
                f"{reason}"
            ]
        if keys.resplit and "split_seed" not in config["data"]:
            return ["resplit: the splits of this data are fixed, it has no data.split_seed; remove resplit"]
        return []

    def _sized(self) -> dict[str, list[str]]:
        """Return by arm the overrides that set its matched width or length, or the width and steps of its rung."""
        if self.question.keys.ladder:
            self.climb = self._solve_rungs()
            return self.climb.overrides
        length = self.question.keys.matched_length
        if length:
            # All limits, because the experiment of the base has one of its own.
            limits: dict[str, float | None] = dict.fromkeys(LENGTHS)
            for unit, value in length.items():
                limits[f"trainer.max_{unit}"] = value
            return {arm.name: [to_override(key, value) for key, value in limits.items()] for arm in self.question.arms}
        if not self.question.keys.matched_size:
            return {}
        overrides = {arm.name: self._overrides(arm, {}) for arm in self.question.arms}
        widths, self.matched = solve_widths(
            self.question.keys.matched_size,
            str(self.question.keys.baseline),
            overrides,
            self.composer.compose,
            self.sizes,
        )
        return {name: [f"model.dim={width}"] for name, width in widths.items()}

    def _solve_rungs(self) -> Climb:
        """Return the widths and steps of a ladder. Raises BadQuestionError where the baseline has none at some rung."""
        ladder = self.question.keys.ladder
        assert ladder is not None
        # All rungs of an arm have its overrides, so one of them stands for the arm of the file.
        arms_of_file = {arm.levels[ARM_LEVEL]: arm for arm in self.question.arms}
        composed = {name: self.composer.compose(self._overrides(arm, {})) for name, arm in arms_of_file.items()}
        baseline = self._arm(str(self.question.keys.baseline)).levels[ARM_LEVEL]
        try:
            match = self.question.keys.matched_size
            return solve_rungs(ladder, match, baseline, composed, self.sizes, self.composer.train_size)
        except UserError as error:
            raise BadQuestionError([str(error)]) from error

    def _check_splits(self) -> None:
        """Raise BadQuestionError where each seed is to have its own split and the data have only one."""
        if not self.question.keys.resplit or len(self.question.seeds) < 2:
            return
        config = self._config_of(str(self.question.keys.baseline))
        assert config is not None, "add_variants refuses a plan without a baseline"
        first, second = (cell_settings.with_split(config, seed) for seed in self.question.seeds[:2])
        if self.composer.same_data(first, second):
            raise BadQuestionError(
                ["resplit: data.split_seed changes nothing here, since the files say what is in which split; remove it"]
            )

    def _check_sizes(self, sized: dict[str, list[str]]) -> None:
        """Raise BadQuestionError where an arm cannot have a setting, or it would undo the match of the arms' sizes."""
        if self.question.keys.ladder:
            match = SizeMatch(self.climb.sizes["by"], self.climb.sizes, self.sizes)
        else:
            match = SizeMatch(self.question.keys.matched_size, self.matched, self.sizes)
        spaces = [(self._arm(str(self.question.keys.baseline)), self.question.space, "search.space")]
        search = self.question.keys.search
        only = search.get("only", {}) if search else {}
        for arm in self.question.arms:
            space = only.get(arm.name)
            config = self._config_of(arm.name)
            if space and config is not None:
                infer_integers(space, config)
                spaces.append((arm, space, f"search.only.{arm.name}"))
        problems: list[str] = []
        for arm, space, key in spaces:
            problems += space_problems(arm.name, space, key, self._overrides(arm, sized), self.composer, match)
        problems = problems or list(arms_without_space(self.question, self.variants.values()))
        if not problems and self.question.tune:
            problems = list(tune_problems(self.variants.values(), match))[:1]
        if problems:
            raise BadQuestionError(problems)

    def _arm(self, name: str) -> Arm:
        return next(arm for arm in self.question.arms if arm.name == name)

    def _config_of(self, arm: str) -> Node | None:
        """Return the config of the first variant of an arm; None where all are refused."""
        return next((variant.config for variant in self.variants.values() if variant.arm == arm), None)


@dataclass(frozen=True)
class SizeMatch:
    """The size that is matched between the arms, if any.

    by: "params", "flops" or None
    matched: the record of `solve_widths`, or of a ladder
    """

    by: str | None
    matched: MatchedSizes | LadderSizes
    sizes: ModelSizes

    def problems(self, arm: str, config: Node) -> list[str]:
        """Return why a config would undo the match of its arm; empty where it would not."""
        if not self.by or self.sizes.measure(config, self.by) == self.matched["arms"][arm]["value"]:
            return []
        return [f"it changes the {BUDGETS[self.by]} of {arm}, so the arms would no longer match; remove it"]


def infer_integers(space: Space, config: Node) -> None:
    """Mark the ranges of a search space that must be of whole numbers, because their option takes no others.

    config: complete, of the sweep's base, or of the arm that has the space
    """
    for key, dimension in space.items():
        if not isinstance(dimension, dict) or "int" in dimension:
            continue
        if not all(isinstance(dimension.get(name, 1), int) for name in ("low", "high", "step")):
            continue
        node, last = _owner(config, key)
        option = options(locate(node["_target_"])).get(last) if is_node(node) else None
        low = dimension["low"]
        fraction = (low + dimension["high"]) / 2 + 0.25  # between two whole numbers, whichever parity the ends have
        if option is not None and option.problem(low) is None and option.problem(fraction) is not None:
            dimension["int"] = True


def arms_without_space(question: Question, variants: Iterable[Variant]) -> Iterator[str]:
    """Yield the arms that lack an option of the search space, or refuse one of its values."""
    for variant in variants:
        space = space_of(question.keys.search, variant.arm) if question.keys.search else {}
        for key, dimension in space.items():
            if "." not in key or key.partition(".")[0] in space:  # a choice, or an option of one that is searched
                continue
            # As of any other choice, `space_problems` tries every value.
            if layer_kinds.is_choice(key) or key == model_size.KEY:
                continue
            node, last = _owner(variant.config, key)
            if node is None:
                yield f"search.space.{key}: arm {variant.arm} has no such option; leave the arm out, or the key"
                continue
            option = options(locate(node["_target_"])).get(last) if is_node(node) else None
            if option is None:
                continue
            for value in _values_to_try(dimension):
                problem = option.problem(value)
                if problem:
                    yield f"search.space.{key}: arm {variant.arm} cannot have {to_text(value)}: {problem}"


def _values_to_try(dimension: list[Any] | Range) -> list[Any]:
    """Return all choices of a searched key, or the ends of its range."""
    if isinstance(dimension, list):
        return dimension
    return [dimension["low"], dimension["high"]]


def _owner(config: Node, key: str) -> tuple[Node | None, str]:
    """Return the mapping in a config of which a dotted key sets a value, and the last name of the key.

    The mapping is None where it has no such value. One that is a value itself, such as optimizer.rates, takes any name.
    """
    *path, last = layer_kinds.place(config, key).split(".")
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, dict) and (last in node or not is_node(node)):
        return node, last
    return None, last


def space_problems(
    arm: str, space: Space, where: str, overrides: Sequence[str], composer: CellComposer, match: SizeMatch
) -> Iterator[str]:
    """Yield the values of a search space that an arm cannot have, and why.

    where: the key of the space in the file
    overrides: of the arm
    """
    for key, dimension in space.items():
        for value in _values_to_try(dimension):
            composed, reasons = composer.checked([*overrides, to_override(key, value)])
            for reason in reasons or match.problems(arm, composed.config):
                yield f"{where}.{key}: {to_text(value)}: {reason}"


def tune_problems(variants: Iterable[Variant], match: SizeMatch) -> Iterator[str]:
    """Yield the tuned settings that change the matched size."""
    for variant in variants:
        setting = " ".join(to_override(key, value) for key, value in variant.setting.items())
        for reason in match.problems(variant.arm, variant.config):
            yield f"tune: {setting}: {reason}"


def duplicates(question: Question, variants: Iterable[Variant], folder: Callable[[Variant], str]) -> Iterator[str]:
    """Yield pairs of arms, or of settings of one arm, that are the same run.

    folder: returns the folder of a variant's runs, whose name ends in the identity
    """
    by_identity: dict[str, Variant] = {}
    for variant in variants:
        other = by_identity.setdefault(folder(variant).rpartition("-")[2], variant)
        if other is variant:
            continue
        if other.arm != variant.arm:
            yield (
                f"arms {other.arm} and {variant.arm} are the same run: their overrides change nothing that is "
                f"computed ({_overrides_of(question, other.arm)} and {_overrides_of(question, variant.arm)}); with "
                "repeat=1 one of them runs again, which says whether this platform repeats a result"
            )
        else:
            yield f"tune: settings {other.setting} and {variant.setting} of arm {variant.arm} are the same run"


def _overrides_of(question: Question, name: str) -> str:
    return " ".join(next(arm.overrides for arm in question.arms if arm.name == name)) or "no overrides"


def misspelt(composer: CellComposer, base: Sequence[str], arms: Sequence[Arm]) -> list[str]:
    """Return issues for names in base and arms that exist nowhere, to be reported with the file's other problems."""
    of_base = [str(issue) for issue in composer.compose(base).issues if issue.unknown]
    of_arms: dict[str, None] = {}  # each once, in order
    for arm in arms:
        for issue in composer.compose([*base, *arm.overrides]).issues:
            if issue.unknown and str(issue) not in of_base:
                of_arms[f"{arm.name}: {issue}"] = None
    return [*(f"base: {text}" for text in of_base), *list(of_arms)[:LISTED]]
