"""Learning rates and weight decays by name, against torch's optimizers over groups that are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm.optim
import torch
from torch import nn

from blockyard.commands import check as check_command
from blockyard.config import build
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.runs.identity import identity

VIT = ("model.dim=16", "model.depth=2", "model.heads=2", "model.prefix.class_token=true", "head=class_token")
RATES = "optimizer.rates={embedder: 3, blocks: 0.5, blocks.0.channel_mixer: 0.25, *.token_norm.bias: 2, final_norm: 2}"
DECAYS = "optimizer.decays={blocks.1: 0.5, head: 0, position: 2}"
LR, DECAY, ADAMW_LR = 0.01, 0.1, 0.003


def components(*overrides: str) -> build.Components:
    composed = compose([*VIT, *overrides])
    assert not composed.issues, composed.issues
    return build.Components(composed.config)


def messages(*overrides: str) -> str:
    return "\n".join(str(issue) for issue in check(compose([*VIT, *overrides])))


def rate(name: str) -> float:
    """The factor of RATES, written by hand."""
    if name.endswith(".token_norm.bias"):
        return 2.0
    tops = {"embedder": 3.0, "final_norm": 2.0, "blocks": 0.25 if name.startswith("blocks.0.channel_mixer.") else 0.5}
    return tops.get(name.split(".")[0], 1.0)


def decay(name: str, p: nn.Parameter) -> float:
    """The factor of DECAYS, written by hand."""
    if name.startswith("position"):
        return 2.0
    if p.ndim < 2 or name.startswith(("prefix", "head")):
        return 0.0
    return 0.5 if name.startswith("blocks.1.") else 1.0


def by_hand(model: nn.Module, lr: float, chosen: Callable[[str, nn.Parameter], bool]) -> list[dict[str, Any]]:
    """A group for each parameter."""
    return [
        {"params": [p], "lr": lr * rate(name), "weight_decay": DECAY * decay(name, p)}
        for name, p in model.named_parameters()
        if chosen(name, p)
    ]


def is_hidden(name: str, p: nn.Parameter) -> bool:
    return name.startswith("blocks.") and p.ndim == 2


def reference(choice: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    if choice == "muon":
        hidden = by_hand(model, LR, is_hidden)
        rest = by_hand(model, ADAMW_LR, lambda name, p: not is_hidden(name, p))
        muon = torch.optim.Muon(hidden, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw")
        return [muon, torch.optim.AdamW(rest, betas=(0.9, 0.95), fused=True)]
    groups = by_hand(model, LR, lambda name, p: True)
    if choice == "adamw":
        return [torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)]
    if choice == "sgd":
        return [torch.optim.SGD(groups, momentum=0.9, nesterov=True, fused=True)]
    return [torch.optim.Adam(groups) if choice == "torch_optim" else timm.optim.Lamb(groups)]


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], factor: float = 1.0) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] *= factor
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        images, target = torch.rand(8, 1, 8, 8, generator=generator), torch.arange(8)
        model.zero_grad()
        nn.functional.cross_entropy(model(images), target).backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("choice", ["adamw", "sgd", "muon", "torch_optim", "timm_optim"])
def test_every_optimizer_steps_as_the_library_over_groups_by_hand(choice: str) -> None:
    own = [f"optimizer.adamw_lr={ADAMW_LR}"] if choice == "muon" else []
    settings = (f"optimizer={choice}", f"optimizer.lr={LR}", f"optimizer.weight_decay={DECAY}", RATES, DECAYS, *own)
    built = components(*settings)
    model, other, planted = (built.model(0) for _ in range(3))
    optimizer = built.optimizer.build(model)
    train(model, [optimizer])
    train(other, reference(choice, other))
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        # Lamb divides by norms, whose float32 sums depend on where in memory the weights lie.
        rtol, atol = (1e-5, 1e-7) if choice == "timm_optim" else (0, 0)
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
    wrong = reference(choice, planted)
    wrong[-1].param_groups[0]["lr"] *= 1.1
    train(planted, wrong)
    pairs = zip(model.parameters(), planted.parameters(), strict=True)
    assert not all(torch.allclose(p, q) for p, q in pairs)


def test_factors_multiply_with_those_of_layers_and_the_first_group_has_the_plain_rate() -> None:
    built = components("optimizer.layer_decay=0.5", "optimizer.rates={blocks.1: 4}", f"optimizer.lr={LR}")
    model = built.model(0)
    groups = built.optimizer.build(model).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
    assert rates["blocks.1.token_mixer.proj_in.weight"] == pytest.approx(LR * 0.5 * 4)
    assert rates["blocks.0.token_mixer.proj_in.weight"] == pytest.approx(LR * 0.25)
    assert groups[0]["lr"] == LR  # which is logged as the learning rate


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["optimizer.rates={embedding: 2}"], "did you mean embedder"),
        (["optimizer.decays={blocks.7: 2}"], "'blocks.7'"),
        (["optimizer.rates={embedder: 2}", "init.freeze=[embedder]"], "'embedder'"),
        (["optimizer.rates={*.bias: 2, blocks: 3}"], "'*.bias' and 'blocks'"),
        (["optimizer.rates={head: 2, head.*: 3}"], "different values"),
        (["optimizer.rates={head: 0}"], "number > 0"),
        (["optimizer.rates.blocks.0=2"], "a mapping of names"),
        (["optimizer.weight_decay=0", "optimizer.decays={head: 2}"], "which is 0"),
        (["optimizer=muon", "optimizer.rates={nothing: 2}"], "'nothing'"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_names_that_do_not_fit_are_refused(overrides: list[str], part: str) -> None:
    assert part in messages(*overrides)


def test_names_that_agree_and_parts_of_parts_are_accepted() -> None:
    assert messages("optimizer.rates={*.bias: 2, blocks: 2, blocks.*.token_mixer: 3}") == ""


def test_a_name_without_linear_maps_makes_its_parameters_decay() -> None:
    built = components("optimizer.decays={final_norm: 1, blocks: 2}")
    model = built.model(0)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = built.optimizer.build(model).param_groups
    decays = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert decays["final_norm.weight"] == 0.05
    assert decays["blocks.0.token_norm.weight"] == 0.0
    assert decays["blocks.0.token_mixer.proj_in.weight"] == 0.1


@pytest.mark.parametrize("choice", ["adamw", "sgd", "muon", "torch_optim", "timm_optim"])
def test_empty_factors_are_those_of_a_config_without_them(choice: str) -> None:
    plain = compose([*VIT, f"optimizer={choice}"]).config
    before = {**plain, "optimizer": {k: v for k, v in plain["optimizer"].items() if k not in NEW}}
    assert {"rates", "decays"} <= plain["optimizer"].keys()
    assert identity(plain) == identity(before)
    assert identity(compose([*VIT, f"optimizer={choice}", "optimizer.rates={head: 2}"]).config) != identity(plain)


NEW = ("rates", "decays", "adamw_lr")


def test_check_prints_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command.check(*VIT, "optimizer.rates={embedder: 10}", "optimizer.decays={position: 0.5}") == 0
    text = capsys.readouterr().out
    printed = {line.split("  ")[0]: line.split()[-3:] for line in text.splitlines()}
    assert printed["embedder.proj.weight"] == ["256", "0.01", "0.05"]
    assert printed["embedder.proj.bias"] == ["16", "0.01", "0"]
    assert printed["position"] == ["64", "0.001", "0.025"]
    assert "blocks.*.token_mixer" in text


def test_check_refuses_a_name_that_matches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command.check(*VIT, "optimizer.rates={embedding: 10}") == 2
    assert "there are embedder, position, prefix" in capsys.readouterr().err
