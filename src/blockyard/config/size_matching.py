"""Solves a model's size for a budget: the width, depth or expansion that comes nearest to it.

    blockyard train match.params=1.2e6                 # solves model.dim
    blockyard train match.active=1e6 channel_mixer=experts       # parameters that one token uses
    blockyard train match.state=65536 match.tokens=512           # bytes of cache after so many tokens
    blockyard check match.flops=5e7 match.by=depth     # model.depth; by=expansion: that of the channel mixer,
                                                       # or of the token mixer where the other has none

The solved size is what a config holds and a run freezes. Sizes are whole, so what is missed is recorded. Sweeps use
the same search to match the size of each arm to that of their baseline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn

from blockyard.config.build import CONTRACTS, SOURCE_CONTRACTS, Components
from blockyard.config.choices.catalog import MATCH, MATCH_OPTIONS
from blockyard.config.layer_kinds import KINDS, nodes_of_kinds
from blockyard.config.placed_nodes import are_sound
from blockyard.config.tree import Node, is_node, is_number
from blockyard.config.untrusted.targets import locate
from blockyard.contracts import Context, Issue, active_parameters
from blockyard.contracts.option_types import DEEPEST, LARGEST_EXPANSION, WIDEST
from blockyard.errors import first_line, quoted
from blockyard.model._cache import HasCache
from blockyard.model._example_batch import example, full
from blockyard.ops.flops import counted_as, counter
from blockyard.ops.meta import without_compiler

# The families that a model is made of; the optimizer and its schedule have no effect on its size.
OF_MODEL = (*(family for family in CONTRACTS if family not in ("optimizer", "schedule")), *SOURCE_CONTRACTS)
# The keys of `match`, and their units in messages.
BUDGETS = {
    "params": "parameters",
    "flops": "forward FLOPs per sample",
    "active": "active parameters",
    "state": "bytes of state",
}
# `match.by` -> options; the first that the config has is solved for.
SIZES = {
    "dim": ("model.dim",),
    "depth": ("model.depth",),
    "expansion": ("channel_mixer.expansion", "token_mixer.expansion"),
}
LARGEST = {"dim": WIDEST, "depth": DEEPEST, "expansion": LARGEST_EXPANSION}
LONGEST = 1_048_576  # tokens, as of any sequence
MAX_FACTOR = 2.0  # a solved size is refused if its count is further from the budget than this factor
_GAP = 8  # neighbouring sizes that are tried to find one that a model can be built with


def compiled_remark(components: Components) -> str | None:
    """Return a remark on FLOPs that only compiled blocks have; None without such, or where blocks are not compiled."""
    if not getattr(components.node("trainer"), "compile", False):
        return None
    model = components.meta_model()
    if active_parameters(model) == sum(parameter.numel() for parameter in model.parameters()):
        return None
    eager = flops_by_module(model, components.context())[""]
    compiled = flops_by_module(model, components.context(), compiled=True)[""]
    if compiled == eager:
        return None
    return (
        f"trainer.compile=true: every expert computes every token, in all {compiled / eager:.2f} times the FLOPs of "
        "the experts that tokens are sent to; trainer.compile=false computes those alone"
    )


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flops_by_module(model: nn.Module, ctx: Context, *, compiled: bool = False) -> dict[str, int]:
    """Return the FLOPs of one forward pass of one full sample, by path of the module; "" is the whole model.

    They are two for each multiply-add of every matmul, convolution and attention, as `ops.flops` counts them.

    model: on the meta device; a forward pass of a real one works as well
    ctx: the Context that the model was built from; it gives the shape of the sample
    compiled: count the operations of compiled blocks
    """
    device = _device(model)
    with without_compiler(), torch.no_grad(), counted_as(compiled=compiled), counter() as counted:
        model.eval()(example(full(ctx), device))
    flops = {"": int(counted.get_total_flops())}
    # torch's counter begins each path with the class of the model.
    prefix = f"{type(model).__name__}."
    for path, by_op in counted.get_flop_counts().items():
        if path.startswith(prefix):
            flops[path.removeprefix(prefix)] = sum(by_op.values())
    return flops


def state_bytes(model: nn.Module, ctx: Context, tokens: int | None = None) -> int:
    """Return the bytes of the cache of one sequence after some of its tokens; None is a full sequence of the data.

    The cache is all that the model keeps of the sequence when it decodes, in the type of the weights, float32. A source
    and its cache do not count. Raises ValueError for a model without a cache.

    model: as in `flops_by_module`; a prefix counts, in addition to the tokens
    """
    if not ctx.causal or not isinstance(model, HasCache):
        raise ValueError("this model decodes nothing, so it has no state; use model=decoder")
    context = full(ctx)
    inputs = example(context, _device(model))
    if tokens is not None and tokens != ctx.tokens.max_len:
        if context.tokens.vocabulary is None or len(context.tokens.grid) != 1:
            raise ValueError("a state after another number of tokens than the data has is known of token ids alone")
        ids = inputs.inputs.new_zeros((1, tokens))
        inputs = replace(inputs, inputs=ids, segment=None, pairs=None)
    cache = model.init_cache(1)
    with without_compiler(), torch.no_grad():
        model.eval()(replace(inputs, segment=None), cache=cache)
    return cache.bytes


def _device(model: nn.Module) -> torch.device:
    """Return the device of the first parameter; meta for a model without parameters."""
    for parameter in model.parameters():
        return parameter.device
    return torch.device("meta")


@dataclass
class ModelSizes:
    """Measures configs and caches the results.

    failed: (model of the config, what) -> why it could not be measured
    """

    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    _sizes: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def measure(self, config: Node, what: str) -> int | None:
        """Return a size of a config's model, counted on the meta device.

        A vocabulary that is learned from the data counts as large as it may become. None where the model cannot be
        built or needs real tensors to run; `failure` then has the reason.

        what: `params` trainable parameters; `flops` of one forward pass of a full sample; `active` parameters that one
            token uses, trained or not; `state` bytes of cache after a full sequence, `state@N` after N tokens
        """
        key = model_key(config), what
        if key not in self._sizes:
            try:
                self._sizes[key] = _count(Components(config), what)
            except Exception as error:  # a width that does not divide; a user's own component may fail in any way
                self._sizes[key] = None
                self.failed[key] = f"{type(error).__name__}: {first_line(error)}"
        return self._sizes[key]

    def failure(self, config: Node, what: str) -> str | None:
        """Return why a config could not be measured, or None."""
        return self.failed.get((model_key(config), what))


def model_key(config: Node) -> str:
    """Return a text that is equal for configs with the same model."""
    # `init` freezes parameters, and only trained ones count.
    nodes = [config.get("allow"), config.get("init"), *(config.get(family) for family in OF_MODEL)]
    return json.dumps(nodes, sort_keys=True)


def _count(components: Components, what: str) -> int:
    """Return a size as `ModelSizes.measure` names it."""
    model = components.meta_model()
    if what == "params":
        return count_parameters(model)
    if what == "active":
        return active_parameters(model)
    if what == "flops":
        return flops_by_module(model, components.context())[""]
    _, _, tokens = what.partition("@")
    if tokens:
        return state_bytes(model, components.context(), int(tokens))
    return state_bytes(model, components.context())


@dataclass
class SizeSearch:
    """A search over whole numbers n for the count nearest to a target; counts grow with n.

    count: of the model of size n, None where it cannot be built
    largest: the largest n
    """

    count: Callable[[int], int | None]
    target: int
    largest: float
    counts: dict[int, int | None] = field(default_factory=dict)

    def solve(self, start: int) -> int | None:
        """Return the nearest number; None where no model can be built near `start`."""
        first = self._buildable(start, 1, start + _GAP)
        if first is None:
            return None
        # A bracket in steps of 1.4, with each of which a count that is quadratic in n doubles; then bisection.
        low = first
        while self._over(low):
            smaller = self._buildable(int(low / 1.4), 1, low - 1)
            if smaller is None:
                break
            low = smaller
        high = first
        while not self._over(high):
            larger = self._buildable(int(high * 1.4), high + 1, int(self.largest))
            if larger is None:
                break
            high = larger
        while high - low > 1:
            middle = self._buildable((low + high) // 2, low + 1, high - 1)
            if middle is None:
                break
            if self._over(middle):
                high = middle
            else:
                low = middle
        off = {n: abs(count - self.target) for n, count in self.counts.items() if count is not None}
        # Of equally near numbers the smallest is taken. Where all counts are equal, they depend on something else than
        # n, and the start stays.
        near = 0
        if len(off) > 1 and len(set(off.values())) == 1:
            near = start
        return min(off, key=lambda n: (off[n], abs(n - near)))

    def _count(self, n: int) -> int | None:
        if n not in self.counts:
            self.counts[n] = self.count(n)
        return self.counts[n]

    def _over(self, n: int) -> bool:
        count = self._count(n)
        return count is not None and count > self.target

    def _buildable(self, near: int, smallest: int, largest: int) -> int | None:
        """Return the number nearest to `near`, within bounds, that a model can be built with; a few are tried."""
        near = min(max(near, smallest), largest)
        candidates = range(max(smallest, near - _GAP), min(largest, near + _GAP) + 1)
        for n in sorted(candidates, key=lambda n: abs(n - near)):
            if self._count(n) is not None:
                return n
        return None


@dataclass(frozen=True)
class Axis:
    """The size that is solved for: the option at `key`, in whole numbers n that stand for n times `unit`.

    current: the n nearest to the config's own value
    """

    by: str
    key: str  # dotted
    unit: float
    current: int

    def value(self, n: int) -> int | float:
        """Return the option's value for n."""
        if self.by == "expansion":
            return round(n * self.unit, 6)
        return n * int(self.unit)

    def put(self, config: Node, n: int) -> Node:
        """Return the config with that size."""
        changed = _with_value(config, self.key.split("."), self.value(n))
        if self.by != "expansion":
            return changed
        # A kind of layers that differs in another option of the mixer has the expansion of all layers too.
        family, *rest = self.key.split(".")
        current = _value_at(config, self.key.split("."))
        for name, nodes in nodes_of_kinds(config).items():
            node = nodes.get(family)
            if node and node["_target_"] == config[family]["_target_"] and _value_at(node, rest) == current:
                changed = _with_value(changed, [*KINDS.split("."), name, family, *rest], self.value(n))
        return changed


