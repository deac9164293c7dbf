"""Configs made straight from the YAML files, and sets of them that cover every pair of choices."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import torch
import yaml

from blockyard.config import catalog
from blockyard.config.alternatives import default_pick
from blockyard.config.build import Components
from blockyard.config.compose import Composed, complete, compose
from blockyard.config.rules import RULES, Facts
from blockyard.config.targets import locate
from blockyard.contracts import Batch
from blockyard.model._prefix import Prefix

# What a model is made of. The rest (optimizer, trainer, ...) does not change what can be combined.
FAMILIES = (
    "data",
    "tokenizer",
    "position",
    "token_mixer",
    "channel_mixer",
    "norm",
    "block",
    "model",
    "head",
    "objective",
)
# What reads a source of another kind than the data's own sequence, in all rows.
READERS = {
    "image": {"source_tokenizer": "patch", "source_position": "learned"},
    "audio": {"source_tokenizer": "log_mel"},
}
Tuple = tuple[tuple[str, str], ...]  # choices of some families, in their order
SMALL_OPTIONS = {
    "model": {"dim": 48, "depth": 2, "heads": 2},
    "data": {
        "context": 20,
        "source_context": 20,
        "length": 12,
        "pairs": 2,
        "held": 4,
        "samples": 64,
        "eval_samples": 8,
    },
    # An early map of timm's: the last one of so small an image is one token, which a strict mixer shows nothing.
    # Of a sound, as few tokens as one-hot positions leave room for.
    "tokenizer": {"vocab_size": 300, "stage": 1, "hop_ms": 40.0},
}


@cache
def _base() -> dict[str, Any]:
    return compose(["logger=none"]).config


@cache
def _node(family: str, name: str) -> dict[str, Any]:
    node = yaml.safe_load(catalog.choices(family)[name].path.read_text()) or {}
    node.update({key: value for key, value in SMALL_OPTIONS.get(family, {}).items() if key in node})
    return node


def config(choices: dict[str, str]) -> Composed:
    """The composed config of one choice per family, small enough to run in milliseconds."""
    tree = {
        **copy.deepcopy(_base()),
        **{family: copy.deepcopy(_node(family, name)) for family, name in choices.items()},
    }
    if needs_class_token(choices["head"]) and "prefix" in tree["model"]:
        tree["model"]["prefix"] = {"class_token": True, "registers": 1}
    for key, name in readers(choices["data"]).items():
        tree[key] = copy.deepcopy(_node(catalog.OF_SOURCE[key], name))
        tree["model"].update({"shared": False} if "shared" in tree["model"] else {})
    complete(tree)
    return Composed(tree, dict(choices))


@cache
def readers(data: str) -> dict[str, str]:
    """What must read the source of a data set, where that is of another kind than its own sequence."""
    plan = _plan("data", data)
    source = None if plan is None else plan.spec.source
    return {} if source is None or source.modality == plan.spec.modality else READERS[source.modality]


@cache
def names() -> dict[str, list[str]]:
    """Every choice of every family that needs no folder, as it lies on the disk; of data, one for each kind."""
    found = {family: list(catalog.choices(family)) for family in FAMILIES}
    kinds: dict[Any, str] = {}
    for name in found["data"]:
        plan = _plan("data", name)
        if plan is not None and plan.missing() is None:
            spec = plan.spec
            kind = (spec.modality, len(spec.shape), spec.variable, spec.packed, spec.target)
            kind += () if spec.source is None else (spec.source.modality,)
            kinds.setdefault(kind, name)
    # A tokenizer that passes ids through reads data that needs a folder, and `pretrained` needs a file.
    tokenizers = [
        name
        for name in found["tokenizer"]
        if name != "pretrained" and not locate(catalog.choices("tokenizer")[name].target).reads_ids
    ]
    return {**found, "data": list(kinds.values()), "tokenizer": tokenizers}


def everything() -> int:
    """How many rows the full product has: too many to run since the yard is full."""
    return math.prod(map(len, names().values()))


def legal_cover(strength: int) -> list[dict[str, str]]:
    """Legal rows in which every set of `strength` choices, of as many families, occurs that a legal row can hold."""
    return _cover(_subsets(strength), strength, skeletons())


def refused_cover() -> list[dict[str, str]]:
    """Rows in which every pair of choices occurs that no legal row can hold."""
    held = {pair for row in legal_cover(2) for pair in itertools.combinations(row.items(), 2)}
    return _cover([pair for pair in _subsets(2) if pair not in held], 2, None)


def legal(row: dict[str, str]) -> bool:
    """Whether no rule refuses a row, as its YAMLs stand."""
    return all(_allowed(number, row) for number in range(len(RULES)))


# The families that say what the others are judged by: few of their combinations are legal.
FRAME = ("data", "tokenizer", "head", "model", "objective")
REST = tuple(family for family in FAMILIES if family not in FRAME)


@cache
def skeletons() -> tuple[tuple[dict[str, str], dict[str, list[str]]], ...]:
    """The legal combinations of the frame, each with what is legal beside it, family by family."""
    found = []
    for frame in _frames({}):
        beside = {f: [name for name in names()[f] if _fits({**frame, f: name}, f)] for f in REST}
        if all(beside.values()):
            found.append((frame, beside))
    return tuple(found)


def _frames(row: dict[str, str]) -> Iterator[dict[str, str]]:
    """The legal combinations of the frame that begin with a row."""
    if len(row) == len(FRAME):
        if _fits(row):
            yield row
        return
    family = FRAME[len(row)]
    for name in names()[family]:
        longer = {**row, family: name}
        if not _known_as_refused(longer):
            yield from _frames(longer)


def _known_as_refused(row: dict[str, str]) -> bool:
    """Whether a rule that read no more than the choices of a row has refused them, in a longer row."""
    return any(
        tuple(row[family] for family in families) in refused
        for families, refused in _REFUSED.items()
        if row.keys() >= set(families)
    )


def _cover(wanted: list[Tuple], strength: int, frames: Any) -> list[dict[str, str]]:
    """Rows found greedily; what no row can hold is left out. Without frames any row will do."""
    random = Random(0)
    left, rows = dict.fromkeys(wanted), []
    order = list(wanted)
    random.shuffle(order)
    for those in order:
        if those not in left:
            continue
        row = _complete(dict(those), left, strength, frames, random)
        left.pop(those)
        if row is not None:
            rows.append(row)
            for held in itertools.combinations(row.items(), strength):
                left.pop(held, None)
    return rows


def _complete(
    fixed: dict[str, str], left: dict[Tuple, None], strength: int, frames: Any, random: Random
) -> dict[str, str] | None:
    """A row that holds `fixed`, the other choices such that they settle much of what is left."""
    if frames is None:
        return _grow(fixed, names(), left, strength, random, legal=False)
    fitting = [frame for frame in frames if all(frame[0].get(f, name) == name for f, name in fixed.items())]
    random.shuffle(fitting)
    for frame, beside in fitting:
        row = {**frame, **{f: name for f, name in fixed.items() if f in beside}}
        if all(row[f] in beside[f] for f in fixed if f in beside) and _fits(row):
            grown = _grow(row, beside, left, strength, random, legal=True)
            if grown is not None:
                return grown
    return None


def _grow(
    row: dict[str, str], lists: dict[str, list[str]], left: Any, strength: int, random: Random, *, legal: bool
) -> dict[str, str] | None:
    """`row` with a choice for each family that it lacks; None where no choice of one is legal."""
    missing = [family for family in FAMILIES if family not in row]
    if not missing:
        return {family: row[family] for family in FAMILIES}
    family = random.choice(missing)
    others = list(itertools.combinations(row.items(), strength - 1))

    def gain(name: str) -> int:
        return sum(_ordered((*other, (family, name))) in left for other in others)

    shuffled = random.sample(lists[family], len(lists[family]))
    for name in sorted(shuffled, key=gain, reverse=True):
        longer = {**row, family: name}
        if not legal or _fits(longer, family):
            grown = _grow(longer, lists, left, strength, random, legal=legal)
            if grown is not None:
                return grown
    return None


def _subsets(strength: int) -> list[Tuple]:
    return [
        tuple(zip(families, chosen, strict=True))
        for families in itertools.combinations(FAMILIES, strength)
        for chosen in itertools.product(*(names()[family] for family in families))
    ]


def _ordered(those: Tuple) -> Tuple:
    return tuple(sorted(those, key=lambda one: FAMILIES.index(one[0])))


def _fits(row: dict[str, str], family: str | None = None) -> bool:
    """Whether no rule about the families of a row so far refuses it; with `family`, only the rules about it."""
    return all(_allowed(number, row) for number, pair in _rules_about(family) if pair <= row.keys())


@cache
def _rules_about(family: str | None) -> list[tuple[int, frozenset[str]]]:
    """The numbers of the rules about a family, or of all of them, each with the families of its pair."""
    pairs = [frozenset(_families(number)) for number in range(len(RULES))]
    return [(number, pair) for number, pair in enumerate(pairs) if family is None or family in pair]


@cache
def _families(number: int) -> list[str]:
    """The families of a rule; those of the source are read by what the row has for its sequence."""
    return [catalog.OF_SOURCE.get(family, family) for family in RULES[number].pair]


@cache
def needs_class_token(head: str) -> bool:
    """Whether a head reads the class token, so that its model must have one."""
    return locate(catalog.choices("head")[head].target).needs_class_token


@cache
def set_by_preset(preset: str | None, family: str) -> frozenset[str]:
    """The options of a family that a preset sets."""
    if preset is None:
        return frozenset()
    return frozenset(yaml.safe_load(catalog.choices("preset")[preset].path.read_text()).get(family, {}))


@cache
def _pick(family: str, name: str) -> Any:
    return default_pick(catalog.choices(family)[name])


def _plan(family: str, name: str) -> Any:
    """The plan as its YAML gives it; None where that needs an option of the user's."""
    pick = _pick(family, name)
    return None if pick is None else pick.target(**pick.options)


