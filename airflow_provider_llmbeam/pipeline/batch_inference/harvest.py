"""Reads the results of batch inference into the journal."""

from __future__ import annotations

import contextlib
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.bill import Bill
from airflow_provider_llmbeam.engine.journal.entry import MAX_LINE_BYTES, encode_entry
from airflow_provider_llmbeam.engine.journal.segment_name import SegmentName, shard_set
from airflow_provider_llmbeam.engine.outcome import REFUSED, Completion, Failure, Outcome, without_secrets
from airflow_provider_llmbeam.engine.output import MAX_ANSWER, open_parser
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.batch_inference import AuditResults
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import (
    ERROR_CHARACTERS,
    MAX_ERRORS,
    RequestFile,
    Sums,
)
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider, lines_of
from airflow_provider_llmbeam.providers.batch_format import batch_format
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError, ApiUnavailableError
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.price import price_of

_log = logging.getLogger("llmbeam")

#: Entries of one journal segment.
_SEGMENT_ROWS = 10_000
#: Size up to which the largest result file is read, in bytes: 45,000 answers of 45,000 tokens of four characters.
MAX_RESULT_BYTES = 8 * 2**30
#: Keys are fingerprints, or digests.
_KEY = re.compile("[0-9a-f]{64}")
_NEVER_ASKED = Failure(kind="garbage", message="a line that is no result: it answers no request of the job")

#: Waits before a damaged file is read again, in seconds: a proxy may have sent another one, or only its beginning.
READ_AGAIN_SECONDS: Sequence[float] = (1.0, 5.0)


def result_files(provider: BatchProvider, job: BatchJob, file: RequestFile, prefix: str) -> list[str]:
    """Returns the addresses of the result files; those that the provider keeps are copied first.

    A file that the provider has deleted is left out: its rows have no answer, and no later try finds it.

    Args:
        provider: The provider.
        job: The job, which has ended.
        file: Its request file.
        prefix: Beginning of the addresses of the copies.

    Raises:
        ApiUnavailableError: A file cannot be read, or what was sent in its place has no line of a result.
    """
    found = [
        uri
        for place in job.results
        if place.startswith("gs://")
        for uri in storage.match(f"{place.rstrip('/')}/*.jsonl")
    ]
    for number, (name, _) in enumerate(provider.results(job)):
        uri = f"{prefix}-{number}.jsonl"
        try:
            _copy(provider, job, name, uri, _max_bytes(file))
        except ApiNotFoundError as error:
            _log.warning(
                "Result file %s of batch-inference job %s no longer exists, and its rows are sent online: %s",
                name,
                job.name,
                error,
            )
        else:
            found.append(uri)
    return found


def _copy(provider: BatchProvider, job: BatchJob, name: str, uri: str, max_bytes: int) -> None:
    """Copies a result file, again if what is read is another file or a part of it; a part is better than none."""
    for seconds in (*READ_AGAIN_SECONDS, None):
        lines, is_whole = _write_copy(dict(provider.results(job))[name], uri, max_bytes)
        if is_whole:
            return
        what = "ends within a line" if lines else "has no line with a JSON object"
        if seconds is not None:
            _log.warning("Result file %s of job %s %s. Reading it again in %.0f s.", name, job.name, what, seconds)
            time.sleep(seconds)
    if not lines:
        raise ApiUnavailableError(
            f"Result file {name} of batch-inference job {job.name} {what}; a proxy may have sent another file. "
            "The answers of the job are paid for, and the next try reads them. If the provider itself returns "
            "this file, delete the job there: the next try then sends its rows online."
        )


def _max_bytes(file: RequestFile) -> int:
    """Returns the size up to which a result file is read; results repeat their requests on Vertex AI."""
    return min(file.size + file.rows * MAX_ANSWER, MAX_RESULT_BYTES)


def _write_copy(chunks: Iterator[bytes], uri: str, max_bytes: int) -> tuple[int, bool]:
    """Writes a file; returns its number of JSON objects, one a line, and whether it ends with one, or is empty."""
    lines, last, is_blank, size = 0, b"\n", True, 0
    with storage.create(uri, is_private=True) as file:
        for chunk in chunks:
            file.write(chunk)
            lines += (last + chunk).count(b"\n{")
            last = chunk[-1:] or last
            is_blank = is_blank and not chunk.strip()
            size += len(chunk)
            if size > max_bytes:
                _log.warning("Result file %r has more than %s bytes; the rest is not read.", uri, f"{max_bytes:,}")
                return lines, True
    return lines, is_blank or (lines > 0 and last in b"}\n")


