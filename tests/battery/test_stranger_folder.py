"""Every command in the working folder of a stranger, in a fresh process: nothing of the folder runs."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.battery import stranger_folder
from tests.battery.cases import battery
from tests.support.paths import ROOT

pytestmark = [battery("stranger_folder"), pytest.mark.timeout(600)]

LIMIT = 500.0  # s
RELEASE = ROOT / "tests/compat/0.1.0"
VIT, GPT, INTERRUPTED = "vit-f9284c579f", "gpt-28ed4dc81a", "interrupted-f9284c579f"
TINY = "experiment=vit_digits debug=fast logger=none trainer=cpu trainer.max_steps=1 outputs=new"
TRAIN_IN_PYTHON = """
import os
import blockyard
run = blockyard.train("experiment=vit_digits", "debug=fast", "logger=none", "trainer=cpu", "trainer.max_steps=1")
assert blockyard.load(run).step == 1
assert blockyard.runs()
blockyard.compare("outputs/sweeps/positions")
os._exit(0)  # what libraries do when Python ends is theirs and the path's of whoever imported them
"""
SWEEP = (
    f"claim: x\nbase: [{', '.join(TINY.split()[:-1])}, model.depth=1]\nseeds: 1\nbaseline: a\n"
    "arms: {a: [], b: [position=rope]}\n"
)
CONSOLE = (str(Path(sys.executable).with_name("blockyard")),)
MODULE = (sys.executable, "-m", "blockyard")

# What is typed, and the exit code.
COMMANDS = {
    f"train {TINY}": 0,
    f"train resume=outputs/{INTERRUPTED}/s0": 0,
    f"train -m seed=0,1 {TINY}": 0,
    f"train {TINY} trainer.devices=2 data.batch_size=16": 0,
    f"train {TINY} trainer.num_workers=1": 0,
    f"train {TINY.replace('logger=none', 'logger=wandb logger.mode=offline')}": 0,
    "train --info plugins": 0,
    "tokenize text.txt out=tokens tokenizer=byte": 0,
    f"eval run=outputs/{VIT}/s0": 0,
    f"predict run=outputs/{VIT}/s0 digit.png": 0,
    f"generate run=outputs/{GPT}/s0 prompt=7 max_tokens=2": 0,
    f"forecast run=outputs/{GPT}/s0 file=text.txt": 2,  # no run on series, which is known when it is rebuilt
    f"inspect run=outputs/{VIT}/s0 attention": 0,
    "import checkpoints out=imported": 2,
    f"export run=outputs/{VIT}/s0 to=exported format=onnx": 0,
    f"export run=outputs/{GPT}/s0 to=exported format=hf": 2,  # transformers has no such model, which it is asked for
    "sweep quickstart --dry-run": 0,
    "sweep own.yaml --workers 2": 0,
    "runs": 0,
    "compare outputs/sweeps/positions": 0,
    "bundle positions out=x.zip": 0,
    f"bundle outputs/{VIT}/s0 out=x.zip": 0,
    "verify-bundle text.txt": 2,
    "check experiment=vit_digits": 0,
    "bench cost token_mixer=attention tokens=[16] model.dim=16": 0,
    "verify norm=rms": 0,
    "new norm mine": 0,
    "explain token_mixer=attention": 0,
    "list token_mixer": 0,
    "completion bash": 0,
    "_complete 'blockyard train norm='": 0,
}
SHORT = ("list token_mixer", "check experiment=vit_digits", f"generate run=outputs/{GPT}/s0 prompt=7 max_tokens=2")
AS_MODULE = (
    *SHORT,
    f"train {TINY}",
    f"eval run=outputs/{VIT}/s0",
    f"train {TINY} trainer.devices=2 data.batch_size=16",
)


def left_to_the_battery(items: tuple[str, ...], short: tuple[str, ...]) -> list[object]:
    return [pytest.param(each, marks=() if each in short else pytest.mark.battery) for each in items]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with runs, a text, an image and a sweep file; nothing in it is hostile yet."""
    root = Path(shutil.copytree(RELEASE, tmp_path / "folder"))
    (root / "own.yaml").write_text(SWEEP, encoding="utf-8")
    from PIL import Image

    Image.new("L", (8, 8)).save(root / "digit.png")
    return root


