"""What every test stands on: no address but loopback, and an Airflow home of its own."""

from __future__ import annotations

import atexit
import os
import runpy
import shutil
import tempfile
from pathlib import Path

import pytest

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

# By its path: the interpreter may have a `sitecustomize` of its own loaded already.
runpy.run_path(str(GUARD / "sitecustomize.py"))
atexit.register(shutil.rmtree, AIRFLOW_HOME, ignore_errors=True)


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

    with Proxy(sandbox) as proxy:
        for name, value in proxy.environment().items():
            monkeypatch.setenv(name, value)
        yield proxy
