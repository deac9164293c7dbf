"""The keys of a sweep file: type, range, default and description of each, declared once in `SweepFile`.

`checked` validates the values of a file. Messages, the JSON schema for editors and the record in plan.json follow from
the declarations; a message shows the description of the key: `expected DESCRIPTION, not VALUE`. Rules between keys are
in `question.py`; the overrides of the base and of arms are read in `arms.py`.

The order is rules of values, types of values, the file, functions: pydantic resolves an annotation where its class is
defined, so that all it names must stand above.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Required, final, get_args

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    SkipValidation,
    StringConstraints,
    Tag,
    ValidationError,
)
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from blockyard.config.override_grammar import to_text
from blockyard.errors import did_you_mean
from blockyard.runs.costs import COSTS
from blockyard.sweep.cells import Setting
from blockyard.sweep.spec.expectation import FORM
from blockyard.sweep.spec.override_text import key_problem, quote
from blockyard.sweep.spec.threshold import Kind, threshold

KINDS = ("arms", "grid", "zip", "one_at_a_time", "leave_one_out")  # keys that define the arms, of which a file has one
COMMAND_KEYS = ("config_dirs", "allow")  # read by the command line before the others
MAX_SEEDS = 10_000
MAX_FIRST_SEED = 1_000_000_000
MAX_SETTINGS = 1_000
MAX_TRIALS = 10_000
MAX_UNTIL = 200
DEFAULT_SEEDS = 3  # the fewest that allow a verdict
FIRST = 3  # seeds before the first look
COUNTED_FORM = "{from: 1000, count: 5}"
UNTIL_FORM = "{first: 3, most: 20, until: decided}"
RUNGS = 4  # the fewest of a ladder: three for a law of loss against compute, and the largest to be predicted
MOST_RUNGS = 20
TOKENS_PER_PARAM = 20.0
LADDER_FORM = "{flops: [1e12, 3e12, 1e13, 3e13], tokens_per_param: 20} or {params: [1e4, 3e4, 1e5, 3e5]}"
LENGTH_FORM = "{seconds: 60} or {flops: 1e12}"
LARGEST_FLOAT = 3.4e38  # of float32, as in contracts.option_types, whose import takes torch
_TARGET = "a metric and the value that it must reach, such as val/accuracy >= 0.9"
_LARGEST_EXACT = 2**53  # Optuna computes with floats, which hold every integer up to here
_MAX_STEPS = 10**9  # values of a range with a step
_STRICT = ConfigDict(extra="forbid", frozen=True)

Problems = Iterator[tuple[tuple[str, ...], str]]  # of a rule: the keys inside the value that lead there, the message


class _RuleError(ValueError):
    """A value of the right type has problems."""

    def __init__(self, problems: list[tuple[tuple[str, ...], str]]) -> None:
        self.problems = problems


def _rule(check: Callable[[Any], Problems]) -> AfterValidator:
    """Return a validator that collects the problems which `check` yields of a value of the right type."""

    def validate(value: Any) -> Any:
        problems = list(check(value))
        if problems:
            raise _RuleError(problems)
        return value

    return AfterValidator(validate)


def _is_settable(key: str) -> Problems:
    problem = key_problem(key)
    if problem:
        yield (), problem


def _listed_once(values: list[Any]) -> Problems:
    counts = Counter(map(to_text, values))
    for text, count in sorted(counts.items()):
        if count > 1:
            yield (), f"{text} is listed twice"


def _has_few_settings(tune: dict[str, list[Any]]) -> Problems:
    count = math.prod(map(len, tune.values()))
    if count > MAX_SETTINGS:
        most = f"at most {MAX_SETTINGS:,}. `search:` samples from more"
        yield (), f"{count:,} settings for each arm are too many; {most}"


def _rises_to_most(until: Until) -> Problems:
    if until["first"] > until["most"]:
        yield ("first",), f"{until['first']} is more than seeds.most, which is {until['most']}"


def _one_kind_of_seeds(value: Any) -> Any:
    """Return the seeds of a file. Raises _RuleError where a mapping has both a number of them and the keys of looks."""
    if isinstance(value, Mapping) and "count" in value:
        looks = [key for key in ("first", "most", "until") if key in value]
        if looks:
            raise _RuleError([((key,), "has no effect with seeds.count; remove one of them") for key in looks])
    return value


def _kind_of_seeds(value: Any) -> str:
    """Return the tag of the type that a mapping of seeds has; no tag is a key, so that messages have keys alone."""
    return "counted" if isinstance(value, Mapping) and "count" in value else "added"


def _is_range(value: Range) -> Problems:
    low = value["low"]
    high = value["high"]
    step = value.get("step")
    log = value.get("log")
    if value.get("int"):
        bounds = {"low": low, "high": high, "step": step}
        fractions = {key: bound for key, bound in bounds.items() if not isinstance(bound, int | None)}
        for key, bound in fractions.items():
            yield (key,), f"expected an integer, not {quote(bound)}"
        if fractions:
            return
    if isinstance(low, int) and isinstance(high, int) and max(abs(low), abs(high)) > _LARGEST_EXACT:
        yield (), "integers beyond 2^53 are not exact; choose a smaller range"
    elif step is not None and step > 0 and (high - low) / step > _MAX_STEPS:
        yield ("step",), f"more than {_MAX_STEPS:,} values from {low} to {high} with {step}; choose a larger one"
    if not low < high:
        yield (), f"low {low} must be below high {high}"
    if log and low <= 0:
        yield (), f"log needs low above 0, not {low}"
    if step is not None and step <= 0:
        yield ("step",), f"expected a number above 0, not {step}"
    if step is not None and low < high and step > high - low:
        yield ("step",), f"{step} is more than high - low, so {low} would be the only value"
    if step is not None and log and step != 1:
        yield ("step",), "has no effect on a log scale; remove step or log"


def _shares_no_key(search: Search) -> Problems:
    for arm, space in search.get("only", {}).items():
        for key in sorted(space.keys() & search["space"].keys()):
            yield ("only", arm, key), "search.space has it for every arm"


def _rises(rungs: list[float]) -> Problems:
    for low, high in itertools.pairwise(rungs):
        # Rungs with one label would give their arms one name.
        if not low < high or label(low) == label(high):
            yield (), f"{quote(rungs)} do not rise; list the rungs from the smallest to the largest"
            return


def _has_one_of(keys: tuple[str, str], problem: str) -> AfterValidator:
    """Return the rule that a mapping has exactly one of two keys."""

    def check(value: Mapping[str, Any]) -> Problems:
        if (keys[0] in value) == (keys[1] in value):
            yield (), f"{quote(value)} has not {problem}"

    return _rule(check)


def label(rung: float) -> str:
    """Return a rung as it appears in names, in the shorter of two forms: 1e12, 3e4, 12500."""
    plain = re.sub(r"e\+?0*", "e", f"{rung:g}")
    mantissa, _, exponent = f"{rung:.5e}".partition("e")
    scientific = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return min(plain, scientific, key=len)


def _has_spread_of_runs(figure: Figure) -> Problems:
    if figure.get("sd") is not None and (figure.get("n") or 0) < 2:
        yield ("sd",), f"expected a standard deviation of n runs, two or more, not {quote(figure['sd'])}"


def _threshold(kind: Kind) -> AfterValidator:
    def validate(text: str) -> str:
        if threshold(kind, text) is None:
            raise ValueError
        return text

    return AfterValidator(validate)


def _plain_ladder(ladder: Any) -> Any:
    """Return the ladder as plans record it: without keys that have no effect, with the default tokens per parameter."""
    if not isinstance(ladder, dict):
        return ladder
    plain = dict(ladder)
    if plain.get("floors") == "shared":
        del plain["floors"]
    if "flops" in plain:
        return {"tokens_per_param": TOKENS_PER_PARAM, **plain}
    if plain.get("tokens_per_param") is None:
        plain.pop("tokens_per_param", None)
    return plain


def _plain_search(search: Any) -> Any:
    """Return the search as plans record it: without keys that have no effect."""
    if not isinstance(search, dict):
        return search
    return {key: value for key, value in search.items() if value is not None and (key, value) != ("seeds", 1)}


def _one_of(*keys: str) -> list[JsonValue]:
    """Return the part of a JSON schema by which a mapping has one of the keys."""
    return [{"required": [key]} for key in keys]


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Positive = Annotated[float, Gt(0), Le(LARGEST_FLOAT), Field(allow_inf_nan=False)]
Number = Annotated[float, Ge(-LARGEST_FLOAT), Le(LARGEST_FLOAT), Field(allow_inf_nan=False)]
Bound = Annotated[int, Ge(-int(LARGEST_FLOAT)), Le(int(LARGEST_FLOAT))] | Number
ConfigKey = Annotated[str, _rule(_is_settable)]
Overrides = list[Annotated[str, Field(pattern="[=~]")]]
Listed = Annotated[dict[str, Overrides | str], MinLen(1)]
Factors = Annotated[dict[str, Annotated[list[Any], MinLen(1)] | Listed], MinLen(1)]
Names = list[Annotated[str, MinLen(1)]]
Values = Annotated[
    list[Any],
    MinLen(1),
    MaxLen(MAX_SETTINGS),
    _rule(_listed_once),
    Field(description=f"a list of values, 1 to {MAX_SETTINGS:,}"),
]
Rungs = Annotated[
    list[Positive],
    MinLen(RUNGS),
    MaxLen(MOST_RUNGS),
    _rule(_rises),
    Field(description=f"{RUNGS} or more numbers above 0, as a law of loss against compute needs, at most {MOST_RUNGS}"),
]
Floors = Literal["shared", "own"]  # the E of the laws L = E + A C^-a: one for all arms, or one each
By = Literal["boundary", "e-values"]
Size = Literal["params", "flops", "active", "state"]
Over = Literal["seeds", "samples", "both"]
OVERS = get_args(Over)


FirstSeed = Annotated[
    int, Ge(0), Le(MAX_FIRST_SEED), Field(alias="from", default=0, description=f"a seed, 0 to {MAX_FIRST_SEED:,}")
]


@final
class Counted(TypedDict, total=False):
    """A number of seeds in a row."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    start: FirstSeed
    count: Required[Annotated[int, Ge(1), Le(MAX_SEEDS), Field(description=f"a number of seeds, 1 to {MAX_SEEDS:,}")]]


