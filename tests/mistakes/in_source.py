"""Mistakes in `source`."""

from __future__ import annotations

from tests.mistakes.mistake import LEFT_OUT, Mistake

SQL = {"type": "sql", "conn_id": "warehouse", "query": "SELECT id, text FROM tickets", "key": "id"}
KAFKA = {"type": "kafka", "topic": "tickets", "bootstrap_servers": "broker:9092"}

MISTAKES = (
    Mistake(changes={"source": LEFT_OUT}, sentence="`source`: this field is needed. Nothing was sent or billed."),
    Mistake(
        changes={"source": {"uri": "rows.jsonl"}},
        sentence=(
            "`source.key`: this field is needed: the columns that identify a row, e.g. "
            "'ticket_id'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source.key": 5}, sentence="`source.key`: must be a list; got 5. Nothing was sent or billed."
    ),
    Mistake(
        changes={"source.key": []},
        sentence="`source.key`: must have at least 1 item; got []. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"source.key": ["id", "id"]},
        sentence=("`source.key`: must name each column once; got ['id', 'id']. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"source.keys": ["id"]},
        sentence=("`source.keys`: there is no such field; did you mean `key`? Nothing was sent or billed."),
    ),
    Mistake(
        changes={"source.path": "rows.jsonl"},
        sentence="`source.path`: there is no such field; did you mean `uri`? Nothing was sent or billed.",
    ),
    Mistake(
        changes={"source": {"uri": "rows.csv", "key": "id", "delimiter": ";"}},
        sentence=(
            "`source.delimiter`: there is no such field; it belongs in `source.csv`. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source.where": "text != ''"},
        sentence=(
            "`source.where`: there is no such field; a table is filtered by `source.query`, and "
            "`source.skip_empty` leaves out rows without a value. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source.uri": "https://storage.googleapis.com/my-bucket/rows.jsonl"},
        sentence=(
            "`source.uri`: must be a path, or an address of files, e.g. 'gs://my-bucket/rows.jsonl': Beam reads "
            "and writes no web pages; got 'https://storage.googleapis.com/my-bucket/rows.jsonl'. Nothing was sent "
            "or billed."
        ),
    ),
    Mistake(
        changes={"source": {"table": "p.d.t$20261103", "key": "id"}, "state_uri": "gs://b/s/"},
        sentence=(
            "`source.table`: must be `project.dataset.table`, one whole table, without '$': `source.query` "
            "selects rows of a partition, or of several tables; got 'p.d.t$20261103'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source.type": "mysql"},
        sentence=(
            "`source.type`: must be one of 'files', 'bigquery', 'sql', 'rows', 'kafka', 'pubsub' (did you mean "
            "'sql'?); got 'mysql'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source.format": "json"},
        sentence=(
            "`source.format`: must be 'jsonl', 'csv', 'parquet' or 'avro' (did you mean 'jsonl'?); got 'json'. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source.uri": ""}, sentence="`source.uri`: must not be empty; got ''. Nothing was sent or billed."
    ),
    Mistake(
        changes={"source.uri": "gs://user:password@bucket/rows.jsonl"},
        sentence=(
            "`source.uri`: must not hold a user or a password, as it is written to logs and "
            "reports: filesystems read their credentials from the environment or from the "
            "machine; got '…'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {"type": "rows", "rows": "x", "key": ["id"]}},
        sentence=("`source.rows`: must be a list; got 'x'. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"source": {"type": "bigquery", "key": ["id"]}},
        sentence=(
            "`source`: needs either `table` or `query`; got {'type': …, 'key': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {"type": "bigquery", "query": "SELECT 1", "table": "p.d.t", "key": ["id"]}},
        sentence=(
            "`source`: needs either `table` or `query`; got {'type': …, 'query': …, 'table': …, "
            "'key': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {"type": "bigquery", "table": "reviews", "key": ["id"]}},
        sentence=("`source.table`: must be `project.dataset.table`; got 'reviews'. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"source.on_duplicate_key": "ignore"},
        sentence=(
            "`source.on_duplicate_key`: must be 'error', 'first', 'last', 'dead_letter' or 'allow'; got 'ignore'. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "source": {"type": "bigquery", "table": "p.d.t", "key": ["id"], "on_duplicate_key": "last"},
            "sink": {"type": "bigquery", "table": "p.d.u"},
            "state_uri": "gs://b/s/",
        },
        sentence=(
            "`source.on_duplicate_key`: must be 'error', 'dead_letter' or 'allow', as the rows of type 'bigquery' "
            "are in no order: select one of them in `source.query`, with QUALIFY ROW_NUMBER() OVER (…) = 1; got "
            "'last'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": "rows.jsonl"},
        sentence=(
            "`source`: needs a key, the columns that identify a row: {'uri': …, 'key': 'id'} "
            "instead of the path alone; got 'rows.jsonl'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": [{"id": 1}]},
        sentence=(
            "`source`: needs a key, the columns that identify a row: {'type': 'rows', 'rows': "
            "[…], 'key': 'id'} instead of the rows alone; got [{'id': …}]. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"source": {"uri": "out/dead_letter-*.jsonl", "key": ["id"]}},
        sentence=(
            "`spec`: reads the dead letter of its own `sink.uri` 'out/', and would replace all "
            "answers there by the new ones: set `sink.on_existing` to 'merge', or name another "
            "sink. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source.uri": "out/*.jsonl"},
        sentence=(
            "`spec`: would read its own answers: `source.uri` 'out/*.jsonl' matches the files "
            "that the job writes to `sink.uri` 'out/'. Name another directory for one of them. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {"uri": "rows.csv", "key": "id", "csv": {"delimiter": "tab"}}},
        sentence=(
            '`source.csv.delimiter`: must be one character, e.g. ";", or "\\t" for a tab; got '
            "'tab'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {"uri": "rows.csv", "key": "id", "csv": {"encoding": "utf8x"}}},
        sentence=(
            "`source.csv.encoding`: must be an encoding of Python, e.g. 'utf-8', 'latin-1', "
            "'cp1252' or 'utf-16'; got 'utf8x'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {"uri": "rows.csv", "key": "id", "csv": {"header": None}}},
        sentence=(
            "`source.csv`: needs `names`, the names of the columns, where `header` is None; got "
            "{'header': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source.csv": {"delimiter": ";"}},
        sentence=(
            "`source`: has `csv` options, and its format is 'jsonl': set `format` to 'csv', or "
            "leave them out; got {'type': …, 'uri': …, 'key': …, 'csv': …}. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"source.min_rows": 1, "source.on_empty": "write"},
        sentence=(
            "`source`: `min_rows` is 1, and `on_empty` 'write' accepts a source without rows: set "
            "`on_empty` to 'fail' or 'skip', or leave `min_rows` out; got {'type': …, 'uri': …, "
            "'key': …, 'min_rows': …, 'on_empty': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {**KAFKA, "topic": "tickets,other"}},
        sentence=(
            "`source.topic.0`: must be a topic of Kafka: at most 249 letters, digits and . _ -; got "
            "'tickets,other'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {**KAFKA, "bootstrap_servers": "me:password@broker:9092"}},
        sentence=(
            "`source.bootstrap_servers`: must be hosts and ports alone, 'host:9092': a password belongs "
            "in the connection. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {"type": "sql", "query": "SELECT id FROM tickets", "key": "id"}},
        sentence="`source.conn_id`: this field is needed. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"source": {**SQL, "sql": "SELECT 1"}},
        sentence="`source.sql`: there is no such field; did you mean `query`? Nothing was sent or billed.",
    ),
    Mistake(
        changes={"source": {**SQL, "on_duplicate_key": "first"}},
        sentence=(
            "`source.on_duplicate_key`: must be 'error', 'dead_letter' or 'allow', as the rows of type 'sql' are "
            "in no order: select one of them in `source.query`, by ROW_NUMBER() OVER (…); got 'first'. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {**KAFKA, "start": "2026-01-01T00:00:00Z"}},
        sentence=(
            "`source`: needs both `start` and `end` for a time range, or neither; got {'type': …, "
            "'topic': …, 'bootstrap_servers': …, 'start': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {**KAFKA, "start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}},
        sentence=(
            "`source`: has a time range that ends before it begins: `start` must be before `end`; got "
            "{'type': …, 'topic': …, 'bootstrap_servers': …, 'start': …, 'end': …}. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"source": {**KAFKA, "start": "2026-01-01", "end": "2026-01-02T00:00:00Z"}},
        sentence=(
            "`source.start`: must be a time with its zone, e.g. '2026-01-01T00:00:00Z'; got "
            "'2026-01-01'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {**KAFKA, "topic": ["tickets", "tickets"]}},
        sentence=(
            "`source.topic`: must be a topic, or several, each once; got ['tickets', 'tickets']. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={"source": {"type": "pubsub", "subscription": "labels"}},
        sentence=(
            "`source.subscription`: must be a subscription of Pub/Sub, 'projects/…/subscriptions/…'; got "
            "'labels'. Nothing was sent or billed."
        ),
    ),
)
