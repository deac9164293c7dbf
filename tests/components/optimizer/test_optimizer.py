"""Optimizers: weight decay, which optimizer updates what, and resuming from a saved state."""

from __future__ import annotations

import copy
import functools
import importlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from blockyard.config import build
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import OptimizerBuilder, iter_blocks
from blockyard.optimizer import pytorch_optimizer, timm_optim, torch_optim
from blockyard.optimizer._param_groups import hidden_matrices, split_by_decay
from blockyard.optimizer.muon import Muon
from blockyard.optimizer.pytorch_optimizer import PytorchOptimizer
from blockyard.optimizer.sgd import SGD
from blockyard.optimizer.timm_optim import TimmOptim
from blockyard.optimizer.torch_optim import TorchOptim
from tests.support.every import every
from tests.support.paths import CONF
from tests.support.tiny import ONE_LAYER

YAMLS = sorted((CONF / "optimizer").glob("*.yaml"))


def builder(path: Path, **options: Any) -> OptimizerBuilder:
    node = yaml.safe_load(path.read_text())
    module, _, name = node.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), name)(**{**node, **options})


def vit() -> nn.Module:
    composed = compose([*ONE_LAYER, "position=learned", "model.prefix.class_token=true", "head=class_token"])
    assert not composed.issues, composed.issues
    return build.Components(composed.config).model(0)


def names(model: nn.Module, chosen: list[nn.Parameter]) -> set[str]:
    ids = {id(p) for p in chosen}
    return {name for name, p in model.named_parameters() if id(p) in ids}


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0) -> list[float]:
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(seed + step)
        images = torch.rand(32, 1, 8, 8, generator=generator)
        target = (images.mean(dim=(1, 2, 3)) > 0.5).long()

        def closure(images: torch.Tensor = images, target: torch.Tensor = target) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), target)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


def test_only_linear_maps_decay() -> None:
    model = vit()
    decay, no_decay = split_by_decay(model)
    assert {id(p) for p in decay}.isdisjoint({id(p) for p in no_decay})
    assert len(decay) + len(no_decay) == len(list(model.parameters()))
    decaying = names(model, decay)
    assert every(dict(model.named_parameters())[name].ndim >= 2 for name in decaying)
    exempt = names(model, no_decay)
    assert {"position.table", "prefix.class_token"} <= exempt
    for block in iter_blocks(model):
        for module in block.modules():
            if isinstance(module, nn.Linear):
                assert id(module.weight) in {id(p) for p in decay}


def test_a_table_shared_with_the_head_does_not_decay() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.table.weight

    model = Tied()
    decay, no_decay = split_by_decay(model)
    assert decay == []
    assert len(no_decay) == 1


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_every_optimizer_has_every_parameter_once_and_learns(path: Path) -> None:
    model = vit()
    optimizer = builder(path).build(model)
    ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in model.parameters())
    losses = descend(model, optimizer, 30)
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_a_restored_optimizer_continues_bitwise(path: Path) -> None:
    optimizer_builder, model = builder(path), vit()
    optimizer = optimizer_builder.build(model)
    descend(model, optimizer, 4)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    expected = descend(model, optimizer, 4, seed=50)
    other = vit()
    other.load_state_dict(weights)
    again = optimizer_builder.build(other)
    again.load_state_dict(saved)
    assert descend(other, again, 4, seed=50) == expected
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_learning_rate_set_in_the_groups_reaches_both_parts_of_muon() -> None:
    model = vit()
    optimizer = Muon(weight_decay=0.0).build(model)
    descend(model, optimizer, 1)
    for saved in (None, optimizer.state_dict()):
        if saved is not None:
            optimizer.load_state_dict(saved)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        before = [p.clone() for p in model.parameters()]
        descend(model, optimizer, 1)
        for p, old in zip(model.parameters(), before, strict=True):
            torch.testing.assert_close(p, old, rtol=0, atol=0)


