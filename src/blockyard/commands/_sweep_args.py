"""The command line of `blockyard sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.commands._args import Args, Parser, flag_type
from blockyard.config.option_text import config_value, integer, read_option
from blockyard.errors import UserError

if TYPE_CHECKING:
    from blockyard.sweep.executor.base import Executor


@dataclass
class SweepArgs(Args):
    """The command line of a sweep; its overrides are added to the base of the file.

    file: the sweep file; outputs: the folder that holds all runs
    executor_options: the values of executor.KEY=VALUE
    """

    executor: str | None = None
    workers: int | None = None
    dry_run: bool = False
    retry: bool = False
    no_compare: bool = False
    one: bool = False
    to_wandb: bool = False
    file: Path = Path()
    outputs: str = "outputs"
    executor_options: dict[str, Any] = field(default_factory=dict)

    @property
    def elsewhere(self) -> bool:
        """Whether cells may run on other machines than this one."""
        return self.executor != "local"

    def build_executor(self) -> Executor:
        """A new executor; one serves a single use. Raises UserError."""
        from blockyard.sweep.executor import build

        return build(self.executor or "local", self.executor_options, self.workers)


def parser() -> Parser:
    """The flags of `blockyard sweep`."""
    parser = Parser("sweep")
    for flag in ("--dry-run", "--retry", "--one", "--to-wandb", "--no-compare"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--executor")
    parser.add_argument("--workers", type=flag_type(integer(1)))
    return parser


def parse(arguments: Sequence[str]) -> SweepArgs:
    """The command line of a sweep, with its file located. Raises UserError."""
    from blockyard.sweep.spec.locate import find_sweep

    args = parser().read(arguments, SweepArgs)
    names = args.pop_names()
    if len(names) != 1:
        problem = f"not {len(names)} ({', '.join(names)})" if names else "and none is named"
        raise UserError(f"sweep takes one sweep file, {problem}; for example `blockyard sweep quickstart`")
    args.outputs = args.pop("outputs") or "outputs"
    chosen = args.pop("executor")
    args.executor = args.executor or chosen or "local"
    args.executor_options = {
        key: read_option(f"executor.{key}", text, config_value) for key, text in args.pop_prefix("executor.").items()
    }
    args.file = find_sweep(names[0])
    return args