@final
class Until(TypedDict, total=False):
    """Seeds that are added one after another until every comparison is decided."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    start: FirstSeed
    first: Annotated[
        int, Ge(2), Le(MAX_UNTIL), Field(default=FIRST, description=f"a number of seeds, 2 to {MAX_UNTIL}")
    ]
    most: Annotated[int, Ge(3), Le(MAX_UNTIL), Field(default=20, description=f"a number of seeds, 3 to {MAX_UNTIL}")]
    until: Required[Annotated[Literal["decided"], Field(description=f"decided, as in seeds: {UNTIL_FORM}")]]
    by: Annotated[By, Field(default="boundary", description="by which test: boundary, or e-values where most may grow")]


class Range(TypedDict, total=False):
    """The range of a searched key."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    low: Required[Annotated[Bound, Field(description="a number, the lowest value")]]
    high: Required[Annotated[Bound, Field(description="a number, the highest value")]]
    log: Annotated[bool, Field(description="true or false: a log scale")]
    int: Annotated[bool, Field(description="true or false: whole numbers alone")]
    step: Annotated[Bound | None, Field(description="a number, the distance between values")]


Choices = Annotated[list[Any], MinLen(1), MaxLen(MAX_TRIALS), _rule(_listed_once)]
Dimension = Annotated[
    Choices | Annotated[Range, _rule(_is_range)],
    Field(description=f"a list of choices, at most {MAX_TRIALS:,}, or a range, {{low: 1e-4, high: 1e-2, log: true}}"),
]
Space = Annotated[
    dict[ConfigKey, Dimension],
    MinLen(1),
    Field(description="{KEY: [CHOICES]} or {KEY: RANGE}, such as {optimizer.lr: {low: 1e-4, high: 1e-2, log: true}}"),
]


