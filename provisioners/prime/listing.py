"""Lists of Prime Intellect, page by page: complete, or an error.

Facts that shape it: pods, disks and keys come by `offset` and `limit` with `total_count`; the
market by `page` from 1 with `totalCount`, and changes meanwhile.
"""

import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpurun.errors import ProviderError

Row = Mapping[str, Any]
LIMIT = 100
MOST_PAGES = 50


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
    """The market as it is now; rows may come and go between two pages.

    The first page says how many there are; the others are asked for at once.
    """
    rows, total = _items(page({**query, "page": 1, "page_size": LIMIT}))
    if rows and len(rows) < total:
        last = min(MOST_PAGES, math.ceil(total / len(rows)))
        queries = [{**query, "page": n, "page_size": LIMIT} for n in range(2, last + 1)]
        for answer in _at_once(page, queries):
            rows += _items(answer)[0]
    return rows


def _items(answer: Row) -> tuple[list[Row], int]:
    items, total = answer.get("items"), answer.get("totalCount")
    if not isinstance(items, list) or type(total) is not int:
        raise ProviderError("prime gives no sensible answer to a search of the market")
    return [item for item in items if isinstance(item, Mapping)], total


def _at_once(
    page: Callable[[Mapping[str, int]], Row], queries: Sequence[Mapping[str, int]]
) -> list[Row]:
    """Each page in a thread that keeps no process from ending; the first error is raised."""
    came: queue.SimpleQueue[tuple[int, Row | ProviderError]] = queue.SimpleQueue()

    def work(number: int, asked: Mapping[str, int]) -> None:
        try:
            came.put((number, page(asked)))
        except ProviderError as error:
            came.put((number, error))
        except Exception as error:  # whoever waits must not wait for ever
            came.put((number, ProviderError(f"a page of prime's market broke: {error!r}")))

    for number, asked in enumerate(queries):
        threading.Thread(target=work, args=(number, asked), daemon=True, name="page").start()
    found = dict(came.get() for _ in queries)
    rows = []
    for number in range(len(queries)):
        answer = found[number]
        if isinstance(answer, ProviderError):
            raise answer
        rows.append(answer)
    return rows


def _incomplete(path: str, why: str) -> ProviderError:
    return ProviderError(f"prime's list of {path.strip('/')} is not complete: {why}")
