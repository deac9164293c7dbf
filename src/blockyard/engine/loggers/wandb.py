"""Weights & Biases: offline unless the user is logged in or asks otherwise.

The record carries the whole nested config, group, job type, name and tags; its id is in run.json
before the first step and the same on resume. Its files lie in the run folder, under `wandb/`; a
run that was recorded offline is sent later by `wandb sync RUN/wandb/offline-run-*`.

Neither the command line nor the console nor the code state is handed to W&B: secrets hide there,
and run.json has them redacted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import netrc
import os
import secrets
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from blockyard.engine.loggers.base import RunLogger
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder

log = logging.getLogger("blockyard")

_PROBE_SECONDS = 3.0
_INIT_SECONDS = 6.0
_FINISH_SECONDS = 6.0
_TEARDOWN_SECONDS = 2.0
_Mode = Literal["online", "offline", "disabled"]


class Wandb(RunLogger):
    """Mirrors metrics to W&B, or to W&B files for later.

    Options:
        project: where the run is listed
        entity: the user or team; None is the account's own
        mode: auto is what WANDB_MODE says, else online where there is a login, else offline
        group: what runs are gathered under; None is the arm, the same for all its seeds
        job_type: the part a run plays in its group
        name: how the run is called; None is the config's name and the seed
        tags: added to the config's tags
        system_metrics: whether W&B samples the machine every 15 s
    """

    package = "wandb"

    def __init__(
        self,
        *,
        project: str = "blockyard",
        entity: str | None = None,
        mode: Literal["auto", "online", "offline", "disabled"] = "auto",
        group: str | None = None,
        job_type: str = "train",
        name: str | None = None,
        tags: list[str] | None = None,
        system_metrics: bool = False,
    ) -> None:
        # W&B's own error reports are posted at the end of the process, which waits for them.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self.project = project
        self.entity = entity
        self.asked = mode
        self.group = group
        self.job_type = job_type
        self.name = name
        self.tags = list(tags or ())
        self.system_metrics = system_metrics
        self._id: str | None = None
        self._run: Any = None

    @property
    def mode(self) -> _Mode:
        """Where the record goes, as things stand."""
        return _resolve(self.asked)

    def ready(self) -> None:
        """Raise UserError without the package, or where online is asked for without a login."""
        super().ready()
        if self.mode == "online" and not logged_in():
            raise UserError(
                "logger.mode=online (or WANDB_MODE=online) needs a login: run `wandb login`, or set WANDB_API_KEY; "
                "logger.mode=offline records in the run folder"
            )

    def prepare(self, folder: RunFolder) -> None:
        """Choose the id, or find it, and save it in run.json."""
        known = folder.facts().get("wandb") or {}
        self._id = known.get("id") or secrets.token_hex(4)
        folder.add_facts({"wandb": {"id": self._id, "project": self.project, "entity": self.entity}})

    def start(self, folder: RunFolder, config: dict[str, Any]) -> None:
        """Open the record; where the network does not answer, offline, with one message."""
        mode = self.mode
        if mode == "disabled":
            return
        (folder.path / "wandb").mkdir(exist_ok=True)
        if mode == "online":
            why = _unreachable(_base_url())
            if why is None:
                try:
                    self._run = self._init(folder, config, "online")
                    return
                except Exception as error:  # W&B's own errors, and those of what it is built on
                    why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                    _tear_down()
            log.warning("W&B cannot be reached (%s); this run is recorded offline, in %s/wandb", why, folder.path)
        self._run = self._init(folder, config, "offline")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One row at this step."""
        if self._run is not None:
            self._run.log(dict(values), step=step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Put the summary in and close the record, failed where the run is."""
        import wandb

        if self._run is None:
            return
        for key, value in summary.items():
            self._run.summary[key] = value
        self._run.summary["state"] = state
        self._run.finish(exit_code=0 if state == "done" else 1)
        self._run = None
        # The helper would be waited for at the end of the process, for as long as it likes.
        helper = _connection()
        closing = threading.Thread(target=wandb.teardown, name="wandb-teardown", daemon=True)
        closing.start()
        closing.join(_TEARDOWN_SECONDS)
        if closing.is_alive():
            _kill(helper)

    def abandon(self) -> None:
        """Kill W&B's helper and its hook at the end of the process, which would wait for it."""
        _tear_down()

    def _init(self, folder: RunFolder, config: dict[str, Any], mode: _Mode) -> Any:
        import wandb

        wished = {
            "init_timeout": _INIT_SECONDS,
            "finish_timeout": _FINISH_SECONDS,
            "console": "off",
            "silent": True,
            "disable_git": True,
            "disable_code": True,
            "save_code": False,
            "program": "blockyard",
            "x_disable_meta": True,  # it would hold the command line
            "x_disable_stats": not self.system_metrics,
            "x_save_requirements": False,
        }
        known = type(wandb.Settings()).model_fields
        tags = list(dict.fromkeys([*(config.get("tags") or ()), *self.tags]))
        return wandb.init(
            project=self.project,
            entity=self.entity,
            id=self._id,
            resume="allow" if mode == "online" else None,
            mode=mode,
            dir=str(folder.path),
            config=json.loads(json.dumps(config, default=str)),
            group=self.group or folder.path.parent.name,
            job_type=self.job_type,
            name=self.name or f"{config.get('name') or folder.path.parent.name}/{folder.path.name}",
            tags=[str(tag)[:64] for tag in tags] or None,
            settings=wandb.Settings(**{key: value for key, value in wished.items() if key in known}),
        )


def logged_in() -> bool:
    """Whether W&B would find a key without asking: in the environment, or in the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlsplit(_base_url()).hostname
    candidates = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    for name in filter(None, candidates):
        with contextlib.suppress(OSError, netrc.NetrcParseError, RuntimeError):
            found = netrc.netrc(str(Path(name).expanduser())).authenticators(host or "")
            if found is not None:
                return True
    return False


def _base_url() -> str:
    # The address has changed before: it is W&B's to know.
    given = os.environ.get("WANDB_BASE_URL")
    if given:
        return given
    try:
        import wandb

        return str(wandb.Settings().base_url)
    except (ImportError, AttributeError, ValueError):
        return ""


def _resolve(mode: str) -> _Mode:
    """What `auto` means here and now."""
    if mode == "auto":
        asked = os.environ.get("WANDB_MODE", "").lower()
        mode = {"dryrun": "offline", "run": "online", "shared": "online"}.get(asked, asked)
        if os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes"):
            mode = "disabled"
        if mode not in ("online", "offline", "disabled"):
            return "online" if logged_in() else "offline"
    return mode  # type: ignore[return-value]


def _unreachable(address: str) -> str | None:
    """Why nothing answers at `address`, or None; any answer will do, proxies of the environment are used."""
    try:
        with urllib.request.urlopen(address, timeout=_PROBE_SECONDS):
            return None
    except urllib.error.HTTPError:
        return None
    except (urllib.error.URLError, OSError, ValueError) as error:
        return str(getattr(error, "reason", error))[:200]


def _tear_down() -> None:
    """End W&B's helper without waiting for it; W&B may be used again afterwards."""
    import wandb

    _kill(_connection())
    with contextlib.suppress(Exception):
        wandb.sdk.wandb_setup._singleton = None
        wandb.run = None


def _connection() -> Any:
    # W&B has no public way to its helper but `teardown`, which waits for it, for ever where it is stuck.
    import wandb

    return getattr(getattr(wandb.sdk.wandb_setup, "_singleton", None), "_connection", None)


def _kill(connection: Any) -> None:
    if connection is None:
        return
    with contextlib.suppress(Exception):  # private parts of another package: whatever is there
        connection._cleanup()
        connection._proc._process.kill()
        connection._proc._process.wait(timeout=2)
    os.environ.pop("WANDB_SERVICE", None)
