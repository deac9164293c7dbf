"""Loggers that go wrong: each a name, the overrides that choose the logger, and what breaks it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.support.wandb_server import Call, Fault

CSV = ("logger._target_=pytorch_lightning.loggers.CSVLogger", "logger.save_dir=logs")
OWN = ("logger._target_=tests.battery.own_loggers.Own", "allow=[tests]")
Place = Callable[[Path], None]  # called with the folder of outputs


@dataclass(frozen=True)
class Case:
    """A logger and its fault.

    fault: of W&B's server, or None without one; prepare: before the run, in the test's process; sabotage: in the run's
    process, before it starts; lines: how many lines are printed about the logger, None for at most one
    """

    name: str
    overrides: tuple[str, ...]
    fault: Fault | None = None
    online: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Place | None = None
    sabotage: Callable[[], None] | None = None
    lines: int | None = None

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


# What a server may do with a call.
ANSWERS: dict[str, Callable[[Call], Any]] = {
    "403": lambda call: call.answer(403, b'{"errors": [{"message": "permission denied"}]}'),
    "500": lambda call: call.answer(500),
    "429": lambda call: call.answer(429),
    "HTML": lambda call: call.answer(200, b"<html>sign in to the network</html>"),
    "null": lambda call: call.answer(200, b'{"data": null}'),
    "cut": lambda call: call.answer(200, b'{"data": {', length=5000),
    "binary": lambda call: call.answer(200, bytes(range(256)) * 40),
    "no answer": lambda call: call.hang(),
    "hang up": lambda call: call.hang_up(),
    "slow": lambda call: time.sleep(1.5),
}
CALLS: dict[str, Callable[[Call], bool]] = {
    "every call": lambda call: True,
    "the file stream": lambda call: call.kind == "stream",
    "the upload": lambda call: call.kind == "upload" or call.operation == "CreateRunFiles",
}


def served() -> list[Case]:
    """Every wrong answer to every kind of call."""

    def fault(which: Callable[[Call], bool], answer: Callable[[Call], Any]) -> Fault:
        return lambda call: which(call) and answer(call)

    return [
        Case(f"wandb server {answer} at {call}", ("logger=wandb",), fault(CALLS[call], ANSWERS[answer]), online=True)
        for call in CALLS
        for answer in ANSWERS
    ]


def after(
    method: str, strike: Callable[[Any], None], target: str = "blockyard.engine.loggers.wandb.Wandb"
) -> Callable[[], None]:
    """Replace a method of a logger's class by one that strikes after its first call."""

    def sabotage() -> None:
        import importlib

        module, _, name = target.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        original = getattr(kind, method)
        struck: list[bool] = []

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            result = original(self, *arguments, **options)
            if not struck:
                struck.append(True)
                strike(self)
            return result

        setattr(kind, method, call)

    return sabotage


def core(signum: int) -> Callable[[Any], None]:
    """Send a signal to W&B's helper process."""

    def strike(_: Any) -> None:
        from blockyard.engine.loggers._wandb import connection

        connection()._proc._process.send_signal(signum)
        time.sleep(0.2)

    return strike


def gone(pattern: str) -> Callable[[Any], None]:
    """Remove folders of the run under the working folder, which holds all outputs."""

    def strike(_: Any) -> None:
        for path in Path.cwd().glob(pattern):
            shutil.rmtree(path)

    return strike


def a_file(pattern: str) -> Callable[[Any], None]:
    """Put a file where a folder was, in which nothing can be written, not even by root."""

    def strike(_: Any) -> None:
        for path in Path.cwd().glob(pattern):
            shutil.rmtree(path)
            path.write_text("not a folder")

    return strike


def full(pattern: str) -> Callable[[Any], None]:
    """Mount a file system without room over a folder; for root."""

    def strike(_: Any) -> None:
        for path in Path.cwd().glob(pattern):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(path)], check=True)
            (path / "fill").write_bytes(b"x" * 4096)

    return strike


def unmount(outputs: Path) -> None:
    """Take the file systems of `full` away."""
    for line in Path("/proc/mounts").read_text().splitlines():
        where = line.split()[1]
        if where.startswith(str(outputs)):
            subprocess.run(["umount", "-l", where], check=False)


def wandb_process() -> list[Case]:
    """W&B's helper process and its folder."""
    offline = {"WANDB_MODE": "offline"}
    cases = [
        Case(
            f"wandb core {signal.Signals(number).name} after {method}",
            ("logger=wandb",),
            environment=offline,
            sabotage=after(method, core(number)),
            lines=1,
        )
        for method in ("start", "log")
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
    ]
    folders = {"removed": gone, "a file": a_file, "full": full}
    cases += [
        Case(
            f"wandb folder {name} after {method}",
            ("logger=wandb",),
            environment=offline,
            sabotage=after(method, strike("*/s0/wandb")),
        )
        for method in ("start", "log")
        for name, strike in folders.items()
    ]
    key = {"WANDB_API_KEY": "0" * 40}
    cases += [
        Case(
            "wandb no such host",
            ("logger=wandb",),
            environment={**key, "WANDB_BASE_URL": "http://no-such-host.invalid"},
            lines=1,
        ),
        Case("wandb no port", ("logger=wandb",), environment={**key, "WANDB_BASE_URL": "http://127.0.0.1:9"}, lines=1),
        Case("wandb no address", ("logger=wandb",), environment={**key, "WANDB_BASE_URL": "nonsense"}, lines=1),
        Case("wandb no key", ("logger=wandb",), lines=0),
        Case(
            "wandb short key",
            ("logger=wandb",),
            environment={"WANDB_API_KEY": "x", "WANDB_BASE_URL": "http://127.0.0.1:9"},
            lines=1,
        ),
    ]
    return cases


