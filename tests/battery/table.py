"""The batteries: what each attacks, and how many cases `make battery` must have passed."""

from __future__ import annotations

from typing import NamedTuple

from blockyard.config.choices import catalog

KILLS = 7  # of each config of `kill_anywhere`
KILLED = ("data", "token_mixer", "preset", "experiment")  # all choices of these families, and three tokenizers
TOKENIZERS = ("pretrained", "vq", "waveform")  # which none of those has


class Battery(NamedTuple):
    """One row of the table: what is tried, and the least number of cases."""

    what: str
    required: int


def _choices(*families: str) -> int:
    """How many choices the families have, so that a new one is a case without a number to raise."""
    return sum(len(list((catalog.conf_dir() / family).glob("*.yaml"))) for family in families)


_IN_A_RUN = [
    path.name for path in catalog.conf_dir().iterdir() if path.is_dir() and path.name not in catalog.OUTSIDE_RUN
]
BATTERIES = {
    "kill_anywhere": Battery(
        "SIGKILL at random moments; the resumed run ends with the same bits",
        KILLS * (_choices(*KILLED) + len(TOKENIZERS)),
    ),
    "kill_file_operations": Battery("SIGKILL before and after every file operation of a run", 100),
    "resume_every_step": Battery("resume at every step of a run of three epochs", 400),
    "resume_components": Battery("every registered component resumes with the same bits", _choices(*_IN_A_RUN)),
    "signals": Battery("TERM, INT, HUP, USR1, doubles, STOP and CONT in every phase; the exit code is never 0", 60),
    "damaged_files": Battery("damaged, foreign and special files in place of those of a run", 150),
    "damaged_data": Battery("damaged and hostile tables, arrays, archives, weights and configs of libraries", 400),
    "hooks": Battery("non-finite values and exceptions in every hook; no poisoned checkpoint", 100),
    "bad_configs": Battery("bad configs generated from the schema: exit code 2 and one message", 1000),
    "valid_configs": Battery("random valid configs train, evaluate and resume", 300),
    "hostile_input": Battery("hostile targets, folders, YAML, names, pages, tables, images and archives", 600),
    "stranger_folder": Battery("every command in a fresh process in a folder full of files that must not run", 2478),
    "bombs": Battery("compressed files that fill a memory, false headers, absurd search spaces: refused", 165),
    "environment": Battery("full disks, quotas, descriptors, memory, clocks, locales and paths", 80),
    "processes": Battery("two processes, of which one is killed, stopped, slow or raises", 46),
    "sweeps": Battery("planners, servers and workers killed in every phase of a sweep", 60),
    "loggers": Battery("logging services that are killed, slow, full or wrong", 30),
    "soak": Battery("2,000 updates and 200 runs in one process; memory, descriptors and threads stay flat", 1),
    "planted_bugs": Battery("bugs planted in the guarding code, which the short form catches", 40),
}
