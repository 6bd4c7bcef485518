from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.conversation import refuse_conversation

GEMINI = {"type": "gemini", "name": "gemini-2.5-flash"}
ENDPOINT = {"type": "vertex_endpoint", "endpoint": "projects/p/locations/europe-west1/endpoints/1", "name": "m"}


def job(**changes: Any) -> dict[str, Any]:
    return {
        "name": "chat",
        "source": {"uri": "rows.jsonl", "key": ["id"]},
        "prompt": "{{ row.text }}",
        "model": GEMINI,
        "sink": {"uri": "out"},
        "conversation": {"key": "user"},
        "state_uri": "state",
        **changes,
    }


def test_the_defaults_are_those_of_the_documentation() -> None:
    conversation = JobSpec.parse(job()).conversation
    assert conversation is not None
    assert conversation.model_dump() == {"key": ("user",), "order_by": None, "ttl_days": 30.0, "max_turns": 20}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"state_uri": None}, "`state_uri`: this field is needed with `conversation`: the history of each key"),
        ({"embedding": {}, "task": "embed", "model": {"type": "echo"}}, "`task`: must be 'generate' with"),
        ({"inference": {"mode": "batch"}}, "`inference.mode`: must be 'online' with `conversation`: a turn"),
        (
            {"inference": {"service_tier": "flex_then_standard", "finish_by": "PT6H"}},
            "`inference.finish_by`: must be left out with `conversation` and service tier 'flex_then_standard'",
        ),
        (
            {"prompt": {"template": "a", "media": [{"uri": "gs://b/{{ row.a }}", "mime_type": "image/png"}]}},
            "`prompt.media`: must be left out with `conversation`: a history has texts alone",
        ),
        (
            {"model": {**ENDPOINT, "request_format": "instances"}},
            "`model.request_format`: must be 'chat' for `conversation`",
        ),
        (
            {"safety": {"moderation": {"model": {"type": "echo"}, "on": ["input", "output"]}}},
            "`safety.moderation.on`: must be ['input'] with `conversation`",
        ),
        (
            {"safety": {"privacy": {"on_altered": "repair"}}},
            "`safety.privacy.on_altered`: must be 'keep' or 'fail' with `conversation`",
        ),
        (
            {"source": {"uri": "rows.jsonl", "key": ["id"], "on_duplicate_key": "allow"}},
            "`source.on_duplicate_key`: must not be 'allow' with `conversation`",
        ),
        (
            {"source": {"uri": "rows.jsonl", "key": ["id"], "share": [0, 0.5]}},
            "`source.share`: must be left out with `conversation`",
        ),
        ({"conversation": {"key": []}}, "`conversation.key`"),
    ],
)
def test_what_cannot_be_combined_with_conversations_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobSpecError) as raised:
        JobSpec.parse(job(**changes))
    assert sentence in str(raised.value)


def test_tasks_that_send_single_prompts_refuse_conversations() -> None:
    refuse_conversation(JobSpec.parse(job(conversation=None)), "an estimate")
    with pytest.raises(JobSpecError, match="`conversation`: an estimate sends each prompt without its history"):
        refuse_conversation(JobSpec.parse(job()), "an estimate")
