"""The environment and the working folder of a test: its own, whatever the user has exported or left in the checkout.

A developer runs the suite where runs lie in `outputs/`, below a `blockyard.yaml`, with W&B and Ray accounts in the home
folder and thread counts exported. Tests start without any of these, and those that are about one of them set it up.
"""

from __future__ import annotations

import atexit
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.paths import ROOT

# Variables that change what blockyard or a library under it does, by prefix or whole name.
PREFIXES = (
    *("BLOCKYARD_", "HYDRA_", "PL_", "LIGHTNING_", "TORCHELASTIC_", "WANDB_", "TRACKIO_", "MLFLOW_", "HF_", "RAY_"),
    *("SLURM_", "SBATCH_", "SUBMITIT_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_NUM", "XDG_"),
)
NAMES = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR")
NAMES += ("MASTER_PORT", "NETRC", "SOURCE_DATE_EPOCH", "TOKENIZERS_PARALLELISM", "COLUMNS", "LINES", "NO_COLOR")
NAMES += ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
# Bytecode, where the user wants none beside the sources; `make clean` removes it.
BYTECODE = ROOT / ".pytest_cache" / "bytecode"
# Set in the first process of a session; its workers share that home.
HOME_OF_SESSION = "_TESTS_HOME"


def isolate_environment() -> None:
    """Remove the user's settings from `os.environ` and give the session an empty home folder.

    Has to run before torch is imported, which reads the number of threads once.
    """
    for name in list(os.environ):
        if name.startswith(PREFIXES) or name in NAMES:
            del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"  # tiny models on two cores: one thread each is faster, and values repeat
    os.environ["WANDB_MODE"] = "offline"
    _keep_bytecode()
    if HOME_OF_SESSION not in os.environ:
        _new_home()


def _keep_bytecode() -> None:
    """Keep bytecode in a folder of the tests if the user exports PYTHONDONTWRITEBYTECODE, as many containers do.

    Without bytecode a new process takes 11 s of CPU to import torch and Lightning, with it 5 s, and tests start many.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(BYTECODE)
        sys.dont_write_bytecode = False


def _new_home() -> None:
    # matplotlib lists the fonts of the machine in its cache, which takes seconds in an empty one.
    os.environ.setdefault("MPLCONFIGDIR", str(Path(tempfile.gettempdir()) / f"matplotlib-of-tests-{os.getuid()}"))
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages installed there stay importable
    home = tempfile.mkdtemp(prefix="home-of-tests-")
    os.environ[HOME_OF_SESSION] = os.environ["HOME"] = home
    session = os.getpid()

    def remove() -> None:
        if os.getpid() == session:  # a forked process ends too, and leaves the folder to the session
            shutil.rmtree(home, ignore_errors=True)

    atexit.register(remove)


def leave_unsynced() -> None:
    """Let files of this process and its forks reach the disk when the kernel likes.

    A run of five steps waits 60 times for the disk, and what a killed process has written stays without that.
    `tests/runs/test_synced.py` and the battery of file operations see the calls all the same.
    """

    def fsync(handle: int) -> None:
        os.fstat(handle)  # raises OSError where the handle is closed, as the system's does

    os.fsync = fsync


@contextmanager
def working_folder(parent: Path) -> Iterator[Path]:
    """A new folder below `parent` as the working folder; removed at the end, and `parent` is the working folder."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(parent)
        try:
            folder.rmdir()  # most tests leave it empty
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
