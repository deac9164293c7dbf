"""`blockyard board`: loopback only, read-only, and up to date with the runs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.report.page import watch
from blockyard.report.page.server import Board, loopback, start
from blockyard.report.page.watch import WatchedComparison
from tests.report.report_runs import NORMS, sweep, write

VALUES = {"post": {0: 0.90, 1: 0.91, 2: "missing"}, "pre": {0: 0.93, 1: 0.95, 2: 0.94}}


@pytest.fixture
def plan(tmp_path):
    return sweep(tmp_path, NORMS, VALUES)


@pytest.fixture
def board(plan, monkeypatch) -> Iterator[Board]:
    monkeypatch.setattr(watch, "_MIN_INTERVAL", 0.0)
    monkeypatch.setattr(watch, "_DURATION_FACTOR", 0.0)
    with Board(WatchedComparison([str(plan.folder)], options={"outputs": plan.outputs})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(board: Board, path: str = "/", method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", board.server_address[1], timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in named)
    for name, value in named.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_a_plan_that_changes_is_compared_again(plan):
    """A question with another margin, whose cells are all done, touches no folder of a run."""
    watched = WatchedComparison([str(plan.folder)], options={"outputs": plan.outputs})
    before = watched.fingerprint()
    assert watched.fingerprint() == before
    path = plan.folder / "plan.json"
    path.write_text(path.read_text() + " ")
    assert watched.fingerprint() != before


def test_the_page_and_its_data(board):
    answer, body = ask(board)
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert b'data-live="comparison.json"' in body
    assert "frame-ancestors 'none'" in answer.getheader("Content-Security-Policy")
    assert answer.getheader("Access-Control-Allow-Origin") is None
    answer, body = ask(board, "/comparison.json")
    result = json.loads(body)
    assert [arm["name"] for arm in result["arms"]] == ["post", "pre"]
    assert [cell["state"] for cell in result["cells"]].count("missing") == 1
    assert answer.getheader("ETag").strip('"').encode() in ask(board)[1]


def test_the_heading_is_the_name_of_the_sweep(board, plan):
    """The page is titled as its comparison, which has the name of the sweep."""
    _, body = ask(board)
    title = json.loads(ask(board, "/comparison.json")[1])["title"]
    assert title == plan.name
    assert f"<title>{title} · blockyard</title>" in body.decode()


def test_nothing_new_is_sent_only_when_there_is(board, plan):
    answer, _ = ask(board, "/comparison.json")
    mark = answer.getheader("ETag")
    again, body = ask(board, "/comparison.json", If_None_Match=mark)
    assert (again.status, body) == (304, b"")
    (cell,) = [cell for cell in plan.cells if not plan.path(cell).exists()]
    variant = plan.variants[cell.variant]
    write(plan.path(cell).parents[1], variant.config, variant.choices, cell.seed, 0.92)
    newer, body = ask(board, "/comparison.json", If_None_Match=mark)
    assert newer.status == 200
    assert newer.getheader("ETag") != mark
    assert {arm["name"]: arm["n"] for arm in json.loads(body)["arms"]} == {"post": 3, "pre": 3}


def test_what_cannot_be_compared_now_is_said_beside_the_last_state(board, plan):
    before = json.loads(ask(board, "/comparison.json")[1])
    plan_file = plan.folder / "plan.json"
    text = plan_file.read_text()
    plan_file.write_text("{ half a pl")
    now = json.loads(ask(board, "/comparison.json")[1])
    assert "damaged" in now["board"]["error"]
    assert now["arms"] == before["arms"]
    plan_file.write_text(text)
    assert json.loads(ask(board, "/comparison.json")[1])["board"]["error"] is None


@pytest.mark.parametrize(
    "path",
    ["/index.html", "/../../etc/passwd", "/%2e%2e/plan.json", "/plan.json", "/report.html", "/static/", "*"],
)
def test_there_is_nothing_else(board, path):
    assert ask(board, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(board, method):
    answer, _ = ask(board, method=method)
    assert answer.status == 405
    assert answer.getheader("Allow") == "GET, HEAD"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("header", ["Content-Length: 40", "Transfer-Encoding: chunked"])
def test_a_body_is_no_second_request(board, method, header):
    """A proxy that forwards it as a body must not hand its answer to somebody else."""
    request = (
        f"{method} /x HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\nGET /y HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", board.server_address[1]), timeout=20) as client:
        client.sendall(request.encode())
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # the rest of the body was not read
            while part := client.recv(65536):
                answer += part
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer


def test_head_has_no_body(board):
    answer, body = ask(board, method="HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.getheader("Content-Length")) > 10_000


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "10.0.0.1:80", "", "a b"]
)
def test_a_foreign_name_for_this_machine_is_refused(board, host):
    """DNS rebinding: a foreign host name that resolves to 127.0.0.1."""
    for path in ("/", "/comparison.json"):
        answer, body = ask(board, path, Host=host)
        assert answer.status == 421
        assert b"post" not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:8321", "[::1]:8321", "LOCALHOST"])
def test_its_own_names_are_not(board, host):
    assert ask(board, Host=host)[0].status == 200


def test_other_sites_get_no_data(board):
    assert ask(board, "/comparison.json", Sec_Fetch_Site="cross-site")[0].status == 403
    assert ask(board, "/comparison.json", Sec_Fetch_Site="same-origin")[0].status == 200


def test_it_listens_on_loopback_only(board, plan):
    assert board.server_address[0] == "127.0.0.1"
    assert [loopback(host) for host in ("localhost", "127.0.0.1", "::1")] == ["127.0.0.1", "127.0.0.1", "::1"]
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(UserError, match="this machine only"):
            loopback(host)
    with pytest.raises(UserError, match="cannot listen"):
        start(board.watched, host="127.0.0.1", port=board.server_address[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "board needs a sweep or runs"),
        (["{sweep}", "--host", "0.0.0.0"], "this machine only"),
        (["{sweep}", "--port", "eighty"], "whole number"),
        (["{sweep}", "--port", "65536"], "whole number"),
        (["{sweep}", "--open"], "unknown flag"),
        (["/there/is/no/such"], "/there/is/no/such"),
    ],
)
def test_bad_words(plan, capsys, arguments, message):
    assert main(["board", *(argument.format(sweep=plan.folder) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_of_runs_and_single_runs(plan):
    for paths in ([plan.outputs], [str(plan.path(cell)) for cell in plan.cells if plan.path(cell).exists()]):
        result = json.loads(WatchedComparison(paths, options={"outputs": plan.outputs}).snapshot().data)
        assert len(result["arms"]) == 2, result["board"]


@pytest.mark.parametrize("ignored", [False, True], ids=["front", "background"])
def test_ctrl_c_ends_it(plan, ignored):
    command = [sys.executable, "-m", "blockyard", "board", str(plan.folder), "--port", "0", f"outputs={plan.outputs}"]
    deaf = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}, preexec_fn=deaf
    ) as it:
        try:
            line = it.stdout.readline()
            assert line.startswith("http://127.0.0.1:")
            port = int(line.split(":")[2].split("/")[0])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/nothing")
            assert connection.getresponse().status == 404
            it.send_signal(signal.SIGINT)
            assert it.wait(timeout=20) == 0
            assert it.stderr.read() == ""
        finally:
            it.kill()
