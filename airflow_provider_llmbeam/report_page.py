"""The page of a report as an XCom, from which the plugin shows it."""

from __future__ import annotations

import base64
import gzip
from typing import Any

#: Key of the XCom. `plugin/static/inference.js` has it, too.
PAGE_KEY = "llmbeam_page"
#: Maximum size of the compressed page, in bytes: an XCom is a value in Airflow's metadata database. The page of a
#: run with failures, samples and labels has 39 kB, and 12 kB compressed.
MAX_BYTES = 48 * 1024


def encoded_page(html: str, uri: str) -> dict[str, Any]:
    """Returns the XCom of a page; one that is too large is named by its address alone.

    Args:
        html: The page.
        uri: Address of its file.
    """
    compressed = base64.b64encode(gzip.compress(html.encode(), mtime=0)).decode()
    return {"uri": uri, "html_gzip": compressed if len(compressed) <= MAX_BYTES else None}
