from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.batch_inference.decide import BatchPlan
from airflow_provider_llmbeam.pipeline.batch_inference.ways import (
    FLEX_RATIOS,
    Turnaround,
    Work,
    choose,
    flex_until,
    ways_of,
)
from airflow_provider_llmbeam.spec.facts import ASSUMED_PRIORITY_RATIO, MAX_FLEX_SECONDS
from airflow_provider_llmbeam.spec.model.price import Price

NOW = 1_800_000_000.0
HOUR = 3600.0
PRICE = Price(
    input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=2.0, cached_input_usd_per_million_tokens=0.1
)
WORK = Work(rows=1000, input_tokens=1_000_000, output_tokens=500_000)
QUICK = Turnaround(((600.0, 95.0), (86_400.0, 5.0)))


def ways(hours=10.0, online=HOUR, price=PRICE, turnaround=QUICK, work=WORK, has_flex=True, ordinary="standard"):
    plan = BatchPlan(
        started_at=NOW,
        deadline_at=None if hours is None else NOW + hours * HOUR,
        max_wait_seconds=24 * HOUR,
        online_seconds=online,
    )
    return ways_of(work, plan, price, NOW, has_flex=has_flex, ordinary=ordinary, turnaround=turnaround)


def chosen(**changes):
    return choose(ways(**changes))[0].tier


def test_batch_inference_is_taken_where_it_usually_ends_in_time():
    assert chosen() == "batch"


def test_flex_is_taken_where_batch_inference_often_ends_too_late():
    assert chosen(turnaround=Turnaround(((600.0, 1.0), (86_400.0, 1.0)))) == "flex"


def test_without_flex_a_small_chance_of_batch_inference_is_taken():
    assert chosen(turnaround=Turnaround(((600.0, 1.0), (86_400.0, 9.0))), has_flex=False) == "batch"


def test_a_near_deadline_leaves_the_standard_tier():
    assert chosen(hours=1.25) == "standard"


def test_where_nothing_is_in_time_the_fastest_way_is_taken():
    way, reason = choose(ways(hours=0.5))
    assert way.tier == "standard"
    assert "no way is finished" in reason


def test_without_a_price_the_ratios_of_the_tiers_decide():
    way, reason = choose(ways(price=None))
    assert (way.tier, way.cost_usd) == ("batch", None)
    assert "not known" in reason


def test_costs_follow_the_tiers_and_the_prefix():
    found = {
        (way.tier, way.prefix_cache): way.cost_usd
        for way in ways(
            work=Work(rows=1000, input_tokens=1_000_000, output_tokens=500_000, prefix_tokens=900_000),
            turnaround=Turnaround(((600.0, 1.0),)),
        )
    }
    assert found == pytest.approx(
        {
            ("standard", False): 2.0,
            ("standard", True): 1.19,
            ("flex", False): 1.2,
            ("flex", True): 0.75,
            ("batch", False): 1.0,
        }
    )


def test_a_prefix_cache_costs_its_making_and_its_storage():
    work = Work(rows=1000, input_tokens=1_000_000, output_tokens=500_000, prefix_tokens=900_000, prefix_usd=0.05)
    found = {(way.tier, way.prefix_cache): way.cost_usd for way in ways(work=work)}
    assert found["standard", True] == pytest.approx(1.19 + 0.05)
    assert found["standard", False] == pytest.approx(2.0)


def test_audio_has_its_own_price_and_is_not_in_the_cache():
    price = PRICE.model_copy(update={"audio_input_usd_per_million_tokens": 3.0})
    work = Work(rows=10, input_tokens=1_000_000, output_tokens=0, prefix_tokens=600_000, audio_tokens=300_000)
    cost = {(way.tier, way.prefix_cache): way.cost_usd for way in ways(work=work, price=price)}
    assert cost["standard", True] == pytest.approx(0.6 * 0.1 + 0.3 * 3.0 + 0.1)
    assert cost["standard", False] == pytest.approx(0.3 * 3.0 + 0.7)


def test_the_discount_of_batch_inference_leaves_out_what_the_provider_reads_from_its_cache():
    work = Work(rows=1000, input_tokens=1_000_000, output_tokens=0, cached_tokens=900_000)
    found = {way.tier: way.cost_usd for way in ways(work=work, turnaround=Turnaround(((600.0, 1.0),)))}
    assert found == pytest.approx({"standard": 0.19, "flex": 0.15, "batch": 0.14})


def test_a_prefix_cache_may_be_cheaper_than_batch_inference():
    work = Work(rows=1000, input_tokens=10_000_000, output_tokens=10_000, prefix_tokens=9_900_000)
    way, reason = choose(ways(work=work))
    assert way.prefix_cache
    assert "with a prefix cache" in reason


def test_the_time_of_batch_inference_includes_the_switch():
    way = ways()[-1]
    assert way.expected_at == way.safe_at == NOW + 600
    late = ways(turnaround=Turnaround(((86_400.0, 1.0),)))[-1]
    assert late.safe_at == pytest.approx(NOW + 10 * HOUR)