class _Reads(Mapping[str, Any]):
    """The picks of a row, which remembers those that a rule has read."""

    def __init__(self, picks: dict[str, Any]) -> None:
        self.picks, self.families = picks, {"data"}

    def __getitem__(self, family: str) -> Any:
        pick = self.picks[family]
        # What reads the source depends on the data, the prefix of a model on the head.
        self.families |= {"data"} if family in catalog.OF_SOURCE else {family}
        self.families |= {"head"} if family == "model" else set()
        return pick

    def __contains__(self, family: object) -> bool:
        return family in self.picks

    def __iter__(self) -> Iterator[str]:
        return iter(self.picks)

    def __len__(self) -> int:
        return len(self.picks)


# For each rule: the families that it has read, and by their choices whether it allows them.
_ALLOWED: dict[int, dict[tuple[str, ...], dict[tuple[str, ...], bool]]] = {number: {} for number in range(len(RULES))}

# What any rule has refused: the families that it has read, and their choices.
_REFUSED: dict[tuple[str, ...], set[tuple[str, ...]]] = {}


def _allowed(number: int, row: dict[str, str]) -> bool:
    """Whether a rule allows the choices of a row. It runs once for all rows that agree in what it reads."""
    for families, known in _ALLOWED[number].items():
        allowed = known.get(tuple(row[family] for family in families))
        if allowed is not None:
            return allowed
    reads = _Reads(_picks({family: row[family] for family in (*_families(number), *FRAME)}))
    try:
        allowed = RULES[number].reason(Facts(reads)) is None  # type: ignore[arg-type]
    except ValueError:
        allowed = False  # the tokenizer cannot read this data
    families = tuple(sorted(reads.families))
    choices = tuple(row[family] for family in families)
    _ALLOWED[number].setdefault(families, {})[choices] = allowed
    if not allowed:
        _REFUSED.setdefault(families, set()).add(choices)
    return allowed


