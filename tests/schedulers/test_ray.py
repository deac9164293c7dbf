"""Sweeps on a real Ray cluster of two nodes: a node, a process or the planner dies, jobs come from outside."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockyard.runs.lock import held, holder
from tests.schedulers.processes import wait_for
from tests.schedulers.sweep_commands import ARMS, PATIENCE, Sweep, assert_equal_sweeps
from tests.support.every import every

pytestmark = [pytest.mark.schedulers, pytest.mark.timeout(3600)]
pytest.importorskip("ray")
from tests.schedulers.ray_cluster import HEAD, NODE, RayCluster, nothing_left_of  # noqa: E402


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with RayCluster(tmp_path_factory.mktemp("ray")) as started:
        yield started
    assert nothing_left_of(started.temporary)


@pytest.fixture(scope="module")
def cluster_with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with RayCluster(tmp_path_factory.mktemp("ray-token"), token=True) as started:
        yield started
    assert nothing_left_of(started.temporary)


def on(cluster: RayCluster, folder: Path, **options: Any) -> Sweep:
    overrides = ("executor=ray", f"executor.address={cluster.address}")
    return Sweep(folder, *overrides, environment=cluster.environment, **options)


def workers(sweep: Sweep, cluster: RayCluster) -> dict[str, list[Path]]:
    """The runs that train at the moment, by the node that they train on."""
    paths: dict[str, list[Path]] = {HEAD: [], NODE: []}
    for path in sweep.training():
        note = holder(path) if held(path) else None
        if note is not None:
            paths.setdefault(cluster.node_of(int(str(note["pid"]))), []).append(path)
    return paths


def until_training(sweep: Sweep, cluster: RayCluster, node: str) -> list[Path]:
    return list(sweep.wait_for(lambda: workers(sweep, cluster)[node]))


def test_six_cells_on_two_nodes_equal_the_local_ones(cluster: RayCluster, tmp_path: Path, here: Sweep) -> None:
    sweep = on(cluster, tmp_path, seeds=3)
    process = sweep.start()
    until_training(sweep, cluster, HEAD)
    until_training(sweep, cluster, NODE)
    assert "6 done" in sweep.wait(process, 0)
    assert_equal_sweeps(sweep, here)
    assert every(resumes == [] for resumes in sweep.resumes().values())


@pytest.mark.parametrize("whole", [True, False], ids=["at once", "workers later"])
def test_cells_of_a_killed_node_go_on_elsewhere(cluster: RayCluster, tmp_path: Path, here: Sweep, whole: bool) -> None:
    sweep = on(cluster, tmp_path, seeds=2)
    process = sweep.start()
    lost = until_training(sweep, cluster, NODE)
    try:
        cluster.kill_node(workers=whole)
        printed = sweep.wait(process, 0)
    finally:
        cluster.start_node()
    assert f"{sweep.count} done" in printed
    assert_equal_sweeps(sweep, here)
    for path in lost:
        name = sweep.name(path)
        assert printed.count(f"{name} goes on elsewhere") == 1
        assert len(sweep.resumes()[name]) == 1


def test_a_cell_whose_process_is_killed_goes_on(cluster: RayCluster, tmp_path: Path, here: Sweep) -> None:
    sweep = on(cluster, tmp_path, seeds=1)
    process = sweep.start()
    path = sweep.wait_for(sweep.training)[0]
    os.kill(int(str((holder(path) or {})["pid"])), signal.SIGKILL)
    printed = sweep.wait(process, 0)
    assert printed.count("goes on elsewhere") == 1
    assert_equal_sweeps(sweep, here)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_a_planner_that_ends_leaves_no_cell_running(
    cluster: RayCluster, tmp_path: Path, here: Sweep, signum: signal.Signals
) -> None:
    sweep = on(cluster, tmp_path, seeds=1)
    process = sweep.start()
    sweep.wait_for(sweep.training)
    process.send_signal(signum)
    sweep.wait(process, {signal.SIGKILL: -9, signal.SIGINT: 130}[signum])
    wait_for(lambda: not any(held(path) for path in sweep.runs.values()), 120)
    assert sweep.states() != {}
    sweep.run()
    assert_equal_sweeps(sweep, here)


def test_a_job_that_is_submitted_from_outside(cluster: RayCluster, tmp_path: Path, here: Sweep) -> None:
    if not cluster.dashboard:
        pytest.skip(f"the packages of ray[default] could not be installed: {cluster.why_no_dashboard}")
    sweep = on(cluster, tmp_path, seeds=1)
    address = f"http://{HEAD}:{cluster.dashboard_port}"
    command = [cluster.python, "-m", "blockyard", "sweep", str(tmp_path / "q.yaml"), "executor=ray"]
    overrides = ["executor.address=auto", f"outputs={sweep.outputs}", "--no-compare"]
    done = subprocess.run(
        [*cluster.ray("job", "submit", "--address", address, "--"), *command, *overrides],
        env=cluster.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 done" in done.stdout
    assert_equal_sweeps(sweep, here)


def test_a_client_of_the_cluster(cluster: RayCluster, tmp_path: Path, here: Sweep) -> None:
    sweep = on(cluster, tmp_path, seeds=1)
    sweep.run(f"executor.address=ray://{HEAD}:{cluster.client_port}")
    assert_equal_sweeps(sweep, here)


def test_a_failing_cell_leaves_the_others(cluster: RayCluster, tmp_path: Path, here: Sweep) -> None:
    arms = {"none": ARMS["none"], "nan": "[position=none, optimizer.lr=1e30]"}
    sweep = on(cluster, tmp_path, arms=arms, seeds=1)
    printed = sweep.run(code=1)
    assert sorted(sweep.states().values()) == ["done", "failed"]
    assert "1 done, 1 failed" in printed


def test_an_address_without_a_cluster_is_refused(cluster: RayCluster, tmp_path: Path) -> None:
    sweep = on(cluster, tmp_path, seeds=1)
    printed = sweep.run("executor.address=127.0.0.1:9", code=2)
    assert printed.count("executor.address=127.0.0.1:9") == 1
    assert sweep.runs == {}


@pytest.mark.parametrize("client", [False, True], ids=["address", "client"])
def test_a_cluster_with_a_token(cluster_with_token: RayCluster, tmp_path: Path, here: Sweep, client: bool) -> None:
    """With the token the cells run; without the mode, or with a wrong token, one message names what is missing."""
    cluster = cluster_with_token
    sweep = on(cluster, tmp_path, seeds=1)
    address = [f"executor.address=ray://{HEAD}:{cluster.client_port}"] if client else []
    sweep.environment.pop("RAY_AUTH_MODE")
    assert "RAY_AUTH_MODE=token" in sweep.run(*address, code=2)
    sweep.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32}
    printed = sweep.run(*address, code=2)
    assert "RAY_AUTH_TOKEN has no token that the cluster takes" in printed
    assert len(printed.splitlines()) < 60  # the plan twice, and a message each
    assert sweep.runs == {}
    sweep.environment.pop("RAY_AUTH_TOKEN")
    sweep.run(*address)
    assert_equal_sweeps(sweep, here)
