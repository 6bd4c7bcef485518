"""The vault: what a masked row carries, so that its placeholders can be restored and counted."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, Row
from airflow_provider_llmbeam.pipeline.privacy.cipher import IV_BYTES, Cipher, WrongKeyError
from airflow_provider_llmbeam.pipeline.privacy.placeholder import (
    LENGTHS,
    Returned,
    is_ambiguous,
    placeholders_in,
    returned_in,
    tag_of,
    texts_of,
)
from airflow_provider_llmbeam.spec.safety.privacy import Action

#: Column of a masked row with its vault, also in the dead letter. Templates do not see it.
VAULT = "llmbeam_vault"
#: Number of digits of the tag in a pseudonym: two values have the same one by chance in 1 of 10^19 pairs.
HASH_DIGITS = 16


class Issuer:
    """Issues the placeholders of one row.

    Args:
        cipher: Encrypts the values.
        taken: Returns what has the form of a placeholder in the row and the templates; none of it is issued.
        vault: Vault of the row so far.
        least_digits: Least number of digits of a tag.
    """

    def __init__(
        self,
        cipher: Cipher,
        taken: Callable[[], Collection[str]],
        vault: Row | None = None,
        least_digits: int = LENGTHS[0],
    ) -> None:
        self._cipher = cipher
        self._lengths = [length for length in LENGTHS if length >= least_digits]
        self._find_taken = taken
        self._taken: set[str] | None = None
        vault = vault or {}
        self._values: dict[str, str] = dict(vault.get("values", {}))
        self._keys: dict[str, str] = dict(vault.get("keys", {}))
        self._masked = Counter[str](vault.get("masked", {}))
        self._issued = {sealed: placeholder for placeholder, sealed in (self._keys | self._values).items()}
        self._pseudonyms = dict[str, str]()
        self._hashed = set[str](vault.get("hashed", ()))
        self._dropped = Counter[str](vault.get("dropped", {}))

    def issue(self, kind: str, value: Any, action: Action, *, is_key: bool = False) -> str:
        """Returns what stands for a value.

        Args:
            kind: Kind of the value.
            value: The value.
            action: What is done with it.
            is_key: Whether it is in a key column: no two keys may become one, and the sink needs it again.
        """
        self._masked[kind] += 1
        is_restored = action in ("mask", "fail")
        if action == "drop" and not is_key:
            self._dropped[kind] += 1
            return ""
        iv_and_text = self._cipher.seal(kind, value)
        sealed = base64.b64encode(iv_and_text).decode()
        known = self._issued if is_restored or is_key else self._pseudonyms
        if (placeholder := known.get(sealed)) is None:
            tag = iv_and_text[:IV_BYTES].hex()
            if is_key:
                placeholder = f"<{kind}_{tag}>"
            else:
                placeholder = self._placeholder(kind, tag) if is_restored else f"<{kind}_{tag[:HASH_DIGITS]}>"
            known[sealed] = placeholder
        if is_restored:
            self._values[placeholder] = sealed
        elif is_key:
            self._keys[placeholder] = sealed
        else:
            self._hashed.add(placeholder)
        return placeholder

    def _placeholder(self, kind: str, tag: str) -> str:
        if self._taken is None:
            self._taken = {*self._find_taken(), *self._keys, *self._values}
        for length in self._lengths:
            if not is_ambiguous(kind, tag[:length], self._taken):
                break
        self._taken.add(f"<{kind}_{tag[:length]}>")
        return f"<{kind}_{tag[:length]}>"

    def vault(self, sent: Collection[str] = ()) -> Row | None:
        """Returns the vault; `None` if nothing was masked.

        Args:
            sent: Placeholders in the prompt.
        """
        if not self._masked and not sent:
            return None
        vault: Row = {"masked": dict(self._masked)}
        if self._values:
            vault["values"] = self._values
        if self._keys:
            vault["keys"] = self._keys
        if self._hashed:
            vault["hashed"] = sorted(self._hashed)
        if self._dropped:
            vault["dropped"] = dict(self._dropped)
        if sent:
            vault["sent"] = list(sent)
        return vault


def with_vault(row: Row, vault: Row | None) -> Row:
    """Returns a row with this vault, or without one."""
    plain = without_vault(row)
    return plain if vault is None else {**plain, VAULT: vault}


def without_vault(row: Row) -> Row:
    """Returns a row without its vault."""
    return {name: value for name, value in row.items() if name != VAULT} if VAULT in row else row


def sealed_values(row: Row) -> dict[str, dict[str, str]] | None:
    """Returns the encrypted values of a row, and those of its key; `None` if no job wrote its vault."""
    vault = row.get(VAULT, {})
    found: dict[str, dict[str, str]] = {}
    for name in ("values", "keys"):
        values = vault.get(name, {}) if isinstance(vault, dict) else None
        if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
            return None
        found[name] = values
    return found


def sealed_of(row: Row) -> dict[str, str]:
    """Returns the encrypted values of the placeholders of a row that are restored in answers."""
    return dict(row[VAULT].get("values", {})) if VAULT in row else {}


def sealed_in(text: str, values: Mapping[str, str]) -> dict[str, str]:
    """Returns the encrypted values of those placeholders that a text has."""
    if not values:
        return {}
    return {match[0]: values[match[0]] for match in placeholders_in(text) if match[0] in values}


def add_sealed(row: Row, sealed: Mapping[str, str], answer: str) -> Row:
    """Returns a row with the encrypted values of those placeholders of earlier turns that its answer has."""
    own = row.get(VAULT) or {}
    sent = dict.fromkeys(own.get("sent", ()))
    if not (added := {each: value for each, value in sealed_in(answer, sealed).items() if each not in sent}):
        return row
    vault = {"masked": {}, **own}
    vault["values"] = {**own.get("values", {}), **added}
    vault["sent"] = [*sent, *added]
    return {**row, VAULT: vault}


def open_vault(row: Row, cipher: Cipher) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values of the placeholders of a row, and those that are restored in key columns alone.

    Args:
        row: A masked row.
        cipher: Cipher with the key by which it was masked.

    Raises:
        WrongKeyError: The row was masked with another key, or its vault is not intact.
    """
    vault = sealed_values(row)
    if vault is None:
        raise WrongKeyError("the vault is not one that a job has written")

    def plain(sealed: dict[str, str]) -> dict[str, Any]:
        return {placeholder: cipher.open(tag_of(placeholder)[0], each) for placeholder, each in sealed.items()}

    return plain(vault["values"]), plain(vault["keys"])


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
