"""What a spec may call, start, read and send: all that its Dag file names, and else what is configured."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.names import Named
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.model.model import ModelApi
from airflow_provider_llmbeam.spec.model.server import is_loopback
from airflow_provider_llmbeam.spec.safety.privacy import DlpDetector

#: Options of `[llmbeam]` in the configuration of Airflow that are lists.
OPTIONS = ("allowed_functions", "allowed_programs", "job_environment", "token_hosts")
#: The whole begin of an address, so that no other parser finds another host in it: urllib3 ends one at a `\`.
_ADDRESS = re.compile(r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?(?:/|$)")
#: Hosts on which Google itself takes an access token. On run.app are the services of everybody.
_OF_GOOGLE = re.compile(r".+\.(googleapis\.com|vertexai\.goog)")
#: Levels of lists and mappings within a spec value: `runner.options` has lists of texts.
_LEVELS = 2

#: Items of each option.
Allowed = Mapping[str, Collection[str]]


def read_options(read: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """Returns the items of each option.

    Args:
        read: Returns the text of an option: items that are separated by commas or blanks.
    """
    return {option: tuple(filter(None, re.split(r"[\s,]+", read(option)))) for option in OPTIONS}


def variable_of(option: str) -> str:
    """Returns the environment variable that sets an option."""
    return f"AIRFLOW__LLMBEAM__{option.upper()}"


def check_allowed(value: SpecModel | Mapping[str, SpecModel], allowed: Allowed, written: Any = None) -> None:
    """Checks the functions, programs and variables that a value names, and where Google's tokens go.

    Args:
        value: A job or another value, or some by name, with the addresses of connections and the environment.
        allowed: The options.
        written: The same value as plain data, as the Dag file has it before Airflow renders it: what is written
            there in the same place is allowed. `None`: the value is of no Dag file.

    Raises:
        JobSpecError: One is not allowed.
    """
    read = getattr(value, "read_variables", ())
    for path, part in _parts(value, ()):
        if isinstance(part, SpecModel):
            check_token_server(part, allowed["token_hosts"])
        elif not (
            _matches(part, allowed[part.option])
            or _is_written(written, path, part)
            or (path[-1] == "environment_secrets" and part in read)
        ):
            variable = variable_of(part.option)
            raise JobSpecError(
                f"`{'.'.join(path)}`: {redact(repr(part[:60]))} is named neither in a Dag file nor in `[llmbeam] "
                f"{part.option}` (`{variable}`). Write it in the Dag file, or add it there."
            )


def check_token_server(part: SpecModel, hosts: Collection[str]) -> None:
    """Checks that a token of Google goes to Google, to a host that is configured, or to this machine.

    Args:
        part: A model, or another part of a spec.
        hosts: The option `token_hosts`.

    Raises:
        JobSpecError: It would go to another host, or over plain http.
    """
    api, audience = getattr(part, "api", None), getattr(part, "id_token_audience", None)
    if isinstance(part, DlpDetector):
        address = part.base_url
    elif isinstance(api, ModelApi) and api.authentication in ("access_token", "id_token"):
        address = getattr(part, "address", None)
    else:
        return
    if address is None or _may_get_token(address, audience, hosts):
        return
    found = _ADDRESS.match(address)
    own = "of Google" if audience is None else "of its audience on run.app"
    raise JobSpecError(
        f"A Google token would be sent to {redact(repr(address[:60] if found is None else found[0]))}. Expected "
        f"https, and a host {own} or in `[llmbeam] token_hosts` (`{variable_of('token_hosts')}`)."
    )


def _may_get_token(address: str, audience: str | None, hosts: Collection[str]) -> bool:
    found = _ADDRESS.match(address)
    if found is None:
        return False
    host = found["host"].lower()
    if is_loopback(host.strip("[]")):
        return True
    if audience is None:
        is_own = _OF_GOOGLE.fullmatch(host) is not None
    else:
        meant = _ADDRESS.match(audience)
        is_own = host.endswith(".run.app") and meant is not None and meant["host"].lower() == host
    return found["scheme"] == "https" and (is_own or host in hosts)


def _matches(text: str, items: Collection[str]) -> bool:
    """Whether a list names a text: as it is, or by a prefix that ends in `*`."""
    if ".." in text.split("/"):  # the path leaves the directory of a prefix
        return text in items
    return any(text == item or (item.endswith("*") and text.startswith(item[:-1])) for item in items)


def _parts(value: Any, path: tuple[str, ...], levels: int = _LEVELS) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the spec values within a value, and the names that do not stand there by default."""
    match value:
        case Named():
            yield path, value
        case SpecModel():
            yield path, value
            for name, field in type(value).model_fields.items():
                if (inner := getattr(value, name)) != field.default:
                    yield from _parts(inner, (*path, name))
        case Mapping() if levels:
            yield from ((path, name) for name in value if isinstance(name, Named))
            for name, inner in value.items():
                yield from _parts(inner, (*path, str(name)), levels - 1)
        case list() | tuple() if levels:
            for inner in value:
                yield from _parts(inner, path, levels - 1)


def _is_written(data: Any, path: tuple[str, ...], text: str) -> bool:
    """Whether plain data has a text in a place, in whichever item of a list; a mapping has those of its keys."""
    data = from_text(data)
    if isinstance(data, list | tuple):
        return any(_is_written(item, path, text) for item in data)
    if isinstance(data, SpecModel):
        return bool(path) and _is_written(getattr(data, path[0], None), path[1:], text)
    if isinstance(data, Mapping):
        return _is_written(data.get(path[0]), path[1:], text) if path else text in data
    return not path and data == text
