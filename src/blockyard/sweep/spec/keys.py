"""The keys of a sweep file: type, range, default and description of each, declared once.

`checked` reads the values of a file. What is wrong with them, the JSON schema for editors and the record in plan.json
follow from the declarations; a message shows the description of the key: `expected DESCRIPTION, not VALUE`. Rules
between keys are in `question.py`; the overrides of the base and of arms are read in `arms.py`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Required, get_args

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SkipValidation,
    StringConstraints,
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

MAX_SEEDS, MAX_SETTINGS, MAX_TRIALS, MOST_UNTIL = 10_000, 1_000, 10_000, 200
FIRST = 3  # seeds before the first look
UNTIL_FORM = "{first: 3, most: 20, until: decided}"
RUNGS = 4  # the fewest of a ladder: three for a law of loss against compute, and the largest to be predicted
MOST_RUNGS = 20
TOKENS_PER_PARAM = 20.0
LADDER_FORM = "{flops: [1e12, 3e12, 1e13, 3e13], tokens_per_param: 20} or {params: [1e4, 3e4, 1e5, 3e5]}"
LARGEST_FLOAT = 3.4e38  # of float32, as in contracts.option_types, whose import takes torch
_WHOLE = 2**53  # up to which Optuna, which computes with floats, has every integer
_STEPS = 10**9  # values of a range with a step
_STRICT = ConfigDict(extra="forbid", frozen=True)

# Rules of values. Each yields problems: the keys inside the value that lead there, and the message.

Problems = Iterator[tuple[tuple[str, ...], str]]


class _RuleError(ValueError):
    """A value of the right type has problems."""

    def __init__(self, problems: list[tuple[tuple[str, ...], str]]) -> None:
        self.problems = problems


def _rule(check: Callable[[Any], Problems]) -> AfterValidator:
    def validate(value: Any) -> Any:
        if problems := list(check(value)):
            raise _RuleError(problems)
        return value

    return AfterValidator(validate)


def _is_settable(key: str) -> Problems:
    if problem := key_problem(key):
        yield (), problem


def _listed_once(values: list[Any]) -> Problems:
    counts = Counter(to_text(value) for value in values)
    yield from (((), f"{text} is listed twice") for text, count in sorted(counts.items()) if count > 1)


def _has_few_settings(tune: dict[str, list[Any]]) -> Problems:
    count = math.prod(map(len, tune.values()))
    if count > MAX_SETTINGS:
        most = f"at most {MAX_SETTINGS:,}. `search:` samples from more"
        yield (), f"{count:,} settings for each arm are too many; {most}"


def _rises_to_most(until: Until) -> Problems:
    if until["first"] > until["most"]:
        yield ("first",), f"{until['first']} is more than seeds.most, which is {until['most']}"


def _is_range(value: Range) -> Problems:
    low, high, step, log = value["low"], value["high"], value.get("step"), value.get("log")
    bounds = {"low": low, "high": high} | ({} if step is None else {"step": step})
    if value.get("int") and (parts := [key for key, bound in bounds.items() if not isinstance(bound, int)]):
        yield from (((key,), f"expected an integer, not {quote(bounds[key])}") for key in parts)
        return
    if isinstance(low, int) and isinstance(high, int) and max(abs(low), abs(high)) > _WHOLE:
        yield (), "integers beyond 2^53 are not exact; choose a smaller range"
    elif step is not None and step > 0 and (high - low) / step > _STEPS:
        yield ("step",), f"more than {_STEPS:,} values from {low} to {high} with {step}; choose a larger one"
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
    for arm, own in search.get("only", {}).items():
        for key in sorted(own.keys() & search["space"].keys()):
            yield ("only", arm, key), "search.space has it for every arm"


def _rises(rungs: list[float]) -> Problems:
    if any(not low < high or label(low) == label(high) for low, high in itertools.pairwise(rungs)):
        yield (), f"{quote(rungs)} do not rise; list the rungs from the smallest to the largest"


def _has_one_kind(ladder: Ladder) -> Problems:
    if ("flops" in ladder) == ("params" in ladder):
        yield (), f"{quote(ladder)} has not one list of rungs; write {LADDER_FORM}"


def label(rung: float) -> str:
    """A rung as it appears in names, in the shorter of two forms: 1e12, 3e4, 12500."""
    mantissa, _, exponent = f"{rung:.5e}".partition("e")
    short = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return min(re.sub(r"e\+?0*", "e", f"{rung:g}"), short, key=len)


def _has_spread_of_runs(figure: Figure) -> Problems:
    if figure.get("sd") is not None and (figure.get("n") or 0) < 2:
        yield ("sd",), f"expected a standard deviation of n runs, two or more, not {quote(figure['sd'])}"


def _threshold(kind: Kind) -> AfterValidator:
    def validate(text: str) -> str:
        if threshold(kind, text) is None:
            raise ValueError
        return text

    return AfterValidator(validate)


# Plans record these mappings without what has no effect, and with a default that depends on another key.


def _plain_ladder(ladder: Any) -> Any:
    if not isinstance(ladder, dict):
        return ladder
    idle = {"floors": "shared"} | ({} if "flops" in ladder else {"tokens_per_param": None})
    plain = {key: value for key, value in ladder.items() if key not in idle or value != idle[key]}
    return {"tokens_per_param": TOKENS_PER_PARAM, **plain} if "flops" in ladder else plain


def _plain_search(search: Any) -> Any:
    if not isinstance(search, dict):
        return search
    return {key: value for key, value in search.items() if value is not None and (key, value) != ("seeds", 1)}


# Types of values.


def _one_of(*keys: str) -> list[JsonValue]:
    """The part of a JSON schema which says that a mapping has one of the keys."""
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
Match = Literal["params", "flops", "active", "state"]
Over = Literal["seeds", "samples", "both"]
OVERS = get_args(Over)


class Until(TypedDict, total=False):
    """Seeds that are given out one after another until every comparison is decided."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    first: Annotated[
        int, Ge(2), Le(MOST_UNTIL), Field(default=FIRST, description=f"a number of seeds, 2 to {MOST_UNTIL}")
    ]
    most: Annotated[int, Ge(3), Le(MOST_UNTIL), Field(default=20, description=f"a number of seeds, 3 to {MOST_UNTIL}")]
    until: Required[Annotated[Literal["decided"], Field(description=f"decided, as in seeds: {UNTIL_FORM}")]]


