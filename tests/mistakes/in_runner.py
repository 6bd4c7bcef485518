"""Mistakes in `runner`, and in the spec as a whole."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

MISTAKES = (
    Mistake(
        changes={"runner": "spark"},
        sentence=(
            "`runner.type`: must be one of 'direct', 'prism', 'flink', 'portable', 'dataflow'; got "
            "'spark'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"runner": {"type": "spark"}},
        sentence=(
            "`runner.type`: must be one of 'direct', 'prism', 'flink', 'portable', 'dataflow'; got "
            "'spark'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"runner": {"type": "dataflow"}},
        sentence="`runner.location`: this field is needed. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"runner": {"type": "dataflow", "project": "my-project", "location": "europe-west1-b"}},
        sentence=(
            "`runner.location`: must be a region of Google Cloud, e.g. 'europe-west1', without a "
            "zone; got 'europe-west1-b'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {
                "type": "dataflow",
                "project": "my-project",
                "location": "europe-west1",
                "machine": "n2-standard-4",
            }
        },
        sentence=(
            "`runner.machine`: there is no such field; did you mean `machine_type`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"runner": {"type": "dataflow", "project": "my-project", "location": "europe-west1"}},
        sentence=(
            "`source.uri`: must be on Cloud Storage, gs://…: workers of Dataflow (`runner`) "
            "cannot read `source.uri` 'rows.jsonl' and `sink.uri` 'out/' of this machine. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {"type": "dataflow", "project": "my-project", "location": "europe-west1"},
            "source": {"uri": "gs://b/rows.jsonl", "key": ["id"]},
            "sink": {"uri": "gs://b/out"},
        },
        sentence=(
            "`runner.environment_secrets`: the workers need `GOOGLE_API_KEY` for the model: name "
            "its secret, {'GOOGLE_API_KEY': 'projects/…/secrets/…/versions/latest'}, or set "
            "`model.project` to use Vertex AI. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {
                "type": "dataflow",
                "project": "my-project",
                "location": "europe-west1",
                "temp_uri": "/tmp",
            },
            "source": {"uri": "gs://b/rows.jsonl", "key": ["id"]},
            "sink": {"uri": "gs://b/out"},
        },
        sentence=(
            "`runner.temp_uri`: must be an address on Cloud Storage, e.g. 'gs://my-bucket/temp'; "
            "got '/tmp'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {
                "type": "dataflow",
                "project": "my-project",
                "location": "europe-west1",
                "labels": {"Team": "x"},
            }
        },
        sentence=(
            "`runner.labels`: has a label 'Team': 'x'; both must be at most 63 of a-z, 0-9, _ and "
            "-, and the key must start with a letter; got {'Team': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {
                "type": "dataflow",
                "project": "my-project",
                "location": "europe-west1",
                "poll_interval_seconds": 1,
            }
        },
        sentence=(
            "`runner.poll_interval_seconds`: must be greater than or equal to 10; got 1. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={"runner": {"type": "portable", "job_endpoint": "localhost:8099"}},
        sentence="`runner.environment`: this field is needed. Nothing was sent or billed.",
    ),
    Mistake(
        changes={
            "runner": {
                "type": "portable",
                "job_endpoint": "localhost:8099",
                "environment": {"type": "EXTERNAL", "address": "localhost:50000"},
            }
        },
        sentence=(
            "`source.uri`: must be an address that all workers reach, such as gs://… or the absolute path of a "
            "disk that they mount, with a runner of type 'portable'; got 'rows.jsonl'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {
                "type": "flink",
                "rest_url": "http://flink-jobmanager:8081",
                "job_endpoint": "localhost:8099",
                "flink_version": "1.19",
                "task_managers": 2,
                "environment": {"type": "LOOPBACK"},
            },
        },
        sentence=(
            "`runner.environment.type`: must be 'EXTERNAL', 'PROCESS' or 'DOCKER': the process that submits the "
            "job, in which 'LOOPBACK' has the workers, ends; got 'LOOPBACK'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {
                "type": "flink",
                "rest_url": "http://flink-jobmanager:8081",
                "job_endpoint": "localhost:8099",
                "flink_version": "1.19",
                "task_managers": 2,
                "environment": {"type": "EXTERNAL", "address": "worker-pool:50000"},
            },
        },
        sentence=(
            "`runner.environment.address`: must be on localhost with several task managers: a pool that they "
            "share stops workers in use; got 'worker-pool:50000'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "source.uri": "/mnt/rows.jsonl",
            "sink": "/mnt/out",
            "runner": {
                "type": "flink",
                "rest_url": "http://flink-jobmanager:8081",
                "flink_version": "1.19",
                "environment": {"type": "EXTERNAL", "address": "localhost:50000"},
            },
        },
        sentence=(
            "`runner.job_endpoint`: this field, or `job_server_jar`, is needed. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"name": "my job"},
        sentence=(
            "`name`: must be a name of at most 127 letters, digits and . _ -, beginning with a "
            "letter or a digit; got 'my job'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"retries": 3},
        sentence=(
            "`retries`: there is no such field; did you mean `limits.max_attempts`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"promt": {"template": "x"}},
        sentence="`promt`: there is no such field; did you mean `prompt`? Nothing was sent or billed.",
    ),
    Mistake(changes={"version": 2}, sentence="`version`: must be 1; got 2. Nothing was sent or billed."),
    Mistake(
        changes={
            "source": {"uri": "gs://b/in.csv", "key": "id"},
            "sink": "gs://b/out",
            "runner": {"type": "dataflow", "project": "my-project", "location": "europe-west1", "region": "x"},
        },
        sentence="`runner.region`: there is no such field; did you mean `location`? Nothing was sent or billed.",
    ),
    Mistake(
        changes={
            "source": {"uri": "gs://b/in.csv", "key": "id"},
            "sink": "out",
            "runner": {"type": "dataflow", "project": "my-project", "location": "europe-west1"},
        },
        sentence=(
            "`sink.uri`: must be on Cloud Storage, gs://…: workers of Dataflow (`runner`) cannot "
            "read `sink.uri` 'out/' of this machine. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"souce": {}},
        sentence="`souce`: there is no such field; did you mean `source`? Nothing was sent or billed.",
    ),
    Mistake(
        changes={
            "runner": {
                "type": "dataflow",
                "project": "my-project",
                "location": "europe-west1",
                "environment_secrets": {"GOOGLE_API_KEY": "AIzaSyA-the-key-itself"},
            },
            "source": {"uri": "gs://b/in.csv", "key": "id"},
            "sink": "gs://b/out",
        },
        sentence=(
            "`runner.environment_secrets`: must name a secret for 'GOOGLE_API_KEY': "
            "'projects/…/secrets/…/versions/latest'; got '…'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {
                "type": "dataflow",
                "project": "my-project",
                "location": "europe-west1",
                "flex_template": "gs://b/t.json",
            },
            "source": {"type": "kafka", "topic": "tickets", "conn_id": "queue"},
            "model": {"type": "echo"},
            "sink": "gs://b/out",
        },
        sentence=(
            "`runner.flex_template`: must be left out with a source of type 'kafka', which the Airflow "
            "worker reads. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "runner": {"type": "dataflow", "project": "my-project", "location": "europe-west1"},
            "source": {"uri": "gs://b/in.csv", "key": "id"},
            "model": {"type": "echo"},
            "sink": {"type": "kafka", "topic": "labels", "conn_id": "queue"},
            "state_uri": "gs://b/state/",
        },
        sentence=(
            "`runner.environment_secrets`: the workers need 'LLMBEAM_KAFKA_SINK_CONFIG' for the sink: name "
            "the secret that holds it, {'LLMBEAM_KAFKA_SINK_CONFIG': 'projects/…/secrets/…/versions/latest'}. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"kms_key_name": "my-key"},
        sentence=(
            "`kms_key_name`: must be a key of Cloud KMS without a version, "
            "'projects/…/locations/…/keyRings/…/cryptoKeys/…'; got 'my-key'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "kms_key_name": "projects/p/locations/global/keyRings/r/cryptoKeys/k",
            "runner": {"type": "dataflow", "project": "my-project", "location": "europe-west1"},
            "source": {"uri": "gs://b/rows.jsonl", "key": ["id"]},
            "sink": {"uri": "gs://b/out"},
        },
        sentence=(
            "`kms_key_name`: must be a key in 'europe-west1' for `runner.location` 'europe-west1': a key encrypts "
            "only in its own location; got 'projects/p/locations/global/keyRings/r/cryptoKeys/k'. Nothing was "
            "sent or billed."
        ),
    ),
    Mistake(
        changes={
            "kms_key_name": "projects/p/locations/us/keyRings/r/cryptoKeys/k",
            "sink": {"type": "bigquery", "table": "p.d.t", "location": "EU"},
            "state_uri": "gs://b/state",
        },
        sentence=(
            "`kms_key_name`: must be a key in 'europe' for `sink.location` 'EU': a key encrypts only in its own "
            "location; got 'projects/p/locations/us/keyRings/r/cryptoKeys/k'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "kms_key_name": "projects/p/locations/us/keyRings/r/cryptoKeys/k",
            "inference": "batch",
        },
        sentence=(
            "`kms_key_name`: must be left out with batch inference: The Gemini Developer API keeps files with "
            "prompts, and takes no key of Cloud KMS; Gemini on Vertex AI (`model.project`) takes one. Nothing was "
            "sent or billed."
        ),
        found="start",
    ),
    Mistake(
        changes={
            "kms_key_name": "projects/p/locations/us/keyRings/r/cryptoKeys/k",
            "prompt.media": [{"uri": "photos/{{ row.id }}.jpg"}],
        },
        sentence=(
            "`kms_key_name`: must be left out with media: The Gemini Developer API keeps files with prompts, and "
            "takes no key of Cloud KMS; Gemini on Vertex AI (`model.project`) takes one. Nothing was sent or "
            "billed."
        ),
        found="start",
    ),
    Mistake(
        changes={
            "runner": {
                "type": "dataflow",
                "project": "my-project",
                "location": "europe-west1",
                "options": {"dataflow_kms_key": "projects/p/locations/europe-west1/keyRings/r/cryptoKeys/k"},
            },
        },
        sentence=(
            "`runner.options`: has 'dataflow_kms_key', which `kms_key_name` sets already; got "
            "{'dataflow_kms_key': …}. Nothing was sent or billed."
        ),
    ),
)
