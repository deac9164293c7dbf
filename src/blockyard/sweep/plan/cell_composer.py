"""Composes and checks the configs of thousands of cells."""

from __future__ import annotations

from collections.abc import Sequence

from blockyard.config.check_cache import CheckCache
from blockyard.config.compose import Composed
from blockyard.config.compose_many import Composer


class CellComposer:
    """Composes configs from overrides and tells why they cannot run.

    config_dirs: folders of the user's own choices
    elsewhere: whether the cells run on other machines, so that GPUs missing on this one do not matter
    """

    def __init__(self, config_dirs: Sequence[str] = (), *, elsewhere: bool = False) -> None:
        self._composer = Composer(tuple(config_dirs))
        self._checks = CheckCache(elsewhere)

    def compose(self, overrides: Sequence[str]) -> Composed:
        """The config of these overrides, with its issues."""
        return self._composer.compose(overrides)

    def problems(self, composed: Composed) -> list[str]:
        """Every reason why a config cannot run, in the words of `blockyard check`."""
        return self._checks.reasons(composed)

    def checked(self, overrides: Sequence[str]) -> tuple[Composed, list[str]]:
        """The config of these overrides, and every reason why it cannot run."""
        composed = self.compose(overrides)
        return composed, self.problems(composed)
