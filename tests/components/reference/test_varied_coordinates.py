"""Coordinates that vary in training, against DINOv3's in transformers with the same random numbers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers.models.dinov3_vit.modeling_dinov3_vit import (
    augment_patches_center_coordinates,
    get_patches_center_coordinates,
)

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.position.rope import Rope
from tests.support.engine_runs import assert_same_bits, killed_at, run
from tests.support.every import every
from tests.support.helpers import context, tiny, token_ids

HEIGHT, WIDTH = 2, 3
OPTIONS = [
    {"shift": 0.5},
    {"jitter": 2.0},
    {"rescale": 2.0},
    {"shift": 0.3, "jitter": 1.5, "rescale": 2.0},
]


def grid() -> Tensor:
    """Integer coordinates (1, N, 2), as the tokens of a grid have them."""
    rows, columns = torch.meshgrid(torch.arange(HEIGHT).double(), torch.arange(WIDTH).double(), indexing="ij")
    return torch.stack([rows.flatten(), columns.flatten()], -1)[None]


def relative(coords: Tensor) -> Tensor:
    """From integer coordinates to [-1, 1], as DINOv3 counts from the centres of patches."""
    sides = torch.tensor([HEIGHT, WIDTH], dtype=coords.dtype)
    return 2 * (coords + 0.5) / sides - 1


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_coordinates_are_dinov3s(options: dict[str, Any]) -> None:
    scheme = Rope(context(axes=2), **options)
    plain = get_patches_center_coordinates(HEIGHT, WIDTH, dtype=torch.float64, device=torch.device("cpu"))
    assert_close(relative(grid())[0], plain)
    torch.manual_seed(3)
    ours = scheme.vary(grid())
    torch.manual_seed(3)
    theirs = augment_patches_center_coordinates(plain, **options)
    assert_close(relative(ours)[0], theirs)
    assert (relative(ours)[0] - plain).abs().max() > 1e-3
    torch.manual_seed(4)
    assert not torch.allclose(scheme.vary(grid()), ours)


def test_all_layers_of_a_pass_have_one_draw_and_evaluation_none() -> None:
    model: Any = tiny(axes=2, position="rope", options={"position": {"jitter": 3.0}}, sizes={"depth": 3})
    seen: list[Tensor] = []
    rotate = model.position.rotate
    model.position.rotate = lambda q, k, qc, kc: seen.append(qc) or rotate(q, k, qc, kc)
    ids = token_ids(2, 6)
    assert torch.equal(model(ids), model(ids))
    assert every(torch.equal(each, grid().to(each)) for each in seen)
    seen.clear()
    model.train()
    first, second = model(ids), model(ids)
    assert not torch.allclose(first, second)
    assert every(torch.equal(each, seen[0]) for each in seen[:3])
    assert every(torch.equal(each, seen[3]) for each in seen[3:])
    assert not torch.equal(seen[0], seen[3])


def test_a_shift_is_felt_by_prefix_tokens_alone() -> None:
    """Scores of two tokens depend on their offset; those with a class token on the position too."""
    options = {"position": {"shift": 1.0}}
    for prefix, same in ((NO_PREFIX, True), (Prefix(class_token=True), False)):
        model = tiny(axes=2, position="rope", options=options, prefix=prefix)
        ids = token_ids(2, 6)
        plain = model(ids)
        assert torch.allclose(model.train()(ids), plain) is same


@pytest.mark.full
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    overrides = (
        *("position=rope", "position.jitter=2", "position.shift=0.5", "callbacks.checkpoint.every=3"),
        *("trainer.max_steps=9", "trainer.eval_every=3"),
    )
    whole = run(tmp_path / "whole", *overrides)
    assert killed_at(5, tmp_path / "killed", *overrides) == -signal.SIGKILL
    assert_same_bits(run(tmp_path / "killed", *overrides), whole)


def test_a_kind_of_layers_has_no_draw_of_its_own() -> None:
    overrides = ["experiment=vit_digits", "logger=none", "layers.pattern=[base,other]"]
    kinds = "layers.kinds.other=[position=rope,position.jitter=2]"
    assert "drawn before the first layer" in " ".join(map(str, check(compose([*overrides, kinds]))))
    assert "position.jitter" in " ".join(map(str, check(compose(["position=rope", "position.jitter=0.5"]))))