class Search(TypedDict, total=False):
    """The search of a sweep file. Without `seeds` each setting is tried on one seed."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    trials: Required[
        Annotated[
            int, Ge(1), Le(MAX_TRIALS), Field(description=f"a number of trials for each arm, 1 to {MAX_TRIALS:,}")
        ]
    ]
    sampler: Annotated[Literal["random", "tpe"], Field(default="tpe", description="how settings are drawn")]
    pruner: Annotated[Literal["none", "median", "halving"], Field(default="none", description="how trials are stopped")]
    space: Required[Space]
    seeds: Annotated[int, Ge(1), Field(description="on how many of the first seeds a setting is tried")]
    only: Annotated[dict[str, Space], MinLen(1), Field(description="a space for single arms, {ARM: {KEY: [VALUES]}}")]


class Ladder(TypedDict, total=False):
    """The rungs of a sweep from the smallest to the largest, of one of two kinds."""

    __pydantic_config__ = ConfigDict(**_STRICT, json_schema_extra={"oneOf": _one_of("flops", "params")})  # type: ignore[misc]
    flops: Rungs
    params: Rungs
    tokens_per_param: Annotated[Positive, Field(description="a number above 0, such as 20, where rungs set the steps")]
    floors: Annotated[Floors, Field(description="whether the laws of the arms share one floor")]


class MatchedLength(TypedDict, total=False):
    """The length of the training of every arm, in one of two units."""

    __pydantic_config__ = ConfigDict(**_STRICT, json_schema_extra={"oneOf": _one_of("seconds", "flops")})  # type: ignore[misc]
    seconds: Annotated[Positive, Field(description="a number above 0, the seconds that every arm trains")]
    flops: Annotated[Positive, Field(description="a number above 0, the FLOPs that every arm trains with")]


class Figure(TypedDict, total=False):
    """A value from a paper or another tool, with the number of runs and their standard deviation where known."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    value: Required[Annotated[Number, Field(description="a number")]]
    source: Required[Annotated[Text, Field(description="where the figure is from")]]
    n: Annotated[Annotated[int, Ge(1)] | None, Field(description="a number of runs")]
    sd: Annotated[Annotated[Number, Ge(0)] | None, Field(description="a standard deviation of n runs, two or more")]


