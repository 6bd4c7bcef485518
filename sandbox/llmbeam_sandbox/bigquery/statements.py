"""SQL statements of BigQuery, rewritten for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmbeam_sandbox.bigquery.catalog import TableId
from llmbeam_sandbox.bigquery.columns import duckdb_type, quoted
from llmbeam_sandbox.core.rest import RestError

if TYPE_CHECKING:
    from sqlglot import exp

NOT_EMULATED = "The sandbox does not emulate this statement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement that DuckDB can run.

    Attributes:
        kind: `statementType`, e.g. "SELECT", "MERGE", "CREATE_TABLE_AS_SELECT".
        tree: Rewritten syntax tree.
        text: Text of the client.
        references: Tables that it reads or writes, in order of appearance.
        columns: Columns that it names; None for all ("*").
    """

    kind: str
    tree: exp.Expr
    text: str
    references: tuple[TableId, ...]
    columns: frozenset[str] | None = field(default=None)

    @property
    def sql(self) -> str:
        """The statement for DuckDB."""
        return sql_of(self.tree)

    @property
    def target(self) -> TableId:
        """Table that is written."""
        return self.references[0]

    def place_of(self, name: str) -> str:
        """Returns the position of a name in the text as BigQuery writes it: "[line:column]"."""
        found = re.search(rf"\b{re.escape(name)}\b", self.text, re.IGNORECASE)
        start = found.start() if found else 0
        line = self.text.count("\n", 0, start)
        return f"[{line + 1}:{start - self.text.rfind(chr(10), 0, start)}]"

    def double_match_sql(self) -> str | None:
        """Returns a query for target rows that a MERGE matches twice; None if it may match them twice.

        BigQuery refuses those with an error; DuckDB updates them with either row.
        """
        from sqlglot import exp

        if not isinstance(self.tree, exp.Merge):
            return None
        whens = self.tree.args["whens"].expressions
        if not any(when.args.get("matched") for when in whens):
            return None
        target = self.tree.this
        row = f"{quoted(target.alias_or_name)}.rowid"
        source, condition = (sql_of(self.tree.args[name]) for name in ("using", "on"))
        return (
            f"SELECT 1 FROM {sql_of(target)} JOIN {source} ON {condition} "
            f"GROUP BY {row} HAVING count(*) > 1 LIMIT 1"
        )


def sql_of(tree: exp.Expr) -> str:
    """Returns a tree as SQL of DuckDB, without parts that DuckDB does not support."""
    from sqlglot import ErrorLevel

    return tree.sql(dialect="duckdb", unsupported_level=ErrorLevel.IGNORE)


