"""The life of instances at the emulated Vast.

Facts that shape it: a parked or stopped instance bills storage; an outbid one has `stopped` in all
three states and resumes by itself; a refused start is queued and can bill later; without credit
everything stops.
"""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from tests.clouds.boxes import Boxes, Spec, Start
from tests.clouds.clock import Clock
from tests.clouds.faults import Setting
from tests.clouds.vast.account import (
    Account,
    Key,
    constrained,
    deleted_key,
    lacks,
    login_required,
    wrong_key,
)
from tests.clouds.vast.instance import CLOSED_PORT, SSH_PORT, Instance
from tests.clouds.vast.machines import DAY_S, Machine
from tests.clouds.vast.schedule import Job
from tests.clouds.vast.search import Ask
from tests.clouds.wire import Call
from tests.clouds.world import BOOT_S, Rental, World

OCI_ERROR = (
    "Error response from daemon: failed to create task for container: failed to create shim task: "
    "OCI runtime create failed: could not apply required modification to OCI specification: "
    "unresolvable CDI devices"
)
FIRST_ASK, FIRST_INSTANCE, FIRST_FOREIGN = 17_040_001, 28_114_001, 28_900_001


class VastWorld(World):
    provider = "vast"
    gone_state = "destroyed"

    def __init__(
        self, clock: Clock, boxes: Boxes, credit_usd: Decimal, machines: tuple[Machine, ...]
    ) -> None:
        super().__init__(clock, boxes, credit_usd)
        self.account = Account()
        self.api_key = self.account.api_key
        self.asks: dict[int, Ask] = {}
        self.jobs: dict[int, Job] = {}
        self.last_asked: dict[tuple[str, str], float] = {}
        self.searches = 0
        self._next_ask, self._next_instance = FIRST_ASK, FIRST_INSTANCE
        self._next_foreign = FIRST_FOREIGN
        for machine in machines:
            self.put_on_offer(machine)

    # Who asks.

    def authorize(self, call: Call, scope: str, instance_id: object = None) -> Key:
        """The key that was sent, if it may do this; a container's key only with its own id."""
        if call.key is None:
            raise login_required()
        if call.key == self.api_key:
            if self.knobs.get("key_revoked"):
                raise deleted_key()
            scopes = self.knobs.get("key_scopes")
            if scopes and scope not in scopes["scopes"].replace(" ", "").split(","):
                raise lacks(scope)
            return Key(1, frozenset(), other_account=bool(self.knobs.get("key_of_other_account")))
        own = self.account.containers.get(call.key)
        if own is None or self.find(own) is None:
            raise wrong_key()
        if self.knobs.get("container_key_dead"):
            raise deleted_key()
        if instance_id is None:
            raise lacks(scope)
        if str(instance_id) != own:
            raise constrained()
        return Key(int(own), frozenset(), instance_id=own)

    # Offers.

    def put_on_offer(self, machine: Machine) -> None:
        """Under an id of its own: an ask is used up by the instance that it makes."""
        self.asks[self._next_ask] = Ask(self._next_ask, machine)
        self._next_ask += 7

    def price_factor(self) -> Decimal:
        dearer = self.knobs.get("offers_up")
        return Decimal(str(dearer["factor"])) if dearer else Decimal(1)

    # Life.

    def new_instance_id(self) -> str:
        self._next_instance += 13
        return str(self._next_instance)

    def spec(self, machine: Machine, disk_gb: Decimal) -> Spec:
        """The machine behind an offer; not quite, when a knob says so."""
        spec = Spec(machine.chip.model, machine.num_gpus, int(disk_gb), linked=machine.nvlink)
        spec = replace(spec, auto_tmux=bool(self.knobs.get("auto_tmux")))
        wrong = self.knobs.get("wrong_gpu")
        if wrong and wrong["where"] in ("box", "both"):
            count = wrong["count"] if wrong["count"] is not None else spec.gpu_count
            gpu = wrong["gpu"] or spec.gpu
            if wrong["count"] is None and wrong["gpu"] is None:
                count = max(0, count - 1)
            spec = replace(spec, gpu=gpu, gpu_count=count)
        return spec

    def start(self, instance: Instance) -> None:
        """Bill its storage, make its machine, and let it boot."""
        self.change(instance, None)
        self.make_machine(instance)
        self._plan_boot(instance)
        self.timeline.at(instance.ends_at, lambda: self._expire(instance))

    def change(
        self,
        instance: Instance,
        status: str | None,
        intended: str = "",
        allocated: str = "",
        message: str | None = None,
    ) -> None:
        """Another state, and what it costs."""
        instance.status = status
        instance.intended = intended or instance.intended
        instance.allocated = allocated or instance.allocated
        instance.message = message
        self.rebill(instance)

    def rebill(self, instance: Instance) -> None:
        instance.state = instance.shown or "provisioning"
        self.bill(instance, instance.rates())

    def stop(self, instance: Instance, status: str) -> None:
        """Its processes end, its disk stays and bills."""
        self.read_traffic(instance)
        instance.forget_plans()
        if instance.box is not None:
            instance.box.halt()
        instance.addresses = {}
        self.change(instance, status, intended="stopped", allocated="stopped")

    def resume(self, instance: Instance) -> None:
        """Start what was stopped."""
        if not instance.alive or not instance.stopped or instance.expired:
            return
        instance.outbid = False
        self.change(instance, "loading", intended="running", allocated="running")
        if instance.machine is None:
            self.make_machine(instance)
            instance.plans.append(self.timeline.after(BOOT_S, lambda: self.run(instance)))
        else:
            assert instance.box is not None
            instance.box.boot()
            self.run(instance)

    def recycle(self, instance: Instance) -> None:
        """A new container in the old one's place: its disk is wiped."""
        self.read_traffic(instance)
        self.drop_machine(instance)
        instance.addresses = {}
        instance.traffic_seen = (0, 0)
        self.start(instance)

    def destroy(self, instance: Instance) -> None:
        self.end(instance)
        self.put_on_offer(instance.machine_offered)

    def _expire(self, instance: Instance) -> None:
        """Its host's offer ends: it stops for good, and is deleted two days later."""

        def delete() -> None:
            if instance.alive:
                self.destroy(instance)

        if instance.alive and not instance.expired:
            instance.expired = True
            self.stop(instance, "exited")
            self.timeline.after(2 * DAY_S, delete)

    def _plan_boot(self, instance: Instance) -> None:
        slow, stuck = self.knobs.get("boot_s"), self.knobs.get("stuck")
        boot_s = slow["seconds"] if slow else BOOT_S
        if not stuck or stuck["status"] not in ("null", "provisioning"):
            instance.plans.append(
                self.timeline.after(boot_s / 3, lambda: self.change(instance, "loading"))
            )
        if not stuck:
            instance.plans.append(self.timeline.after(boot_s, lambda: self.run(instance)))

    def run(self, instance: Instance) -> None:
        if self.knobs.get("start_fails"):
            self.drop_machine(instance)
            self.change(instance, "created", allocated="stopped", message=OCI_ERROR)
            return
        box = instance.box
        assert box is not None
        refused = self.knobs.get("ssh_refused")
        path = refused["path"] if refused else ""
        if self.knobs.get("box_cut_off"):
            box.cut_off()
        if path == "both" or instance.runtype == "args":
            box.refuse_ssh()
        if path == "proxy":
            box.refuse_proxy()
        instance.addresses = _addresses(instance, closed=path == "direct")
        if self.knobs.get("ip_with_spaces"):
            instance.addresses["public_ipaddr"] = f" {box.host} \n"
        box.start(self._container(instance))
        instance.ran_since = self.now
        kind = "ssh" if "ssh" in instance.runtype else instance.runtype
        self.change(instance, "running", message=f"success, running {instance.image}/{kind}")
        self.came_to_run(instance)

    def _container(self, instance: Instance) -> Start:
        box = instance.box
        assert box is not None
        keys = self.keys_of(instance)
        environment = {
            **{name: value for name, value in instance.env.items() if not name.startswith("-")},
            "CONTAINER_ID": instance.id,
            "CONTAINER_API_KEY": instance.api_key,
            "VAST_CONTAINERLABEL": f"C.{instance.id}",
            "PUBLIC_IPADDR": box.host,
            "VAST_TCP_PORT_22": str(box.port),
            "GPU_COUNT": str(instance.spec.gpu_count),
            "SSH_PUBLIC_KEY": "\n".join(keys),
            "DATA_DIRECTORY": "/workspace/",
        }
        # An entrypoint of one's own runs no onstart.
        script = "" if instance.runtype == "args" else instance.onstart
        return Start(environment, script, keys)

    def keys_of(self, instance: Instance) -> list[str]:
        """Who may log in: the account's keys, and those attached to this instance."""
        account = [key["public_key"] for key in self.account.ssh_keys.values()]
        return [*account, *instance.attached.values()]

    # Money.

    def read_traffic(self, rental: Rental) -> None:
        assert isinstance(rental, Instance)
        if rental.machine is None or not rental.machine.done():
            return
        sent, received = rental.machine.result().traffic()
        seen_sent, seen_received = rental.traffic_seen
        rental.traffic_seen = (sent, received)
        self.charge_traffic(rental, sent - seen_sent, received - seen_received)

    def charge_traffic(self, instance: Instance, sent: int, received: int) -> None:
        """Bytes at the machine's price per GB (10**9)."""
        machine = instance.machine_offered
        instance.sent_bytes += sent
        instance.received_bytes += received
        instance.meter.charge("bwu", Decimal(sent) * machine.inet_up_cost / 10**9)
        instance.meter.charge("bwd", Decimal(received) * machine.inet_down_cost / 10**9)

    def out_of_credit(self) -> None:
        for instance in self.living():
            if not instance.foreign and not instance.stopped:
                self.stop(instance, "exited")

    # Knobs.

    def on_set(self, setting: Setting) -> None:
        if setting.fault.name == "credit_zero":
            self.out_of_credit()
        if setting.fault.name == "resume_after_s":
            for instance in self.living():
                self._plan_resume(instance)

    def on_clear(self, setting: Setting) -> None:
        for instance in self.living():
            if setting.fault.name == "status_word" and instance.word:
                instance.word = None
                self.rebill(instance)
            if setting.fault.name == "outbid" and instance.outbid:
                self.resume(instance)

    def _plan_resume(self, instance: Instance) -> None:
        setting = self.knobs.get("resume_after_s")
        if setting and instance.outbid:
            resume = self.timeline.after(setting["seconds"], lambda: self.resume(instance))
            instance.plans.append(resume)

    def _outbid(self, instance: Instance, setting: Setting) -> None:
        self.stop(instance, "exited")
        instance.outbid = True
        self._plan_resume(instance)

    def _disk_price_up(self, instance: Instance, setting: Setting) -> None:
        instance.disk_factor = Decimal(str(setting["factor"]))
        self.rebill(instance)

    def _traffic(self, instance: Instance, setting: Setting) -> None:
        up, down = (int(Decimal(str(setting[name])) * 10**9) for name in ("up_gb", "down_gb"))
        self.charge_traffic(instance, up, down)

    def running(self, instance: Instance) -> bool:
        return instance.status == "running"

    def foreign_id(self) -> str:
        self._next_foreign += 13
        return str(self._next_foreign)

    def set_running(self, instance: Instance) -> None:
        instance.addresses = {}
        self.change(instance, "running", "running", "running", "success, running")

    @property
    def happenings(self) -> dict[str, Callable[[Any, Setting], None]]:
        return super().happenings | {
            "disk_price_up": self._disk_price_up,
            "traffic": self._traffic,
            "recycle": lambda instance, _: self.recycle(instance),
            "outbid": self._outbid,
        }


def _addresses(instance: Instance, closed: bool) -> dict[str, object]:
    """How a running instance is reached: by the proxy always, directly if that was asked for."""
    box = instance.box
    assert box is not None
    if instance.runtype == "args":
        return {"public_ipaddr": box.host}
    proxied = {
        "ssh_host": "127.0.0.1",
        "ssh_port": box.proxy_port(),
        "public_ipaddr": box.host,
        "ports": {},
    }
    if not instance.direct:
        return proxied
    port = CLOSED_PORT if closed else box.port
    bindings = [{"HostIp": ip, "HostPort": str(port)} for ip in ("0.0.0.0", "::")]
    return {
        **proxied,
        "ports": {f"{SSH_PORT}/tcp": bindings},
        "direct_port_start": port,
        "direct_port_end": port,
    }
