"""Files of prompts, on this machine, on Cloud Storage or another filesystem of Beam, and what identifies them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from google.auth.exceptions import GoogleAuthError

from airflow_provider_llmbeam.engine.media.data_uri import data_uri
from airflow_provider_llmbeam.engine.media.extent import HEAD_BYTES
from airflow_provider_llmbeam.engine.media.file import MediaFile, MediaFiles, open_media
from airflow_provider_llmbeam.engine.media.loader import NOT_SENT
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.local_files import open_no_link
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import FailedRow, RowPrompt, failed_row
from airflow_provider_llmbeam.pipeline.launch.writable import is_final
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.media import (
    MediaError,
    MediaRules,
    MediaUnavailableError,
    is_below,
    literal_ends,
    local_path,
    place_of,
    shortened,
)
from airflow_provider_llmbeam.spec.model.media_tokens import audio_share, media_tokens
from airflow_provider_llmbeam.spec.prompt import Media
from airflow_provider_llmbeam.spec.runner import LocalRunner
from airflow_provider_llmbeam.transport.google_auth import is_transient_token_error

#: Time in which a request to Cloud Storage is retried, in seconds.
_RETRY_SECONDS = 30.0

ResultT = TypeVar("ResultT")


class StoredMedia:
    """Opens files; threads share the client of Cloud Storage.

    A file of this machine is identified by its bytes, as its time says nothing after a copy. An object of Cloud
    Storage is identified by its MD5, which is in its metadata; a composite object has none, and is identified by
    its address and generation, as other files are by address, size and time.

    Args:
        follows_links: Whether a local file may be a link or below one. What rows name was resolved when it was
            checked: a link in its place was put there since.
    """

    def __init__(self, *, follows_links: bool = False) -> None:
        self._follows_links = follows_links

    def open(self, uri: str) -> MediaFile:
        """Opens a file.

        Raises:
            MediaError: It does not exist, or cannot be read.
            MediaUnavailableError: The service does not answer.
        """
        place = place_of(uri)
        if place == "local":
            path = Path(local_path(uri))
            return _local(uri, _absolute(path) if self._follows_links else path)
        return _of_service(uri, lambda: _on_cloud_storage(uri)) if place == "gs" else _elsewhere(uri)


def media_identities(
    media: Sequence[tuple[str, str | None]], rules: MediaRules, files: MediaFiles
) -> list[tuple[str, str | None]]:
    """Returns identity and type of the files of a prompt; one that cannot be read keeps its address, and fails."""
    found: list[tuple[str, str | None]] = []
    for uri, given in media:
        try:
            opened = open_media(uri, given, rules, files, is_checked=False)
            found.append((uri if opened.file is None else opened.file.identity(), opened.mime_type))
        except MediaError:
            found.append((uri, given))
    return found


def _local(uri: str, path: Path) -> MediaFile:
    try:
        with os.fdopen(_open_local(path)) as file:
            checked = _state(file)
    except FileNotFoundError:
        raise MediaError(f"the file {shortened(uri)!r} does not exist on this machine.") from None
    except (OSError, ValueError) as error:  # a name with a null byte
        raise _unreadable(uri, error) from None

    def stream() -> io.BufferedReader:
        # No descriptor is kept: a request that waits for its turn would hold those of all its files.
        try:
            file = os.fdopen(_open_local(path), "rb")
        except OSError as error:
            raise _unreadable(uri, error) from None
        if _state(file) != checked:
            file.close()
            raise MediaError(f"the file {shortened(uri)!r} was replaced while it was read.")
        return file

    def identity() -> str:
        with stream() as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"

    def read(most_bytes: int = -1) -> bytes:
        with stream() as file:
            return file.read(most_bytes)

    return MediaFile(checked.size_bytes, identity, read, lambda: read(HEAD_BYTES), stream)


class _State(NamedTuple):
    size_bytes: int
    device: int
    number: int
    changed_ns: int


def _state(file: IO[Any]) -> _State:
    found = os.fstat(file.fileno())
    return _State(found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns)


def _open_local(path: Path) -> int:
    return open_no_link(path, os.O_RDONLY, root=Path(path.anchor))


def _on_cloud_storage(uri: str) -> MediaFile:
    try:
        found = storage.cloud_object(uri)
    except ValueError:
        raise _not_readable(uri) from None
    assert found is not None
    bucket, name = found
    retry = _retry()
    blob: Any = bucket.get_blob(name, retry=retry)
    if blob is None:
        raise MediaError(f"the object {shortened(uri)!r} does not exist.")
    known = f"md5:{blob.md5_hash}" if blob.md5_hash else f"{uri}#{blob.generation}"

    def read() -> bytes:
        # Without the generation, a file that is replaced meanwhile would be the new one with the size of the old.
        return _of_service(
            uri, lambda: bytes(blob.download_as_bytes(retry=retry, if_generation_match=blob.generation))
        )

    return MediaFile(int(blob.size or 0), lambda: known, read, stream=lambda: _stream(uri))


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped]

    return DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)


def _elsewhere(uri: str) -> MediaFile:
    try:
        metadata = storage.metadata(uri)
    except ValueError:
        raise _not_readable(uri) from None
    except Exception as error:  # noqa: BLE001 - the errors of any filesystem, or none for this scheme
        raise _unreadable(uri, error) from None
    if metadata is None:
        raise MediaError(f"the file {shortened(uri)!r} does not exist.")

    def read() -> bytes:
        try:
            return storage.read(uri)
        except Exception as error:  # noqa: BLE001 - as above
            raise _unreadable(uri, error) from None

    identity = f"{uri}#{metadata.size_in_bytes}#{metadata.last_updated_in_seconds}"
    return MediaFile(metadata.size_in_bytes, lambda: identity, read, stream=lambda: _stream(uri))


def _stream(uri: str) -> IO[bytes]:
    return _of_service(uri, lambda: storage.open(uri))


def _of_service(uri: str, action: Callable[[], ResultT]) -> ResultT:
    """Tells an object that cannot be read, which fails its row, from a service that does not answer."""
    try:
        return action()
    except MediaError:
        raise
    except Exception as error:
        code, message = getattr(error, "code", None), str(getattr(error, "message", error))
        if is_final(error) and isinstance(code, int):
            raise MediaError(f"Cloud Storage refused {shortened(uri)!r}: {code} {message[:60]}.") from None
        if not _is_outage(error):
            raise _unreadable(uri, error) from None
        raise MediaUnavailableError(
            f"{shortened(uri)!r} could not be read for {_RETRY_SECONDS:g} s: {type(error).__name__}: "
            f"{message[:300]}."
        ) from error


def _is_outage(error: Exception) -> bool:
    """Whether other files cannot be read either: any other error may be that of one address, which a row names."""
    from google.api_core.exceptions import RetryError

    if isinstance(error, GoogleAuthError):
        return is_transient_token_error(error)
    return isinstance(error, RetryError) or bool(_retry()._predicate(error))


def _not_readable(uri: str) -> MediaError:
    return MediaError(
        f"{shortened(uri)!r} is no file that can be read here. Expected gs://bucket/name, https://…, data:… "
        "or a path of this machine."
    )


def _unreadable(uri: str, error: Exception) -> MediaError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return MediaError(f"the file {shortened(uri)!r} cannot be read: {reason[:100].rstrip('.')}.")


class MediaIdentifier:
    """Checks the files of a prompt, identifies them by what they hold, and estimates their tokens.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._media = spec.prompt.media
        self._model, self._resolution = spec.model, spec.generation.media_resolution
        self._rules = spec.model.media
        self._reads_local = isinstance(spec.runner, LocalRunner)
        self._files = StoredMedia()
        self._fingerprint = spec.fingerprinter()

    def identify(self, found: RowPrompt) -> RowPrompt | FailedRow:
        """Returns a prompt with plain addresses and the tokens of its files; a failed row if it cannot be sent.

        Raises:
            JobFailedError: Cloud Storage does not answer.
        """
        prompt = found.prompt
        identities: list[tuple[str, str | None]] = []
        media: list[tuple[str, str | None]] = []
        tokens = audio_tokens = 0
        for index, (uri, given) in enumerate(prompt.media):
            try:
                uri = self._allowed(uri, self._media[index])
                opened = open_media(uri, given, self._rules, self._files, is_checked=False)
                identity = uri if opened.file is None else opened.file.identity()
                if place_of(uri) == "data" and opened.file is not None:
                    uri = data_uri(opened.file.read(), str(opened.mime_type))
                identities.append((identity, opened.mime_type))
                media.append((uri, opened.mime_type))
                of_file = media_tokens(self._model, opened.mime_type, opened.extent, self._resolution)
                tokens += of_file
                audio_tokens += round(of_file * audio_share(self._model, opened.mime_type, self._resolution))
            except MediaUnavailableError as error:
                raise JobFailedError(
                    f"`prompt.media.{index}`: {error} The answers so far are in the journal; a retry sends only "
                    "the rest."
                ) from error
            except MediaError as error:
                return failed_row(found.row, "media_error", f"`prompt.media.{index}`: {error} {NOT_SENT}")
        fingerprint = self._fingerprint(prompt.text, prompt.system, identities)
        sent = Prompt(prompt.text, prompt.system, tuple(media), tokens, audio_tokens=audio_tokens)
        return RowPrompt(found.row, fingerprint, sent)

    def _allowed(self, uri: str, media: Media) -> str:
        """Returns the address of a file that rows may name; that of a local one is absolute.

        Raises:
            MediaError: It is not below a directory that the spec allows.
        """
        if not uri.strip():
            return uri  # its own error follows
        roots, place = _roots(media), place_of(uri)
        if place == "local":
            return self._allowed_local(uri, roots)
        if roots and place != "data" and not any(is_below(uri, root) for root in roots):
            raise _outside(uri, roots)
        return uri

    def _allowed_local(self, uri: str, roots: Sequence[str] | None) -> str:
        if not self._reads_local:
            raise MediaError(
                f"{shortened(uri)!r} is a file of this machine, which the workers of Dataflow cannot read. "
                "Expected gs://…, https://… or data:…."
            )
        path = Path(local_path(uri))
        if roots is None:
            return _absolute(path).as_uri()
        places = [Path(local_path(root)) for root in roots if place_of(root) == "local" and local_path(root)]
        if not places:
            raise MediaError(
                "`root` does not say which files of this machine rows may read, and a row names "
                f"{shortened(uri)!r}. Set it, e.g. 'root': {shortened(str(path.parent))!r}."
            )
        found = _absolute(path)
        if not any(found.is_relative_to(_absolute(place)) for place in places):
            raise _outside(uri, roots)
        return found.as_uri()


def _roots(media: Media) -> Sequence[str] | None:
    """Returns the directories that rows may name files of; `None` for an address that no row has a part in."""
    begin, _ = literal_ends(media.uri)
    if begin == media.uri:
        return None
    directory = begin[: begin.rfind("/") + 1]
    place = place_of(directory)
    # The whole disk says no more than no directory at all.
    is_given = bool(local_path(directory).strip("/")) if place == "local" else place != "data"
    return media.root or ((directory,) if is_given else ())


def _outside(uri: str, roots: Sequence[str]) -> MediaError:
    where = (
        f"not below {shortened(roots[0])!r}" if len(roots) == 1 else f"below none of the {len(roots)} of `root`"
    )
    return MediaError(f"{shortened(uri)!r} is {where}, the only files that rows may name.")


def _absolute(path: Path) -> Path:
    try:
        return path.resolve()  # `..` and links are followed
    except (OSError, RuntimeError, ValueError) as error:
        raise MediaError(f"the file {shortened(str(path))!r} cannot be read: {error}.") from None
