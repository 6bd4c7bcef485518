"""A service on Cloud Run with a GPU as plain data."""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.spec.endpoint.cloud_run import MAX_CONCURRENCY, CloudRunEndpoint

_PORT = 8000
#: Directory where a bucket with the model is mounted.
_MODEL_DIRECTORY = "/models"
#: Longest timeout that Cloud Run allows for a request.
_REQUEST_SECONDS = 3_600
#: 120 probes at an interval of 15 s: half an hour for the weights to load.
_PROBE_INTERVAL_SECONDS, _MAX_PROBES = 15, 120
_INGRESS = {
    "all": "INGRESS_TRAFFIC_ALL",
    "internal": "INGRESS_TRAFFIC_INTERNAL_ONLY",
    "internal-and-cloud-load-balancing": "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER",
}


def service(plan: EndpointPlan, spec: CloudRunEndpoint) -> dict[str, Any]:
    """Returns the fields of a `Service`."""
    gpu = spec.machine.accelerator_type
    network = {"vpc_access": _vpc(spec)} if spec.network else {}
    account = {"service_account": spec.service_account} if spec.service_account else {}
    return {
        "labels": dict(plan.labels),
        "ingress": _INGRESS[spec.ingress],
        "template": {
            "scaling": {"min_instance_count": spec.min_instances, "max_instance_count": spec.max_instances},
            "timeout": {"seconds": _REQUEST_SECONDS},
            "execution_environment": "EXECUTION_ENVIRONMENT_GEN2",
            "max_instance_request_concurrency": min(spec.concurrency or spec.sequences or 64, MAX_CONCURRENCY),
            "node_selector": {"accelerator": gpu},
            # Zonal redundancy raises the price of a GPU and needs a separate quota.
            "gpu_zonal_redundancy_disabled": True,
            "containers": [_container(spec)],
            "volumes": _volumes(spec),
            **network,
            **account,
        },
    }


def served_name(model: str) -> str:
    """Returns the name that the server uses for the model, and under which answers are kept.

    That of a directory is its whole address, so that no answer is used for weights in another directory.
    """
    return model.rstrip("/")


def memory_gib(memory: str) -> float:
    """Converts `32Gi` or `32768Mi` to GiB."""
    return float(memory[:-2]) / (1024 if memory.endswith("Mi") else 1)


def _container(spec: CloudRunEndpoint) -> dict[str, Any]:
    limits = {
        "nvidia.com/gpu": str(spec.gpu_count),
        "cpu": str(spec.resolved_cpu),
        "memory": spec.resolved_memory,
    }
    path, mounts = spec.model, []
    if spec.model.startswith("gs://"):
        path = f"{_MODEL_DIRECTORY}/{spec.model.removeprefix('gs://').partition('/')[2].rstrip('/')}"
        mounts = [{"name": "models", "mount_path": _MODEL_DIRECTORY}]
    return {
        "name": "vllm",
        "image": spec.image,
        "args": [*_vllm_args(spec, path), *spec.args],
        "env": _environment(spec),
        "resources": {"limits": limits, "startup_cpu_boost": True},
        "ports": [{"name": "http1", "container_port": _PORT}],
        "volume_mounts": mounts,
        "startup_probe": {
            "timeout_seconds": 10,
            "period_seconds": _PROBE_INTERVAL_SECONDS,
            "failure_threshold": _MAX_PROBES,
            "http_get": {"path": "/health", "port": _PORT},
        },
    }


def _vllm_args(spec: CloudRunEndpoint, path: str) -> list[str]:
    arguments = {
        "--model": path,
        "--served-model-name": served_name(spec.model),
        "--port": _PORT,
        "--max-model-len": spec.length_tokens,
        "--max-num-seqs": spec.sequences,
    }
    return [f"{name}={value}" for name, value in arguments.items() if value is not None]


def _environment(spec: CloudRunEndpoint) -> list[dict[str, Any]]:
    if spec.hf_token_secret is None:
        return []
    secret, _, version = spec.hf_token_secret.rpartition("/versions/")
    return [
        {
            "name": "HF_TOKEN",
            "value_source": {"secret_key_ref": {"secret": secret, "version": version}},
        }
    ]


def _volumes(spec: CloudRunEndpoint) -> list[dict[str, Any]]:
    if not spec.model.startswith("gs://"):
        return []
    bucket = spec.model.removeprefix("gs://").partition("/")[0]
    return [{"name": "models", "gcs": {"bucket": bucket, "read_only": True}}]


def _vpc(spec: CloudRunEndpoint) -> dict[str, Any]:
    interface = {"network": spec.network, **({"subnetwork": spec.subnetwork} if spec.subnetwork else {})}
    return {"network_interfaces": [interface], "egress": "PRIVATE_RANGES_ONLY"}