def has_key_of(spec: JobSpec, provider: BatchProvider, job: BatchJob, file: RequestFile) -> bool:
    """Returns whether the first whole result of a job that has ended is of a request of a file.

    Raises:
        ApiNotFoundError: The results do not exist.
        ApiUnavailableError: They cannot be read, or have no whole line.
    """
    lines = batch_format(spec.model, spec.generation, spec.prompt.output_schema, spec.embedding)
    keys = {key for key, _ in _keys(spec.paths.index_uri(file.digest))}
    for _, chunks in provider.results(job):
        for line in lines_of(chunks):
            with contextlib.suppress(ValueError):
                return lines.decode(line).key in keys
    raise ApiUnavailableError(
        f"The results of batch-inference job {job.name} have no line that says whose they are."
    )


def harvest(
    pipeline: beam.Pipeline,
    spec: JobSpec,
    file: RequestFile,
    results: Sequence[str],
    uri: str,
    job_id: str,
    since: float,
) -> None:
    """Adds the steps that read the results of one job into the journal.

    The prompts of requests that the provider failed, and of lines that are no results, are sent online. Texts that
    the job cannot use are recorded as refusals, as those of online requests are; a vector that it cannot use is no
    refusal of the model, and is requested again online.

    Args:
        pipeline: The pipeline.
        spec: The job.
        file: Its request file.
        results: Addresses of the result files.
        uri: Address to which the `Sums` are written.
        job_id: Identity of the job, for the audit.
        since: Unix time at which the batch inference began, for the audit.
    """
    lines = (
        pipeline
        | "ResultFiles" >> beam.Create(results, reshuffle=False)
        | "Lines" >> beam.FlatMap(_lines, _max_bytes(file))
        | "Decode" >> beam.ParDo(_Decode(spec, round(file.input_tokens / file.rows)))
    )
    index = pipeline | "Index" >> beam.Create([spec.paths.index_uri(file.digest)]) | "Keys" >> beam.FlatMap(_keys)
    lines = {"results": lines, "index": index} | "ByKey" >> beam.CoGroupByKey() | "Best" >> beam.FlatMap(_best)
    if (trail := AuditTrail.of(spec)) is not None:
        lines |= "Audit" >> AuditResults(trail, spec.paths.batch_uri, job_id, file.rows, since)
    sums = lines | "Record" >> beam.ParDo(_Record(spec)) | "Sum" >> beam.CombineGlobally(Sums.total)
    _ = sums | "WriteSums" >> beam.Map(lambda total: storage.replace(uri, total.model_dump_json().encode()))


def _lines(uri: str, max_bytes: int) -> Iterator[bytes]:
    with storage.open_buffered(uri) as file:
        # A line that is cut here is no result, and its rest is none, either.
        while max_bytes > 0 and (line := file.readline(MAX_LINE_BYTES)):
            max_bytes -= len(line)
            if line.strip():
                yield line


def _keys(uri: str) -> Iterator[tuple[str, str]]:
    with storage.open_buffered(uri) as file:
        for line in file:
            key, _, fingerprint = line.decode().strip().partition(" ")
            yield key, fingerprint


