from __future__ import annotations

import numpy as np
import pytest

from airflow_provider_llmbeam.pipeline.cascade.choice import choose_answer
from bench import cascade
from bench.cascade import SETTINGS, draw_rows, main, run

#: Seeds that no constant was chosen with.
HELD_OUT = range(10_000, 10_008)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(cascade, "PROMPTS", 2000)
    monkeypatch.setattr(cascade, "_BEST_BY_ONE", (2000, 40))
    monkeypatch.setattr(cascade, "_BEST_BY_SEVERAL", (500, 6))


def test_there_are_twelve_settings_and_six_more():
    assert len({setting.name for setting in SETTINGS}) == 18


def test_good_scores_save_half_of_the_cost_and_rarely_miss():
    setting = next(each for each in SETTINGS if each.name.startswith("0.90, 1,000 draws, good"))
    results = [run(setting, seed) for seed in HELD_OUT]
    assert sum(result.misses for result in results) <= 2
    assert all(result.is_found for result in results)
    assert np.mean([result.cost for result in results]) < 0.5


def test_all_rows_are_counted_as_a_job_chooses_their_answers():
    for setting in SETTINGS[12:17]:
        source = np.random.default_rng(7)
        rows = draw_rows(setting, source, 400)
        draws = [rows.draw(index) for index in range(400)]
        calibration = cascade.calibrate_draws(setting, draws)
        by_job = [choose_answer(calibration, draw.stages) for draw in draws]
        assert [None if stage == len(setting.right) else stage for stage in rows.choose(calibration)] == by_job


def test_the_table_has_a_line_for_each_setting(capsys, monkeypatch):
    monkeypatch.setattr(cascade, "SETTINGS", (*SETTINGS[:1], *SETTINGS[-3:]))
    main(["--runs", "2"])
    table, remarks = capsys.readouterr().out.split("\n\n")
    assert len(table.splitlines()) == 2 + 4
    assert len(remarks.splitlines()) == 4