def axis(config: Node, by: str = "dim") -> Axis | None:
    """Return the size to solve for, or None where the config has none.

    Widths are multiples of the number of heads. Expansions go in hidden channels, as many as the mixer needs at a time;
    the expansion of a mixture of experts is the expansion of one expert.
    """
    dim = config["model"].get("dim")
    if not _is_size(dim):
        return None
    for key in SIZES[by]:
        family, _, name = key.partition(".")
        node = config[family]
        if by == "expansion" and name not in node:
            node, family = _member(node, family)
        current = node.get(name)
        if not _is_size(current):
            continue
        unit = 1
        if by == "expansion":
            unit = getattr(locate(node["_target_"]), "hidden_multiple", 1) / dim
        elif by == "dim" and _is_size(config["model"].get("heads")):
            unit = int(config["model"]["heads"])
        return Axis(by, f"{family}.{name}", unit, max(1, round(current / unit)))
    return None


def _member(node: Node, key: str) -> tuple[Node, str]:
    """Return the one node that a node takes by name, such as an expert, and its key; itself where it takes none."""
    for option, (_, names, *_) in getattr(locate(node["_target_"]), "nested_choices", {}).items():
        name = node.get(names)
        if isinstance(name, str) and is_node(node.get(option, {}).get(name)):
            return node[option][name], f"{key}.{option}.{name}"
    return node, key


