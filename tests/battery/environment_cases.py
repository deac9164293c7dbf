"""Spoilt surroundings of one command: limits, clocks, locales, homes, streams and variables."""

from __future__ import annotations

import ctypes
import datetime
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.battery.environment_scene import TINY

TRAIN = ("train", *TINY)
WORKERS = (*TRAIN, "trainer.num_workers=2")
CHECK = ("check", *TINY)
EVAL = ("eval", "run=last")
GENERATE = ("generate", "run=last", "outputs=text", "prompt=def", "max_tokens=5")
COMPARE = ("compare", "outputs", "--html", "page.html")
QUESTION = ("sweep", "mine.yaml", "executor=slurm", "executor.cluster=debug")
LIST, EXPLAIN, HELP = ("list", "norm"), ("explain", "norm=rms"), ("sweep", "--help")

WORKS = frozenset({0})
REFUSED = frozenset({1, 2})
EITHER = WORKS | REFUSED
# A native library aborts, or crashes, where memory ends; the run goes on all the same.
OUT_OF_MEMORY = EITHER | {-6, -11}


@dataclass(frozen=True)
class Case:
    """One command in spoilt surroundings.

    spoil: in the command's process, before it begins; codes: the allowed exit codes
    environment: variables that are set, or with None removed
    started: whether Python starts anew, for what it reads at its start; streams: by path, then
    """

    name: str
    arguments: tuple[str, ...]
    codes: frozenset[int] = WORKS
    spoil: Callable[[], object] | None = None
    started: bool = False
    environment: Mapping[str, str | None] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.arguments[0]}-{self.name}"


def _limit(kind: int, value: int) -> Callable[[], None]:
    def spoil() -> None:
        resource.setrlimit(kind, (value, value))

    return spoil


def _more_memory(kind: int, mebibytes: int) -> Callable[[], None]:
    """A limit so many MiB above what the process has already."""

    def spoil() -> None:
        name = {resource.RLIMIT_AS: "VmSize", resource.RLIMIT_DATA: "VmData"}[kind]
        with open("/proc/self/status") as status:
            now = next(int(line.split()[1]) * 1024 for line in status if line.startswith(f"{name}:"))
        resource.setrlimit(kind, (now + (mebibytes << 20),) * 2)

    return spoil


def limits() -> Iterator[Case]:
    """Files, sizes, memory, processes, time."""
    for count in (16, 32):
        yield Case(f"files-{count}", TRAIN, EITHER, _limit(resource.RLIMIT_NOFILE, count))
    yield Case("files-24", QUESTION, EITHER, _limit(resource.RLIMIT_NOFILE, 24))
    yield Case("files-32-workers", WORKERS, EITHER, _limit(resource.RLIMIT_NOFILE, 32))
    for size in (0, 3_000, 60_000):
        yield Case(f"file-size-{size}", TRAIN, EITHER, _limit(resource.RLIMIT_FSIZE, size))
    yield Case("file-size-3000", QUESTION, EITHER, _limit(resource.RLIMIT_FSIZE, 3000))
    yield Case("file-size-0", COMPARE, EITHER, _limit(resource.RLIMIT_FSIZE, 0))
    yield Case("file-size-0", EVAL, EITHER, _limit(resource.RLIMIT_FSIZE, 0))
    for kind, name in ((resource.RLIMIT_AS, "address-space"), (resource.RLIMIT_DATA, "data")):
        for mebibytes in (1, 30):
            yield Case(f"{name}-{mebibytes}", TRAIN, OUT_OF_MEMORY, _more_memory(kind, mebibytes))
    yield Case("address-space-20", QUESTION, OUT_OF_MEMORY, _more_memory(resource.RLIMIT_AS, 20))
    for size in (1_500_000_000, 3_072_000_000, 3_300_000_000):  # libraries in C end the process at some of them
        for arguments in (CHECK, TRAIN):
            yield Case(f"address-space-of-{size}", arguments, EITHER, _limit(resource.RLIMIT_AS, size), started=True)


def _read_only() -> None:
    """The folder may not be written, by root neither: this process gives up the privilege to ignore modes."""
    os.chmod(".", 0o555)
    for folder in ("outputs", "text"):
        if os.path.isdir(folder):
            os.chmod(folder, 0o555)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable of capabilities 0 to 31, then of the others
    libc = ctypes.CDLL(None)
    libc.capget(header, sets)
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(header, sets)


def _clock(now: Callable[[float], float]) -> Callable[[], None]:
    """Another wall clock: `now` of the true one, in all modules."""

    def spoil() -> None:
        true = time.time

        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Clock:  # type: ignore[override]
                return cls.fromtimestamp(time.time(), tz)

        time.time = lambda: now(true())
        for name, module in list(sys.modules.items()):
            if name.startswith("blockyard") and getattr(module, "datetime", None) is datetime.datetime:
                module.datetime = Clock  # type: ignore[attr-defined]

    return spoil


def _jumping() -> Callable[[float], float]:
    calls = [0]

    def now(true: float) -> float:
        calls[0] += 1
        return true - 3600.0 * calls[0]  # an hour back at each look

    return now


def clocks() -> Iterator[Case]:
    """1970, 2038, jumps, time zones."""
    for arguments in (TRAIN, QUESTION):
        yield Case("1970", arguments, WORKS, _clock(lambda true: 1.0))
        yield Case("backwards", arguments, WORKS, _clock(_jumping()))
    yield Case("2038", TRAIN, WORKS, _clock(lambda true: 2.0**31 + 7))
    for zone in ("Pacific/Kiritimati", ":/nonexistent"):
        yield Case(f"zone-{zone.replace('/', '.')}", TRAIN, WORKS, environment={"TZ": zone})


