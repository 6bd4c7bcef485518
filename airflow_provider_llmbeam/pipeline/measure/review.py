"""Review of answers by people: a sample of them with their forms, and the golden rows that verdicts make."""

from __future__ import annotations

import heapq
import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Literal

from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.compare_values import normalise, use_integers
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.lease import MERGE_SECONDS, wait_for_lease
from airflow_provider_llmbeam.pipeline.measure.answers import Answers, check_generates, find_outcomes, render_rows
from airflow_provider_llmbeam.pipeline.measure.rows import MAX_ROWS, KeyedRows, read_golden, sample_rows
from airflow_provider_llmbeam.pipeline.privacy.vault import without_vault
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.redaction import visible
from airflow_provider_llmbeam.spec.characters import valid_value
from airflow_provider_llmbeam.spec.evaluation import AnswerSample, GoldenAddition, Verdict
from airflow_provider_llmbeam.spec.fields.names import is_job_name
from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.prompt.answer_schema import AnswerSchema
from airflow_provider_llmbeam.spec.prompt.answer_type import AnswerType, answer_type
from airflow_provider_llmbeam.spec.source import FilesSource

_log = logging.getLogger("llmbeam")

#: Number of rows among whose answers the sample is selected, and with files in the prompts, each of which is read.
CANDIDATES, CANDIDATES_WITH_MEDIA = 5000, 500
#: Maximum length of a column that the reviewer sees, in characters.
MAX_CHARACTERS = 4000
#: Number of characters by which two labels differ.
MAX_LABEL = 100
#: Field of an answer without fields: a text, or a value that is no object.
WHOLE = "answer"
#: Column of a golden row that says who made it of what.
REVIEW = "llmbeam_review"
#: A text beyond this length has a field of several lines.
_LINE = 80
_JSON_TYPES = {"text": "string", "integer": "integer", "number": "number", "boolean": "boolean"}
_SEVERAL_LINES = {"type": "string", "format": "multiline"}
#: Keywords that would refuse a part of an answer.
_OF_THE_WHOLE = {"required", "minProperties", "dependentRequired"}

Decision = Literal["accepted", "corrected", "left_out"]


def sample_answers(spec: JobSpec, sample: AnswerSample) -> dict[str, Any]:
    """Selects answers in the journal of a job, and writes them as golden rows to be reviewed; nothing is sent.

    Args:
        spec: The job, under the name of the run that has answered.
        sample: The selection.

    Returns:
        The manifest: `review_uri`, `rows`, and `labels` with their numbers of rows; and `reviews`, one for each
        answer, as JSON text: Airflow reserves some names in the objects of an XCom, and PostgreSQL refuses NUL.

    Raises:
        JobSpecError: The answers have no such fields, or the journal has no answer to these rows.
    """
    check_generates(spec)
    fields = AnswerFields(spec.prompt.output_schema)
    fields.check("fields", sample.fields)
    fields.check("stratify_by", () if sample.stratify_by is None else (sample.stratify_by,))
    rows = _candidates(spec, sample)
    values = {key: fields.values(answer) for key, answer in _answers(spec, rows).items()} if rows else {}
    labels = dict.fromkeys(values, "")
    if (field := sample.stratify_by) is not None:
        texts = {key: normalise(use_integers(value[field])) for key, value in values.items()}
        labels = {key: visible(text[:MAX_LABEL]) for key, text in texts.items()}
    picked = stratify(labels, sample.rows)
    if len(picked) < sample.rows:
        _log.warning("Only %d answers are to be reviewed, and `rows` is %d.", len(picked), sample.rows)
    names = sample.fields or fields.names
    review_uri = sample.review_uri or f"{spec.paths.home_uri}review.jsonl"
    records = [golden_record(rows[key], {name: values[key][name] for name in names}) for key in picked]
    storage.replace(review_uri, b"".join(map(encode_record, records)))
    _log.info("%d answers to be reviewed are in %r.", len(picked), review_uri)
    return {
        "review_uri": review_uri,
        "rows": len(picked),
        "labels": Counter(labels[key] for key in picked).most_common() if sample.stratify_by else [],
        "reviews": [
            json.dumps(
                {
                    "review_uri": review_uri,
                    "key": key,
                    "row": _texts(rows[key], sample.columns),
                    "form": {name: fields.form(name, values[key][name]) for name in names},
                }
            )
            for key in picked
        ],
    }


