"""The page on this machine's own address, for this machine only.

Two fixed addresses, GET and HEAD, nothing from the disk. A page of another site cannot read it: requests
whose Host is not a name of this machine are refused (a foreign name that was pointed at 127.0.0.1), and
so are requests for data that a browser says come from elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from blockyard.errors import UserError
from blockyard.report.page.document import policy
from blockyard.report.page.watch import ADDRESS, Watched

PORT = 8321
_TRIES = 20
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+)(?::\d{1,5})?")


def loopback(host: str) -> str:
    """The address of a host that means this machine only. Raises UserError for any other."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        if ipaddress.ip_address(host).is_loopback:
            return host
    except ValueError:
        pass
    raise UserError(
        f"--host {host}: the board is for this machine only; give 127.0.0.1, ::1 or localhost "
        "(from another machine: ssh -L 8321:127.0.0.1:8321 THIS_ONE)"
    )


class Board(ThreadingHTTPServer):
    """Serves a watched comparison on a loopback address."""

    daemon_threads = True

    def __init__(self, watched: Watched, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.watched = watched
        address = loopback(host)
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Handler)

    @property
    def url(self) -> str:
        """What to type into a browser."""
        host, port = self.server_address[:2]
        return f"http://{f'[{host}]' if ':' in str(host) else host}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is no news."""


def start(watched: Watched, *, host: str, port: int | None) -> Board:
    """A board on `port`, or on the first free one from PORT on. Raises UserError where there is none."""
    ports = range(PORT, PORT + _TRIES) if port is None else (port,)
    for number in ports:
        try:
            return Board(watched, host=host, port=number)
        except OSError as error:
            reason = error.strerror
    asked = f"--port {port}" if port is not None else f"ports {ports[0]} to {ports[-1]}"
    raise UserError(f"{asked}: cannot listen on {host} ({reason}); give another --port, or 0 for any free one")


class _Handler(BaseHTTPRequestHandler):
    server: Board
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "blockyard", ""
    timeout = 60

    def do_GET(self) -> None:
        """The page, or its data."""
        if not self._ours():
            return
        path = self.path.partition("?")[0]
        if path == "/":
            self._send(HTTPStatus.OK, "text/html", self.server.watched.snapshot().page)
        elif path == f"/{ADDRESS}":
            self._data()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is / and nothing else")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """Nothing can be changed from here."""
        self.close_connection = True  # what was sent is not read
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "only GET", {"Allow": "GET, HEAD"})

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_POST  # noqa: N815

    def _data(self) -> None:
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self._refuse(HTTPStatus.FORBIDDEN, "not for other sites")
            return
        found = self.server.watched.snapshot()
        if found.etag in (mark.strip() for mark in self.headers.get("If-None-Match", "").split(",")):
            self._send(HTTPStatus.NOT_MODIFIED, None, b"", {"ETag": found.etag})
        else:
            self._send(HTTPStatus.OK, "application/json", found.data, {"ETag": found.etag})

    def _ours(self) -> bool:
        """Whether the request names this machine as a loopback address; a tunnel may give it another port."""
        hosts = self.headers.get_all("Host") or []
        found = _HOST.fullmatch(hosts[0].strip()) if len(hosts) == 1 else None
        try:
            loopback(found[1].strip("[]").lower() if found else "")
        except UserError:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this board answers to 127.0.0.1 and localhost only")
            return False
        return True

    def _refuse(self, status: HTTPStatus, words: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, "text/plain", f"{words}\n".encode(), headers)

    def _send(self, status: HTTPStatus, kind: str | None, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (SAFE | (headers or {})).items():
            self.send_header(name, value)
        if kind:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and kind:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Nothing: the terminal belongs to whoever watches the sweep."""


SAFE = {
    "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
