"""The command line of `blockyard sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.commands._args import Args, Parser, flag_type
from blockyard.config.option_text import config_value, integer, read_option
from blockyard.config.override_grammar import parse_allow
from blockyard.errors import UserError, did_you_mean, fold
from blockyard.sweep.cells import ARM_LEVEL

if TYPE_CHECKING:
    from blockyard.sweep.executor.base import Executor
    from blockyard.sweep.plan.sweep_plan import SweepPlan


@dataclass
class SweepArgs(Args):
    """The command line of a sweep; its overrides are added to the base of the file.

    file: the sweep file; outputs: the folder that holds all runs
    executor_options: the values of executor.KEY=VALUE
    """

    executor: str | None = None
    workers: int | None = None
    seeds: int | None = None
    arms: str | None = None
    until_decided: bool = False
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

    def only(self, plan: SweepPlan) -> SweepPlan:
        """The plan with the cells of the arms that --arms names; all of them without it. Raises UserError."""
        if self.arms is None:
            return plan
        if plan.question.get("search"):
            raise UserError("--arms: a search gives every arm the same number of trials; leave it out")
        if plan.question.get("until"):
            raise UserError("--arms: a sweep that runs until it is decided chooses the arms itself; leave it out")
        chosen = [name.strip() for name in self.arms.split(",") if name.strip()]
        names = {arm.name: [arm.name] for arm in plan.arms}
        if not chosen:
            raise UserError(f"--arms: name one arm or more (arms: {fold(list(names))})")
        if plan.question.get("ladder"):  # an arm of the file stands for all its rungs
            for arm in plan.arms:
                names.setdefault(arm.levels[ARM_LEVEL], []).append(arm.name)
        for name in chosen:
            if name not in names:
                raise UserError(
                    f"--arms {name}: no such arm{did_you_mean(name, list(names))} (arms: {fold(list(names))})"
                )
        arms = {arm for name in chosen for arm in names[name]}
        return replace(plan, cells=tuple(cell for cell in plan.cells if plan.variants[cell.variant].arm in arms))

    def build_executor(self) -> Executor:
        """A new executor; one serves a single use. Raises UserError."""
        from blockyard.sweep.executor import build

        return build(self.executor or "local", self.executor_options, self.workers)


def parser() -> Parser:
    """The flags of `blockyard sweep`."""
    parser = Parser("sweep")
    for flag in ("--dry-run", "--retry", "--one", "--to-wandb", "--no-compare", "--until-decided"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--executor")
    parser.add_argument("--workers", type=flag_type(integer(1)))
    parser.add_argument("--seeds", type=flag_type(integer(1)))
    parser.add_argument("--arms")
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
    if args.executor and chosen and args.executor != chosen:
        raise UserError(f"--executor {args.executor} and executor={chosen}: give one of them")
    args.executor = args.executor or chosen or "local"
    args.executor_options = {
        key: read_option(f"executor.{key}", text, config_value) for key, text in args.pop_prefix("executor.").items()
    }
    if args.one and (unused := _unused_by_one(args)):
        raise UserError(f"--one trains one cell here; leave out {', '.join(unused)}")
    args.file = find_sweep(names[0])
    _take_from_file(args)
    return args


def _unused_by_one(args: SweepArgs) -> list[str]:
    """The flags that a single cell has no use for."""
    flags = ("dry_run", "retry", "no_compare", "to_wandb", "until_decided", "workers", "seeds", "arms")
    used = [f"--{name.replace('_', '-')}" for name in flags if getattr(args, name) not in (None, False)]
    return used + ([f"executor={args.executor}"] if args.executor != "local" or args.executor_options else [])


def _take_from_file(args: SweepArgs) -> None:
    """Add the config folders of the file. Raises UserError for packages that it needs and that are not allowed."""
    from blockyard.sweep.spec.question import command_keys

    folders, packages = command_keys(args.file)
    args.config_dirs += [folder for folder in folders if folder not in args.config_dirs]
    allowed = [name for text in args.overrides if text.startswith("allow=") for name in parse_allow(text[6:])]
    missing = [package for package in packages if package not in allowed]
    if missing:
        raise UserError(
            f"{args.file} uses components of {', '.join(missing)}; if you trust it, add allow=[{','.join(missing)}] "
            "here or to blockyard.yaml"
        )
