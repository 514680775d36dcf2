"""A page of results whose tables are those of the experiments' CSV files, so that it cannot fall behind them.

A table stands between two comments, which a reader of the page does not see:

    <!-- table cpu/C1/table.csv -->
    | ... |
    <!-- end -->
"""

import csv
import io
import pathlib
import re

from metamask_jax.errors import DataError
from metamask_jax.experiments.base import Table
from metamask_jax.experiments.output import markdown

_BLOCK = re.compile(r"<!-- table (?P<path>[\w./-]+) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)


def refreshed(page: str, results: pathlib.Path) -> str:
    """The text of a page with every table as its CSV file has it now.

    Args:
      page: Markdown with comments that name the tables.
      results: the folder that the names are relative to.

    Raises:
      DataError: a comment names no table, or is not closed.
    """
    if len(_BLOCK.findall(page)) != page.count("<!-- table "):
        raise DataError("a table of the page is not closed; expected `<!-- table PATH -->`, the table, `<!-- end -->`")

    def block(found: re.Match[str]) -> str:
        path = results / found["path"]
        if not path.is_file():
            raise DataError(f"{found['path']} is not in {results}; expected a CSV file of an experiment there")
        header, *rows = csv.reader(io.StringIO(path.read_text()))
        return f"<!-- table {found['path']} -->\n{markdown(Table('', header, rows))}\n<!-- end -->"

    return _BLOCK.sub(block, page)


def tables_in(page: str) -> list[str]:
    """The paths of all tables of a page, in their order."""
    return [found["path"] for found in _BLOCK.finditer(page)]
