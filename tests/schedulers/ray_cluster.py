"""A Ray cluster of two nodes on this machine, each with a loopback address of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from functools import cached_property
from pathlib import Path

import psutil

from tests.schedulers.processes import free_ports, wait_for
from tests.support.paths import ROOT

HEAD, NODE = "127.0.0.2", "127.0.0.3"
_CPUS = 2  # of each node
_WAIT_FOR_NODES = """\
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) != int(sys.argv[2]):
    time.sleep(0.5)
"""


class RayCluster:
    """The head and one more node, as processes of this one, which end with it.

    token: whether the cluster asks for one. Its processes have a home folder of their own: a token of the user, which
        Ray writes when it is first started, has no effect
    dashboard: whether Ray's job server runs too, which `ray job submit` needs
    """

    def __init__(self, folder: Path, *, token: bool = False) -> None:
        self.folder = folder
        home = folder / "home"
        (home / ".ray").mkdir(parents=True)
        if token:
            (home / ".ray" / "auth_token").write_text(secrets.token_hex(16))
        self.temporary = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # paths of sockets are short
        self.port, self.client_port, self.dashboard_port = free_ports(3)
        self.address = f"{HEAD}:{self.port}"
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
        self.environment = own | {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "HOME": str(home),
            "RAY_AUTH_MODE": "token" if token else "disabled",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "offline",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",  # what else runs on the machine is not the cells' fault
            "RAY_raylet_start_wait_time_s": "300",  # a busy machine takes longer than Ray's 30 s
        }
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    @cached_property
    def python(self) -> str:
        """A Python with the packages of ray[default]; those that are missing are installed beside the others."""
        import ray

        folder = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        # `addsitedir` reads the .pth files there too, which name further folders.
        line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
        (folder / "lib" / version / "site-packages" / "host.pth").write_text(f"{line}\n")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"ray[default]=={ray.__version__}"]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=900, check=False)
        self.dashboard = done.returncode == 0
        self.why_no_dashboard = " ".join(done.stderr.split())[-300:]
        return pip[0]

    def __enter__(self) -> RayCluster:
        dashboard = ("--dashboard-host", HEAD, "--dashboard-port", str(self.dashboard_port))
        ports = ("--port", str(self.port), "--ray-client-server-port", str(self.client_port))
        self._start(HEAD, "--head", "--temp-dir", str(self.temporary), *ports, *dashboard)
        wait_for(lambda: "Ray runtime started" in self._log(HEAD), 900)
        self.start_node()
        return self

    def __exit__(self, *error: object) -> None:
        for address in list(self._nodes):
            self.kill_node(address)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def start_node(self) -> None:
        """Start the second node and wait until the head knows it."""
        self._start(NODE, "--address", self.address)
        wait = [self.python, "-c", _WAIT_FOR_NODES, self.address, "2"]
        subprocess.run(wait, env=self.environment, timeout=900, check=True, capture_output=True)

    def kill_node(self, address: str = NODE, *, workers: bool = True) -> None:
        """Kill a node with SIGKILL; without `workers` they outlive the process that started them for a moment."""
        process = self._nodes.pop(address)
        tree = psutil.Process(process.pid).children(recursive=True)
        doomed = [each for each in tree if workers or not _title(each).startswith("ray::")]
        for each in [psutil.Process(process.pid), *doomed]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()
        psutil.wait_procs(doomed, timeout=30)

    def node_of(self, pid: int) -> str:
        """The address of the node that a process belongs to, empty where it has none."""
        try:
            ancestors = {each.pid for each in psutil.Process(pid).parents()}
        except psutil.NoSuchProcess:
            return ""
        return next((address for address, process in self._nodes.items() if process.pid in ancestors), "")

    def ray(self, *arguments: str) -> list[str]:
        """The command `ray`."""
        return [self.python, "-m", "ray.scripts.scripts", *arguments]

    def _start(self, address: str, *options: str) -> None:
        arguments = ["--node-ip-address", address, "--num-cpus", str(_CPUS), "--object-store-memory", "100000000"]
        arguments += ["--disable-usage-stats"]
        with self._log_path(address).open("ab") as log:
            self._nodes[address] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *self.ray("start", "--block"), *arguments, *options],
                env=self.environment,
                cwd=self.folder,  # that of a test is removed before the node ends, and workers cannot start there
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, address: str) -> str:
        return self._log_path(address).read_text(errors="replace")

    def _log_path(self, address: str) -> Path:
        return self.folder / f"{address}.log"


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def nothing_left_of(folder: Path, seconds: float = 60.0) -> bool:
    """Whether no process names a folder any more after some time."""
    deadline = time.monotonic() + seconds
    while any(str(folder) in _title(each) for each in psutil.process_iter()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
