"""From a sweep file to a frozen plan: every cell composed and judged before the first one starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.config.check_cache import CheckCache
from blockyard.config.compose import Composed
from blockyard.config.compose_many import Composer
from blockyard.config.model_size import ModelSizes
from blockyard.errors import UserError
from blockyard.runs.identity import run_name
from blockyard.runs.provenance import provenance
from blockyard.sweep.plan import match_sizes, shared_settings
from blockyard.sweep.plan.compact_json import Nodes
from blockyard.sweep.plan.sweep_plan import Arm, Cell, Refused, SweepPlan, Variant
from blockyard.sweep.search import optuna_store
from blockyard.sweep.spec import budget, override_text
from blockyard.sweep.spec.question import BadQuestion, Question, read

_SHOWN = 10  # problems of one kind that are told in full


def make(
    path: Path,
    *,
    outputs: str = "outputs",
    config_dirs: Sequence[str] = (),
    overrides: Sequence[str] = (),
    command: Sequence[str] | None = None,
    elsewhere: bool = False,
) -> SweepPlan:
    """The plan of a sweep file; nothing is written.

    outputs: the folder that holds all runs; overrides: words added to the file's base
    elsewhere: whether cells run on other machines, so that GPUs missing here are no reason against them
    Raises BadQuestion with every problem of the file, of its base or its baseline, or where two arms are one.
    """
    question = read(Path(path))
    planner = _Planner(question, [*question.base, *overrides], Composer(tuple(config_dirs)), CheckCache(elsewhere))
    planner.judge_base(overrides)
    planner.fill()
    where = Path(outputs).expanduser().absolute()
    facts = provenance(command) | {
        "overrides": list(overrides),
        "file": str(Path(path).expanduser().absolute()),
        "config_dirs": [str(Path(folder).expanduser().absolute()) for folder in config_dirs],
        "metric": planner.metric,
        "notes": planner.notes(),
    }
    return SweepPlan(
        name=question.name,
        question=question.as_dict() | {"base": planner.base},
        outputs=str(where),
        arms=question.arms,
        variants=planner.variants,
        cells=() if question.search else tuple(planner.cells()),
        refused=tuple(planner.refused),
        facts=facts | ({"match": planner.matched} if planner.matched else {}),
    )


@dataclass
class _Planner:
    question: Question
    base: list[str]
    composer: Composer
    judge: CheckCache
    scales: ModelSizes = field(default_factory=ModelSizes)
    nodes: Nodes = field(default_factory=Nodes)
    variants: dict[str, Variant] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    metric: dict[str, str] = field(default_factory=dict)
    matched: dict[str, Any] = field(default_factory=dict)
    pinned: set[str | int] = field(default_factory=set)
    _folders: dict[str, str] = field(default_factory=dict)

    def judge_base(self, overrides: Sequence[str]) -> None:
        """What all arms share must be sound by itself. Raises BadQuestion."""
        problems = [
            p for word in overrides if not word.startswith("allow=") and (p := override_text.problem(word, "base"))
        ]
        if problems:
            raise BadQuestion(problems)
        composed, reasons = self._judged(self.base)
        if reasons:
            raise BadQuestion([f"base: {reason}" for reason in reasons])
        if self.question.match and composed.matched:
            raise BadQuestion([f"match: the base has match.{composed.matched['by']} too; leave one of them out"])
        try:
            allow = list(composed.config.get("allow") or [])
            validation, direction = optuna_store.target(self.question.metric, composed.config, allow)
        except UserError as error:
            raise BadQuestion([str(error)]) from error
        name = self.question.metric or f"test/{validation.partition('/')[2]}"
        self.metric = {"name": name, "validation": validation, "direction": direction}

    def fill(self) -> None:
        """Every variant, or why it is refused. Raises BadQuestion where the comparison would not stand."""
        settings = budget.settings(self.question.tune)
        widths = self._widths()
        for arm in self.question.arms:
            width = [f"model.dim={widths[arm.name]}"] if arm.name in widths else []
            for number, setting in enumerate(settings):
                key = f"{arm.name}#{number}" if self.question.tune else arm.name
                tuned = [override_text.word(name, value) for name, value in setting.items()]
                self._add(key, arm, setting, [*self.base, *arm.overrides, *width, *tuned])
        standing = {variant.arm for variant in self.variants.values()}
        if self.question.baseline not in standing:
            reasons = [
                f"baseline {r.arm}: {text}"
                for r in self.refused
                if r.arm == self.question.baseline
                for text in r.reasons
            ]
            raise BadQuestion(list(dict.fromkeys(reasons)))
        self._judge_space(widths)
        self._judge_tuned()
        twins = list(self._twins())
        if twins:
            more = [f"and {len(twins) - _SHOWN} more pairs of this kind"] if len(twins) > _SHOWN else []
            raise BadQuestion([*twins[:_SHOWN], *more])

    def cells(self) -> Iterator[Cell]:
        """All that may be asked for, variant by variant."""
        for variant in self.variants.values():
            folder = self.folder(variant)
            for seed in self.question.seeds:
                yield Cell(variant.key, seed, f"{folder}/s{seed}")

    def folder(self, variant: Variant) -> str:
        """The folder of a variant's runs; it ends in the identity."""
        if variant.key not in self._folders:
            self._folders[variant.key] = run_name(variant.config)
        return self._folders[variant.key]

    def notes(self) -> list[str]:
        """What was decided for the user."""
        return [*shared_settings.note(self.pinned), *match_sizes.notes(self.matched)]

    def _judged(self, line: Sequence[str]) -> tuple[Composed, list[str]]:
        composed = self.composer.compose(line)
        return composed, self.judge.reasons(composed)

    def _add(self, key: str, arm: Arm, setting: dict[str, Any], line: list[str]) -> None:
        composed, reasons = self._judged(line)
        if self.question.match and arm.name not in self.matched.get("arms", {}) and not reasons:
            why = self.scales.why(composed.config, self.question.match)
            reasons = [
                "match: no width (model.dim) of this arm gives a model that can be weighed against the baseline's"
                + (f" ({why})" if why else "")
            ]
        if reasons:
            self.refused.append(Refused(arm.name, setting, tuple(reasons)))
            return
        config = composed.config
        precision = shared_settings.precision(config, line)
        if precision is not None:
            self.pinned.add(precision)
            config["trainer"]["precision"] = precision
        config = self.nodes.config(shared_settings.named(config, self.question.name, arm.name))
        choices = self.nodes.shared(composed.choices)
        self.variants[key] = Variant(key, arm.name, config, choices, setting)

    def _judge_space(self, widths: dict[str, int]) -> None:
        """Raise BadQuestion where the baseline cannot have one of the values that are searched."""
        baseline = next(arm for arm in self.question.arms if arm.name == self.question.baseline)
        width = [f"model.dim={widths[baseline.name]}"] if baseline.name in widths else []
        problems = []
        for key, of in ((self.question.search or {}).get("space") or {}).items():
            for value in of if isinstance(of, list) else (of["low"], of["high"]):
                composed, reasons = self._judged(
                    [*self.base, *baseline.overrides, *width, override_text.word(key, value)]
                )
                reasons = reasons or self._weighty(baseline.name, composed.config)
                problems += [f"search.space.{key}: {override_text.text(value)}: {text}" for text in reasons]
        if problems:
            raise BadQuestion(problems)

    def _judge_tuned(self) -> None:
        """Raise BadQuestion where a setting that is tuned changes what the widths were solved for."""
        for variant in self.variants.values() if self.question.tune else ():
            said = " ".join(override_text.word(*item) for item in variant.setting.items())
            if reasons := self._weighty(variant.arm, variant.config):
                raise BadQuestion([f"tune: {said}: {text}" for text in reasons])

    def _weighty(self, arm: str, config: dict[str, Any]) -> list[str]:
        """Why a setting would undo the match, where the file asks for one."""
        by = self.question.match
        if not by or self.scales.weigh(config, by) == self.matched["arms"][arm]["value"]:
            return []
        return [f"it changes the {match_sizes.WORDS[by]} of {arm}, so that the arms would not be matched; leave it out"]

    def _widths(self) -> dict[str, int]:
        """The solved width of each arm; empty where nothing is matched."""
        if not self.question.match:
            return {}
        lines = {arm.name: [*self.base, *arm.overrides] for arm in self.question.arms}
        found, self.matched = match_sizes.solve(
            self.question.match, str(self.question.baseline), lines, self.composer.compose, self.scales
        )
        return found

    def _twins(self) -> Iterator[str]:
        """Two arms, or two settings of one, that are the same run."""
        seen: dict[str, Variant] = {}
        for variant in self.variants.values():
            other = seen.setdefault(self.folder(variant).rpartition("-")[2], variant)
            if other is variant:
                continue
            if other.arm != variant.arm:
                yield (
                    f"arms {other.arm} and {variant.arm} build the same model: nothing in them differs that changes "
                    f"what is computed ({_said(self.question, other.arm)} and {_said(self.question, variant.arm)})"
                )
            else:
                yield f"tune: of the arm {variant.arm} the settings {other.setting} and {variant.setting} are one run"


def _said(question: Question, name: str) -> str:
    return " ".join(next(arm.overrides for arm in question.arms if arm.name == name)) or "no overrides"
