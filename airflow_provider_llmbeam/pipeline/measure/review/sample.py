"""Selects answers of a job that people review."""

from __future__ import annotations

import heapq
import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.measure.estimate.outcomes import earlier_outcomes
from airflow_provider_llmbeam.pipeline.measure.evaluation.answers import Answers, rendered
from airflow_provider_llmbeam.pipeline.measure.evaluation.marks import normalised, whole
from airflow_provider_llmbeam.pipeline.measure.evaluation.rows import KeyedRows, rows_so_far, salt_of, sampled_rows
from airflow_provider_llmbeam.pipeline.measure.evaluation.run import check_generates
from airflow_provider_llmbeam.pipeline.measure.review.fields import AnswerFields
from airflow_provider_llmbeam.pipeline.privacy.vault import without_vault
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.spec.characters import valid_value, visible
from airflow_provider_llmbeam.spec.evaluation import AnswerSample
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")

#: Number of rows among whose answers the sample is selected, and with files in the prompts, each of which is read.
CANDIDATES, CANDIDATES_WITH_MEDIA = 5000, 500
#: Maximum length of a column that the reviewer sees, in characters.
MAX_CHARACTERS = 4000
#: Number of characters by which two labels differ.
MAX_LABEL = 100


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
    labels = {
        key: "" if sample.stratify_by is None else _label(value[sample.stratify_by])
        for key, value in values.items()
    }
    picked = stratified(labels, sample.rows)
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
                    "row": _shown(rows[key], sample.columns),
                    "form": {name: fields.form(name, values[key][name]) for name in names},
                }
            )
            for key in picked
        ],
    }


def stratified(labels: Mapping[str, str], size: int) -> list[str]:
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


def _label(value: Any) -> str:
    return visible(normalised(whole(value))[:MAX_LABEL])


def _candidates(spec: JobSpec, sample: AnswerSample) -> KeyedRows:
    """Returns rows of the source that are not in the golden set, in the order of their hashes."""
    reviewed = {} if sample.golden is None else rows_so_far(spec, sample.golden)
    known = {*map(_key_texts, reviewed)}
    size = CANDIDATES_WITH_MEDIA if spec.prompt.media else CANDIDATES
    found = sampled_rows(spec, size + len(known), salt=salt_of(sample.seed)).rows
    if missing := {*sample.columns} - {name for row in found.values() for name in row}:
        names = ", ".join(map(repr, sorted(missing)))
        raise JobSpecError(f"`columns`: no row has the column {names}. Nothing was sent or billed.")
    return {key: row for key, row in found.items() if _key_texts(key) not in known}


def _key_texts(key: str) -> tuple[tuple[str, str], ...]:
    """Returns the values of a key as texts by column, as a golden set in a CSV file has them."""
    return tuple((column, normalised(whole(value))) for column, value in json.loads(key).items())


def _answers(spec: JobSpec, rows: KeyedRows) -> dict[str, Any]:
    """Returns the answers to rows in the journal, in the order of the rows.

    Raises:
        JobSpecError: There are none.
    """
    prompts = {
        key: each.fingerprint for key, each in rendered(spec, rows).items() if not isinstance(each, Failure)
    }
    known, _ = earlier_outcomes(spec, {*prompts.values()})
    outcomes: dict[str, Outcome] = {
        key: known[fingerprint] for key, fingerprint in prompts.items() if fingerprint in known
    }
    if not any(isinstance(outcome, Completion) for outcome in outcomes.values()):
        raise JobSpecError(
            f"The journal {spec.paths.journal_uri!r} has no answer to these rows. Give this task the arguments of "
            "the run whose answers are reviewed, and its manifest. Nothing was sent or billed."
        )
    return Answers(outcomes, (), has_schema=spec.prompt.output_schema is not None).values()


def _shown(row: Row, columns: tuple[str, ...]) -> dict[str, str]:
    """Returns the columns of a row as texts of limited length."""
    shown = {}
    for name in columns or without_vault(row):
        value = row.get(name)
        text = value if isinstance(value, str) else json.dumps(valid_value(value), ensure_ascii=False, default=str)
        cut = f" … ({len(text):,} characters)" if len(text) > MAX_CHARACTERS else ""
        shown[name] = text[:MAX_CHARACTERS] + cut
    return shown
