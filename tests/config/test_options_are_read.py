"""Every option of every part of a model is read: other values of it make another model.

Values are picked by the type of the option, and what they change is looked for where anything could show:
initial weights and their shapes, outputs, outputs for rows longer than those of training, outputs in training,
gradients, and the state after a training step. An option that acts beside another option only, or on a grid
only, is found by trying those. So there is no list of options here, but for the few that cannot be told.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import torch
from torch import Tensor, nn

from blockyard.config import schema
from blockyard.contracts import AfterStep, Context, HasAuxiliary, Inputs, Positive, Rate, auxiliary_loss
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.norm.batch import Batch
from blockyard.norm.layer_plain import LayerPlain
from blockyard.position.learned import Learned
from blockyard.position.t5_bias import T5Bias
from blockyard.token_mixer._query_key_norms import SAME_NORMS
from tests.support.helpers import LENGTH, choices, factory, node, tiny, token_ids

FAMILIES = ("position", "norm", "channel_mixer", "token_mixer", "block", "head")
UNTOLD = {
    ("parallel", "fused"): "two ways to work out the same; test_properties_parts.py holds them equal",
    ("cycle", "members"): "filled in from the choices that the pattern names; test_cycle.py gives its own",
    ("beside", "members"): "filled in from the choices that mixers names; test_beside.py gives its own",
    ("rope", "factors"): "a list as long as there are pairs; test_rotary.py holds them against transformers",
    **{
        ("rope", name): "beside two others; test_rotary.py has them" for name in ("original", "low", "high", "truncate")
    },
    ("rope", "shift"): "felt by scores with prefix tokens alone; test_varied_coordinates.py has some",
    ("attention", "project"): "a list of parts; test_projections.py leaves each of them out",
    ("attention", "map"): "a node; test_projections.py has an MLP",
    ("experts", "expert"): "the name of a choice; test_experts.py gives mlp and glu",
    ("experts", "members"): "filled in from the choice that expert names; test_experts.py gives its own",
}
# Some of whose values agree on so few tokens; beside other options they are tried all the same.
ALIKE = {
    (
        "rope",
        "scaling",
    ): "no pair of channels rotates within 6 tokens, where llama3 is linear; test_rotary.py has longer",
}
OPTIONS = [
    (family, name, option)
    for family in FAMILIES
    for name in choices(family)
    for option in schema.options(node(family, name)[0])
    if option not in getattr(node(family, name)[0], "incidental", ())
]
SIZES = {"dim": 32, "heads": 4}  # heads of 8 channels, of which several parts can turn
DEPTHS = {"kv_every": 4}  # of options that count layers


def values(option: schema.Option, default: Any) -> tuple[list[Any], int]:
    """The default first, then values of the option's type, and how many of them must be told apart.

    All choices and both truths; of numbers any three, so that one which is only asked for being there is seen.
    """
    kinds = _plain(option.annotation)
    inner = next(kind for kind in kinds if kind is not types.NoneType)
    named = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if inner is bool and named:  # a flag that got more values
        candidates = [False, True, *(value for value in named if value not in SAME_NORMS)]
        needed = len(candidates)
    elif get_origin(inner) is Literal:
        candidates = [*get_args(inner), *([None] if types.NoneType in kinds else [])]
        needed = len(candidates)
    elif inner is bool:
        candidates, needed = [False, True], 2
    elif inner is int:
        candidates, needed = [*([] if default is None else [default + 1, default + 2]), *range(1, 8)], 3
    elif inner is float:
        candidates = [*([2 * default, default / 2] if default else []), 0.5, 0.25, 2.0, 3.0, *named]
        needed = 3 + len(named)
    elif get_origin(inner) is tuple:
        candidates, needed = ([(0.5, 0.25), (0.25, 0.5)], 3) if default is None else ([default[::-1]], 2)
    else:
        raise AssertionError(f"no values are known for {option.name}: {option.describe()}")
    legal = [value for value in candidates if value != default and option.problem(value) is None]
    return [default, *legal], needed


def _plain(annotation: Any) -> list[Any]:
    """The types of a hint, without their bounds; a union is several."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [plain for part in get_args(annotation) for plain in _plain(part)]
    return [annotation]


class Outcome:
    """All that can be seen of a model, worked out as far as it is asked for."""

    def __init__(self, model: nn.Module, hides: bool) -> None:
        self.model, self.hides, self.seen = model, hides, []
        self.stages = iter((self.weights, self.outputs, self.longer, self.training, self.weights))

    def __getitem__(self, stage: int) -> dict[str, Tensor]:
        while len(self.seen) <= stage:
            self.seen.append(next(self.stages)())
        return self.seen[stage]

    def weights(self) -> dict[str, Tensor]:
        """Weights and what else a checkpoint holds; at first the initial ones, moved alike."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def output(self, length: int) -> Tensor:
        """Of rows of so many tokens, half of them hidden where the model can hide some."""
        ids = token_ids(2, length)
        return self.model(Inputs(ids, hidden=ids % 2 == 0)) if self.hides else self.model(ids)

    @torch.no_grad()
    def outputs(self) -> dict[str, Tensor]:
        return {"output": self.output(LENGTH)}

    @torch.no_grad()
    def longer(self) -> dict[str, Tensor]:
        """Of rows twice as long, as trainer.extrapolate asks for them; none where they are refused."""
        position = self.model.position
        position.length_scale = 2.0 if position.scales_length else 1.0
        try:
            return {"output": self.output(2 * LENGTH)}
        except ValueError:
            return {}
        finally:
            position.length_scale = 1.0

    def training(self) -> dict[str, Tensor]:
        """Outputs and gradients with the same draws: where tokens are hidden of two passes, which may differ."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.model.train()
            output = torch.stack([self.output(LENGTH) for _ in range(1 + self.hides)])
        auxiliary = auxiliary_loss([module for module in self.model.modules() if isinstance(module, HasAuxiliary)])
        (output.square().sum() + (0.0 if auxiliary is None else auxiliary)).backward()
        for module in self.model.modules():
            if isinstance(module, AfterStep):
                module.after_step()
        self.model.eval()
        grads = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        return {"": output.detach(), **grads}

    def differs(self, other: Outcome) -> bool:
        """Whether anything is another, by more than rounding."""
        return any(_unlike(self[stage], other[stage]) for stage in range(5))


