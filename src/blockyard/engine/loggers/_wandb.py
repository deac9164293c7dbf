"""Facts about W&B for its logger: whether there is a login, whether the server answers, how to end its helper."""

from __future__ import annotations

import contextlib
import netrc
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Literal

_PROBE_SECONDS = 3.0
Mode = Literal["online", "offline", "disabled"]


def logged_in() -> bool:
    """Whether W&B has a key without a prompt: in the environment, or in the netrc file."""
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
    """The address of the server, from the environment or from W&B, which has changed its own before."""
    url = os.environ.get("WANDB_BASE_URL")
    if url:
        return url
    try:
        import wandb

        return str(wandb.Settings().base_url)
    except (ImportError, AttributeError, ValueError):
        return ""


def resolve(mode: str) -> Mode:
    """The mode that `auto` stands for in this environment; any other mode as it is."""
    if mode == "auto":
        variable = os.environ.get("WANDB_MODE", "").lower()
        mode = {"dryrun": "offline", "run": "online", "shared": "online"}.get(variable, variable)
        if os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes"):
            mode = "disabled"
        if mode not in ("online", "offline", "disabled"):
            return "online" if logged_in() else "offline"
    return mode  # type: ignore[return-value]


def unreachable(address: str) -> str | None:
    """Why no server answers at `address`, or None for any answer; proxies of the environment are used."""
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
    """The connection to W&B's helper process, or None.

    The public way to it, `teardown`, waits for the helper, for ever where that is stuck.
    """
    import wandb

    return getattr(getattr(wandb.sdk.wandb_setup, "_singleton", None), "_connection", None)


def kill(connection: Any) -> None:
    """Kill the helper process behind `connection`."""
    if connection is None:
        return
    with contextlib.suppress(Exception):  # private parts of another package: whatever is there
        connection._cleanup()
        connection._proc._process.kill()
        connection._proc._process.wait(timeout=2)
    os.environ.pop("WANDB_SERVICE", None)