def _with_value(config: Node, keys: list[str], value: Any) -> Node:
    """Return the config with another value at a path of keys."""
    first, *rest = keys
    if rest:
        value = _with_value(config[first], rest, value)
    return config | {first: value}


def _value_at(config: Node, keys: list[str]) -> Any:
    """Return the value at a path of keys; None where there is none."""
    value: Any = config
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _is_size(value: Any) -> bool:
    return is_number(value) and value > 0


def nearest(config: Node, what: str, target: int, sizes: ModelSizes, along: Axis) -> tuple[int, int] | None:
    """Return the n along an axis with the count nearest to the target, and the count; None if no model can be built."""
    search = SizeSearch(lambda n: sizes.measure(along.put(config, n), what), target, LARGEST[along.by] / along.unit)
    n = search.solve(along.current)
    if n is None:
        return None
    count = search.counts[n]
    if count is None:
        return None
    return n, count


class SolvedSize(TypedDict):
    """A solved size, and how near it comes to the budget.

    by: key of the budget in `BUDGETS`
    over: dotted key of the solved option; size: its value
    target: the budget; value: the count that was reached; off: value / target - 1
    vocabulary: number of token ids that were counted; one learned from the data counts as large as it may become
    tokens: number of tokens after which the state was counted; only with a budget of the state
    """

    by: str
    over: str
    target: int
    value: int
    off: float
    size: float
    vocabulary: int | None
    tokens: NotRequired[int]


