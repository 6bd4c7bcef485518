from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt, Turn
from airflow_provider_llmbeam.pipeline.conversation.turns import (
    Conversation,
    Dialogue,
    Dialogues,
    RowTurn,
    StoredTurn,
)
from airflow_provider_llmbeam.pipeline.elements import Origin
from airflow_provider_llmbeam.pipeline.privacy.vault import VAULT, Vault
from airflow_provider_llmbeam.spec import EchoModel, Generation
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from tests.outcomes import completion

NAME = "0" * 32
FINGERPRINT = Fingerprinter(EchoModel(type="echo"), Generation(), None)


def row_turn(number: int, text: str = "", row: dict[str, Any] | None = None) -> RowTurn:
    return RowTurn(f"n{number}", (number,), row or {}, text or f"text {number}", None)


def stored_turn(number: int, text: str = "", **fields: Any) -> StoredTurn:
    turn = StoredTurn(f"n{number}", (number,), text or f"text {number}", f"answer {number}", "f", 1.0, 1.0, {})
    return turn._replace(**fields)


def failure(kind: FailureKind) -> Failure:
    return Failure(kind=kind, message="no")


def asked(dialogue: Dialogue, outcomes: dict[str, Outcome] | None = None) -> list[Prompt]:
    """Asks all turns, and returns what was sent."""
    sent = []
    while (prompt := dialogue.next_prompt()) is not None:
        sent.append(prompt)
        outcome = (outcomes or {}).get(prompt.text)
        dialogue.finish_turn(outcome or completion(f"answer {prompt.text.removeprefix('text ')}"))
    return sent


def turns(*numbers: int) -> tuple[Turn, ...]:
    return tuple(Turn(f"text {number}", f"answer {number}") for number in numbers)


@given(
    rows=st.lists(st.integers(0, 30), unique=True, min_size=1),
    stored=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5))),
    max_turns=st.integers(1, 40),
    recorded=st.integers(0, 31),
)
def test_every_history_has_the_last_turns_before_its_own_and_no_answer_is_asked_twice(
    rows: list[int], stored: list[tuple[int, int]], max_turns: int, recorded: int
) -> None:
    earlier = [stored_turn(number, stored_at=at) for number, at in stored]
    conversation = Conversation.of(NAME, map(row_turn, rows), earlier, {}, max_turns)
    dialogue = Dialogue(conversation, FINGERPRINT, max_turns)
    sent = asked(dialogue)
    assert [prompt.text for prompt in sent] == [f"text {number}" for number in sorted(rows)]
    every = sorted({*rows, *(number for number, _ in stored)})
    for prompt, number in zip(sent, sorted(rows), strict=True):
        assert prompt.history == turns(*[each for each in every if each < number][-max_turns:])
    known = {each.fingerprint: each.outcome for each in dialogue.asked[:recorded]}
    again = Dialogue(conversation, FINGERPRINT, max_turns)
    again.add_known(known)
    assert asked(again) == sent[recorded:]
    assert [each[:3] for each in again.asked] == [each[:3] for each in dialogue.asked]
    assert len({each.fingerprint for each in dialogue.asked}) == len(rows)


def test_the_last_stored_turn_of_a_row_counts_and_a_row_of_this_run_replaces_it() -> None:
    old, new = stored_turn(1, "old", stored_at=1.0), stored_turn(1, "new", stored_at=2.0)
    own = stored_turn(2, fingerprint="own")
    conversation = Conversation.of(NAME, [row_turn(2), row_turn(3)], [new, own, old], {}, 9)
    assert [turn.text for turn in conversation.stored] == ["new"]
    assert conversation.written == {"own"}
    assert [prompt.history for prompt in asked(Dialogue(conversation, FINGERPRINT, 9))] == [
        (Turn("new", "answer 1"),),
        (Turn("new", "answer 1"), *turns(2)),
    ]


def test_a_long_history_does_not_count_in_the_size_of_a_batch_beyond_what_is_sent() -> None:
    earlier = [stored_turn(number) for number in range(100)]
    conversation = Conversation.of(NAME, [row_turn(50), row_turn(53)], earlier, {}, 2)
    assert [turn.name for turn in conversation.stored] == ["n48", "n49", "n51", "n52"]
    assert [prompt.history for prompt in asked(Dialogue(conversation, FINGERPRINT, 2))] == [
        turns(48, 49),
        turns(51, 52),
    ]


def test_the_history_of_a_time_without_order_by_comes_first_in_the_order_of_its_answers() -> None:
    earlier = [stored_turn(number, position=(f"m-{number}",), answered_at=9.0 - number) for number in (1, 2)]
    new = stored_turn(3, position=(1_700_000_000, "m-3"))
    row = row_turn(4)._replace(position=(1_700_000_009, "m-4"))
    conversation = Conversation.of(NAME, [row], [new, *earlier], {}, 9)
    assert [prompt.history for prompt in asked(Dialogue(conversation, FINGERPRINT, 9))] == [turns(2, 1, 3)]


def test_a_refused_turn_is_left_out_and_after_another_failure_nothing_is_sent() -> None:
    conversation = Conversation.of(NAME, map(row_turn, range(4)), [], {}, 9)
    dialogue = Dialogue(conversation, FINGERPRINT, 9)
    sent = asked(dialogue, {"text 1": failure("blocked"), "text 2": failure("timeout")})
    assert [prompt.history for prompt in sent] == [(), turns(0), turns(0)]
    last = dialogue.asked[-1].outcome
    assert isinstance(last, Failure)
    assert last.kind == "earlier_turn_failed"
    assert last.message == "not sent, as turn n2 of its conversation failed; another run sends both"


def test_a_prompt_that_was_refused_is_not_paid_for_again_with_the_same_history() -> None:
    conversation = Conversation.of(NAME, [row_turn(1, "same"), row_turn(2, "same")], [], {}, 9)
    dialogue = Dialogue(conversation, FINGERPRINT, 9)
    assert len(asked(dialogue, {"same": failure("blocked")})) == 1
    assert [each.origin for each in dialogue.asked] == ["fresh", "duplicate"]


def test_other_answers_system_texts_and_conversations_give_other_fingerprints() -> None:
    history = turns(1)
    of = FINGERPRINT.turn
    assert of(NAME, history, "a", None) == of(NAME, turns(1), "a", None)
    others = [
        of(NAME, (), "a", None),
        of(NAME, (Turn("text 1", "other"),), "a", None),
        of(NAME, history, "b", None),
        of(NAME, history, "a", "b"),
        of("1" * 32, history, "a", None),
    ]
    assert len({of(NAME, history, "a", None), *others}) == 6
    assert {len(each) for each in others} == {64}


def test_a_turn_keeps_the_encrypted_values_of_placeholders_of_the_turns_before() -> None:
    row = {VAULT: Vault(values={"<EMAIL_0123456789abcdef>": "sealed"})}
    first = row_turn(1, "I am <EMAIL_0123456789abcdef>", row)
    conversation = Conversation.of(NAME, [first, row_turn(2), row_turn(3)], [], {}, 9)
    dialogue = Dialogue(conversation, FINGERPRINT, 1)
    asked(dialogue, {"text 2": completion("Hello <EMAIL_0123456789abcdef>"), "text 3": completion("Yes")})
    assert [dict(each.values) for each in dialogue.asked] == [row[VAULT]["values"]] * 2 + [{}]


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
