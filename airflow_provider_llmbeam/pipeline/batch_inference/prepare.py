"""Writes the prompts that have no answer yet to request files."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam

from airflow_provider_llmbeam.engine.plan import prompt_tokens
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.batch_inference import IndexRows
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import RequestFile
from airflow_provider_llmbeam.pipeline.cascade.report import paid_by_name
from airflow_provider_llmbeam.pipeline.cascade.state import RunCascade
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import Request
from airflow_provider_llmbeam.pipeline.features import features_of
from airflow_provider_llmbeam.pipeline.moderation.verdict import USAGE_GROUPS
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.transforms.read_requests import read_requests
from airflow_provider_llmbeam.providers.batch_format import batch_format
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.paths import JobPaths


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Limits of one request file.

    Attributes:
        max_rows: Maximum number of requests.
        max_bytes: Maximum size in bytes.
    """

    max_rows: int
    max_bytes: int


#: Characters of a key that are of the job, so that its results are no other's; the rest is of the fingerprint: 64
#: in all, the limit of Anthropic.
_DIGEST_CHARACTERS = 16

#: Fingerprint, key of the result, line and estimated input tokens of one request. A plain tuple, as `RenderedRow`.
_Encoded = tuple[str, str, bytes, int]


def prepare(
    pipeline: beam.Pipeline,
    spec: JobSpec,
    limits: FileLimits,
    since: float | None = None,
    cascade: RunCascade | None = None,
) -> None:
    """Adds the steps that write the request files of a job, and one file that lists them.

    A guard model judges the prompts before; those that it blocks are in no file, and the job finds the verdicts
    in its journal.

    The number of files follows from the sums over all requests, and the fingerprint decides the file of a request:
    the same prompts are in the same files, whatever the order of the rows.

    Args:
        pipeline: The pipeline.
        spec: The job.
        limits: Limits of one file.
        since: Unix time at which the batch inference of this run began.
        cascade: The cascade, whose stages are asked before; what they keep is in no file.
    """
    context = RunContext(started_at=time.time(), batch_since=since, stop_uri=spec.paths.stop_uri, cascade=cascade)
    requests, _, results = read_requests(pipeline, spec, context, features_of(spec))
    if (moderation := spec.safety.moderation) is not None and "input" in moderation.on:
        usage = results.tallies | "Tallies" >> beam.Flatten() | "AddUpTallies" >> beam.CombineGlobally(add_up)
        _ = usage | "WriteGuardUsage" >> beam.Map(_write_guard_usage, spec.paths.guard_usage_uri)
    if cascade is not None:
        asked = results.tallies | "StageTallies" >> beam.Flatten() | "AddUpStages" >> beam.CombineGlobally(add_up)
        _ = asked | "WriteStageUsage" >> beam.Map(_write_stage_usage, f"{spec.paths.batch_uri}cascade.json")
    lines = requests | "Encode" >> beam.ParDo(_Encode(spec))
    sizes = lines | "Sizes" >> beam.Map(_size) | "Sum" >> beam.CombineGlobally(_add_up)
    files = (
        lines
        | "AssignFile" >> beam.Map(_assign_file, limits, beam.pvalue.AsSingleton(sizes))
        | "ByFile" >> beam.GroupByKey()
        | "WriteFiles" >> beam.ParDo(_WriteFiles(spec.paths, limits))
    )
    if spec.safety.audit is not None:
        _ = requests | "IndexRows" >> beam.ParDo(IndexRows(spec.paths.batch_uri, spec.source.key))
    _ = (
        pipeline
        | "Once" >> beam.Impulse()
        | "ListFiles" >> beam.Map(_list, spec.paths.prepared_uri, beam.pvalue.AsList(files))
    )


def read_guard_usage(spec: JobSpec) -> Counter[str]:
    """Returns the numbers of the requests to a guard model that `prepare` made, see `BatchManifest.guard`."""
    moderation = spec.safety.moderation
    if moderation is None or "input" not in moderation.on:
        return Counter()
    return Counter(json.loads(storage.read(spec.paths.guard_usage_uri)))


