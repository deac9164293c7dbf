"""Roles of weights, and what a parametrization makes of them: initial weights, learning rates, factors."""

from __future__ import annotations

import copy
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from blockyard.commands import check as check_command
from blockyard.config import build
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import PLAIN, ROLES, Context, Role, TokenMixer, UpdateRule, parameter_roles, with_roles
from blockyard.optimizer import pytorch_optimizer, timm_optim, torch_optim
from blockyard.parametrization.mup import MuP
from blockyard.runs.identity import identity
from blockyard.token_mixer import attention
from blockyard.weight_init import initialise
from blockyard.weights.lora import Lora, add_lora
from tests.support.every import every
from tests.support.helpers import context

GPT = ("data=code", "tokenizer=byte", "data.context=16", "model=decoder", "head=token", "objective=next_token")
SMALL = (*GPT, "model.depth=2", "logger=none")
MUP = "parametrization=mup"


def components(*overrides: str) -> build.Components:
    composed = compose([*SMALL, *overrides])
    assert not (issues := check(composed)), [str(issue) for issue in issues]
    return build.Components(composed.config)


def messages(*overrides: str) -> str:
    return "\n".join(str(issue) for issue in check(compose([*SMALL, *overrides])))


def roles_of(model: nn.Module) -> dict[str, Role | None]:
    return {name: role for name, _, role in parameter_roles(model)}


def rates(built: build.Components) -> dict[str, tuple[float, float]]:
    """The learning rate and the weight decay of every parameter, over those of the optimizer."""
    model, own = built.model(0), built.optimizer
    names = {id(p): name for name, p in model.named_parameters()}
    groups = own.build(model).param_groups
    return {names[id(p)]: (g["lr"] / own.lr, g.get("weight_decay", 0.0)) for g in groups for p in g["params"]}


def test_the_default_is_left_out_and_changes_nothing() -> None:
    plain, named = compose(SMALL), compose([*SMALL, "parametrization=standard"])
    assert "parametrization" not in plain.config
    assert plain.config == named.config
    assert identity(compose([*SMALL, MUP]).config) != identity(plain.config)
    assert components().context().parametrization is PLAIN


@pytest.mark.parametrize("mixer", ["attention", "decayed_attention", "mlstm"])
def test_a_width_of_keys_that_an_option_fixes_does_not_grow_by_coincidence(mixer: str) -> None:
    """At one width of the model it equals that of a head."""
    scales = []
    for dim in (64, 128, 256):
        built = components(MUP, f"model.dim={dim}", "model.heads=4", f"token_mixer={mixer}", "token_mixer.key_dim=32")
        (scale,) = {
            part.scale if part.scale is not None else 32**-0.5
            for part in built.model(0).modules()
            if isinstance(part, TokenMixer)
        }
        scales.append(scale)
    assert scales == pytest.approx([32**-0.5] * 3)


