"""Reads the data of configs before their runs exist, to report the refusals of a run.

It reads as a run does: files, splits, sizes, a tokenizer's vocabulary, the targets of the objective, and how steps
share the samples. Nothing is downloaded or trained. Trained tokenizers go to the cache, and runs take them from there.
"""

from __future__ import annotations

import copy
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from blockyard.config.build import Components
from blockyard.config.size_matching import compiled_remark
from blockyard.config.tree import Node
from blockyard.config.untrusted.targets import allow_of
from blockyard.contracts import Splits
from blockyard.data.splits.loaded import forget, kept
from blockyard.engine.callbacks.early_stopping import EarlyStopping
from blockyard.engine.loader import Layout
from blockyard.engine.setup_data import lay_out
from blockyard.errors import first_line
from blockyard.runs.changed_data import named_files

MOST_BYTES = 2**28  # of files that `check` and a dry run read
_NOT_READ = ("batch_size", "eval_batch_size", "workers")  # options of data that change no sample


@dataclass(frozen=True)
class DataFacts:
    """Facts from reading the data of a config.

    problem: why a run could not train on it, or None
    remarks: notes for the user on model, tokenizer, objective, schedule and data together
    note: why the data was not read here, or None
    train_samples: samples of the training split; None where it was not read
    """

    problem: str | None = None
    remarks: tuple[str, ...] = ()
    note: str | None = None
    train_samples: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the remarks, and why the data was not read here."""
        if self.note:
            return (*self.remarks, self.note)
        return self.remarks


@dataclass
class DataReader:
    """Reads data once for each distinct config of it; the splits of the last one are kept.

    most_bytes: files above this size in total are left to the runs; None reads files of any size
    """

    most_bytes: int | None = MOST_BYTES
    _facts: dict[str, DataFacts] = field(default_factory=dict)
    _last: tuple[str, Components, Splits] | None = None

    def read(self, config: Node) -> DataFacts:
        """Read the data of a checked config, unless its facts are known."""
        parts = ("data", "tokenizer", "source_tokenizer", "objective", "init", "trainer", "schedule", "callbacks")
        key = json.dumps([config.get(name) for name in parts], sort_keys=True, default=str)
        if key not in self._facts:
            self._facts[key] = self._read(config)
        return self._facts[key]

    def splits(self, config: Node) -> tuple[Components, Splits]:
        """Return the components of a config and its splits. Raises UserError, or any error of a user's class."""
        components = Components(config)
        key = _reading_key(config)
        if self._last is not None and self._last[0] == key:
            _, read, splits = self._last
            components.tokenizer = read.tokenizer
            components.source_tokenizer = read.source_tokenizer
            components.objective = read.objective
            # The data module keeps what it has read; its options that no file depends on are the new config's.
            loaded = copy.copy(read.data)
            for name in _NOT_READ:
                if hasattr(loaded, name):
                    setattr(loaded, name, getattr(components.data, name))
            components.data = loaded
            return components, splits
        self._last = None  # two data sets would take twice the memory
        with torch.device("cpu"), kept():
            if components.init is not None:
                components.init.prepare_tokenizers(components)
            self._last = (key, components, components.load())
        return components, self._last[2]

    def same_splits(self, first: Node, second: Node) -> bool:
        """Return whether two configs have the same samples in the same splits; False if these are left to the runs."""
        fingerprints = set()
        for config in (first, second):
            if self.read(config).train_samples is None:
                return False
            components, _ = self.splits(config)
            fingerprints.add(components.data.fingerprint())
        return len(fingerprints) == 1

    def release(self) -> None:
        """Drop the splits and the contents of files; facts stay known."""
        self._last = None
        forget()

    def _read(self, config: Node) -> DataFacts:
        note = self._unread(config)
        try:
            if note is not None:
                components = Components(config)
                return DataFacts(remarks=tuple(remarks(components, total=_known_total(components))), note=note)
            components, splits = self.splits(config)
            layout = layout_of(config, components, splits)
            sentences = tuple(remarks(components, splits, _known_total(components, layout.steps_per_epoch)))
        except Exception as error:  # a data set of the user's own may fail in any way
            # A ValueError is a sentence for users; any other error says little without its type.
            problem = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"
            if not problem.startswith("data"):
                problem = f"data: {problem}"
            return DataFacts(problem=problem)
        return DataFacts(remarks=sentences, train_samples=layout.samples)

    def _unread(self, config: Node) -> str | None:
        """Return why data is left to the runs: it must be downloaded first, or is too large."""
        components = Components(config)
        if components.data.to_download():
            return "the data is read by the run, which downloads it"
        if self.most_bytes is None:
            return None
        size = sum(status.st_size for status in named_files(config["data"]) if stat.S_ISREG(status.st_mode))
        if size <= self.most_bytes:
            return None
        return f"the data ({size / 2**30:.1f} GiB of files) is read by the run, which refuses what it cannot use"


def remarks(components: Components, splits: Splits | None = None, total: int | None = None) -> Iterator[str]:
    """Yield notes for the user before training, a sentence each.

    splits: where they were read; total: steps of the run, where they are known

    Raises ValueError where nothing can be learned from the splits.
    """
    yield from components.remarks(splits)
    if remark := compiled_remark(components):
        yield remark
    if total is not None:
        yield from components.schedule.remarks(total)
        every = components.node("trainer").eval_every
        for callback in components.node("callbacks").values():
            if isinstance(callback, EarlyStopping):
                yield from callback.remarks(every, total)


def _known_total(components: Components, steps_per_epoch: int | None = None) -> int | None:
    """Return the steps of a run before its model is built; None where they are not known.

    steps_per_epoch: where the data was read; otherwise `trainer.max_steps` is the length
    """
    options = components.node("trainer")
    total: int | None = options.max_steps
    if steps_per_epoch is not None:
        total = options.total_steps(steps_per_epoch)
    return total


def layout_of(config: Node, components: Components, splits: Splits) -> Layout:
    """Return the layout of the main process of a run. Raises UserError where the options do not suit the data."""
    seed = int(config.get("seed") or 0)
    return lay_out(splits, components.data.batch_size, components.node("trainer"), seed=seed, rank=0)


def _reading_key(config: Node) -> str:
    """Return a key that is equal for configs with the same splits."""
    data = {name: value for name, value in config["data"].items() if name not in _NOT_READ}
    parts = [data, *(config.get(name) for name in ("tokenizer", "source_tokenizer", "objective", "init", "seed"))]
    return json.dumps([*parts, allow_of(config)], sort_keys=True, default=str)
