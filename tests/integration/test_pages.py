"""The pages of the plugin, in a real Airflow and a real Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from llmbeam_sandbox import Fault
from playwright.sync_api import BrowserContext, FrameLocator, Page, expect, sync_playwright
from waiting import scaled

from airflow_provider_llmbeam.spec.protocol.manifest import PAGE_KEY, encode_page
from tests.integration.cases import Cloud, Run
from tests.replying import Replying, raw

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("airflow-jobs"),
    pytest.mark.timeout(scaled(300)),
    pytest.mark.skipif(BROWSER is None, reason="There is no Chromium; scripts/install-chromium installs it."),
]
DAG_ID, TASK = "pages", "ask"
MEASURED, MEASURES = "measured_pages", ("estimate", "evaluate", "compare", "stream")
MODEL = "gemini.generateContent"
#: No connection but to the page: Chromium looks for updates and the like otherwise.
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
SCRIPT = "<script>window.hostile = 1</script><img src=x onerror='window.hostile = 1'>"
HOSTILE = f"{SCRIPT}</iframe>\u202etxet\x1b[31m"
RUNS = 50
ROWS, ANSWERED = 20, 5


@pytest.fixture(scope="module")
def browser(cloud) -> Iterator[BrowserContext]:
    """The browser of a person who is signed in; it reaches this Airflow alone, and keeps what it has loaded."""
    expect.set_options(timeout=scaled(30) * 1000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=[*OPTIONS])
        context = chromium.new_context(viewport={"width": 1400, "height": 1000})
        context.set_default_timeout(scaled(30) * 1000)
        page = context.new_page()
        page.goto(cloud.airflow.url)
        page.get_by_role("link", name="Dags").first.wait_for()  # Airflow 3.1 signs in, and leads home once more
        page.close()
        yield context
        chromium.close()


@pytest.fixture
def page(browser) -> Iterator[Page]:
    """A new page of the browser."""
    page = browser.new_page()
    yield page
    page.evaluate("localStorage.clear()")
    page.close()


@pytest.fixture
def paused(cloud) -> Iterator[None]:
    """No task of the Dags starts: the tests store what it would report."""
    for dag_id in (DAG_ID, MEASURED):
        cloud.airflow.pause(dag_id)
    yield
    cloud.airflow.pause(DAG_ID, is_paused=False)


class RowsRun(Run):
    """A run whose first row is hostile; the model answers some rows and waits."""

    def conf(self) -> dict[str, Any]:
        self.texts[0] = f"{self.case} {HOSTILE}"
        self.hold = self.cloud.sandbox.faults.hold(MODEL, f"{self.case} ", after=ANSWERED)
        return super().conf()


class FailingRun(Run):
    """A run whose rows the model refuses."""

    def conf(self) -> dict[str, Any]:
        refusal = Fault(kind="error", http_status=400, message="refused")
        self.cloud.sandbox.faults.when(MODEL, f"{self.case} ", refusal)
        return super().conf()


def open_page(page: Page, cloud: Cloud, *path: str, dag_id: str = DAG_ID) -> None:
    page.goto("/".join((cloud.airflow.url, "dags", dag_id, *path)))


def inference(page: Page) -> Any:
    return page.get_by_test_id("llmbeam-inference")


def background(report: FrameLocator) -> str:
    return report.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")


def is_hostile(page: Page) -> bool:
    """Whether a script of a model has run in the page or in a frame of it."""
    return any(frame.evaluate("window.hostile") is not None for frame in page.frames)


def test_a_running_task_shows_its_progress_and_then_its_report(page, cloud, model_connection):
    run = RowsRun(cloud, DAG_ID, ROWS)
    run.until(lambda: run.hold.waiting, "the model waits")
    run.until_logged(TASK, f"rows {ANSWERED}/{ROWS}")
    open_page(page, cloud, "runs", run.run_id, "tasks", TASK, "plugin", "inference")
    expect(inference(page).get_by_role("progressbar")).to_have_attribute("value", str(ANSWERED))
    expect(inference(page)).to_contain_text(f"rows {ANSWERED}/{ROWS}")
    run.hold.release()
    run.until_task(TASK, "success")
    report = page.frame_locator("iframe[title=Report]")
    expect(report.locator("body")).to_contain_text(f"of {ROWS} rows")
    expect(report.locator("body")).to_contain_text("5 answers at random")
    assert not is_hostile(page)
    light = background(report)
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    expect(report.locator("body")).to_contain_text(f"of {ROWS} rows")
    assert background(report) != light
    open_page(page, cloud, "runs", run.run_id, "plugin", "inference-run")
    expect(page.frame_locator("iframe[title=Report]").locator("body")).to_contain_text(f"of {ROWS} rows")


def test_a_task_that_has_ended_shows_how_far_it_came_and_no_time_left(page, cloud, model_connection):
    run = RowsRun(cloud, DAG_ID, ROWS)
    run.until(lambda: run.hold.waiting, "the model waits")
    run.until_logged(TASK, "ETA ")
    open_page(page, cloud, "runs", run.run_id, "tasks", TASK, "plugin", "inference")
    expect(inference(page)).to_contain_text("ETA")
    cloud.airflow.set_task_state(DAG_ID, run.run_id, TASK, "failed")
    page.reload()
    expect(inference(page)).to_contain_text(f"rows {ANSWERED}/{ROWS}")
    expect(inference(page)).not_to_contain_text("ETA")
    run.hold.release()


def test_nothing_that_a_model_said_runs_as_a_script(page, cloud, paused):
    run = Run(cloud, DAG_ID)
    html = f"<p>a report with {SCRIPT}</p><p id=end>its end</p>"
    cloud.airflow.add_xcom(DAG_ID, run.run_id, TASK, PAGE_KEY, encode_page(html, "report.html"))
    manifest = {"rows": {"read": 1, "answered": 1, "dead_letter": 0}, "model": HOSTILE, "cost_usd": 1.0}
    cloud.airflow.add_xcom(DAG_ID, run.run_id, TASK, "return_value", manifest)
    open_page(page, cloud, "runs", run.run_id, "tasks", TASK, "plugin", "inference")
    expect(page.frame_locator("iframe[title=Report]").locator("#end")).to_have_text("its end")
    assert not is_hostile(page)
    open_page(page, cloud, "plugin", "inference-history")
    row = page.get_by_test_id("llmbeam-history").get_by_role("row", name=re.compile(re.escape(run.run_id)))
    expect(row).to_contain_text("<script>window.hostile = 1</script>")
    assert not is_hostile(page)


def test_a_report_that_somebody_else_stored_loads_nothing_and_leads_to_no_other_page(page, cloud, paused):
    run = Run(cloud, DAG_ID)
    with Replying(lambda _: raw("<p>another page</p>", Content_Type="text/html")) as remote:
        loaded = f"<style>@import '{remote.url}/a.css'</style><img src='{remote.url}/a.png'>"
        html = f"{loaded}<a href='{remote.url}'>next</a>"
        cloud.airflow.add_xcom(DAG_ID, run.run_id, TASK, PAGE_KEY, encode_page(html, "report.html"))
        open_page(page, cloud, "runs", run.run_id, "tasks", TASK, "plugin", "inference")
        report = page.frame_locator("iframe[title=Report]")
        expect(report.get_by_role("link")).to_have_text("next")
        assert remote.received == []
        report.get_by_role("link").click()
        expect(report.locator("a")).to_have_count(0)
        assert "another page" not in [frame.content() for frame in page.frames][-1]


def test_tasks_that_measure_or_stream_have_a_page_and_the_run_has_all_of_them(page, cloud, paused):
    run = Run(cloud, MEASURED)
    for task in MEASURES:
        html = f"<p id=end>what {task} has found</p>"
        cloud.airflow.add_xcom(MEASURED, run.run_id, task, PAGE_KEY, encode_page(html, f"{task}.txt"))
    for task in MEASURES:
        open_page(page, cloud, "runs", run.run_id, "tasks", task, "plugin", "inference", dag_id=MEASURED)
        report = page.frame_locator("iframe[title=Report]")
        expect(report.locator("#end")).to_have_text(f"what {task} has found")
    open_page(page, cloud, "runs", run.run_id, "plugin", "inference-run", dag_id=MEASURED)
    for number, task in enumerate(MEASURES, 1):
        inference(page).locator("summary", has_text=re.compile(f"^{task}: ")).press("Enter")
        expect(inference(page).locator("iframe[title=Report]")).to_have_count(number)


def test_the_run_has_the_hours_and_the_cost_of_its_endpoint(page, cloud, paused):
    run = Run(cloud, MEASURED)
    for key, value in (("gpu_hours", 1.504), ("gpu_usd", 2.5)):
        cloud.airflow.add_xcom(MEASURED, run.run_id, "teardown", key, value)
    open_page(page, cloud, "runs", run.run_id, "tasks", "teardown", "plugin", "inference", dag_id=MEASURED)
    expect(inference(page)).to_have_text("The endpoint was removed 1.50 hours after its start: $2.50.")
    open_page(page, cloud, "runs", run.run_id, "plugin", "inference-run", dag_id=MEASURED)
    inference(page).locator("summary", has_text=re.compile("^teardown: ")).press("Enter")
    expect(inference(page)).to_contain_text("1.50 hours after its start: $2.50.")


def manifest_of(number: int, **changes: Any) -> dict[str, Any]:
    rows = {"read": 1_000, "answered": 1_000 - number, "dead_letter": number}
    tokens = {"input": 5_000, "output": 700}
    fields = {"rows": rows, "cost_usd": 1 + number / 10, "tokens": tokens, "duration_seconds": 40 * (number + 1)}
    return {**fields, "model": "gemini:gemini-2.5-flash", "dead_letter_uri": "gs://d", **changes}


def test_the_history_of_a_dag_has_its_last_runs_and_their_sum(page, cloud, paused):
    for number in range(RUNS):
        run = Run(cloud, DAG_ID)
        cloud.airflow.add_xcom(DAG_ID, run.run_id, TASK, "return_value", manifest_of(number))
    cloud.airflow.set_run_state(DAG_ID, run.run_id, "failed")
    open_page(page, cloud, "plugin", "inference-history")
    history = page.get_by_test_id("llmbeam-history")
    expect(history.locator("tbody tr")).to_have_count(RUNS)
    last = history.locator("tbody tr").first
    cells = [run.run_id, "failed", "$5.90", "951", "49", "5,700", "33 min 20 s", "gemini-2.5-flash"]
    assert last.locator("td").all_text_contents()[: len(cells)] == cells
    assert last.locator("td").nth(1).evaluate("cell => getComputedStyle(cell).whiteSpace") == "nowrap"
    total = "$172.50 · 48,775 rows answered · 1,225 failed · 285,000 tokens · 14 h 10 min"
    expect(page.get_by_test_id("llmbeam-sum")).to_have_text(f"Sum of 50 runs, 1 of them failed: {total}")
    cost = history.locator("svg[aria-label=Cost] rect")
    expect(cost).to_have_count(RUNS)
    assert cost.last.locator("title").text_content() == f"{run.run_id}: $5.90"
    history.get_by_role("link", name=run.run_id).click()
    expect(inference(page)).to_be_visible()


def test_the_history_says_why_a_run_failed(page, cloud, model_connection):
    run = Run(cloud, DAG_ID)  # there is no file with rows
    run.until_task(TASK, "failed")
    run.until(lambda: run.state == "failed", "the run has ended")
    open_page(page, cloud, "plugin", "inference-history")
    row = page.get_by_test_id("llmbeam-history").get_by_role("row", name=re.compile(re.escape(run.run_id)))
    expect(row).to_contain_text("ask failed: `source.uri`")
    expect(row).to_contain_text("Nothing was sent or billed")


def test_rows_that_were_sent_again_count_once_and_there_is_no_chart_of_zeros(page, cloud, paused):
    run = Run(cloud, MEASURED)
    whole = {"read": 1_000, "answered": 990, "dead_letter": 10}
    sent = {"read": 40, "answered": 30, "dead_letter": 10}
    reports = {TASK: manifest_of(40, cost_usd=0), "again": manifest_of(10, rows=sent, all_rows=whole, cost_usd=0)}
    for task, manifest in reports.items():
        cloud.airflow.add_xcom(MEASURED, run.run_id, task, "return_value", manifest)
    open_page(page, cloud, "plugin", "inference-history", dag_id=MEASURED)
    history = page.get_by_test_id("llmbeam-history")
    expect(history.locator("tbody td").nth(3)).to_have_text("990")
    expect(history.locator("tbody td").nth(4)).to_have_text("10")
    expect(history.locator("svg[aria-label='Rows failed']")).to_be_visible()
    expect(history.locator("svg[aria-label=Cost]")).to_have_count(0)


def test_the_history_of_a_backfill_has_its_runs_alone_and_their_sum(page, cloud, paused):
    other = Run(cloud, MEASURED)
    cloud.airflow.add_xcom(MEASURED, other.run_id, TASK, "return_value", manifest_of(0))
    days = ("--from-date=2026-03-01", "--to-date=2026-03-03")
    cloud.airflow.command("backfill", "create", f"--dag-id={MEASURED}", *days)
    ids = [name for name in cloud.airflow.runs(MEASURED) if name.startswith("backfill__")]
    assert len(ids) == 3
    for run_id in ids:
        cloud.airflow.add_xcom(MEASURED, run_id, TASK, "return_value", manifest_of(1))
    open_page(page, cloud, "plugin", "inference-history", dag_id=MEASURED)
    page.get_by_label("Runs", exact=True).select_option("Backfill 2026-03-01 to 2026-03-03")
    total = "Sum of 3 runs: $3.30 · 2,997 rows answered · 3 failed · 17,100 tokens · 4 min 00 s"
    expect(page.get_by_test_id("llmbeam-sum")).to_have_text(total)


def test_a_task_whose_rows_failed_shows_the_report_of_the_failed_rows(page, cloud, model_connection):
    run = FailingRun(cloud, DAG_ID, ROWS)
    run.until_task(TASK, "failed")
    open_page(page, cloud, "runs", run.run_id, "tasks", TASK, "plugin", "inference")
    report = page.frame_locator("iframe[title=Report]").locator("body")
    expect(report).to_contain_text("Failed, and published no answers")
    expect(report).to_contain_text("refused")


def test_a_task_that_failed_without_a_report_shows_its_error(page, cloud, model_connection):
    run = Run(cloud, DAG_ID)  # there is no file with rows
    run.until_task(TASK, "failed")
    open_page(page, cloud, "runs", run.run_id, "tasks", TASK, "plugin", "inference")
    expect(inference(page).get_by_role("alert")).to_contain_text("Nothing was sent or billed")


def test_a_task_of_another_operator_and_one_without_a_report_say_so(page, cloud, paused):
    run = Run(cloud, DAG_ID)
    open_page(page, cloud, "runs", run.run_id, "tasks", "before", "plugin", "inference")
    expect(inference(page)).to_have_text("This task runs no inference.")
    open_page(page, cloud, "runs", run.run_id, "tasks", TASK, "plugin", "inference")
    expect(inference(page)).to_have_text("The job has not reported progress yet.")
    cloud.airflow.set_task_state(DAG_ID, run.run_id, TASK, "failed")
    page.reload()
    expect(inference(page)).to_have_text("This task has no report: it ended before its job did. Its log says why.")
