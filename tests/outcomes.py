"""Outcomes of prompts, and what the sandbox billed for them, as tests need them."""

from __future__ import annotations

from typing import Any

from llmbeam_sandbox import Sandbox

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.token_counts import Tokens


def completion(text: str = "Hi.", **changes: Any) -> Completion:
    return Completion(
        **{
            "text": text,
            "model": "m-001",
            "finish_reason": "stop",
            "tokens": Tokens(10, 3),
            "attempts": 1,
            "latency_seconds": 0.5,
            "sent_at": 100.0,
            "answered_at": 101.0,
            **changes,
        }
    )


def answers_by_tier(sandbox: Sandbox) -> dict[str, int]:
    """Returns the number of answers that the sandbox billed at each tier."""
    return {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
