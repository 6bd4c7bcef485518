"""The doctor against the sandbox: one planted fault at a time, and each is named with what fixes it."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import pytest
import requests
from build_template import template
from llmbeam_sandbox import Fault, Proxy, Sandbox

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.doctor.examine import Patient, examine
from airflow_provider_llmbeam.doctor.finding import Diagnosis, Finding
from airflow_provider_llmbeam.spec import JobSpec
from tests.clouds import authorized, for_one_test

PROJECT = "llmbeam-sandbox"
SUBMITTER = f"sandbox@{PROJECT}.iam.gserviceaccount.com"
WORKERS = f"workers@{PROJECT}.iam.gserviceaccount.com"
SECRET = f"projects/{PROJECT}/secrets/key"
JOB: dict[str, Any] = {
    "name": "moods",
    "deployment": "test",
    "source": {"type": "bigquery", "table": f"{PROJECT}.shop.reviews", "key": "id"},
    "prompt": "{{ row.text }}",
    "model": {"type": "gemini", "name": "gemini-2.5-flash", "project": PROJECT},
    "limits": {"usage_tier": 1},
    "sink": {"type": "bigquery", "table": f"{PROJECT}.shop.moods"},
    "state_uri": "gs://rows/state",
    "runner": {
        "type": "dataflow",
        "location": "us-central1",
        "project": PROJECT,
        "service_account": WORKERS,
        "environment_secrets": {"OTHER_KEY": f"{SECRET}/versions/latest"},
        "subnetwork": "regions/us-central1/subnetworks/inner",
        "use_public_ips": False,
        "container_image": "workers:1",
        "flex_template": "gs://rows/template.json",
    },
}


@dataclass
class World:
    """What a fault is planted in."""

    sandbox: Sandbox
    proxy: Proxy
    monkeypatch: pytest.MonkeyPatch
    job: dict[str, Any]
    now: Callable[[], float] = time.time
    patient: dict[str, Any] = field(default_factory=dict)

    def call(self, verb: str, path: str, body: Any = None) -> None:
        requests.request(
            verb, f"{self.sandbox.url}{path}", json=body, headers=authorized(self.sandbox)
        ).raise_for_status()

    def write_template(self, content: Any) -> None:
        path = "/upload/storage/v1/b/rows/o?uploadType=media&name=template.json"
        self.call("POST", path, content)

    def findings(self) -> list[Finding]:
        spec = JobSpec.parse(self.job)
        return list(examine(Patient(spec=spec, **self.patient), self.now))


@pytest.fixture(scope="module")
def served():
    with Sandbox(buckets=("rows",)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def world(served, monkeypatch):
    """A project where everything holds."""
    for running in for_one_test(served, monkeypatch):
        found = World(running, served[1], monkeypatch, json.loads(json.dumps(JOB)))
        dataset = {"datasetReference": {"projectId": PROJECT, "datasetId": "shop"}}
        found.call("POST", f"/bigquery/v2/projects/{PROJECT}/datasets", dataset)
        table = {"tableReference": {"projectId": PROJECT, "datasetId": "shop", "tableId": "reviews"}}
        found.call(
            "POST",
            f"/bigquery/v2/projects/{PROJECT}/datasets/shop/tables",
            table | {"schema": {"fields": [{"name": "id", "type": "STRING"}]}},
        )
        found.call("POST", f"/v1/projects/{PROJECT}/secrets?secretId=key", {"replication": {"automatic": {}}})
        found.call("POST", f"/v1/{SECRET}:addVersion", {"payload": {"data": base64.b64encode(b"k").decode()}})
        found.write_template(template("images/llmbeam:1"))
        running.iam.subnetworks["inner"] = True
        running.monitoring.add_traffic("gemini-2.5-flash", minutes=10, requests_per_minute=60)
        yield found


def deny(*permissions: str, on: str = "") -> Callable[[World], None]:
    return lambda world: world.sandbox.iam.deny(*permissions, on=on)


def change(**parts: Any) -> Callable[[World], None]:
    """Changes parts of the job; fields of an object are added to it."""

    def plant(world: World) -> None:
        for name, value in parts.items():
            world.job[name] = {**world.job[name], **value} if "type" not in value else value
        if "type" in parts.get("model", ()):  # which has no usage tier
            world.job["limits"] = {}

    return plant


def with_key(model: dict[str, Any], **secrets: str) -> Callable[[World], None]:
    def plant(world: World) -> None:
        change(model=model)(world)
        world.patient["secrets"] = secrets

    return plant


def disable(service: str) -> Callable[[World], None]:
    return lambda world: world.sandbox.iam.disabled.add(service)


def expire_the_key(world: World) -> None:
    file = world.proxy.directory / "expired.json"
    key = json.loads(next(world.proxy.directory.glob("*cred*.json")).read_text())
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    made = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    pem = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_text(json.dumps(key | {"private_key": pem.decode()}))
    world.monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))


def break_the_proxy(world: World) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        world.monkeypatch.setenv(name, "http://127.0.0.1:9")
    change(model={"type": "echo"})(world)


def remove_a_package(world: World) -> None:
    change(sink={"type": "kafka", "topic": "moods", "bootstrap_servers": "localhost:9092"})(world)
    real = metadata.version

    def version(name: str) -> str:
        if name == "confluent-kafka":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    world.monkeypatch.setattr("airflow_provider_llmbeam.doctor.examine.version", version)


def reject_most(world: World) -> None:
    world.sandbox.monitoring.add_traffic(
        "gemini-2.5-flash", minutes=10, requests_per_minute=10, rejected_per_minute=1000
    )


def forget_the_tier(world: World) -> None:
    world.job["limits"] = {}


def set_now(world: World) -> None:
    world.now = lambda: time.time() - 900


def name_a_connection(world: World) -> None:
    world.patient = {"gcp_conn_id": "acme_gcp"}
    change(model={"type": "echo"})(world)


def plant_template(**fields: Any) -> Callable[[World], None]:
    made = template("images/llmbeam:1")
    old = made["metadata"]["description"].replace(f"Version {__version__}.", "Version 0.0.1.")
    return lambda world: world.write_template(
        made | {"metadata": made["metadata"] | {"description": old}} | fields
    )


def move_bucket(world: World) -> None:
    world.call("POST", "/storage/v1/b?project=p", {"name": "far-rows", "location": "EUROPE-WEST1"})
    world.job["state_uri"] = "gs://far-rows/state"


def wrong_model_location(world: World) -> None:
    message = (
        "Publisher Model `projects/p/locations/mars/publishers/google/models/gemini-2.5-flash` was not found."
    )
    world.sandbox.faults.queue("gemini.countTokens", Fault(kind="error", http_status=404, message=message))


def wrong_region(world: World) -> None:
    message = (
        "The workflow could not be created: unknown region. Please resubmit to a valid Cloud Dataflow region."
    )
    world.sandbox.faults.queue("dataflow.jobs.list", Fault(kind="error", http_status=400, message=message))


def use_key(state: str | None) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.job["kms_key_name"] = KEY
        if state:
            world.sandbox.iam.keys[KEY] = state

    return plant


def run_on_flink(world: World) -> None:
    world.job["runner"] = {
        "type": "flink",
        "rest_url": "http://127.0.0.1:9",
        "job_endpoint": "127.0.0.1:9",
        "flink_version": "2.1",
        "environment": {"type": "EXTERNAL", "address": "localhost:50000"},
    }
    change(model={"type": "echo"})(world)


def write_to_postgres(**secrets: str) -> Callable[[World], None]:
    def plant(world: World) -> None:
        change(sink={"type": "postgres", "table": "moods"}, model={"type": "echo"})(world)
        del world.job["runner"]
        world.patient["secrets"] = secrets

    return plant


KEY = f"projects/{PROJECT}/locations/us-central1/keyRings/llmbeam/cryptoKeys/state"
DEVELOPER = {"type": "gemini", "name": "gemini-2.5-flash"}
SERVER = {"type": "openai", "name": "llama"}
GRANT = "gcloud projects add-iam-policy-binding llmbeam-sandbox"
#: Fault, how it is planted, words of the sentence, and of what fixes it.
FAULTS: dict[str, tuple[Callable[[World], None], str, str]] = {
    "API disabled": (
        disable("dataflow.googleapis.com"),
        "is disabled in project llmbeam-sandbox",
        "gcloud services enable dataflow.googleapis.com --project=llmbeam-sandbox",
    ),
    "role of the submitter missing": (
        deny("dataflow.jobs.create"),
        f"{SUBMITTER} lacks dataflow.jobs.create",
        f"{GRANT} --member=serviceAccount:{SUBMITTER} --role=roles/dataflow.developer",
    ),
    "role of the workers missing": (
        deny("dataflow.workItems.lease"),
        f"{WORKERS} lacks dataflow.workItems.lease",
        f"{GRANT} --member=serviceAccount:{WORKERS} --role=roles/dataflow.worker",
    ),
    "no right to use the model": (
        deny("aiplatform.endpoints.predict"),
        "lacks aiplatform.endpoints.predict",
        "--role=roles/aiplatform.user",
    ),
    "no right to run under the account of the workers (actAs)": (
        deny("iam.serviceAccounts.actAs"),
        "lacks iam.serviceAccounts.actAs",
        f"gcloud iam service-accounts add-iam-policy-binding {WORKERS}",
    ),
    "account of the workers missing": (
        lambda world: setattr(world.sandbox.iam, "accounts", set()),
        "`runner.service_account`: there is none",
        "gcloud iam service-accounts create workers",
    ),
    "no right to replace objects": (
        deny("storage.objects.delete", on="rows"),
        "lacks storage.objects.delete",
        "gcloud storage buckets add-iam-policy-binding gs://rows",
    ),
    "bucket missing": (
        change(runner={"temp_uri": "gs://no-such-bucket/temp"}),
        "there is none of this name",
        "gcloud storage buckets create gs://no-such-bucket --location=us-central1",
    ),
    "bucket in another region": (
        move_bucket,
        "is in europe-west1, and `runner.location` is 'us-central1'",
        "gcloud storage buckets create gs://far-rows-us-central1 --location=us-central1",
    ),
    "table missing": (
        change(source={"table": f"{PROJECT}.shop.no_such_table"}),
        "`source.table`: there is none",
        f"bq show {PROJECT}:shop.no_such_table",
    ),
    "dataset missing": (
        change(sink={"table": f"{PROJECT}.no_such_set.moods"}),
        "`sink.location`: there is none",
        f"bq mk --dataset --location=LOCATION {PROJECT}:no_such_set",
    ),
    "dataset in another location": (
        change(sink={"location": "EU"}),
        "and `sink.location` is 'EU'",
        "set `sink.location` to 'US'",
    ),
    "no right to write the dataset": (
        deny("bigquery.tables.updateData"),
        "lacks bigquery.tables.updateData in the project, and the dataset does not name it",
        "bq add-iam-policy-binding",
    ),
    "secret missing": (
        change(runner={"environment_secrets": {"OTHER_KEY": f"projects/{PROJECT}/secrets/none/versions/1"}}),
        "`runner.environment_secrets`: there is none",
        f"gcloud secrets create projects/{PROJECT}/secrets/none",
    ),
    "no right to read the secret": (
        deny("secretmanager.versions.access"),
        f"{WORKERS} lacks secretmanager.versions.access",
        f"gcloud secrets add-iam-policy-binding {SECRET}",
    ),
    "wrong region of Dataflow": (wrong_region, "valid Cloud Dataflow region", "gcloud compute regions list"),
    "no Flex Template": (
        change(runner={"flex_template": "gs://rows/none.json"}),
        "There is no object 'gs://rows/none.json'",
        "scripts/build-template",
    ),
    "Flex Template of another version": (plant_template(), "of version 0.0.1", "scripts/build-template"),
    "subnetwork without Private Google Access": (
        lambda world: world.sandbox.iam.subnetworks.update(inner=False),
        "has no Private Google Access",
        "gcloud compute networks subnets update inner --region=us-central1",
    ),
    "subnetwork missing": (
        lambda world: world.sandbox.iam.subnetworks.clear(),
        "There is no subnetwork",
        "gcloud compute networks subnets list",
    ),
    "unknown model": (
        change(model={"type": "gemini", "name": "text-bison", "project": PROJECT}),
        "text-bison",
        "set `model.name` and `model.location`",
    ),
    "wrong location of the model": (
        wrong_model_location,
        "locations/mars",
        "set `model.name` and `model.location`",
    ),
    "model that a server does not list": (
        with_key(SERVER | {"name": "no-such-model"}, OPENAI_API_KEY="sandbox"),
        "has no such model",
        "set `model.name`",
    ),
    "wrong key of the model": (
        with_key(DEVELOPER, GOOGLE_API_KEY="invalid"),
        "API key not valid",
        "airflow connections add llmbeam_default",
    ),
    "no key of the model": (change(model=SERVER), "needs a key", "airflow connections add llmbeam_default"),
    "model server unreachable": (
        change(model=SERVER | {"base_url": "http://127.0.0.1:9/v1"}),
        "127.0.0.1",
        "curl -sSI http://127.0.0.1:9",
    ),
    "no quota left": (reject_most, "is exhausted", "console.cloud.google.com/iam-admin/quotas"),
    "expired key": (expire_the_key, "Invalid JWT Signature", "gcloud auth application-default login"),
    "Airflow connection missing": (
        name_a_connection,
        "there is no connection 'acme_gcp'",
        "airflow connections add acme_gcp --conn-type google_cloud_platform",
    ),
    "proxy that does not answer": (break_the_proxy, "through the proxy of HTTPS_PROXY", "correct HTTPS_PROXY"),
    "clock that is slow": (set_now, " s slow: Google refuses", "timedatectl set-ntp true"),
    "key of Cloud KMS missing": (
        use_key(None),
        "`kms_key_name`: there is none of this name",
        f"gcloud kms keys describe {KEY}",
    ),
    "key of Cloud KMS disabled": (
        use_key("DISABLED"),
        "its primary version is in state DISABLED",
        f"gcloud kms keys versions enable {KEY}/cryptoKeyVersions/1",
    ),
    "Flink unreachable": (run_on_flink, "Flink did not answer", "curl -sS http://127.0.0.1:9/overview"),
    "Kafka unreachable": (
        change(sink={"type": "kafka", "topic": "moods", "bootstrap_servers": "127.0.0.1:9,localhost:9"}),
        "127.0.0.1:9 accepts no connection: Connection refused; localhost:9 accepts",
        "nc -vz localhost 9",
    ),
    "PostgreSQL unreachable": (
        write_to_postgres(LLMBEAM_POSTGRES_DSN="postgresql://me:secret@127.0.0.1:9/shop"),
        "127.0.0.1:9 accepts no connection: Connection refused",
        "nc -vz 127.0.0.1 9",
    ),
    "PostgreSQL not named": (
        write_to_postgres(),
        "expected `conn_id` in a task, or LLMBEAM_POSTGRES_DSN",
        "export LLMBEAM_POSTGRES_DSN=",
    ),
    "extra not installed": (
        remove_a_package,
        "confluent-kafka>=2.12, which is not installed",
        "pip install 'airflow-provider-llmbeam[kafka]'",
    ),
}


def test_a_job_that_has_all_it_needs_has_no_fault(world):
    found = Diagnosis(world.findings())
    assert [each for each in found.findings if each.verdict != "holds"] == []
    assert not found.has_fault
    assert len(found.findings) > 25


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_with_what_mends_it(world, name):
    plant, words, remedy = FAULTS[name]
    plant(world)
    faults = [each for each in world.findings() if each.verdict == "fault"]
    assert any(words in each.sentence and remedy in each.remedy for each in faults), faults


def test_a_key_and_servers_that_are_there_hold(world):
    use_key("ENABLED")(world)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        brokers = f"127.0.0.1:9,127.0.0.1:{port}"
        change(sink={"type": "kafka", "topic": "moods", "bootstrap_servers": brokers})(world)
        found = {each.subject: each for each in world.findings()}
    assert found[f"key {KEY}"].verdict == "holds"
    kafka = found["Kafka of the sink"]
    assert (kafka.verdict, kafka.sentence) == ("holds", f"127.0.0.1:{port} accepts connections")


def test_a_key_that_the_account_may_not_see_is_no_fault(world):
    use_key("ENABLED")(world)
    world.sandbox.faults.queue("cloudkms.cryptoKeys.get", Fault(kind="error", http_status=403))
    (found,) = [each for each in world.findings() if each.verdict != "holds"]
    assert (found.verdict, found.subject) == ("unknown", f"key {KEY}")


def test_servers_whose_settings_are_in_secret_manager_are_unknown(world):
    runner = {"environment_secrets": {"LLMBEAM_POSTGRES_DSN": f"{SECRET}/versions/latest"}}
    change(sink={"type": "postgres", "table": "moods"}, runner=runner)(world)
    (found,) = [each for each in world.findings() if each.verdict != "holds"]
    assert (found.verdict, found.subject) == ("unknown", "PostgreSQL of the sink")


def test_an_unknown_usage_tier_is_no_fault_and_is_named(world):
    forget_the_tier(world)
    (found,) = [each for each in world.findings() if each.verdict != "holds"]
    assert (found.verdict, found.subject) == ("unknown", "usage tier of gemini-2.5-flash")
    assert "`usage_tier` in the extra of the connection" in found.remedy


def test_the_default_account_of_the_workers_is_examined(world):
    del world.job["runner"]["service_account"]
    default = {each.sentence for each in world.findings() if "roles/dataflow.worker" in each.subject}
    assert len(default) == 1
    assert "-compute@developer.gserviceaccount.com has its permissions" in default.pop()
    world.sandbox.faults.queue("cloudresourcemanager.projects.get", Fault(kind="error", http_status=403))
    (found,) = [each for each in world.findings() if each.verdict != "holds"]
    assert (found.verdict, found.remedy) == ("unknown", "set `runner.service_account`")


def test_what_the_account_may_not_see_is_unknown(world):
    world.sandbox.faults.queue("serviceusage.services.batchGet", Fault(kind="error", http_status=403))
    (found,) = [each for each in world.findings() if each.verdict != "holds"]
    assert found.verdict == "unknown"
    assert "roles/serviceusage.serviceUsageViewer" in found.sentence


def test_a_dataset_that_names_the_account_may_be_written(world):
    deny("bigquery.tables.updateData")(world)
    access = [{"role": "WRITER", "userByEmail": email} for email in (WORKERS, SUBMITTER)]
    world.call("PATCH", f"/bigquery/v2/projects/{PROJECT}/datasets/shop", {"access": access})
    assert not Diagnosis(world.findings()).has_fault


def test_without_a_job_missing_credentials_are_no_fault(monkeypatch, served):
    for _ in for_one_test(served, monkeypatch):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file.json")
        found = {each.subject: each.verdict for each in examine(Patient())}
    assert found["packages"] == "holds"
    assert found["credentials of google_cloud_default"] == "unknown"
