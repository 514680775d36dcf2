"""Buckets on this machine: emulators, and before each a server that can refuse, and that lets only one create."""

import contextlib
import http.client
import http.server
import os
import re
import threading
from urllib.parse import parse_qs, unquote, urlparse

import fsspec


class Bucket:
    """The bucket `runs` of an emulator.

    Attributes:
      url: of the bucket.
      environment: the variables by which a process finds it.
      refusing: whether every request is answered by 503, as a bucket does when it is overloaded.
      before_write: is called with the name of every object before it is written.
      answered: is called with method, path and content of every answer, and gives the content that is sent instead.
    """

    scheme, filesystem, checks_conditions = "", "", True

    def __init__(self):
        self.url = f"{self.scheme}://runs"
        self._behind = self.start_emulator()
        bucket = self

        class Handler(_Handler):
            owner = bucket

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.environment = self.variables(f"http://127.0.0.1:{self._server.server_address[1]}")
        self.refusing, self.before_write = False, lambda name: None
        self.answered = lambda method, path, content: content
        self.refused, self.creating = 0, threading.Lock()

    def start_emulator(self):
        """Starts it with an empty bucket; returns its port."""
        raise NotImplementedError

    def stop_emulator(self):
        raise NotImplementedError

    def variables(self, address):
        """The variables by which a process finds the server at an address."""
        raise NotImplementedError

    def written(self, method, url, body):
        """The name of the object that a request writes; None for other requests."""
        raise NotImplementedError

    def ask(self, method, path, body, headers):
        """What the emulator answers: status, headers and content."""
        connection = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self.stop_emulator()

    @contextlib.contextmanager
    def found_by_this_process(self):
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        fsspec.filesystem(self.filesystem).clear_instance_cache()
        try:
            yield self
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            fsspec.filesystem(self.filesystem).clear_instance_cache()


class GoogleBucket(Bucket):
    """`gs://runs`."""

    scheme, filesystem = "gs", "gcs"
    checks_conditions = False

    def start_emulator(self):
        from gcp_storage_emulator.server import create_server

        self._emulator = create_server("127.0.0.1", 0, in_memory=True, default_bucket="runs")
        self._emulator.start()
        return self._emulator._api._httpd.server_address[1]

    def stop_emulator(self):
        self._emulator.stop()

    def variables(self, address):
        return {
            "STORAGE_EMULATOR_HOST": address,
            "GCE_METADATA_HOST": "127.0.0.1:1",  # nobody is asked for credentials
            "NO_GCE_CHECK": "true",
        }

    def written(self, method, url, body):
        if method not in ("POST", "PUT") or "/upload/" not in url.path:
            return None
        described = re.search(rb'"name": *"([^"]+)"', body[:2000])  # where description and content come together
        names = parse_qs(url.query).get("name", [described[1].decode() if described else None])
        return names[0]

    def exists(self, url, name):
        bucket = url.path.split("/b/")[1].split("/")[0]
        return self.ask("GET", f"/storage/v1/b/{bucket}/o/{name.replace('/', '%2F')}", None, {})[0] == 200


class AmazonBucket(Bucket):
    """`s3://runs`."""

    scheme = filesystem = "s3"

    def start_emulator(self):
        import boto3
        from moto.server import ThreadedMotoServer

        self._emulator = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._emulator.start()
        port = self._emulator.get_host_and_port()[1]
        nobody = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **nobody).create_bucket(Bucket="runs")
        return port

    def stop_emulator(self):
        self._emulator.stop()

    def variables(self, address):
        return {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def written(self, method, url, body):
        return unquote(url.path).removeprefix("/runs/") if method == "PUT" else None


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
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding", "expect")}
        name = self.owner.written(self.command, url, body)
        if name:
            self.owner.before_write(name)
        if name and not self.owner.checks_conditions and parse_qs(url.query).get("ifGenerationMatch") == ["0"]:
            with self.owner.creating:
                if self.owner.exists(url, name):
                    self._answer(412, [], b"conditionNotMet")
                else:
                    self._answer(*self.owner.ask(self.command, self.path, body, headers))
        else:
            self._answer(*self.owner.ask(self.command, self.path, body, headers))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET  # noqa: N815

    def _chunks(self):
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status, headers, content):
        content = self.owner.answered(self.command, self.path, content)
        length = {key.lower(): value for key, value in headers}.get("content-length")
        with contextlib.suppress(OSError):  # who asked may be dead
            self.send_response(status)
            for key, value in headers:
                if key.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                    self.send_header(key, value)
            # The answer to HEAD has the length of what GET would give.
            self.send_header("Content-Length", str((self.command == "HEAD" and length) or len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    def log_message(self, *arguments):
        pass
