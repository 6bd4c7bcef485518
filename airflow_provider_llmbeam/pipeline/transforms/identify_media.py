"""Identification of the files of prompts, which decides whether an earlier answer is that of the same files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam

from airflow_provider_llmbeam.engine.media.data_uri import data_uri
from airflow_provider_llmbeam.engine.media.file import open_media
from airflow_provider_llmbeam.engine.media.loader import NOT_SENT
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, RenderedRow, failed_row
from airflow_provider_llmbeam.pipeline.media.stored import StoredMedia
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
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

#: Number of files that are looked up at once: one of Cloud Storage takes a round trip of some 30 ms.
_THREADS = 16


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

    def identified(self, prompt: Prompt) -> tuple[str, Prompt] | str:
        """Returns the fingerprint of a prompt, and the prompt with plain addresses and the tokens of its files.

        Returns:
            Both; or why the prompt cannot be sent.

        Raises:
            JobFailedError: Cloud Storage does not answer.
        """
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
                return f"`prompt.media.{index}`: {error} {NOT_SENT}"
        return (
            self._fingerprint(prompt.text, prompt.system, identities),
            Prompt(prompt.text, prompt.system, tuple(media), tokens, audio_tokens=audio_tokens),
        )

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


class IdentifyMedia(CountingDoFn):
    """Converts batches of `(fingerprint, RenderedRow)`; a row whose files cannot be sent is output as `failed`."""

    def __init__(self, spec: JobSpec, context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._spec = spec

    def setup(self) -> None:
        """Starts the threads, once per worker."""
        self._identifier = MediaIdentifier(self._spec)
        self._threads = ThreadPoolExecutor(_THREADS)

    def teardown(self) -> None:
        """Ends the threads."""
        self._threads.shutdown()

    def process(
        self, batch: Sequence[tuple[str, RenderedRow]]
    ) -> Iterator[tuple[str, RenderedRow] | beam.pvalue.TaggedOutput]:
        """Identifies the files of some rows, several at once."""
        rows = [row for _, row in batch]
        prompts = [Prompt(text, system, media, tokens) for _, text, system, media, tokens in rows]
        found = self._threads.map(self._identifier.identified, prompts)
        for (row, *_), one in zip(rows, found, strict=True):
            if isinstance(one, str):
                self.count("failed")
                yield beam.pvalue.TaggedOutput(FAILED, failed_row(row, "media_error", one))
                continue
            fingerprint, prompt = one
            yield fingerprint, (row, prompt.text, prompt.system, prompt.media, prompt.media_tokens)
