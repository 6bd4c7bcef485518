"""Permissions that are denied, APIs that are disabled, and what exists: tests change them."""

from __future__ import annotations

from collections.abc import Iterable


class IamState:
    """What the caller may do, and what a project has; everything is allowed and enabled at first.

    Attributes:
        denied: Denied permissions, each with a part of the resources that it is denied on; empty is all of them.
        disabled: APIs that are disabled.
        accounts: Emails of accounts that exist; None is all.
        subnetworks: Whether a subnetwork has Private Google Access, by name.
        keys: State of the primary version of a key of Cloud KMS, by name.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Allows and enables everything."""
        self.denied: list[tuple[str, str]] = []
        self.disabled: set[str] = set()
        self.accounts: set[str] | None = None
        self.subnetworks: dict[str, bool] = {}
        self.keys: dict[str, str] = {}

    def deny(self, *permissions: str, on: str = "") -> None:
        """Denies permissions from now on, until a reset.

        Args:
            permissions: The permissions.
            on: Part of the path of the resource, e.g. the name of a bucket.
        """
        self.denied += [(permission, on) for permission in permissions]

    def held(self, permissions: Iterable[str], resource: str) -> list[str]:
        """Returns those of the permissions that the caller has on a resource."""
        return [
            each
            for each in permissions
            if not any(each == permission and part in resource for permission, part in self.denied)
        ]
