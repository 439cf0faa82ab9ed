"""Vast.ai: a marketplace of hosts.  Billed per second; a stopped instance still pays for its disk.

Facts that shape it: what is gone or somebody else's is null with status 200, or 404 with the words
`no_such_instance`, and a wrong key is 404 too; DELETE may be acknowledged minutes before the bill
ends; each container holds a key that can end it and nothing else, so that the fuse needs no other;
Vast's scheduler can send a DELETE at a full hour.  The official client is not used: it repeats the
request that buys.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from decimal import Decimal

import httpx

from gpurun.clock import Clock
from gpurun.errors import AccountRefused, ProviderError
from gpurun.model import Created, Instance, InstanceState, Need, Offer, Order
from gpurun.provider import Login, ProviderTimer, Remark, Traits
from provisioners.vast import account, jobs, listing, market, onstart, renting, rows
from provisioners.vast.wire import V0, Wire

LOGIN_FOR_S = 30.0


def nothing_avoided() -> Collection[str]:
    return ()


class Vast:
    """One account, as `http` reaches it (gpurun/web.py).

    `avoided` tells the machines that are not to be rented for now; `public_keys` are let in on each
    new box, beside those of the account.  None: nobody here could log in, and nothing is rented.
    """

    name = "vast"
    traits = Traits(
        settle_window_s=120,
        proof_gap_s=20,
        tail_s=360,
        fuse_ends_bill=True,
        if_lost="the fuse on the box ends it 2 minutes after its timer, with the container's own "
        "key; failing that Vast's scheduler does, at the first full hour 5 minutes after it.",
        dated=True,
    )
    root = onstart.ROOT

    def __init__(
        self,
        http: httpx.Client,
        clock: Clock,
        avoided: Callable[[], Collection[str]] = nothing_avoided,
        public_keys: Sequence[str] | None = (),
    ) -> None:
        self._wire = Wire(http)
        self._clock = clock
        self._avoided = avoided
        self._public_keys = None if public_keys is None else tuple(public_keys)
        self._logins: dict[str, tuple[float, Login]] = {}

    def account(self) -> str:
        return str(account.user(self._wire)["id"])

    def offers(self, need: Need) -> list[Offer]:
        return market.offers(self.name, self._wire, need, self._avoided())

    def instances(self) -> list[Instance]:
        return listing.instances(self.name, self._wire, self._clock.now())

    def instance(self, instance_id: str) -> Instance | None:
        row = listing.row_of(self._wire, instance_id)
        return None if row is None else rows.instance(self.name, row, self._clock.now())

    def create(self, order: Order) -> Created:
        if self._public_keys is None and not order.ssh_public_key:
            raise AccountRefused(
                "nothing was made: there is no SSH key here, in ~/.ssh or an agent, so nobody "
                "could log in: `ssh-keygen -t ed25519` makes one"
            )
        keys = (order.ssh_public_key, *(self._public_keys or ()))
        return renting.rent(self.name, self._wire, order, keys, self._clock.now())

    def destroy(self, instance_id: str) -> None:
        if not instance_id.isdecimal():
            return
        what = f"the end of instance {instance_id}"
        answer = self._wire.ask(what, "DELETE", f"{V0}/instances/{instance_id}/", body={})
        if not answer.no_such_instance:
            self._wire.accepted(what, answer)

    def destroy_many(self, instance_ids: Sequence[str]) -> None:
        """What Vast says of an id that is gone is documented nowhere: any refusal is one of all."""
        what = f"the end of {len(instance_ids)} instances"
        body = {"instance_ids": [int(each) for each in instance_ids]}
        answer = self._wire.ask(what, "DELETE", f"{V0}/instances/", body=body)
        if answer.fields.get("success") is not True:
            raise ProviderError(f"vast refused {what} (status {answer.status}): {answer.said}")

    # Over SSH.

    def login(self, instance_id: str) -> Login:
        """Remembered for half a minute: a fuse's paths are asked for in every other command."""
        known = self._logins.get(instance_id)
        if known and self._clock.boot_s() - known[0] < LOGIN_FOR_S:
            return known[1]
        row = listing.row_of(self._wire, instance_id)
        where = rows.addresses(row) if row else ()
        if row is None or not where or rows.state_of(row) is not InstanceState.RUNNING:
            raise ProviderError(f"vast does not say yet where instance {instance_id} answers")
        login = Login(f"vast-{instance_id}", "root", where, onstart.ROOT)
        self._logins[instance_id] = (self._clock.boot_s(), login)
        return login

    def self_destroy(self, instance_id: str) -> str:
        return onstart.self_end(self._wire.url, instance_id)

    def rehearsal(self, instance_id: str) -> str:
        return onstart.self_end(self._wire.url, instance_id, "GET")

    # Vast's own scheduler.

    def timer_fires_at(self, ends_at: datetime) -> datetime:
        return jobs.fires_at(ends_at)

    def provider_timer(self, instance_id: str) -> ProviderTimer | None:
        return jobs.held(self._wire, instance_id)

    def provider_timers(self) -> dict[str, ProviderTimer]:
        return jobs.all_held(self._wire)

    def arm_provider_timer(self, instance_id: str, ends_at: datetime) -> ProviderTimer | None:
        return jobs.arm(self._wire, instance_id, ends_at)

    def disarm_provider_timer(self, instance_id: str) -> None:
        jobs.disarm(self._wire, instance_id)

    # The account.

    def credit_usd(self) -> Decimal | None:
        return account.credit_usd(self._wire)

    def remarks(self) -> list[Remark]:
        return account.remarks(self._wire, self._public_keys or (), self._clock.now())

    def ssh_keys(self) -> list[str]:
        return account.ssh_keys(self._wire)

    def register_ssh_key(self, name: str, public_key: str) -> None:
        """Vast keeps no names; the key's own comment is its name."""
        account.register_ssh_key(self._wire, public_key)

    def billed_usd(self, instance_id: str) -> Decimal | None:
        return account.billed_usd(self._wire, instance_id, self._clock.now())
