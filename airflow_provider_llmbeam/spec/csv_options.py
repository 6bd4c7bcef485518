"""How CSV files are written."""

from __future__ import annotations

import codecs
import csv
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel


class CsvOptions(SpecModel):
    r"""How CSV files are written; the options are those of `pandas.read_csv`.

    Attributes:
        delimiter: Character between two cells, e.g. `;` or a tab.
        quotechar: Character around a cell with delimiters or line breaks. `None`: cells are never quoted.
        doublequote: Whether a `quotechar` in a quoted cell is doubled.
        escapechar: Character before a delimiter or a `quotechar` that is a part of a cell.
        encoding: Encoding of the files by its name in Python, e.g. `latin-1` or `utf-16`. A row with bytes that
            are none of its characters fails.
        header: 0 if the first line has the names of the columns; `None` if there is no such line, which needs
            `names`.
        names: Names of the columns, also in place of those of the header.
        skiprows: Number of lines to skip at the beginning of each file, before the header.
    """

    delimiter: str = ","
    quotechar: str | None = '"'
    doublequote: bool = True
    escapechar: str | None = None
    encoding: str = "utf-8"
    header: Literal[0] | None = 0
    names: tuple[str, ...] = ()
    skiprows: Annotated[int, Field(ge=0)] = 0

    @field_validator("delimiter", "quotechar", "escapechar")
    @classmethod
    def _is_one_character(cls, sign: str | None) -> str | None:
        if sign is not None and (len(sign) != 1 or sign in "\r\n"):
            raise ValueError(r'must be one character, e.g. ";", or "\t" for a tab')
        return sign

    @field_validator("encoding")
    @classmethod
    def _is_encoding(cls, name: str) -> str:
        try:
            "a".encode(name)  # refuses codecs of bytes, such as base64
            found = codecs.lookup(name).name
        except (LookupError, ValueError):
            found = ""
        if not found or found in ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"):
            raise ValueError("must be an encoding of Python, e.g. 'utf-8', 'latin-1', 'cp1252' or 'utf-16'")
        return name

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        if self.header is None and not self.names:
            raise ValueError("needs `names`, the names of the columns, where `header` is None")
        if len(set(self.names)) < len(self.names):
            raise ValueError("must name each column once in `names`")
        if self.delimiter == self.quotechar:
            raise ValueError("must have different characters for `delimiter` and `quotechar`")
        return self

    @property
    def codec(self) -> str:
        """The encoding, which skips the byte order mark of UTF-8."""
        return "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding

    @property
    def can_be_cut(self) -> bool:
        """Whether a file can be read from the middle, as a line break is one byte."""
        return len("\n".encode(self.encoding)) == 1

    @property
    def dialect(self) -> dict[str, Any]:
        """Arguments of the module `csv`."""
        quoting = {"quoting": csv.QUOTE_NONE} if self.quotechar is None else {"quotechar": self.quotechar}
        return {
            "delimiter": self.delimiter,
            "doublequote": self.doublequote,
            "escapechar": self.escapechar,
            **quoting,
        }
