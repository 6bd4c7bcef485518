from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import CloudRunEndpoint, VertexEndpoint, parse_endpoint

SECRET = "projects/p/secrets/hub/versions/latest"


def vertex(**fields: Any) -> VertexEndpoint:
    given = {"model": "google/gemma3@gemma-3-4b-it", "locations": ["us-central1"], "accept_eula": True}
    found = parse_endpoint({"type": "vertex", **given, **fields})
    assert isinstance(found, VertexEndpoint)
    return found


def container(**fields: Any) -> VertexEndpoint:
    given = {"model": "google/gemma-3-4b-it", "container_image": "vllm/vllm-openai", "hf_token_secret": SECRET}
    return vertex(**given | fields)


def cloud_run(**fields: Any) -> CloudRunEndpoint:
    given = {"model": "google/gemma-3-4b-it", "locations": ["us-central1"], "hf_token_secret": SECRET}
    found = parse_endpoint({"type": "cloud_run", **given, **fields})
    assert isinstance(found, CloudRunEndpoint)
    return found


@pytest.mark.parametrize(
    ("size", "machine", "sequences"),
    [("1b", "g2-standard-12", 64), ("4b", "g2-standard-12", 38), ("12b", "g2-standard-24", 16)],
)
def test_a_model_gets_the_smallest_machine_that_holds_it(size: str, machine: str, sequences: int) -> None:
    endpoint = vertex(model=f"google/gemma3@gemma-3-{size}-it")
    assert endpoint.machine is not None
    assert (endpoint.machine.machine_type, endpoint.sequences, endpoint.length_tokens) == (
        machine,
        sequences,
        8192,
    )


@pytest.mark.parametrize(
    ("size", "gpu", "cpu", "memory"),
    [
        ("1b", "nvidia-l4", 8, "32Gi"),
        ("4b", "nvidia-l4", 8, "32Gi"),
        ("12b", "nvidia-rtx-pro-6000", 20, "80Gi"),
        ("27b", "nvidia-rtx-pro-6000", 20, "80Gi"),
    ],
)
def test_cloud_run_gives_a_model_the_smallest_gpu_that_holds_it(
    size: str, gpu: str, cpu: int, memory: str
) -> None:
    endpoint = cloud_run(model=f"google/gemma-3-{size}-it")
    assert endpoint.machine.accelerator_type == gpu
    assert (endpoint.resolved_cpu, endpoint.resolved_memory) == (cpu, memory)
    assert endpoint.sequences is not None


def test_a_longer_context_needs_a_larger_machine() -> None:
    small, large = container(max_num_seqs=16), container(max_num_seqs=16, max_model_length_tokens=131_072)
    assert small.machine is not None
    assert large.machine is not None
    assert small.machine.accelerator_type == "NVIDIA_L4"
    assert large.machine.accelerator_count > 1


def test_the_machine_of_an_unknown_model_is_left_to_model_garden() -> None:
    endpoint = vertex(model="meta/llama3-3@llama-3.3-70b-instruct")
    assert (endpoint.machine, endpoint.sequences, endpoint.length_tokens) == (None, None, None)


def test_cloud_run_gives_an_unknown_model_an_l4() -> None:
    endpoint = cloud_run(model="gs://bucket/my-own", hf_token_secret=None)
    assert endpoint.machine.accelerator_type == "nvidia-l4"
    assert endpoint.sequences is None


@pytest.mark.parametrize("model", ["google/gemma-3-27b-it-qat-q4_0-gguf", "someone/gemma-3-27b-it-awq"])
def test_a_quantised_copy_of_a_known_model_is_not_sized_by_its_name(model: str) -> None:
    assert container(model=model, machine_type="g2-standard-12").sequences is None


@pytest.mark.parametrize("args", [["--quantization=fp8"], ["--quantization", "fp8"], ["--kv_cache_dtype=fp8"]])
def test_arguments_that_change_the_sum_leave_it_to_the_server(args: list[str]) -> None:
    container(model="google/gemma-3-12b-it", machine_type="g2-standard-12", container_args=args)
    with pytest.raises(JobSpecError, match="GB of GPU memory"):
        container(model="google/gemma-3-12b-it", machine_type="g2-standard-12")


def test_a_model_that_does_not_fit_is_refused_with_the_memory_sum_and_alternatives() -> None:
    with pytest.raises(JobSpecError) as caught:
        container(machine_type="g2-standard-12", max_num_seqs=128)
    words = str(caught.value)
    assert "needs 47.6 GB of GPU memory for google/gemma-3-4b-it and has 21.6 GB" in words
    assert "8.6 GB of weights (4.30 billion parameters × 2 bytes)" in words
    assert "37.0 GB of KV cache (`max_num_seqs` 128 × 0.29 GB for `max_model_length_tokens` 8,192)" in words
    assert "2.0 GB overhead, on 1 × NVIDIA_L4 of 24 GB, 90 % of which vLLM uses" in words
    assert "`max_num_seqs` of at most 38, or `max_model_length_tokens` of at most" in words
    assert "a larger or second GPU, e.g. g2-standard-48 (4 × NVIDIA_L4)" in words
    assert words.endswith("Nothing was sent or billed.")


