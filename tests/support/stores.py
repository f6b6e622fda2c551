"""Places on the network that hold data, in the test's own process: a store that speaks S3, and web servers with and without ranges."""

import functools
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from fsspec import AbstractFileSystem
from s3fs import S3FileSystem

BUCKET = "logs"
KEYS = {"AWS_ACCESS_KEY_ID": "anna", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


class Bucket:
    """The bucket `logs` of an S3 store."""

    def __init__(self) -> None:
        self.client: Any = boto3.client("s3")
        self.client.create_bucket(Bucket=BUCKET)

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def put_folder(self, folder: Path, key: str) -> str:
        """The files of a folder, under their names; the address of what is then a folder there."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{BUCKET}/{key}"


@contextmanager
def s3_at(endpoint: str) -> Iterator[None]:
    """Within, s3:// is what answers at `endpoint`, for this process and those that it starts."""
    S3FileSystem.clear_instance_cache()  # a driver keeps the endpoint that it was made with
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(name, value)
        yield
    S3FileSystem.clear_instance_cache()


@contextmanager
def s3_store() -> Iterator[Bucket]:
    """A store with one bucket, which s3:// is within."""
    from moto.server import ThreadedMotoServer  # half a second, for the few tests that want one  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with s3_at(f"http://{host}:{port}"):
        yield Bucket()
    server.stop()


class Plain(SimpleHTTPRequestHandler):
    """Files and lists of files, and nothing else: no ranges."""

    def log_message(self, *_: Any) -> None:
        pass


class Ranged(BaseHTTPRequestHandler):
    """Files with their ranges, as a web server or S3 gives them; the first answers end `cuts` times in the middle."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, directory: Path, cuts: list[int]) -> None:
        self.directory, self.cuts = directory, cuts
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(b"", self._path().stat().st_size, 200)

    def do_GET(self) -> None:
        begin, _, end = self.headers.get("Range", f"bytes=0-{1 << 40}").removeprefix("bytes=").partition("-")
        with self._path().open("rb") as file:
            file.seek(int(begin))
            part = file.read(min(int(end) + 1, self._path().stat().st_size) - int(begin))
        if self.cuts[0]:
            self.cuts[0] -= 1
            self.close_connection = True
            self._answer(part[: len(part) // 2], len(part), 206)
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._answer(part, len(part), 206)

    def _path(self) -> Path:
        return self.directory / self.path.lstrip("/")

    def _answer(self, body: bytes, length: int, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Tue, 17 Nov 2026 10:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def web(handler: type[BaseHTTPRequestHandler], **settings: Any) -> Iterator[str]:
    """A web server; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, **settings))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def silence() -> Iterator[str]:
    """A server that takes connections and never answers; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def forget(*drivers: type[AbstractFileSystem]) -> None:
    """Have drivers made anew, with what is configured now."""
    for driver in drivers:
        driver.clear_instance_cache()
