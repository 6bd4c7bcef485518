from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

ROOT = Path(__file__).resolve().parents[2]


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
def run_dag(airflow_database, dag_bags):
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


@pytest.fixture(scope="module")
def metadata_database(postgres):
    """Variables that put Airflow on PostgreSQL: on SQLite a command fails while the scheduler writes."""
    name = f"airflow_{secrets.token_hex(4)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    address = postgres.replace("postgresql://", "postgresql+psycopg://").replace("/postgres", f"/{name}")
    yield {f"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN{suffix}": address for suffix in ("", "_ASYNC")}
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
