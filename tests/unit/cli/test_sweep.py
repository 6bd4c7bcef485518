from __future__ import annotations

import json

from click.testing import CliRunner

from airflow_provider_llmbeam.cli.main import llmbeam
from airflow_provider_llmbeam.operators import sweep as module
from airflow_provider_llmbeam.sweepers.sweeper import SweepManifest


def test_the_standard_output_is_the_manifest_alone_whatever_airflow_logs(monkeypatch):
    def swept(*args, **kwargs):
        print("2026-11-26T12:47:10Z [warning  ] Connection schemes shall not contain '_'")
        return SweepManifest()

    monkeypatch.setattr(module, "swept", swept)
    ended = CliRunner().invoke(llmbeam, ["sweep", "--location", "us-central1"])
    assert ended.exit_code == 0
    assert json.loads(ended.stdout) == SweepManifest().plain()
    assert "Connection schemes" in ended.stderr
