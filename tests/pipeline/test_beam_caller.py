"""`LLMCaller`, alone and in Beam's `RequestResponseIO`."""

from __future__ import annotations

import gc
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import apache_beam as beam
import pytest
from apache_beam.coders import PickleCoder
from apache_beam.io.requestresponse import (
    ExponentialBackOffRepeater,
    NoOpsRepeater,
    RequestResponseIO,
    UserCodeExecutionException,
    UserCodeQuotaException,
    UserCodeTimeoutException,
)
from apache_beam.ml.inference.base import KeyedModelHandler
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from llmbeam_sandbox import Fault
from waiting import until

from airflow_provider_llmbeam.beam import LLMCaller, LLMModelHandler
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.public import caller as caller_module
from airflow_provider_llmbeam.spec import GeminiModel, Limits

GEMINI = "gemini.generateContent"
PROMPTS = [f"prompt {number}" for number in range(20)]
#: Shorter than any hold, which the test releases after the call.
SHORT_SECONDS = 0.2


@pytest.fixture
def handler(sandbox):
    """Makes a handler of the sandbox."""
    return lambda **limits: LLMModelHandler(GeminiModel(base_url=sandbox.gemini_url), limits=Limits(**limits))


def io(caller, **arguments):
    return RequestResponseIO(caller, timeout=None, repeater=NoOpsRepeater(), throttler=None, **arguments)


def test_request_response_io_gives_each_request_its_answer_in_spite_of_429s(sandbox, handler):
    sandbox.faults.queue(GEMINI, *[Fault(kind="rate-limit", retry_delay_seconds=0.01)] * 5)

    def check(results):
        assert sorted(result.example for result in results) == sorted(PROMPTS)
        for result in results:
            assert result.inference.text.startswith(f"{result.example} [")

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        assert_that(pipeline | beam.Create(PROMPTS) | io(LLMCaller(handler())), check)
    assert len(sandbox.requests.paid(GEMINI)) == len(PROMPTS)
    counters = {
        (each.key.metric.namespace, each.key.metric.name): each.committed
        for each in pipeline.result.metrics().query()["counters"]
    }
    assert counters["llmbeam", "responses"] == len(PROMPTS)


def test_a_failed_request_is_a_result_if_failures_are_returned(sandbox, handler):
    sandbox.faults.when(GEMINI, "prompt 7", Fault(kind="error", http_status=400, message="no"))

    def check(results):
        assert sorted(result.example for result in results) == sorted(PROMPTS)
        (failed,) = [result for result in results if isinstance(result.inference, Failure)]
        assert (failed.example, failed.inference.message) == ("prompt 7", "no")

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        results = pipeline | beam.Create(PROMPTS) | io(LLMCaller(handler(), failures="return"))
        assert_that(results, check)


def test_a_timeout_ends_the_call_while_the_server_is_silent_and_its_answer_is_paid_for_once(sandbox, handler):
    hold = sandbox.faults.hold(GEMINI)
    with LLMCaller(handler(), timeout_seconds=SHORT_SECONDS) as caller:
        for _ in range(3):
            with pytest.raises(UserCodeTimeoutException, match=r"No answer within 0.2 s \(`timeout_seconds`\)"):
                caller("a question")
        assert hold.waiting == 1
        hold.release()
        until(lambda: sandbox.requests.paid(GEMINI), "the request is answered")
        assert caller("a question").inference.text.startswith("a question [")
    assert len(sandbox.requests) == 1


@pytest.mark.full
def test_the_repeater_of_beam_gets_the_answer_of_the_call_that_timed_out(sandbox, handler, monkeypatch):
    hold = sandbox.faults.hold(GEMINI)
    monkeypatch.setattr("time.sleep", lambda seconds: hold.release())
    caller = LLMCaller(handler(), timeout_seconds=1.0)
    with caller:
        result = ExponentialBackOffRepeater().repeat(caller, "a question", None, None)
    assert isinstance(result.inference, Completion)
    assert len(sandbox.requests) == 1


def test_callers_that_are_closed_and_opened_together_pay_once_for_a_request_that_timed_out(sandbox, handler):
    coder = PickleCoder()
    pickled = [coder.encode(LLMCaller(handler(), timeout_seconds=SHORT_SECONDS)) for _ in range(2)]
    hold = sandbox.faults.hold(GEMINI)
    with coder.decode(pickled[0]) as draft, coder.decode(pickled[1]), pytest.raises(UserCodeTimeoutException):
        draft("a question")
    del draft
    gc.collect()
    with coder.decode(pickled[0]) as draft, coder.decode(pickled[1]):
        hold.release()
        until(lambda: sandbox.requests.paid(GEMINI), "the request is answered")
        assert draft("a question").inference.text.startswith("a question [")
    assert len(sandbox.requests) == 1


@pytest.mark.full
def test_the_engines_that_were_used_last_are_kept_open(sandbox, handler, monkeypatch):
    monkeypatch.setattr(caller_module, "_OPEN", {})
    monkeypatch.setattr(caller_module, "_MOST_OPEN", 1)
    before = engine_threads()
    for _ in range(3):
        with LLMCaller(handler()) as caller:
            caller("a question")
    del caller
    gc.collect()
    until(lambda: len(engine_threads() - before) == 1, "the others are closed")


