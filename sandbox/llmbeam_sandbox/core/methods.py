"""The methods that the sandbox serves, as each service declares them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

Method = str
"""Name of a method, e.g. "gemini.generateContent": the service, then the resource, then the verb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """The methods of one service, or of several, and which faults each of them can show.

    Attributes:
        names: All methods, in the order of statistics and messages.
        streaming: Methods whose answer may be a stream; they can show a `stream-error`.
        abortable: Methods whose work can be interrupted; they can show an `abort`.
        operations: Methods that start a long-running operation; they can show an `operation-error` and be `slow`.
        accelerators: Operations that request accelerators; they can show a `stock-out` and a `quota` refusal.

    Raises:
        ValueError: A name occurs twice, or is missing in `names`.
    """

    names: tuple[Method, ...] = ()
    streaming: frozenset[Method] = frozenset()
    abortable: frozenset[Method] = frozenset()
    operations: frozenset[Method] = frozenset()
    accelerators: frozenset[Method] = frozenset()

    def __post_init__(self) -> None:
        twice = sorted(name for name in set(self.names) if self.names.count(name) > 1)
        unknown = sorted({*self.streaming, *self.abortable, *self.operations, *self.accelerators} - {*self.names})
        if twice:
            raise ValueError(f"`names` must name each method once; {', '.join(twice)} occur more than once.")
        if unknown:
            raise ValueError(
                f"`names` must hold every method of the other attributes; {', '.join(unknown)} are missing."
            )
        if not self.accelerators <= self.operations:
            missing = ", ".join(sorted(self.accelerators - self.operations))
            raise ValueError(f"`operations` must hold every method of `accelerators`; {missing} are missing.")

    @classmethod
    def joined(cls, groups: Iterable[Methods]) -> Methods:
        """Returns the methods of several services as one value.

        Raises:
            ValueError: Two services declare the same method.
        """
        found = list(groups)
        sets = {
            one.name: frozenset[Method]().union(*(getattr(group, one.name) for group in found))
            for one in fields(cls)
            if one.name != "names"
        }
        return cls(names=tuple(name for group in found for name in group.names), **sets)

    def check(self, method: Method) -> None:
        """Checks that `method` is one that the sandbox serves.

        Raises:
            ValueError: It is not; the message lists the known methods.
        """
        if method not in self.names:
            raise ValueError(f"`method` must be one of {', '.join(self.names)}; got {method!r}.")
