"""Jobs against llmock, a server that nobody here wrote: it breaks at random, and judges its client."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROWS = 100
REFUSALS = {429: 0.05, 500: 0.05, 503: 0.05}
"""Share of the requests by status; llmock adds `Retry-After: 1` to a 429 and a 503."""
BROKEN_STREAMS = (("disconnect", 0.05), ("truncate", 0.05), ("malformed", 0.05))
MODELS = {
    "openai": {"type": "openai", "name": "gpt-4o-mini", "api_key_env": "LLMBEAM_TESTS_CHAOS_KEY"},
    "gemini": {"type": "gemini", "name": "gemini-2.5-flash"},
}


@pytest.fixture
def chaos():
    """A server with refusals at random."""
    from llmock.chaos import ChaosSettings
    from llmock.testing import LLMockServer

    random.seed(50)
    with LLMockServer(chaos=ChaosSettings(latency_ms=20, error_rates=REFUSALS)) as server:
        yield server


def answer(directory, server, api, *, stream):
    """Runs a job of distinct prompts, and returns its report; every row must be answered."""
    source = directory / "rows.jsonl"
    source.write_text(
        "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(ROWS))
    )
    address = server.base_url(api)
    spec = {
        "name": "chaos",
        "source": {"uri": str(source), "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {**MODELS[api], "base_url": address},
        "generation": {"stream": stream},
        "limits": {"request_timeout_seconds": 10, "max_attempts": 10, "max_dead_letter_ratio": 1.0},
        "sink": {"uri": str(directory / "out")},
    }
    manifest = run(JobSpec.parse(spec))
    assert (manifest["rows"]["read"], manifest["rows"]["answered"]) == (ROWS, ROWS)
    return json.loads(Path(manifest["report_uri"]).read_text())


def judged(server):
    """Returns the verdict of the server about its client."""
    from llmock.verdict import judge

    return judge(server.state.journal.records(wait=2.0))


def unexplained(verdict):
    """Returns the findings that need an explanation; there are three that have one.

    `no_backoff` is a warning about retries none of which came later than the one before. Our delays are drawn anew
    between zero and a limit that doubles ("full jitter"), so that a quarter of all pairs look like that; retries
    without any delay have another title and are not explained.

    `malformed_chunk_ignored`: the client reads no further than the chunk, but the server has written the rest of
    the short stream to the socket by then, takes it for a success, and its retry for another call. Each prompt is
    sent once, so that a later request with the same body is that retry.

    `truncated_stream_accepted`: the finish reason is in the sixth chunk of an answer, and a stream that is cut
    after it lacks its usage alone.
    """
    attempts = [attempt for call in verdict.calls for attempt in call.attempts]

    def is_explained(finding):
        if finding.code == "no_backoff":
            return "at a constant interval" in finding.title
        if finding.code == "truncated_stream_accepted":
            return "was cut after 6 chunk(s)" in finding.title
        (broken,) = (attempt for attempt in attempts if attempt.seq == finding.seqs[-1])
        again = (one for one in attempts if one.fingerprint == broken.fingerprint and one.seq > broken.seq)
        return finding.code == "malformed_chunk_ignored" and any(again)

    return [finding.to_dict() for finding in verdict.findings if not is_explained(finding)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", MODELS)
def test_every_row_is_answered_and_the_server_has_nothing_to_say_about_the_retries(tmp_path, chaos, api, stream):
    if stream:
        from llmock.chaos import StreamChaos

        chaos.state.stream_chaos = StreamChaos(fault_rates=BROKEN_STREAMS)
    answer(tmp_path, chaos, api, stream=stream)
    verdict = judged(chaos)
    assert verdict.faults > ROWS * 0.05
    assert unexplained(verdict) == []


@pytest.mark.parametrize("api", MODELS)
def test_a_quota_of_requests_per_minute_is_kept_without_a_storm_of_retries(tmp_path, chaos, api):
    from llmock.ratelimit import LimitSettings

    chaos.state.chaos.error_rates = {}
    chaos.state.limiter.configure(LimitSettings(rpm=ROWS))  # full at the start, so that all rows but a few pass
    answer(tmp_path, chaos, api, stream=False)
    verdict = judged(chaos)
    by_status = Counter(attempt.status for call in verdict.calls for attempt in call.attempts)
    assert by_status[200] == ROWS
    assert unexplained(verdict) == []