class Range(TypedDict, total=False):
    """The range of a searched key; whole numbers where `int`."""

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
# What is searched: config key -> its choices, or their range.
Space = Annotated[
    dict[ConfigKey, Dimension],
    MinLen(1),
    Field(description="{KEY: [CHOICES]} or {KEY: RANGE}, such as {optimizer.lr: {low: 1e-4, high: 1e-2, log: true}}"),
]


class Search(TypedDict, total=False):
    """The search of a sweep file; without `seeds` each setting is tried on one."""

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
    """The rungs of a sweep, rising, of one of two kinds."""

    __pydantic_config__ = ConfigDict(**_STRICT, json_schema_extra={"oneOf": _one_of("flops", "params")})  # type: ignore[misc]
    flops: Rungs
    params: Rungs
    tokens_per_param: Annotated[Positive, Field(description="a number above 0, such as 20, where rungs set the steps")]
    floors: Annotated[Floors, Field(description="whether the laws of the arms share one floor")]


class Figure(TypedDict, total=False):
    """A value from a paper or another tool: of how many runs, and their standard deviation, where that is known."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    value: Required[Annotated[Number, Field(description="a number")]]
    source: Required[Annotated[Text, Field(description="where the figure is from")]]
    n: Annotated[Annotated[int, Ge(1)] | None, Field(description="a number of runs")]
    sd: Annotated[Annotated[Number, Ge(0)] | None, Field(description="a standard deviation of n runs, two or more")]


# The file.

KINDS = ("arms", "grid", "zip", "one_at_a_time", "leave_one_out")
COMMAND_KEYS = ("config_dirs", "allow")  # which the command line reads before the others


class SweepFile(BaseModel):
    """The content of a sweep file. One of KINDS defines the arms."""

    model_config = ConfigDict(**_STRICT, title="A sweep file", json_schema_extra={"oneOf": _one_of(*KINDS)})

    claim: Text = Field(description="one sentence that the sweep could prove wrong")
    source: Text | None = Field(None, description="a text, which says where the claim is from")
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
        | Annotated[Until, _rule(_rises_to_most)]
    ) = Field(
        3,  # the fewest that allow a verdict
        description=f"up to {MAX_SEEDS:,} seeds: a number, such as 5, a list, such as [0, 1, 2], or {UNTIL_FORM}",
    )
    budget: Annotated[dict[Literal["cells", "flops", "hours"], Positive], MinLen(1), MaxLen(1)] | None = Field(
        None, description="one limit above 0: {cells: 60}, {flops: 1e15} or {hours: 2}"
    )
    tune: Annotated[dict[ConfigKey, Values], MinLen(1), _rule(_has_few_settings)] | None = Field(
        None, description="{key: [values]}, such as {optimizer.lr: [1e-3, 3e-3]}"
    )
    tune_seeds: Annotated[int, Ge(1)] | None = Field(None, description="a number of seeds, 1 or more, or null for all")
    search: Annotated[Search, BeforeValidator(_plain_search), _rule(_shares_no_key)] | None = Field(
        None, description="a mapping of trials, space and more, such as {trials: 20, space: {optimizer.lr: [1e-3]}}"
    )
    match: Match | None = Field(None, description="the size that all arms share")
    ladder: Annotated[Ladder, BeforeValidator(_plain_ladder), _rule(_has_one_kind)] | None = Field(
        None, description=LADDER_FORM
    )
    metric: Annotated[str, Field(pattern=rf"^((test|val)/[A-Za-z_][\w./@-]*|{'|'.join(COSTS)})$")] | None = Field(
        None, description=f"test/NAME, such as test/accuracy or test/loss, or a cost: {', '.join(COSTS)}"
    )
    success: Annotated[Text, _threshold("success")] | None = Field(
        None, description="a metric and the value that it must reach, such as test/exact >= 0.9"
    )
    steps_to: Annotated[Text, _threshold("steps_to")] | None = Field(
        None, description="a metric and the value that it must reach, such as val/accuracy >= 0.9"
    )
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


def space_of(search: Search, arm: str) -> Space:
    """What is searched for an arm: the space that all arms share, and what only this one has."""
    return search["space"] | search.get("only", {}).get(arm, {})


def settings_of(grid: Mapping[str, list[Any]]) -> list[Setting]:
    """Every setting of a grid in order; one empty setting where nothing is tuned."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


