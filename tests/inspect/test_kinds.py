"""The kinds of inspection are the files of `inspect/kinds`: nothing else lists them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from blockyard.commands._help import help_text
from blockyard.errors import UserError
from blockyard.inspect import options as declared
from blockyard.inspect.kinds.positions import position_codes
from blockyard.inspect.options import FOLDER, KEYS, KINDS, READERS
from tests.support.helpers import tiny


def test_every_file_is_a_kind_that_the_command_describes() -> None:
    """A kind has options and one function, and stands in the command's help."""
    assert {path.stem for path in FOLDER.glob("*.py")} - {"__init__"} == set(KINDS)
    assert len(KINDS) >= 8
    for kind in KINDS:
        module = import_module(f"blockyard.inspect.kinds.{kind}")
        assert callable(module.inspect)
        assert set(module.OPTIONS) == {key for key, (kinds, _) in KEYS.items() if kind in kinds}
        assert f"\n  {kind} " in help_text("inspect")


def test_every_option_belongs_to_a_kind() -> None:
    assert [key for key, (kinds, _) in KEYS.items() if not kinds] == []


def test_a_new_file_is_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text('import torch\n\nOPTIONS = ("layers", "sample")\n')
    assert declared.declared(path) == ("layers", "sample")


@pytest.mark.parametrize(
    ("text", "message"), [("X = 1\n", "declares its OPTIONS"), ('OPTIONS = ("depth",)\n', "depth")]
)
def test_a_file_that_declares_no_known_options_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "planted.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        declared.declared(path)


def test_an_option_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="not of norms"):
        declared.options(("norms",), {"layers": "0"})
    assert set(READERS) == set(KEYS)


def test_positions_leave_the_model_to_the_kinds_that_follow() -> None:
    """Its weights keep their type: `inspect positions norms` ended in a traceback."""
    model = tiny(position="learned").float()
    position_codes(model)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_kinds_and_options_are_known_without_torch() -> None:
    code = "import sys, blockyard.inspect.options; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
