from __future__ import annotations

import pytest

from bench.jobs import JOBS, ServerSettings, Target, quick
from bench.registry import CONTENDERS
from bench.rows import BYTES_PER_TOKEN, make_rows


def test_a_quarter_of_the_rows_are_duplicates():
    texts = [row["text"] for row in make_rows("duplicates", 200)]
    assert (len(texts), len(set(texts))) == (200, 150)


def test_rows_are_the_same_every_time():
    assert make_rows("sharegpt", 50) == make_rows("sharegpt", 50)


def test_sharegpt_like_prompts_have_the_mean_of_the_study():
    lengths = [len(row["text"]) / BYTES_PER_TOKEN for row in make_rows("sharegpt", 4000)]
    assert sum(lengths) / len(lengths) == pytest.approx(161, rel=0.1)
    assert max(lengths) > 10 * 161


def test_every_prompt_names_its_row():
    for job in JOBS:
        if job.row_kind != "duplicates":
            rows = make_rows(job.row_kind, 40)
            assert len({row["text"].split()[0] for row in rows}) == 40


@pytest.mark.parametrize(("seconds", "available"), [(10, 10), (25, 22.5), (50, 40)])
def test_available_requests_follow_the_steps_and_the_last_one_stays(seconds, available):
    server = ServerSettings(requests_per_minute=60, step_shares=(1.0, 0.5, 1.0), step_seconds=20)
    assert server.available_requests(seconds) == pytest.approx(available)


def test_a_quick_job_is_smaller_and_keeps_its_shape():
    for job in JOBS:
        small = quick(job)
        assert small.rows * 4 <= job.rows + 3
        assert small.is_quick
        if job.server and job.server.window_requests:
            assert small.rows / small.server.window_requests == pytest.approx(2.5, rel=0.05)


def test_every_headline_is_a_column_and_every_job_counts_lost_rows():
    for job in JOBS:
        assert job.columns[0] == job.headline
        assert "lost" in {target.figure for target in job.targets}


def test_a_target_has_one_bound_and_includes_it():
    assert Target(figure="f", at_most=2).is_reached(2)
    assert not Target(figure="f", at_least=2).is_reached(1.9)
    for job in JOBS:
        assert all((target.at_most is None) != (target.at_least is None) for target in job.targets)


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_a_contender_runs_each_job_or_gives_a_reason(contender):
    if not contender.has_machines:
        assert set(contender.jobs) | set(contender.not_run) == {job.letter for job in JOBS}
    assert not set(contender.jobs) & set(contender.not_run)
    assert all("==" in requirement for requirement in contender.requirements)
