"""A real LiteLLM proxy, which `scripts/build-litellm` installs, before the server of the sandbox."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from llmbeam_sandbox import Fault, ModelSettings, Sandbox
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from waiting import until

from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.pipeline.batch_inference import decide
from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.providers.batch import open_provider
from airflow_provider_llmbeam.providers.openai.batch import OpenAIBatches
from airflow_provider_llmbeam.spec import JobSpec, OpenAIModel
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
    # A server with batches, in front of GPUs: LiteLLM passes files and batches on to it.
    own = parameters | {"model": "hosted_vllm/gpt-4o-mini"}
    settings = {
        "model_list": [
            {"model_name": "team-model", "litellm_params": parameters},
            {"model_name": "own-model", "litellm_params": own},
        ],
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


class Killed(BaseException):
    """The end of a process, which no part of it handles."""


ROWS = 40


@pytest.fixture
def batch_job(proxy, upstream, tmp_path, monkeypatch):
    """A job whose batches LiteLLM passes on, by the model that a header names."""
    upstream.reset()
    monkeypatch.setattr(decide, "MIN_POLL_SECONDS", 0.2)
    monkeypatch.setenv("LITELLM_KEY", KEY)
    monkeypatch.setenv("LITELLM_MODEL", "own-model")
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id": {n}, "text": "row {n}"}}\n' for n in range(ROWS)))
    return {
        "name": "job",
        "source": {"uri": f"{tmp_path}/in.jsonl", "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {
            "type": "openai",
            "name": "own-model",
            "base_url": proxy,
            "api_key_env": "LITELLM_KEY",
            "headers": {"x-litellm-model": "LITELLM_MODEL"},
        },
        "inference": "batch",
        "sink": {"uri": f"{tmp_path}/out"},
    }


@pytest.mark.parametrize("moment", ["none", "created", "polled"])
def test_a_batch_through_litellm_answers_each_row_once_also_after_a_kill(batch_job, upstream, monkeypatch, moment):
    upstream.batches.settings = BatchSettings(run_seconds=0.5)
    if moment != "none":
        name = {"created": "submit", "polled": "get"}[moment]
        call = getattr(OpenAIBatches, name)

        def killed(*args, **options):
            call(*args, **options)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(OpenAIBatches, name, killed)
            with pytest.raises(Killed):
                run(JobSpec.parse(batch_job))
    manifest = run(JobSpec.parse(batch_job))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    answers = {charge.tier: charge.answers for charge in upstream.token_bill.charges}
    assert answers == {"batch": ROWS - PILOT_ROWS, "standard": PILOT_ROWS}
    assert sum(request.method == "openai.batches.create" for request in upstream.requests) == 1


def test_what_is_left_at_a_server_behind_litellm_is_found_cancelled_and_deleted(batch_job, upstream):
    upstream.batches.settings = BatchSettings(outcome="stuck")
    provider = open_provider(OpenAIModel.model_validate(batch_job["model"]), output_uri="")
    assert provider.probe() == ()
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-4o-mini"}}
    content = json.dumps(line).encode()
    job = provider.submit("night-1", "", lambda uri: io.BytesIO(content), len(content))
    provider.cancel(job.name)
    (found,) = provider.find("night-")
    assert (found.name, found.phase) == (job.name, "cancelled")
    provider.cancel(job.name)
    (upload,) = provider.uploads("night-")
    provider.delete_upload(upload.name)
    assert provider.uploads("night-") == []
