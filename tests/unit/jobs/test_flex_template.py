from __future__ import annotations

from google.cloud.dataflow_v1beta3 import FlexTemplateRuntimeEnvironment

from airflow_provider_llmbeam.jobs.dataflow import environment
from airflow_provider_llmbeam.spec.runner import DataflowRunner

KEY = "projects/keys/locations/europe-west1/keyRings/llmbeam/cryptoKeys/state"


def of(key=None, **fields):
    runner = DataflowRunner(type="dataflow", location="europe-west1", **fields)
    return environment(runner, "gs://rows/tmp/", key)


def test_unset_runner_fields_are_left_to_dataflow():
    assert of() == {
        "temp_location": "gs://rows/tmp/",
        "staging_location": "gs://rows/tmp/",
        "ip_configuration": "WORKER_IP_PUBLIC",
    }


def test_every_runner_field_has_a_template_field():
    full = of(
        key=KEY,
        machine_type="n2-standard-2",
        num_workers=2,
        max_workers=20,
        service_account="w@acme.iam",
        network="n",
        subnetwork="regions/r/subnetworks/s",
        use_public_ips=False,
        flexrs="cost_optimized",
        container_image="acme/image",
        options={"experiments": ["e1", "e2"], "disk_size_gb": 50, "dry": False, "wet": True, "tag": ["a", "b"]},
    )
    made = FlexTemplateRuntimeEnvironment(**full)
    assert made.kms_key_name == KEY
    assert made.ip_configuration.name == "WORKER_IP_PRIVATE"
    assert made.flexrs_goal.name == "FLEXRS_COST_OPTIMIZED"
    assert (made.num_workers, made.max_workers, made.machine_type) == (2, 20, "n2-standard-2")
    assert (made.network, made.service_account_email) == ("n", "w@acme.iam")
    assert made.sdk_container_image == "acme/image"
    assert list(made.additional_experiments) == ["e1", "e2"]
    assert list(made.additional_pipeline_options) == ["--disk_size_gb=50", "--wet", "--tag=a", "--tag=b"]


def test_one_experiment_needs_no_list():
    assert of(options={"experiments": "e1"})["additional_experiments"] == ["e1"]
