"""Personal data on a real Airflow, on the worker and on Dataflow: only the source and the sink have it."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import scaled

from tests.integration.cases import Run
from tests.leaks import CopyingModel, leaked, recorded_objects
from tests.personal_data import PlantedRow, found_rows

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("airflow-services"), pytest.mark.timeout(scaled(600))]
#: The Dag with a task for each spec of its run.
DAG_ID, TASK = "mistakes", "mistake"
VARIABLE = "LLMBEAM_PRIVACY_KEY"
SECRETS = {
    "masking": "the secret of the connection",
    "rotated": "another secret of a connection",
    "worker": "the secret of the Dataflow workers",
    "short": "too short",
}
KEY = "planted-key-of-the-copying-model"
#: Id of the last row, which becomes no prompt.
LAST_ID = "bob@mail.internal"


@cache
def planted() -> list[PlantedRow]:
    """Returns texts with personal data; not while tests are collected, as the detectors take seconds to load."""
    return found_rows(1)


def rows() -> list[dict[str, Any]]:
    """Returns the rows of a job."""
    numbered = ({"id": number, "text": row.text} for number, row in enumerate(planted()))
    return [*numbered, {"id": LAST_ID, "other": planted()[0].value}]


def values() -> list[str]:
    """Returns all personal data of the rows."""
    return [LAST_ID, *(row.value for row in planted())]


def of_a_job() -> int:
    """Returns the number of requests of a job: each prompt, and the guard's about it and about its answer."""
    return 3 * len(planted())


class SpecsRun(Run):
    """A run with a task for each spec."""

    def __init__(self, cloud, specs: dict[str, dict[str, Any]]) -> None:
        self.specs = specs
        super().__init__(cloud, DAG_ID)

    def conf(self) -> dict[str, Any]:
        return {"specs": [*self.specs.values()]}

    def ended(self) -> dict[str, tuple[str, str]]:
        """Waits for the end; returns state and log of each task, with its error, by the name of its spec."""
        self.until(lambda: self.state in ("success", "failed"), "the run ends", pause_seconds=0.5)
        states = dict(
            self.cloud.execute(
                "SELECT map_index, state FROM task_instance WHERE run_id = %s AND task_id = %s", self.run_id, TASK
            )
        )
        logs = self.cloud.airflow.home / "logs" / f"dag_id={DAG_ID}" / f"run_id={self.run_id}" / f"task_id={TASK}"
        return {
            name: (
                states[index],
                "".join(path.read_text() for path in sorted(logs.glob(f"map_index={index}/attempt=*"))),
            )
            for index, name in enumerate(self.specs)
        }

    def rendered(self) -> str:
        """Returns what the REST API shows of the tasks, with their rendered fields."""
        tasks = [
            self.cloud.airflow.task(DAG_ID, self.run_id, f"{TASK}/{index}") for index in range(len(self.specs))
        ]
        return json.dumps(tasks, ensure_ascii=False)


class Played:
    """Two runs, and all that they left.

    Attributes:
        first: State and log of the tasks of the first run: a job on the worker, one on Dataflow, and faulty keys.
        second: The same of the second run, in which the job on the worker has another key.
        sent: Number of requests to the model and its guard after the first run, and after the second.
        places: All places where a value could be, with their content.
    """

    def __init__(self, cloud, model, folder: Path, objects: list[tuple[str, bytes]]) -> None:
        self.folder = folder
        worker = self.spec(model, str(folder))
        unkeyed = {name: self.spec(model, f"{folder}/{name}", key_conn_id=name) for name in ("short", "missing")}
        run = SpecsRun(cloud, {"worker": worker, "dataflow": self.on_dataflow(model), **unkeyed})
        self.first = run.ended()
        self.sent = [len(model.received)]
        manifest = json.loads((folder / "out/report.json").read_text())
        failed = {"uri": manifest["dead_letter_uri"], "key": "id", "format": "jsonl"}
        rotated = self.spec(model, str(folder), key_conn_id="rotated")
        retry = {**rotated, "source": failed, "sink": {"uri": f"{folder}/out", "on_existing": "merge"}}
        again = SpecsRun(
            cloud,
            {
                "retry": retry | {"job_name": "retried"},
                "rotated": rotated | {"sink": {"uri": f"{folder}/rotated"}},
            },
        )
        self.second = again.ended()
        self.sent.append(len(model.received))
        files = [path for root in (folder, cloud.airflow.home) for path in root.rglob("*") if path.is_file()]
        self.places: dict[str, bytes | str] = {str(path): path.read_bytes() for path in files}
        self.places |= {f"gs://{name} ({number})": data for number, (name, data) in enumerate(objects)}
        self.places |= {f"table {name}": rows for name, rows in cloud.tables().items()}
        self.places |= {"Dataflow": json.dumps(cloud.sandbox.dataflow.jobs), "model": model.texts}
        self.places["rendered fields"] = "".join(each.rendered() for each in (run, again))

    @staticmethod
    def spec(model, home: str, key_conn_id: str = "masking") -> dict[str, Any]:
        guard = {"type": "openai", "name": "guard", "base_url": model.url}
        privacy = {"key_conn_id": key_conn_id, "key_env": VARIABLE}
        audit = {"uri": f"{home}/audit", "include_text": True}
        return {
            "source": {"uri": f"{home}/in.jsonl", "key": "id"},
            "prompt": "Say it: {{ row.text }}",
            "model": {"type": "openai", "name": "m", "base_url": model.url},
            "sink": {"uri": f"{home}/out"},
            "state_uri": f"{home}/state",
            "job_name": "private",
            "limits": {"max_dead_letter_ratio": 1.0},
            "safety": {"privacy": privacy, "moderation": {"model": guard}, "audit": audit},
            "llmbeam_conn_id": "copying",
        }

    @classmethod
    def on_dataflow(cls, model) -> dict[str, Any]:
        secrets = {
            VARIABLE: "projects/llmbeam-sandbox/secrets/masking/versions/latest",
            "OPENAI_API_KEY": "projects/llmbeam-sandbox/secrets/openai/versions/latest",
        }
        runner = {"type": "dataflow", "location": "europe-west1", "poll_interval_seconds": 10}
        return cls.spec(model, "gs://rows/personal") | {"runner": runner | {"environment_secrets": secrets}}