def _unlike(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() != other.keys() or any(
        value.shape != other[name].shape
        or not torch.allclose(value.double(), other[name].double(), rtol=1e-7, atol=1e-9, equal_nan=True)
        for name, value in one.items()
    )


def bases(name: str, target: type, configured: dict[str, Any], option: str) -> Iterator[dict[str, Any]]:
    """What the other options may be set to: nothing first, then one of them to each of its values, numbers last."""
    yield {}
    single = [
        {key: value}
        for key, other in schema.options(target).items()
        if key != option and (name, key) not in UNTOLD
        for value in values(other, configured.get(key, other.default))[0][1:]
    ]
    # What switches an option on is a name or a flag more often than a number.
    yield from sorted(single, key=lambda base: type(*base.values()) in (int, float))


def is_read(family: str, name: str, option: str, target: type | None = None) -> bool:
    """Whether as many values as it takes are told apart, somewhere."""
    component: Callable[..., Any] = factory(family, name)
    target = target or component.func
    options = schema.options(target)
    configured = {key: value for key, value in component.keywords.items() if key in options}
    candidates, needed = values(options[option], configured.get(option, options[option].default))
    hides = getattr(target, "gives", None) == "contrast"
    prefix = Prefix(class_token=True) if getattr(target, "needs_class_token", False) else NO_PREFIX
    layouts = [(1, False)] if hides else list(product((1, 2, 0), (False, True)))  # recordings are rows, seen as a whole
    first, *others = bases(name, target, configured, option)
    settings = [*product([first], layouts), *((base, layout) for layout, base in product(layouts, others))]
    for base, (axes, causal) in settings:
        outcomes: list[Outcome] = []
        for value in candidates:
            part = partial(target, **{**configured, **base, option: value})
            picks = {family: name}
            try:
                sizes = {**SIZES, "hides": hides, "depth": DEPTHS.get(option, 2)}
                model = tiny(causal=causal, axes=axes, prefix=prefix, sizes=sizes, replace={family: part}, **picks)
            except ValueError:
                continue  # no legal value, or none for a model such as this one
            outcome = Outcome(model, hides)
            if all(outcome.differs(other) for other in outcomes):
                outcomes.append(outcome)
            if len(outcomes) == needed:
                return True
    return False


@pytest.mark.parametrize(("family", "name", "option"), [each for each in OPTIONS if each[1:] not in UNTOLD | ALIKE])
@pytest.mark.sampled(4)
def test_an_option_is_read(family: str, name: str, option: str) -> None:
    assert is_read(family, name, option), (
        f"values of {family}.{option} make the same {family}={name}: it is read by nothing, or belongs into UNTOLD"
    )


@pytest.mark.full
def test_what_cannot_be_told() -> None:
    """Is an option still, and rounding does not count as a difference."""
    assert {each[1:] for each in OPTIONS} >= (UNTOLD | ALIKE).keys()
    assert not is_read("block", "parallel", "fused")


class AnyEps(LayerPlain):
    """Planted: its option is not read."""

    def __init__(self, ctx: Context, *, eps: Positive = 1e-5) -> None:
        super().__init__(ctx)


class AnyMomentum(Batch):
    """Planted: one of two options is not read."""

    def __init__(self, ctx: Context, *, eps: Positive = 1e-5, momentum: Rate = 0.1) -> None:
        super().__init__(ctx, eps=eps)


class OneStd(T5Bias):
    """Planted: the same spread whatever is asked, so long as something is."""

    def __init__(self, ctx: Context, *, std: Positive | None = None) -> None:
        super().__init__(ctx, std=None if std is None else 5.0)


class NoStd(Learned):
    """Planted: the model's own spread whatever is asked."""

    def __init__(self, ctx: Context, *, std: float | None = None) -> None:
        super().__init__(ctx)


@pytest.mark.sampled(100)
@pytest.mark.parametrize(
    ("family", "name", "option", "target"),
    [
        ("norm", "layer_plain", "eps", AnyEps),
        ("norm", "batch", "momentum", AnyMomentum),
        ("position", "t5_bias", "std", OneStd),
        ("position", "learned", "std", NoStd),
    ],
)
def test_planted_options_that_are_not_read_are_caught(family: str, name: str, option: str, target: type) -> None:
    assert not is_read(family, name, option, target)
