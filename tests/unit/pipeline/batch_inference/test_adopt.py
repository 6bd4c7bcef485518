"""What becomes of a submission without a reply, at an API whose jobs have no name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_llmbeam.pipeline.batch_inference import harvest
from airflow_provider_llmbeam.pipeline.batch_inference.adopt import (
    CLOCK_SECONDS,
    LISTED_SECONDS,
    Adopt,
    Doubt,
    Intent,
    NotCreated,
    Prove,
    adopt,
)
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import RequestFile
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.providers.errors import ApiUnavailableError
from airflow_provider_llmbeam.spec import JobSpec

pytestmark = [pytest.mark.promise(2), pytest.mark.promise(4)]

SENT_AT = 1_800_000_000.0
INTENT = Intent(sent_at=SENT_AT, rows=100)


def job(name: str, *, ended: bool = False, **fields: Any) -> BatchJob:
    given = {"state": "", "created_at": SENT_AT + 1, "rows": 100} | fields
    results = ("results",) if ended else ()
    return BatchJob(
        name=name, display_name="", phase="succeeded" if ended else "running", results=results, **given
    )


#: Jobs in the list, what their results have said, seconds since the submission, and what is decided.
HISTORIES = {
    "no list shows it yet": ([], {}, 599, Doubt(())),
    "no list has shown it in ten minutes": ([], {}, LISTED_SECONDS, NotCreated()),
    "one runs that may be it, for hours": ([job("a")], {}, 36_000, Doubt(("a",))),
    "one has ended that may be it": ([job("a", ended=True)], {}, 5, Prove((job("a", ended=True),))),
    "it has our keys": ([job("a", ended=True)], {"a": True}, 5, Adopt(job("a", ended=True))),
    "it has other keys": ([job("a", ended=True)], {"a": False}, LISTED_SECONDS, NotCreated()),
    "of two that run, nothing is known": ([job("a"), job("b")], {}, 5, Doubt(("a", "b"))),
    "one of two has ended": ([job("a"), job("b", ended=True)], {}, 5, Prove((job("b", ended=True),))),
    "one of two has ended and is another's": ([job("a"), job("b", ended=True)], {"b": False}, 5, Doubt(("a",))),
    "one of two has ended and is ours": (
        [job("a"), job("b", ended=True)],
        {"b": True},
        5,
        Adopt(job("b", ended=True)),
    ),
    "one has another number of requests": ([job("a", rows=99)], {}, 5, Doubt(())),
    "one was created before": (
        [job("a", created_at=SENT_AT - CLOCK_SECONDS - 1)],
        {},
        LISTED_SECONDS,
        NotCreated(),
    ),
    "one is of another submission": ([job("known")], {}, LISTED_SECONDS, NotCreated()),
}


@pytest.mark.parametrize("what", HISTORIES)
def test_a_job_is_adopted_only_if_its_results_have_our_keys(what: str) -> None:
    listed, proofs, seconds, decision = HISTORIES[what]
    assert adopt(INTENT, listed, {"known"}, proofs, SENT_AT + seconds) == decision


@pytest.mark.parametrize(
    ("chunks", "is_ours"),
    [
        ([b'{"custom_id": "ours", "result": {"type": "expired"}}\n'], True),
        ([b'{"custom_id": "th', b'eirs", "result": {"type": "expired"}}'], False),
        ([b"<html>\n{\n", b'{"custom_id": "ours", "result": {"type": "canceled"}}\n'], True),
        ([b"<html>\n{"], None),
    ],
)
def test_the_first_whole_result_says_whose_a_job_is(
    monkeypatch: pytest.MonkeyPatch, chunks: list[bytes], is_ours: bool | None
) -> None:
    monkeypatch.setattr(harvest, "_keys", lambda uri: iter([("ours", "fingerprint")]))
    spec = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "/tmp/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "anthropic", "name": "claude-haiku-5-5"},
            "sink": {"uri": "/tmp/out"},
        }
    )
    provider: Any = SimpleNamespace(results=lambda job: iter([("results", iter(chunks))]))
    file = RequestFile(digest="a", rows=1, size=1, input_tokens=1)
    if is_ours is None:
        with pytest.raises(ApiUnavailableError, match="whose they are"):
            harvest.has_key_of(spec, provider, job("a", ended=True), file)
    else:
        assert harvest.has_key_of(spec, provider, job("a", ended=True), file) == is_ours