def test_the_suggested_alternatives_fit() -> None:
    with pytest.raises(JobSpecError) as caught:
        container(machine_type="g2-standard-12", max_num_seqs=64)
    found = re.search(
        r"`max_num_seqs` of at most (\d+), or `max_model_length_tokens` of at most ([\d,]+)", str(caught.value)
    )
    assert found
    sequences, length = int(found[1]), int(found[2].replace(",", ""))
    container(machine_type="g2-standard-12", max_num_seqs=sequences)
    container(machine_type="g2-standard-12", max_num_seqs=64, max_model_length_tokens=length)
    with pytest.raises(JobSpecError, match="GB of GPU memory"):
        container(machine_type="g2-standard-12", max_num_seqs=sequences + 1)


def test_weights_that_do_not_fit_leave_only_a_larger_gpu() -> None:
    with pytest.raises(JobSpecError, match=r"uses; use a larger or second GPU, e\.g\. g2-standard-48"):
        vertex(model="google/gemma3@gemma-3-27b-it", machine_type="g2-standard-12")


def test_heads_that_cannot_be_divided_among_the_gpus_are_refused() -> None:
    with pytest.raises(JobSpecError, match=r"has 8 GPUs, and the 4 attention heads .* a power of two up to 4"):
        vertex(model="google/gemma3@gemma-3-1b-it", machine_type="g2-standard-96")


def test_a_context_longer_than_the_models_is_refused() -> None:
    with pytest.raises(JobSpecError, match=r"of 65,536, and .*gemma-3-1b-it takes sequences of at most 32,768"):
        container(model="google/gemma-3-1b-it", max_model_length_tokens=65_536)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"locations": []}, "`locations`: .*at least 1"),
        ({"locations": ["us-central1-a"]}, "`locations.0`"),
        ({"model": "gemma"}, "must be a model of Model Garden, 'google/gemma3@gemma-3-4b-it', or"),
        ({"accept_eula": False}, r"accept its terms \(ai.google.dev/gemma/terms\): set `accept_eula`"),
        (
            {"model": "google/gemma-3-4b-it"},
            "needs `hf_token_secret`: the Hugging Face hub serves google/gemma-3-4b-it",
        ),
        ({"hf_token_secret": "hf_abc"}, r"`hf_token_secret`: .*got '…'"),
        ({"accelerator_type": "NVIDIA_L4"}, "which needs `machine_type`"),
        ({"machine_type": "n1-standard-8"}, "needs `accelerator_type` and `accelerator_count` for"),
        (
            {"machine_type": "g2-standard-12", "accelerator_type": "NVIDIA_TESLA_A100"},
            "comes with 1 × NVIDIA_L4, and asks for 1 × NVIDIA_TESLA_A100",
        ),
        ({"machine_type": "g2-standard-12", "accelerator_count": 2}, "and asks for 2 × NVIDIA_L4"),
        ({"container_args": ["--enforce-eager"]}, "which need `container_image`"),
        ({"container_image": "vllm/vllm-openai"}, "is one of Model Garden"),
        ({"min_replicas": 2}, r"`min_replicas`, 2\) above the maximum \(`max_replicas`, 1\)"),
        ({"expires_after_seconds": 60}, "`expires_after_seconds`"),
        ({"max_num_seqs": 0}, "`max_num_seqs`"),
        ({"network": "default"}, "`network`"),
        ({"gpu_type": "nvidia-l4"}, "`gpu_type`: there is no such field"),
    ],
)
def test_an_invalid_vertex_ai_endpoint_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(JobSpecError, match=words):
        vertex(**fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("network", "projects/1/global/networks/private"),
        ("service_account", "server@acme.iam.gserviceaccount.com"),
        ("max_model_length_tokens", 4096),
        ("max_num_seqs", 8),
    ],
)
@pytest.mark.parametrize("model", ["google/gemma3@gemma-3-4b-it", "Qwen/Qwen3-4B"])
def test_what_model_garden_would_drop_is_refused_and_a_container_takes_it(
    model: str, name: str, value: object
) -> None:
    with pytest.raises(JobSpecError, match=f"has `{name}`, which Model Garden does not take: .*`container_image`"):
        vertex(model=model, **{name: value})
    assert getattr(container(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), [("spot", True), ("min_replicas", 2), ("max_replicas", 3)])