def environment() -> dict[str, str]:
    """Nothing of the tests' own environment that puts a folder on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BLOCKYARD", "WANDB"))}
    if "PYTHONPATH" in os.environ:  # where the tests run from a copy of the source
        kept["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return kept | {"BLOCKYARD_PROJECT": "none", "OMP_NUM_THREADS": "1"}


def run(root: Path, command: tuple[str, ...], **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(
        command, cwd=root, env=environment() | more, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def assert_nothing_ran(root: Path) -> None:
    """Assert that no kind of hostile file has left its mark."""
    assert sorted(path.name for path in root.rglob(f"{stranger_folder.MARK}*")) == []


@pytest.mark.sampled(100)
@pytest.mark.parametrize("line", left_to_the_battery(tuple(COMMANDS), SHORT))
def test_a_command_runs_nothing_of_its_folder(line: str, folder: Path, record_property: pytest.RecordProperty) -> None:
    """The installed command: no file of any kind runs, and the command does what it does elsewhere."""
    record_property("cases", len(stranger_folder.kinds(installed_command=True)))
    stranger_folder.write(folder, installed_command=True)
    done = run(folder, (*CONSOLE, *shlex.split(line)))
    assert_nothing_ran(folder)
    assert done.returncode == COMMANDS[line], done.stderr


@pytest.mark.parametrize("line", left_to_the_battery(AS_MODULE, ()))
def test_a_module_runs_nothing_of_its_folder(line: str, folder: Path, record_property: pytest.RecordProperty) -> None:
    """`python -m blockyard`, for which Python puts the folder first on the path."""
    record_property("cases", len(stranger_folder.kinds(installed_command=False)))
    stranger_folder.write(folder, installed_command=False)
    done = run(folder, (*MODULE, *shlex.split(line)))
    assert_nothing_ran(folder)
    assert done.returncode == COMMANDS[line], done.stderr


@pytest.mark.full
def test_the_functions_run_nothing_of_the_folder(folder: Path, record_property: pytest.RecordProperty) -> None:
    """`import blockyard` where Python has the working folder first on the path, as in a notebook."""
    record_property("cases", len(stranger_folder.kinds(installed_command=False)))
    stranger_folder.write(folder, installed_command=False)
    done = run(folder, (sys.executable, "-c", TRAIN_IN_PYTHON))
    assert_nothing_ran(folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.battery
def test_the_board_runs_nothing_of_its_folder(folder: Path, record_property: pytest.RecordProperty) -> None:
    """The server of pages, until it answers Ctrl-C."""
    record_property("cases", len(stranger_folder.kinds(installed_command=True)))
    stranger_folder.write(folder, installed_command=True)
    command = [*CONSOLE, "board", "outputs", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as board:
        assert board.stdout is not None
        assert any("http://127.0.0.1" in line for line in board.stdout)
        board.send_signal(signal.SIGINT)
        assert board.wait(60) == 0
    assert_nothing_ran(folder)


@pytest.mark.battery
def test_the_marks_appear_where_the_folder_is_on_the_path(folder: Path, record_property: pytest.RecordProperty) -> None:
    """The files do run where a user puts the folder on the path, so that the other tests can fail."""
    record_property("cases", 0)
    stranger_folder.write(folder, installed_command=False)
    for name in stranger_folder.SHADOWS:
        shutil.rmtree(folder / name)
    for name in (*stranger_folder.STARTED, *stranger_folder.SHADOWS, *stranger_folder.LOOKED_FOR[:-1]):
        (folder / f"{name}.py").unlink()
    run(folder, (*CONSOLE, *f"train {TINY}".split()), PYTHONPATH=str(folder))
    marks = {path.name for path in folder.glob(f"{stranger_folder.MARK}*")}
    assert marks >= {stranger_folder.mark(folder, kind).name for kind in EXPECTED}


EXPECTED = (
    "hydra_plugins",
    "hydra_plugins.package",
    *(f"entry_points:{group}" for group in stranger_folder.GROUPS[:1]),
)
