"""Keys of Cloud KMS: what a key can encrypt, by its location."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_llmbeam.spec.base import FieldFaultError

#: Location of the keys for a multi-region of BigQuery; those of regions have its name.
#: Source: docs.cloud.google.com/bigquery/docs/customer-managed-encryption, November 2026.
_KEYS_OF = {"eu": "europe"}


def key_location(kms_key_name: str) -> str:
    """Returns the location of a key."""
    return kms_key_name.split("/")[3]


def location_fault(kms_key_name: str | None, locations: Mapping[str, str | None]) -> FieldFaultError | None:
    """Returns the fault of the first location in which a key encrypts nothing, or `None`.

    Args:
        kms_key_name: The key; `None` for none.
        locations: Location of each resource by its field; `None` where it is not known.

    A key encrypts what is in its own location: neither one of another region nor a `global` one is taken.
    Sources: `EncryptionSpec` of the Discovery document of Vertex AI ("must be in the same region as the
    resource"), the pages on customer-managed keys of Dataflow ("regional keys"), BigQuery and Cloud Run.
    """
    if kms_key_name is None:
        return None
    for field, location in locations.items():
        wanted = _KEYS_OF.get((location or "").lower(), (location or "").lower())
        if wanted and wanted != key_location(kms_key_name):
            return FieldFaultError(
                "kms_key_name",
                f"must be a key in {wanted!r} for `{field}` {location!r}: a key encrypts only in its own location",
                kms_key_name,
                location,
            )
    return None