class SweepFile(BaseModel):
    """The content of a sweep file. One of KINDS defines the arms."""

    model_config = ConfigDict(**_STRICT, title="A sweep file", json_schema_extra={"oneOf": _one_of(*KINDS)})

    claim: Text = Field(description="one sentence that the sweep could prove wrong")
    source: Text | None = Field(None, description="a text, which says where the claim is from")
    # `arms.py` reads the base and the arms: their types are for the JSON schema alone.
    base: SkipValidation[Overrides | None] = Field(None, description="a list of overrides, those of every arm")
    baseline: Text | None = Field(None, description="the name of the arm that the others are compared with")
    arms: SkipValidation[Listed | None] = Field(None, description="{NAME: [OVERRIDES]}")
    grid: SkipValidation[Factors | None] = Field(None, description="{KEY: [VALUES]}: every combination")
    zip: SkipValidation[Factors | None] = Field(None, description="{KEY: [VALUES]}: first values together, and so on")
    one_at_a_time: SkipValidation[Factors | None] = Field(
        None, description="{KEY: [VALUES]}: all first values, and every other value alone"
    )
    leave_one_out: SkipValidation[Listed | None] = Field(
        None, description="{NAME: [OVERRIDES]}: all of them, and each one left out"
    )
    seeds: (
        Annotated[int, Ge(1), Le(MAX_SEEDS)]
        | Annotated[list[Annotated[int, Ge(0)]], MinLen(1), MaxLen(MAX_SEEDS), _rule(_listed_once)]
        | Annotated[
            Annotated[Counted, Tag("counted")] | Annotated[Until, _rule(_rises_to_most), Tag("added")],
            Discriminator(_kind_of_seeds),
            BeforeValidator(_one_kind_of_seeds),
        ]
    ) = Field(
        DEFAULT_SEEDS,
        description=f"up to {MAX_SEEDS:,} seeds: a number, such as 5, a list, such as [0, 1, 2], {COUNTED_FORM}, or "
        f"{UNTIL_FORM}",
    )
    budget: Annotated[dict[Literal["cells", "flops", "hours"], Positive], MinLen(1), MaxLen(1)] | None = Field(
        None, description="one limit above 0: {cells: 60}, {flops: 1e15} or {hours: 2}"
    )
    tune: Annotated[dict[ConfigKey, Values], MinLen(1), _rule(_has_few_settings)] | None = Field(
        None, description="{key: [values]}, such as {optimizer.lr: [1e-3, 3e-3]}"
    )
    tune_seeds: Annotated[int, Ge(1)] | None = Field(None, description="a number of seeds, 1 or more, or null for all")
    tune_by: Annotated[str, Field(pattern=r"^val/[A-Za-z_][\w./@-]*$")] | None = Field(
        None, description="val/NAME, such as val/loss or val/loss@last5"
    )
    search: Annotated[Search, BeforeValidator(_plain_search), _rule(_shares_no_key)] | None = Field(
        None, description="a mapping of trials, space and more, such as {trials: 20, space: {optimizer.lr: [1e-3]}}"
    )
    match: (
        Size | Annotated[MatchedLength, _has_one_of(("seconds", "flops"), f"one unit; write {LENGTH_FORM}")] | None
    ) = Field(
        None,
        description=f"the size that all arms share, {', '.join(get_args(Size))}, or how long all train, {LENGTH_FORM}",
    )
    ladder: (
        Annotated[
            Ladder,
            BeforeValidator(_plain_ladder),
            _has_one_of(("flops", "params"), f"one list of rungs; write {LADDER_FORM}"),
        ]
        | None
    ) = Field(None, description=LADDER_FORM)
    metric: Annotated[str, Field(pattern=rf"^((test|val)/[A-Za-z_][\w./@-]*|{'|'.join(COSTS)})$")] | None = Field(
        None, description=f"test/NAME, such as test/accuracy or test/loss, or a cost: {', '.join(COSTS)}"
    )
    success: Annotated[Text, _threshold("success")] | None = Field(
        None, description="a metric and the value that it must reach, such as test/exact >= 0.9"
    )
    steps_to: Annotated[Text, _threshold("steps_to")] | None = Field(None, description=_TARGET)
    seconds_to: Annotated[Text, _threshold("seconds_to")] | None = Field(None, description=_TARGET)
    tokens_to: Annotated[Text, _threshold("tokens_to")] | None = Field(None, description=_TARGET)
    flops_to: Annotated[Text, _threshold("flops_to")] | None = Field(None, description=_TARGET)
    over: Over | None = Field(None, description="for what verdicts hold")
    resplit: bool | None = Field(None, description="true or false: whether each seed has its own split of the data")
    external: dict[str, Annotated[Figure, _rule(_has_spread_of_runs)]] | None = Field(
        None,
        description="a mapping of figures, {paper: {value: 0.91, source: Author 2020 table 2, n: 5, sd: 0.004}}",
    )
    expect: Text | None = Field(None, description=f"an expectation; {FORM}")
    margin: Annotated[float, Gt(0), Field(allow_inf_nan=False)] | None = Field(
        None, description="a number above 0 in the metric's unit, such as 0.01"
    )
    config_dirs: Names | None = Field(None, description="a list of names; write config_dirs: [name]")
    allow: Names | None = Field(None, description="a list of names; write allow: [name]")

    @property
    def matched_size(self) -> Size | None:
        """The size that `match` gives all arms, or None."""
        return None if isinstance(self.match, dict) else self.match

    @property
    def matched_length(self) -> dict[str, float]:
        """The length of training that `match` gives all arms, by its unit; empty where it gives none."""
        length: Any = self.match if isinstance(self.match, dict) else {}
        return dict(length)