def _picks(row: dict[str, str]) -> dict[str, Any]:
    """The choices of a row with their default options, and what reads the source of its data."""
    picks = {family: _pick(family, name) for family, name in (row | readers(row["data"])).items()}
    if readers(row["data"]) and "shared" in picks["model"].options:
        picks["model"] = replace(picks["model"], options={**picks["model"].options, "shared": False})
    if needs_class_token(row["head"]) and "prefix" in picks["model"].options:
        options = {**picks["model"].options, "prefix": Prefix(class_token=True, registers=1)}
        picks["model"] = replace(picks["model"], options=options)
    return picks


def rows_of(row: dict[str, str], plan: Components, padding: int | None = None) -> Batch:
    """Two real rows of the training part of a row's data, as long and as short as they come. The plan's tokenizer
    learns what it learned from that part.

    padding: draws what lies behind the ends of both rows; None leaves it as the data has it
    """
    batch, learned = _two_rows(row["data"], row["tokenizer"])
    plan.tokenizer.load_state(learned)
    plan.context()
    plan.objective.learn(TwoRows(batch))
    if padding is None or batch.lengths is None:
        return batch
    generator = torch.Generator().manual_seed(padding)
    alone = plan.objective.reads == "source"

    def other(rows: torch.Tensor, lengths: torch.Tensor, symbols: int | None) -> torch.Tensor:
        behind = torch.arange(rows.shape[1]) >= lengths[:, None]  # (B, N)
        if rows.is_floating_point():
            drawn = torch.rand(rows.shape, generator=generator)
        elif symbols is None:
            drawn = torch.randint(2, rows.shape, generator=generator)  # codes of nodes
        else:
            drawn = torch.randint(symbols, rows.shape, generator=generator)
        return torch.where(behind[(...,) + (None,) * (rows.ndim - 2)], drawn, rows)

    own, of_source = plan.tokens().vocabulary, plan.context().tokens.vocabulary
    source = batch.source
    if source is not None and batch.source_lengths is not None:
        source = other(source, batch.source_lengths, of_source if alone else own)
    return replace(batch, inputs=other(batch.inputs, batch.lengths, own), source=source)


