"""An address at which no cluster answers is refused before Ray tries for minutes."""

from __future__ import annotations

import socket

import pytest

from blockyard.errors import UserError
from blockyard.sweep.executor.ray import check_answers, token_problem


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
