"""Mistakes in files, and in fields that do not fit them: found when the task runs."""

from __future__ import annotations

from tests.mistakes.mistake import LEFT_OUT, Mistake

MISTAKES = (
    Mistake(
        changes={"runner": {"type": "prism", "binary_path": "/nowhere/prism"}},
        sentence=("`runner.binary_path`: there is no program at '/nowhere/prism'. Nothing was sent or billed."),
        found="start",
    ),
    Mistake(
        changes={"source.uri": "no-*.jsonl"},
        sentence="`source.uri` 'no-*.jsonl' matches no file. Nothing was sent or billed.",
        found="start",
    ),
    Mistake(
        changes={"source.uri": "empty.jsonl"},
        sentence=(
            "`source.uri` 'empty.jsonl' has no rows, so the output was left as it is. If that is "
            "no mistake, set `source.on_empty` to 'skip', or to 'write' to publish no answers. "
            "Nothing was sent or billed."
        ),
        found="start",
        about="a file without a line",
        files={"empty.jsonl": ""},
    ),
    Mistake(
        changes={"source.uri": "head.csv"},
        sentence=(
            "`source.uri` 'head.csv' has no rows, so the output was left as it is. If that is no "
            "mistake, set `source.on_empty` to 'skip', or to 'write' to publish no answers. "
            "Nothing was sent or billed."
        ),
        found="start",
        about="a CSV file with nothing but its header",
        files={"head.csv": "id,text\n"},
    ),
    Mistake(
        changes={"source.uri": "rows.csv"},
        sentence=(
            "`source.uri` 'rows.csv': the header is the one column 'id;text': expected ',' "
            "between columns. If it is ';', set `source.csv.delimiter` to ';'. Nothing was sent "
            "or billed."
        ),
        found="start",
        about="a CSV file with semicolons",
        files={"rows.csv": "id;text\n1;good\n"},
    ),
    Mistake(
        changes={"source.uri": "half.jsonl", "source.min_rows": 100},
        sentence=(
            "`source.uri` 'half.jsonl' has 2 rows, and `source.min_rows` is 100, so the output "
            "was left as it is. Nothing was sent or billed."
        ),
        found="start",
        about="a file with 2 rows",
        files={"half.jsonl": '{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n'},
    ),
    Mistake(
        changes={"source.key": ["nr"]},
        sentence=(
            "100 of 100 rows have no key: correct `source.key` or the rows. no value in key "
            "column 'nr'; the row has ['id', 'text']. The rows are in "
            "'out/.llmbeam/moods/failed_rows.jsonl'; the old output stays. Nothing was sent or "
            "billed."
        ),
        found="start",
    ),
    Mistake(
        changes={"prompt.template": "Which mood? {{ row.txt }}"},
        sentence=(
            "No prompt could be made of 100 of 100 rows: correct `prompt.template` or the source. no column "
            "'txt'; there are ['id', 'text']. The rows are in "
            "'out/.llmbeam/moods/failed_rows.jsonl'; the old output stays. Nothing was sent or "
            "billed."
        ),
        found="start",
    ),
    Mistake(
        changes={"source.uri": "twice.jsonl"},
        sentence=(
            '`source.key`: 1 key belongs to several rows: {"id": 1}. Name columns that tell '
            "the rows apart, or set `source.on_duplicate_key` to 'first', 'last', 'dead_letter' or 'allow'. "
            "Nothing was sent or billed."
        ),
        found="start",
        about="two rows with one key",
        files={"twice.jsonl": '{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n'},
    ),
    Mistake(
        changes={"source.uri": "list.jsonl"},
        sentence=(
            "`source.uri`: 'list.jsonl' is a JSON array, or has objects of several lines. Expected JSON lines, "
            "with one object per line: `jq -c '.[]'` writes them from an array, `jq -c .` from objects. Nothing "
            "was sent or billed."
        ),
        found="start",
        about="a JSON file that is one list",
        files={"list.jsonl": '[\n{"id": 1},\n{"id": 2}\n]\n'},
    ),
    Mistake(
        changes={"source.uri": "table.jsonl"},
        sentence=(
            "2 of 2 lines are no rows: correct `source.format` or the file. not JSON: Expecting "
            "value: line 1 column 1 (char 0). The rows are in "
            "'out/.llmbeam/moods/failed_rows.jsonl'; the old output stays. Nothing was sent or "
            "billed."
        ),
        found="start",
        about="a CSV file that is named as JSON lines",
        files={"table.jsonl": "id,text\n1,a\n"},
    ),
    Mistake(
        changes={"sink.passthrough": ["txt"]},
        sentence=("`sink.passthrough`: no row has column 'txt'; did you mean 'text'? Nothing was sent or billed."),
        found="start",
    ),
    Mistake(
        sentence=(
            "`sink.uri` 'out/' belongs to 'ratings'; 'moods' would replace its answers. Name a "
            "sink per job, or set `sink.on_existing` to 'merge' or 'take_over'. Nothing was sent "
            "or billed."
        ),
        found="start",
        about="the sink of another job",
        files={"out/.llmbeam/_owner.json": '{"job": "ratings", "deployment": ""}'},
    ),
    Mistake(
        changes={"sink.on_existing": "merge"},
        sentence=(
            "`sink.on_existing` 'merge': 'out/answers-00000-of-00001.jsonl' has columns 'note' "
            "that these answers lack, and lacks 'answer', 'llmbeam_attempts', 'llmbeam_fingerprint' and 6 more. "
            "Nothing was sent or billed."
        ),
        found="start",
        about="answers of other columns in the sink",
        files={"out/answers-00000-of-00001.jsonl": '{"id": 1, "note": "x"}\n'},
    ),
    Mistake(
        changes={"sink.on_existing": "merge", "sink.format": "parquet"},
        sentence=(
            "`sink.format` 'parquet': 'out/answers-00000-of-00001.jsonl' has another format, which "
            "`sink.on_existing` 'merge' cannot change. Nothing was sent or billed."
        ),
        found="start",
        about="answers as JSON lines in the sink",
        files={"out/answers-00000-of-00001.jsonl": '{"id": 1}\n'},
    ),
    Mistake(
        sentence=(
            "The directory 'out/.llmbeam/' holds the state of jobs, and this user cannot read and "
            "write in it: File exists. Nothing was sent or billed."
        ),
        found="start",
        about="a file where the directory of the sink should be",
        files={"out": "x"},
    ),
    Mistake(
        changes={"sink": {"type": "postgres", "table": "answers"}, "state_uri": "state/"},
        sentence=(
            "`sink.dsn_env`: the environment variable 'LLMBEAM_POSTGRES_DSN' is not set. Expected "
            "a connection string, `postgresql://user:password@host:5432/database`; in Airflow, "
            "name a connection in `sink.conn_id`. Nothing was sent or billed."
        ),
        found="start",
    ),
    Mistake(
        changes={"model.type": "openai", "model.name": "gpt-4o", "model.base_url": LEFT_OUT},
        sentence=(
            "OpenAI needs a key: found neither a password in the `llmbeam` connection nor "
            "`OPENAI_API_KEY` in the environment. Nothing was sent or billed."
        ),
        found="start",
        about="no `OPENAI_API_KEY`",
    ),
    Mistake(
        changes={"source": {"type": "kafka", "topic": "tickets"}},
        sentence=(
            "`source.bootstrap_servers`: this field is needed, as 'LLMBEAM_KAFKA_SOURCE_CONFIG' in the "
            "environment names no `bootstrap.servers`. Nothing was sent or billed."
        ),
        found="start",
    ),
)
