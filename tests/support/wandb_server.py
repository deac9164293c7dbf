"""A W&B server on the loopback address: the few calls that its client makes for a run, and ways to get them wrong.

    with WandbServer() as server:                 # answers as W&B does
        ...                                       # WANDB_BASE_URL=server.url, WANDB_API_KEY=server.key
        server.runs["ab12cd34"].history           # what arrived
    with WandbServer(lambda call: call.kind == "stream" and call.answer(500)):  # goes wrong
        ...

Reference: wandb 0.24 to 0.31, `wandb-core`. GraphQL: Viewer, ServerInfo, UpsertBucket, RunResumeStatus, CreateRunFiles;
the file stream takes history, summary and console lines; files are put to the addresses that CreateRunFiles gave.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

ENTITY = "tester"
Fault = Callable[["Call"], Any]  # true where it answered, or left the client without an answer


@dataclass
class Received:
    """What a server got of one run."""

    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # name, group, tags, job type
    exit_code: int | None = None

    @property
    def rows(self) -> dict[int, dict[str, Any]]:
        """step -> the metrics of that row, without W&B's own columns."""
        rows: dict[int, dict[str, Any]] = {}
        for row in self.history:
            rows.setdefault(row["_step"], {}).update({k: v for k, v in row.items() if not k.startswith("_")})
        return rows


@dataclass
class ReceivedArtifact:
    """An artifact that a server got. run: the id of the one that logged it; used_by: those that declared it an input"""

    name: str
    type: str
    run: str
    aliases: list[str]
    metadata: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    used_by: list[str] = field(default_factory=list)
    committed: bool = False


