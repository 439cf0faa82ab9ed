"""A user of the emulated Vast for its own tests: plain HTTP, nothing repeated, nothing hidden."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx

from tests.clouds.serve import Cloud
from tests.clouds.world import BOOT_S

H100S = {
    "gpu_name": {"eq": "H100 SXM"},
    "num_gpus": {"eq": 4},
    "reliability": {"gt": "0.98"},
    "direct_port_count": {"gte": 1},
}
# The machine that is rented when none is named, with 200 GB: per hour.
GPU_USD, DISK_USD, STOPPED_USD = Decimal("6.02"), Decimal(1) / 24, Decimal(1) / 18
RUNNING_USD = GPU_USD + DISK_USD
START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)


class Renter:
    """`http` has the account's key and knows the cloud's address."""

    def __init__(self, cloud: Cloud, api_key: str | None = None) -> None:
        self.cloud = cloud
        headers = {"Authorization": f"Bearer {api_key or cloud.api_key}"}
        # Plain HTTP: loading certificates would cost more than all requests of a test.
        self.http = httpx.Client(
            base_url=f"{cloud.url}/api/v0", headers=headers, timeout=10, verify=False
        )

    def search(self, **more: Any) -> list[dict[str, Any]]:
        """4xH100 with 200 GB, the cheapest first, unless asked for otherwise."""
        query = {**H100S, "order": [["dph_total", "asc"]], "allocated_storage": 200, **more}
        found: list[dict[str, Any]] = self.http.post("/bundles/", json=query).json()["offers"]
        return found

    def create(self, ask_id: int | None = None, **more: Any) -> httpx.Response:
        """Rent an offer, the first one found if none is named."""
        body = {"image": "pytorch/pytorch", "disk": 200, "runtype": "ssh_direc ssh_proxy", **more}
        ask_id = ask_id or self.search(type="bid" if "price" in more else "on-demand")[0]["id"]
        return self.http.put(f"/asks/{ask_id}/", json=body)

    def rent(self, **more: Any) -> int:
        """The id of an instance that runs."""
        number: int = self.create(**more).json()["new_contract"]
        self.cloud.advance(BOOT_S)
        return number

    def show(self, number: int) -> Any:
        """The row, or None."""
        return self.http.get(f"/instances/{number}/").json()["instances"]

    def page(self, **query: str) -> Mapping[str, Any]:
        answer = self.http.get(f"{self.cloud.url}/api/v1/instances/", params=query)
        page: Mapping[str, Any] = answer.json()
        return page

    def listed(self) -> list[int]:
        return [row["id"] for row in self.page()["instances"]]

    def put(self, number: int, **body: Any) -> httpx.Response:
        return self.http.put(f"/instances/{number}/", json=body)

    def destroy(self, number: int) -> httpx.Response:
        return self.http.delete(f"/instances/{number}/")

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def hour(self, number: int, start: float, **more: Any) -> httpx.Response:
        """Schedule a DELETE of the instance, hourly from `start` on."""
        body = {
            "start_time": start,
            "end_time": start + 48 * 3600,
            "api_endpoint": f"/api/v0/instances/{number}/",
            "request_method": "DELETE",
            "request_body": {},
            "day_of_the_week": None,
            "hour_of_the_day": None,
            "frequency": "HOURLY",
            "instance_id": number,
            **more,
        }
        return self.post("/commands/schedule_job/", **body)


def spent(vast: Cloud, seconds: float) -> Decimal:
    """What everything costs while this time passes, to a nanodollar."""
    before = vast.meter().billed_usd
    vast.advance(seconds)
    return round(vast.meter().billed_usd - before, 9)


def per_hour(usd: Decimal) -> Decimal:
    """As `spent` rounds it."""
    return round(usd, 9)
