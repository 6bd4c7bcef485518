from __future__ import annotations

import pytest
from llmbeam_sandbox.core.faults import Fault, FaultKind, Faults
from llmbeam_sandbox.core.hold import Hold
from llmbeam_sandbox.core.methods import Method
from llmbeam_sandbox.services import METHODS

GENERATE: Method = "gemini.generateContent"
ERROR = Fault(kind="error")
DROP = Fault(kind="drop")


def test_each_call_takes_one_fault_in_order() -> None:
    faults = Faults(METHODS)
    faults.queue(GENERATE, ERROR, DROP)
    assert [faults.take(GENERATE, "") for _ in range(3)] == [ERROR, DROP, None]


def test_methods_do_not_share_a_queue() -> None:
    faults = Faults(METHODS)
    faults.queue(GENERATE, ERROR)
    assert faults.take("gemini.countTokens", "") is None
    assert faults.left() == {GENERATE: 1}


def test_the_error_names_faults_that_no_call_has_consumed() -> None:
    faults = Faults(METHODS)
    faults.queue(GENERATE, ERROR, DROP)
    faults.when("openai.models", "x", ERROR, times=3)
    with pytest.raises(AssertionError, match=r"2 for gemini\.generateContent, 3 for openai\.models"):
        faults.assert_all_consumed()


def test_the_check_passes_if_all_faults_are_consumed() -> None:
    faults = Faults(METHODS)
    faults.queue(GENERATE, ERROR)
    faults.take(GENERATE, "")
    faults.assert_all_consumed()


def test_every_nth_call_gets_the_fault() -> None:
    faults = Faults(METHODS)
    faults.every(GENERATE, 3, ERROR)
    assert [faults.take(GENERATE, "") is ERROR for _ in range(7)] == [False, False, True] * 2 + [False]
    faults.assert_all_consumed()


def test_a_rule_matches_only_prompts_with_its_string() -> None:
    faults = Faults(METHODS)
    faults.when(GENERATE, "row 7", ERROR)
    assert [faults.take(GENERATE, text) for text in ("row 6", "a row 7", "row 7")] == [None, ERROR, ERROR]


def test_a_counted_rule_ends() -> None:
    faults = Faults(METHODS)
    faults.when(GENERATE, "x", ERROR, times=2)
    assert [faults.take(GENERATE, "x") for _ in range(3)] == [ERROR, ERROR, None]


def test_queued_faults_take_precedence_over_rules_and_consume_none() -> None:
    faults = Faults(METHODS)
    faults.when(GENERATE, "x", DROP, times=1)
    faults.queue(GENERATE, ERROR)
    assert [faults.take(GENERATE, "x") for _ in range(3)] == [ERROR, DROP, None]


def test_clear_removes_queues_and_rules() -> None:
    faults = Faults(METHODS)
    faults.queue(GENERATE, ERROR)
    faults.every(GENERATE, 1, ERROR)
    faults.clear()
    assert faults.take(GENERATE, "") is None


@pytest.mark.parametrize("add", ["queue", "every", "when"])
def test_an_unknown_method_is_refused_and_the_known_ones_named(add: str) -> None:
    arguments = {"queue": (ERROR,), "every": (1, ERROR), "when": ("x", ERROR)}[add]
    with pytest.raises(ValueError, match=r"must be one of gemini\.generateContent, .*; got 'gemini\.chat'"):
        getattr(Faults(METHODS), add)("gemini.chat", *arguments)


def test_an_unknown_kind_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ValueError, match=r"must be one of error, rate-limit, .*; got 'explode'"):
        Fault(kind="explode")  # type: ignore[arg-type]


@pytest.mark.parametrize("http_status", [200, 399, 600])
def test_an_error_needs_an_error_status(http_status: int) -> None:
    with pytest.raises(ValueError, match=f"400 to 599; got {http_status}"):
        Fault(kind="error", http_status=http_status)


def test_only_errors_take_a_status() -> None:
    with pytest.raises(ValueError, match="not to 'hang'"):
        Fault(kind="hang", http_status=500)


def test_a_delay_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="`retry_delay_seconds` must be >= 0"):
        Fault(kind="rate-limit", retry_delay_seconds=-1)


@pytest.mark.parametrize("method", [m for m in METHODS.names if m not in METHODS.streaming])
def test_a_stream_error_needs_a_stream(method: Method) -> None:
    with pytest.raises(ValueError, match="'stream-error' needs one of"):
        Faults(METHODS).queue(method, Fault(kind="stream-error"))


