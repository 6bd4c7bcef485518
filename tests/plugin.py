"""What every test stands on: no address but loopback, an Airflow home of its own, and a real PostgreSQL."""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import secrets
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import certifi
import pytest
from hypothesis import HealthCheck, settings
from waiting import scaled

from tests.forking import start_forking
from tests.postgres_server import postgres_server

ROOT = Path(__file__).resolve().parent.parent
GUARD = ROOT / "tests" / "guard"
AIRFLOW_HOME = Path(tempfile.mkdtemp(prefix="llmbeam-tests-"))
CERTIFICATE = AIRFLOW_HOME / "one-certificate.pem"

# Until all tests are collected: 10 of 25 s of CPU time were spent in collections.
gc.disable()

# Airflow reads its environment at the first import, so this comes before any.
os.environ.update(
    {
        "LLMBEAM_TESTS_ON_LOOPBACK": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(GUARD), os.environ.get("PYTHONPATH")])),
        "AIRFLOW_HOME": str(AIRFLOW_HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(AIRFLOW_HOME / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LLMBEAM__DEPLOYMENT": "tests",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{AIRFLOW_HOME}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # The jobs of the tests are guarded and forked, too.
        "AIRFLOW__LLMBEAM__JOB_ENVIRONMENT": "LLMBEAM_TESTS_*",
        "GOOGLE_API_KEY": "test",
        # google-cloud-storage 3.17 reads the bucket in the background once for each client, for traces that are
        # off, and Beam makes a client for each operation: 36 instead of 18 ms of CPU time.
        "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",
        # Beam makes an argparse parser 400 times a job, and each looks for translations: a third of that time.
        "LANGUAGE": "C",
        # Each client of httpx and google-genai reads all certificates that it trusts, for 28 to 83 ms.
        "SSL_CERT_FILE": str(CERTIFICATE),
        # With no credentials Beam looks for a metadata server for 25 s.
        "NO_GCE_CHECK": "true",
    }
)
(AIRFLOW_HOME / "dags").mkdir()
CERTIFICATE.write_text("".join(Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")[:2]))

start_forking(AIRFLOW_HOME / "forks")

# How long one example takes says what else the machine does.
# The same examples in every run, so that no change is blamed for what chance finds; `scripts/fuzz` looks for more.
settings.register_profile("llmbeam", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("llmbeam-loop", settings.get_profile("llmbeam"), max_examples=20)
# That of scripts/fuzz, which repeats each property with other seeds until its time is over.
settings.register_profile(
    "llmbeam-fuzz",
    deadline=None,
    derandomize=False,
    max_examples=100,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("llmbeam")

# By its path: the interpreter may have a `sitecustomize` of its own loaded already.
runpy.run_path(str(GUARD / "sitecustomize.py"))
atexit.register(shutil.rmtree, AIRFLOW_HOME, ignore_errors=True)


def pytest_configure(config):
    """Tries a fifth of the examples of a property in the loop; an option for another profile counts."""
    if not _is_full(config) and settings.get_current_profile_name() == "llmbeam":
        settings.load_profile("llmbeam-loop")


def pytest_addoption(parser):
    """Adds the option for the second tier."""
    parser.addoption("--full", action="store_true", help="run the tests marked `full`, too")


def _is_full(config):
    """Whether the full tier runs: where it is asked for, and of a module that is named."""
    return config.option.full or any(".py" in argument for argument in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out the full tier, keeps a module on one worker, and scales timeouts by the machine's speed."""
    if not _is_full(config):
        full = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        marked = item.get_closest_marker("timeout")
        seconds = marked.args[0] if marked and marked.args else float(config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(scaled(seconds)), append=False)
    items.sort(key=_start_order)


def pytest_collection_finish():
    """Collects garbage again, without the objects imported so far; Beam remembers more."""
    runpy.run_path(str(GUARD / "beam_shortcuts.py"))
    gc.freeze()
    gc.set_threshold(10_000)  # with that of Python, 700, the collector takes 6 % of a small job
    gc.enable()


def shares_airflow(item):
    """Whether a test is of one of the two groups of modules that share a real Airflow."""
    return item.get_closest_marker("xdist_group").args[0].startswith("airflow-")


def _start_order(item):
    """Modules that share a real Airflow, then other slow modules, then the rest."""
    if shares_airflow(item):
        return 0
    return 1 if item.get_closest_marker("slow") else 2


def pytest_terminal_summary(terminalreporter):
    """Prints the time of each test module, the slowest first; those below a second are left out."""
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            seconds[getattr(report, "nodeid", "").partition("::")[0]] += getattr(report, "duration", 0.0)
    slow = [(module, spent) for module, spent in seconds.most_common() if spent >= 1]
    if slow:
        terminalreporter.section("seconds per module")
        for module, spent in slow:
            terminalreporter.write_line(f"{spent:8.1f} {module}")


@pytest.fixture
def sandbox():
    """An emulated cloud without quota or latency, with the bucket `rows`; every queued fault must be consumed."""
    from llmbeam_sandbox import Sandbox

    with Sandbox(buckets=("rows",)) as running:
        yield running
        running.faults.assert_all_consumed()


@pytest.fixture
def google(sandbox, monkeypatch):
    """Puts the sandbox in place of Google's hosts, for this process and those it starts; yields the proxy."""
    from llmbeam_sandbox import Proxy

    from tests.clouds import use_environment

    with Proxy(sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        yield proxy


@pytest.fixture
def credentials(tmp_path, monkeypatch):
    """Google credentials with a token that is never refreshed; with none Beam looks for some for 25 s."""
    from tests.clouds import forget_credentials

    file = tmp_path / "credentials.json"
    account = dict.fromkeys(("client_id", "client_secret", "refresh_token", "token"), "x")
    file.write_text(json.dumps(account | {"type": "authorized_user", "expiry": "2099-01-01T00:00:00Z"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    forget_credentials()
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "llmbeam-sandbox")


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of this session, with a password; yields the connection string of its superuser."""
    with postgres_server() as dsn:
        yield dsn


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