def test_independent_decay_does_not_see_the_width() -> None:
    """Its step is the factor of the schedule times weight_decay, whatever the rate of a role is."""
    built = components(MUP, "model.dim=256", "model.heads=4", "optimizer.decay_by=independent")
    groups = built.optimizer.build(built.model(0)).param_groups
    assert len({group["lr"] for group in groups}) > 1
    steps = {round(group["lr"] * group["weight_decay"], 12) for group in groups}
    assert steps == {0.0, built.optimizer.weight_decay}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon", "torch_optim"])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.init_std=0.02", "head.tied=true", "tokenizer.scale=sqrt_dim", "position=sinusoidal"),
        ("token_mixer=linear_attention", "token_mixer.feature=polynomial", "channel_mixer=experts", "residual=hyper"),
        ("token_mixer=gated_attention_unit", "channel_mixer=memory", "residual=depth_attention"),
        ("position=sinusoidal", "position.combine=concat", "parametrization.base_depth=2", "norm=dyt"),
    ],
)
@pytest.mark.sampled(2)
def test_at_the_width_of_the_base_everything_is_standard_to_the_bit(overrides: tuple[str, ...], optimizer: str) -> None:
    trained = []
    for choice in ("standard", "mup"):
        kept = [each for each in overrides if choice == "mup" or not each.startswith("parametrization.")]
        built = components(f"parametrization={choice}", f"optimizer={optimizer}", "model.dim=64", *kept)
        model = built.model(3)
        steps = built.optimizer.build(model)
        ids = torch.arange(32).view(2, 16)
        for _ in range(2):
            steps.zero_grad()
            F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            steps.step()
        trained.append(dict(model.named_parameters()))
    for name, p in trained[0].items():
        torch.testing.assert_close(trained[1][name], p, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")


# What the table in the docstring of `mup` says at m = 4: factors on the learning rate of each role.
TABLE: dict[UpdateRule, dict[Role, float]] = {
    "adam": {"input": 1, "hidden": 1 / 4, "residual": 1 / 4, "output": 1, "vector": 1, "fixed": 1},
    "sgd": {"input": 4, "hidden": 1, "residual": 1, "output": 4, "vector": 4, "fixed": 1},
    "muon": {"input": 1, "hidden": 1, "residual": 1, "output": 2, "fixed": 1},
    "dion": {"input": 1, "hidden": 1, "residual": 1, "output": 4, "fixed": 1},
    "muon_rms": {"input": 1, "hidden": 1 / 2, "residual": 1 / 2, "output": 1, "fixed": 1},
}


@pytest.mark.parametrize(
    ("optimizer", "matrices", "rest"),
    [
        ("adamw", "adam", "adam"),
        ("sgd", "sgd", "sgd"),
        ("torch_optim", "adam", "adam"),
        ("muon", "muon_rms", "adam"),
        ("muon optimizer.scale=original", "muon", "adam"),
        ("dion", "muon_rms", "adam"),
        ("dion optimizer.scale=original", "dion", "adam"),
        ("timm_optim optimizer.name=lion", "adam", "adam"),
    ],
)
@pytest.mark.sampled(100)
def test_rates_and_decays_by_role(optimizer: str, matrices: UpdateRule, rest: UpdateRule) -> None:
    settings = [f"optimizer={optimizer.split()[0]}", *optimizer.split()[1:], "optimizer.weight_decay=0.1"]
    narrow, wide = (components(MUP, f"model.dim={dim}", *settings, "channel_mixer=experts") for dim in (64, 256))
    roles, base, of_wide = roles_of(wide.model(0)), rates(narrow), rates(wide)
    assert {*roles.values()} >= {"input", "hidden", "residual", "output", "vector"}
    for name, (rate, decay) in of_wide.items():
        matrix = name.startswith("blocks.") and wide.model(0).get_parameter(name).ndim == 2
        factor = TABLE[matrices if matrix else rest][roles[name]]
        assert rate == pytest.approx(factor), name
        assert base[name][0] == 1, name
        assert rate * decay == pytest.approx(base[name][1]), name  # what decay takes in a step is that of the base


def test_initial_weights_of_a_wide_model() -> None:
    for setting, base in (((), 1 / 8), (("model.init_std=0.05",), 0.05)):
        model = components(MUP, "model.dim=256", *setting).model(0)
        sizes = {
            "embedder.symbols.weight": base,
            "position.table": base,
            "blocks.0.token_mixer.proj_in.weight": base / 2,
            "blocks.0.channel_mixer.proj_out.weight": base / 2 / 2,  # of four branches
            "head.proj.weight": base,
        }
        for name, size in sizes.items():
            assert float(model.get_parameter(name).detach().std()) == pytest.approx(size, rel=0.03), name
        assert model.head.proj.factor == 1 / 4
        assert model.blocks[0].token_mixer.scale == pytest.approx(16**0.5 / 64)  # 1/K, and at the base 1/sqrt(K)


def test_heads_of_one_width_have_the_scores_of_standard() -> None:
    grown = components(MUP, "model.dim=256", "model.heads=16", "parametrization.base_heads=4")
    assert grown.model(0).blocks[0].token_mixer.scale is None
    fixed = components(MUP, "model.dim=256", "token_mixer.key_dim=16")
    assert fixed.model(0).blocks[0].token_mixer.scale is None


def test_the_factor_of_depth() -> None:
    """A branch has 1/L, initial weights are those of the base, and steps of SGD on blocks grow with L."""
    shallow, deep = (components(MUP, "parametrization.base_depth=2", f"model.depth={depth}") for depth in (2, 8))
    name = "blocks.0.channel_mixer.proj_out.weight"
    torch.testing.assert_close(deep.model(0).get_parameter(name), shallow.model(0).get_parameter(name), rtol=0, atol=0)
    assert (shallow.model(0).blocks[0].drop.factor, deep.model(0).blocks[0].drop.factor) == (1, 1 / 4)
    x = torch.randn(2, 3, 64)
    assert torch.equal(deep.model(0).blocks[0].drop(x), x / 4)
    assert rates(deep)[name] == rates(shallow)[name]
    sgd = rates(components(MUP, "parametrization.base_depth=2", "model.depth=8", "optimizer=sgd"))
    assert (sgd[name][0], sgd["head.proj.weight"][0]) == (4, 1)


def test_epsilon_follows_the_size_of_gradients() -> None:
    built = components(MUP, "model.dim=256", "parametrization.base_depth=1", "model.depth=2", "optimizer.eps=1e-6")
    model = built.model(0)
    groups = built.optimizer.build(model).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    epsilon = {names[id(p)]: group["eps"] for group in groups for p in group["params"]}
    assert epsilon["embedder.symbols.weight"] == pytest.approx(1e-6 / 4)
    assert epsilon["blocks.0.token_mixer.proj_in.weight"] == pytest.approx(1e-6 / 8)


def test_options_are_factors_at_every_width() -> None:
    plain = components(MUP, "model.dim=64").model(0).double().eval()
    scaled = components(
        *(MUP, "model.dim=64", "parametrization.output=3", "parametrization.embedding=2", "parametrization.branch=0.5"),
        "parametrization.scores=4",
    )
    model = scaled.model(0).double().eval()
    ids = torch.arange(32).view(2, 16)
    ours, theirs = model.steps(ids), plain.steps(ids)
    torch.testing.assert_close(ours["stream"], 2 * theirs["stream"])
    torch.testing.assert_close(model.head.proj(ours["normed"]), 3 * plain.head.proj(ours["normed"]))
    assert model.blocks[0].token_mixer.scale == 4 / 16**0.5
    block = model.blocks[0]
    block.token_mixer.scale = None
    added = plain.blocks[0](ours["stream"], ours["seq"]) - ours["stream"]
    first = block.token_mixer(block.token_norm(ours["stream"]), ours["seq"])
    middle = ours["stream"] + first / 2
    second = block.channel_mixer(block.channel_norm(middle))
    torch.testing.assert_close(block(ours["stream"], ours["seq"]), middle + second / 2)
    assert not torch.allclose(added, first / 2 + second / 2)


def test_a_tied_table_is_an_input_with_the_factor_of_the_head() -> None:
    for optimizer, factor in (("adamw", 1), ("sgd", 4)):
        built = components(MUP, "model.dim=256", "head.tied=true", f"optimizer={optimizer}")
        model = built.model(0)
        assert model.head.proj.weight is model.embedder.symbols.weight
        assert rates(built)["embedder.symbols.weight"][0] == factor
        assert model.head.proj.factor == 1 / 4


class Wrong(MuP):
    """Planted: a tied table that gets two learning rates."""

    def rate(self, role: Role, rule: UpdateRule, ctx: Context, *, in_block: bool) -> float:
        """Outputs as hidden weights."""
        return super().rate("hidden" if role == "output" else role, rule, ctx, in_block=in_block)


def test_two_rates_of_one_weight_are_refused() -> None:
    built = components(MUP, "model.dim=256", "head.tied=true")
    built.parametrization = Wrong(base_dim=64)
    with pytest.raises(ValueError, match="two learning rates for head"):
        built.optimizer.build(built.model(0))


class Named(nn.Module):
    """A stranger's module, whose weights have the names of ours and no roles."""

    def __init__(self) -> None:
        super().__init__()
        self.proj_in = nn.Linear(4, 4)
        self.table = nn.Embedding(4, 4)
        self.cell = nn.GRU(4, 4)
        self.gain = nn.Parameter(torch.empty(4))
        self.number = nn.Parameter(torch.empty(1, 1))


def test_roles_come_from_declarations_and_never_from_names() -> None:
    of_named = roles_of(Named())
    assert of_named == {
        "gain": "vector",
        "number": "fixed",
        "proj_in.weight": None,
        "proj_in.bias": "vector",
        "table.weight": "input",
        "cell.weight_ih_l0": "hidden",
        "cell.weight_hh_l0": "hidden",
        "cell.bias_ih_l0": "vector",
        "cell.bias_hh_l0": "vector",
    }
    module = with_roles(Named(), proj_in="fixed")
    assert roles_of(module)["proj_in.weight"] == "fixed"
    assert roles_of(nn.Sequential(module))["0.proj_in.bias"] == "fixed"
    # The same name in two places has two roles, and a name that says something else changes nothing.
    model = components(MUP, "channel_mixer=experts").model(0)
    roles = roles_of(model)
    assert (roles["head.proj.weight"], roles["blocks.0.channel_mixer.router.weight"]) == ("output", "output")
    model.blocks[0].token_mixer.output = model.blocks[0].token_mixer.proj_in
    assert roles_of(model)["blocks.0.token_mixer.proj_in.weight"] == "hidden"


def test_a_weight_without_a_role_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unknown(attention.Attention):
        def __init__(self, ctx: Context) -> None:
            super().__init__(ctx)
            self.own = nn.Parameter(torch.empty(3, ctx.dim))

        def init_weights(self, init: object) -> None:
            init.zeros("own")

    built = components(MUP)
    monkeypatch.setattr(build.Components, "parts", built.parts._replace(token_mixer=Unknown))
    (text,) = built.optimizer.model_problems(built.meta_model())
    assert "no" in text
    assert "blocks.0.token_mixer.own" in text
    assert "let Unknown have roles = {'own': ...}" in text
    with pytest.raises(ValueError, match="needs a role of every weight"):
        built.optimizer.build(built.model(0))
    built.parametrization = PLAIN
    assert built.optimizer.model_problems(built.meta_model()) == []


def test_additions_of_low_rank_have_no_roles() -> None:
    built = components(MUP)
    model = built.meta_model()
    add_lora(model, Lora(rank=2), 0)
    assert "needs a role of every weight" in built.optimizer.model_problems(model)[0]


@pytest.mark.parametrize("kind", ["meta", "deepcopy", "compile", "double"])
def test_roles_stay(kind: str) -> None:
    built = components(MUP, "channel_mixer=experts", "token_mixer=memory_attention")
    model = built.meta_model() if kind == "meta" else built.model(0)
    wanted = roles_of(built.model(0))
    if kind == "deepcopy":
        model = copy.deepcopy(model)
    elif kind == "compile":
        for block in model.blocks:
            block.compile(backend="eager")
        wrapped = roles_of(torch.compile(model, backend="eager"))
        assert {name.removeprefix("_orig_mod."): role for name, role in wrapped.items()} == wanted
    elif kind == "double":
        model = model.double()
    assert roles_of(model) == wanted
    assert None not in wanted.values()
    assert {*wanted.values()} <= {*ROLES}


def test_a_copied_model_has_the_same_parametrization() -> None:
    model = components(MUP).model(0)
    assert copy.deepcopy(model).ctx == model.ctx
    assert context(parametrization=MuP(base_dim=8)) != context(parametrization=MuP(base_dim=16))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("optimizer=hyperball",), "not known of optimizer=hyperball"),
        (("optimizer=timm_optim",), "optimizer.name=lamb"),
        (("optimizer=timm_optim", "optimizer.name=lars"), "optimizer.name=lars"),
        (("optimizer=torch_optim", "optimizer.name=Adafactor"), "optimizer.name=Adafactor"),
        (("block=post_norm", "parametrization.base_depth=2"), "base_depth, branch"),
        (("block=no_residual", "parametrization.branch=0.5"), "base_depth, branch"),
        (("token_mixer=conv", "parametrization.scores=2"), "factor on scores"),
        (("parametrization.base_dim=30", "parametrization.base_heads=4"), "base_heads=4 does not divide base_dim=30"),
        (("parametrization.base_dim=0",), "base_dim"),
    ],
)
def test_what_cannot_be_scaled_is_refused(overrides: tuple[str, ...], says: str) -> None:
    assert says in messages(MUP, *overrides)
    kept = [each for each in overrides if not each.startswith("parametrization.")]
    assert says not in messages(*kept)


