"""Sixteen secrets are planted around jobs, and searched for in everything that the jobs leave and show."""

from __future__ import annotations

import json
import stat
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from waiting import until

from airflow_provider_llmbeam.exceptions import JobError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.hooks.connections import sink_environment
from airflow_provider_llmbeam.hooks.google.authentication import google_credentials
from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.spec import JobSpec
from tests.line_log import LineLog

pytestmark = pytest.mark.full
ID_TOKEN = "eyJhbGciOiJub25lIn0.eyJhdWQiOiJodHRwczovL3gucnVuLmFwcCIsImV4cCI6OTk5OTk5OTk5OX0.planted-id-token"
PLANTED = {
    "connection key": "planted-connection-key-01",
    "worker's OpenAI key": "sk-planted-openai-key-02",
    "PostgreSQL password": "planted-postgres-03",
    "proxy password": "planted-proxy-04",
    "Fernet key": "planted-fernet-key-05=",
    "other connection": "planted-other-connection-06",
    "JWT secret": "planted-jwt-secret-07",
    "SQLAlchemy password": "planted-sqlalchemy-08",
    "Hugging Face token": "hf_plantedhuggingface09",
    "ID token": ID_TOKEN,
    "URL key": "planted-url-key-11",
    "header": "planted-header-12",
    "authorization of a gateway": "planted-gateway-token-13",
    "client secret": "planted/client+secret-14",
    "OAuth token": "planted-oauth-token-15",
}  # and the private key of a service account
ROWS = [{"id": number, "text": f"row {number}"} for number in range(3)]


class Server(BaseHTTPRequestHandler):
    """A model server, its token service and a proxy; its errors quote every header of the request."""

    protocol_version = "HTTP/1.1"
    received = Event()
    release = Event()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/token"):
            return self.reply(200, {"id_token": ID_TOKEN, "access_token": PLANTED["OAuth token"]})
        if self.path.startswith("/deny"):
            return self.refuse(401)
        if self.path.startswith("/refuse"):
            return self.refuse(401)
        if self.path.startswith("/hold"):
            Server.received.set()
            Server.release.wait(60)
        message = {"role": "assistant", "content": "Hi."}
        return self.reply(200, {"choices": [{"message": message, "finish_reason": "stop"}]})

    def do_CONNECT(self):
        self.refuse(407)

    def refuse(self, status):
        quoted = " ".join(f"{name}: {value}" for name, value in self.headers.items())
        bare = self.headers.get("Authorization", "").rpartition(" ")[2]
        message = f"Incorrect API key provided: {bare}. You sent {quoted}"
        self.reply(status, {"error": {"message": message}, "error_description": message})

    def reply(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(BrokenPipeError):  # of a job that was killed
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Server.received.clear()
    Server.release.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        Server.release.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def private_key(tmp_path_factory):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*forms).decode()