@dataclass
class Call:
    """One request. kind: graphql, stream, upload or other; operation: of GraphQL."""

    handler: BaseHTTPRequestHandler
    kind: str
    operation: str
    stopping: threading.Event

    def answer(self, status: int, body: bytes = b"{}", *, length: int | None = None) -> bool:
        """Send an answer; length: what it claims to be, where it is cut."""
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", "application/json")
        self.handler.send_header("Content-Length", str(len(body) if length is None else length))
        self.handler.end_headers()
        self.handler.wfile.write(body)
        return True

    def hang_up(self) -> bool:
        """Close the connection without an answer."""
        self.handler.close_connection = True
        return True

    def hang(self, seconds: float = 120) -> bool:
        """Answer nothing, until the server stops or the time is over."""
        self.stopping.wait(seconds)
        return self.hang_up()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a client that is killed cuts its connections."""


class WandbServer:
    """The server, in threads of this process. fault: called first, and may answer in place of the server."""

    key = "0123456789abcdef" * 2 + "01234567"

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.runs: dict[str, Received] = {}
        self.artifacts: list[ReceivedArtifact] = []
        self.calls: list[str] = []
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def _any(self) -> None:
                with contextlib.suppress(OSError):
                    server._handle(self)

            do_GET = do_POST = do_PUT = do_HEAD = do_PATCH = _any

            def log_message(self, *arguments: Any) -> None:
                """Print nothing."""

        self._http = _Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead W&B here."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": self.key, "WANDB_MODE": "online"}

    def __enter__(self) -> WandbServer:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stopping.set()
        self._http.shutdown()
        self._http.server_close()

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        path, query = handler.path.partition("?")[0], {}
        kind, operation = "other", ""
        if path.endswith("/graphql"):
            query = json.loads(body)
            kind, operation = "graphql", _operation(query)
        elif path.endswith("/file_stream"):
            kind = "stream"
        elif path.startswith(("/upload/", "/artifact/")):
            kind = "upload"
        with self._lock:
            call = Call(handler, kind, operation, self._stopping)
            self.calls.append(operation or kind)
        if self.fault is not None and self.fault(call):
            return
        with self._lock:
            data = self._respond(kind, operation, path, query, body)
        call.answer(200, json.dumps(data).encode())

    def _respond(self, kind: str, operation: str, path: str, query: dict[str, Any], body: bytes) -> Any:
        if kind == "graphql":
            return {"data": self._graphql(operation, query.get("variables") or {})}
        if kind == "stream":
            self._stream(self.runs.setdefault(path.split("/")[-2], Received()), json.loads(body))
            return {"exitcode": None, "limits": {}}
        if path.startswith("/artifact/"):
            _, _, number, name = path.split("/", 3)
            self.artifacts[int(number)].files[urllib.parse.unquote(name)] = body
            return {}
        if kind == "upload":
            _, _, run, name = path.split("/", 3)
            self.runs.setdefault(run, Received()).files[name] = body
        return {}

    def _graphql(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        if operation == "UpsertBucket":
            name = variables.get("name") or "run"
            run = self.runs.setdefault(name, Received())
            if variables.get("config"):
                run.config |= json.loads(variables["config"])
            run.settings |= {key: value for key, value in variables.items() if value is not None and key != "config"}
            project = {"name": variables.get("project") or "p", "entity": {"name": ENTITY}}
            bucket = {"id": f"id-{name}", "name": name, "displayName": name, "description": "", "config": "{}"}
            bucket |= {"sweepName": None, "historyLineCount": 0, "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "CreateRunFiles":
            names = variables.get("files") or []
            run_id = variables.get("run") or variables.get("name") or "run"
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{run_id}/{name}"} for name in names]
            return {"createRunFiles": {"runID": f"id-{run_id}", "uploadHeaders": [], "files": files}}
        if operation == "RunResumeStatus":
            return {"model": {"id": "project", "name": "p", "entity": {"id": "e", "name": ENTITY}, "bucket": None}}
        if "Artifact" in operation:
            return self._artifact(operation, variables)
        viewer = {"id": "user", "entity": ENTITY, "username": ENTITY, "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer, "serverInfo": {"features": [], "cliVersionInfo": {"max_cli_version": "9.0.0"}}}

    def _artifact(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The calls that create an artifact, take its files, commit it, and declare it an input."""
        sent = variables.get("input") or variables
        if operation == "CreateArtifact":
            aliases = [each["alias"] if isinstance(each, dict) else each for each in sent.get("aliases") or ()]
            name = sent.get("artifactCollectionName") or (sent.get("artifactCollectionNames") or [""])[0]
            metadata = json.loads(sent.get("metadata") or "{}")
            run = sent.get("runName") or ""
            self.artifacts.append(ReceivedArtifact(name, sent["artifactTypeName"], run, aliases, metadata))
            number = len(self.artifacts) - 1
            sequence = {"id": f"sequence-{name}", "latestArtifact": None}
            artifact = {"id": str(number), "state": "PENDING", "artifactSequence": sequence}
            return {"createArtifact": {"artifact": artifact}}
        if operation in ("CreateArtifactManifest", "UpdateArtifactManifest"):
            file = {"id": "f", "name": "manifest", "displayName": "manifest", "uploadHeaders": []}
            file["uploadUrl"] = f"{self.url}/manifest.json"
            manifest = {"id": "manifest", "file": file}
            key = operation[0].lower() + operation[1:]
            return {key: {"artifactManifest": manifest}}
        if operation == "CreateArtifactFiles":
            edges = []
            for each in sent.get("artifactFiles") or sent.get("files") or ():
                number, name = each["artifactID"], each["name"]
                address = f"{self.url}/artifact/{number}/{urllib.parse.quote(name, safe='')}"
                node = {"id": name, "name": name, "displayName": name, "uploadUrl": address, "uploadHeaders": []}
                node |= {"storagePath": f"s/{number}/{name}", "artifact": {"id": number}, "uploadMultipartUrls": None}
                edges.append({"node": node})
            return {"createArtifactFiles": {"files": {"edges": edges}}}
        if operation in ("CommitArtifact", "UseArtifact"):
            number = int(sent["artifactID"])
            if operation == "UseArtifact":
                self.artifacts[number].used_by.append(sent.get("runName") or "")
            self.artifacts[number].committed = True
            key = operation[0].lower() + operation[1:]
            return {key: {"artifact": {"id": str(number), "digest": ""}}}
        return {"project": None}

    def _stream(self, run: Received, sent: dict[str, Any]) -> None:
        files = sent.get("files") or {}
        for line in (files.get("wandb-history.jsonl") or {}).get("content") or ():
            run.history.append(json.loads(line))
        for line in (files.get("wandb-summary.json") or {}).get("content") or ():
            run.summary |= json.loads(line)
        if sent.get("complete"):
            run.exit_code = sent.get("exitcode")


def _operation(query: dict[str, Any]) -> str:
    named = query.get("operationName") or ""
    match = re.search(r"(?:query|mutation)\s+(\w+)", query.get("query") or "")
    return str(named or (match[1] if match else ""))
