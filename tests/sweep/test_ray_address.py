"""An address at which no cluster answers is refused before Ray tries for minutes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from blockyard.errors import UserError
from blockyard.sweep.executor import ray
from blockyard.sweep.executor.ray import RayExecutor, check_answers, token_problem

# What a client is told where the head node could not start its server.
NO_SERVER = """\
Initialization failure from server:
Traceback (most recent call last):
  File "/x/ray/util/client/server/proxier.py", line 772, in Datapath
    raise RuntimeError(
RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err for detailed logs.
"""


def test_what_answers_and_what_names_no_place_is_left_to_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_answers(f"127.0.0.1:{server.getsockname()[1]}")
        check_answers(f"ray://127.0.0.1:{server.getsockname()[1]}")
    for address in (None, "auto", "local"):
        check_answers(address)


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_a_closed_port_is_refused(prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UserError, match=f"executor.address={prefix}127.0.0.1:{port}: no cluster answers there"):
        check_answers(f"{prefix}127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "no.such.host.invalid:1"])
def test_an_impossible_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="no cluster answers there"):
        check_answers(address)


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({}, "set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "disabled"}, "set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "token"}, "the file ~/.ray/auth_token has no token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/x"}, "the file /x (RAY_AUTH_TOKEN_PATH) has no token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a"}, "RAY_AUTH_TOKEN has no token"),
    ],
)
def test_a_cluster_that_asks_for_a_token_says_where_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], part: str
) -> None:
    """One message names the setting that is missing."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert part in token_problem()


Joining = Callable[..., list[dict[str, object]]]


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Joining:
    """Enters an executor whose `ray.init` raises these errors in turn, and returns the arguments of its calls."""
    monkeypatch.setattr(ray, "_PAUSE", 0.0)

    def join(*errors: Exception) -> list[dict[str, object]]:
        calls: list[dict[str, object]] = []

        def init(**arguments: object) -> None:
            calls.append(arguments)
            if len(calls) <= len(errors):
                raise errors[len(calls) - 1]

        with socket.create_server(("127.0.0.1", 0)) as server:
            executor = RayExecutor(address=f"ray://127.0.0.1:{server.getsockname()[1]}")
            own = SimpleNamespace(init=init, shutdown=calls.clear, exceptions=SimpleNamespace())
            own.cluster_resources = lambda: {"CPU": 2.0}
            executor._ray = own
            executor.__enter__()
        return calls

    return join


def test_a_client_whose_server_did_not_start_tries_again(joining: Joining) -> None:
    """The process of the server may die as a busy head node starts it; the next one is started."""
    calls = joining(ConnectionAbortedError(NO_SERVER), ConnectionAbortedError(NO_SERVER))
    assert len(calls) == 3
    assert calls[0] == calls[1] == calls[2]


def test_a_server_that_never_starts_is_one_line(joining: Joining) -> None:
    with pytest.raises(UserError) as refusal:
        joining(*[ConnectionAbortedError(NO_SERVER)] * 3)
    assert "\n" not in str(refusal.value)
    assert "Traceback" not in str(refusal.value)
    assert "Starting Ray client server failed. See ray_client_server_23000.err" in str(refusal.value)
    assert str(refusal.value).endswith("among Ray's logs on the head node")


def test_another_error_is_not_tried_again(joining: Joining) -> None:
    with pytest.raises(UserError, match=r"executor.address=ray://127.0.0.1:\d+: versions differ$"):
        joining(ConnectionError("versions differ"), ConnectionError("not reached"))
