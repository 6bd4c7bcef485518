"""A real LiteLLM proxy, which `scripts/build-litellm` installs, before the server of the sandbox."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from llmbeam_sandbox import Fault, ModelSettings, Sandbox
from waiting import until

from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.spec import JobSpec
from tests.line_log import LineLog
from tests.prism import is_built

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
KEY = "sk-planted-litellm-master-key"
#: Importing LiteLLM takes 30 s on two cores, and longer beside other tests.
START_SECONDS = 180


def litellm_program():
    """Returns the program; skips the test if there is none."""
    version = re.search(r"^version=(\S+)", (ROOT / "scripts/build-litellm").read_text(), re.MULTILINE)[1]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = home / f"llmbeam/litellm-{version}/litellm"
    if not is_built(program):
        pytest.skip(f"there is no LiteLLM at '{program}'; `scripts/build-litellm` installs it")
    return program


@pytest.fixture(scope="module")
def upstream():
    with Sandbox(models=ModelSettings(openai_api_key="sk-of-the-provider")) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(upstream, tmp_path_factory):
    """The address of the proxy, which reaches nothing but loopback."""
    program, folder = litellm_program(), tmp_path_factory.mktemp("litellm")
    parameters = {"model": "openai/gpt-4o-mini", "api_base": upstream.openai_url, "api_key": "sk-of-the-provider"}
    settings = {
        "model_list": [{"model_name": "team-model", "litellm_params": parameters}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"num_retries": 0},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    (folder / "config.yaml").write_text(json.dumps(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_PROXY": "127.0.0.1", **nowhere}
    command = [program, "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--telemetry", "False"],
            env=environment | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:

            def is_up():
                assert process.poll() is None, (folder / "log").read_text()
                try:
                    answer = httpx.get(f"http://127.0.0.1:{port}/health/liveliness", trust_env=False)
                except httpx.TransportError:
                    return False
                return answer.status_code == 200

            until(is_up, "LiteLLM", timeout_seconds=START_SECONDS, pause_seconds=0.3)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


@pytest.mark.parametrize("by", ["bearer", "header"])
def test_a_job_through_litellm_has_its_answers_and_the_id_of_a_failed_request(
    by, proxy, upstream, tmp_path, monkeypatch
):
    """With the key as bearer token, and in LiteLLM's own header beside the token of another gateway."""
    connection = {"conn_type": "llmbeam", "host": proxy, "password": KEY}
    if by == "header":
        extra = {"headers": {"x-litellm-api-key": KEY}, "query": {"api-version": "1"}}
        connection |= {"password": "of-another-gateway", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LITELLM", json.dumps(connection))
    assert LLMBeamHook("litellm").test_connection()[0] is True
    model, secrets = LLMBeamHook("litellm").complete_model({"type": "openai", "name": "team-model"})
    rows = ({"id": number, "text": f"row {number}"} for number in range(6))
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    spec = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": f"{tmp_path}/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": model,
            "limits": {"max_in_flight": 1, "max_dead_letter_ratio": 0.5},
            "sink": {"uri": f"{tmp_path}/out"},
            "state_uri": f"{tmp_path}/state",
        }
    )
    upstream.faults.queue("openai.chatCompletions", Fault(kind="error", http_status=400, message="no such thing"))
    log = LineLog()
    manifest = JobProcess(spec, secrets, log).run()["report"]
    upstream.faults.assert_all_consumed()
    assert manifest["rows"] == {"read": 6, "answered": 5, "dead_letter": 1, "skipped": 0}
    (dead_letter,) = (tmp_path / "out").glob("dead_letter-*")
    error = json.loads(dead_letter.read_text())["llmbeam_error"]
    assert (error["kind"], error["http_status"]) == ("bad_request", 400)
    assert re.fullmatch(r"[0-9a-f-]{36}", error["request_id"])
    assert {row["request_id"] for row in manifest["traced_rows"] if row["error"]} == {error["request_id"]}
    texts = [*log.lines, *(file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file())]
    assert not [text for text in texts if KEY in text or "of-another-gateway" in text]
