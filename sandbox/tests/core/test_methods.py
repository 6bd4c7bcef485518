from __future__ import annotations

import pytest
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.clock import ManualClock
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.rest import Service
from llmbeam_sandbox.storage import api as storage
from llmbeam_sandbox.storage.responses import WORDING
from llmbeam_sandbox.storage.state import ObjectStore


def test_joined_methods_keep_the_order_and_the_faults_of_each_service() -> None:
    first = Methods(names=("b.run", "b.stop"), operations=frozenset({"b.run"}))
    second = Methods(names=("a.chat",), streaming=frozenset({"a.chat"}))
    joined = Methods.joined([first, second])
    assert joined.names == ("b.run", "b.stop", "a.chat")
    assert (joined.streaming, joined.operations) == ({"a.chat"}, {"b.run"})


def test_two_services_cannot_declare_the_same_method() -> None:
    with pytest.raises(ValueError, match=r"once; a\.chat occur more than once"):
        Methods.joined([Methods(names=("a.chat",)), Methods(names=("a.chat",))])


@pytest.mark.parametrize("kind", ["streaming", "abortable", "operations", "accelerators"])
def test_a_fault_can_only_be_declared_for_a_named_method(kind: str) -> None:
    with pytest.raises(ValueError, match=r"a\.chat are missing"):
        Methods(**{kind: frozenset({"a.chat"})})


def test_a_method_that_requests_accelerators_is_an_operation() -> None:
    with pytest.raises(ValueError, match="`operations` must hold"):
        Methods(names=("a.run",), accelerators=frozenset({"a.run"}))


def test_a_service_with_an_undeclared_method_is_refused() -> None:
    backend = Backend(ManualClock(), Methods(names=("a.chat",)))
    routes = storage.Storage(ObjectStore(ManualClock())).routes()
    with pytest.raises(ValueError, match=r"must be one of a\.chat; got 'storage\.buckets\.insert'"):
        Service(backend, WORDING, routes, is_slow=False)
