"""A SLURM of one node on the loopback address, with every file of it in one folder: no GPUs, no accounting."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.schedulers.debian import require_commands
from tests.schedulers.processes import free_ports, wait_for

CPUS = 8  # what the node claims to have (`config_overrides`)
_CONFIG = """\
ClusterName=blockyard
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=5,bf_interval=5
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=0
KillWait=30
ReturnToService=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=node1 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=node1 MaxTime=INFINITE State=UP PriorityTier=10
"""


class SlurmCluster:
    """munged, slurmctld and slurmd as processes of this one, which end with it."""

    def __init__(self, folder: Path) -> None:
        require_commands(
            ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "setpriv"), ("slurm-wlm", "munge")
        )
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmCluster:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        self.folder.chmod(0o755)  # munged refuses a socket that other users cannot reach
        controller, node = free_ports(2)
        (self.folder / "slurm.conf").write_text(
            _CONFIG.format(folder=self.folder, host=_host(), user=_user(), controller=controller, node=node, cpus=CPUS)
        )
        files = {"key-file": key, "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / str(file)}" for name, file in files.items()]
        self._start("munged", "--foreground", "--force", f"--log-file={self.folder / 'munge.log'}", *options)
        wait_for(lambda: (self.folder / "munge.sock").exists(), 30)
        self.start_controller()
        self._start("slurmd", "-D", "-N", "node1")
        wait_for(lambda: "idle" in self.command("sinfo", "-h", "-o", "%T"), 60)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self._daemons["slurmctld"].poll() is not None:
                self.start_controller()
            self.clear()
        finally:
            for name in reversed(list(self._daemons)):
                self._stop(name)

    def start_controller(self) -> None:
        """Start slurmctld, which reads the state of one that was stopped."""
        self._start("slurmctld", "-D")
        wait_for(lambda: "UP" in self.command("scontrol", "ping"), 60)

    def stop_controller(self) -> None:
        """Stop slurmctld; jobs go on."""
        self._stop("slurmctld")

    def clear(self) -> None:
        """Cancel what is in the queue and wait until it is empty."""
        if jobs := self.jobs():
            self.command("scancel", *jobs)
            wait_for(lambda: not self.jobs(), 120)

    def command(self, *arguments: str) -> str:
        """The output of one of SLURM's commands, empty where it fails."""
        done = subprocess.run(
            arguments, env=self.environment, capture_output=True, text=True, timeout=60, check=False, cwd=self.folder
        )
        return done.stdout if done.returncode == 0 else ""

    def jobs(self) -> dict[str, str]:
        """The state of every job in the queue, by its id."""
        output = self.command("squeue", "-h", "-r", "-o", "%i %T")
        return dict(line.split() for line in output.splitlines())  # type: ignore[misc]

    def _start(self, name: str, *options: str) -> None:
        binary = shutil.which(name) or f"/usr/sbin/{name}"
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", binary, *options],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _stop(self, name: str) -> None:
        process = self._daemons[name]
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