@pytest.fixture
def worker(monkeypatch, tmp_path, server, private_key):
    """The environment of the worker, with the secrets; temporary files are below the folder of the test."""
    address = server.removeprefix("http://")
    account = {
        "type": "service_account",
        "project_id": "p",
        "client_email": "job@p.example",
        "token_uri": f"{server}/token",
        "private_key": private_key,
    }
    connections = {
        "MODELS": {"conn_type": "llmbeam", "password": PLANTED["connection key"]},
        "URL": {"conn_type": "llmbeam", "host": f"{server}/v1?key={PLANTED['URL key']}"},
        "ANSWERS_DB": {
            "conn_type": "postgres",
            "host": "127.0.0.1",
            "port": 9,
            "login": "writer",
            "password": PLANTED["PostgreSQL password"],
            "schema": "answers",
        },
        "GATEWAY": {
            "conn_type": "llmbeam",
            "login": "client",
            "password": PLANTED["client secret"],
            "extra": {
                "headers": {
                    "x-portkey-config": PLANTED["header"],
                    "cf-aig-authorization": f"Bearer {PLANTED['authorization of a gateway']}",
                },
                "auth": {"type": "oauth", "token_url": f"{server}/token"},
            },
        },
        "OTHER": {"conn_type": "http", "password": PLANTED["other connection"]},
        "GOOGLE_CLOUD_DEFAULT": {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": account}},
    }
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {
        "OPENAI_API_KEY": PLANTED["worker's OpenAI key"],
        "https_proxy": f"http://user:{PLANTED['proxy password']}@{address}",
        "no_proxy": "127.0.0.1",
        "AIRFLOW__CORE__FERNET_KEY": PLANTED["Fernet key"],
        "AIRFLOW__API_AUTH__JWT_SECRET": PLANTED["JWT secret"],
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql://a:{PLANTED['SQLAlchemy password']}@127.0.0.1:9/a",
        "HF_TOKEN": PLANTED["Hugging Face token"],
        "TMPDIR": str(temporary),
        **{f"AIRFLOW_CONN_{name}": json.dumps(value) for name, value in connections.items()},
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)


class Seen(LineLog):
    """All that a job leaves and shows.

    Args:
        needles: The secrets, by name.
        folder: Folder of the job, with its temporary files.
    """

    def __init__(self, needles, folder):
        super().__init__()
        self.needles = needles
        self.folder = folder
        self.texts = {}

    def secrets(self):
        """Returns the names of the secrets that were found, each with its place."""
        texts = {
            **self.texts,
            "log": "\n".join(self.lines),
            **{str(file): file.read_text(errors="replace") for file in self.folder.rglob("*") if file.is_file()},
        }
        return {
            (name, place) for place, text in texts.items() for name, value in self.needles.items() if value in text
        }


@pytest.fixture
def seen(worker, tmp_path, private_key):
    return Seen(PLANTED | {"private key": private_key.splitlines()[2]}, tmp_path)


def spec(folder, model, conn_id="models", **parts):
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    model, secrets = LLMBeamHook(conn_id).complete_model({"type": "openai", "name": "m", **model})
    made = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": f"{folder}/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": model,
            "limits": {"max_attempts": 1},
            "sink": {"uri": f"{folder}/out"},
            "state_uri": f"{folder}/state",
        }
        | parts
    )
    return made, secrets | sink_environment(made.sink)


def run(seen, made, secrets):
    """Runs a job as an operator does; returns its manifest, or `None` if it failed."""
    try:
        with errors_of_airflow(), google_credentials(made, "google_cloud_default"):
            manifest = JobProcess(made, secrets, seen).run()["report"]
        seen.texts["XCom"] = json.dumps(manifest)
        return manifest
    except Exception as error:  # noqa: BLE001 - Airflow's, too
        seen.texts["error"] = "".join(traceback.format_exception(error))
        return None


def failures_of(folder):
    lines = (folder / "state/job/failed_rows.jsonl").read_text().splitlines()
    return [json.loads(line)["llmbeam_error"] for line in lines]


def test_a_job_that_succeeds_leaves_and_shows_no_secret(seen, server, tmp_path):
    manifest = run(seen, *spec(tmp_path, {"base_url": f"{server}/v1", "api_key_env": "MODEL_KEY"}))
    assert manifest["rows"] == {"read": 3, "answered": 3, "dead_letter": 0, "skipped": 0}
    assert seen.lines
    assert seen.secrets() == set()


def test_a_server_that_quotes_the_key_in_a_401_brings_it_nowhere(seen, server, tmp_path):
    run(seen, *spec(tmp_path, {"base_url": f"{server}/refuse", "api_key_env": "MODEL_KEY"}))
    (failure, *_) = failures = failures_of(tmp_path)
    assert len(failures) == 3
    assert failure["kind"] == "unauthorized"
    assert failure["message"].startswith("Incorrect API key provided: ***. You sent")
    assert "PermanentFailure" in seen.texts["error"]
    assert seen.secrets() == set()


def test_a_server_that_quotes_the_id_token_of_an_account_brings_it_nowhere(seen, server, tmp_path):
    model = {"base_url": f"{server}/refuse", "id_token_audience": "https://x.run.app"}
    run(seen, *spec(tmp_path, model))
    assert {failure["kind"] for failure in failures_of(tmp_path)} == {"unauthorized"}
    assert "Incorrect API key provided: ***" in seen.texts["error"]
    assert seen.secrets() == set()


