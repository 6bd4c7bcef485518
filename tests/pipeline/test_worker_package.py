"""The wheel for the workers: its content, and a job with it where only Beam is installed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from importlib.metadata import Distribution, distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.launch import worker_package
from airflow_provider_llmbeam.pipeline.launch.worker_package import build_worker_package, pinned_requirements
from airflow_provider_llmbeam.spec import JobSpec
from tests.counting import function_calls

pytestmark = [pytest.mark.full, pytest.mark.slow]

JOB = {
    "name": "job",
    "source": {"uri": "rows.jsonl", "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "echo"},
    "sink": {"uri": "out"},
}
POSTGRES = {"sink": {"type": "postgres", "table": "answers"}, "state_uri": "state"}
MILVUS = {
    "sink": {"type": "milvus", "uri": "http://localhost", "collection": "c"},
    "state_uri": "state",
    "task": "embed",
}
KAFKA = {"sink": {"type": "kafka", "topic": "answers"}, "state_uri": "state"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_worker_package(tmp_path_factory.mktemp("wheel"))


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def required(wheel):
    (metadata,) = (text for name, text in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    lines = metadata.decode().splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]


def test_the_wheel_contains_the_beam_side_and_nothing_of_the_airflow_side(wheel):
    assert wheel.name == f"airflow_provider_llmbeam_worker-{__version__}-py3-none-any.whl"
    names = contents(wheel).keys()
    package = "airflow_provider_llmbeam"
    directories = {name.split("/")[1] for name in names if name.startswith(f"{package}/") and name.count("/") > 1}
    assert directories == {"spec", "transport", "engine", "providers", "pipeline"}
    files = {name.split("/")[1] for name in names if name.startswith(f"{package}/") and name.count("/") == 1}
    assert files == {"__init__.py", "beam.py", "exceptions.py", "local_files.py", "py.typed", "redaction.py"}
    assert f"{package}/pipeline/sinks/bigquery.py" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_record_lists_each_file_with_its_hash(wheel):
    files = contents(wheel)
    (record,) = (name for name in files if name.endswith("/RECORD"))
    lines = [line.rsplit(",", 2) for line in files[record].decode().splitlines()]
    assert {name for name, _, _ in lines} == files.keys()
    for name, digest, size in lines:
        if name != record:
            expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={expected}", len(files[name]))


def test_the_build_is_reproducible_and_takes_few_calls(tmp_path, wheel):
    again, calls = function_calls(lambda: build_worker_package(tmp_path))
    assert calls < 150_000, "seen on Python 3.11: 101,000, for 270 files"
    assert again.read_bytes() == wheel.read_bytes()


def test_the_requirements_are_pinned_to_the_installed_versions(wheel):
    assert required(wheel) == pinned_requirements()
    assert f"pydantic=={version('pydantic')}" in required(wheel)
    assert not [
        line for line in required(wheel) if line.startswith(("apache-", "confluent", "psycopg", "pymilvus"))
    ]


CLASSIFIER = {"model": {"type": "distilled", "fit": f"{'0' * 32}.json"}}
PRIVACY = {"safety": {"privacy": {}}}
OWN_PATTERN = {"safety": {"privacy": {"detectors": [{"type": "custom", "name": "ID", "pattern": "C-1"}]}}}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (POSTGRES, "psycopg[binary]"),
        (MILVUS, "pymilvus"),
        (KAFKA, "confluent-kafka"),
        (PRIVACY, "presidio-analyzer"),
        (CLASSIFIER, "scikit-learn"),
    ],
    ids=["postgres", "milvus", "kafka", "privacy", "classifier"],
)
def test_what_a_sink_or_a_detector_needs_is_required_where_it_is_used(tmp_path, changes, name):
    spec = JobSpec.parse(JOB | changes)
    extra = set(required(build_worker_package(tmp_path, spec))) - set(pinned_requirements())
    assert extra == {f"{name}=={version(name.partition('[')[0])}"}


def test_detectors_without_presidio_require_nothing_more(tmp_path):
    assert required(build_worker_package(tmp_path, JobSpec.parse(JOB | OWN_PATTERN))) == pinned_requirements()


def test_the_error_names_a_requirement_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_package, "REQUIREMENTS", ("no-such-distribution",))
    with pytest.raises(JobSpecError, match=r"The workers need 'no-such-distribution'.* Nothing was sent"):
        build_worker_package(tmp_path)


def closure(roots: list[str]) -> dict[str, Distribution]:
    """Returns the distributions that `roots` require directly or indirectly, by name."""
    installed = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    found: dict[str, Distribution] = {}
    seen, open_ends = set(), [Requirement(root) for root in roots]
    while open_ends:
        requirement = open_ends.pop()
        name, extras = canonicalize_name(requirement.name), tuple(sorted(requirement.extras))
        if (name, extras) in seen or name not in installed:
            continue  # not installed: an optional requirement that Beam does not need
        seen.add((name, extras))
        found[name] = installed[name]
        for line in installed[name].requires or ():
            further = Requirement(line)
            if further.marker is None or any(further.marker.evaluate({"extra": e}) for e in ("", *extras)):
                open_ends.append(further)
    return found


def link(chosen: dict[str, Distribution], target: Path) -> None:
    """Links distributions into another environment; in a directory that several share, links its files."""
    everybody = [one for one in distributions() if one.files]
    owners = Counter(top for one in everybody for top in {file.parts[0] for file in one.files or ()})
    for one in chosen.values():
        for file in one.files or ():
            top = file.parts[0]
            if top in ("..", "__pycache__") or top.endswith(".pth"):
                continue
            shared = owners[top] > 1 and len(file.parts) > 1
            to = target / (file if shared else top)
            if to.is_symlink() or to.exists():
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            source = Path(str(one.locate_file(file if shared else top)))
            to.symlink_to(source)
            cache = to.parent / "__pycache__"
            if (
                shared
                and to.parent != target
                and not cache.is_symlink()
                and source.with_name("__pycache__").is_dir()
            ):
                cache.symlink_to(source.with_name("__pycache__"))


@pytest.fixture(scope="module")
def worker(tmp_path_factory, wheel):
    """The Python of an environment like that of a worker: Beam, the wheel, and their requirements."""
    home = tmp_path_factory.mktemp("worker")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    (site_packages,) = home.glob("lib/python*/site-packages")
    link(closure(["apache-beam[gcp]", *required(wheel)]), site_packages)
    uv = Path(sys.executable).with_name("uv")
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--offline", "--no-cache", "--python", python, wheel]
    subprocess.run(install, check=True)
    return python


def run(python, code_or_module, *arguments, directory):
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    command = [python, *code_or_module, *map(str, arguments)]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_a_worker_has_no_airflow_and_takes_the_package_from_the_wheel(worker, tmp_path):
    assert "No module named 'airflow'" in run(worker, ("-c", "import airflow"), directory=tmp_path).stderr
    where = run(
        worker, ("-c", "import airflow_provider_llmbeam as p; print(p.__file__)"), directory=tmp_path
    ).stdout
    assert Path(where.strip()).is_relative_to(worker.parent.parent)


def test_a_whole_job_runs_with_beam_and_the_wheel_alone(worker, echo_job, tmp_path):
    echo_job.write([{"id": number, "text": "t"} for number in range(20)])
    path = tmp_path / "job.json"
    path.write_text(json.dumps(echo_job.spec))
    module = ("-m", "airflow_provider_llmbeam.pipeline")
    ended = run(worker, module, "--spec", path, directory=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["rows"] == {"read": 20, "answered": 20, "dead_letter": 0, "skipped": 0}


def test_a_custom_pipeline_runs_with_beam_and_the_wheel_alone(worker, tmp_path):
    code = (
        "import apache_beam as beam\n"
        "from airflow_provider_llmbeam.beam import LLMInference\n"
        "with beam.Pipeline(runner='BundleBasedDirectRunner') as pipeline:\n"
        "    rows = pipeline | beam.Create([beam.Row(id=1, text='a'), beam.Row(id=2, text='b')])\n"
        "    answered = rows | LLMInference('Say {{ row.text }}', {'type': 'echo'})\n"
        "    answered | beam.Map(lambda row: print(row.id, row.answer))\n"
    )
    ended = run(worker, ("-c", code), directory=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["1 Say a", "2 Say b"]


def test_every_module_of_the_wheel_imports_on_a_worker(worker, tmp_path):
    code = (
        "import importlib, pkgutil, airflow_provider_llmbeam as p\n"
        "for m in pkgutil.walk_packages(p.__path__, 'airflow_provider_llmbeam.'):\n"
        "    if 'milvus' not in m.name and 'postgres' not in m.name: importlib.import_module(m.name)\n"
    )
    ended = run(worker, ("-c", code), directory=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_a_build_on_a_worker_gives_the_same_wheel(worker, wheel, tmp_path):
    code = (
        "from pathlib import Path; from airflow_provider_llmbeam.pipeline.launch import worker_package;"
        f"worker_package.build_worker_package(Path({str(tmp_path)!r}))"
    )
    ended = run(worker, ("-c", code), directory=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()
