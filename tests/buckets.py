"""A bucket on this machine: an emulator, and before it a server that can refuse, and that lets only one create."""

import contextlib
import http.client
import http.server
import os
import re
import threading
from urllib.parse import parse_qs, urlparse

import fsspec
from gcp_storage_emulator.server import create_server


class Bucket:
    """The bucket `gs://runs` of an emulator.

    Attributes:
      environment: the variables by which a process finds it.
      refusing: whether every request is answered by 503, as a bucket does when it is overloaded.
      before_write: is called with the name of every object before it is written.
    """

    def __init__(self):
        self._emulator = create_server("127.0.0.1", 0, in_memory=True, default_bucket="runs")
        self._emulator.start()
        self._behind = self._emulator._api._httpd.server_address[1]
        bucket = self

        class Handler(_Handler):
            owner = bucket

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.environment = {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GCE_METADATA_HOST": "127.0.0.1:1",  # nobody is asked for credentials
            "NO_GCE_CHECK": "true",
        }
        self.refusing, self.before_write = False, lambda name: None
        self.refused, self.creating = 0, threading.Lock()

    def ask(self, method, path, body, headers):
        """What the emulator answers: status, headers and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def exists(self, bucket, name):
        path = f"/storage/v1/b/{bucket}/o/{name.replace('/', '%2F')}"
        return self.ask("GET", path, None, {})[0] == 200

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._emulator.stop()

    @contextlib.contextmanager
    def found_by_this_process(self):
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        fsspec.filesystem("gcs").clear_instance_cache()
        try:
            yield self
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            fsspec.filesystem("gcs").clear_instance_cache()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        if self.owner.refusing:
            self.owner.refused += 1
            self._answer(503, [], b"")
            return
        url = urlparse(self.path)
        query = parse_qs(url.query)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "transfer-encoding"}
        if self.command in ("POST", "PUT") and "/upload/" in url.path:
            self._write(url, query, body, headers)
        else:
            self._answer(*self.owner.ask(self.command, self.path, body, headers))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET  # noqa: N815

    def _write(self, url, query, body, headers):
        described = re.search(rb'"name": *"([^"]+)"', body[:2000])  # where description and content come together
        name = query["name"][0] if "name" in query else described[1].decode() if described else ""
        if name:
            self.owner.before_write(name)
        if query.get("ifGenerationMatch") == ["0"]:  # the emulator has no conditions
            with self.owner.creating:
                bucket = url.path.split("/b/")[1].split("/")[0]
                if self.owner.exists(bucket, name):
                    self._answer(412, [], b"conditionNotMet")
                else:
                    self._answer(*self.owner.ask(self.command, self.path, body, headers))
            return
        self._answer(*self.owner.ask(self.command, self.path, body, headers))

    def _chunks(self):
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status, headers, content):
        with contextlib.suppress(OSError):  # who asked may be dead
            self.send_response(status)
            for key, value in headers:
                if key.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    def log_message(self, *arguments):
        pass