def stratify(labels: Mapping[str, str], size: int) -> list[str]:
    """Selects keys: the first of each label, then the second of each, until there are enough.

    Args:
        labels: Label of each key, in the order of the selection at random.
        size: Number of keys.

    Returns:
        The keys in the order of `labels`; all of them if there are not enough.
    """
    seen: Counter[str] = Counter()
    ranked = []
    for position, (key, label) in enumerate(labels.items()):
        ranked.append((seen[label], position, key))
        seen[label] += 1
    return [key for _, key in sorted(each[1:] for each in heapq.nsmallest(size, ranked))]


def golden_record(row: Row, values: Mapping[str, Any]) -> Row:
    """Returns a row of a golden set, with its expected values in columns that metrics find by their names."""
    return {**row, **{f"expected_{name}": value for name, value in values.items()}}


def _candidates(spec: JobSpec, sample: AnswerSample) -> KeyedRows:
    """Returns rows of the source that are not in the golden set, in the order of their hashes."""
    reviewed = {} if sample.golden is None else read_golden(spec, sample.golden, may_be_empty=True)
    known = {*map(_key_texts, reviewed)}
    size = CANDIDATES_WITH_MEDIA if spec.prompt.media else CANDIDATES
    found = sample_rows(spec, size + len(known), seed=sample.seed).rows
    if missing := {*sample.columns} - {name for row in found.values() for name in row}:
        names = ", ".join(map(repr, sorted(missing)))
        raise JobSpecError(f"`columns`: no row has the column {names}.")
    return {key: row for key, row in found.items() if _key_texts(key) not in known}


def _key_texts(key: str) -> tuple[tuple[str, str], ...]:
    """Returns the values of a key as texts by column, as a golden set in a CSV file has them."""
    return tuple((column, normalise(use_integers(value))) for column, value in json.loads(key).items())


def _answers(spec: JobSpec, rows: KeyedRows) -> dict[str, Any]:
    """Returns the answers to rows in the journal, in the order of the rows.

    Raises:
        JobSpecError: There are none.
    """
    prompts = {
        key: each.fingerprint for key, each in render_rows(spec, rows).items() if not isinstance(each, Failure)
    }
    known, _ = find_outcomes(spec, {*prompts.values()})
    outcomes: dict[str, Outcome] = {
        key: known[fingerprint] for key, fingerprint in prompts.items() if fingerprint in known
    }
    if not any(isinstance(outcome, Completion) for outcome in outcomes.values()):
        raise JobSpecError(
            f"The journal {spec.paths.journal_uri!r} has no answer to these rows. Give this task the arguments of "
            "the run whose answers are reviewed, and its manifest."
        )
    return Answers(outcomes, (), has_schema=spec.prompt.output_schema is not None).values()


def _texts(row: Row, columns: tuple[str, ...]) -> dict[str, str]:
    """Returns the columns of a row as texts of limited length."""
    shown = {}
    for name in columns or without_vault(row):
        value = row.get(name)
        text = value if isinstance(value, str) else json.dumps(valid_value(value), ensure_ascii=False, default=str)
        cut = f" … ({len(text):,} characters)" if len(text) > MAX_CHARACTERS else ""
        shown[name] = text[:MAX_CHARACTERS] + cut
    return shown