def test_muon_takes_exactly_the_matrices_inside_the_blocks() -> None:
    model = vit()
    hidden = names(model, hidden_matrices(model))
    inside = {name for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2}
    assert hidden == inside


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer.nesterov=true needs optimizer.momentum"):
        SGD(momentum=0.0)


@pytest.mark.parametrize("value", ["inf", "nan", ".inf"])
def test_a_learning_rate_must_be_finite(value: str) -> None:
    from blockyard.config.check import check
    from blockyard.config.compose import compose

    assert any("optimizer.lr" in str(issue) for issue in check(compose([f"optimizer.lr={value}"])))


@functools.cache
def of_libraries() -> tuple[tuple[str, str], ...]:
    libraries = {
        "torch_optim": torch_optim.names(),
        "timm_optim": timm_optim.names(),
        "pytorch_optimizer": pytorch_optimizer.names(),
    }
    return tuple((library, name) for library, names in libraries.items() for name in names)


@pytest.mark.parametrize("library", ["torch_optim", "timm_optim", "pytorch_optimizer"])
def test_every_optimizer_of_a_library_steps_and_resumes_bitwise(library: str) -> None:
    def small() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.LayerNorm(4), nn.Linear(4, 2))

    for _, name in (each for each in of_libraries() if each[0] == library):
        optimizer_builder, model = builder(CONF / "optimizer" / f"{library}.yaml", name=name, weight_decay=0.0), small()
        optimizer = optimizer_builder.build(model)
        before = copy.deepcopy(model.state_dict())
        descend(model, optimizer, 6)  # RAdam of pytorch_optimizer changes nothing in the first five
        assert any(not torch.equal(model.state_dict()[key], before[key]) for key in before), name
        buffer = io.BytesIO()
        torch.save({"optimizer": optimizer.state_dict(), "model": model.state_dict()}, buffer)
        buffer.seek(0)
        saved = torch.load(buffer, weights_only=True)  # as checkpoints are
        expected = descend(model, optimizer, 2, seed=50)
        other = small()
        other.load_state_dict(saved["model"])
        again = optimizer_builder.build(other)
        again.load_state_dict(saved["optimizer"])
        assert descend(other, again, 2, seed=50) == expected, name
        for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(ours, theirs), name


def test_an_optimizer_by_name_is_the_librarys_and_keeps_the_groups() -> None:
    from timm.optim import create_optimizer_v2

    model = vit()
    adagrad = TorchOptim(name="Adagrad", lr=0.1, weight_decay=0.5, options={"lr_decay": 0.2}).build(model)
    assert type(adagrad) is torch.optim.Adagrad
    decay, no_decay = split_by_decay(model)
    groups = [(len(group["params"]), group["weight_decay"]) for group in adagrad.param_groups]
    assert groups == [(len(decay), 0.5), (len(no_decay), 0.0)]
    assert {group["lr_decay"] for group in adagrad.param_groups} == {0.2}
    ours = TimmOptim(name="nesterovw", lr=0.1, weight_decay=0.0).build(model)  # a name with defaults bound to it
    theirs = create_optimizer_v2(model.parameters(), "nesterovw", lr=0.1)
    assert type(ours) is type(theirs)
    different = {"params", "weight_decay"}
    assert {k: v for k, v in ours.param_groups[0].items() if k not in different} == {
        k: v for k, v in theirs.param_groups[0].items() if k not in different
    }
    # Rprop has no weight decay, and its parameters are in groups all the same.
    assert sum(len(group["params"]) for group in TorchOptim(name="Rprop").build(model).param_groups) == len(
        list(model.parameters())
    )