def read(text: str, project: str, options: Mapping[str, Any]) -> Statement:
    """Reads a statement.

    Args:
        text: Statement in GoogleSQL.
        project: Project of tables that name none.
        options: `defaultDataset`, `queryParameters`, `useLegacySql`.

    Raises:
        RestError: It is invalid, or the sandbox does not emulate it.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    if options.get("useLegacySql"):
        raise RestError(400, "The sandbox does not run legacy SQL; set `useLegacySql` to false.", "invalidQuery")
    try:
        trees = [tree for tree in sqlglot.parse(text, read="bigquery") if tree is not None]
    except SqlglotError as error:
        raise _syntax_error(error) from error
    if len(trees) != 1:
        message = (
            "The sandbox runs one statement at a time, no scripts." if trees else "Syntax error: Unexpected end"
        )
        raise RestError(400, message, "invalidQuery")
    tree = trees[0]
    kind = _kind(tree, text)
    columns = _columns(tree)
    references = _resolve(tree, project, options.get("defaultDataset") or {})
    _bind(tree, options.get("queryParameters") or [])
    _rewrite(tree)
    return Statement(kind=kind, tree=tree, text=text, references=references, columns=columns)


def _syntax_error(error: Any) -> RestError:
    details = getattr(error, "errors", None) or [{}]
    place = f"[{details[0].get('line') or 1}:{details[0].get('col') or 1}]"
    return RestError(
        400, f'Syntax error: Unexpected "{details[0].get("highlight") or ""}" at {place}', "invalidQuery"
    )


def _kind(tree: exp.Expr, text: str) -> str:
    from sqlglot import exp

    if isinstance(tree, exp.Query):
        return "SELECT"
    if isinstance(tree, (exp.Merge, exp.Insert, exp.Update, exp.Delete)):
        if isinstance(tree, (exp.Update, exp.Delete)) and not tree.args.get("where"):
            raise RestError(400, f"{tree.key.upper()} must have a WHERE clause at [1:1]", "invalidQuery")
        return tree.key.upper()
    if isinstance(tree, exp.TruncateTable):
        return "TRUNCATE_TABLE"
    if isinstance(tree, (exp.Create, exp.Drop)) and tree.args.get("kind") in ("TABLE", "SCHEMA"):
        suffix = "_AS_SELECT" if tree.args.get("expression") else ""
        return f"{tree.key.upper()}_{tree.args['kind']}{suffix}"
    if isinstance(tree, exp.Alter) and all(isinstance(action, exp.ColumnDef) for action in tree.actions):
        return "ALTER_TABLE"
    word = text.split(None, 1)[0].upper()
    if isinstance(tree, (exp.Command, exp.Create, exp.Drop, exp.Alter)):
        raise RestError(400, f"{NOT_EMULATED}: {word}", "invalidQuery")
    raise RestError(400, f'Syntax error: Unexpected identifier "{word}" at [1:1]', "invalidQuery")


def _columns(tree: exp.Expr) -> frozenset[str] | None:
    from sqlglot import exp

    # The star of count(*) reads no column.
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        return None
    return frozenset(column.name.lower() for column in tree.find_all(exp.Column, exp.Identifier))


def _resolve(tree: exp.Expr, project: str, default: Mapping[str, Any]) -> tuple[TableId, ...]:
    """Replaces the name of each table by its name in DuckDB."""
    from sqlglot import exp

    known = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    found: list[TableId] = []
    if isinstance(tree, (exp.Create, exp.Drop)) and tree.args.get("kind") == "SCHEMA":
        return ()
    for table in list(tree.find_all(exp.Table)):
        if not isinstance(table.this, exp.Identifier) or (not table.db and table.name.lower() in known):
            continue
        if not table.db and not default.get("datasetId"):
            message = f'Table "{table.name}" must be qualified with a dataset (e.g. dataset.table).'
            raise RestError(400, message, "invalid")
        if table.name.endswith("*") or "INFORMATION_SCHEMA" in (table.db, table.name.split(".")[0]):
            raise RestError(400, f"The sandbox does not emulate the table {table.name!r}.", "invalidQuery")
        owner = table.catalog or (project if table.db else default.get("projectId") or project)
        name = TableId(project=owner, dataset=table.db or str(default["datasetId"]), table=table.name)
        found.append(name)
        table.set("catalog", None)
        table.set("db", exp.to_identifier(name.schema, quoted=True))
        table.set("this", exp.to_identifier(name.table, quoted=True))
    return tuple(dict.fromkeys(found))


def _bind(tree: exp.Expr, parameters: Sequence[Mapping[str, Any]]) -> None:
    """Replaces query parameters in the tree by their values."""
    from sqlglot import exp

    named = {one["name"].lower(): one for one in parameters if one.get("name")}
    positional = [one for one in parameters if not one.get("name")]
    for node in list(tree.find_all(exp.Parameter)):
        parameter = named.get(node.name.lower())
        if parameter is None:
            raise RestError(400, f"Query parameter '{node.name}' not found", "invalidQuery")
        node.replace(_literal(parameter))
    for index, mark in enumerate(sorted(tree.find_all(exp.Placeholder), key=_position)):
        if index >= len(positional):
            raise RestError(400, "Query parameter number is out of range", "invalidQuery")
        mark.replace(_literal(positional[index]))


def _position(node: exp.Expr) -> int:
    return int(node.meta.get("start", 0))


def _literal(parameter: Mapping[str, Any]) -> exp.Expr:
    from sqlglot import parse_one

    kind = parameter["parameterType"]
    text = f"CAST({_value_sql(parameter['parameterValue'], kind)} AS {_parameter_type(kind)})"
    return parse_one(text, read="duckdb")


def _parameter_type(kind: Mapping[str, Any]) -> str:
    if kind["type"] == "ARRAY":
        return f"{_parameter_type(kind['arrayType'])}[]"
    if kind["type"] == "STRUCT":
        inner = ", ".join(f"{quoted(one['name'])} {_parameter_type(one['type'])}" for one in kind["structTypes"])
        return f"STRUCT({inner})"
    return duckdb_type({"type": kind["type"]})


def _value_sql(value: Mapping[str, Any], kind: Mapping[str, Any]) -> str:
    if kind["type"] == "ARRAY":
        return f"[{', '.join(_value_sql(one, kind['arrayType']) for one in value.get('arrayValues') or ())}]"
    if kind["type"] == "STRUCT":
        values = value["structValues"]
        pairs = (
            f"{quoted(one['name'])}: {_value_sql(values[one['name']], one['type'])}" for one in kind["structTypes"]
        )
        return f"{{{', '.join(pairs)}}}"
    text = value.get("value")
    if text is None:
        return "NULL"
    literal = "'" + str(text).replace("'", "''") + "'"
    return f"from_base64({literal})" if kind["type"] == "BYTES" else literal


def _rewrite(tree: exp.Expr) -> None:
    """Rewrites differences of the two dialects that sqlglot does not translate."""
    from sqlglot import exp

    for unnest in list(tree.find_all(exp.Unnest)):
        _spread(unnest)
    for safe in list(tree.find_all(exp.SafeFunc)):
        if isinstance(safe.this, exp.ParseJSON):
            safe.replace(exp.TryCast(this=safe.this.this.copy(), to=exp.DataType.build("json")))
    for convert in list(tree.find_all(exp.SafeConvertBytesToString)):
        convert.replace(exp.func("TRY", exp.func("DECODE", convert.this.copy(), dialect="duckdb")))
    for insert in tree.find_all(exp.Insert):
        if insert.this is not None and insert.this.name.upper() == "ROW":
            insert.replace(exp.Var(this="INSERT BY NAME"))
    for update in [tree] if isinstance(tree, exp.Update) else list(tree.find_all(exp.Update)):
        for assignment in update.expressions:
            if isinstance(assignment, exp.EQ) and isinstance(assignment.this, exp.Column):
                # DuckDB accepts no table name in front of an assigned column.
                assignment.set("this", exp.column(assignment.this.this.copy()))


def _spread(unnest: exp.Expr) -> None:
    """Makes UNNEST of an array of structs return one column per field, as BigQuery's does."""
    from sqlglot import exp, parse_one

    (array, *more) = unnest.expressions or [None]
    inner = array.this if isinstance(array, exp.Cast) else array
    if more or not isinstance(inner, exp.Array) or not inner.expressions:
        return
    first = inner.expressions[0]
    if not isinstance(first, exp.Struct):
        return
    names = [
        one.alias_or_name if not isinstance(one, exp.PropertyEQ) else one.this.name for one in first.expressions
    ]
    for item in inner.expressions[1:]:
        values = [one.expression if isinstance(one, exp.PropertyEQ) else one for one in item.expressions]
        pairs = [
            exp.PropertyEQ(this=exp.to_identifier(n), expression=v) for n, v in zip(names, values, strict=True)
        ]
        item.replace(exp.Struct(expressions=pairs))
    alias = unnest.args.get("alias")
    name = (
        alias.this if alias is not None and alias.this else (alias.columns[0] if alias and alias.columns else None)
    )
    query = parse_one(f"SELECT UNNEST({sql_of(array)}, max_depth => 2)", read="duckdb")
    unnest.replace(exp.Subquery(this=query, alias=exp.TableAlias(this=name.copy()) if name else None))
