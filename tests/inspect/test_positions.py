"""`blockyard inspect positions`, and the rank of mixing matrices."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.contracts import Kind
from blockyard.errors import UserError
from blockyard.inspect.jacobian import effective_rank
from blockyard.inspect.kinds.mixing import rank
from blockyard.inspect.kinds.positions import position_codes
from blockyard.layers.pattern import Pattern
from blockyard.token_mixer.attention import Attention
from tests.support import engine_runs
from tests.support.helpers import factory, tiny
from tests.support.tiny import SHORTEST


def test_codes_are_what_the_tokens_get() -> None:
    model = tiny(position="learned")
    codes = position_codes(model)
    assert codes.codes is not None
    assert_close(codes.codes, model.position.table.detach())
    similarity = codes.similarity()
    assert similarity is not None
    centred = codes.codes - codes.codes.mean(0)
    assert_close(similarity[1, 4], torch.cosine_similarity(centred[1], centred[4], dim=0))
    appended = position_codes(tiny(position="learned", options={"position": {"combine": "concat", "width": 6}}))
    assert appended.codes is not None
    assert appended.codes.shape == (6, 6)


def test_tables_of_scores_on_a_line_and_a_grid() -> None:
    alibi = position_codes(tiny(causal=True, position="alibi")).tables["bias"]
    slopes = [2.0 ** (-8 * (head + 1) / 4) for head in range(4)]
    for head, slope in enumerate(slopes):
        assert alibi[head, 5, 2] == pytest.approx(-3 * slope)
    rotation = position_codes(tiny(position="rope")).tables["rotation"]
    angles = [10_000 ** (-2 * pair / 4) for pair in range(2)]  # K is 4
    assert rotation[0, 4, 1] == pytest.approx(sum(math.cos(3 * angle) for angle in angles) / 2)
    assert_close(rotation.diagonal(dim1=1, dim2=2), torch.ones(4, 6, dtype=torch.float64))
    grid = position_codes(tiny(axes=2, position="bias_offset"))
    assert grid.grid == (2, 3)
    assert grid.tables["bias"].shape == (4, 6, 6)
    assert_close(grid.tables["bias"][1, 0, 1], grid.tables["bias"][1, 3, 4])  # one step to the right, in both rows


@pytest.mark.parametrize(("scheme", "axes"), [("none", 1), ("graph", 0)])
def test_models_without_positions_to_show_are_refused(scheme: str, axes: int) -> None:
    with pytest.raises(UserError, match="positions: "):
        position_codes(tiny(axes=axes, position=scheme))


@pytest.mark.full
def test_the_command_draws_and_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = engine_runs.run(tmp_path, "position=learned", base=SHORTEST)
    arguments = ["inspect", f"run={run_folder.path}", "log=false"]
    assert main([*arguments, "positions"]) == 0
    numbers = read_json(run_folder.path / "inspect" / "positions.json")
    assert numbers["scheme"] == "Learned"
    assert numbers["pictures"] == ["positions.png", "positions_maps.png"]
    assert "farthest" in capsys.readouterr().out
    assert main([*arguments, "positions", "sample=2"]) == 2
    assert "not of positions" in capsys.readouterr().err
    assert main([*arguments, "mixing", "samples=1", "probes=2"]) == 0
    layer = read_json(run_folder.path / "inspect" / "mixing.json")["layers"][0]
    norms = torch.tensor(layer["norms"])
    assert layer["rank"] == pytest.approx(int(torch.linalg.matrix_rank(norms, rtol=1e-3)), abs=1)
    assert layer["effective_rank"] == pytest.approx(effective_rank(torch.linalg.svdvals(norms)), rel=1e-3)


def test_ranks_of_known_matrices() -> None:
    assert rank(torch.eye(7)) == 7
    assert effective_rank(torch.linalg.svdvals(torch.eye(7))) == pytest.approx(7)
    assert rank(torch.ones(5, 9)) == 1  # a mean over all tokens
    assert effective_rank(torch.linalg.svdvals(torch.ones(5, 9))) == pytest.approx(1)


def test_a_rotation_has_the_width_of_the_keys_that_it_turns() -> None:
    narrow = {"far": Kind(token_mixer=partial(Attention, key_dim=2), position=factory("position", "rope"))}
    layers = Pattern(pattern=("base", "far"), kinds=narrow)
    both = tiny(causal=True, position="rope", replace={"layers": layers})
    alone = tiny(causal=True, position="rope", replace={"token_mixer": partial(Attention, key_dim=2)})
    assert_close(position_codes(both, (1,)).tables["rotation"], position_codes(alone).tables["rotation"])
    assert not torch.equal(position_codes(both, (0,)).tables["rotation"], position_codes(alone).tables["rotation"])


def test_layers_of_several_schemes() -> None:
    """Without layers the model's own, or the first that acts; layers of two schemes are refused."""
    kinds = {"far": Kind(position=factory("position", "alibi"))}
    layers = Pattern(pattern=("base", "far"), kinds=kinds)
    model = tiny(causal=True, position="rope", replace={"layers": layers})
    assert position_codes(model).name == position_codes(model, (0,)).name == "Rope"
    assert position_codes(model, (1,)).name == "Alibi"
    assert position_codes(tiny(causal=True, replace={"layers": layers})).name == "Alibi"
    with pytest.raises(UserError, match="Rope and Alibi; name layers of one kind"):
        position_codes(model, (0, 1))
    with pytest.raises(UserError, match="layers 0 to 1"):
        position_codes(model, (2,))
