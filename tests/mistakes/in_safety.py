"""Mistakes in `safety`."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

MISTAKES = (
    Mistake(
        changes={"safety": {"privacy": {"actions": {"MAIL": "drop"}}}},
        sentence=(
            "`safety.privacy.actions.MAIL`: is no kind that the detectors find; did you mean `EMAIL`? Nothing was "
            "sent or billed."
        ),
    ),
    Mistake(
        changes={"safety": {"privacy": {"on_altered": "restore"}}},
        sentence=(
            "`safety.privacy.on_altered`: must be 'keep', 'fail' or 'repair'; got 'restore'. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={
            "safety": {"privacy": {"on_altered": "repair", "columns": ["text"]}},
            "prompt.media": [{"uri": "gs://scans/{{ row.id }}.png"}],
        },
        sentence=(
            "`safety.privacy.on_altered`: must be 'keep' or 'fail' with `prompt.media`: a repair would send and "
            "bill the files again; got 'repair'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"safety": {"privacy": {"detectors": [{"type": "custom", "name": "ORDER"}]}}},
        sentence=(
            "`safety.privacy.detectors.0.pattern`: exactly one of this field and `function` is needed; got None. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"safety": {"privacy": {"detectors": ["dlp", {"type": "dlp", "info_types": ["PASSPORT"]}]}}},
        sentence=(
            "`safety.privacy.detectors`: at most one may have type 'dlp', with all `info_types`. Nothing was sent "
            "or billed."
        ),
    ),
    Mistake(
        changes={"safety": {"privacy": {"detectors": [{"type": "dlp", "info_types": ["Name"]}]}}},
        sentence=(
            "`safety.privacy.detectors.0.info_types.0`: must be a name of at most 40 capital letters, digits and "
            "_, e.g. 'PERSON_NAME'; got 'Name'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"safety": {"privacy": {"detectors": ["patterns", "dlp"]}}},
        sentence=(
            "`safety.privacy.detectors`: a detector of type 'dlp' needs the Google Cloud project that is billed, "
            "and neither the model nor the runner has one. Set its `project`. Nothing was sent or billed."
        ),
        found="start",
    ),
    Mistake(
        changes={"safety": {"privacy": {}}, "prompt.media": [{"uri": "gs://scans/{{ row.id }}.png"}]},
        sentence=(
            "`safety.privacy.columns`: this field is needed with `prompt.media`: files are sent as they are, and "
            "only texts are masked; name the columns whose texts are; got None. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"safety": {"privacy": {"key_env": "MASKING_KEY"}}},
        sentence=(
            "`safety.privacy.key_env`: the environment variable 'MASKING_KEY' is not set. Expected a secret of at "
            "least 16 characters for the placeholders; on Dataflow, name it in "
            "`runner.environment_secrets`. Nothing was sent or billed."
        ),
        found="start",
    ),
)
