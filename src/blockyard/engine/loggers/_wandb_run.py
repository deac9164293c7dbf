"""Opening a W&B run that cannot hang, asks nothing, and is handed neither command line nor code."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from blockyard.engine.loggers._wandb import Mode, base_url, connection, kill, tear_down, unreachable

log = logging.getLogger("blockyard")

INIT_SECONDS = 6.0
FINISH_SECONDS = 6.0
TEARDOWN_SECONDS = 2.0


@dataclass(frozen=True)
class Place:
    """Where a record goes and what it is called, in W&B's words; folder: where its files lie."""

    folder: Path
    id: str
    project: str
    entity: str | None
    group: str
    job_type: str
    name: str
    tags: Sequence[str] = ()
    system_metrics: bool = False


def open_run(place: Place, config: Mapping[str, Any], mode: Mode) -> Any:
    """The record, online if asked for; where the network does not answer, offline, with one message."""
    (place.folder / "wandb").mkdir(parents=True, exist_ok=True)
    if mode == "online":
        why = unreachable(base_url())
        if why is None:
            try:
                return _init(place, config, "online")
            except Exception as error:  # W&B's own errors, and those of what it is built on
                why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                tear_down()
        log.warning("W&B cannot be reached (%s); %s is recorded offline, in %s/wandb", why, place.name, place.folder)
    return _init(place, config, "offline")


def close_run(run: Any, *, failed: bool = False) -> None:
    """Close the record, and end W&B's helper, which would otherwise be waited for at the end of the process."""
    import wandb

    run.finish(exit_code=1 if failed else 0)
    helper = connection()
    closing = threading.Thread(target=wandb.teardown, name="wandb-teardown", daemon=True)
    closing.start()
    closing.join(TEARDOWN_SECONDS)
    if closing.is_alive():
        kill(helper)


def bounded(call: Callable[[], None], seconds: float) -> str | None:
    """Run `call` in a thread, and wait so long at most: None where it came back, else what became of it."""
    said = [f"it did not finish within {seconds:.0f} s"]

    def guarded() -> None:
        try:
            call()
            said.clear()
        except (Exception, SystemExit) as error:  # whatever W&B raises, its caller goes on
            lines = str(error).strip().splitlines()
            said[:] = [f"{type(error).__name__}: {lines[0] if lines else ''}"]

    thread = threading.Thread(target=guarded, name="wandb-bounded", daemon=True)
    thread.start()
    thread.join(seconds)
    return next(iter(said), None)


def directions(config: Mapping[str, Any]) -> dict[str, str]:
    """Which way each metric of a config's objective is better; nothing where it has none."""
    from blockyard.config.build import instantiate

    node = config.get("objective")
    if not isinstance(node, Mapping) or "_target_" not in node:
        return {}
    objective = instantiate(dict(node), list(config.get("allow") or []))
    # Over a split that knows all there is to know: a metric that this one has not is never logged.
    found = objective.directions(SimpleNamespace(bytes_per_token=1.0))
    both = {f"{part}/{name}": way for part in ("val", "test") for name, way in found.items()}
    return {"train/loss": "min", **both}


def define(run: Any, ways: Mapping[str, str]) -> None:
    """Tell W&B which way metrics are better: its summary then keeps the best."""
    for name, way in ways.items():
        run.define_metric(name, summary=way)


def conclude(run: Any, figures: Mapping[str, Any]) -> None:
    """Put final figures into the summary, in place of what W&B kept of the curve."""
    # W&B holds the last row back, and would write its values over these.
    run.log({}, commit=True)
    for name, value in figures.items():
        run.summary[name] = value


def _init(place: Place, config: Mapping[str, Any], mode: Mode) -> Any:
    import wandb

    wished = {
        "init_timeout": INIT_SECONDS,
        "finish_timeout": FINISH_SECONDS,
        "console": "off",
        "silent": True,
        "disable_git": True,
        "disable_code": True,
        "save_code": False,
        "program": "blockyard",
        "x_disable_meta": True,  # it would hold the command line
        "x_disable_stats": not place.system_metrics,
        "x_save_requirements": False,
    }
    known = type(wandb.Settings()).model_fields
    return wandb.init(
        project=place.project,
        entity=place.entity,
        id=place.id,
        resume="allow" if mode == "online" else None,
        mode=mode,
        dir=str(place.folder),
        config=json.loads(json.dumps(config, default=str)),
        group=place.group,
        job_type=place.job_type,
        name=place.name,
        tags=[str(tag)[:64] for tag in place.tags] or None,
        settings=wandb.Settings(**{key: value for key, value in wished.items() if key in known}),
    )
