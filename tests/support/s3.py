"""A real S3-compatible store for tests: SeaweedFS, which checks keys, on free ports."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import uuid
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from hfmds.service.security.tls import TlsFiles
from tests.support.server_processes import free_ports, start_persistently, wait_for_server

BUCKET = "hfmds"
_KEY, _SECRET = "hfmds-key", "hfmds-secret"
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
_PORTS += ("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc")
_PORTS += ("admin.port", "admin.port.grpc")


class S3Server:
    """One server with one bucket. A test can stop, kill and restart it."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        """With a certificate, the server accepts only TLS."""
        self._tls = tls
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self._folder = Path(tempfile.mkdtemp(prefix="hfmds-s3-"))
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._had_one = False  # the server has taken an object before
        (self._folder / "data").mkdir()
        (self._folder / "users.json").write_text(json.dumps(_users()))

    @property
    def endpoint(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._ports['s3.port']}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that give a program access to the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
        }

    def new_place(self) -> str:
        """Return the URL of an empty place in the bucket."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"

    def start(self) -> None:
        """Start on the same data and ports, and wait until the server answers.

        SeaweedFS crashes about once in a thousand starts after a kill, so it gets another start.
        """
        start_persistently(self._start)

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    Path(sysconfig.get_path("scripts"), "weed"),
                    "mini",
                    f"-dir={self._folder / 'data'}",
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                    *(f"-{name}={port}" for name, port in self._ports.items()),
                    f"-s3.config={self._folder / 'users.json'}",
                    f"-bucket={BUCKET}",
                    "-s3.autoCreateBucket=false",  # a wrong bucket must be an error
                    *("-s3.port.iceberg=0", "-s3.port.lance=0"),
                    *("-webdav=false", "-admin.ui=false", "-master.telemetry=false"),
                    *self._certificate(),
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        wait_for_server(self._answers, self._process, self._log)

    def stop(self, signum: int = signal.SIGKILL) -> None:
        """Stop the server. It keeps what it has acknowledged."""
        if self._process is not None:
            self._process.send_signal(signum)
            self._process.wait(30)
            self._process = None

    def restart(self, signum: int = signal.SIGKILL) -> None:
        """Cut all connections and start again."""
        self.stop(signum)
        self.start()

    def close(self) -> None:
        """Stop, and delete all data."""
        self.stop()
        shutil.rmtree(self._folder)

    def _certificate(self) -> list[str]:
        """Return the options that components/tls-storage sets."""
        if self._tls is None:
            return []
        return [f"-s3.cert.file={self._tls.certificate}", f"-s3.key.file={self._tls.key}"]

    def _answers(self) -> bool:
        """Return whether the server writes and reads objects: its parts start one by one."""
        options = {
            "aws_" + name.removeprefix("AWS_").lower(): value
            for name, value in self.environment.items()
        }
        store = S3Store(
            BUCKET,
            config=options,
            client_options={"allow_http": True, "allow_invalid_certificates": True},
            retry_config={"max_retries": 0},
        )
        try:
            if self._had_one:
                obstore.get(store, "ready").bytes()
            obstore.put(store, "ready", b"not empty: an empty object has no content")
        except (BaseError, FileNotFoundError):
            return False
        self._had_one = True
        return True


def _users() -> dict[str, object]:
    allowed = ["Admin", "Read", "Write", "List", "Tagging"]
    user = {
        "name": "hfmds",
        "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
        "actions": allowed,
    }
    return {"identities": [user]}
