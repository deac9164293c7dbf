"""Who runs the cells of a sweep: local worker processes, Ray, or submitit.

An executor is no part of a run's config: it is chosen by `blockyard sweep FILE executor=slurm
executor.partition=gpu`, listed and explained like any family, and refused by `train`.
"""

from __future__ import annotations

from typing import Any

from blockyard.config import catalog
from blockyard.errors import UserError, near
from blockyard.sweep.executor.base import Executor

FAMILY = "executor"


def build(name: str, options: dict[str, Any], workers: int | None = None) -> Executor:
    """The executor that a name of conf/executor means, with these options over the YAML's.

    workers: how many cells at once, where the executor has such an option. Raises UserError naming
    every option that does not fit, and the package to install where one is missing.
    """
    from blockyard.config.schema import RESERVED, locate
    from blockyard.config.schema import options as legal

    names = catalog.choices(FAMILY)
    if name not in names:
        nearest = near(name, names)
        hint = f"; nearest: {nearest[0]}" if nearest else ""
        raise UserError(f"executor={name}: there is no such executor{hint} (executors: {', '.join(names)})")
    node = catalog.content(names[name].path)
    target = locate(node["_target_"])
    known = legal(target)
    given = {key: value for key, value in node.items() if key not in RESERVED}
    if workers is not None:
        if "workers" not in known:
            raise UserError(f"--workers: executor={name} has no such option; it has {', '.join(known)}")
        given["workers"] = workers
    problems = []
    for key, value in options.items():
        if key not in known:
            nearest = near(key, known)
            hint = f"; nearest: {nearest[0]}" if nearest else f"; it has {', '.join(known)}"
            problems.append(f"executor.{key}: executor={name} has no such option{hint}")
        given[key] = value
    for key, option in known.items():
        if key in given and (problem := option.problem(given[key])):
            problems.append(f"executor.{key}: {given[key]!r} does not fit: {problem}")
    if problems:
        raise UserError("\n  - ".join(problems))
    try:
        return target(**{key: known[key].convert(value) for key, value in given.items()})
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error
