"""Opens and closes W&B runs that cannot hang, prompt for nothing, and get neither command line nor code."""

from __future__ import annotations

import contextlib
import json
import logging
import netrc
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from blockyard.errors import first_line

log = logging.getLogger("blockyard")

_PROBE_SECONDS = 3.0
INIT_SECONDS = 6.0
FINISH_SECONDS = 6.0
TEARDOWN_SECONDS = 2.0
Mode = Literal["online", "offline", "disabled"]


@dataclass(frozen=True)
class RunSettings:
    """Destination and names of a W&B run.

    folder: of its files; finish_seconds: that its end waits for data that is still to be sent
    """

    folder: Path
    id: str
    project: str
    entity: str | None
    group: str
    job_type: str
    name: str
    tags: Sequence[str] = ()
    system_metrics: bool = False
    finish_seconds: float = FINISH_SECONDS


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
            reason = first_line(error)
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
    """Close the run and end W&B's helper, or the end of the process would wait for it."""
    import wandb

    run.finish(exit_code=int(failed))
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
            failure[:] = [f"{type(error).__name__}: {first_line(error)}"]

    thread = threading.Thread(target=guarded, name="wandb-bounded", daemon=True)
    thread.start()
    thread.join(seconds)
    return next(iter(failure), None)


def define(run: Any, directions: Mapping[str, str]) -> None:
    """Tell W&B whether lower or higher is better: its summary then keeps the best."""
    for name, direction in directions.items():
        run.define_metric(name, summary=direction)


def conclude(run: Any, values: Mapping[str, Any]) -> None:
    """Put final values into the summary, in place of the values that W&B kept of the curve."""
    # W&B buffers the last row, and would write its values over these.
    run.log({}, commit=True)
    for name, value in values.items():
        run.summary[name] = value


def _init(settings: RunSettings, config: Mapping[str, Any], mode: Mode) -> Any:
    import wandb

    options: dict[str, Any] = {
        "init_timeout": INIT_SECONDS,
        "finish_timeout": settings.finish_seconds,
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
    # Names beginning with x_ are experimental, and come and go with releases.
    supported = type(wandb.Settings()).model_fields
    return wandb.init(
        project=settings.project,
        entity=settings.entity,
        id=settings.id,
        resume="allow" if mode == "online" else None,
        mode=mode,
        dir=str(settings.folder),
        config=json.loads(json.dumps(config, default=str)),  # a copy, which W&B may change
        group=settings.group,
        job_type=settings.job_type,
        name=settings.name,
        tags=[str(tag)[:64] for tag in settings.tags] or None,
        settings=wandb.Settings(**{key: value for key, value in options.items() if key in supported}),
        # Another run of this process, such as one whose steps are taken together with this one's, stays as it is.
        reinit="create_new" if wandb.run is not None else None,
    )


def logged_in() -> bool:
    """Return whether W&B has a key without a prompt: in the environment, or in the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    candidates = filter(None, [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"])
    files = [path for path in map(os.path.expanduser, candidates) if os.path.isfile(path)]
    if not files:  # the address may need W&B, whose import takes as long as a tiny run takes to its first step
        return False
    host = urllib.parse.urlsplit(base_url()).hostname
    for path in files:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(path).authenticators(host or "") is not None:
                return True
    return False


def base_url() -> str:
    """Return the address of the server: from the environment, or W&B's own, which has changed before."""
    url = os.environ.get("WANDB_BASE_URL")
    if url:
        return url
    try:
        import wandb

        return str(wandb.Settings().base_url)
    except (ImportError, AttributeError, ValueError):
        return ""


def resolve(mode: str) -> Mode:
    """Return the mode that `auto` stands for in this environment; any other mode as it is."""
    if mode == "auto":
        # W&B's older names for its modes.
        variable = os.environ.get("WANDB_MODE", "").lower()
        mode = {"dryrun": "offline", "run": "online", "shared": "online"}.get(variable, variable)
        if os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes"):
            mode = "disabled"
        if mode not in ("online", "offline", "disabled"):
            return "online" if logged_in() else "offline"
    return mode  # type: ignore[return-value]


def unreachable(address: str) -> str | None:
    """Return why no server answers at `address`, or None for any answer; proxies of the environment are used."""
    try:
        with urllib.request.urlopen(address, timeout=_PROBE_SECONDS):
            return None
    except urllib.error.HTTPError:
        return None
    except (urllib.error.URLError, OSError, ValueError) as error:
        return str(getattr(error, "reason", error))[:200]


def tear_down() -> None:
    """End W&B's helper process without waiting for it; W&B can be used again afterwards."""
    import wandb

    kill(connection())
    with contextlib.suppress(Exception):
        wandb.sdk.wandb_setup._singleton = None
        wandb.run = None


def connection() -> Any:
    """Return the connection to W&B's helper process, or None.

    The public way to it, `teardown`, waits for the helper, for ever where that is stuck.
    """
    import wandb

    return getattr(getattr(wandb.sdk.wandb_setup, "_singleton", None), "_connection", None)


def kill(connection: Any) -> None:
    """Kill the helper process behind `connection`."""
    if connection is None:
        return
    with contextlib.suppress(Exception):  # private parts of another package: whatever is there
        from wandb.sdk.lib import import_hooks

        # An open run reports later imports to the helper; without it those imports would fail.
        import_hooks.unregister_all_post_import_hooks()
    with contextlib.suppress(Exception):
        connection._cleanup()
        connection._proc._process.kill()
        connection._proc._process.wait(timeout=2)
    os.environ.pop("WANDB_SERVICE", None)
