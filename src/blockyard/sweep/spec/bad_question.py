"""The error of a sweep file: every problem of it."""

from __future__ import annotations

from collections.abc import Sequence

from blockyard.errors import UserError
from blockyard.sweep.plan.sweep_plan import Arm


class BadQuestion(UserError):  # noqa: N818 - an adjective reads better where it is caught
    """A sweep file, or its plan, has problems.

    base, arms: what could be read of the file nevertheless, in which more problems may be found
    """

    def __init__(self, problems: Sequence[str], base: Sequence[str] = (), arms: Sequence[Arm] = ()) -> None:
        self.problems, self.base, self.arms = list(problems), tuple(base), tuple(arms)
        super().__init__("\n  - ".join(self.problems))