def boards() -> list[Case]:
    """TensorBoard, Trackio and Lightning's CSVLogger."""
    tensorboard = "blockyard.engine.loggers.tensorboard.TensorBoard"
    csv = "pytorch_lightning.loggers.CSVLogger"
    trackio = ("logger=trackio", "logger.directory=board")

    def locked(_: Any) -> None:
        while not (databases := list(Path.cwd().glob("board/*.db"))):
            time.sleep(0.1)  # Trackio creates it in a thread of its own
        database = sqlite3.connect(databases[0], check_same_thread=False)
        database.execute("begin exclusive")
        _HELD.append(database)

    def garbage(outputs: Path) -> None:
        (outputs / "board").mkdir()
        (outputs / "board" / "blockyard.db").write_bytes(os.urandom(4096))

    return [
        Case(
            "tensorboard a file",
            ("logger=tensorboard",),
            sabotage=after("prepare", _file_in_run("tensorboard"), tensorboard),
            lines=1,
        ),
        Case(
            "tensorboard removed",
            ("logger=tensorboard",),
            sabotage=after("start", gone("*/s0/tensorboard"), tensorboard),
        ),
        Case(
            "tensorboard full",
            ("logger=tensorboard",),
            sabotage=after("prepare", _full_in_run("tensorboard"), tensorboard),
            lines=1,
        ),
        Case("csv a file", CSV, prepare=lambda outputs: (outputs / "logs").write_text("x") and None, lines=1),
        Case("csv removed", CSV, sabotage=after("log_metrics", gone("logs"), csv)),
        Case("csv full", CSV, sabotage=after("log_hyperparams", full("logs"), csv)),
        Case("trackio a file", trackio, prepare=lambda outputs: (outputs / "board").write_text("x") and None, lines=1),
        Case("trackio garbage", trackio, prepare=garbage),
        Case(
            "trackio removed",
            trackio,
            sabotage=after("start", gone("board"), "blockyard.engine.loggers.trackio.Trackio"),
        ),
        Case("trackio locked", trackio, sabotage=after("log", locked, "blockyard.engine.loggers.trackio.Trackio")),
    ]


_HELD: list[Any] = []


def _file_in_run(name: str) -> Callable[[Any], None]:
    def strike(_: Any) -> None:
        for run in Path.cwd().glob("*/s0"):
            (run / name).write_text("not a folder")

    return strike


def _full_in_run(name: str) -> Callable[[Any], None]:
    def strike(_: Any) -> None:
        for run in Path.cwd().glob("*/s0"):
            (run / name).mkdir()
        full(f"*/s0/{name}")(None)

    return strike


def mlflow() -> list[Case]:
    """MLflow's database, where its client is installed."""
    if find_spec("mlflow") is None:
        return []

    def locked(_: Any) -> None:
        database = sqlite3.connect(Path.cwd() / "mlflow" / "mlflow.db", check_same_thread=False)
        database.execute("begin exclusive")
        _HELD.append(database)

    logger = "blockyard.engine.loggers.mlflow.MLflow"
    return [
        Case(
            "mlflow a file", ("logger=mlflow",), prepare=lambda outputs: (outputs / "mlflow").write_text("x") and None
        ),
        Case("mlflow removed", ("logger=mlflow",), sabotage=after("start", gone("mlflow"), logger)),
        Case("mlflow locked", ("logger=mlflow",), sabotage=after("start", locked, logger), lines=1),
    ]


def own() -> list[Case]:
    """A logger of the user's that raises, hangs, or does what it should not, in each of its methods."""
    methods = ("prepare", "start", "log", "finish")
    hows = ("error", "exit", "interrupt", "generator", "unprintable", "surrogate", "textless")
    cases = [
        Case(f"own {how} in {at}", (*OWN, f"logger.at={at}", f"logger.how={how}"), lines=1)
        for at in methods
        for how in hows
        if not (at == "prepare" and how in ("interrupt", "generator"))  # Ctrl-C while the run itself waits
    ]
    cases += [Case(f"own hang in {at}", (*OWN, f"logger.at={at}", "logger.how=hang"), lines=1) for at in methods[1:]]
    cases += [Case(f"own seed in {at}", (*OWN, f"logger.at={at}", "logger.how=seed"), lines=0) for at in methods]
    cases += [Case("own hang in abandon", (*OWN, "logger.at=abandon", "logger.how=hang"), lines=1)]
    cases += [Case(f"own {how}", (*OWN, "logger.at=log", f"logger.how={how}"), lines=0) for how in ("change", "print")]
    return cases


CASES = [*served(), *wandb_process(), *boards(), *mlflow(), *own()]
