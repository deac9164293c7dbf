"""Serve the page on a loopback address, for this machine only.

There are two paths, GET and HEAD, and no file access. Other sites cannot read the page: requests whose Host is not
a loopback name are refused (DNS rebinding), and so are requests for the data that a browser marks as cross-site.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from blockyard.errors import UserError
from blockyard.report.page.document import live_policy
from blockyard.report.page.watch import DATA_PATH, WatchedComparison

PORT = 8321
_PORTS_TRIED = 20
_OF_A_BODY = ("Content-Length", "Transfer-Encoding")
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+)(?::\d{1,5})?")


def loopback(host: str) -> str:
    """Return the loopback address of a host. Raises UserError for a host that other machines can reach."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        if ipaddress.ip_address(host).is_loopback:
            return host
    except ValueError:
        pass
    raise UserError(
        f"--host {host}: the board listens on this machine only; use 127.0.0.1, ::1 or localhost "
        "(from another machine: ssh -L 8321:127.0.0.1:8321 HOST)"
    )


class Board(ThreadingHTTPServer):
    """Serves a watched comparison on a loopback address."""

    daemon_threads = True

    def __init__(self, watched: WatchedComparison, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.watched = watched
        address = loopback(host)
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), _Handler)

    @property
    def url(self) -> str:
        """The URL of the page."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: usually a browser that closed its connection."""


def start(watched: WatchedComparison, *, host: str, port: int | None) -> Board:
    """Return a board on `port`, by default on the first free one from PORT on. Raises UserError if there is none."""
    ports = range(PORT, PORT + _PORTS_TRIED) if port is None else (port,)
    for number in ports:
        try:
            return Board(watched, host=host, port=number)
        except OSError as error:
            reason = error.strerror
    tried = f"--port {port}" if port is not None else f"ports {ports[0]} to {ports[-1]}"
    raise UserError(f"{tried}: cannot listen on {host} ({reason}); choose another --port, or 0 for any free one")


class _Handler(BaseHTTPRequestHandler):
    server: Board
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "blockyard", ""
    timeout = 60

    def do_GET(self) -> None:
        """Send the page or its data."""
        if not self._is_local():
            return
        path = self.path.partition("?")[0]
        if path == "/":
            self._send(HTTPStatus.OK, "text/html", self.server.watched.snapshot().page)
        elif path == f"/{DATA_PATH}":
            self._send_data()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "not found; the page is at /")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """Refuse: the board is read-only."""
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only", {"Allow": "GET, HEAD"})

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_POST  # noqa: N815

    def _send_data(self) -> None:
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self._refuse(HTTPStatus.FORBIDDEN, "cross-site requests are refused")
            return
        snapshot = self.server.watched.snapshot()
        if snapshot.etag in (etag.strip() for etag in self.headers.get("If-None-Match", "").split(",")):
            self._send(HTTPStatus.NOT_MODIFIED, None, b"", {"ETag": snapshot.etag})
        else:
            self._send(HTTPStatus.OK, "application/json", snapshot.data, {"ETag": snapshot.etag})

    def _is_local(self) -> bool:
        """Return whether the Host header is a loopback name; a tunnel may use another port."""
        hosts = self.headers.get_all("Host") or []
        match = _HOST.fullmatch(hosts[0].strip()) if len(hosts) == 1 else None
        try:
            loopback(match[1].strip("[]").lower() if match else "")
        except UserError:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this board answers to 127.0.0.1 and localhost only")
            return False
        return True

    def _refuse(self, status: HTTPStatus, reason: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, "text/plain", f"{reason}\n".encode(), headers)

    def _send(self, status: HTTPStatus, kind: str | None, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (HEADERS | (headers or {})).items():
            self.send_header(name, value)
        if kind:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        if any(name in self.headers for name in _OF_A_BODY):
            self.send_header("Connection", "close")  # the body is not read, so that it is no second request
        self.end_headers()
        if self.command != "HEAD" and kind:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Do not log requests: the terminal is used for the sweep."""


HEADERS = {
    "Content-Security-Policy": f"{live_policy()}; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
