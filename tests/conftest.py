"""What every test stands on: no address but loopback, an Airflow home of its own, and a real PostgreSQL."""

from __future__ import annotations

import atexit
import os
import pwd
import runpy
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.waiting import scaled

ROOT = Path(__file__).resolve().parent.parent
GUARD = ROOT / "tests" / "guard"
AIRFLOW_HOME = Path(tempfile.mkdtemp(prefix="llmbeam-tests-"))

# Airflow reads its environment at the first import, so this comes before any.
os.environ.update(
    {
        "LLMBEAM_TESTS_ON_LOOPBACK": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(GUARD), os.environ.get("PYTHONPATH")])),
        "AIRFLOW_HOME": str(AIRFLOW_HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(AIRFLOW_HOME / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{AIRFLOW_HOME}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "GOOGLE_API_KEY": "test",
        # With no credentials Beam looks for a metadata server for 25 s.
        "NO_GCE_CHECK": "true",
    }
)
(AIRFLOW_HOME / "dags").mkdir()

# How long one example takes says what else the machine does.
settings.register_profile("llmbeam", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("llmbeam")

# By its path: the interpreter may have a `sitecustomize` of its own loaded already.
runpy.run_path(str(GUARD / "sitecustomize.py"))
atexit.register(shutil.rmtree, AIRFLOW_HOME, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keeps a module on one worker, starts the longest ones first, and scales timeouts by the machine's speed."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(ROOT))))
        marked = item.get_closest_marker("timeout")
        seconds = marked.args[0] if marked and marked.args else float(config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(scaled(seconds)), append=False)
    items.sort(key=_start_order)


def _start_order(item):
    """Real Airflows, which are one group, then other slow modules, then the rest; each in its own order."""
    if item.get_closest_marker("xdist_group").args[0] == "airflow":
        return 0
    return 1 if item.get_closest_marker("slow") else 2


@pytest.fixture
def sandbox():
    """An emulated cloud without quota or latency, with the bucket `rows`; every queued fault must be consumed."""
    from airflow_provider_llmbeam.sandbox import Sandbox

    with Sandbox(buckets=("rows",)) as running:
        yield running
        running.faults.assert_all_consumed()


@pytest.fixture
def google(sandbox, monkeypatch):
    """Puts the sandbox in place of Google's hosts, for this process and those it starts; yields the proxy."""
    from airflow_provider_llmbeam.sandbox import Proxy
    from tests.clouds import use_environment

    with Proxy(sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        yield proxy


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of this session, with a password; yields the connection string of its superuser."""
    import psycopg

    initdb, postgres = _postgres_program("initdb"), _postgres_program("postgres")
    home = Path(tempfile.mkdtemp(prefix="llmbeam-postgres-"))
    data, log, password = home / "data", home / "log", secrets.token_urlsafe(12)
    (home / "password").write_text(password)
    as_user = {}
    if os.geteuid() == 0:  # which PostgreSQL refuses
        user = _unprivileged_user()
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        for path in (home, home / "password"):
            os.chown(path, user.pw_uid, user.pw_gid)
    make = ["-D", data, "-U", "llmbeam", "-A", "scram-sha-256", f"--pwfile={home}/password", "--no-sync"]
    subprocess.run(
        [initdb, *make, "--locale=C", "--encoding=UTF8"],
        check=True,
        cwd=home,
        stdout=subprocess.DEVNULL,
        **as_user,
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
    serve = [postgres, "-D", data, *(f"--{name}={value}" for name, value in settings.items())]
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
        guarded.stdin.close()
        guarded.wait()


@pytest.fixture
def database(postgres):
    """The connection string of an empty database of this test."""
    import psycopg
    from psycopg import sql

    name = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield postgres.replace("/postgres", f"/{name}")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _postgres_program(name):
    """Finds a program of the server; Debian keeps them off the PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, reversed(versions))])
    found = shutil.which(name, path=path)
    if found is None:
        raise RuntimeError(
            f"There is no program {name!r}, and this test needs a real PostgreSQL server. Install `postgresql` "
            "(Debian, Ubuntu, Homebrew) or `postgresql-server` (Fedora); no service has to run."
        )
    return found


def _unprivileged_user():
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user 'postgres' nor 'nobody'.")