def add_golden_rows(spec: JobSpec, addition: GoldenAddition) -> dict[str, Any]:
    """Adds the rows of verdicts to a file of golden rows, and replaces those with the same key.

    The file has its old rows or all new ones; of several processes one after the other adds its own.

    Returns:
        The manifest: `golden_uri`, `rows` in the file, and the numbers of verdicts by what follows from them.

    Raises:
        JobSpecError: A corrected value can be no answer, a verdict names a file that is no sample of the job, or a
            row was not in its sample; nothing was written.
        JobFailedError: Other processes have been writing the file for too long.
    """
    fields = AnswerFields(spec.prompt.output_schema)
    verdicts = {verdict.key: verdict for verdict in addition.verdicts}
    uris = {verdict.review_uri for verdict in verdicts.values()}
    for named in sorted(uris):
        _refuse_other_file(spec, addition, named)
    samples = {uri: _read_golden_file(spec, uri) for uri in uris}
    counts: dict[str, int] = {"accepted": 0, "corrected": 0, "left_out": 0}
    reviewed: dict[str, Row] = {}
    for key, verdict in verdicts.items():
        row = samples[verdict.review_uri].get(key)
        if row is None:
            raise JobSpecError(
                f"`verdicts`: the sample {verdict.review_uri!r} has no row {key}; it was replaced or deleted "
                "since the review. Clear the tasks of the sample and of the review. Nothing was written, sent or "
                "billed."
            )
        decision = decide(fields, row, verdict)
        counts[decision] += 1
        if decision != "left_out":
            review = {"verdict": decision, "by": verdict.reviewed_by, "at": verdict.reviewed_at}
            reviewed[key] = golden_record(row, verdict.values) | {REVIEW: review}
    uri = addition.golden_uri
    name = uri.rpartition("/")[2]
    held = (
        f"`golden_uri` {uri!r}: other processes have been writing it for {MERGE_SECONDS:.0f} s. Nothing was "
        "written, sent or billed; a retry needs no new review."
    )
    with wait_for_lease(spec, f"{uri.removesuffix(name)}.llmbeam/{name}.lease", held):
        rows = {**_read_golden_file(spec, uri), **reviewed}
        if len(rows) > MAX_ROWS:
            raise JobSpecError(
                f"`golden_uri` {uri!r} would have {len(rows):,} rows, and an evaluation answers at most "
                f"{MAX_ROWS:,}. Name another file."
            )
        if reviewed:
            storage.replace(uri, b"".join(map(encode_record, rows.values())), is_private=False)
    _log.info(
        "The golden set %r has %d rows. %d answers were accepted, %d corrected and %d left out.",
        uri,
        len(rows),
        *counts.values(),
    )
    return {"golden_uri": uri, "rows": len(rows), **counts}


def _refuse_other_file(spec: JobSpec, addition: GoldenAddition, named: str) -> None:
    """Checks that a verdict, which crosses Airflow's database and a form, names a sample of the job.

    Raises:
        JobSpecError: It names another file.
    """
    parent = spec.paths.home_uri.removesuffix(f"{spec.name}/")
    job = named.removeprefix(parent).removesuffix("/review.jsonl")
    is_own = named == f"{parent}{job}/review.jsonl" and is_job_name(job)
    if named != addition.review_uri if addition.review_uri is not None else not is_own:
        expected = addition.review_uri or f"{parent}…/review.jsonl"
        raise JobSpecError(
            f"`verdicts`: a verdict names {named!r} as the sample of its answer; expected {expected!r}. If the "
            "sample was written to another `review_uri`, name it here, too. Nothing was written."
        )


def decide(fields: AnswerFields, row: Row, verdict: Verdict) -> Decision:
    """Decides what follows from a verdict on a row of a sample.

    Raises:
        JobSpecError: A corrected value can be no part of an answer.
    """
    if not verdict.is_accepted:
        return "left_out"
    corrected = {name: value for name, value in verdict.values.items() if value != row.get(f"expected_{name}")}
    fields.check("verdicts", corrected)
    if corrected and (mismatch := fields.mismatch(corrected)) is not None:
        raise JobSpecError(
            f"`verdicts`: the corrected answer of row {verdict.key} does not match `prompt.output_schema`: "
            f"{mismatch}. Clear the task of this review, and answer it again."
        )
    return "corrected" if corrected else "accepted"


