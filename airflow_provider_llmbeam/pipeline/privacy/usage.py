"""What the rows of a job had of personal data, and what the model made of its placeholders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, Row
from airflow_provider_llmbeam.pipeline.privacy.placeholder import Returned, placeholders_in, returned_in
from airflow_provider_llmbeam.pipeline.privacy.values import texts_of
from airflow_provider_llmbeam.pipeline.privacy.vault import VAULT


def returned_of(answered: AnsweredRow) -> Returned:
    """Returns what an answer, not yet restored, has of the placeholders of its prompt."""
    completion = answered.completion
    sent = (answered.row.get(VAULT) or {}).get("sent", ())
    if completion.parsed is None:
        return returned_in(completion.text, sent)
    # JSON may write < and > as escapes.
    return returned_in("\n".join(texts_of(completion.parsed)), sent) if completion.text else Returned()


def masked_in(prompt: Prompt, rows: Iterable[Row]) -> dict[str, int]:
    """Returns the number of masked values in a prompt by kind: its placeholders, and what was dropped of its rows.

    Args:
        prompt: The prompt.
        rows: The masked rows that became this prompt.
    """
    vaults = [row[VAULT] for row in rows if VAULT in row]
    issued = {each for vault in vaults for name in ("values", "keys", "hashed") for each in vault.get(name, ())}
    texts = (prompt.text, prompt.system or "")
    found = Counter(match[1] for text in texts for match in placeholders_in(text) if match[0] in issued)
    dropped = Counter[str]()
    for vault in vaults:  # rows with equal prompts may have dropped different values
        dropped |= Counter(vault.get("dropped", {}))
    return dict(sorted((found + dropped).items()))


def add_masked(counts: Counter[str], row: Row) -> None:
    """Adds the values that were masked in a row, by kind."""
    if VAULT in row:
        counts.update(row[VAULT].get("masked", {}))


def add_returned(sums: Counter[str], answered: AnsweredRow) -> None:
    """Adds what an answer has of its placeholders."""
    if not answered.completion.text:
        return  # a vector
    found = returned_of(answered)
    sums["placeholders_issued"] += len((answered.row.get(VAULT) or {}).get("sent", ()))
    for name in ("returned", "altered", "lost", "invented"):
        if number := getattr(found, name):
            sums[f"placeholders_{name}"] += number