@pytest.fixture(scope="module")
def played(cloud, tmp_path_factory):
    """Plays the runs."""
    folder = tmp_path_factory.mktemp("personal")
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    secrets = f"{cloud.sandbox.authorized_url}/v1/projects/llmbeam-sandbox/secrets"
    for name, value in {"masking": SECRETS["worker"], "openai": KEY}.items():
        httpx.post(secrets, params={"secretId": name}, json={"replication": {"automatic": {}}}).raise_for_status()
        data = base64.b64encode(value.encode()).decode()
        httpx.post(f"{secrets}/{name}:addVersion", json={"payload": {"data": data}}).raise_for_status()
    connections = {name: {"password": SECRETS[name]} for name in ("masking", "rotated", "short")}
    connections["copying"] = {"conn_type": "llmbeam", "password": KEY}
    with CopyingModel(lambda prompt: f"Done: {prompt}") as model, recorded_objects() as objects:
        cloud.upload("personal/in.jsonl", rows())
        for name, fields in connections.items():
            cloud.airflow.add_connection(name, **{"conn_type": "generic", **fields})
        yield Played(cloud, model, folder, objects)
        for name in connections:
            cloud.airflow.delete_connection(name)


def test_the_sinks_have_the_values_that_the_model_has_copied(played, cloud):
    for name in ("worker", "dataflow"):
        state, log = played.first[name]
        assert state == "success", log
    written = {
        "worker": (played.folder / "out/answers-00000-of-00001.jsonl").read_text(),
        "dataflow": cloud.download("personal/out/answers-00000-of-00001.jsonl"),
    }
    for text in written.values():
        answers = [json.loads(line) for line in text.splitlines()]
        assert {row["id"]: row["answer"] for row in answers} == {
            row["id"]: f"Done: Say it: {row['text']}" for row in rows() if "text" in row
        }


def test_no_value_is_anywhere_else(played):
    has_values = {
        name
        for name, content in played.places.items()
        if content and ("/answers-" in name or name.partition(" (")[0].endswith("/in.jsonl"))
    }
    assert {name for name, _ in leaked({name: played.places[name] for name in has_values}, values())} == has_values
    others = {name: content for name, content in played.places.items() if name not in has_values}
    assert "Say it" in str(others["table rendered_task_instance_fields"])
    assert "html_gzip" in str(others["table xcom"])
    assert "environment_secrets" in str(others["rendered fields"])
    assert any(f"dag_id={DAG_ID}" in name for name in others), "the logs of the tasks"
    assert leaked(others, values()) == []


def test_no_secret_is_anywhere(played):
    of_model = {name: content for name, content in played.places.items() if name != "model"}
    assert leaked(of_model, [*SECRETS.values(), KEY]) == []
    assert leaked({"model": played.places["model"]}, SECRETS.values()) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("short", f"the environment variable '{VARIABLE}' has 9 characters. Expected a secret of at least 16"),
        ("missing", "there is no connection 'missing'"),
    ],
)
def test_a_key_that_cannot_be_used_fails_the_task_before_anything_is_sent(played, name, sentence):
    state, log = played.first[name]
    assert state == "failed"
    assert sentence in log
    assert "Nothing was sent or billed" in log
    assert played.sent[0] == 2 * of_a_job(), "the other two jobs"


def test_rows_that_another_key_has_masked_are_not_sent(played):
    state, log = played.second["retry"]
    assert state == "failed"
    assert "masked with another key than the one in 'LLMBEAM_PRIVACY_KEY'" in log


def test_a_rotated_key_asks_for_the_rows_with_personal_data_again(played):
    state, log = played.second["rotated"]
    assert state == "success", log
    assert played.sent[1] - played.sent[0] == of_a_job(), "and none of the job whose rows another key has masked"