def space_of(search: Search, arm: str) -> Space:
    """Return the search space of an arm: the shared one with the dimensions of this arm alone."""
    return search["space"] | search.get("only", {}).get(arm, {})


def settings_of(grid: Mapping[str, list[Any]]) -> list[Setting]:
    """Return every setting of a grid in order; one empty setting where nothing is tuned."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def sweep_schema() -> dict[str, Any]:
    """Return the JSON schema of a sweep file. It lacks the rules between keys, which `--dry-run` applies."""
    return {"$schema": GenerateJsonSchema.schema_dialect, **SweepFile.model_json_schema()}


def checked(content: Mapping[str, Any]) -> tuple[SweepFile, set[str], list[str]]:
    """Return the valid keys of a file, the names of its invalid keys, and every problem of these."""
    try:
        # Strict, since YAML has types: the text "3" is no number.
        return SweepFile.model_validate(content, strict=True), set(), []
    except ValidationError as error:
        wrong = {str(detail["loc"][0]) for detail in error.errors()}
        valid = {key: value for key, value in content.items() if key not in wrong}
        # The claim is the one key without a default, and may be among the wrong ones.
        keys = SweepFile.model_validate({"claim": "?", **valid}, strict=True)
        return keys, wrong, _problems_of(error, content)


def _problems_of(error: ValidationError, content: Mapping[str, Any]) -> list[str]:
    """Return every problem of the content of a file, with the path of its key.

    Pydantic reports an error for each of the types that a value may have. The most specific errors are kept.
    """
    specific: dict[tuple[tuple[str, ...], str], bool] = {}  # path and message -> whether it says more than a type
    for detail in error.errors():
        path, schemas, value = _location(detail["loc"], content)
        description = schemas[0].get("description", "a value")
        keys = list(dict.fromkeys(key for schema in schemas for key in schema.get("properties", ())))
        rule_error = detail.get("ctx", {}).get("error")
        if isinstance(rule_error, _RuleError):
            for inner_path, message in rule_error.problems:
                specific[(*path, *inner_path), message] = True
        elif detail["type"] == "extra_forbidden":
            name = str(detail["loc"][-1])
            hint = did_you_mean(name, keys)
            if name == "type" and keys[0] == "low":
                hint = "; the option says whether its values are whole"
            specific[(*path, name), f"unknown key{hint} (keys: {', '.join(keys)})"] = True
        elif detail["type"] == "missing":
            specific[path, f"missing; write {description}"] = True
        elif detail["type"] == "literal_error" and not isinstance(detail["input"], Mapping):
            text = quote(detail["input"])
            allowed = re.findall(r"'([\w-]+)'", detail["ctx"]["expected"])
            hint = did_you_mean(str(detail["input"]), allowed)
            specific[path, f"{text} is not one of {', '.join(allowed)}{hint}"] = True
        else:
            specific[path, f"expected {description}, not {quote(value)}"] = False
    explained: set[tuple[str, ...]] = set()  # paths of values with a specific error, or with any error inside
    for (path, _), is_specific in specific.items():
        explained.update(path[:length] for length in range(len(path)))
        if is_specific:
            explained.add(path)
    problems = []
    for (path, message), is_specific in specific.items():
        if is_specific or path not in explained:
            problems.append(f"{'.'.join(path)}: {message}")
    return problems


def _location(
    location: tuple[int | str, ...], content: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[dict[str, Any]], Any]:
    """Return the keys that lead to an error, the schemas of the value there, and the value.

    location: pydantic's, which also has indices of lists and the names of the types that a value may have
    """
    root = sweep_schema()
    path: tuple[str, ...] = ()
    value: Any = content
    schemas = [*_alternatives(root, root["$defs"])]
    for part in location:
        inner: list[dict[str, Any]] = []
        for schema in schemas:
            entry = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
            if isinstance(entry, dict):
                inner += _alternatives(entry, root["$defs"])
        if inner:
            path = (*path, str(part))
            schemas = inner
            value = value.get(part) if isinstance(value, Mapping) else None
    return path, schemas, value


def _alternatives(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema, and every schema that a value may have instead."""
    yield schema
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if "$ref" in schema:
        alternatives.append(definitions[schema["$ref"].rpartition("/")[2]])
    for alternative in alternatives:
        yield from _alternatives(alternative, definitions)
