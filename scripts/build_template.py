"""Generates the build files of a Dataflow Flex Template, which launches jobs without Beam on the Airflow side."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from airflow_provider_llmbeam.pipeline.launch.worker_package import build_worker_package, pinned_requirements
from airflow_provider_llmbeam.spec.sink import MilvusSink, PostgresSink, Sink

_SINKS: dict[str, type[Sink]] = {"milvus": MilvusSink, "postgres": PostgresSink}

# Without FLEX_TEMPLATE_PYTHON_REQUIREMENTS_FILE: with it, each launch downloads all requirements again.
_DOCKERFILE = """\
# Launches jobs of airflow-provider-llmbeam on Dataflow. Made by scripts/build-template.
FROM {launcher_image}
WORKDIR /template
COPY requirements.txt {wheel} main.py ./
RUN pip install --no-cache-dir -r requirements.txt && pip install --no-cache-dir --no-deps ./{wheel}
# What is missing shows here and not at the first launch.
RUN python -c "import airflow_provider_llmbeam.pipeline.build"
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/main.py
"""
_MAIN = '''\
"""Prepares the job of one spec, which Dataflow then runs."""

import sys

from airflow_provider_llmbeam.pipeline.flex_template import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
'''


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the files and prints the commands that build, push and upload them."""
    options = _parser().parse_args(argv)
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    for earlier in output.glob("*.whl"):
        earlier.unlink()
    wheel = build_worker_package(output)
    requirements = [f"apache-beam[gcp]=={options.beam_version}"]
    requirements += pinned_requirements(*(_SINKS[name] for name in options.sink), has_patterns=options.privacy)
    (output / "requirements.txt").write_text("\n".join(requirements) + "\n")
    (output / "main.py").write_text(_MAIN)
    dockerfile = _DOCKERFILE.format(launcher_image=options.launcher_image, wheel=wheel.name)
    (output / "Dockerfile").write_text(dockerfile)
    (output / "template.json").write_text(json.dumps(template(options.image), indent=2) + "\n")
    print(_commands(options.image, output))
    return 0


def template(image: str) -> dict[str, Any]:
    """Returns the template file, which Dataflow reads before it starts the launcher.

    Args:
        image: Address of the image that is built from the folder.
    """
    spec = {
        "name": "spec",
        "label": "Job spec",
        "helpText": "Address of the job spec, a JSON file on Cloud Storage.",
        "paramType": "GCS_READ_FILE",
        "isOptional": False,
        "regexes": [r"^gs://[^/\n]+/[^\n]+$"],
    }
    metadata = {
        "name": "airflow-provider-llmbeam",
        # `llmbeam doctor` reads the version.
        "description": "Runs an LLM over a table: no row is lost, and no answer is paid for twice. "
        f"Version {version('airflow-provider-llmbeam')}.",
        "parameters": [spec],
    }
    return {"image": image, "sdkInfo": {"language": "PYTHON"}, "metadata": metadata}


def _commands(image: str, output: Path) -> str:
    folder, tag = shlex.quote(str(output)), shlex.quote(image)
    return f"""\
Made {output}. To build and push the image, on a machine with Docker:

    docker build --platform linux/amd64 --tag {tag} {folder}
    docker push {tag}

or with Cloud Build, and without Docker:

    gcloud builds submit --tag {tag} {folder}

Then put the template where `runner.flex_template` names it:

    gcloud storage cp {shlex.quote(str(output / "template.json"))} gs://YOUR-BUCKET/llmbeam/template.json
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/build-template",
        description="Make the build context of a Dataflow Flex Template, and the template itself. Nothing is "
        "built, pushed or uploaded: the commands for that are printed.",
        allow_abbrev=False,
    )
    parser.add_argument("--image", required=True, help="address that the image will have in your registry")
    parser.add_argument(
        "--launcher-image",
        required=True,
        help="Google's base image of Flex Templates for your version of Python; docs/workers.md says where it is "
        "named",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write to; it is made")
    parser.add_argument(
        "--beam-version", default=version("apache-beam"), help="of the launcher (default: %(default)s, as here)"
    )
    parser.add_argument(
        "--sink", action="append", default=[], choices=sorted(_SINKS), help="a sink whose client is needed, too"
    )
    parser.add_argument("--privacy", action="store_true", help="jobs mask personal data that is found by patterns")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
