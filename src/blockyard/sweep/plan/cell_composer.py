"""Composes and checks the configs of a sweep's cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockyard.config.check import reasons
from blockyard.config.compose import Composed, compose
from blockyard.config.override_grammar import to_override
from blockyard.config.tree import Node
from blockyard.config.trial_build import BuiltModels
from blockyard.config.untrusted import placeholders
from blockyard.sweep.spec.override_text import key_of

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataFacts, DataReader

RUN_KEYS = ("init.from", "objective.teacher")  # options that name a run


class CellComposer:
    """Composes configs from overrides and reports why they cannot run.

    config_dirs: folders of the user's own choices
    elsewhere: whether the cells run on other machines, so that GPUs missing on this one do not matter
    outputs: the folder of all runs, in which the options of `RUN_KEYS` find a run by its name; None for the default
    data: reads the data of configs that are otherwise sound; None reads none
    """

    def __init__(
        self,
        config_dirs: Sequence[str] = (),
        *,
        elsewhere: bool = False,
        outputs: str | None = None,
        data: DataReader | None = None,
    ) -> None:
        self._config_dirs = tuple(config_dirs)
        self._outputs = outputs
        self._on_this_machine = not elsewhere
        self._models = BuiltModels()
        self._data = data

    def compose(self, overrides: Sequence[str]) -> Composed:
        """Return the config of these overrides, with its issues."""
        overrides = list(overrides)
        # Other configs are the same with any folder of outputs.
        if self._outputs is not None and any(key_of(override) in RUN_KEYS for override in overrides):
            overrides.append(to_override("outputs", self._outputs))
        return compose(overrides, self._config_dirs)

    def problems(self, composed: Composed) -> list[str]:
        """Return every reason why a config cannot run, as `blockyard check` reports it."""
        builds = not placeholders.installed()  # the planner then refuses what it can, and starts again for the rest
        problems = reasons(composed, on_this_machine=self._on_this_machine, builds=builds, models=self._models)
        if problems or self._data is None or not builds:
            return problems
        facts = self._data.read(composed.config)
        return [facts.problem] if facts.problem else []

    def data_facts(self, config: Node) -> DataFacts | None:
        """Return the report of `blockyard check` on the data of a valid config; None where no data is read."""
        if self._data is None:
            return None
        return self._data.read(config)

    def same_data(self, first: Node, second: Node) -> bool:
        """Return whether two valid configs have the same data, as far as it is read here."""
        return self._data is not None and self._data.same_splits(first, second)

    def checked(self, overrides: Sequence[str]) -> tuple[Composed, list[str]]:
        """Return the config of these overrides, and every reason why it cannot run."""
        composed = self.compose(overrides)
        return composed, self.problems(composed)

    def train_size(self, config: Node) -> int | None:
        """Return the samples of the training split of a checked config; None where its data was not read."""
        facts = self.data_facts(config)
        return None if facts is None else facts.train_samples