def engine_threads():
    return {thread for thread in threading.enumerate() if thread.name == "llmbeam-engine"}


@pytest.mark.full
def test_threads_and_copies_of_a_caller_share_one_engine_and_its_limit(sandbox, handler):
    hold = sandbox.faults.hold(GEMINI)
    coder, before = PickleCoder(), engine_threads()
    pickled = coder.encode(LLMCaller(handler(max_in_flight=3)))
    with coder.decode(pickled) as one, coder.decode(pickled) as other, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit((one, other)[number % 2], prompt) for number, prompt in enumerate(PROMPTS[:8])]
        until(lambda: hold.waiting == 3, "three requests are in flight")
        assert len(engine_threads() - before) == 1
        hold.release()
        results = [each.result() for each in asked]
    assert [result.example for result in results] == PROMPTS[:8]
    assert all(result.inference.text.startswith(f"{result.example} [") for result in results)


@pytest.mark.parametrize(
    ("fault", "limits", "expected", "message"),
    [
        (Fault(kind="hang"), {"request_timeout_seconds": 0.1}, UserCodeTimeoutException, "timeout: no answer"),
        (
            Fault(kind="rate-limit", retry_delay_seconds=0.01),
            {"max_throttled_seconds": 0.001},
            UserCodeQuotaException,
            "throttled: ",
        ),
        (Fault(kind="error", http_status=400, message="no"), {}, UserCodeExecutionException, "bad_request: no"),
    ],
    ids=["timeout", "quota", "refusal"],
)
def test_a_failure_is_the_exception_of_beam_for_its_kind(sandbox, handler, fault, limits, expected, message):
    sandbox.faults.when(GEMINI, "question", fault)
    with LLMCaller(handler(max_attempts=1, **limits)) as caller, pytest.raises(expected, match=message) as raised:
        caller("a question")
    assert raised.type is expected


def test_a_spent_budget_keeps_its_message(sandbox, handler):
    with LLMCaller(handler(budget_usd=1e-9)) as caller:
        caller("a question")
        with pytest.raises(UserCodeExecutionException, match=r"This process has spent .* `limits.budget_usd`"):
            caller("another question")
    assert len(sandbox.requests) == 1


@pytest.mark.full
def test_calls_that_nobody_repeats_are_forgotten(sandbox, handler, monkeypatch):
    monkeypatch.setattr(caller_module._Calls, "MOST", 2)
    hold = sandbox.faults.hold(GEMINI)
    with LLMCaller(handler(), timeout_seconds=SHORT_SECONDS) as caller:
        for prompt in (*PROMPTS[:3], PROMPTS[0]):
            with pytest.raises(UserCodeTimeoutException):
                caller(prompt)
        until(lambda: hold.waiting == 4, "the first prompt is sent again, as it was forgotten")
        hold.release()
        until(lambda: sandbox.requests.paid(GEMINI).total() == 4, "all are answered")


@pytest.mark.full
def test_a_closed_engine_cancels_the_requests_that_nobody_waits_for(sandbox, handler):
    hold = sandbox.faults.hold(GEMINI)
    engine = handler().load_model()
    call = engine.submit([Prompt("a question")])
    until(lambda: hold.waiting == 1, "the request is in flight")
    del engine
    gc.collect()
    until(call.cancelled, "the request is cancelled")
    hold.release()


def test_a_request_without_a_prompt_is_not_sent(sandbox, handler):
    with (
        LLMCaller(handler()) as caller,
        pytest.raises(UserCodeExecutionException, match=r"template_error: .*'int'"),
    ):
        caller(7)
    assert len(sandbox.requests) == 0


def test_a_caller_outside_with_sends_nothing(sandbox, handler):
    with pytest.raises(UserCodeExecutionException, match="nothing was sent"):
        LLMCaller(handler())("a question")
    assert len(sandbox.requests) == 0


def test_a_journal_and_a_timeout_of_nothing_are_refused(tmp_path):
    model = GeminiModel(name="gemini-2.5-flash")
    with pytest.raises(JobSpecError, match=r"without `journal_uri`, .* or use `RunInference`"):
        LLMCaller(LLMModelHandler(model, journal_uri=str(tmp_path)))
    for seconds in (0, math.inf, math.nan, True, None, "20", [20]):
        with pytest.raises(JobSpecError, match="`timeout_seconds`: must be a finite number above 0; got "):
            LLMCaller(LLMModelHandler(model), timeout_seconds=seconds)


def test_what_is_no_handler_of_this_package_is_refused():
    handler = LLMModelHandler(GeminiModel(name="gemini-2.5-flash"))
    for other in (KeyedModelHandler(handler), handler.with_preprocess_fn(str), "gemini-2.5-flash", None):
        with pytest.raises(JobSpecError, match=r"`handler`: must be an `LLMModelHandler` itself, .* Nothing was"):
            LLMCaller(other)


def test_a_way_of_failing_that_is_not_known_is_refused():
    handler = LLMModelHandler(GeminiModel(name="gemini-2.5-flash"))
    with pytest.raises(JobSpecError, match=r"`failures`: must be 'raise' or 'return'; got 'retrun'\."):
        LLMCaller(handler, failures="retrun")