def solve(config: Node, overridden: Collection[str], issues: list[Issue]) -> SolvedSize | None:
    """Take `match` out of a complete config, put the solved size in and return it; None without `match`.

    A problem becomes an issue.

    overridden: the keys of the command line; they must not name the solved option
    """
    match = config.pop(MATCH, None) or {}
    legal = [f"{MATCH}.{name}" for name in MATCH_OPTIONS]
    if not isinstance(match, dict):
        issues.append(Issue(MATCH, f"invalid value {quoted(match)}: expected a mapping", legal))
        return None
    unknown = [name for name in match if name not in MATCH_OPTIONS]
    if unknown:
        issues += [Issue(f"{MATCH}.{name}", "unknown config key", legal) for name in unknown]
        return None
    if all(match.get(name) is None for name in (*BUDGETS, "tokens")) and match.get("by") in (None, "dim"):
        return None  # as conf/config.yaml has it
    if issues or not are_sound(config):
        return None  # `check` reports the issues
    budgets = {what: match[what] for what in BUDGETS if match.get(what) is not None}
    by = match.get("by") or "dim"
    along = None
    if _is_known(by) and isinstance(config.get("model"), dict):
        along = axis(config, by)
    problems = _problems(config, match, budgets, overridden, along)
    issues += problems
    if problems or not budgets:
        return None

    what, budget = next(iter(budgets.items()))
    sizes = ModelSizes()
    key = f"{MATCH}.{what}"
    if along is None:
        others = [f"{MATCH}.by={other}" for other in SIZES if axis(config, other) is not None]
        issues.append(Issue(key, f"the config has no {' or '.join(SIZES[by])} to solve for", others))
        return None
    target = round(budget)
    tokens = match.get("tokens")
    measured = what if tokens is None else f"{what}@{tokens}"
    solved = nearest(config, measured, target, sizes, along)
    if solved is None:
        reason = sizes.failure(along.put(config, along.current), measured)
        issues.append(Issue(key, f"no model can be built near {along.key}={along.value(along.current)} ({reason})"))
        return None
    n, count = solved
    size = along.value(n)
    if count != target and count == sizes.measure(along.put(config, max(1, along.current // 2)), measured):
        others = [f"{MATCH}.by={other}" for other in SIZES if other != by and axis(config, other) is not None]
        issues.append(Issue(key, f"{along.key} does not change the {BUDGETS[what]}, which are {count:,}", others))
        return None
    if not target / MAX_FACTOR <= count <= target * MAX_FACTOR:
        problem = f"{target:,} {BUDGETS[what]} are out of reach by {along.key}; the nearest is {size:g}: {count:,}"
        issues.append(Issue(key, problem, [f"{key}={count}"]))
        return None
    config.update(along.put(config, n))
    record = SolvedSize(
        by=what,
        over=along.key,
        target=target,
        value=count,
        off=count / target - 1,
        size=size,
        vocabulary=Components(config).tokens().vocabulary,
    )
    if what == "state":
        record["tokens"] = tokens or Components(config).tokens().max_len
    return record


def describe_match(record: SolvedSize) -> str:
    """Return the solved size, and how far its count is from the budget, in one line."""
    vocabulary = ""
    if record["vocabulary"]:
        vocabulary = f", counted with a vocabulary of {record['vocabulary']:,}"
    after = ""
    if record["by"] == "state":
        after = f" after {record['tokens']:,} tokens"
    return (
        f"{record['target']:,} {BUDGETS[record['by']]}{after} by {record['over']}={record['size']:g}: "
        f"{record['value']:,}, {record['off']:+.2%}{vocabulary}"
    )


def _is_known(by: Any) -> bool:
    return isinstance(by, str) and by in SIZES


def _problems(
    config: Node,
    match: Node,
    budgets: Node,
    overridden: Collection[str],
    along: Axis | None,
) -> list[Issue]:
    """Return the problems of `match`. along: the size to solve for, None where the config has none."""
    issues = []
    by = match.get("by") or "dim"
    if not _is_known(by):
        issues.append(Issue(f"{MATCH}.by", f"unknown size {quoted(by)}", list(SIZES)))
    elif match.get("by") not in (None, "dim") and not budgets:
        text = "has an effect only together with match.params, match.flops, match.active or match.state"
        issues.append(Issue(f"{MATCH}.by", text))
    if len(budgets) > 1:
        issues.append(Issue(MATCH, "one size cannot meet two budgets; set params, flops, active or state"))
    tokens = match.get("tokens")
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= LONGEST):
        text = f"invalid value {quoted(tokens)}: expected a number of tokens from 1 to {LONGEST:,}"
        issues.append(Issue(f"{MATCH}.tokens", text, [f"{MATCH}.tokens=512"]))
    elif tokens is not None and "state" not in budgets:
        issues.append(Issue(f"{MATCH}.tokens", "has an effect only together with match.state", ["match.state=65536"]))
    for what, value in budgets.items():
        if not is_number(value) or value < 1:
            text = f"invalid value {quoted(value)}: expected a number of {BUDGETS[what]} >= 1"
            issues.append(Issue(f"{MATCH}.{what}", text, [f"{MATCH}.{what}=1.2e6"]))
    if budgets and by == "depth" and config["model"].get("order") is not None:
        issues.append(
            Issue("model.order", "names blocks by number, so the depth cannot be solved for", ["match.by=dim"])
        )
    if budgets and along is not None and along.key in overridden:
        issues.append(Issue(along.key, f"is solved for by {MATCH}; leave one of them out"))
    return issues
