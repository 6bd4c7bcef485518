"""Identification of the files of prompts, which decides whether an earlier answer is that of the same files."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_llmbeam.engine.media.data_uri import data_uri
from airflow_provider_llmbeam.engine.media.file import open_media
from airflow_provider_llmbeam.engine.media.loader import NOT_SENT
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.elements import FailedRow, RowPrompt, failed_row
from airflow_provider_llmbeam.pipeline.media.stored import StoredMedia
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.media import (
    MediaError,
    MediaUnavailableError,
    literal_ends,
    local_path,
    media_rules,
    place_of,
    shortened,
)
from airflow_provider_llmbeam.spec.model.media_tokens import audio_share, media_tokens
from airflow_provider_llmbeam.spec.prompt import Media
from airflow_provider_llmbeam.spec.runner import LocalRunner


class MediaIdentifier:
    """Checks the files of a prompt, identifies them by what they hold, and estimates their tokens.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._media = spec.prompt.media
        self._model, self._resolution = spec.model, spec.generation.media_resolution
        self._rules = media_rules(spec.model)
        self._reads_local = isinstance(spec.runner, LocalRunner)
        self._files = StoredMedia()
        self._fingerprint = spec.fingerprinter()

    def identified(self, found: RowPrompt) -> RowPrompt | FailedRow:
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
            MediaError: It is not below the directory that the spec allows.
        """
        if not uri.strip():
            return uri  # its own error follows
        place = place_of(uri)
        if place == "local":
            return self._allowed_local(uri, media)
        if media.root is not None and place == place_of(media.root):
            root = media.root.rstrip("/") + "/"
            if not uri.startswith(root):
                raise MediaError(f"{shortened(uri)!r} is not below {root!r} (`root`).")
        return uri

    def _allowed_local(self, uri: str, media: Media) -> str:
        if not self._reads_local:
            raise MediaError(
                f"{shortened(uri)!r} is a file of this machine, which the workers of Dataflow cannot read. "
                "Expected gs://…, https://… or data:…."
            )
        begin, _ = literal_ends(media.uri)
        path = Path(local_path(uri))
        if begin == media.uri:  # the same file for every row
            return _absolute(path).as_uri()
        given = media.root if media.root is not None and place_of(media.root) == "local" else None
        root = given or begin[: begin.rfind("/") + 1]
        if not root:
            raise MediaError(
                "`root` does not say which files of this machine rows may read, and a row names "
                f"{shortened(uri)!r}. Set it, e.g. 'root': {shortened(str(path.parent))!r}."
            )
        found = _absolute(path)
        if not found.is_relative_to(_absolute(Path(local_path(root)))):
            raise MediaError(
                f"{shortened(uri)!r} is not below {shortened(root)!r}, the only files that rows may read."
            )
        return found.as_uri()


def _absolute(path: Path) -> Path:
    try:
        return path.resolve()  # `..` and links are followed
    except (OSError, RuntimeError, ValueError) as error:
        raise MediaError(f"the file {shortened(str(path))!r} cannot be read: {error}.") from None