class _Decode(beam.DoFn):
    """Reads result lines as outcomes by key; a line that is no result has the key ''.

    Args:
        spec: The job.
        mean_tokens: Estimated input tokens of a request, for an answer of which the provider reports none; the
            text is not in the result.
    """

    def __init__(self, spec: JobSpec, mean_tokens: int) -> None:
        self._spec = spec
        self._mean_tokens = mean_tokens
        self._has_warned = False

    def setup(self) -> None:
        spec = self._spec
        self._format = batch_format(spec.model, spec.generation, spec.prompt.output_schema, spec.embedding)
        self._parser = open_parser(spec.prompt.output_schema, spec.generation, spec.embedding)
        self._price = price_of(spec.model, spec.limits.price)
        secrets = known_secrets(spec.secret_variables)
        self._redact = lru_cache(maxsize=1024)(partial(redact, secrets=secrets))

    def process(self, line: bytes) -> Iterator[tuple[str, Outcome]]:
        try:
            found = self._format.decode(line)
            if not _KEY.fullmatch(found.key):
                raise ValueError("its key is none of a request")
        except ValueError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "A line of a result file is no result, and its prompt is sent online: %s. It begins with %r. "
                    "Further ones are only counted.",
                    error,
                    line[:80].decode("utf-8", "replace"),
                )
            yield "", Failure(kind="garbage", message=f"a line that is no result: {error}")
            return
        yield found.key, without_secrets(self._outcome(found.result), self._redact)

    def _outcome(self, result: Reply | RequestError) -> Outcome:
        now = time.time()
        if isinstance(result, Reply) and not result.tokens.input:
            tokens = result.tokens.plus(Tokens(self._mean_tokens, estimated=self._mean_tokens))
            result = replace(result, tokens=tokens)
        bill = Bill.of(result.tokens, self._price, "batch")
        try:
            if isinstance(result, RequestError):
                raise result
            result = self._parser.mended(result)
            parsed = self._parser.parse(result)
        except RequestError as error:
            return Failure(
                kind=error.kind,
                message=error.message,
                http_status=error.http_status,
                attempts=1,
                answered_at=now,
                service_tier="batch",
                category=error.category,
                **bill._asdict(),
            )
        return Completion(
            **{**result.facts(), "service_tier": "batch"},
            parsed=parsed,
            attempts=1,
            latency_seconds=0.0,
            padded_tokens=result.tokens.input,
            sent_at=now,
            answered_at=now,
            **bill._asdict(),
        )


def _best(group: tuple[str, dict[str, Iterable[Any]]]) -> Iterator[tuple[str, Outcome]]:
    """Yields one result per request, an answer if there is one: a provider may deliver a line twice.

    What is a result of no request of the job has the fingerprint ''.
    """
    key, joined = group
    fingerprint, found = next(iter(joined["index"]), ""), list(joined["results"])
    if not fingerprint:
        yield from (("", _NEVER_ASKED if key else each) for each in found)
    elif found:
        yield fingerprint, next((each for each in found if isinstance(each, Completion)), found[0])


class _Record(beam.DoFn):
    """Writes the outcomes of a bundle to the journal; the outputs are `Sums`."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._lines: list[tuple[str, bytes]] = []
        self._sums: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def start_bundle(self) -> None:
        """Resets the sums."""
        self._sums, self._errors = Counter(), Counter()

    def process(self, element: tuple[str, Outcome]) -> None:
        """Records one result."""
        fingerprint, outcome = element
        if isinstance(outcome, Failure):
            error = f"{outcome.kind}: {' '.join(outcome.message.split())[:ERROR_CHARACTERS]}"
            if error in self._errors or len(self._errors) < MAX_ERRORS:
                self._errors[error] += 1
        if not fingerprint:
            self._sums["malformed"] += 1
            return
        is_final = isinstance(outcome, Completion) or (outcome.kind in REFUSED and self._spec.embedding is None)
        # Other errors are quoted in the dead letter if the prompt fails online, too.
        self._lines.append((fingerprint, encode_entry(fingerprint, self._spec.name, outcome)))
        if len(self._lines) >= _SEGMENT_ROWS:
            self._write()
        self._sums.update(
            answered=int(is_final),
            failed=int(not is_final),
            unusable=int(isinstance(outcome, Failure) and not is_final and outcome.http_status == 200),
            input_tokens=outcome.tokens.input,
            output_tokens=outcome.tokens.output,
            cached_tokens=outcome.tokens.cached,
            cache_write_tokens=outcome.tokens.cache_write,
            reasoning_tokens=outcome.tokens.reasoning,
            estimated_tokens=outcome.tokens.estimated,
            cost_nano_usd=outcome.cost_nano_usd or 0,
            unpriced=int(outcome.cost_nano_usd is None),
        )

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Writes the rest, and emits the sums."""
        self._write()
        yield GlobalWindows.windowed_value(Sums(**self._sums, errors=dict(self._errors)))

    def _write(self) -> None:
        if not self._lines:
            return
        name = SegmentName(shard_set(fingerprint for fingerprint, _ in self._lines), int(time.time()))
        uri = f"{self._spec.paths.journal_uri}{name.text(self._spec.name, uuid.uuid4().hex)}"
        storage.replace(uri, b"".join(line for _, line in self._lines))
        self._lines.clear()