def read_stage_usage(spec: JobSpec) -> Counter[str]:
    """Returns what the stages of a cascade have cost in `prepare`, see `BatchManifest.cascade`."""
    return Counter(json.loads(storage.read(f"{spec.paths.batch_uri}cascade.json")))


def read_prepared(spec: JobSpec) -> list[RequestFile]:
    """Returns the request files that `prepare` wrote, the smallest digest first."""
    found = [RequestFile.model_validate_json(line) for line in storage.read(spec.paths.prepared_uri).splitlines()]
    return sorted(found, key=lambda each: each.digest)


def files_needed(rows: int, size: int, limits: FileLimits) -> int:
    """Returns the number of files for these sums, with room for an uneven division."""
    parts = (rows / limits.max_rows, size / limits.max_bytes)
    # One file for what fits into one. With several, a file holds its share plus chance and the longest line.
    return 1 if max(parts) <= 1 else int(max(parts) * 1.1) + 1


class _Encode(beam.DoFn):
    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec

    def setup(self) -> None:
        spec = self._spec
        self._format = batch_format(spec.model, spec.generation, spec.prompt.output_schema, spec.embedding)
        self._digest = hashlib.sha256(display_name_prefix(spec).encode()).hexdigest()[:_DIGEST_CHARACTERS]

    def process(self, request: Request) -> Iterator[_Encoded]:
        own = self._digest + request.fingerprint[_DIGEST_CHARACTERS:]
        key, line = self._format.encode(own, request.prompt)
        yield request.fingerprint, key, line, prompt_tokens(request.prompt)


def _size(encoded: _Encoded) -> tuple[int, int]:
    return 1, len(encoded[2])


def _add_up(sizes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    rows = size = 0
    for each in sizes:
        rows, size = rows + each[0], size + each[1]
    return rows, size


def _assign_file(encoded: _Encoded, limits: FileLimits, sums: tuple[int, int]) -> tuple[int, _Encoded]:
    return int(encoded[0][:12], 16) % files_needed(*sums, limits), encoded


class _WriteFiles(beam.DoFn):
    """Writes the requests of one group, to further files where the limits of one are reached after all."""

    def __init__(self, paths: JobPaths, limits: FileLimits) -> None:
        self._paths = paths
        self._limits = limits

    def process(self, group: tuple[int, Iterable[_Encoded]]) -> Iterator[RequestFile]:
        _, requests = group
        limits, part, size = self._limits, list[_Encoded](), 0
        for request in sorted(requests):
            _, _, line, _ = request
            if part and (len(part) == limits.max_rows or size + len(line) > limits.max_bytes):
                yield self._write(part, size)
                part, size = [], 0
            part.append(request)
            size += len(line)
        yield self._write(part, size)

    def _write(self, requests: list[_Encoded], size: int) -> RequestFile:
        digest = hashlib.sha256("".join(fingerprint for fingerprint, *_ in requests).encode()).hexdigest()[:16]
        with storage.create(self._paths.requests_uri(digest), is_private=True) as file:
            file.writelines(line for _, _, line, _ in requests)
        with storage.create(self._paths.index_uri(digest), is_private=True) as file:
            file.writelines(f"{key} {fingerprint}\n".encode() for fingerprint, key, *_ in requests)
        tokens = sum(tokens for *_, tokens in requests)
        return RequestFile(digest=digest, rows=len(requests), size=size, input_tokens=tokens)


def _write_guard_usage(tally: Tally, uri: str) -> None:
    usage = {".".join(names): number for names, number in tally.moderation.items() if names[1] in USAGE_GROUPS}
    storage.replace(uri, json.dumps(usage).encode())


def _write_stage_usage(tally: Tally, uri: str) -> None:
    storage.replace(uri, json.dumps(paid_by_name(tally)).encode())


def _list(_: bytes, uri: str, files: list[RequestFile]) -> None:
    storage.replace(uri, b"".join(file.model_dump_json().encode() + b"\n" for file in files))
