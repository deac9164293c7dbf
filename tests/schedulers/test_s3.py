"""`runs push` and `pull` against a server that speaks S3's protocol, started by the test, through s3fs."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.copied_runs import files, make_outputs
from tests.schedulers.processes import free_ports, wait_for

pytestmark = [pytest.mark.schedulers, pytest.mark.timeout(900)]
pytest.importorskip("s3fs")
pytest.importorskip("moto")
BLOCKYARD = (str(Path(sys.executable).with_name("blockyard")), "runs")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        wait_for(lambda: answers(url), 60)
        request = urllib.request.Request(f"{url}/lab", method="PUT", headers={"Host": f"127.0.0.1:{port}"})
        urllib.request.urlopen(request).close()
        yield url
        server.kill()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/moto-api/").close()
    except OSError:
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_outputs(tmp_path)
    return tmp_path


def typed(folder: Path, endpoint: str, *arguments: str, **more: str) -> tuple[int, str, str]:
    """Run the installed command; return its exit code, output and messages."""
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true", **keys, **more}
    environment = {name: value for name, value in environment.items() if value}
    done = subprocess.run(
        [*BLOCKYARD, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_sweep_goes_to_a_bucket_and_comes_back(folder: Path, endpoint: str) -> None:
    code, out, err = typed(folder, endpoint, "push", "s3://lab/there", "sweep=norms")
    assert code == 0, err
    assert "4 runs and 1 sweep copied to s3://lab/there" in out
    code, out, _ = typed(folder, endpoint, "push", "s3://lab/there")
    assert code == 0
    assert "0 runs copied to s3://lab/there, 5 there already" in out
    code, out, err = typed(folder, endpoint, "pull", "s3://lab/there", "sweep=norms", "outputs=mine")
    assert code == 0, err
    assert "4 runs and 1 sweep copied to mine" in out
    sent, got = files(folder / "outputs"), files(folder / "mine")
    assert got == {name: sent[name] for name in got}
    assert len(list((folder / "mine").glob("*/s*/config.yaml"))) == 4


def test_a_changed_run_is_replaced(folder: Path, endpoint: str) -> None:
    assert typed(folder, endpoint, "push", "s3://lab/changed", "seed=0")[0] == 0
    run = next((folder / "outputs").glob("*/s0"))
    (run / "log.txt").write_text("more")
    code, _, err = typed(folder, endpoint, "push", "s3://lab/changed", "seed=0")
    assert code == 1
    assert "differs: in log.txt" in err
    assert typed(folder, endpoint, "push", "s3://lab/changed", "seed=0", "--replace")[0] == 0
    assert typed(folder, endpoint, "pull", "s3://lab/changed", "outputs=mine")[0] == 0
    assert (folder / "mine" / run.parent.name / "s0" / "log.txt").read_text() == "more"


@pytest.mark.parametrize(
    ("address", "environment", "text"),
    [
        ("s3://nosuch/runs", {}, "the bucket or folder does not exist"),
        ("s3://lab/runs", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "credentials are missing"),
        ("s3://lab/runs", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "it cannot be reached"),
        ("s3://", {}, "names no bucket or folder"),
    ],
)
@pytest.mark.parametrize("action", ["push", "pull"])
def test_what_is_wrong_is_one_message(
    action: str, address: str, environment: dict[str, str], text: str, folder: Path, endpoint: str
) -> None:
    code, _, err = typed(folder, endpoint, action, address, HOME=str(folder), **environment)
    assert code == 2
    assert text in err
    assert err.count("\n") == 1
