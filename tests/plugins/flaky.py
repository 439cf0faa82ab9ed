"""A provider of another package: this machine again, with faults that a test can switch on.

Faults are the keys of `faults.json` in the state directory; each names what goes wrong.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.clock import Clock
from gpurun.errors import CreateUnclear, NoCapacity, ProviderUnreachable
from gpurun.model import Created, Instance, Need, Offer, Order
from gpurun.provider import Traits
from gpurun.settings import Settings
from gpurun.shell import Shell
from provisioners.local import Local


class Flaky:
    """Local, with answers lost, lies told and lists that fail."""

    name = "flaky"
    traits = Traits(settle_window_s=1, proof_gap_s=1, tail_s=0, fuse_ends_bill=True)

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._local = Local(settings.state_dir, settings.local_usd_per_hour, clock)
        self._home = settings.state_dir

    def account(self) -> str:
        return "another" if self._fault("another_account") else self._local.account()

    def offers(self, need: Need) -> Iterable[Offer]:
        return [replace(offer, provider=self.name) for offer in self._local.offers(need)]

    def instances(self) -> list[Instance]:
        if self._fault("list_fails"):
            raise ProviderUnreachable("flaky: no answer to the list")
        return [] if self._fault("list_is_empty") else self._local.instances()

    def instance(self, instance_id: str) -> Instance | None:
        return self._local.instance(instance_id)

    def create(self, order: Order) -> Created:
        with (self._home / "creates").open("a") as file:
            file.write(order.label + "\n")
        while self._fault("create_waits"):
            time.sleep(0.05)
        if self._fault("refuses"):
            raise NoCapacity("flaky: the offer is gone")
        if self._fault("request_is_lost"):
            raise CreateUnclear("flaky: no answer to create")
        created = self._local.create(order)
        if self._fault("answer_is_lost"):
            raise CreateUnclear("flaky: no answer to create")
        return created

    def destroy(self, instance_id: str) -> None:
        if not self._fault("destroy_lies"):
            self._local.destroy(instance_id)

    def shell(self, instance_id: str) -> Shell:
        return self._local.shell(instance_id)

    def fuse_shell(self, instance_id: str) -> Shell:
        return self._local.fuse_shell(instance_id)

    def fuse_home(self, instance_id: str) -> str:
        return self._local.fuse_home(instance_id)

    def inside(self, instance_id: str, text: str) -> str:
        return self._local.inside(instance_id, text)

    def self_destroy(self, instance_id: str) -> str:
        return self._local.self_destroy(instance_id)

    def _fault(self, name: str) -> Any:
        path = Path(self._home) / "faults.json"
        return path.exists() and json.loads(path.read_text()).get(name)