def test_an_unknown_online_time_refuses_flex_and_has_no_finish():
    found = {way.tier: way for way in ways(online=None, turnaround=Turnaround(((86_400.0, 1.0),)))}
    assert found["standard"].is_in_time
    assert not found["flex"].is_in_time
    assert found["standard"].safe_at is found["batch"].safe_at is None


def test_without_a_deadline_everything_is_in_time():
    assert all(way.is_in_time for way in ways(hours=None, online=None))


def test_a_way_reads_as_a_line_of_the_log():
    online, batch = ways(has_flex=False)
    assert str(online) == (
        "online: about $2.00, finished at 2027-01-15 09:00 UTC, in 9 of 10 cases at 2027-01-15 09:12 UTC; in time"
    )
    assert str(batch).startswith("batch: about $1.05, finished at 2027-01-15 08:10 UTC")
    unknown, _ = ways(has_flex=False, online=None, price=None)
    assert str(unknown) == "online: an unknown cost, finished at an unknown time"


def test_a_way_is_called_in_time_or_too_late_only_if_there_is_a_deadline_and_its_time_is_known():
    def ends(**changes):
        return {way.tier: str(way).partition("; ")[2] for way in ways(**changes)}

    assert ends(hours=1.5) == {"standard": "in time", "flex": "too late", "batch": "in time"}
    assert not any(ends(hours=None).values())
    assert not any(ends(online=None, turnaround=Turnaround(((86_400.0, 1.0),))).values())


def test_a_way_of_a_small_job_has_its_cost_and_not_zero():
    small = Work(rows=1, input_tokens=100, output_tokens=20)
    online, batch = ways(has_flex=False, work=small)
    assert str(online).startswith("online: about $0.00014, ")
    assert str(batch).startswith("batch: about $0.000073, ")
    assert choose([online])[1].endswith(": about $0.00014")


def test_after_the_end_of_flex_all_rows_are_in_time_at_the_standard_tier():
    deadline = NOW + 6 * HOUR
    end = flex_until(deadline, HOUR)
    assert end + MAX_FLEX_SECONDS + 1.2 * HOUR == deadline
    assert flex_until(deadline, None) < NOW


def test_the_price_of_flex_includes_what_is_sent_at_the_standard_tier():
    assert FLEX_RATIOS["standard"] == FLEX_RATIOS["priority"] == 1.0
    assert FLEX_RATIOS["flex"] == 0.5
    assert FLEX_RATIOS["flex_then_standard"] == pytest.approx(0.6)
    (flex,) = [way for way in ways() if way.tier == "flex"]
    assert flex.price_ratio == FLEX_RATIOS["flex_then_standard"]


DEAR = PRICE.model_copy(update={"priority_ratio": 2.0})


def test_what_is_sent_online_costs_the_price_of_the_priority_tier():
    online, flex, batch = ways(
        price=DEAR, ordinary="priority", turnaround=Turnaround(((600.0, 3.0), (86_400.0, 1.0)))
    )
    usual_online, usual_flex, usual_batch = ways(
        price=DEAR, turnaround=Turnaround(((600.0, 3.0), (86_400.0, 1.0)))
    )
    assert (online.tier, usual_online.tier) == ("priority", "standard")
    assert (online.cost_usd, online.price_ratio) == (2 * usual_online.cost_usd, 2.0)
    assert (online.safe_at, online.is_in_time) == (usual_online.safe_at, usual_online.is_in_time)
    assert flex == usual_flex
    assert batch.price_ratio - usual_batch.price_ratio == pytest.approx(usual_batch.price_ratio * 2 - 1)
    assert batch.cost_usd == pytest.approx(2.0 * batch.price_ratio)
    assert str(online).startswith("priority: about $4.00")


def test_where_nothing_is_in_time_the_priority_tier_is_the_fastest_way():
    way, reason = choose(ways(hours=0.5, ordinary="priority"))
    assert (way.tier, "no way is finished" in reason) == ("priority", True)


@pytest.mark.parametrize("price", [PRICE, None])
def test_without_the_price_of_the_priority_tier_the_ways_are_compared_by_its_least_ratio(price):
    online, flex, batch = ways(price=price, ordinary="priority")
    assert (online.cost_usd, batch.cost_usd) == (None, None)
    assert online.price_ratio == ASSUMED_PRIORITY_RATIO > flex.price_ratio > batch.price_ratio
    assert choose((online, flex, batch))[0] == batch


def test_the_turnaround_is_what_the_providers_say():
    assert [Turnaround().quantile(share) for share in (0.5, 0.9, 1.0)] == [1_200, 86_400, 172_800]
    assert [Turnaround().chance(seconds) for seconds in (1, 3_600, 10**6)] == [0, 0.75, 1]
