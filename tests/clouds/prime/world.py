"""The life of pods at the emulated Prime Intellect.

Facts that shape it: DELETE leads through DELETING to TERMINATED, then the pod is absent from the
list and present in history; no stop or start is offered; a wallet at zero deletes pods and disks; a
team's pods are paid from the team's wallet; nothing tells a box its own pod id.
"""

import uuid
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.clouds.boxes import Boxes, Spec, Start
from tests.clouds.clock import Clock
from tests.clouds.faults import Setting
from tests.clouds.prime.account import Account, refuse
from tests.clouds.prime.pod import Disk, Pod
from tests.clouds.prime.skus import MODELS, Sku
from tests.clouds.wire import Call
from tests.clouds.world import BOOT_S, Rental, World

DELETING_S = 0.3
INSTALL_S = 0.2
TEAM_CREDIT_USD = Decimal(250)


class PrimeWorld(World):
    provider = "prime"
    gone_state = "TERMINATED"

    def __init__(
        self, clock: Clock, boxes: Boxes, credit_usd: Decimal, skus: tuple[Sku, ...]
    ) -> None:
        super().__init__(clock, boxes, credit_usd)
        self.account = Account()
        self.api_key = self.account.api_key
        self.skus = skus

    # Who asks.

    def authorize(self, call: Call, area: str, write: bool = False) -> bool:
        """Whether the key is that of another account; refused if it may not do this at all."""
        if call.key is None:
            raise refuse(403, "Not authenticated")
        if call.key != self.api_key or self.knobs.get("key_revoked"):
            raise refuse(401, "Invalid API key")
        if not self.may(area, write):
            raise refuse(403, "Not authenticated")
        return bool(self.knobs.get("key_of_other_account"))

    def may(self, area: str, write: bool) -> bool:
        """Scopes are `area:read` and `area:write`, which holds reading."""
        setting = self.knobs.get("key_scopes")
        if setting is None:
            return True
        scopes = setting["scopes"].replace(" ", "").split(",")
        return f"{area}:write" in scopes or (not write and f"{area}:read" in scopes)

    # What there is.

    def pods(self) -> list[Pod]:
        return [rental for rental in self.rentals if isinstance(rental, Pod)]

    def disks(self) -> list[Disk]:
        return [each for each in self.rentals if isinstance(each, Disk) and each.alive]

    def paid_by_credit(self) -> list[Any]:
        return [rental for rental in self.rentals if rental.team_id is None]

    def price_factor(self) -> Decimal:
        dearer = self.knobs.get("offers_up")
        return Decimal(str(dearer["factor"])) if dearer else Decimal(1)

    # Life.

    def spec(self, sku: Sku, disk_gb: int) -> Spec:
        """The machine behind a row; not quite, when a knob says so."""
        gpu, count = MODELS[sku.gpu_type, sku.socket], sku.gpu_count
        wrong = self.knobs.get("wrong_gpu")
        if wrong and wrong["where"] in ("box", "both"):
            fewer = count if wrong["gpu"] else max(0, count - 1)
            gpu, count = wrong["gpu"] or gpu, fewer if wrong["count"] is None else wrong["count"]
        linked = sku.socket.startswith("SXM")
        vm = sku.provider != "runpod"  # runpod rents containers, the others machines
        return Spec(gpu, min(count, 8), disk_gb, linked=linked, user=sku.user, vm=vm)

    def start(self, pod: Pod) -> None:
        self.change(pod, "PROVISIONING")
        self.make_machine(pod)
        slow, stuck = self.knobs.get("boot_s"), self.knobs.get("stuck")
        boot_s = slow["seconds"] if slow else BOOT_S
        if not stuck or stuck["status"] == "PENDING":
            pod.plans.append(self.timeline.after(boot_s / 3, lambda: self.change(pod, "PENDING")))
        if not stuck:
            pod.plans.append(self.timeline.after(boot_s, lambda: self.run(pod)))

    def change(self, pod: Pod, status: str) -> None:
        pod.status = status
        self.rebill(pod)

    def rebill(self, rental: Any) -> None:
        if isinstance(rental, Disk):
            self.bill(rental, {"disk": rental.rate})
        else:
            rental.state = rental.shown
            self.bill(rental, rental.rates())

    def run(self, rental: Pod) -> None:
        if self.knobs.get("start_fails"):
            self.change(rental, "ERROR")
            return
        box = rental.box
        assert box is not None
        if self.knobs.get("box_cut_off"):
            box.cut_off()
        if self.knobs.get("ssh_refused"):
            box.refuse_ssh()
        box.start(Start(rental.env, "", self.account.keys_for(rental.ssh_key_id)))
        rental.address = (box.user, box.host, box.port)
        self.change(rental, "ACTIVE")
        rental.installation, rental.progress = "ACTIVE", 40
        rental.plans.append(self.timeline.after(INSTALL_S, lambda: self._install(rental)))
        self.came_to_run(rental)

    def _install(self, pod: Pod) -> None:
        if self.knobs.get("installation_error"):
            pod.installation, pod.failure = "ERROR", "Installation script exited with code 1"
        else:
            pod.installation, pod.progress = "FINISHED", 100

    def delete(self, pod: Pod) -> None:
        """Begin to end it; it bills until it is TERMINATED."""
        if pod.status == "DELETING":
            return
        pod.forget_plans()
        self.change(pod, "DELETING")
        slow = self.knobs.get("deleting_s")
        wait_s = slow["seconds"] if slow else DELETING_S
        pod.plans.append(self.timeline.after(wait_s, lambda: self.destroy(pod)))

    def destroy(self, rental: Any) -> None:
        """End it at once."""
        listed = self.knobs.get("terminated_listed_s")
        if isinstance(rental, Pod):
            rental.status, rental.word, rental.address = "TERMINATED", None, None
            if listed:
                until = self.now + timedelta(seconds=listed["seconds"])
                rental.deleted_listed_until = until
        self.end(rental)

    def running(self, rental: Pod) -> bool:
        return rental.status == "ACTIVE"

    def foreign_id(self) -> str:
        return uuid.uuid4().hex

    def set_running(self, rental: Pod) -> None:
        rental.address = None
        rental.installation = "FINISHED"
        self.change(rental, "ACTIVE")

    def read_traffic(self, rental: Rental) -> None:
        """Traffic is in the rate."""

    def out_of_credit(self) -> None:
        for rental in self.living():
            if rental.team_id is None and not rental.foreign:
                self.destroy(rental)

    # Knobs.

    def on_set(self, setting: Setting) -> None:
        if setting.fault.name == "credit_zero":
            self.out_of_credit()
        if setting.fault.name == "resume_after_s":
            for pod in self.pods():
                self._plan_resume(pod)

    def on_clear(self, setting: Setting) -> None:
        for pod in self.pods():
            if setting.fault.name == "status_word" and pod.word and pod.alive:
                pod.word = None
                self.rebill(pod)
            if setting.fault.name == "outbid" and pod.outbid:
                self._resume(pod)

    def is_instance(self, rental: Any) -> bool:
        return isinstance(rental, Pod)

    def _outbid(self, pod: Pod, setting: Setting) -> None:
        if setting["how"] != "STOPPED":
            self.destroy(pod)
            return
        pod.forget_plans()
        if pod.box is not None:
            pod.box.halt()
        pod.outbid, pod.address = True, None
        self.change(pod, "STOPPED")
        self._plan_resume(pod)

    def _plan_resume(self, pod: Pod) -> None:
        setting = self.knobs.get("resume_after_s")
        if setting and pod.outbid:
            pod.plans.append(self.timeline.after(setting["seconds"], lambda: self._resume(pod)))

    def _resume(self, pod: Pod) -> None:
        if pod.alive and pod.outbid and pod.box is not None:
            pod.outbid = False
            pod.box.boot()
            self.run(pod)

    @property
    def happenings(self) -> dict[str, Callable[[Any, Setting], None]]:
        return super().happenings | {"outbid": self._outbid}
