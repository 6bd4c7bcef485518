from __future__ import annotations

import sys

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from airflow_provider_llmbeam.pipeline.runner import pinned_runner


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
    """Beam takes each of these names for its own default, which may be a binary from the network."""
    runner, _ = pinned_runner(options)
    assert isinstance(runner, FnApiRunner)


@pytest.mark.parametrize("name", ["DataflowRunner", "FlinkRunner", "PrismRunner"])
def test_another_runner_is_left_to_the_options(name: str) -> None:
    runner, options = pinned_runner([f"--runner={name}"])
    assert runner is None
    assert options.view_as(StandardOptions).runner == name


def test_every_other_option_is_passed_on() -> None:
    _, options = pinned_runner(["--temp_location=gs://b/tmp"])
    assert isinstance(options, PipelineOptions)
    assert options.get_all_options()["temp_location"] == "gs://b/tmp"


def test_options_of_the_process_are_not_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--runner=DataflowRunner"])
    runner, _ = pinned_runner([])
    assert isinstance(runner, FnApiRunner)