# Reads the content of a file.


def sweep_schema() -> dict[str, Any]:
    """Return the JSON schema of a sweep file; what depends on several keys only `--dry-run` knows."""
    return {"$schema": GenerateJsonSchema.schema_dialect, **SweepFile.model_json_schema()}


def checked(content: Mapping[str, Any]) -> tuple[SweepFile, set[str], list[str]]:
    """The keys of a file without the wrong ones, the names of these, and every problem of them."""
    try:
        return SweepFile.model_validate(content, strict=True), set(), []
    except ValidationError as error:
        wrong = {str(each["loc"][0]) for each in error.errors()}
        sound = {key: value for key, value in content.items() if key not in wrong}
        keys = SweepFile.model_validate({"claim": "?", **sound}, strict=True)
        return keys, wrong, _problems_of(error, content)


def _problems_of(error: ValidationError, content: Mapping[str, Any]) -> list[str]:
    """Every problem of the content of a file, with the path of its key.

    Of a value that may have one of several types each type reports errors; the most specific ones are kept.
    """
    found: list[tuple[tuple[str, ...], str]] = []
    general = set()
    for each in error.errors():
        path, schemas, value = _place(each["loc"], content)
        description = schemas[0].get("description", "a value")
        keys = [key for schema in schemas for key in schema.get("properties", ())]
        if isinstance(broken := each.get("ctx", {}).get("error"), _RuleError):
            found += [((*path, *where), text) for where, text in broken.problems]
        elif each["type"] == "extra_forbidden":
            name = str(each["loc"][-1])
            hint = "; the option says whether its values are whole" if (name, keys[0]) == ("type", "low") else ""
            text = f"unknown key{hint or did_you_mean(name, keys)} (keys: {', '.join(keys)})"
            found.append(((*path, name), text))
        elif each["type"] == "missing":
            found.append((path, f"missing; write {description}"))
        elif each["type"] == "literal_error":
            value, words = each["input"], re.findall(r"'(\w+)'", each["ctx"]["expected"])
            found.append((path, f"{quote(value)} is not one of {', '.join(words)}{did_you_mean(str(value), words)}"))
        else:
            general.add(text := f"expected {description}, not {quote(value)}")
            found.append((path, text))
    inner = {path[:end] for path, text in found for end in range(len(path) + (text not in general))}
    kept = dict.fromkeys(each for each in found if each[1] not in general or each[0] not in inner)
    return [f"{'.'.join(path)}: {text}" for path, text in kept]


def _place(
    location: tuple[int | str, ...], content: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[dict[str, Any]], Any]:
    """The place of an error: the keys that lead there, the schemas of the value, and the value.

    Pydantic's location also has indices of lists, and the names of the types that a value may have.
    """
    root = sweep_schema()
    path: tuple[str, ...] = ()
    value: Any = content
    schemas = [*_alternatives(root, root["$defs"])]
    for part in location:
        entries = [each.get("properties", {}).get(part, each.get("additionalProperties")) for each in schemas]
        if below := [each for each in entries if isinstance(each, dict)]:
            path = (*path, str(part))
            schemas = [inner for each in below for inner in _alternatives(each, root["$defs"])]
            value = value.get(part) if isinstance(value, Mapping) else None
    return path, schemas, value


def _alternatives(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema, and those of which a value may have any."""
    yield schema
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if "$ref" in schema:
        inner.append(definitions[schema["$ref"].rpartition("/")[2]])
    for each in inner:
        yield from _alternatives(each, definitions)