@pytest.mark.parametrize("method", [m for m in METHODS.names if m not in METHODS.abortable])
def test_only_abortable_methods_can_be_aborted(method: Method) -> None:
    with pytest.raises(ValueError, match="'abort' needs one of"):
        Faults(METHODS).queue(method, Fault(kind="abort"))


@pytest.mark.parametrize("method", [m for m in METHODS.names if m not in METHODS.accelerators])
@pytest.mark.parametrize("kind", ["stock-out", "quota"])
def test_only_methods_that_request_accelerators_can_lack_them(method: Method, kind: FaultKind) -> None:
    with pytest.raises(ValueError, match=f"'{kind}' needs one of"):
        Faults(METHODS).queue(method, Fault(kind=kind))


@pytest.mark.parametrize("method", [m for m in METHODS.names if m not in METHODS.operations])
def test_only_methods_that_start_an_operation_can_have_an_operation_fault(method: Method) -> None:
    for fault in (Fault(kind="operation-error"), Fault(kind="slow", after_seconds=1)):
        with pytest.raises(ValueError, match=f"'{fault.kind}' needs one of"):
            Faults(METHODS).queue(method, fault)


def test_a_slow_operation_needs_its_duration() -> None:
    with pytest.raises(ValueError, match="needs `after_seconds`"):
        Fault(kind="slow")
    with pytest.raises(ValueError, match="`after_seconds` must be >= 0; got -1"):
        Fault(kind="slow", after_seconds=-1)
    with pytest.raises(ValueError, match="`after_seconds` belongs to the kinds"):
        Fault(kind="error", after_seconds=1)


def test_a_stock_out_has_two_messages() -> None:
    with pytest.raises(ValueError, match="must be 429 or 503; got 500"):
        Fault(kind="stock-out", http_status=500)


@pytest.mark.parametrize(("add", "arguments"), [("every", (0, ERROR)), ("when", ("x", ERROR, 0))])
def test_counts_start_at_one(add: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="must be >= 1; got 0"):
        getattr(Faults(METHODS), add)(GENERATE, *arguments)


def test_a_rule_needs_a_string_to_match() -> None:
    with pytest.raises(ValueError, match="`contains` must not be empty"):
        Faults(METHODS).when(GENERATE, "", ERROR)


def test_a_hold_lets_some_calls_through_and_holds_those_that_match() -> None:
    faults = Faults(METHODS)
    hold = faults.hold(GENERATE, "case 1", after=2)
    taken = [faults.take(GENERATE, text) for text in ("case 1", "case 2", "case 1", "case 1", "case 2")]
    assert [fault and fault.until for fault in taken] == [None, None, None, hold, None]
    assert faults.left() == {}


def test_a_released_hold_stays_released_and_runs_its_callbacks_once() -> None:
    hold, called = Faults(METHODS).hold(GENERATE), []
    hold.on_release(lambda: called.append("waited"))
    assert (hold.waiting, called) == (1, [])
    hold.release()
    hold.release()
    hold.on_release(lambda: called.append("at once"))
    assert (hold.waiting, hold.is_released, called) == (0, True, ["waited", "at once"])


def test_a_released_hold_does_not_mask_a_later_rule() -> None:
    faults = Faults(METHODS)
    faults.hold(GENERATE).release()
    faults.when(GENERATE, "x", ERROR)
    assert faults.take(GENERATE, "x") is ERROR


def test_clear_releases_all_holds() -> None:
    faults = Faults(METHODS)
    holds = [faults.hold(GENERATE), faults.hold("run.services.create")]
    faults.clear()
    assert [hold.is_released for hold in holds] == [True, True]
    assert faults.take(GENERATE, "") is None


def test_a_hold_of_a_method_that_starts_an_operation_holds_the_operation() -> None:
    faults = Faults(METHODS)
    hold = faults.hold("vertex.endpoints.deployModel")
    fault = faults.take("vertex.endpoints.deployModel", "")
    assert fault == Fault(kind="slow", until=hold)


def test_bad_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="`after` must be >= 0"):
        Faults(METHODS).hold(GENERATE, after=-1)
    with pytest.raises(ValueError, match="A 'hold' needs `until`"):
        Fault(kind="hold")
    with pytest.raises(ValueError, match="`until` belongs to the kinds hold, slow"):
        Fault(kind="error", until=Hold())
    with pytest.raises(ValueError, match="and not both"):
        Fault(kind="slow", after_seconds=1.0, until=Hold())


def test_only_errors_take_a_retry_after_header() -> None:
    with pytest.raises(ValueError, match="`retry_after` belongs to the kind error, not to 'hang'"):
        Fault(kind="hang", retry_after="7")