def locales() -> Iterator[Case]:
    """Locales and encodings of the streams; the sweep claims something that ASCII cannot say."""
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for name, environment in {
        "C": {"LC_ALL": "C"},
        "ascii": ascii_only,
        "turkish": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
        "ascii-strict": {**ascii_only, "PYTHONIOENCODING": "ascii:strict"},
        "latin-1": {"PYTHONIOENCODING": "latin-1"},
        "utf-16": {"PYTHONIOENCODING": "utf-16"},
    }.items():
        if name in ("ascii", "turkish", "ascii-strict"):
            yield Case(f"locale-{name}", TRAIN, WORKS, started=True, environment=environment)
        if "ascii" in name or name in ("C", "latin-1", "utf-16"):
            yield Case(f"locale-{name}", ("sweep", "claim.yaml", *QUESTION[2:]), WORKS, None, True, environment)
    yield Case("locale-ascii", COMPARE, WORKS, started=True, environment=ascii_only)
    yield Case("locale-ascii", GENERATE, WORKS, started=True, environment=ascii_only)


def homes() -> Iterator[Case]:
    """HOME, TMPDIR, users that have none, folders that may not be written."""
    for name, home in {"missing": "/nonexistent/home", "empty": "", "unset": None}.items():
        yield Case(f"home-{name}", TRAIN, WORKS, environment={"HOME": home})
    yield Case("home-missing", QUESTION, WORKS, environment={"HOME": "/nonexistent/home"})
    for name, folder in {"missing": "/nonexistent/tmp", "proc": "/proc"}.items():
        yield Case(f"tmpdir-{name}", TRAIN, WORKS, environment={"TMPDIR": folder})
    yield Case("tmpdir-missing-workers", WORKERS, WORKS, environment={"TMPDIR": "/nonexistent/tmp"})
    nobody = {"HOME": None, "USER": None, "LOGNAME": None}
    yield Case("no-user", TRAIN, environment=nobody)
    yield Case("read-only", CHECK, WORKS, _read_only)
    yield Case("read-only", TRAIN, frozenset({2}), _read_only)
    yield Case("read-only", QUESTION, frozenset({1, 2}), _read_only)
    yield Case("read-only", COMPARE, frozenset({2}), _read_only)
    yield Case("read-only", EVAL, WORKS, _read_only)
    yield Case("read-only", GENERATE, WORKS, _read_only)


def _closed(*handles: int) -> Callable[[], None]:
    def spoil() -> None:
        for handle in handles:
            os.close(handle)

    return spoil


def _no_reader() -> None:
    """Standard output is a pipe that nobody reads."""
    receive, send = os.pipe()
    os.close(receive)
    os.dup2(send, 1)


def streams() -> Iterator[Case]:
    """Closed and full standard streams; what a terminal says of itself."""
    full = {"stdout": "/dev/full", "stderr": "/dev/full"}
    for arguments in (LIST, CHECK, TRAIN, COMPARE):
        yield Case("stdout-closed", arguments, EITHER, _closed(1), True)
        yield Case("streams-full", arguments, EITHER, None, True, {}, full)
    yield Case("stdin-closed", TRAIN, WORKS, _closed(0), True)
    yield Case("stderr-closed", TRAIN, EITHER, _closed(2), True)
    yield Case("all-closed", TRAIN, EITHER, _closed(0, 1, 2), True)
    yield Case("all-closed", QUESTION, EITHER, _closed(0, 1, 2), True)
    yield Case("stdout-full", QUESTION, EITHER, None, True, {}, {"stdout": "/dev/full"})
    yield Case("no-reader", TRAIN, EITHER, _no_reader, True)
    yield Case("no-reader", QUESTION, EITHER, _no_reader, True)
    for columns in ("-5", "abc"):
        yield Case(f"columns-{columns}", COMPARE, WORKS, environment={"COLUMNS": columns, "TERM": ""})


def variables() -> Iterator[Case]:
    """Variables of Python and of the libraries' threads."""
    for name, value in {
        "PYTHONOPTIMIZE": "1",
        "PYTHONDEVMODE": "1",
        "PYTHONWARNINGS": "error",
        "PYTHONMALLOC": "debug",
    }.items():
        yield Case(f"{name}={value}", TRAIN, WORKS, started=True, environment={name: value})
    for arguments in (HELP, EXPLAIN, LIST, TRAIN):  # no docstrings, which are the help
        yield Case(
            "PYTHONOPTIMIZE=2",
            arguments,
            REFUSED if arguments == HELP else WORKS,
            started=True,
            environment={"PYTHONOPTIMIZE": "2"},
        )
    yield Case("PYTHONWARNINGS=error", QUESTION, WORKS, started=True, environment={"PYTHONWARNINGS": "error"})
    for value in ("0", "abc", "2,3"):
        yield Case(f"OMP_NUM_THREADS={value}", TRAIN, WORKS, started=True, environment={"OMP_NUM_THREADS": value})
    yield Case("CUDA_VISIBLE_DEVICES=abc", CHECK, started=True, environment={"CUDA_VISIBLE_DEVICES": "abc"})


CASES = [*limits(), *clocks(), *locales(), *homes(), *streams(), *variables()]
