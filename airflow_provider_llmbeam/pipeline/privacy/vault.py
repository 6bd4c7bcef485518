"""The vault: what a masked row carries, so that its placeholders can be restored and counted."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, Row
from airflow_provider_llmbeam.pipeline.privacy.cipher import IV_BYTES, Cipher
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

#: Column of a masked row with its vault, which is a text in the dead letter. Templates do not see it.
VAULT = "llmbeam_vault"
#: The vault of a row of a dead letter. Any other value of a source in this column is plain data.
_SEAL = "vault1:"
_SEALED = re.compile(rf"{_SEAL}[A-Za-z0-9+/]+={{0,2}}")
#: Number of digits of the tag in a pseudonym: two values have the same one by chance in 1 of 10^19 pairs.
HASH_DIGITS = 16
#: Fields of a vault with encrypted values, by placeholder: those of the row, and those of its key alone.
_RESTORED = ("values", "keys")


class Vault(dict[str, Any]):
    """The vault of a row that this run has masked. Its type tells it from a column of the source."""


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
        vault: Vault | None = None,
        least_digits: int = LENGTHS[0],
    ) -> None:
        self._cipher = cipher
        self._lengths = [length for length in LENGTHS if length >= least_digits]
        self._find_taken = taken
        self._taken: set[str] | None = None
        vault = vault or Vault()
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

    def vault(self, sent: Collection[str] = ()) -> Vault | None:
        """Returns the vault; `None` if nothing was masked.

        Args:
            sent: Placeholders in the prompt.
        """
        if not self._masked and not sent:
            return None
        vault = Vault(masked=dict(self._masked))
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


def vault_of(row: Row) -> Vault | None:
    """Returns the vault of a row; `None` if this run has not masked it, whatever its source has in the column."""
    found = row.get(VAULT)
    return found if isinstance(found, Vault) else None


def with_vault(row: Row, vault: Vault | None) -> Row:
    """Returns a row with this vault, or without one."""
    plain = without_vault(row)
    return plain if vault is None else {**plain, VAULT: vault}


def without_vault(row: Row) -> Row:
    """Returns a row without its vault."""
    return {name: value for name, value in row.items() if name != VAULT} if vault_of(row) is not None else row


def is_sealed(row: Row) -> bool:
    """Returns whether a row has the sealed vault of a dead letter."""
    found = row.get(VAULT)
    return isinstance(found, str) and _SEALED.fullmatch(found) is not None


def seal_vault(vault: Vault, owner: bytes, cipher: Cipher) -> str:
    """Returns the vault of a row of the dead letter: a text that opens for the same owner alone."""
    content = json.dumps({name: vault.get(name, {}) for name in _RESTORED})
    return f"{_SEAL}{cipher.seal_for(owner, content.encode())}"


def unseal_vault(row: Row, owner: bytes, cipher: Cipher) -> Row:
    """Returns a row of a dead letter with its vault.

    Raises:
        WrongKeyError: The vault was sealed with another key or for another owner, or is not intact.
    """
    sealed = row[VAULT].removeprefix(_SEAL)
    return {**row, VAULT: Vault(json.loads(cipher.open_for(owner, sealed)))}


def sealed_of(row: Row) -> dict[str, str]:
    """Returns the encrypted values of the placeholders of a row that are restored in answers."""
    return dict((vault_of(row) or Vault()).get("values", {}))


def sealed_in(text: str, values: Mapping[str, str]) -> dict[str, str]:
    """Returns the encrypted values of those placeholders that a text has."""
    if not values:
        return {}
    return {match[0]: values[match[0]] for match in placeholders_in(text) if match[0] in values}


def add_sealed(row: Row, sealed: Mapping[str, str], answer: str) -> Row:
    """Returns a row with the encrypted values of those placeholders of earlier turns that its answer has."""
    own = vault_of(row) or Vault()
    sent = dict.fromkeys(own.get("sent", ()))
    if not (added := {each: value for each, value in sealed_in(answer, sealed).items() if each not in sent}):
        return row
    values = {**own.get("values", {}), **added}
    return {**row, VAULT: Vault({"masked": {}, **own, "values": values, "sent": [*sent, *added]})}


def open_vault(vault: Vault, cipher: Cipher) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values of the placeholders of a row, and those that are restored in key columns alone.

    Args:
        vault: The vault of the row.
        cipher: Cipher with the key by which it was masked.

    Raises:
        WrongKeyError: The row was masked with another key.
    """
    values, keys = (
        {
            placeholder: cipher.open(tag_of(placeholder)[0], each)
            for placeholder, each in vault.get(name, {}).items()
        }
        for name in _RESTORED
    )
    return values, keys


def returned_of(answered: AnsweredRow) -> Returned:
    """Returns what an answer, not yet restored, has of the placeholders of its prompt."""
    completion = answered.completion
    sent = (vault_of(answered.row) or Vault()).get("sent", ())
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
    vaults = [vault for row in rows if (vault := vault_of(row)) is not None]
    issued = {each for vault in vaults for name in ("values", "keys", "hashed") for each in vault.get(name, ())}
    texts = (prompt.text, prompt.system or "")
    found = Counter(match[1] for text in texts for match in placeholders_in(text) if match[0] in issued)
    dropped = Counter[str]()
    for vault in vaults:  # rows with equal prompts may have dropped different values
        dropped |= Counter(vault.get("dropped", {}))
    return dict(sorted((found + dropped).items()))


def add_masked(counts: Counter[str], row: Row) -> None:
    """Adds the values that were masked in a row, by kind."""
    counts.update((vault_of(row) or Vault()).get("masked", {}))


def add_returned(sums: Counter[str], answered: AnsweredRow) -> None:
    """Adds what an answer has of its placeholders."""
    if not answered.completion.text:
        return  # a vector
    found = returned_of(answered)
    sums["placeholders_issued"] += len((vault_of(answered.row) or Vault()).get("sent", ()))
    for name in ("returned", "altered", "lost", "invented"):
        if number := getattr(found, name):
            sums[f"placeholders_{name}"] += number
