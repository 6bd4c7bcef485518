"""Mistakes in `sink`, `safety.audit`, `state_uri` and `cache`."""

from __future__ import annotations

from tests.mistakes.mistake import LEFT_OUT, Mistake

KAFKA = {"type": "kafka", "topic": "tickets", "bootstrap_servers": "broker:9092"}

MISTAKES = (
    Mistake(
        changes={"sink": "out/answers.parquet"},
        sentence=(
            "`sink.uri`: must be a directory, in which the job names its files; `sink.format` is 'jsonl' or "
            "'parquet'. A / at the end says that a directory has this name; got 'out/answers.parquet'. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(changes={"sink": LEFT_OUT}, sentence="`sink`: this field is needed. Nothing was sent or billed."),
    Mistake(
        changes={"sink": 5},
        sentence="`sink`: must be an object with named fields; got 5. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"sink.path": "out/"},
        sentence="`sink.path`: there is no such field; did you mean `uri`? Nothing was sent or billed.",
    ),
    Mistake(
        changes={"sink.format": "csv"},
        sentence="`sink.format`: must be 'jsonl' or 'parquet'; got 'csv'. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"sink.shards": 0},
        sentence="`sink.shards`: must be greater than or equal to 1; got 0. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"sink.uri": "out/*.jsonl"},
        sentence=(
            "`sink.uri`: must be one directory, not a glob: a path with *, ? or [ matches the "
            "files of other directories, and not its own; got 'out/*.jsonl'. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"sink.uri": "gs:/my-bucket/out"},
        sentence=(
            "`sink.uri`: would be a local path that begins with 'gs:/': a scheme has two slashes, e.g. 'gs://', "
            "and neither `~` nor a variable of a shell is replaced; got 'gs:/my-bucket/out'. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"sink": {"type": "bigquery", "table": "answers"}},
        sentence=("`sink.table`: must be `project.dataset.table`; got 'answers'. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"sink": {"type": "postgres", "table": "answers"}},
        sentence=(
            "`state_uri`: this field is needed with a sink of type 'postgres': journal, dead "
            "letter and report are written there; got None. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink": {"type": "postgres", "table": "answers; DROP TABLE users"}, "state_uri": "state/"},
        sentence=(
            "`sink.table`: must be a table, 'answers' or 'schema.answers'; got 'answers; DROP "
            "TABLE users'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "sink": {"type": "postgres", "table": "answers", "dsn_env": "postgresql://me:secret@db/x"},
            "state_uri": "state/",
        },
        sentence=(
            "`sink.dsn_env`: must be the name of an environment variable, not the secret that it "
            "holds; got '…'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "sink": {"type": "milvus", "uri": "http://milvus:19530", "collection": "1st"},
            "state_uri": "state/",
        },
        sentence=(
            "`sink.collection`: must be a name of letters, digits and _, which does not begin "
            "with a digit; got '1st'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"cache": {"scope": "moods"}},
        sentence=(
            "`state_uri`: this field is needed with `cache`: the shared answers are written "
            "there; got None. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"cache": {"scope": "all moods"}, "state_uri": "state/"},
        sentence=(
            "`cache.scope`: must be a name of at most 127 letters, digits and . _ -, beginning "
            "with a letter or a digit; got 'all moods'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink": "project.dataset.answers"},
        sentence=(
            "`sink`: must be a directory if it is text; a table or a server needs its type, e.g. "
            "{'type': 'bigquery', 'table': 'project.dataset.table'}; got "
            "'project.dataset.answers'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink": "postgresql://me:secret@db/answers"},
        sentence=(
            "`sink`: must be a directory if it is text; a table or a server needs its type, e.g. "
            "{'type': 'bigquery', 'table': 'project.dataset.table'}; got '…'. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"sink.fromat": "parquet"},
        sentence=("`sink.fromat`: there is no such field; did you mean `format`? Nothing was sent or billed."),
    ),
    Mistake(
        changes={"sink.key": "id"},
        sentence=(
            "`sink.key`: there is no such field; expected one of `answer_columns`, `details`, `format`, "
            "`on_existing`, `passthrough`, `shards`, `type`, `uri`. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink.passthrough": ["answer"]},
        sentence=(
            "`sink.passthrough`: has column 'answer', and every output row has a column "
            "of that name: use another. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink.passthrough": ["id"]},
        sentence=(
            "`sink.passthrough`: has column 'id', and every output row has it from "
            "`source.key`: use another. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink.answer_columns": "flat"},
        sentence=(
            "`spec`: has `sink.answer_columns` 'flat', which needs a `prompt.output_schema`: set "
            "one, or leave it out. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink.on_existing": "append"},
        sentence=(
            "`sink.on_existing`: must be 'replace', 'merge' or 'take_over'; got 'append'. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink.on_existing": "merge", "source.on_duplicate_key": "allow"},
        sentence=(
            "`spec`: allows duplicate keys (`source.on_duplicate_key`), and `sink.on_existing` "
            "'merge' keeps one row per key: set one of them to another policy. Nothing was sent "
            "or billed."
        ),
    ),
    Mistake(
        changes={"sink": {"type": "bigquery", "table": "p.d.t"}},
        sentence=(
            "`state_uri`: this field is needed with a sink of type 'bigquery': journal, dead "
            "letter and report are written there; got None. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "source.on_duplicate_key": "allow",
            "sink": {"type": "postgres", "table": "t"},
            "state_uri": "state/",
        },
        sentence=(
            "`source.on_duplicate_key`: must not be 'allow', as a sink of type 'postgres' has one row per key; "
            "got 'allow'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink": {"type": "milvus", "uri": "a.db", "collection": "c"}, "state_uri": "state/"},
        sentence=(
            "`task`: must be 'embed' with a sink of type 'milvus', which stores vectors; in a stream it may have "
            "`embed`; got 'generate'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"safety": {"audit": {"uri": "audit/*"}}},
        sentence=(
            "`safety.audit.uri`: must be one directory, not a glob: a path with *, ? or [ matches the "
            "files of other directories, and not its own; got 'audit/*'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"safety": {"audit": {"table": "audit"}}},
        sentence=(
            "`safety.audit.table`: must be `project.dataset.table`; got 'audit'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink": {**KAFKA, "on_existing": "replace"}, "state_uri": "state/"},
        sentence=(
            "`sink.on_existing`: must be left out: messages are added to a topic, and those that are "
            "there are neither replaced nor merged; got 'replace'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": KAFKA, "sink": KAFKA, "state_uri": "state/"},
        sentence=(
            "`sink.topic`: must be another topic: the next run would read the answers; got 'tickets'. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"sink": {"type": "pubsub", "topic": "labels"}, "state_uri": "state/"},
        sentence=(
            "`sink.topic`: must be a topic of Pub/Sub, 'projects/…/topics/…'; got 'labels'. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={
            "sink": {"type": "pubsub", "topic": "projects/p/topics/t", "ordering_key": "lang"},
            "state_uri": "state/",
        },
        sentence=(
            "`sink.ordering_key`: must be a column of `source.key` or `sink.passthrough`: id; got 'lang'. Nothing "
            "was sent or billed."
        ),
    ),
)
