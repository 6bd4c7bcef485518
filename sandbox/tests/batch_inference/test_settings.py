from __future__ import annotations

import httpx
import pytest
from llmbeam_sandbox import BatchSettings, Sandbox

from tests.clouds import authorized


@pytest.mark.parametrize(
    "invalid",
    [
        {"outcome": "lost"},
        {"queue_seconds": -1.0},
        {"run_seconds": float("nan")},
        {"cancel_seconds": -1.0},
        {"expires_seconds": 0.0},
        {"fail_ratio": -0.1},
        {"malformed_ratio": 1.1},
        {"rows_per_shard": 0},
        {"max_jobs": 0},
        {"max_enqueued_tokens": 0},
    ],
)
def test_a_value_out_of_bounds_is_refused(invalid) -> None:
    (name,) = invalid
    with pytest.raises(ValueError, match=name):
        BatchSettings(**invalid)


def test_the_ratios_are_at_most_one_in_all() -> None:
    with pytest.raises(ValueError, match="at most 1 in all"):
        BatchSettings(fail_ratio=0.6, missing_ratio=0.6)


def test_another_process_changes_the_settings_until_a_reset() -> None:
    with Sandbox(batch=BatchSettings(run_seconds=5)) as sandbox:
        url, headers = f"{sandbox.url}/sandbox/batch", authorized(sandbox)
        changed = httpx.post(url, json={"outcome": "stuck"}, headers=headers).json()
        assert (changed["outcome"], changed["run_seconds"]) == ("stuck", 5)
        assert sandbox.batches.settings == BatchSettings(run_seconds=5, outcome="stuck")
        for wrong in ({"colour": "red"}, {"run_seconds": -1}, {"run_seconds": "long"}):
            assert httpx.post(url, json=wrong, headers=headers).status_code == 400
        assert httpx.post(url, json={"outcome": "failed"}).status_code == 401
        sandbox.reset()
        assert sandbox.batches.settings == BatchSettings(run_seconds=5)
