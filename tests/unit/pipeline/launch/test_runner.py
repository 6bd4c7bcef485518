from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.launch.runner import EXPERIMENTS, runner_of, workers_are_elsewhere
from airflow_provider_llmbeam.spec.identity import dataflow_name
from airflow_provider_llmbeam.spec.job import JobSpec

JOB = JobSpec.parse(
    {
        "name": "n",
        "source": {"uri": "gs://b/rows.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.t }}"},
        "model": {"type": "echo"},
        "sink": {"uri": "gs://b/out"},
    }
)


def on_dataflow(**runner: Any) -> JobSpec:
    given = {"type": "dataflow", "project": "proj-1", "location": "europe-west1", **runner}
    return JobSpec.parse({**JOB.model_dump(), "runner": given})


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--runner=DirectRunner"],
        ["--runner", "FnApiRunner"],
        ["--runner=directrunner"],
        ["--runner=direct"],
        ["--runner=apache_beam.runners.direct.DirectRunner"],
    ],
    ids=str,
)
def test_a_local_job_never_downloads_a_runner(options: list[str]) -> None:
    """Beam replaces each of these names with a default, which may be a binary from the network."""
    runner, _ = runner_of(JOB, options)
    assert isinstance(runner, FnApiRunner)


@pytest.mark.parametrize("name", ["DataflowRunner", "FlinkRunner", "PrismRunner"])
def test_another_runner_is_left_to_the_options(name: str) -> None:
    runner, options = runner_of(JOB, [f"--runner={name}"])
    assert runner is None
    assert options.view_as(StandardOptions).runner == name


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], False),
        (["--runner=DirectRunner", "--direct_running_mode=multi_threading"], False),
        (["--direct_running_mode=multi_processing"], True),
        (["--runner=PrismRunner"], True),
        (["--runner=FlinkRunner"], True),
    ],
    ids=str,
)
def test_workers_of_all_but_a_local_runner_may_be_other_processes(options: list[str], expected: bool) -> None:
    assert workers_are_elsewhere(JOB, *runner_of(JOB, options)) is expected


def test_the_counters_of_dataflow_are_read_by_whoever_waits_for_the_job() -> None:
    spec = on_dataflow()
    assert not workers_are_elsewhere(spec, *runner_of(spec, []))


def test_every_other_option_is_passed_on() -> None:
    _, options = runner_of(JOB, ["--temp_location=gs://b/tmp"])
    assert isinstance(options, PipelineOptions)
    assert options.get_all_options()["temp_location"] == "gs://b/tmp"


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--dry"], "`--dry`"), (["--deffer", "--rows=3"], "`--deffer`, `--rows`"), (["--key", "17"], "`--key`")],
    ids=str,
)
def test_an_option_that_beam_would_ignore_is_refused_before_a_local_job_sends_its_rows(
    options: list[str], named: str
) -> None:
    with pytest.raises(JobSpecError) as refused:
        runner_of(JOB, options)
    assert str(refused.value).startswith(f"{named}: neither this command nor Beam has this option.")


def test_a_runner_elsewhere_may_have_options_that_beam_does_not_know() -> None:
    _, options = runner_of(JOB, ["--runner=FlinkRunner", "--object_reuse=true"])
    assert options.get_all_options(retain_unknown_options=True)["object_reuse"] == "true"


def test_options_of_the_process_are_not_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--runner=DataflowRunner"])
    runner, _ = runner_of(JOB, [])
    assert isinstance(runner, FnApiRunner)


def test_the_spec_of_dataflow_becomes_options_of_beam() -> None:
    spec = on_dataflow(
        machine_type="n2-standard-2",
        num_workers=2,
        max_workers=7,
        service_account="workers@proj-1.iam.gserviceaccount.com",
        subnetwork="regions/europe-west1/subnetworks/private",
        use_public_ips=False,
        labels={"team": "search"},
        flexrs="cost_optimized",
        max_runtime_seconds=7200,
        options={"disk_size_gb": 50, "experiments": ["one", "two"], "enable_hot_key_logging": False},
    )
    runner, options = runner_of(spec, [], Path("/p/worker.whl"))
    cloud, workers = options.view_as(GoogleCloudOptions), options.view_as(WorkerOptions)
    assert runner is None
    assert options.view_as(StandardOptions).runner == "DataflowRunner"
    assert (cloud.project, cloud.region, cloud.job_name) == ("proj-1", "europe-west1", dataflow_name(spec))
    assert cloud.temp_location == "gs://b/out/.llmbeam/n/dataflow/"
    assert cloud.staging_location == "gs://b/out/.llmbeam/n/dataflow/staging"
    assert cloud.service_account_email == "workers@proj-1.iam.gserviceaccount.com"
    assert cloud.flexrs_goal == "COST_OPTIMIZED"
    assert cloud.dataflow_service_options == ["max_workflow_runtime_walltime_seconds=7200"]
    assert {label.partition("=")[0] for label in cloud.labels} == {"team", "llmbeam-job", "llmbeam-spec"}
    assert (workers.machine_type, workers.num_workers, workers.max_num_workers) == ("n2-standard-2", 2, 7)
    assert workers.subnetwork == "regions/europe-west1/subnetworks/private"
    assert workers.use_public_ips is False
    assert workers.disk_size_gb == 50
    assert options.view_as(DebugOptions).experiments == [*EXPERIMENTS, "one", "two"]
    assert options.view_as(SetupOptions).extra_packages == ["/p/worker.whl"]


def test_dataflow_needs_a_project() -> None:
    with pytest.raises(JobSpecError, match=r"`runner.project`: this field is needed"):
        runner_of(on_dataflow(project=None), [])


def test_the_command_line_takes_precedence() -> None:
    _, options = runner_of(on_dataflow(machine_type="n2-standard-2"), ["--machine_type=e2-small"])
    assert options.view_as(WorkerOptions).machine_type == "e2-small"