def test_what_describes_machines_that_model_garden_chooses_is_refused(name: str, value: object) -> None:
    fields = {"model": "Qwen/Qwen3-4B", "max_replicas": 3 if name == "min_replicas" else 1, name: value}
    with pytest.raises(JobSpecError, match=r"has `.*`, which needs `machine_type`"):
        vertex(**fields)
    assert getattr(vertex(**fields, machine_type="g2-standard-12"), name) == value
    assert getattr(vertex(**fields | {"model": "google/gemma3@gemma-3-4b-it"}), name) == value


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"container_args": ["--max-model-len=4096"]}, "which `max_model_length_tokens` sets already"),
        ({"container_args": ["--max_num_seqs", "4"]}, "which `max_num_seqs` sets already"),
        ({"container_args": ["--port=9000"]}, "has '--port', which is set already"),
        ({"container_env": {"HF_TOKEN": "hf_abc"}}, "name the secret that holds it in `hf_token_secret`; got '…'"),
        ({"model": "someone/else"}, "needs `machine_type`: how much memory someone/else takes is not known"),
    ],
)
def test_an_invalid_container_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(JobSpecError, match=words) as caught:
        container(**fields)
    assert "hf_abc" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"locations": []}, "`locations`: .*at least 1"),
        ({"model": "google/gemma3@gemma-3-4b-it"}, "or a directory on Cloud Storage"),
        ({"hf_token_secret": None}, "needs `hf_token_secret`"),
        ({"args": ["--model=other"]}, "which `model` sets already"),
        (
            {"args": ["--enforce-eager", "--served_model_name=mine"]},
            "'--served-model-name', which `model` sets already",
        ),
        ({"args": ["--port", "9000"]}, "has '--port', which is set already"),
        ({"gpu_count": 2}, r"asks for 2 GPUs \(`gpu_count`\), and Cloud Run gives an instance one"),
        ({"cpu": 2}, r"has 2 cores \(`cpu`\), and Cloud Run requires at least 4 with nvidia-l4"),
        ({"memory": "8Gi"}, r"has 8Gi \(`memory`\), and Cloud Run requires at least 16Gi"),
        ({"memory": "8192Mi"}, "has 8192Mi"),
        ({"model": "google/gemma-3-27b-it", "cpu": 8}, "requires at least 20 with nvidia-rtx-pro-6000"),
        ({"memory": "32 GB"}, "`memory`"),
        ({"min_instances": 2}, r"`min_instances`, 2\) than at most \(`max_instances`, 1\)"),
        ({"subnetwork": "s"}, "has `subnetwork`, which needs `network`"),
        ({"ingress": "none"}, "`ingress`"),
        ({"concurrency": 2000}, "`concurrency`"),
        ({"max_num_seqs": 500}, "GB of GPU memory"),
        ({"model": "google/gemma-3-12b-it", "gpu_type": "nvidia-l4"}, r"e\.g\. nvidia-rtx-pro-6000"),
    ],
)
def test_an_invalid_cloud_run_service_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(JobSpecError, match=words):
        cloud_run(**fields)


REGISTERED = "projects/acme/locations/us-central1/models/support"


def registered(**fields: Any) -> VertexEndpoint:
    given = {"model": f"{REGISTERED}@champion", "machine_type": "g2-standard-12", "accept_eula": False}
    return vertex(**given | fields)


@pytest.mark.parametrize("model", [REGISTERED, f"{REGISTERED}@champion", f"{REGISTERED}@3"])
def test_a_registered_model_runs_on_the_given_machine_with_its_own_container(model: str) -> None:
    endpoint = registered(model=model)
    assert endpoint.machine is not None
    assert (endpoint.machine.machine_type, endpoint.machine.accelerator_type) == ("g2-standard-12", "NVIDIA_L4")


def test_a_registered_model_is_not_sized_by_its_name() -> None:
    assert registered(model=f"{REGISTERED.replace('support', 'gemma-3-27b-4bit')}@3").machine is not None


