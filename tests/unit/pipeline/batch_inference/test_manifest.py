from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_llmbeam.pipeline.batch_inference.decide import MonitorHistory
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import (
    BatchManifest,
    RequestFile,
    Sums,
    digest_of,
    files_by_name,
    read_manifest,
    write_manifest,
)
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.spec import JobSpec

FILE = RequestFile(digest="d", rows=3, size=9, input_tokens=7)


@pytest.fixture
def job(tmp_path):
    return {
        "name": "job",
        "source": {"uri": f"{tmp_path}/in.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "model": {"type": "gemini"},
        "sink": {"uri": f"{tmp_path}/out/"},
    }


@pytest.fixture
def spec(job):
    found = JobSpec.parse(job)
    Path(found.paths.manifest_uri).parent.mkdir(parents=True)
    return found


def test_a_manifest_is_read_as_it_was_written(spec):
    assert read_manifest(spec) is None
    (name,) = files = files_by_name(spec, [FILE])
    manifest = BatchManifest(
        prompts="p",
        model={"type": "gemini", "name": "gemini-2.5-flash"},
        created_at=1.0,
        files=files,
        submits={name: 1},
        jobs={name: BatchJob(name="batches/1", display_name=name, state="S", phase="queued", created_at=2.0)},
        history=MonitorHistory({name: 3.5}, 3.0),
        harvested={name: Sums(answered=2)},
        guard={"input.tokens.output": 4},
    )
    write_manifest(spec, manifest)
    assert read_manifest(spec) == manifest


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b'{"prompts": 1, "created_at": "x"}'])
def test_a_manifest_that_cannot_be_read_is_passed_over_with_a_warning(spec, content, caplog):
    Path(spec.paths.manifest_uri).write_bytes(content)
    assert read_manifest(spec) is None
    assert "cannot be read and is passed over" in caplog.text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llmbeam-e3b0c442-of-another-team", {}),
        ("own", {"digest": "../../../etc/passwd"}),
        ("own", {"digest": "d\n"}),
        ("own", {"uri": "/etc/passwd"}),
        ("own", {"rows": 0}),
    ],
)
def test_a_manifest_with_files_of_others_is_passed_over(spec, name, change, caplog):
    own = next(iter(files_by_name(spec, [FILE])))
    files = {own if name == "own" else name: FILE.model_dump() | change}
    content = BatchManifest(prompts="p", created_at=1.0).model_dump() | {"files": files}
    Path(spec.paths.manifest_uri).write_text(json.dumps(content))
    assert read_manifest(spec) is None
    assert "cannot be read and is passed over" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"created_at": math.nan},
        {"created_at": math.inf},
        {"deadline_at": 1e300},
        {"online_seconds": math.nan},
        {"history": {"no": 1}},
        {"history": {"first_cancelled_at": math.nan}},
        {"guard": {"input": 1}},
        {"guard": {"input.cost.nano_usd": -1}},
        {"pilot": {"cost_nano_usd": -1}},
        {"harvested": {"a": {"answered": -1}}},
        {"submits": {"a": -1}},
    ],
)
def test_a_manifest_with_numbers_that_no_job_writes_is_passed_over(spec, change, caplog):
    """They ended the job at every try, and a negative cost raised its budget."""
    content = BatchManifest(prompts="p", created_at=1.0).model_dump() | change
    Path(spec.paths.manifest_uri).write_text(json.dumps(content))
    assert read_manifest(spec) is None
    assert "cannot be read and is passed over" in caplog.text


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({"prompt": {"template": "Say {{ row.text }}"}}, True),
        ({"model": {"type": "gemini", "name": "gemini-2.5-pro"}}, True),
        ({"generation": {"max_output_tokens": 7}}, True),
        ({"limits": {"max_in_flight": 7}}, False),
        ({"model": {"type": "gemini", "project": "p"}}, True),
        ({"inference": {"mode": "batch", "finish_by": "PT1H"}}, False),
    ],
)
def test_only_what_decides_the_prompts_makes_other_files(job, change, is_other):
    assert (digest_of(JobSpec.parse(job | change)) != digest_of(JobSpec.parse(job))) == is_other


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({}, False),
        ({"action": "hash"}, True),
        ({"actions": {"EMAIL": "drop"}}, True),
        ({"columns": ["text"]}, True),
        ({"detectors": ["patterns"]}, True),
        ({"detectors": ["patterns", {"type": "dlp", "project": "my-other", "max_in_flight": 9}]}, False),
        ({"on_altered": "repair"}, False),
    ],
)
def test_other_masking_makes_other_files(job, change, is_other):
    privacy = {"detectors": ["patterns", {"type": "dlp", "project": "my-project"}]}

    def digest(fields):
        return digest_of(JobSpec.parse(job | {"safety": {"privacy": fields}}))

    assert digest(privacy) != digest_of(JobSpec.parse(job))
    assert (digest(privacy | change) != digest(privacy)) == is_other


