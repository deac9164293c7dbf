"""`blockyard train -m`: each combination is a run of its own, forked from a process that has imported everything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from blockyard.cli import main
from blockyard.commands.train import comparison
from tests.support.every import every
from tests.support.fork import blockyard
from tests.support.tiny import DEBUG

pytestmark = pytest.mark.xdist_group("multirun")

# A norm that changes, in the process that builds it, whatever a process shares, and then dies.
RUINOUS = """
import os, random, signal
import numpy, torch
from blockyard.norm.layer import Layer

class Ruinous(Layer):
    def __init__(self, ctx):
        super().__init__(ctx)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        torch.manual_seed(3)
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_flash_sdp(False)
        random.seed(3)
        numpy.random.seed(3)
        Layer.forward = lambda self, x: x
        os.environ["OMP_NUM_THREADS"] = "1"
        os.kill(os.getpid(), signal.SIGSEGV)
"""


def run_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("outputs/*/s*/status.json"))


def weights(run: Path) -> dict[str, torch.Tensor]:
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert state
    return state


def exits(output):
    return [line.split(":")[0] for line in output.splitlines() if line.startswith("exit ")]


def test_an_unknown_choice_of_any_job_is_refused_before_the_first(tmp_path):
    done = blockyard(tmp_path, "train", "-m", "block=pre_norm,nonsense", "seed=1,2", *DEBUG)
    assert exits(done.stdout) == []
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert not run_folders(tmp_path)


def test_too_many_jobs_are_refused_before_a_process_is_started(capsys, monkeypatch):
    from blockyard.sweep.executor._server_process import ServerProcess

    monkeypatch.setattr(ServerProcess, "start", lambda self: pytest.fail("a process was started"))
    assert main(["train", "-m", "seed=range(0,200)", "model.dim=range(1,200)"]) == 2
    assert "39,800 runs are too many; at most 10,000" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--cfg", "--info"])
def test_a_flag_that_shows_one_config_is_refused(capsys, flag):
    assert main(["train", "-m", "seed=1,2", flag, "job" if flag == "--cfg" else "all"]) == 2
    assert f"{flag} shows one config; leave out -m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("runs", "command"),
    [
        (["norm=rms", "norm=layer"], "blockyard compare outputs --by norm"),
        (["norm=rms seed=1", "norm=rms seed=2", "norm=none seed=1"], "blockyard compare outputs --by norm"),
        (["norm=rms outputs=my\\ runs", "norm=none outputs=my\\ runs"], "blockyard compare 'my runs' --by norm"),
        (['norm=rms outputs="my,runs"', 'norm=none outputs="my,runs"'], "blockyard compare my,runs --by norm"),
        (["++model.dim=32", "++model.dim=64"], "blockyard compare outputs --by model.dim"),
        (["norm=rms block=parallel", "norm=layer block=pre_norm"], "blockyard compare outputs"),
        (["seed=1", "seed=2"], None),
        (["norm=rms"], None),
        ([], None),
    ],
)
def test_the_end_names_the_command_that_compares(runs, command):
    assert comparison([re.split(r"(?<!\\) ", line) for line in runs]) == command


@pytest.mark.full
@pytest.mark.parametrize(("seeds", "norm"), [("1", "layer,layer_plain"), ("1,2", "glob(layer*)")])
def test_multirun_lands_in_the_same_store(tmp_path, seeds, norm):
    done = blockyard(tmp_path, "train", "-m", f"norm={norm}", f"seed={seeds}", *DEBUG)
    assert done.returncode == 0, done.stderr
    norms = [yaml.safe_load((path / "config.yaml").read_text())["norm"]["_target_"] for path in run_folders(tmp_path)]
    assert {norm.rpartition(".")[2] for norm in norms} == {"Layer", "LayerPlain"}
    wanted = sorted(f"s{seed}" for seed in seeds.split(",") for _ in range(2))
    assert sorted(path.name for path in run_folders(tmp_path)) == wanted
    assert done.stdout.count("exit 0") == len(wanted)
    assert {path.name for path in tmp_path.iterdir()} == {"outputs"}


def test_multirun_goes_on_after_a_bad_job(tmp_path):
    done = blockyard(tmp_path, "train", "-m", "model.heads=3,4", *DEBUG)
    assert done.returncode == 2
    assert [line.split()[1] for line in exits(done.stdout)] == ["2", "0"]
    assert len(run_folders(tmp_path)) == 1


@pytest.mark.full
def test_a_job_equals_a_process_of_its_own_bit_by_bit_after_one_that_died(tmp_path):
    (tmp_path / "ruinous").mkdir()
    (tmp_path / "ruinous" / "__init__.py").write_text(RUINOUS)
    (tmp_path / "conf" / "norm").mkdir(parents=True)
    (tmp_path / "conf" / "norm" / "ruinous.yaml").write_text("_target_: ruinous.Ruinous\n_partial_: true\n")
    options = [*DEBUG, "allow=[ruinous]", "--config-dir", "conf"]
    done = blockyard(tmp_path, "train", "-m", "norm=ruinous,layer", "outputs=several", *options)
    assert done.returncode == 139, done.stderr
    assert "exit 139  norm=ruinous" in done.stdout
    assert "exit 0  norm=layer" in done.stdout
    alone = blockyard(tmp_path, "train", "norm=layer", "outputs=alone", *options)
    assert alone.returncode == 0, alone.stderr
    several, one = (
        [path.parent for path in tmp_path.glob(f"{name}/*/s*/summary.json")] for name in ("several", "alone")
    )
    assert [path.parts[-2:] for path in several] == [path.parts[-2:] for path in one]
    assert (several[0] / "config.yaml").read_text() == (one[0] / "config.yaml").read_text().replace("alone", "several")
    a, b = weights(several[0]), weights(one[0])
    assert a.keys() == b.keys()
    assert every(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.full
def test_a_job_on_two_processes(tmp_path):
    done = blockyard(tmp_path, "train", "-m", "seed=1,2", *DEBUG, "trainer=cpu", "trainer.devices=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exit 0") == 2


@pytest.mark.full
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_the_running_job_save_and_starts_no_other(tmp_path, signum, code):
    long = [*DEBUG, "trainer.max_steps=1000000", "trainer.max_epochs=null", "trainer.log_every=10"]
    command = [sys.executable, "-m", "blockyard", "train", "-m", "seed=1,2", *long]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    until = time.monotonic() + 60
    while not any(path.read_text().count("\n") > 2 for path in tmp_path.glob("outputs/*/s1/metrics.csv")):
        assert time.monotonic() < until
        time.sleep(0.1)
    # As a terminal does it: Ctrl-C goes to the whole group, SIGTERM to one process.
    (os.killpg if signum == signal.SIGINT else os.kill)(process.pid, signum)
    assert process.wait(60) == code
    (run,) = run_folders(tmp_path)
    status = yaml.safe_load((run / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert status["step"] > 0
    time.sleep(0.2)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nothing of it is left
