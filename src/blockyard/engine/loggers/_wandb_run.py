"""Opens and closes W&B runs that cannot hang, prompt for nothing, and get neither command line nor code."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.engine.loggers._wandb import Mode, base_url, connection, kill, tear_down, unreachable

log = logging.getLogger("blockyard")

INIT_SECONDS = 6.0
FINISH_SECONDS = 6.0
TEARDOWN_SECONDS = 2.0


@dataclass(frozen=True)
class RunSettings:
    """Where a W&B run goes and what it is called; folder: of its files."""

    folder: Path
    id: str
    project: str
    entity: str | None
    group: str
    job_type: str
    name: str
    tags: Sequence[str] = ()
    system_metrics: bool = False


def open_run(settings: RunSettings, config: Mapping[str, Any], mode: Mode) -> Any:
    """Open the run; offline, with one message, if online is requested and the server does not answer."""
    (settings.folder / "wandb").mkdir(parents=True, exist_ok=True)
    if mode != "online":
        return _init(settings, config, "offline")
    reason = unreachable(base_url())
    if reason is None:
        try:
            return _init(settings, config, "online")
        except Exception as error:  # W&B's own errors, and those of what it is built on
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            tear_down()
    try:
        run = _init(settings, config, "offline")
    except Exception as error:  # an address that W&B's settings refuse serves no offline run either
        raise ConnectionError(f"W&B cannot be reached ({reason}), and records nothing offline") from error
    log.warning(
        "W&B cannot be reached (%s); %s is recorded offline, in %s/wandb", reason, settings.name, settings.folder
    )
    return run


def close_run(run: Any, *, failed: bool = False) -> None:
    """Close the run and end W&B's helper, for which the end of the process would otherwise wait."""
    import wandb

    run.finish(exit_code=1 if failed else 0)
    helper = connection()
    closing = threading.Thread(target=wandb.teardown, name="wandb-teardown", daemon=True)
    closing.start()
    closing.join(TEARDOWN_SECONDS)
    if closing.is_alive():
        kill(helper)


def bounded(call: Callable[[], None], seconds: float) -> str | None:
    """Run `call` in a thread and wait at most `seconds`: None where it returned, else how it failed."""
    failure = [f"it did not finish within {seconds:.0f} s"]

    def guarded() -> None:
        try:
            call()
            failure.clear()
        except (Exception, SystemExit) as error:  # whatever W&B raises, its caller continues
            lines = str(error).strip().splitlines()
            failure[:] = [f"{type(error).__name__}: {lines[0] if lines else ''}"]

    thread = threading.Thread(target=guarded, name="wandb-bounded", daemon=True)
    thread.start()
    thread.join(seconds)
    return next(iter(failure), None)


def directions(config: Mapping[str, Any]) -> dict[str, str]:
    """Whether lower ("min") or higher ("max") is better, for each metric of a config's objective."""
    from blockyard.config.instantiate import instantiate
    from blockyard.contracts import any_split

    node = config.get("objective")
    if not isinstance(node, Mapping) or "_target_" not in node:
        return {}
    objective = instantiate(dict(node), list(config.get("allow") or []))
    # Over a split that has every attribute: a metric that the real one lacks is never logged.
    names = objective.directions(any_split())
    splits = {f"{part}/{name}": direction for part in ("val", "test") for name, direction in names.items()}
    return {"train/loss": "min", **splits}


def define(run: Any, directions: Mapping[str, str]) -> None:
    """Tell W&B whether lower or higher is better: its summary then keeps the best."""
    for name, direction in directions.items():
        run.define_metric(name, summary=direction)


def conclude(run: Any, values: Mapping[str, Any]) -> None:
    """Put final values into the summary, in place of those that W&B kept of the curve."""
    # W&B buffers the last row, and would write its values over these.
    run.log({}, commit=True)
    for name, value in values.items():
        run.summary[name] = value


def _init(settings: RunSettings, config: Mapping[str, Any], mode: Mode) -> Any:
    import wandb

    options = {
        "init_timeout": INIT_SECONDS,
        "finish_timeout": FINISH_SECONDS,
        "console": "off",
        "silent": True,
        "disable_git": True,
        "disable_code": True,
        "save_code": False,
        "program": "blockyard",
        "x_disable_meta": True,  # it would hold the command line
        "x_disable_stats": not settings.system_metrics,
        "x_save_requirements": False,
    }
    supported = type(wandb.Settings()).model_fields
    return wandb.init(
        project=settings.project,
        entity=settings.entity,
        id=settings.id,
        resume="allow" if mode == "online" else None,
        mode=mode,
        dir=str(settings.folder),
        config=json.loads(json.dumps(config, default=str)),
        group=settings.group,
        job_type=settings.job_type,
        name=settings.name,
        tags=[str(tag)[:64] for tag in settings.tags] or None,
        settings=wandb.Settings(**{key: value for key, value in options.items() if key in supported}),
    )
