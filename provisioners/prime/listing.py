"""Lists of Prime Intellect, page by page: complete, or an error.

Facts that shape it: pods, disks and keys come by `offset` and `limit` with `total_count`; the
market by `page` from 1 with `totalCount`, and changes meanwhile.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gpurun.errors import ProviderError

Row = Mapping[str, Any]
LIMIT = 100
MOST_PAGES = 100


def complete(page: Callable[[str, Mapping[str, int]], Row], path: str) -> list[Row]:
    """Every row of a list; ProviderError unless there are as many as every page says."""
    rows: list[Row] = []
    total: int | None = None
    for _ in range(MOST_PAGES):
        answer = page(path, {"offset": len(rows), "limit": LIMIT})
        data, said = answer.get("data"), answer.get("total_count")
        if not isinstance(data, list) or type(said) is not int or total not in (None, said):
            raise _incomplete(path, "its pages do not agree")
        rows += data
        total = said
        if len(rows) >= total or not data:
            break
    ids = {row.get("id") for row in rows if isinstance(row, Mapping)}
    if len(rows) != total or len(ids) != len(rows) or None in ids:
        raise _incomplete(path, f"{len(ids)} rows of {total}")
    return rows


def searched(page: Callable[[Mapping[str, int]], Row], query: Mapping[str, int]) -> list[Row]:
    """The market as it is now; rows may come and go between two pages."""
    rows: list[Row] = []
    for number in range(1, MOST_PAGES + 1):
        answer = page({**query, "page": number, "page_size": LIMIT})
        items, total = answer.get("items"), answer.get("totalCount")
        if not isinstance(items, list) or type(total) is not int:
            raise ProviderError("prime gives no sensible answer to a search of the market")
        rows += [item for item in items if isinstance(item, Mapping)]
        if not items or len(rows) >= total:
            break
    return rows


def _incomplete(path: str, why: str) -> ProviderError:
    return ProviderError(f"prime's list of {path.strip('/')} is not complete: {why}")
