"""Asks a model that just came up for a few words, as a job will: over plain HTTP."""

from __future__ import annotations

from typing import Any

import requests

from airflow_provider_llmbeam.endpoints.platform import Answer

#: The first answer of a model that just loaded may take long.
ANSWER_SECONDS = 60.0
_QUESTION = "Say OK."
_MAX_TOKENS = 8
_WORDS = 300


def question(model: str) -> dict[str, Any]:
    """A chat completion that costs next to nothing."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": _MAX_TOKENS,
        "temperature": 0,
    }


def ask(url: str, token: str, body: dict[str, Any]) -> Answer:
    """Sends the question; anything but an answer is a reason to ask again.

    Args:
        url: Whole.
        token: For the `Authorization` header.
        body: See `question`.
    """
    try:
        reply = requests.post(
            url,
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            timeout=(10.0, ANSWER_SECONDS),
            allow_redirects=False,
        )
    except requests.RequestException as error:
        return Answer(f"{type(error).__name__}: {error}"[:_WORDS], may_help_to_wait=True)
    if reply.status_code != 200:
        # 404 is also what a load balancer says that does not know a new address yet: then there is no JSON.
        loading = reply.status_code in (408, 429) or reply.status_code >= 500
        return Answer(f"HTTP {reply.status_code}: {_one_line(reply.text)}", may_help_to_wait=loading)
    return _judged(reply)


def _judged(reply: requests.Response) -> Answer:
    try:
        text = reply.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return Answer(f"HTTP 200 without a completion: {_one_line(reply.text)}")
    if not isinstance(text, str):
        return Answer(f"HTTP 200 with a completion that holds no text: {_one_line(reply.text)}")
    return Answer()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_WORDS] or "no words"
