"""A user of the emulated Prime Intellect for its own tests: plain HTTP, nothing repeated."""

from datetime import UTC, datetime
from typing import Any

import httpx

from tests.clouds.serve import Cloud
from tests.clouds.world import BOOT_S

START = datetime(2026, 11, 21, 12, 20, tzinfo=UTC)
ECHOED = {
    "cloudId": "cloudId",
    "gpuType": "gpuType",
    "socket": "socket",
    "gpuCount": "gpuCount",
    "dataCenterId": "dataCenter",
    "country": "country",
    "security": "security",
}


class Renter:
    """`http` has the account's key and knows the cloud's address."""

    def __init__(self, cloud: Cloud, api_key: str | None = None) -> None:
        self.cloud = cloud
        headers = {"Authorization": f"Bearer {api_key or cloud.api_key}"}
        # Plain HTTP: loading certificates would cost more than all requests of a test.
        self.http = httpx.Client(
            base_url=f"{cloud.url}/api/v1", headers=headers, timeout=10, verify=False
        )

    def offers(self, **query: Any) -> list[dict[str, Any]]:
        """4xH100, in the order of the API, unless asked for otherwise."""
        query = {"gpu_type": "H100_80GB", "gpu_count": 4, **query}
        answer = self.http.get("/availability/gpus", params=query)
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    def offer(self, provider: str = "datacrunch") -> dict[str, Any]:
        """The on-demand 4xH100 of one upstream."""
        return next(o for o in self.offers() if o["provider"] == provider and not o["isSpot"])

    def order(self, provider: str = "datacrunch", **more: Any) -> dict[str, Any]:
        """An order that echoes an offer; None takes a field out."""
        offer = self.offer(provider)
        pod = {name: offer[column] for name, column in ECHOED.items()}
        pod |= {"name": "gpurun-a", "diskSize": 200, "maxPrice": 15.0, **more}
        pod = {name: value for name, value in pod.items() if value is not None}
        return {"pod": pod, "provider": {"type": provider}}

    def create(self, provider: str = "datacrunch", **more: Any) -> httpx.Response:
        return self.http.post("/pods/", json=self.order(provider, **more))

    def rent(self, provider: str = "datacrunch", **more: Any) -> str:
        """The id of a pod that is ACTIVE and installed."""
        number: str = self.create(provider, **more).json()["id"]
        self.cloud.advance(BOOT_S + 1)
        return number

    def show(self, number: str) -> Any:
        return self.http.get(f"/pods/{number}").json()

    def listed(self) -> list[str]:
        return [row["id"] for row in self.http.get("/pods/").json()["data"]]

    def delete(self, number: str) -> httpx.Response:
        return self.http.delete(f"/pods/{number}")
