from __future__ import annotations

from airflow_provider_llmbeam.engine.outcome import Failure, Outcome
from airflow_provider_llmbeam.pipeline.conversation.dialogues import Dialogues
from airflow_provider_llmbeam.pipeline.conversation.turns import Conversation, RowTurn
from airflow_provider_llmbeam.pipeline.elements import Origin
from airflow_provider_llmbeam.spec import EchoModel, Generation
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from tests.outcomes import completion

FINGERPRINT = Fingerprinter(EchoModel(type="echo"), Generation(), None)


def conversation(
    name: str, texts: list[str], known: dict[str, tuple[Outcome, Origin]] | None = None
) -> Conversation:
    turns = [RowTurn(text, (number,), {"id": text}, text, None) for number, text in enumerate(texts)]
    return Conversation.of(name * 32, turns, [], known or {}, 9)


def first(name: str, text: str) -> str:
    return FINGERPRINT.turn(name * 32, (), text, None)


def test_the_longest_conversation_begins_first_and_each_prompt_has_its_row_and_its_fingerprint() -> None:
    dialogues = Dialogues([conversation("a", ["x"]), conversation("b", ["x", "y"])], FINGERPRINT, 9)
    prompts = dialogues.begin({})
    assert [prompt.conversation[0] for prompt in prompts] == ["b", "a"]
    assert len(dialogues.fingerprints) == 2, "equal prompts of two conversations are two requests"
    following = dialogues.next_turn(0, completion("answer"))
    assert following is not None
    assert dialogues.requests[following].rows == ({"id": "y"},)
    assert dialogues.requests[following].fingerprint == dialogues.fingerprints[following]
    assert dialogues.next_turn(1, completion("answer")) is None


def test_a_turn_is_counted_once_where_its_outcome_comes_from() -> None:
    resumed: dict[str, tuple[Outcome, Origin]] = {first("a", "x"): (completion(), "resumed")}
    dialogues = Dialogues([conversation("a", ["x", "y", "z"], resumed), conversation("b", ["x"])], FINGERPRINT, 9)
    (prompt,) = dialogues.begin({first("b", "x"): completion(attempts=2)})
    assert prompt.text == "y"
    assert dialogues.take_counts() == Counts(
        resumed=1, answered=1, requests=2, input_tokens=10, output_tokens=3, cost_nano_usd=0
    )
    assert dialogues.next_turn(0, Failure(kind="timeout", message="no")) is None
    assert dialogues.take_counts() == Counts(failed=1)
    assert [asked.outcome.kind for asked in dialogues.each[0].asked[1:] if isinstance(asked.outcome, Failure)] == [
        "timeout",
        "earlier_turn_failed",
    ]
