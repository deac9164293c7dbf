"""Executors run the cells of a sweep as local worker processes, Ray tasks or SLURM jobs.

An executor is not part of a run's config: `blockyard sweep FILE executor=slurm executor.partition=gpu`
chooses it, `blockyard list executor` lists them, and `blockyard train` refuses the key.
"""

from __future__ import annotations

from typing import Any

from blockyard.config.choices import catalog
from blockyard.config.untrusted.targets import locate
from blockyard.errors import UserError, did_you_mean, quoted
from blockyard.sweep.executor.base import Executor

FAMILY = "executor"


def build(name: str, overrides: dict[str, Any], workers: int | None = None) -> Executor:
    """Build the executor that conf/executor/NAME.yaml describes, with `overrides` of its options.

    workers: cells in parallel, where the executor has that option
    Raises UserError naming every option that is unknown or invalid, or the package that is missing.
    """
    from blockyard.config.schema import RESERVED
    from blockyard.config.schema import options as options_of

    names = catalog.choices(FAMILY)
    if name not in names:
        raise UserError(f"executor={name}: unknown executor{did_you_mean(name, names)} (executors: {', '.join(names)})")
    node = catalog.content(names[name].path)
    target = locate(node["_target_"])
    options = options_of(target)
    values = {key: value for key, value in node.items() if key not in RESERVED}
    if workers is not None:
        if "workers" not in options:
            raise UserError(f"--workers: executor={name} has no option workers; it has {', '.join(options)}")
        if overrides.get("workers", workers) != workers:
            raise UserError(f"--workers {workers} and executor.workers={overrides['workers']}: give one of them")
        values["workers"] = workers
    problems = []
    for key, value in overrides.items():
        if key not in options:
            hint = did_you_mean(key, options) or f"; it has {', '.join(options)}"
            problems.append(f"executor.{key}: executor={name} has no such option{hint}")
        values[key] = value
    for key, option in options.items():
        problem = option.problem(values[key]) if key in values else None
        if problem:
            problems.append(f"executor.{key}: invalid value {quoted(values[key])}: {problem}")
    if problems:
        raise UserError("\n  - ".join(problems))
    try:
        return target(**{key: options[key].convert(value) for key, value in values.items()})
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error
