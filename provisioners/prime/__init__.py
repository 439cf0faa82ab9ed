"""Prime Intellect: one account over the machines of many upstreams, rented as pods.

Facts that shape this package.  A pod has no lifetime at the provider, and no key of its own: only
the keeper can end the bill, unless the user gives a key for the box.  A name is the only label,
nothing makes it unique, and a `create` whose answer is lost may have made a pod.  Availability is
sometimes empty for no reason.  A 404 is not yet the word that a pod is gone.  There is no stop; a
pod that stops by itself may bill.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import httpx

from gpurun.errors import AccountRefused, NoCapacity, ProviderError
from gpurun.model import Created, Instance, Need, Offer, Order
from gpurun.provider import Login, Remark, Traits
from provisioners.prime import account, boxkey, disk, order, pods
from provisioners.prime.access import Access, same_key
from provisioners.prime.api import Answer, Api, NoAnswer, Query, trouble
from provisioners.prime.listing import complete, searched
from provisioners.prime.money import amount
from provisioners.prime.offers import Fits, choose

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ONE_GUARD = (
    "one: only this machine's keeper can end the bill. A purchase takes `--accept-one-guard`; a "
    "keeper on a second machine is another, a key for the box too (docs/providers.md)"
)
_TWO_GUARDS = "two: the keeper, and the fuse with the key for the box once gpurun has reached it"
_DISK = "disk:"  # ids of disks among the ids of pods
_NEWEST: Query = {"sort_by": "terminatedAt", "sort_order": "desc", "limit": 100}
_REGISTER = "run `gpurun auth prime --ssh-key FILE.pub` (`ssh-keygen -t ed25519` makes one)"
_EMPTY = ": it bills until the wallet is empty"
_KEYED = (
    "the fuse on the box ends it 2 minutes after its timer, with the key that you gave for it; "
    "until gpurun has reached the box, "
)


class Prime:
    """One key's account, as `http` reaches it (gpurun/web.py).

    `fits` tells whether a GPU is one that was wished for.
    """

    name = "prime"

    def __init__(
        self, access: Access, http: httpx.Client, fits: Fits, public_keys: tuple[str, ...] = ()
    ) -> None:
        self.traits = _traits(bool(boxkey.usable(access)), _EMPTY)
        self._access = access
        self._api = Api(http)
        self._api_of_box = Api(http, access.box_key)
        self._fits = fits
        self._public_keys = public_keys

    def account(self) -> str:
        return account.name(self._api, self._access)

    def offers(self, need: Need) -> Iterable[Offer]:
        """NoOffer for a GPU that exists nowhere, or says why what there is cannot be had."""
        query = {"gpu_count": need.gpu_count} if need.gpu is not None else {}
        # Empty is not believed before it was said twice.
        rows = searched(self._search, query) or searched(self._search, query)
        return choose(rows, need, self._fits)

    def instances(self) -> list[Instance]:
        """A TERMINATED pod is absent, one that is DELETING is not."""
        rows = complete(self._page, "/pods/")
        return [pods.instance(row) for row in rows if row.get("status") != pods.TERMINATED]

    def instance(self, instance_id: str) -> Instance | None:
        row = self._row(instance_id)
        return None if row is None else pods.instance(row)

    def create(self, wanted: Order) -> Created:
        if wanted.offer.usd_per_hour > wanted.max_usd_per_hour:
            raise NoCapacity(
                f"prime offer {wanted.offer.id} costs ${wanted.offer.usd_per_hour}/h, "
                f"at most ${wanted.max_usd_per_hour}/h is allowed; nothing was made"
            )
        self._require_box_key()
        text = order.body(wanted, self._access.team_id, self._ssh_key_id(wanted))
        try:
            answer = self._api.send_once("/pods/", text)
        except NoAnswer as error:
            raise order.unanswered(error, wanted) from error
        return order.made(answer, wanted, self._access.team_id)

    def destroy(self, instance_id: str) -> None:
        """Of a disk too.  A 404 counts only when neither the list nor the row shows it."""
        answer = self._api.ask("DELETE", self._path(instance_id))
        if answer.status == 204 or (answer.ok and _is_acknowledged(answer)):
            return
        if answer.status != 404 or answer.body is None:
            raise trouble(answer, f"end {instance_id}")
        rows = self.other_holdings() if instance_id.startswith(_DISK) else self._pods_alive()
        if any(row.id == instance_id for row in rows) or self._shows(instance_id):
            raise ProviderError(
                f"prime answers 404 to ending {instance_id}, and shows it all the same: it may "
                "still bill. Run `gpurun kill` again, or end it in the dashboard"
            )

    def login(self, instance_id: str) -> Login:
        row = self._row(instance_id)
        where = pods.address(row) if row is not None else None
        if where is None:
            raise ProviderError(f"prime does not tell yet where pod {instance_id} answers")
        user, host, port = where
        return Login(
            name=f"prime-{instance_id}",  # addresses are given to others later
            user=user,
            addresses=((host, port),),
            root=disk.root("/root" if user == "root" else f"/home/{user}"),
            key=self._access.key_file,
            make_root=disk.MAKE_ROOT,
        )

    def self_destroy(self, instance_id: str) -> str:
        """Fails without a key for the box: the account's own never goes there."""
        return self._on_box(instance_id, "DELETE")

    def rehearsal(self, instance_id: str) -> str:
        """Fails without a key for the box.  That it may also write is asked before the purchase."""
        return self._on_box(instance_id, "GET")

    def box_key(self) -> str:
        return boxkey.usable(self._access)

    def box_key_file(self, instance_id: str) -> str:
        self._path(instance_id)  # refuses what is no id
        return boxkey.file_of(instance_id)

    def credit_usd(self) -> Decimal | None:
        """Also told by `traits.if_lost` from then on."""
        credit = account.credit_usd(self._api, self._access)
        if credit is not None:
            self.traits = _traits(bool(self.box_key()), f"; your wallet holds ${credit:.2f}")
        return credit

    def remarks(self) -> list[Remark]:
        found = [*account.remarks(self._api, self._access), *self._guards()]
        try:
            registered = self.ssh_keys()
        except ProviderError as error:
            return [*found, Remark("SSH key", str(error))]
        if any(same_key(one, ours) for one in registered for ours in self._public_keys):
            return [*found, Remark("SSH key", "one of this machine's is registered")]
        return [
            *found,
            Remark("SSH key", f"none of this machine's is registered: {_REGISTER}", False),
        ]

    def ssh_keys(self) -> list[str]:
        return [str(key.get("publicKey")) for key in complete(self._page, "/ssh_keys/")]

    def register_ssh_key(self, name: str, public_key: str) -> None:
        answer = self._api.ask("POST", "/ssh_keys/", body={"name": name, "publicKey": public_key})
        self._api.require(answer, "register an SSH key")

    def billed_usd(self, instance_id: str) -> Decimal | None:
        """From the history, which comes minutes late."""
        page = self._api.get("/pods/history", _NEWEST, to="read the history")
        for row in page.get("data") or []:
            if isinstance(row, Mapping) and row.get("id") == instance_id:
                return amount(row.get("totalBilledPrice"))
        return None

    def other_holdings(self) -> list[Instance]:
        """Disks: they outlive their pods, and bill on."""
        rows = complete(self._page, "/disks/")
        return [
            pods.disk(row, f"{_DISK}{row['id']}")
            for row in rows
            if row.get("status") != pods.TERMINATED
        ]

    def _page(self, path: str, query: Mapping[str, int]) -> Mapping[str, Any]:
        return self._api.get(path, query, to=f"list {path.strip('/')}")

    def _search(self, query: Mapping[str, int]) -> Mapping[str, Any]:
        return self._api.get("/availability/gpus", query, to="search the market")

    def _row(self, instance_id: str) -> Mapping[str, Any] | None:
        """None for 404 and for TERMINATED; a page that is no JSON says neither."""
        answer = self._api.ask("GET", self._path(instance_id))
        if answer.status == 404 and answer.body is not None:
            return None
        row = self._api.require(answer, f"show {instance_id}")
        if row.get("id") != instance_id.removeprefix(_DISK):
            raise ProviderError(f"prime answers with another pod than {instance_id}")
        return None if row.get("status") == pods.TERMINATED else row

    def _shows(self, instance_id: str) -> bool:
        row = self._row(instance_id)
        return row is not None and row.get("status") != pods.DELETING

    def _pods_alive(self) -> list[Instance]:
        rows = complete(self._page, "/pods/")
        ending = (pods.TERMINATED, pods.DELETING)
        return [pods.instance(row) for row in rows if row.get("status") not in ending]

    def _path(self, instance_id: str) -> str:
        kind, number = "pods", instance_id
        if instance_id.startswith(_DISK):
            kind, number = "disks", instance_id.removeprefix(_DISK)
        if not _ID.fullmatch(number):
            raise ProviderError(f"prime: {instance_id!r} is not the id of a pod")
        return f"/{kind}/{quote(number, safe='')}"

    def _on_box(self, instance_id: str, method: str) -> str:
        self._path(instance_id)
        if not self.box_key():
            return "exit 1"
        return boxkey.self_end(self._api.url, instance_id, method)

    def _guards(self) -> list[Remark]:
        if not self._access.box_key:
            return [Remark("guards", _ONE_GUARD)]
        why = boxkey.unfit(self._api, self._api_of_box, self._access)
        if why:
            return [Remark("key for the box", f"{boxkey.SETTING} {why}", False)]
        more = boxkey.excess(self._api_of_box, self._access)
        says = f"may also write {more}: a stranger's machine holds it" if more else "can end a pod"
        return [Remark("guards", _TWO_GUARDS), Remark("key for the box", says)]

    def _require_box_key(self) -> None:
        """A guard that the plan has counted is one."""
        if not self._access.box_key:
            return
        try:
            why = boxkey.unfit(self._api, self._api_of_box, self._access)
        except ProviderError as error:
            raise NoCapacity(f"nothing was made: {error}") from error
        if why:
            raise AccountRefused(
                f"nothing was made: {boxkey.SETTING} {why}. Mend it, or take it out and accept one "
                "guard (`gpurun up ... --accept-one-guard`)"
            )

    def _ssh_key_id(self, wanted: Order) -> str | None:
        """The registered key that opens the pod from here; None leaves it to the account."""
        ours = [wanted.ssh_public_key] if wanted.ssh_public_key else list(self._public_keys)
        if not ours:
            return None
        try:
            registered = complete(self._page, "/ssh_keys/")
        except ProviderError as error:
            raise NoCapacity(f"nothing was made: {error}") from error
        for key in registered:
            if any(same_key(str(key.get("publicKey")), mine) for mine in ours):
                return str(key["id"])
        raise AccountRefused(
            "nothing was made: no SSH key of this machine is registered with prime, so nobody "
            f"could log in: {_REGISTER}"
        )


def _traits(keyed: bool, wallet: str) -> Traits:
    return Traits(
        settle_window_s=600,
        proof_gap_s=20,
        tail_s=360,
        fuse_ends_bill=keyed,
        if_lost=f"{_KEYED if keyed else ''}nothing else can end it{wallet}.",
        dated=True,
    )


def _is_acknowledged(answer: Answer) -> bool:
    body = answer.body or {}
    return body.get("status") in (pods.TERMINATED, pods.DELETING)
