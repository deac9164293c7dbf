"""`blockyard inspect equivariance`: the permutation done to the inputs, what is exact, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.contracts import Batch, Kind
from blockyard.errors import UserError
from blockyard.inspect.kinds.equivariance import permuted
from blockyard.inspect.samples import Sample
from blockyard.layers.pattern import Pattern
from blockyard.model._prefix import Prefix
from tests.components.model.tiny_models import build_tiny
from tests.support import engine_runs
from tests.support.helpers import factory, tiny, token_ids
from tests.support.tiny import SHORTEST

EXACT = 1e-10


def sample(lengths: Tensor | None = None) -> Sample:
    return Sample(Batch(token_ids(1, 6), lengths=lengths), 0)


def relative(model: torch.nn.Module, arm: str, permute: str = "patches") -> list[float]:
    return [place.relative for place in permuted(model, [sample()], permute).stages[arm]]


@pytest.mark.parametrize("scheme", ["learned", "rope", "bias_table"])
def test_positions_are_what_breaks_equivariance(scheme: str) -> None:
    model = tiny(position=scheme, prefix=Prefix(registers=1))
    assert max(relative(model, "without")) < EXACT
    assert min(relative(model, "with")[1:]) > 1e-6


def test_positions_of_a_kind_of_layers_count() -> None:
    layers = Pattern(pattern=("base", "far"), kinds={"far": Kind(position=factory("position", "rope"))})
    result = permuted(tiny(position="none", replace={"layers": layers}), [sample()], "patches")
    assert list(result.stages) == ["with", "without"]
    assert max(place.relative for place in result.stages["with"]) > 1e-6
    assert max(place.relative for place in result.stages["without"]) < EXACT


def test_without_positions_it_is_exact() -> None:
    result = permuted(tiny(position="none"), [sample()], "patches")
    assert list(result.stages) == ["without"]
    assert max(place.relative for place in result.stages["without"]) < EXACT


@pytest.mark.parametrize(
    ("options", "exact"),
    [({"causal": True}, False), ({"token_mixer": "conv"}, False), ({"token_mixer": "fully_connected"}, False)],
)
def test_masks_and_mixers_break_it_too(options: dict[str, object], exact: bool) -> None:
    assert (max(relative(tiny(position="none", **options), "without")) < EXACT) is exact  # type: ignore[arg-type]


def test_against_permuted_inputs() -> None:
    """|f(P x) - P f(x)| of a model that is called with the tokens in the other order."""
    model = tiny(position="learned")
    result = permuted(model, [sample()], "patches")
    assert sorted(result.order.tolist()) == list(range(6))
    inputs, order = sample().batch.inputs, result.order
    double = model.double()
    with torch.no_grad():
        plain, other = double.steps(inputs), double.steps(inputs[:, order])
    for place in result.stages["with"]:
        difference = other[place.name][0] - plain[place.name][0][order]
        assert place.tokens is not None
        assert_close(place.tokens, difference.square().sum(-1).sqrt())
        assert place.relative == pytest.approx(float(difference.norm() / plain[place.name].norm()))


def test_a_shift_moves_each_token_on_and_padding_stays() -> None:
    model = tiny(position="none", sizes={"variable": True})
    result = permuted(model, [sample(torch.tensor([4]))], "shift")
    assert result.order.tolist() == [3, 0, 1, 2, 4, 5]
    assert max(place.relative for place in result.stages["without"]) < EXACT


def test_the_model_is_left_as_it_is() -> None:
    model = tiny(position="learned").float()
    before = model.position
    permuted(model, [sample()], "patches")
    assert model.position is before
    assert next(model.parameters()).dtype == torch.float32


def test_models_whose_blocks_run_over_something_else_are_refused() -> None:
    with pytest.raises(UserError, match="do not run over its tokens"):
        permuted(build_tiny("perceiver").eval(), [sample()], "patches")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = engine_runs.run(tmp_path, "position=learned", base=SHORTEST)
    arguments = ["inspect", f"run={run_folder.path}", "log=false", "equivariance"]
    assert main([*arguments, "samples=2", "permute=shift"]) == 0
    numbers = read_json(run_folder.path / "inspect" / "equivariance.json")
    assert numbers["pictures"] == ["equivariance.png"]
    assert numbers["permute"] == "shift"
    assert numbers["with_positions"][-1]["name"] == "prediction"
    assert max(place["relative"] for place in numbers["without_positions"]) < EXACT
    assert "without positions the model treats its tokens as a set" in capsys.readouterr().out
    assert main([*arguments, "permute=turn"]) == 2
    assert "permute=turn" in capsys.readouterr().err
