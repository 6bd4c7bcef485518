"""The manifests of a stream fit each other and the options of the worker.

Their fields were checked once, on 29 November 2026, against the published schemas of Kubernetes 1.37 (package
kubernetes-validate 1.37.0, strict) and the custom resource definition of KEDA; neither is a dependency.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from airflow_provider_llmbeam.spec import StreamOptions, StreamRun

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spec" / "stream.md"


@pytest.fixture(scope="module")
def manifests():
    found = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    return {each["kind"]: each for each in found}


def test_a_pod_keeps_its_name_and_is_given_the_time_to_drain(manifests):
    pods = manifests["StatefulSet"]["spec"]["template"]
    assert pods["spec"]["terminationGracePeriodSeconds"] > 2 * StreamOptions().drain_seconds
    (container,) = pods["spec"]["containers"]
    assert container["command"][:2] == ["llmbeam", "stream"]
    address = container["command"][container["command"].index("--http") + 1]
    ports = {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")}
    assert {int(StreamRun(http=address).http.partition(":")[2])} == ports
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pods["spec"]["volumes"]}


def test_the_selectors_find_the_pods(manifests):
    labels = manifests["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("StatefulSet", "PodDisruptionBudget"):
        assert manifests[kind]["spec"]["selector"] == {"matchLabels": labels}


def test_the_scaler_finds_the_pods_and_reads_texts(manifests):
    scaled, target = manifests["ScaledObject"]["spec"], manifests["StatefulSet"]
    name = {"apiVersion": target["apiVersion"], "kind": "StatefulSet", "name": target["metadata"]["name"]}
    assert scaled["scaleTargetRef"] == name
    (trigger,) = scaled["triggers"]
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA refuses numbers"
    assert {"bootstrapServers", "topic", "consumerGroup", "lagThreshold"} == trigger["metadata"].keys()
