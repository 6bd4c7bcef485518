from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import build_template
import pytest

from airflow_provider_llmbeam.pipeline.launch.worker_package import pinned_requirements

REQUIRED = ["--image", "registry.example/llmbeam/launcher:1", "--launcher-image", "registry.example/base:3.11"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def made(tmp_path, capsys):
    """Returns a function that runs the script in a temporary folder and returns the folder and the output."""
    folder = tmp_path / "a template"

    def make(*arguments):
        assert build_template.main([*REQUIRED, "--output", str(folder), *arguments]) == 0
        return folder, capsys.readouterr().out

    return make


def test_the_image_stands_on_the_launcher_and_holds_the_wheel_and_its_requirements(made):
    folder, _ = made()
    (wheel,) = folder.glob("*.whl")
    dockerfile = (folder / "Dockerfile").read_text()
    assert "FROM registry.example/base:3.11\n" in dockerfile
    assert f"./{wheel.name}" in dockerfile
    assert "ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/main.py" in dockerfile
    (copied,) = re.findall(r"^COPY (.+) \./$", dockerfile, re.MULTILINE)
    assert all((folder / name).is_file() for name in copied.split())
    pins = (folder / "requirements.txt").read_text().splitlines()
    assert pins == [f"apache-beam[gcp]=={version('apache-beam')}", *pinned_requirements()]


def test_the_template_names_the_image_and_takes_the_address_of_a_spec(made):
    folder, _ = made()
    template = json.loads((folder / "template.json").read_text())
    assert template["image"] == "registry.example/llmbeam/launcher:1"
    assert template["sdkInfo"] == {"language": "PYTHON"}
    assert {"name", "description", "parameters"} <= template["metadata"].keys()
    (parameter,) = template["metadata"]["parameters"]
    assert (parameter["name"], parameter["isOptional"]) == ("spec", False)
    (regex,) = parameter["regexes"]
    assert re.fullmatch(regex, "gs://bucket/specs/job.json")
    assert not re.fullmatch(regex, "/tmp/job.json")


def test_the_generated_main_compiles_and_submits_its_arguments(made):
    folder, _ = made()
    source = (folder / "main.py").read_text()
    compile(source, "main.py", "exec")
    assert "main(sys.argv[1:])" in source


def test_the_printed_commands_name_the_folder(made):
    folder, printed = made()
    assert f"docker build --platform linux/amd64 --tag registry.example/llmbeam/launcher:1 '{folder}'" in printed
    assert f"gcloud builds submit --tag registry.example/llmbeam/launcher:1 '{folder}'" in printed
    assert f"gcloud storage cp '{folder}/template.json' gs://" in printed


def test_a_second_build_replaces_the_beam_version_and_the_sink_clients(made):
    made()
    folder, _ = made("--beam-version", "2.99.0", "--sink", "postgres", "--sink", "milvus", "--privacy")
    pins = (folder / "requirements.txt").read_text()
    assert "apache-beam[gcp]==2.99.0" in pins
    assert f"psycopg[binary]=={version('psycopg')}" in pins
    assert f"pymilvus=={version('pymilvus')}" in pins
    assert f"presidio-analyzer=={version('presidio-analyzer')}" in pins
    assert len(list(folder.glob("*.whl"))) == 1


@pytest.mark.parametrize("missing", ["--image", "--launcher-image", "--output"])
def test_the_error_names_a_missing_option(missing, capsys, tmp_path):
    arguments = [*REQUIRED, "--output", str(tmp_path)]
    at = arguments.index(missing)
    with pytest.raises(SystemExit):
        build_template.main(arguments[:at] + arguments[at + 2 :])
    assert missing in capsys.readouterr().err


def test_the_script_names_no_registry():
    text = (ROOT / "scripts" / "build_template.py").read_text() + (ROOT / "scripts" / "build-template").read_text()
    assert not re.search(r"\b[a-z0-9-]+\.(io|dev|com)\b", text)


def test_the_help_page_states_that_nothing_is_built_or_uploaded():
    command = [sys.executable, ROOT / "scripts" / "build_template.py", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    assert "Nothing is built, pushed or uploaded" in " ".join(ended.stdout.split())
