"""Previews a job: renders and answers some of its rows in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.plan import prompt_tokens
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.audit.record import audited_row
from airflow_provider_llmbeam.pipeline.elements import Row, RowPrompt
from airflow_provider_llmbeam.pipeline.measure.answers import (
    Rendered,
    cost_usd,
    find_outcomes,
    render_rows,
    send,
)
from airflow_provider_llmbeam.pipeline.measure.named_keys import NamedKeys
from airflow_provider_llmbeam.pipeline.measure.portions import read_source, spread_over
from airflow_provider_llmbeam.pipeline.measure.rows import KeyedRows, RowPicker
from airflow_provider_llmbeam.spec.conversation import refuse_conversation
from airflow_provider_llmbeam.spec.evaluation import PreviewSample
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.kept import keeper_of
from airflow_provider_llmbeam.spec.protocol.preview import Preview, PreviewedRow

#: Number of rows among which those of some lengths are selected.
LENGTH_CANDIDATES = 1000


def make_preview(spec: JobSpec, sample: PreviewSample) -> Preview:
    """Previews a job.

    Prompts that the job has answered are not sent again; the job keeps the answers to those that are sent.

    Raises:
        JobSpecError: There is no such row, or the job has conversations.
        LLMBeamError: The prompts could not be sent.
    """
    refuse_conversation(spec, "a preview")
    wanted = WantedRows(spec, sample)
    reading = read_source(spec, wanted.prompts, spec.paths.export_uri)
    for row in reading.rows():
        wanted.add(row)
    return preview_rows(spec, sample, wanted.end(), ran_query=reading.ran_query)


def preview_rows(spec: JobSpec, sample: PreviewSample, rows: KeyedRows, *, ran_query: bool) -> Preview:
    """Previews rows of a job.

    Args:
        spec: The job.
        sample: Whether they are sent, and which of them.
        rows: The rows.
        ran_query: Whether a query was run to read them.

    Raises:
        LLMBeamError: The prompts could not be sent.
    """
    prompts = render_rows(spec, rows)
    if sample.by == "length" and not sample.keys:
        by_length = sorted(prompts, key=lambda key: (_tokens(prompts[key]), key))
        prompts = {key: prompts[key] for key in spread_over(by_length, sample.rows)}
    wanted = {each.fingerprint: each.prompt for each in prompts.values() if isinstance(each, RowPrompt)}
    known, _ = find_outcomes(spec, wanted)
    new = {each: prompt for each, prompt in wanted.items() if each not in known} if sample.sends else {}
    sent = [each for each in prompts.values() if isinstance(each, RowPrompt) and each.fingerprint in new]
    fresh = send(spec, new, _audited_rows(spec, sent))
    return Preview(
        job=spec.name,
        rows=tuple(_preview_row(spec, key, each, known, fresh) for key, each in prompts.items()),
        sent=len(fresh),
        cost_usd=cost_usd(fresh.values()),
        ran_query=ran_query,
        keeper=keeper_of(spec),
    )


def _audited_rows(spec: JobSpec, sent: Iterable[RowPrompt]) -> dict[str, list[Row]]:
    """Returns what an audit needs of rows, by the fingerprint of their prompts; nothing for a job without one."""
    found: dict[str, list[Row]] = {}
    if spec.safety.audit is not None:
        for row, fingerprint, _ in sent:
            found.setdefault(fingerprint, []).append(audited_row(row, spec.source.key))
    return found


class WantedRows:
    """Selects the rows of a preview of those that are added.

    Attributes:
        prompts: Prepares the rows.
    """

    def __init__(self, spec: JobSpec, sample: PreviewSample) -> None:
        self._key = spec.source.key
        self._named = keys = NamedKeys(sample.keys, self._key)
        if sample.keys:
            picker = RowPicker(spec, len(sample.keys), accepts=lambda row: keys.of_row(row) is not None)
        else:
            size = LENGTH_CANDIDATES if sample.by == "length" else sample.rows
            picker = RowPicker(spec, size, seed=sample.seed)
        self._picker = picker
        self.prompts = picker.prompts
        self.add = picker.add

    def end(self) -> KeyedRows:
        """Returns the rows.

        Raises:
            JobSpecError: There is no such row.
        """
        if self._named.unfound:
            raise JobSpecError(
                f"`source`: no row has the key {', '.join(map(repr, self._named.unfound))}. The key has the "
                f"columns {', '.join(map(repr, self._key))}; a large source is read in part."
            )
        return self._picker.end()


def _tokens(each: Rendered) -> int:
    return 0 if isinstance(each, Failure) else prompt_tokens(each.prompt)


def _preview_row(
    spec: JobSpec, key: str, each: Rendered, known: Mapping[str, Outcome], fresh: Mapping[str, Outcome]
) -> PreviewedRow:
    if isinstance(each, Failure):
        return PreviewedRow(key=key, failure=each.message)
    _, fingerprint, prompt = each
    outcome = known.get(fingerprint) or fresh.get(fingerprint)
    completion = outcome if isinstance(outcome, Completion) else None
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
        input_tokens=0 if outcome is None else outcome.tokens.input,
        output_tokens=0 if outcome is None else outcome.tokens.output,
        cost_usd=None if outcome is None else cost_usd([outcome]),
        latency_seconds=completion.latency_seconds if completion else None,
        has_schema=spec.prompt.output_schema is not None,
    )