@pytest.mark.parametrize("name", ["lion", "ademamix", "shampoo", "prodigy"])
def test_a_trajectory_is_that_of_pytorch_optimizer_alone(name: str) -> None:
    from pytorch_optimizer import load_optimizer

    def small() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 2)).double()

    def train(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        for _ in range(12):
            inputs = torch.randn(8, 64, dtype=torch.float64, generator=generator)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    first, second, third = small(), small(), small()
    ours = train(PytorchOptimizer(name=name, lr=0.01, weight_decay=0.1).build(first), first)
    groups = [{"params": [second[0].weight], "weight_decay": 0.1}, {"params": [second[0].bias], "weight_decay": 0.0}]
    assert every(map(torch.equal, ours, train(load_optimizer(name)(groups, lr=0.01), second)))
    # Planted: another weight decay is seen.
    assert not all(map(torch.equal, ours, train(load_optimizer(name)(third.parameters(), lr=0.01), third)))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_optimizer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'blockyard\[pytorch_optimizer\]'"):
        PytorchOptimizer()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchOptim(name="Adagard"), r"optimizer.name=Adagard: torch.optim has no such.*did you mean Adagrad"),
        (lambda: TorchOptim(name="LBFGS"), r"optimizer.name=LBFGS is not taken: it evaluates the loss several times"),
        (lambda: TorchOptim(options={"beta": 1}), r"optimizer.options.beta: Adam has no such option.*betas"),
        (lambda: TorchOptim(options={"lr": 1}), r"optimizer.options.lr is optimizer.lr; leave it out"),
        (lambda: TorchOptim(options={"maximize": True}), r"optimizer.options.maximize would maximise the loss"),
        (lambda: TorchOptim(options={"betas": [2, 3]}), r"optimizer.name=Adam refuses its options: Invalid beta"),
        (lambda: TorchOptim(name="Rprop", weight_decay=0.1), r"optimizer.weight_decay=0.1: Rprop has none"),
        (lambda: TimmOptim(name="lyon"), r"optimizer.name=lyon: timm.optim has no such.*did you mean lion"),
        (lambda: TimmOptim(name="kron"), r"optimizer.name=kron is not taken: it draws random numbers"),
        (lambda: PytorchOptimizer(name="lyon"), r"name=lyon: pytorch_optimizer has no such.*did you mean lion"),
        (lambda: PytorchOptimizer(name="muon"), r"optimizer.name=muon is not taken: it takes matrices only"),
        (
            lambda: PytorchOptimizer(name="lion", options={"beta": 1}),
            r"optimizer.options.beta: lion has no such.*betas",
        ),
        (lambda: PytorchOptimizer(name="lion", options={"betas": [2, 3]}), r"optimizer.name=lion refuses its options"),
        (lambda: PytorchOptimizer(name="fromage", weight_decay=0.1), r"optimizer.weight_decay=0.1: fromage has none"),
        (lambda: TimmOptim(name="lion", options={"momentum": 1}), r"optimizer.options.momentum: lion has no such"),
    ],
)
def test_an_unknown_optimizer_or_option_is_refused_with_what_would_work(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("overrides", [("token_mixer=pool", "channel_mixer=none"), ("init.freeze=[blocks]",)])
def test_muon_without_a_matrix_is_refused_before_training(overrides: tuple[str, ...]) -> None:
    issues = check(compose(("optimizer=muon", *overrides)))
    assert [str(issue) for issue in issues] == [
        "optimizer: no block of this model has a trainable matrix; choose optimizer=adamw"
    ]


@pytest.mark.parametrize("name", ["soap", "dion", "muon", "hyperball"])
def test_whole_matrices_cannot_be_spread(name: str) -> None:
    """Refused before anything starts; others work on their parts."""
    spread = ("trainer.strategy=fsdp", "trainer.devices=2", "trainer.accelerator=cpu")
    texts = [str(issue) for issue in check(compose([*ONE_LAYER, *spread, f"optimizer={name}"]))]
    assert any("trainer.strategy=fsdp spreads" in text for text in texts) == (name in ("soap", "dion")), texts
    assert not [text for text in texts if "fsdp spreads" not in text]
