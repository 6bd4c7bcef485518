"""A wheel with the part of this package that a Beam worker needs."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import airflow_provider_llmbeam
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.distilled import DistilledStage, TfidfVectors
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import DistilledModel
from airflow_provider_llmbeam.spec.safety import PatternsDetector
from airflow_provider_llmbeam.spec.sink import KafkaSink, MilvusSink, PostgresSink, Sink

#: Distributions that `spec`, `engine`, `batch`, `pipeline`, `beam` and fastavro import, without those of
#: `apache-beam[gcp]`, which the container of a worker has; a test compares this with imports and pyproject.toml.
REQUIREMENTS = (
    "aiohttp",
    "cramjam",
    "genai-prices",
    "google-genai",
    "jinja2",
    "jsonschema",
    "orjson",
    "pyarrow",
    "pydantic",
    "referencing",
    "regex",
    "tqdm",
)
#: Additional distributions of each sink, with their extras.
SINK_REQUIREMENTS: dict[type[Sink], tuple[str, ...]] = {
    PostgresSink: ("psycopg[binary]",),
    MilvusSink: ("pymilvus",),
    KafkaSink: ("confluent-kafka",),
}

#: Additional distributions of a job whose personal data is found by patterns; that which it is encrypted with,
#: cryptography, is one of `apache-beam[gcp]`.
PRIVACY_REQUIREMENTS = ("presidio-analyzer",)

#: Additional distributions of a job with a classifier on hashed texts.
TFIDF_REQUIREMENTS = ("scikit-learn",)

_PACKAGE = "airflow_provider_llmbeam"
#: Modules at the top that only Airflow and the command line have.
_OF_AIRFLOW = frozenset({"__main__.py", "cli.py", "provider_info.py"})
_PACKAGES = ("spec", "transport", "engine", "providers", "pipeline")
#: The earliest time that a zip archive can store.
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)


def build_worker_package(directory: Path, spec: JobSpec | None = None) -> Path:
    """Builds a wheel of the Beam side, which needs no Airflow.

    A wheel instead of an sdist, which needs a build backend, and network to fetch it. Its requirements are pinned
    to the versions that are installed here, as objects pickled here are unpickled by the workers. Builds of the
    same files are identical.

    Args:
        directory: Existing directory for the wheel.
        spec: The job; the requirements of its sink, its privacy and its classifiers are added.

    Returns:
        The wheel.

    Raises:
        JobSpecError: A requirement is not installed here, so its version is unknown.
        OSError: The wheel cannot be written.
    """
    release = airflow_provider_llmbeam.__version__
    info = f"{_PACKAGE}_worker-{release}.dist-info"
    files = dict(_modules(Path(airflow_provider_llmbeam.__file__).parent))
    files[f"{info}/METADATA"] = _metadata(
        release,
        pinned_requirements(
            *([type(spec.sink)] if spec else []),
            has_patterns=_has_patterns(spec),
            hashes_texts=spec is not None and _hashes_texts(spec),
        ),
    ).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: llmbeam\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    wheel = directory / f"{_PACKAGE}_worker-{release}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EARLIEST_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is built
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return wheel


def pinned_requirements(*sinks: type[Sink], has_patterns: bool = False, hashes_texts: bool = False) -> list[str]:
    """Returns the requirements of a worker, e.g. `aiohttp==3.14.5`, in the versions installed here.

    Args:
        sinks: Types of the sinks that the worker writes.
        has_patterns: Whether the worker finds personal data by patterns.
        hashes_texts: Whether the worker has a classifier on hashed texts.

    Raises:
        JobSpecError: A requirement is not installed here.
    """
    extra = [name for sink in sinks for name in SINK_REQUIREMENTS.get(sink, ())]
    if has_patterns:
        extra += PRIVACY_REQUIREMENTS
    if hashes_texts:
        extra += TFIDF_REQUIREMENTS
    return [_pinned(name) for name in (*REQUIREMENTS, *extra)]


def _has_patterns(spec: JobSpec | None) -> bool:
    privacy = None if spec is None else spec.safety.privacy
    return privacy is not None and any(isinstance(each, PatternsDetector) for each in privacy.detectors)


def _hashes_texts(spec: JobSpec) -> bool:
    stages = () if spec.cascade is None else spec.cascade.stages
    return isinstance(spec.model, DistilledModel) or any(
        isinstance(stage, DistilledStage) and isinstance(stage.embedding, TfidfVectors) for stage in stages
    )


def _pinned(requirement: str) -> str:
    name = requirement.partition("[")[0]
    try:
        return f"{requirement}=={version(name)}"
    except PackageNotFoundError:
        raise JobSpecError(
            f"The workers need {name!r} in the version that is installed where the job is launched, and it is not "
            f"installed there. Install it there: `pip install '{requirement}'`."
        ) from None


def _modules(package: Path) -> Iterator[tuple[str, bytes]]:
    found = [each for each in package.iterdir() if each.is_file() and each.name not in _OF_AIRFLOW]
    for name in _PACKAGES:
        found += [path for path in (package / name).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    for path in sorted(found):
        yield f"{_PACKAGE}/{path.relative_to(package).as_posix()}", path.read_bytes()


def _metadata(release: str, requirements: list[str]) -> str:
    lines = [
        "Metadata-Version: 2.1",
        "Name: airflow-provider-llmbeam-worker",
        f"Version: {release}",
        "Summary: What airflow-provider-llmbeam needs on a Beam worker.",
        "Requires-Python: >=3.11",
        *(f"Requires-Dist: {requirement}" for requirement in requirements),
    ]
    return "\n".join(lines) + "\n"


def _record(files: dict[str, bytes], own_name: str) -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        writer.writerow((name, f"sha256={digest}", len(content)))
    writer.writerow((own_name, "", ""))
    return lines.getvalue()
