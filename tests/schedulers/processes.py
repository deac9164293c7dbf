"""Ports for the processes of an engine, and waiting for what they do."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody uses at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for(condition: Callable[[], Any], seconds: float, alive: Callable[[], object] = lambda: None) -> Any:
    """Call until the value is true, and return it. alive: raises where nothing can happen any more"""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        alive()
        assert time.monotonic() < deadline, f"nothing happened for {seconds} seconds"
        time.sleep(0.1)
    return value
