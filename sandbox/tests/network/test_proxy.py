from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import google.auth
import httplib2
import httpx
import pytest
import requests
from airflow.providers.google.cloud.hooks.bigquery import BigQueryHook
from airflow.providers.google.cloud.hooks.gcs import GCSHook
from google import genai
from google.auth.transport.requests import Request
from google.cloud import bigquery, storage
from google.genai import types
from google.oauth2 import id_token
from llmbeam_sandbox import Fault, Proxy, Sandbox
from llmbeam_sandbox.__main__ import exported
from waiting import until

from tests.clouds import authorized, for_one_test

COMMAND = [sys.executable, "-m", "llmbeam_sandbox"]
BUCKET = "https://storage.googleapis.com/storage/v1/b/rows"
SHORT = types.HttpOptions(timeout=60_000, retry_options=types.HttpRetryOptions(attempts=1))
NEEDS_PYSOCKS = pytest.mark.skipif(find_spec("socks") is None, reason="httplib2 has no proxies without PySocks")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(buckets=("rows",)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A sandbox that replaces Google through environment variables alone."""
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def proxy(served: tuple[Sandbox, Proxy], sandbox: Sandbox) -> Proxy:
    return served[1]


def test_the_default_credentials_are_found_and_refreshed(sandbox: Sandbox) -> None:
    credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    assert project == "llmbeam-sandbox"
    credentials.refresh(Request())
    assert credentials.token == sandbox.token
    token = id_token.fetch_id_token(Request(), "https://service.run.app")
    assert token.count(".") == 2


@pytest.mark.usefixtures("sandbox")
def test_unmodified_storage_and_bigquery_clients_reach_the_sandbox() -> None:
    with storage.Client() as client:
        blob = client.bucket("rows").blob("a.jsonl", chunk_size=262_144)
        blob.upload_from_file(io.BytesIO(b'{"id": 1}\n' * 100_000), if_generation_match=0)
        assert len(blob.download_as_bytes()) == 1_000_000
    with bigquery.Client() as client:
        client.create_dataset("llm")
        config = bigquery.LoadJobConfig(source_format="NEWLINE_DELIMITED_JSON", autodetect=True)
        client.load_table_from_uri("gs://rows/a.jsonl", "llm.rows", job_config=config).result()
        assert [row.n for row in client.query_and_wait("SELECT COUNT(*) AS n FROM llm.rows")] == [100_000]


@pytest.mark.usefixtures("sandbox")
def test_airflow_hooks_reach_the_sandbox_with_their_default_connection() -> None:
    hook = GCSHook()
    hook.upload("rows", "dir/a.txt", data="one")
    assert (hook.list("rows", prefix="dir/"), hook.download("rows", "dir/a.txt")) == (["dir/a.txt"], b"one")
    warehouse = BigQueryHook(use_legacy_sql=False, location="US")
    warehouse.create_empty_dataset(dataset_id="llm")
    job = warehouse.insert_job(
        configuration={"query": {"query": "CREATE TABLE llm.t AS SELECT 7 AS n", "useLegacySql": False}},
        job_id="from-airflow",
    )
    assert (job.job_id, job.state) == ("from-airflow", "DONE")
    assert warehouse.table_exists(dataset_id="llm", table_id="t", project_id="llmbeam-sandbox")


@pytest.mark.parametrize(
    "client",
    [{"api_key": "k"}, {"vertexai": True, "project": "p", "location": "us-central1"}],
    ids=["dev", "vertex"],
)
def test_gemini_is_reached_on_both_of_its_hosts(sandbox: Sandbox, client: dict[str, str]) -> None:
    with genai.Client(**client, http_options=SHORT) as made:
        assert made.models.generate_content(model="gemini-2.5-flash", contents="hi").text

    async def ask() -> str | None:
        made = genai.Client(**client, http_options=SHORT)
        async with made.aio as asynchronous:
            return (await asynchronous.models.generate_content(model="gemini-2.5-flash", contents="hi")).text

    assert asyncio.run(ask())
    assert sandbox.stats()["billed_answers"] == 2


def test_httpx_trusts_the_proxy_through_the_environment(sandbox: Sandbox) -> None:
    assert httpx.get(BUCKET, headers=authorized(sandbox)).json()["name"] == "rows"


def test_aiohttp_trusts_the_proxy_in_a_process_started_with_the_environment(sandbox: Sandbox) -> None:
    # In another process, because aiohttp reads the certificates when it is imported.
    code = """
import aiohttp, asyncio, sys
async def get():
    headers = {"Authorization": f"Bearer {sys.argv[2]}"}
    async with aiohttp.ClientSession(trust_env=True, headers=headers) as session:
        async with session.get(sys.argv[1]) as response:
            print((await response.json())["name"])
asyncio.run(get())
"""
    command = [sys.executable, "-c", code, BUCKET, sandbox.token]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "rows\n"


def test_a_job_uses_buckets_and_gemini_through_the_environment(sandbox: Sandbox, tmp_path: Path) -> None:
    spec = {
        "name": "nightly",
        "source": {"uri": "gs://rows/in/*.jsonl", "key": ["id"]},
        "prompt": {"template": "Say {{ row.text }}"},
        "model": {"type": "gemini"},
        "sink": {"uri": "gs://rows/out/"},
    }
    file = tmp_path / "job.json"
    file.write_text(json.dumps(spec))
    with storage.Client() as client:
        lines = "".join(json.dumps({"id": n, "text": f"row {n}"}) + "\n" for n in range(10))
        client.bucket("rows").blob("in/a.jsonl").upload_from_string(lines)
        door = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(file)]
        subprocess.run(door, check=True, capture_output=True, timeout=120)
        answers = client.bucket("rows").blob("out/answers-00000-of-00001.jsonl").download_as_text()
    assert sorted(json.loads(line)["id"] for line in answers.splitlines()) == list(range(10))
    assert sandbox.stats()["billed_answers"] == 10
    assert sandbox.stats()["refused_hosts"] == {}


@NEEDS_PYSOCKS
def test_httplib2_trusts_the_proxy_through_the_environment(sandbox: Sandbox) -> None:
    # Passed explicitly, because httplib2 reads the variable when it is imported.
    http = httplib2.Http(ca_certs=os.environ["HTTPLIB2_CA_CERTS"])
    response, _ = http.request("https://www.googleapis.com/storage/v1/b/rows", headers=authorized(sandbox))
    http.close()
    assert response.status == 200


def test_every_other_host_is_refused_and_counted(sandbox: Sandbox, proxy: Proxy) -> None:
    with pytest.raises(requests.exceptions.ProxyError, match="403 Forbidden by the llmbeam sandbox"):
        requests.get("https://container.googleapis.com/compute/v1", timeout=60)
    plain = requests.get("http://metadata.google.internal/computeMetadata/v1/", timeout=60)
    assert plain.status_code == 403
    assert "refuses 'metadata.google.internal', so that nothing leaves this machine" in plain.text
    with pytest.raises(requests.exceptions.ProxyError):
        requests.get("https://storage.googleapis.com:8443/", timeout=60)
    assert sandbox.stats()["refused_hosts"] == {
        "container.googleapis.com": 1,
        "metadata.google.internal": 1,
        "storage.googleapis.com": 1,
    }


def test_clients_do_not_trust_the_proxy_without_the_environment(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("CURL_CA_BUNDLE")
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(BUCKET, timeout=60)


def test_the_certificates_pass_the_strict_check_of_newer_pythons(proxy: Proxy) -> None:
    context = ssl.create_default_context(cafile=proxy.environment()["SSL_CERT_FILE"])
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    url = "https://us-central1-aiplatform.googleapis.com/"
    with httpx.Client(verify=context) as client:
        assert client.get(url).text == "OK"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lost_connection_is_lost_through_the_proxy_too(sandbox: Sandbox) -> None:
    sandbox.faults.queue("storage.objects.get", Fault(kind="drop"))
    with storage.Client() as client:
        blob = client.bucket("rows").blob("a")
        blob.upload_from_string(b"x" * 2_000_000)
        with pytest.raises(requests.RequestException, match="Connection broken"):
            blob.download_as_bytes(retry=None)
        assert blob.download_as_bytes() == b"x" * 2_000_000
    gc.collect()  # the client leaves the lost connection open, and no other test may meet its warning


def test_the_proxy_removes_its_directory_at_the_end() -> None:
    with Sandbox() as sandbox:
        proxy = Proxy(sandbox)
        with proxy:
            directory = proxy.directory
            assert directory.stat().st_mode & 0o077 == 0
        assert not directory.exists()
        with pytest.raises(RuntimeError, match="not running"):
            proxy.environment()
        with proxy:
            assert requests.get(sandbox.url, timeout=60).text == "OK"


def test_jobs_use_the_first_proxy_again_when_a_second_one_has_ended(sandbox: Sandbox, proxy: Proxy) -> None:
    with Proxy(sandbox) as second:
        assert sandbox.job_environments[-1] == second.environment() != proxy.environment()
    assert sandbox.job_environments[-1] == proxy.environment()


def test_exports_can_be_read_by_a_shell() -> None:
    value = 'a "b" $c'
    lines = exported({"LLMBEAM_X": value})
    shown = subprocess.run(["sh", "-c", f'{lines}printf %s "$LLMBEAM_X"'], capture_output=True, check=True)
    assert shown.stdout.decode() == value


def test_a_shell_takes_the_environment_and_ends_the_sandbox() -> None:
    script = f"""
eval "$({shlex.join(COMMAND)} --port 0 --env --bucket rows &)"
{shlex.quote(sys.executable)} -c '
from google.cloud import storage
print(storage.Client().get_bucket("rows").name)
'
kill $LLMBEAM_SANDBOX_PID
"""
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.stderr) == ("rows\n", "")


def test_the_exports_are_in_a_file_while_the_sandbox_runs(tmp_path: Path) -> None:
    file = tmp_path / "sandbox.env"
    command = [*COMMAND, "--port", "0", "--env", str(file), "--project", "my-project"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: file.exists() or process.poll() is not None, "the sandbox is ready or has ended")
        assert process.poll() is None, process.stderr and process.stderr.read()
        variables = dict(line.removeprefix("export ").split("=", 1) for line in file.read_text().splitlines())
        assert file.stat().st_mode & 0o077 == 0
        account = json.loads(Path(variables["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
        process.send_signal(signal.SIGTERM)
        printed, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, b"")
    assert printed.startswith(b"Sandbox on http://127.0.0.1:")
    assert account["project_id"] == variables["GOOGLE_CLOUD_PROJECT"] == "my-project"
    assert list(tmp_path.iterdir()) == []


def test_without_cryptography_the_error_names_it() -> None:
    code = (
        "import runpy, sys; sys.modules['cryptography'] = None; sys.argv = ['sandbox', '--port', '0', '--env']; "
        "runpy.run_module('llmbeam_sandbox', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "pip install cryptography" in ended.stderr
