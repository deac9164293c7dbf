"""A SLURM of shell scripts that really runs its jobs: forks of a warm process take the place of nodes.

`sbatch` leaves the script in a spool folder; `serve` runs what it finds there, as slurmd does. `squeue`
lists the files of running jobs, and `scancel` sends their processes SIGTERM.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

_SBATCH = r"""
number=$(ls "$here/spool" | wc -l); number=$((number + 77))
sed -n 's/.*--array=0-\([0-9]*\).*/\1/p' "$1" > "$here/last"; last=$(cat "$here/last")
for index in $(seq 0 ${last:-0}); do echo PENDING > "$here/queue/${number}_$index"; done
cp "$1" "$here/spool/.$number"; mv "$here/spool/.$number" "$here/spool/$number"
echo Submitted batch job $number"""
_SQUEUE = (
    r"""for job in "$here"/queue/*; do [ -f "$job" ] && echo "$(basename "$job") $(head -n1 "$job")"; done; true"""
)
_SCANCEL = r"""for job in "$@"; do pid=$(tail -n1 "$here/queue/$job" 2>/dev/null)
case "$pid" in PENDING) rm -f "$here/queue/$job";; ?*) kill -TERM $pid;; esac; done; true"""
_SACCT = "echo accounting storage is disabled >&2; exit 1"


class StandInSlurm:
    """The scripts, and the folders in which they note jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slurm"
        for name in ("spool", "queue", "bin"):
            (self.folder / name).mkdir(parents=True)
        bodies = {"sbatch": _SBATCH, "squeue": _SQUEUE, "scancel": _SCANCEL, "sacct": _SACCT, "srun": "exit 1"}
        bodies["sinfo"] = "echo 'main*|(null)'"
        for name, body in bodies.items():
            path = self.folder / "bin" / name
            path.write_text(f'#!/bin/sh\nhere="$(dirname "$(dirname "$0")")"\n{body}\n')
            path.chmod(0o755)

    def install(self) -> None:
        """Put the scripts on PATH and look at the queue often, in this process."""
        os.environ["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        from blockyard.sweep.executor import _slurm_queue

        _slurm_queue._REFRESH = 0  # type: ignore[misc]

    def serve(self) -> None:
        """Run the jobs of the spool folder until killed."""
        started: set[str] = set()
        running: dict[int, Path] = {}
        while True:
            for script in sorted((self.folder / "spool").glob("[0-9]*")):
                if script.name not in started:
                    started.add(script.name)
                    for entry in sorted((self.folder / "queue").glob(f"{script.name}_*")):
                        running[self._start(script, entry)] = entry
            for pid, entry in list(running.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    entry.unlink(missing_ok=True)
                    del running[pid]
            time.sleep(0.02)

    def _start(self, script: Path, entry: Path) -> int:
        (folder,) = set(re.findall(r"submitit\.core\._submit\s+(\S+)", script.read_text()))
        pid = os.fork()
        if pid == 0:
            _in_a_job(lambda: _run(entry.name, Path(folder.strip("'\""))))
        written = self.folder / f".{entry.name}"
        written.write_text(f"RUNNING\n{pid}\n")
        written.replace(entry)  # `squeue` never reads half of it
        return pid

    def end(self) -> None:
        """Kill what is left of the jobs."""
        for entry in (self.folder / "queue").glob("*"):
            if (pid := entry.read_text().split()[-1]).isdecimal():
                os.kill(int(pid), signal.SIGKILL)


def _in_a_job(work: Callable[[], None]) -> None:
    code = 1
    try:
        os.setsid()
        work()
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        os._exit(code)


def _run(job: str, folder: Path) -> None:
    from submitit.core.submission import process_job

    number, _, index = job.partition("_")
    os.environ |= {
        "SLURM_JOB_ID": job,
        "SLURM_ARRAY_JOB_ID": number,
        "SLURM_ARRAY_TASK_ID": index,
        "SLURM_JOB_NODELIST": "localhost",
        "SUBMITIT_EXECUTOR": "slurm",
        **{f"SLURM_{name}": "0" for name in ("PROCID", "LOCALID", "NODEID")},
        **{f"SLURM_{name}": "1" for name in ("NTASKS", "JOB_NUM_NODES")},
    }
    process_job(folder)
