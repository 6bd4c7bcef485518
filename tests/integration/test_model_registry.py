"""Registered models: their versions in the runs of a Dag, promotion and rollback, against the sandbox."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task
from llmbeam_sandbox.models.answers import answer_text

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
from airflow_provider_llmbeam.operators.endpoint import ProvisionEndpointOperator
from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
from airflow_provider_llmbeam.operators.model_registry import PromoteModelOperator, RollBackModelOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

pytestmark = pytest.mark.usefixtures("quick_endpoints")

FILE = Path(__file__).resolve().parents[2] / "dags" / "registered_model.py"
LOCATION = "us-central1"
#: What the container of each version serves.
SERVED = {"1": "Qwen/Qwen3-4B", "2": "Qwen/Qwen3-8B", "3": "Qwen/Qwen3-14B"}
PROVISION = {"poll_interval_seconds": 0.2}


class Registry:
    """The Model Registry of the sandbox, as a training job uses it."""

    def __init__(self, project):
        self.hook = VertexAIHook(LOCATION, project)
        self.name = f"projects/{project}/locations/{LOCATION}/models/review-moods"

    def upload(self, version, *aliases):
        """Uploads the next version of the model."""
        container = {"image_uri": "vllm", "args": [f"--model={SERVED[version]}"]}
        model = {"display_name": "moods", "container_spec": container, "version_aliases": aliases}
        request = {"parent": self.hook.parent, "model": model}
        request |= {"model_id": "review-moods"} if version == "1" else {"parent_model": self.name}
        answer = self.hook._client("ModelServiceClient").upload_model(request).result()
        assert answer.model_version_id == version

    def move(self, alias, version):
        self.hook.merge_version_aliases(f"{self.name}@{version}", [alias])

    def version(self, alias):
        found = self.hook.get_registered_model(f"{self.name}@{alias}")
        return found and found.version_id


@pytest.fixture
def registry(google):
    return Registry(google.project)


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def result(dag_run, task_id):
    return dag_run.get_task_instance(task_id).xcom_pull(task_ids=task_id)


@task
def use_model(model):
    return model


def block(registry, alias="@champion", **fields):
    return inference_endpoint(
        endpoint={
            "type": "vertex",
            "model": f"{registry.name}{alias}",
            "project": registry.hook.project,
            "locations": [LOCATION],
            "machine_type": "g2-standard-12",
            **fields,
        },
        provision=PROVISION,
    )


@pytest.mark.full
def test_a_run_keeps_the_version_of_its_start_and_no_other_version_gets_its_answers(
    run_dag, sandbox, registry, tmp_path
):
    """The alias moves while the run is active, after it was resolved and before the endpoint exists."""
    write(tmp_path / "in" / "a.jsonl", [{"id": number} for number in range(5)])

    def night(number, version):
        with DAG(f"night_{number}", schedule=None) as dag:
            with block(registry) as made:
                RunInferenceOperator(
                    task_id="ask",
                    source={"uri": f"{tmp_path}/in/*.jsonl", "key": "id"},
                    prompt="Say {{ row.id }}",
                    model=made.model,
                    cache={"scope": "moods"},
                    sink=f"{tmp_path}/out-{number}",
                    state_uri=f"{tmp_path}/state",
                )

            @task
            def move():
                registry.move("champion", version)

            dag.get_task("endpoint.resolve") >> move() >> dag.get_task("endpoint.provision")
        dag_run, states = run_dag(dag)
        assert set(states.values()) == {"success"}, states
        found = result(dag_run, "endpoint.ask")
        assert result(dag_run, "endpoint.provision")["name"] == found["model"].partition(":")[2]
        return found["model"].rpartition("@")[2], found["origins"]["cached"], found["origins"]["fresh"]

    registry.upload("1", "champion")
    registry.upload("2")
    assert night(1, version="2") == ("1", 0, 5)
    assert night(2, version="1") == ("2", 0, 5)
    assert night(3, version="1") == ("1", 5, 0), "the answers of version 1 are still there, for version 1"
    assert (sandbox.endpoints, sandbox.bill.running, len(sandbox.models)) == ([], [], 1)


@pytest.mark.full
@pytest.mark.parametrize("way", ["promote", "roll_back", "neither"])
def test_a_canary_answers_its_share_of_the_rows_and_no_gpu_of_either_version_is_left(
    run_dag, sandbox, registry, tmp_path, way
):
    """The second job of the block asks after the promotion or the rollback."""
    write(tmp_path / "in" / "a.jsonl", [{"id": number} for number in range(100)])
    registry.upload("1", "champion")
    registry.upload("2", "candidate")
    champion, candidate = f"{registry.name}@1", f"{registry.name}@2"

    def ask(name, model):
        return RunInferenceOperator(
            task_id=name,
            source={"uri": f"{tmp_path}/in/*.jsonl", "key": "id"},
            prompt=f"{name} {{{{ row.id }}}}",
            model=model,
            sink=f"{tmp_path}/{name}",
        )

    canary = {"model": f"{registry.name}@candidate", "percent": 20}
    with DAG(f"canary_{way}", schedule=None) as dag, block(registry, canary=canary) as made:
        before, after = ask("before", made.model), ask("after", made.model)
        move = {"task_id": "move", "model": made.canary, "endpoint": made.model}
        if way == "promote":
            before >> PromoteModelOperator(**move, alias="champion") >> after
        elif way == "roll_back":
            before >> RollBackModelOperator(**move) >> after
        else:
            before >> after
    dag_run, states = run_dag(dag)
    assert set(states.values()) == {"success"}, states

    def models(name):
        report = json.loads((tmp_path / name / "report.json").read_text())
        return report["answers"]["models"]

    counted = models("before")
    assert set(counted) == {champion, candidate}
    assert 5 <= counted[candidate] <= 40, "20 of 100, drawn by the sandbox"
    if way == "neither":
        assert set(models("after")) == {champion, candidate}
    else:
        left = {"promote": candidate, "roll_back": champion}[way]
        assert models("after") == {left: 100}
        assert list(result(dag_run, "endpoint.move")["percents"].values()) == [100]
    assert registry.version("champion") == ("2" if way == "promote" else "1")
    assert (sandbox.endpoints, sandbox.bill.running, len(sandbox.models)) == ([], [], 1)


@pytest.mark.full
def test_an_alias_that_no_version_has_ends_the_run_before_anything_is_billed(run_dag, sandbox, registry, capfd):
    registry.upload("1")
    with DAG("golden", schedule=None) as dag, block(registry, "@golden") as made:
        use_model(made.model)
    dag_run, states = run_dag(dag)
    assert (states["endpoint.resolve"], states["endpoint.provision"]) == ("failed", "upstream_failed")
    assert (states["endpoint.teardown"], dag_run.state) == ("success", "failed")
    assert "the Model Registry has no 'projects/" in "".join(capfd.readouterr())
    assert sandbox.bill.lines == []


@pytest.mark.parametrize(
    ("alias", "is_resolved"),
    [("", True), ("@champion", True), ("@{{ params.alias }}", True), ("@3", False)],
)
def test_a_block_resolves_an_alias_between_the_name_of_the_endpoint_and_the_endpoint(registry, alias, is_resolved):
    with DAG("edges", schedule=None) as dag, block(registry, alias) as made:
        use_model(made.model)
    edges = {one: sorted(dag.get_task(one).downstream_task_ids) for one in dag.task_ids}
    assert ("endpoint.resolve" in edges) == is_resolved
    if not is_resolved:
        with pytest.raises(JobSpecError, match=r"this `endpoint\.model` is none"):
            assert made.version
    else:
        assert made.version.operator.task_id == "endpoint.resolve"
        assert edges["endpoint.resolve"] == ["endpoint.provision"]
        assert "endpoint.resolve" in edges["endpoint.reserve"]
        cleared = dag.partial_subset(["endpoint.use_model"], include_downstream=True, include_upstream=False)
        assert {"endpoint.provision", "endpoint.teardown"} <= set(cleared.task_ids)
        assert "endpoint.resolve" not in cleared.task_ids, "a clear of the work would take another version"
    dag.validate()


def test_a_block_resolves_the_alias_of_a_canary_too_and_a_provision_refuses_it(registry):
    canary = {"model": f"{registry.name}@candidate"}
    with DAG("edges", schedule=None) as dag, block(registry, "@3", canary=canary) as made:
        use_model(made.model)
    assert dag.get_task("endpoint.resolve_canary").downstream_task_ids == {"endpoint.provision"}
    assert made.canary.operator.model == canary["model"]
    with pytest.raises(JobSpecError, match=r"this `endpoint\.model` is none"):
        assert made.version
    endpoint = {"type": "vertex", "model": f"{registry.name}@3", "canary": canary, "locations": [LOCATION]}
    with pytest.raises(JobSpecError, match=r"`endpoint\.canary\.model`: .*@candidate' has an alias"):
        ProvisionEndpointOperator(
            task_id="provision", name="x", endpoint={**endpoint, "machine_type": "g2-standard-12"}
        )


@pytest.mark.parametrize("percent", [0, 50, 101])
def test_a_promotion_moves_an_alias_only_with_all_requests(percent):
    arguments = {"model": "projects/p/locations/l/models/m@3", "alias": "champion", "endpoint": "e"}
    with pytest.raises(JobSpecError, match=f"`percent`: must be 1 to 100, and below 100 .* got {percent}"):
        PromoteModelOperator(task_id="promote", percent=percent, **arguments)
    with pytest.raises(JobSpecError, match=r"needs an `alias`, .* or an `endpoint`"):
        RollBackModelOperator(task_id="back", model=arguments["model"])


def test_a_move_whose_endpoint_renders_to_nothing_fails_instead_of_moving_nothing():
    move = PromoteModelOperator(task_id="move", model="projects/p/locations/l/models/m@3", endpoint="{{ none }}")
    move.endpoint = None
    with pytest.raises(AirflowFailException, match=r"got neither\. Nothing was moved"):
        move.execute({})


# dags/registered_model.py


@pytest.fixture
def module(registry, monkeypatch, tmp_path):
    """The module of the unmodified Dags, but that they poll more often."""
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    monkeypatch.setenv("LLMBEAM_PROJECT", registry.hook.project)
    spec = importlib.util.spec_from_file_location("registered_model", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for task_id, dag in (("candidate.provision", module.promotion), ("champion.provision", module.night)):
        dag.get_task(task_id).poll_interval_seconds = 0.2
    return module


@pytest.mark.full
def test_a_better_version_is_promoted_and_a_version_whose_answers_drift_is_rolled_back(
    run_dag, sandbox, registry, module, tmp_path
):
    reviews = [{"review_id": number, "text": f"review {number}"} for number in range(60)]
    prompt = module.JOB["prompt"]

    def golden(version):
        """Writes a golden set that this version alone answers as expected."""
        rows = []
        for row in reviews[:20]:
            text = prompt["template"].replace("{{ row.text }}", row["text"])
            found = json.loads(answer_text(text, model=SERVED[version], schema=prompt["output_schema"]).text)
            rows.append(row | {"expected_mood": found["mood"]})
        write(tmp_path / "golden" / "a.jsonl", rows)

    def night():
        dag_run, states = run_dag(module.night)
        return dag_run, states["champion.ask"], states["roll_back"]

    write(tmp_path / "reviews" / "a.jsonl", reviews)
    registry.upload("1", "champion")
    module.night.get_task("champion.ask").prompt = "Mood? {{ row.text }}"  # an answer whose length can drift
    dag_run, *states = night()
    assert states == ["success", "skipped"]
    assert result(dag_run, "champion.ask")["model"].endswith("models/review-moods@1")

    registry.upload("2", "candidate")
    golden("2")
    dag_run, states = run_dag(module.promotion)
    assert set(states.values()) == {"success"}, states
    assert result(dag_run, "promote") == {
        "model": registry.name,
        "alias": "champion",
        "version": "2",
        "previous_version": "1",
        "moved": True,
    }

    registry.upload("3", "candidate")
    dag_run, states = run_dag(module.promotion)
    assert (states["candidate.evaluate"], states["promote"]) == ("failed", "upstream_failed")
    assert (dag_run.state, registry.version("champion")) == ("failed", "2")

    write(tmp_path / "reviews" / "a.jsonl", [row | {"text": "much more to say " * 30} for row in reviews])
    dag_run, *states = night()
    assert states == ["failed", "success"]
    assert (dag_run.state, result(dag_run, "roll_back")["version"]) == ("failed", "1")
    assert (registry.version("champion"), registry.version("candidate")) == ("1", "3")
    assert (sandbox.endpoints, sandbox.bill.running) == ([], [])
