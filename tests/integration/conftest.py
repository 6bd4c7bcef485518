from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from llmbeam_sandbox import DataflowSettings, EndpointSettings, Proxy, Sandbox
from local_airflow import LocalAirflow, local_airflow
from psycopg import sql

from tests.integration.cases import COMPONENTS, PROBE_SECONDS, Cloud
from tests.plugin import shares_airflow

ROOT = Path(__file__).resolve().parents[2]
CONNECTION_KEY = "planted-key-of-the-shared-connection"
SHARED_AIRFLOW = pytest.StashKey[ExitStack]()


def pytest_configure(config):
    """Declares the mark that keeps the modules that share an Airflow on one worker of pytest-xdist.

    There are two such groups, of equal length, each with an Airflow: one took longer than all other tests.
    """
    config.addinivalue_line("markers", "xdist_group(name): run the tests of a group on one worker")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Ends the shared Airflow after the last test that has it: it keeps a fourth of a core busy."""
    if nextitem is None or not shares_airflow(nextitem):
        item.session.stash.get(SHARED_AIRFLOW, ExitStack()).close()


@pytest.fixture(scope="session")
def airflow_database():
    """The metadata database of this test session."""
    from airflow.utils import db

    db.initdb()


@pytest.fixture(scope="session")
def dag_bags():
    """The module of Airflow that has `DagBag` and `sync_bag_to_db`."""
    try:
        from airflow.dag_processing import dagbag
    except ImportError:  # Airflow 3.1
        from airflow.models import dagbag
    return dagbag


@pytest.fixture
def error_in_context(monkeypatch):
    """Callbacks of failed tasks get the error, as in a worker; `dag.test` leaves it out before Airflow 3.3."""
    from airflow.sdk.execution_time import task_runner

    def finalize(ti, state, context, log, error):
        context["exception"] = error
        finalize_task(ti, state, context, log, error)

    finalize_task = task_runner.finalize
    monkeypatch.setattr(task_runner, "finalize", finalize)


@pytest.fixture
def run_dag(airflow_database, dag_bags, error_in_context):
    """Runs a Dag in this process, without a logical date; returns the run and the state of each task."""

    def run(dag, **kwargs):
        # dag.test() needs the Dag serialised in the database first.
        from airflow.dag_processing.bundles.manager import DagBundlesManager

        DagBundlesManager().sync_bundles_to_db()
        bag = dag_bags.DagBag(os.devnull, bundle_path=Path(os.environ["AIRFLOW_HOME"], "dags"))
        bag.bag_dag(dag)
        dag_bags.sync_bag_to_db(bag, "dags-folder", None)
        dag_run = dag.test(**kwargs)
        return dag_run, {task.task_id: str(task.state) for task in dag_run.get_task_instances()}

    return run


@pytest.fixture
def connection(monkeypatch, sandbox):
    """The connection `llmbeam_default`, to the sandbox."""
    value = {"conn_type": "llmbeam", "host": sandbox.gemini_url, "password": "k"}
    monkeypatch.delenv("GOOGLE_API_KEY")
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps(value))
    return value


@contextmanager
def new_database(postgres: str) -> Iterator[dict[str, str]]:
    """Returns variables that put Airflow on PostgreSQL: on SQLite a command fails while the scheduler writes."""
    name = f"airflow_{secrets.token_hex(4)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    address = postgres.replace("postgresql://", "postgresql+psycopg://").replace("/postgres", f"/{name}")
    yield {f"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN{suffix}": address for suffix in ("", "_ASYNC")}
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def metadata_database(postgres):
    """The metadata database of the shared Airflow, as variables."""
    with new_database(postgres) as variables:
        yield variables


@pytest.fixture(scope="session")
def shared_sandbox():
    """The emulated cloud of the shared Airflow; reset by each module through `cloud`."""
    buckets = ("rows", "laptop", "deferred")
    dataflow = DataflowSettings(start_seconds=1, workers=2)
    endpoints = EndpointSettings(operation_seconds=1, warm_seconds=1)
    with Sandbox(buckets=buckets, dataflow=dataflow, endpoints=endpoints) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def shared_proxy(shared_sandbox):
    """Puts the shared sandbox in place of Google's hosts for the shared Airflow."""
    with Proxy(shared_sandbox) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory):
    """The folder that `dags/*.py` read and write on the shared Airflow, as `LLMBEAM_DATA`."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def start_airflow(tmp_path_factory, shared_proxy, shared_data):
    """Returns a context manager that runs an Airflow with the Dag files of `dags/` and of the tests.

    Its arguments are the variables of its metadata database, a pattern of the names of its Dag files, and other
    variables.
    """

    @contextmanager
    def start(database: dict[str, str], files: str = "*.py", **others: str) -> Iterator[LocalAirflow]:
        folder = tmp_path_factory.mktemp("dags")
        for path in (*(ROOT / "dags").glob(files), *(ROOT / "tests" / "integration" / "dags").glob(files)):
            shutil.copy(path, folder)
        home = tmp_path_factory.mktemp("airflow")
        (home / "config").mkdir()
        shutil.copy(ROOT / "tests" / "integration" / "airflow_local_settings.py", home / "config")
        environment = {
            **shared_proxy.environment(),
            **database,
            "LLMBEAM_DATA": str(shared_data),
            "LLMBEAM_PROJECT": shared_proxy.project,
            "AIRFLOW__CORE__PARALLELISM": "12",
            "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "1",
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
            # The Dag files do not change, and listing and parsing them again would keep the cores busy.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "86400",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "86400",
            **others,
        }
        with local_airflow(home, folder, environment) as airflow:
            yield airflow
            airflow.kill()  # its own end takes 25 s

    return start


@pytest.fixture(scope="session")
def shared_airflow(start_airflow, metadata_database, request):
    """One Airflow for all modules of a group."""
    with ExitStack() as stack:
        request.session.stash[SHARED_AIRFLOW] = stack
        yield stack.enter_context(start_airflow(metadata_database))


@pytest.fixture(scope="module")
def cloud(shared_sandbox, shared_airflow, metadata_database):
    """The shared Airflow and its sandbox, without what earlier modules left there."""
    shared_sandbox.reset()
    database = metadata_database["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg", "")
    with closing(Cloud(shared_sandbox, shared_airflow, database)) as cloud:
        for name in COMPONENTS:
            cloud.revive(name, PROBE_SECONDS)  # a case of an earlier module may have ended it
        yield cloud
    shared_sandbox.faults.assert_all_consumed()


@pytest.fixture(scope="module")
def model_connection(cloud):
    """The connection `llmbeam_default` of the shared Airflow, to its sandbox."""
    name, fields = "llmbeam_default", {"host": cloud.sandbox.gemini_url, "password": CONNECTION_KEY}
    cloud.airflow.add_connection(name, conn_type="llmbeam", **fields)
    yield
    cloud.airflow.delete_connection(name)


@pytest.fixture
def quick_polls(monkeypatch):
    """Polls a job on Dataflow or Flink twice a second; the shortest interval of a spec is 10 s on Dataflow."""
    from airflow_provider_llmbeam.jobs.state_machine import JobStateMachine
    from airflow_provider_llmbeam.triggers import job

    def machine(interval, budget_usd, *, service):
        return JobStateMachine(0.5, budget_usd, service=service)

    monkeypatch.setattr(job.JobTrigger, "first_poll_delay_seconds", 0.5)
    monkeypatch.setattr(job, "JobStateMachine", machine)


@pytest.fixture
def quick_endpoints(monkeypatch):
    """Shortens the delays between polls of an endpoint, of its provisioning and of its removal."""
    from airflow_provider_llmbeam.endpoints import teardown
    from airflow_provider_llmbeam.triggers.base import PollingTrigger

    monkeypatch.setattr(PollingTrigger, "first_poll_delay_seconds", 0.1)
    monkeypatch.setattr(teardown, "ROUND_SECONDS", 0.1)
