"""A server that speaks the part of Kubernetes' API that pilots need, and runs their containers as processes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.limit import HANG_S


class Pods:
    """A namespace `farm` whose pods are processes of this host: a context manager.

    Attributes:
        specs: the pods as they were created, by name.
        refuses: an error message that answers every request.
        starts: False leaves new pods pending.
        environment: variables of their processes.
    """

    def __init__(self, folder: Path) -> None:
        self.specs: dict[str, Any] = {}
        self.refuses = ""
        self.starts = True
        self.environment: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.configuration = folder / "kubeconfig"
        self.configuration.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }))

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """The status and the body of an answer; text is a log."""
        if self.refuses:
            return 403, {"kind": "Status", "message": self.refuses}
        given = path.partition("?")[0].removeprefix("/api/v1/namespaces/farm/pods").strip("/").split("/")
        if method == "POST":
            name = body["metadata"]["name"]
            self.specs[name] = body
            if self.starts:
                self._start(name)
            return 201, self._pod(name)
        if given == [""]:
            return 200, {"kind": "PodList", "items": [self._pod(name) for name in self.specs]}
        name = given[0]
        if name not in self.specs:
            return 404, {"kind": "Status", "message": f'pods "{name}" not found'}
        if given[1:] == ["log"]:
            return 200, self._processes[name].communicate()[0]
        if method == "DELETE":
            self._stop(name)
            return 200, {"kind": "Status"}
        return 200, self._pod(name)

    def finish(self, name: str) -> None:
        """Wait for the end of a pod's process."""
        self._processes[name].wait(HANG_S)

    def _start(self, name: str) -> None:
        (container,) = self.specs[name]["spec"]["containers"]
        given = {one["name"]: one["value"] for one in container["env"]}
        self._processes[name] = subprocess.Popen(
            [*container["command"], *container["args"]], env=os.environ | self.environment | given, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )

    def _stop(self, name: str) -> None:
        del self.specs[name]
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _pod(self, name: str) -> Any:
        process = self._processes.get(name)
        phase = "Pending"
        if process is not None:
            code = process.poll()
            if code is not None and self.specs[name]["spec"].get("restartPolicy") != "Never":
                self._start(name)  # as Kubernetes does by default, for ever
                code = None
            phase = "Running" if code is None else "Failed" if code else "Succeeded"
        return self.specs[name] | {"status": {"phase": phase}}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for name in list(self.specs):
            self._stop(name)


def _handler(pods: Pods) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            given = json.loads(self.rfile.read(length)) if length else None
            status, found = pods.answer(self.command, self.path, given)
            data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(found, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, *given: object) -> None:
            pass

    return Handler
