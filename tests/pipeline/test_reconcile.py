"""`llmbeam reconcile`: the report of a real job beside a Cloud Billing export in the sandbox's BigQuery."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from google.cloud import bigquery
from llmbeam_sandbox import Proxy, Sandbox, TokenPrice
from llmbeam_sandbox.billing.export import SCHEMA, export_rows

from airflow_provider_llmbeam.cli import llmbeam
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from tests.clouds import for_one_test

# Beam closes none of its clients of Cloud Storage.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STATE = "gs://state/night"
LABELS = {"llmbeam-dag": "shop", "llmbeam-task": "moods"}
TODAY = datetime.now(UTC)  # when the tests are collected: the day may end meanwhile
TIME = (f"--since={TODAY - timedelta(days=1):%Y-%m-%d}", f"--until={TODAY + timedelta(days=2):%Y-%m-%d}")


@pytest.fixture(scope="module")
def served():
    with Sandbox(buckets=("state",)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served, monkeypatch):
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def project(served, sandbox, tmp_path):
    """The project that is billed for a job of forty rows."""
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"id": n, "text": f"t {n}"}) + "\n" for n in range(40))
    )
    model = {"type": "gemini", "project": served[1].project, "base_url": sandbox.gemini_url, "labels": LABELS}
    spec = {
        "name": "moods",
        "source": {"uri": f"{tmp_path}/rows.jsonl", "key": ["id"]},
        "prompt": {"template": "Good? {{ row.text }} " + "and a long text " * 40},
        "model": model,
        "sink": {"uri": f"{STATE}/out"},
    }
    run(JobSpec.parse(spec))
    return served[1].project


@pytest.fixture
def reconcile(sandbox, project):
    """Loads an export of the sandbox's bill, with further rows, and compares the reports with it."""
    table = f"{project}.billing.gcp_billing_export_v1_0123AB_4567CD_89EF01"

    def compare(*options, price=None, others=()):
        asked = {"project": project, "hour": datetime.now(UTC).replace(minute=0, second=0, microsecond=0)}
        asked |= {"currency": "PLN", "conversion_rate": 3.6}
        charges = sandbox.token_bill.charges
        rows = [
            row for charge in charges for row in export_rows(charge, price or TokenPrice(), labels=LABELS, **asked)
        ]
        rows += [row for labels in others for row in export_rows(charges[0], TokenPrice(), labels=labels, **asked)]
        with bigquery.Client(project) as client:
            client.create_dataset("billing", exists_ok=True)
            schema = [bigquery.SchemaField.from_api_repr(field) for field in SCHEMA]
            config = bigquery.LoadJobConfig(schema=schema, write_disposition="WRITE_TRUNCATE")
            client.load_table_from_json(rows, table, job_config=config).result()
        return CliRunner().invoke(llmbeam, ["reconcile", STATE, "--export", table, *TIME, *options])

    return compare


def test_a_bill_in_another_currency_that_agrees_with_the_report_exits_with_0(reconcile):
    ended = reconcile("--json")
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    (line,) = found["lines"]
    assert (line["labels"], line["runs"], line["differences"]) == (LABELS, ["moods"], [])
    assert line["billed_usd"] == pytest.approx(line["reported_usd"], rel=1e-3)
    assert line["billed_usd"] > 0


def test_a_dearer_model_and_calls_of_another_team_exit_with_1_and_are_named(reconcile):
    ended = reconcile(price=TokenPrice(input_usd=0.6), others=[{"team": "search"}])
    assert ended.exit_code == 1, ended.output
    assert "price-change" in ended.output
    assert (
        "$0.60 a million input tokens of gemini-3.5-flash-lite, standard; counted $0.30 (+100.0%)" in ended.output
    )
    assert "team=search" in ended.output
    assert "other-calls" in ended.output
    assert reconcile("--ignore", "other-calls", others=[{}]).exit_code == 0
    assert reconcile("--max-difference", "300%", price=TokenPrice(input_usd=0.6)).exit_code == 0


def test_what_cannot_be_compared_exits_with_2(reconcile, project):
    def ends(*command):
        ended = CliRunner().invoke(llmbeam, ["reconcile", *command])
        return ended.exit_code, ended.stderr

    missing = f"{project}.billing.no_table"
    assert ends(STATE, "--export", missing, *TIME)[0] == 2
    code, message = ends(STATE, "--export", missing, "--since", "2020-01-01")
    assert code == 2
    assert "None of the 1 reports below 'gs://state/night' is of a run from 2020-01-01" in message
    assert "must be a table, `project.dataset.table`" in ends(STATE, "--export", "x`; DROP TABLE y", *TIME)[1]
    assert ends(STATE, "--export", missing, "--max-difference", "2")[0] == 2
    assert "expected of other-calls" in ends(STATE, "--export", missing, "--ignore", "noise")[1]


@pytest.mark.parametrize(
    ("tokens_per_second", "tiers"), [(10, {"provisioned", "standard"}), (10_000, {"provisioned"})]
)
def test_prepaid_tokens_are_on_no_bill_and_no_difference(sandbox, request, tokens_per_second, tiers):
    sandbox.monitoring.provision("gemini-3.5-flash-lite", tokens_per_second=tokens_per_second)
    reconcile = request.getfixturevalue("reconcile")
    assert {charge.tier for charge in sandbox.token_bill.charges} == tiers
    ended = reconcile("--json")
    assert ended.exit_code == 0, ended.output
    (line,) = json.loads(ended.stdout)["lines"]
    assert line["differences"] == []
    assert (line["reported_usd"] > 0) == ("standard" in tiers)