def test_factors_of_blocks_are_refused_without_blocks() -> None:
    bare = ("model=bare", "objective=classify", "head=mean_pool", "data=digits", "tokenizer=patch", "block=none")
    none = ("norm=none", "token_mixer=none", "channel_mixer=none", "logger=none", "position=none", MUP)
    issues = [str(issue) for issue in check(compose([*bare, *none, "parametrization.branch=2"]))]
    assert len(issues) == 1
    assert "branch=2.0 is about blocks, and this model has none" in issues[0]
    assert check(compose([*bare, *none])) == []


class Without(nn.Module):
    """A model that keeps no Context."""

    ctx: ClassVar[None] = None


def test_a_model_without_a_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    built = components(MUP)
    monkeypatch.setattr(built.architecture, "build", lambda ctx, parts: Without())
    with pytest.raises(ValueError, match="Without keeps no Context"):
        built.meta_model()


def test_every_optimizer_with_a_rule_exists() -> None:
    assert set(torch_optim.RULES) <= set(torch_optim.names())
    assert set(timm_optim.RULES) <= set(timm_optim.names())
    assert set(pytorch_optimizer.RULES) <= set(pytorch_optimizer.names())


def test_check_prints_roles_and_factors(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command.check(*SMALL, MUP, "model.dim=128", "head.tied=true", "position=none") == 0
    text = capsys.readouterr().out
    (line,) = (line for line in text.splitlines() if line.startswith("blocks.*.token_mixer, blocks.*.channel_mixer"))
    assert line.split()[2:4] == ["hidden,", "residual"]
    assert line.split()[-2:] == ["0.0005", "0.1"]
    (line,) = (line for line in text.splitlines() if line.startswith("embedder"))
    assert "input, output, vector" in line  # of a table that the head shares
    assert "2 times as wide as its base; factors: logits 0.5, scores 0.7071, branch 1, embedding 1" in text
    assert check_command.check(*SMALL) == 0
    assert "roles" not in capsys.readouterr().out


def test_matched_widths_get_rates_of_their_own() -> None:
    """`match: params` changes the width from arm to arm, and the rate of hidden weights with it."""
    by_arm = {}
    for mixer in ("glu", "mlp"):
        composed = compose([*SMALL, MUP, f"channel_mixer={mixer}", "channel_mixer.expansion=4", "match.params=400000"])
        assert check(composed) == []
        built = build.Components(composed.config)
        by_arm[built.context().dim] = rates(built)["blocks.0.token_mixer.proj_in.weight"][0]
    assert len(by_arm) == 2
    assert every(rate == pytest.approx(64 / dim) for dim, rate in by_arm.items())


def test_a_model_of_mup_trains_and_its_initial_values_do_not_depend_on_the_order_of_construction() -> None:
    built = components(MUP, "model.dim=128")
    first, second = built.model(5), initialise(built.meta_model().to_empty(device="cpu"), 5)
    for (name, p), q in zip(first.named_parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