def test_other_labels_make_no_other_files(job):
    given, labelled = ({"type": "gemini", "project": "p", "labels": labels} for labels in ({}, {"team": "data"}))
    assert digest_of(JobSpec.parse(job | {"model": given})) == digest_of(JobSpec.parse(job | {"model": labelled}))


def test_what_was_billed_is_added_to_the_report(spec):
    parts = {"a": Sums(answered=2, failed=1, cost_nano_usd=5), "b": Sums(answered=1, malformed=4, unpriced=1)}
    tally = BatchManifest(prompts="p", created_at=1.0, harvested=parts).tally()
    assert tally.sums["requests"] == 4
    assert (tally.sums["cost_nano_usd"], tally.sums["unpriced"]) == (5, 1)


@pytest.mark.parametrize(
    ("costs", "unpriced", "extra_usd"),
    [
        ({"standard": 10}, 0, 4.5),
        ({"standard": 10, "flex": 3, "batch": 7, "prefix_cache": 2}, 0, 4.5),
        ({"standard": 1, "priority": 7}, 0, 5.0),
        ({"standard": 1}, 0, 0.0),
        ({"standard": 10}, 1, None),
    ],
)
def test_the_extra_cost_of_a_move_to_full_price_is_known_with_its_reason(costs, unpriced, extra_usd):
    errors = {"bad_request: no such field": 2}
    manifest = BatchManifest(
        prompts="p",
        created_at=1.0,
        files={"a": FILE, "b": FILE},
        pilot=Sums(answered=4, cost_nano_usd=10**9),
        pilot_tiers={"standard": 4},
        harvested={"a": Sums(answered=3), "b": Sums(answered=1, failed=2, errors=errors)},
        over_because="all jobs have ended",
    )
    tally = Tally(costs=Counter({tier: usd * 10**9 for tier, usd in costs.items()}))
    tally.sums["unpriced"] = unpriced
    found = manifest.full_price(tally)
    assert (found.rows, found.extra_usd) == (2, extra_usd)
    assert found.because == "all jobs have ended; 2 × bad_request: no such field"
    assert manifest.changed(harvested={"a": Sums(answered=3), "b": Sums(answered=3)}).full_price(tally) is None
    assert manifest.changed(files={}, harvested={}).full_price(tally) is None


PRICE = {"input_usd_per_million_tokens": 1.0, "output_usd_per_million_tokens": 1.0}


def test_what_the_pilot_and_the_request_files_have_cost_is_taken_from_each_budget(job):
    limits = {"price": PRICE, "budget_usd": 2.0}
    guard = {"model": {"type": "openai", "name": "llama-guard-3"}, "limits": limits}
    found = JobSpec.parse(job | {"limits": limits, "safety": {"moderation": guard}})
    spent = {"input.cost.nano_usd": 400_000_000, "output.cost.nano_usd": 100_000_000, "input.tokens.input": 9}
    manifest = BatchManifest(prompts="p", created_at=1.0, pilot=Sums(cost_nano_usd=250_000_000), guard=spent)
    left = manifest.with_remaining_budget(found)
    assert left.limits.budget_usd == 1.75
    assert left.safety.moderation.limits.budget_usd == 1.5
    assert manifest.tally().moderation["input", "tokens", "input"] == 9
    assert manifest.with_remaining_budget(JobSpec.parse(job)) == JobSpec.parse(job)