@pytest.mark.parametrize("path", ["v1", "refuse"])
def test_a_gateway_that_quotes_headers_and_the_token_of_oauth_brings_them_nowhere(seen, server, tmp_path, path):
    run(seen, *spec(tmp_path, {"base_url": f"{server}/{path}", "api_key_env": "MODEL_KEY"}, "gateway"))
    if path == "refuse":
        (failure, *_) = failures_of(tmp_path)
        assert failure["message"].startswith("Incorrect API key provided: ***. You sent")
        assert "x-portkey-config: ***" in failure["message"]
    assert seen.lines
    assert seen.secrets() == set()


def test_a_token_endpoint_that_quotes_the_secret_of_the_client_brings_it_nowhere(seen, server, tmp_path):
    auth = {"type": "oauth", "token_url": f"{server}/deny", "client_id": "client"}
    model = {"base_url": f"{server}/v1", "api_key_env": "MODEL_KEY", "auth": auth}
    run(seen, *spec(tmp_path, model, "gateway"))
    assert "HTTP 401: Incorrect API key provided: ***. You sent" in failures_of(tmp_path)[0]["message"]
    assert seen.secrets() == set()


def test_a_proxy_that_refuses_brings_its_password_nowhere(seen, tmp_path):
    run(seen, *spec(tmp_path, {"base_url": "https://model.example/v1", "api_key_env": "MODEL_KEY"}))
    (failure, *_) = failures_of(tmp_path)
    assert failure["kind"] == "connection"
    assert "http://***@127.0.0.1" in failure["message"]
    assert seen.secrets() == set()


def test_a_database_that_does_not_answer_brings_its_password_nowhere(seen, server, tmp_path):
    sink = {"type": "postgres", "table": "answers", "conn_id": "answers_db"}
    assert run(seen, *spec(tmp_path, {"base_url": f"{server}/v1", "api_key_env": "MODEL_KEY"}, sink=sink)) is None
    assert "no connection to postgres://127.0.0.1:9/answers" in seen.texts["error"]
    assert seen.secrets() == set()


def test_a_key_in_an_address_is_refused_before_anything_runs(seen, server, tmp_path):
    address = f"{server}/v1?key={PLANTED['URL key']}"
    for complete in (
        lambda: LLMBeamHook("url").complete_model({"type": "openai", "name": "m"}),
        lambda: spec(tmp_path, {"base_url": address}),
    ):
        with pytest.raises(JobSpecError) as caught:
            complete()
        seen.texts["error"] = "".join(traceback.format_exception(caught.value))
        assert seen.secrets() == set()


def test_a_job_that_is_killed_has_only_its_own_key_and_leaves_none(seen, server, tmp_path, monkeypatch):
    """The process itself, not a fork as in other tests."""
    monkeypatch.setenv("AIRFLOW__LLMBEAM__JOB_ENVIRONMENT", "LLMBEAM_TESTS_ON_LOOPBACK")
    process = JobProcess(*spec(tmp_path, {"base_url": f"{server}/hold", "api_key_env": "MODEL_KEY"}), seen)
    with ThreadPoolExecutor() as pool:
        result = pool.submit(process.run)
        until(lambda: Server.received.is_set() or result.done(), "a request")
        assert not result.done(), result.exception()
        for part in ("environ", "cmdline"):
            seen.texts[part] = Path(f"/proc/{process._child.pid}/{part}").read_text()
        directories = [path for path in (tmp_path / "temporary").iterdir() if list(path.glob("spec.json"))]
        modes = {stat.S_IMODE(path.stat().st_mode) for path in directories}
        assert modes == {0o700}
        assert {stat.S_IMODE((path / "spec.json").stat().st_mode) for path in directories} == {0o600}
        while_running = seen.secrets()
        process.stop()
        with pytest.raises(JobError) as caught:
            result.result()
    assert while_running == {("connection key", "environ"), ("proxy password", "environ")}
    assert "AIRFLOW" not in seen.texts["environ"]
    seen.texts = {"error": "".join(traceback.format_exception(caught.value))}
    assert isinstance(caught.value, LLMBeamError)
    assert seen.secrets() == set()