def _read_golden_file(spec: JobSpec, uri: str) -> KeyedRows:
    return read_golden(spec, FilesSource(uri=uri, key=spec.source.key), may_be_empty=True)


class AnswerFields:
    """The fields of the answers of a job.

    Args:
        output_schema: JSON Schema of the answers; `None` for texts.

    Attributes:
        names: Names of the fields.
    """

    def __init__(self, output_schema: Mapping[str, Any] | None) -> None:
        self._schema = output_schema
        found = AnswerType("text") if output_schema is None else answer_type(output_schema)
        self._is_whole = not found.fields
        self._types = dict(found.fields) or {WHOLE: found}
        self.names = tuple(self._types)
        properties = (output_schema or {}).get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}

    def check(self, argument: str, names: Collection[str]) -> None:
        """Refuses names in an argument that are no fields of an answer.

        Raises:
            JobSpecError: There is no such field.
        """
        for name in names:
            if name not in self.names:
                hint = nearest(name, self.names)
                found = f"{name!r}; {hint}" if hint else repr(name)
                end = "" if found.endswith("?") else "."
                raise JobSpecError(f"`{argument}`: the answers have no field {found}{end}")

    def values(self, answer: Any) -> dict[str, Any]:
        """Returns the values of the fields of an answer; `None` for one that it lacks."""
        if self._is_whole:
            return {WHOLE: answer}
        return {name: answer.get(name) if isinstance(answer, Mapping) else None for name in self.names}

    def form(self, name: str, value: Any) -> dict[str, Any]:
        """Returns the form of a field with its value in the answer.

        Returns:
            `value`, as the form shows it; `schema`, the JSON Schema of what may be entered; and `is_json`, whether
            that is the JSON text of the value. It is for values without a widget of their own, and for texts with
            characters that a person does not see, or a database refuses.
        """
        found = self._types[name]
        is_text = isinstance(value, str)
        if found.kind not in _JSON_TYPES or (is_text and visible(value) != value):
            return {"value": json.dumps(value, indent=2), "schema": _SEVERAL_LINES, "is_json": True}
        kinds = [_JSON_TYPES[found.kind]]
        if found.is_nullable or value is None:
            kinds.append("null")
        schema: dict[str, Any] = {"type": kinds if len(kinds) > 1 else kinds[0]}
        if options := self._options(name):
            schema["enum"] = [*options, *([None] if "null" in kinds and None not in options else [])]
        elif is_text and (len(value) > _LINE or "\n" in value):
            schema |= {"format": "multiline"}
        return {"value": value, "schema": schema, "is_json": False}

    def mismatch(self, values: Mapping[str, Any]) -> str | None:
        """Returns why these values of some fields can be no part of an answer, or `None`."""
        if self._schema is None:
            return None if isinstance(values[WHOLE], str) else "it is no text"
        if self._is_whole:
            return AnswerSchema(self._schema).mismatch(values[WHOLE])
        if not self._properties:  # the schema refers to its root, whose `required` fields are not all here
            return None
        part = {keyword: value for keyword, value in self._schema.items() if keyword not in _OF_THE_WHOLE}
        return AnswerSchema(part).mismatch(dict(values))

    def _options(self, name: str) -> list[Any]:
        """Returns the values that the schema lists for a field, also where it refers to them; none otherwise."""
        found = self._properties.get(name)
        reference = found.get("$ref") if isinstance(found, Mapping) else None
        if isinstance(reference, str):
            found = ((self._schema or {}).get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
        options = found.get("enum") if isinstance(found, Mapping) else None
        return options if isinstance(options, list) else []
