"""Everything that an account holds: every page of it, or an error.

Facts that shape it: the list of v0 is 410, that of v1 has 25 rows to a page and a token to the
next; a list may be empty, short, or repeat itself while boxes bill, so what does not add up is no
answer.  One instance by id is v0's: null is Vast's word that there is none.
"""

import json
from datetime import datetime
from typing import Any

from gpurun.errors import ProviderError
from gpurun.model import Instance
from provisioners.vast.rows import instance
from provisioners.vast.wire import V0, V1, Wire

PAGE, PAGES_MOST = 25, 200
_BY_ID = json.dumps([{"col": "id", "dir": "asc"}])


def instances(name: str, wire: Wire, now: datetime | None = None) -> list[Instance]:
    rows: list[Instance] = []
    totals: set[Any] = set()
    token: str | None = None
    for _ in range(PAGES_MOST):
        query = {"limit": str(PAGE), "order_by": _BY_ID} | ({"after_token": token} if token else {})
        page = wire.get("the list of instances", f"{V1}/instances/", **query).fields
        found, token, total = (page.get(k) for k in ("instances", "next_token", "total_instances"))
        if not isinstance(found, list) or not isinstance(total, int):
            raise ProviderError("vast: the list of instances has no rows, or no total")
        rows += [instance(name, row, now) for row in found]
        totals.add(total)
        if not token:
            break
    else:
        raise ProviderError(f"vast: the list of instances does not end after {len(rows)} rows")
    if totals != {len(rows)}:
        said = " then ".join(str(total) for total in sorted(totals))
        raise ProviderError(f"vast lists {len(rows)} instances and says that there are {said}")
    if len({row.id for row in rows}) != len(rows):
        raise ProviderError("vast lists an instance twice: the list is not complete")
    return rows


def row_of(wire: Wire, instance_id: str) -> dict[str, Any] | None:
    """The raw row; None is the provider's word that there is none."""
    if not instance_id.isdecimal():
        return None
    what = f"instance {instance_id}"
    answer = wire.ask(what, "GET", f"{V0}/instances/{instance_id}/", query={"owner": "me"})
    if answer.status == 404 and answer.no_such_instance:
        return None
    fields = wire.accepted(what, answer).fields
    row = fields.get("instances", fields)
    if row is None:
        return None
    if not isinstance(row, dict) or str(row.get("id")) != instance_id:
        raise ProviderError(f"vast answered a question about instance {instance_id} with another")
    return row