class TwoRows:
    """A split of the rows of a batch."""

    def __init__(self, batch: Batch) -> None:
        self.rows = batch

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        """The rows `order`."""
        return self.rows.map(lambda tensor: tensor[order])


@cache
def _two_rows(data: str, tokenizer: str) -> tuple[Batch, dict[str, Any]]:
    frame, beside = next(each for each in skeletons() if (each[0]["data"], each[0]["tokenizer"]) == (data, tokenizer))
    plan = Components(config({**frame, **{family: names[0] for family, names in beside.items()}}).config)
    train = plan.data.load(plan.tokenizer).train
    order = torch.arange(min(32, len(train)))
    some = train.batch(order, None)
    lengths = some.lengths if some.source_lengths is None else some.source_lengths
    if lengths is not None:
        order = torch.stack([lengths.argmax(), lengths.argmin()])
    return train.batch(order[:2], None), plan.tokenizer.state()


def batch_for(plan: Any, size: int = 2, padding: int = 0) -> Batch:
    """Random inputs and targets of the shapes that a plan's data promises. Reads nothing.

    Where rows differ in length, so do these: the last row is short, and the first row's source. What lies behind
    the end of a row is drawn by `padding`, all else not.
    """
    generator = torch.Generator().manual_seed(0)
    spec, symbols = plan.data.spec, plan.tokens().vocabulary

    def drawn(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, (size, *shape), generator=generator)

    if spec.modality == "text":  # a symbol more than a model sees, for the objective to ask for
        inputs = drawn(symbols, spec.shape[0] + (spec.target is None))
    elif plan.tokens().ahead:  # a start token and those of an image
        start = plan.tokenizer.start(torch.arange(size))[:, None]
        return Batch(torch.cat([start, drawn(plan.tokens().predicted, plan.tokens().max_len)], 1))
    elif symbols is not None:
        inputs = drawn(symbols, *spec.shape)
    elif (codes := plan.tokens().codes) is not None:
        inputs = torch.stack([drawn(count, spec.shape[0]) for count in codes], -1)
    else:
        inputs = torch.rand(size, *spec.shape, generator=generator)
    targets = {"class": (), "symbols": spec.shape, "pixels": spec.shape[1:]}
    target = None
    if spec.values is not None:
        target = torch.rand(size, *spec.values, generator=generator)
    elif spec.target:
        target = drawn(spec.classes or symbols, *targets[spec.target])
    source = None if spec.source is None else drawn(symbols, *spec.source.shape)
    if source is not None and spec.source.modality != "text":
        source = torch.rand(size, *spec.source.shape, generator=generator)
    facts = plan.tokens().pairs
    pairs = None
    if facts is not None:
        pairs = torch.stack([drawn(count, spec.shape[0], spec.shape[0]) for count in facts], -1).byte()
    if not spec.variable:
        return Batch(inputs, target, source=source, pairs=pairs)
    generator.manual_seed(1 + padding)
    longest = inputs.shape[1]
    lengths = torch.linspace(longest, 2, size).long()  # (B,)
    behind = torch.arange(longest) >= lengths[:, None]  # (B, N)
    if inputs.is_floating_point():
        other = torch.rand(inputs.shape, generator=generator)
    else:
        other = drawn(symbols, longest) if plan.tokens().codes is None else drawn(2, *inputs.shape[1:])
    inputs = torch.where(behind[(...,) + (None,) * (inputs.ndim - 2)], other, inputs)
    if source is None:
        if pairs is not None:  # what pairs with padding hold must not matter either
            both = behind[:, :, None] | behind[:, None]
            pairs = torch.where(both[..., None], drawn(2, *pairs.shape[1:]).byte(), pairs)
        return Batch(inputs, target, lengths=lengths, pairs=pairs)
    if not spec.source.variable:
        return Batch(inputs, target, lengths=lengths, source=source)
    source_lengths = torch.linspace(1, spec.source.shape[0], size).long()  # (B,)
    behind = torch.arange(spec.source.shape[0]) >= source_lengths[:, None]  # (B, M)
    source = torch.where(behind, drawn(symbols, *spec.source.shape), source)
    return Batch(inputs, target, lengths=lengths, source=source, source_lengths=source_lengths)
