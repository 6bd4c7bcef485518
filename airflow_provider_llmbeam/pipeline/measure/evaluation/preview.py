"""Previews a job: renders and answers some of its rows in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence

from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.plan import prompt_tokens
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.audit.record import audited_row
from airflow_provider_llmbeam.pipeline.elements import Row, RowPrompt
from airflow_provider_llmbeam.pipeline.measure.estimate.outcomes import earlier_outcomes, send
from airflow_provider_llmbeam.pipeline.measure.estimate.projection import spread_over
from airflow_provider_llmbeam.pipeline.measure.evaluation.answers import Rendered, rendered
from airflow_provider_llmbeam.pipeline.measure.evaluation.rows import KeyedRows, salt_of, sampled_rows
from airflow_provider_llmbeam.spec.conversation import refuse_conversation
from airflow_provider_llmbeam.spec.evaluation import PreviewSample
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.protocol.preview import Preview, PreviewedRow

#: Number of rows among which those of some lengths are selected.
LENGTH_CANDIDATES = 1000


def make_preview(spec: JobSpec, sample: PreviewSample) -> Preview:
    """Previews a job.

    Prompts that the job has answered are not sent again; the job keeps the answers to those that are sent.

    Args:
        spec: The job.
        sample: The rows, and whether their prompts are sent.

    Raises:
        JobSpecError: There is no such row, or the job has conversations.
        LLMBeamError: The prompts could not be sent.
    """
    refuse_conversation(spec, "a preview")
    read = _rows(spec, sample)
    prompts = rendered(spec, read)
    if sample.by == "length" and not sample.keys:
        by_length = sorted(prompts, key=lambda key: (_tokens(prompts[key]), key))
        prompts = {key: prompts[key] for key in spread_over(by_length, sample.rows)}
    wanted = {each.fingerprint: each.prompt for each in prompts.values() if isinstance(each, RowPrompt)}
    known, _ = earlier_outcomes(spec, wanted)
    new = {each: prompt for each, prompt in wanted.items() if each not in known} if sample.sends else {}
    sent = [each for each in prompts.values() if isinstance(each, RowPrompt) and each.fingerprint in new]
    fresh = send(spec, new, _audited_rows(spec, sent))
    costs = [outcome.cost_nano_usd for outcome in fresh.values()]
    return Preview(
        job=spec.name,
        rows=tuple(_previewed(spec, key, each, known, fresh) for key, each in prompts.items()),
        sent=len(fresh),
        cost_usd=None if None in costs else sum(filter(None, costs)) / NANO,
    )


def _audited_rows(spec: JobSpec, sent: Iterable[RowPrompt]) -> dict[str, list[Row]]:
    """Returns what an audit needs of rows, by the fingerprint of their prompts; nothing for a job without one."""
    found: dict[str, list[Row]] = {}
    if spec.safety.audit is not None:
        for row, fingerprint, _ in sent:
            found.setdefault(fingerprint, []).append(audited_row(row, spec.source.key))
    return found


def _rows(spec: JobSpec, sample: PreviewSample) -> KeyedRows:
    if sample.keys:
        return _rows_of_keys(spec, sample.keys)
    size = LENGTH_CANDIDATES if sample.by == "length" else sample.rows
    return sampled_rows(spec, size, salt=salt_of(sample.seed)).rows


def _rows_of_keys(spec: JobSpec, keys: Sequence[str]) -> KeyedRows:
    def name(row: Row) -> str:
        values = [row[column] for column in spec.source.key]
        return str(values[0]) if len(values) == 1 else json.dumps(values, default=str)

    wanted = {key if len(spec.source.key) == 1 else _list(key) for key in keys}
    found = set[str]()

    def accepts(row: Row) -> bool:
        is_wanted = (own := name(row)) in wanted
        if is_wanted:
            found.add(own)
        return is_wanted

    rows: KeyedRows = {}
    with contextlib.suppress(JobSpecError):
        rows = sampled_rows(spec, len(wanted), accepts=accepts).rows
    if missing := wanted - found:
        raise JobSpecError(
            f"`source`: no row has the key {', '.join(map(repr, sorted(missing)))}. The key has the columns "
            f"{', '.join(map(repr, spec.source.key))}; a large source is read in part. Nothing was sent or billed."
        )
    return rows


def _list(text: str) -> str:
    try:
        return json.dumps(json.loads(text))
    except ValueError:
        return text


def _tokens(each: Rendered) -> int:
    return 0 if isinstance(each, Failure) else prompt_tokens(each.prompt)


def _previewed(
    spec: JobSpec, key: str, each: Rendered, known: Mapping[str, Outcome], fresh: Mapping[str, Outcome]
) -> PreviewedRow:
    if isinstance(each, Failure):
        return PreviewedRow(key=key, failure=each.message)
    _, fingerprint, prompt = each
    outcome = known.get(fingerprint) or fresh.get(fingerprint)
    completion = outcome if isinstance(outcome, Completion) else None
    cost = None if outcome is None else outcome.cost_nano_usd
    return PreviewedRow(
        key=key,
        prompt=prompt.text,
        system=prompt.system,
        media=tuple(uri for uri, _ in prompt.media),
        estimated_tokens=prompt_tokens(prompt),
        origin="not_sent" if outcome is None else "known" if fingerprint in known else "fresh",
        answer=completion.text if completion else None,
        failure=outcome.message if isinstance(outcome, Failure) else None,
        model=completion.model if completion else "",
        input_tokens=0 if outcome is None else outcome.input_tokens,
        output_tokens=0 if outcome is None else outcome.output_tokens,
        cost_usd=None if cost is None else cost / NANO,
        latency_seconds=completion.latency_seconds if completion else None,
        has_schema=spec.prompt.output_schema is not None,
    )