def test_a_registered_model_is_deployed_with_the_network_the_account_and_the_machines_that_are_given() -> None:
    network, account = "projects/1/global/networks/private", "server@acme.iam.gserviceaccount.com"
    endpoint = registered(network=network, service_account=account, spot=True, max_replicas=2)
    assert (endpoint.network, endpoint.service_account, endpoint.spot) == (network, account, True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": f"{REGISTERED}@0"}, "of the Model Registry, 'projects/…/locations/…/models/…@champion'"),
        ({"machine_type": None}, "needs `machine_type`: how much memory projects/acme/.*@champion takes"),
        ({"locations": ["europe-west4"]}, "has `locations` europe-west4, .* deployed in us-central1"),
        ({"locations": ["us-central1", "europe-west4"]}, "can only be deployed in us-central1"),
        ({"accept_eula": True}, "has `accept_eula`, which the container of the registered model"),
        ({"container_image": "vllm/vllm-openai"}, "has `container_image`, which"),
        ({"hf_token_secret": SECRET}, "has `hf_token_secret`, which"),
        ({"max_num_seqs": 8}, "has `max_num_seqs`, which"),
        ({"max_model_length_tokens": 4096}, "has `max_model_length_tokens`, which"),
    ],
)
def test_a_registered_model_refuses_what_its_container_or_its_region_decides(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(JobSpecError, match=words):
        registered(**fields)


def test_a_canary_is_another_version_with_a_percentage_of_the_requests() -> None:
    endpoint = registered(model=f"{REGISTERED}@3", canary={"model": f"{REGISTERED}@4", "percent": 25})
    assert endpoint.deployed_models == {"1": f"{REGISTERED}@3", "2": f"{REGISTERED}@4"}
    assert endpoint.traffic_split == {"1": 75, "2": 25}
    assert endpoint.chat_routes == ("raw_predict",), "the method that names the version that answered"
    assert registered().traffic_split == {"1": 100}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "google/gemma-3-4b-it"}, "needs two registered models of one region"),
        ({"canary": {"model": "google/gemma-3-4b-it"}}, "needs two registered models of one region"),
        ({"canary": {"model": f"{REGISTERED.replace('us-central1', 'europe-west4')}@4"}}, "of one region"),
        ({"canary": {"model": f"{REGISTERED}@champion"}}, "has the same version"),
        ({"canary": {"model": f"{REGISTERED}@4", "percent": 100}}, "less than or equal to 99|at most 99|99"),
        ({"chat_route": "chat_completions"}, "which needs `chat_route` 'raw_predict'"),
        ({"network": "projects/1/global/networks/private"}, "no peered `network`"),
    ],
)
def test_a_canary_that_vertex_ai_could_not_split_or_tell_apart_is_refused(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(JobSpecError, match=words):
        registered(**{"canary": {"model": f"{REGISTERED}@4"}} | fields)


def test_a_model_from_the_hub_needs_room_in_the_memory_of_the_instance_and_one_on_cloud_storage_none() -> None:
    fields = {"gpu_type": "nvidia-h100-80gb", "cpu": 8, "memory": "32Gi"}
    with pytest.raises(JobSpecError, match="51 GiB of weights from the hub"):
        cloud_run(model="google/gemma-3-27b-it", **fields)
    cloud_run(model="gs://bucket/gemma-3-27b-it", **fields)


def test_an_unknown_machine_is_used_as_given() -> None:
    endpoint = vertex(machine_type="n1-standard-8", accelerator_type="NVIDIA_TESLA_T4", accelerator_count=1)
    assert str(endpoint.machine) == "n1-standard-8 (1 × NVIDIA_TESLA_T4)"
    assert endpoint.sequences == 13


@pytest.mark.parametrize("data", [{}, {"type": "ollama"}])
def test_an_endpoint_needs_a_type(data: dict[str, str]) -> None:
    with pytest.raises(JobSpecError, match=r"^`type`: "):
        parse_endpoint(data)


def test_parsing_an_endpoint_returns_an_equal_endpoint() -> None:
    endpoint = vertex()
    assert parse_endpoint(endpoint) == parse_endpoint(endpoint.model_dump(mode="json")) == endpoint


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cpu": 5, "memory": "16Gi"}, r"has 5 cores \(`cpu`\), and Cloud Run has 4, 6 or 8 with nvidia-l4"),
        ({"cpu": 12}, "has 12 cores"),
        ({"cpu": 4}, r"has 32Gi \(`memory`\), and Cloud Run allows at most 16Gi with 4 cores"),
        ({"cpu": 6, "memory": "25Gi"}, "at most 24Gi with 6 cores"),
        ({"memory": "33Gi"}, "at most 32Gi with 8 cores"),
    ],
)
def test_cores_and_memory_that_cloud_run_does_not_have_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(JobSpecError, match=words):
        cloud_run(model="Qwen/Qwen3-0.6B", gpu_type="nvidia-l4", **fields)


@pytest.mark.parametrize(("cpu", "memory"), [(4, "16Gi"), (6, "16Gi"), (6, "24Gi"), (8, "32Gi")])
def test_cores_and_memory_that_cloud_run_has_are_taken(cpu: int, memory: str) -> None:
    assert cloud_run(model="Qwen/Qwen3-0.6B", gpu_type="nvidia-l4", cpu=cpu, memory=memory).resolved_cpu == cpu
