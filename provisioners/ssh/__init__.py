"""A machine of the user's own, reached by SSH: one provisioner and one account for each host.

Nothing is bought: `create` claims the host, so that two controllers never share it, and makes the
run's directory; `destroy` ends every process of the run, keeps what nobody fetched, and gives the
host free.  The host itself is never ended.  The instance id is the label.
"""

import re
import shlex
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Protocol

from gpurun.errors import (
    CreateFailedButMade,
    CreateUnclear,
    NoCapacity,
    NoOffer,
    ProviderError,
    ProviderUnreachable,
)
from gpurun.model import Created, Instance, InstanceState, Need, Offer, Order
from gpurun.provider import Login, Traits
from gpurun.shell import UNKNOWN_OUTCOME, Result, Shell
from gpurun.shell.trouble import HostKeyChanged
from provisioners import removal
from provisioners.ssh import host
from provisioners.ssh.fit import misfits
from provisioners.ssh.survey import Survey, printable

ASK_S = 30.0
MACHINE_CHARS = 64
END_S = 60.0
MOST_USD_PER_HOUR = 1_000_000  # what a host says that is more, or less than nothing, is no price
_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


class OpenShell(Protocol):
    """How a shell is opened on this host; nothing is asked of it by that."""

    def __call__(self, login: Login) -> Shell: ...


class Ssh:
    """One host; its name says how it is reached: `ssh:user@host:port`."""

    traits = Traits(
        settle_window_s=10,
        proof_gap_s=1,
        tail_s=0,
        fuse_ends_bill=True,  # what is charged here is the run, not the host
        if_lost="the fuse on the host ends the run's processes 2 minutes after its timer; "
        "artifacts stay there. The host itself is never ended.",
    )

    def __init__(
        self,
        name: str,
        user: str,
        address: tuple[str, int],
        open_shell: OpenShell,
        *,
        key: Path | None = None,
        gpu: str | None = None,
        gpu_count: int | None = None,
        usd_per_hour: Decimal = Decimal(0),
        workspace: str = "/workspace",
    ) -> None:
        self.name = name
        self._user = user
        self._address = address
        self._key = key
        self._gpu = gpu
        self._gpu_count = gpu_count
        self._usd_per_hour = usd_per_hour
        self._workspace = workspace
        self._line = open_shell(self._login("/", enter=""))

    def account(self) -> str:
        """The host's own identity: its machine id, under the host key that is pinned for it."""
        said = self._run(host.MACHINE_TEXT, timeout_s=ASK_S)
        if said.exited == UNKNOWN_OUTCOME:
            raise ProviderUnreachable(f"{self.name} cannot be reached: {said.tail(1)}")
        machine = said.output.strip()[:MACHINE_CHARS]
        return f"{self._address[0]}:{self._address[1]}/{machine or 'no-machine-id'}"

    def offers(self, need: Need) -> Iterable[Offer]:
        """The host; NoOffer says why it does not fit, who holds it, or what its GPUs do."""
        seen = self._survey()
        gpu, count = self._gpu or seen.gpu_model, len(seen.gpus)
        if wrong := misfits(seen, need, self._gpu, self._gpu_count):
            raise NoOffer(f"{self.name} is not what is needed: {'; '.join(wrong)}")
        if seen.held_by is not None:
            raise NoOffer(
                f"{self.name} is held by {seen.held_by or 'a run that is just beginning'}"
                f"{_until(seen)}. A host serves one run at a time"
            )
        if need.gpu is not None and seen.busy:
            raise NoOffer(f"the GPUs of {self.name} are busy with {', '.join(seen.busy[:3])}")
        return [
            Offer(
                provider=self.name,
                id=self._address[0],
                gpu=gpu if need.gpu is not None else None,
                gpu_count=count if need.gpu is not None else 0,
                usd_per_hour=self._usd_per_hour,
                disk_gb=seen.disk_gb,
                place=self._address[0],
                cpu_count=seen.cpus,
                memory_gb=seen.memory_gb,
            )
        ]

    def instances(self) -> list[Instance]:
        seen = self._survey()
        if seen.held_by is None:
            return []
        if seen.boot_id_at_start in ("", "none", seen.boot_id):
            state = InstanceState.RUNNING if seen.held_by else InstanceState.STARTING
        else:
            state = InstanceState.STOPPED  # the host was restarted: nothing of the run lives
        return [
            Instance(
                provider=self.name,
                id=seen.held_by,
                label=seen.held_by,
                state=state,
                usd_per_hour=_decimal(seen.usd_per_hour) or self._usd_per_hour,
                created_at=seen.created_at,
                gpu=seen.gpu_model,
                gpu_count=len(seen.gpus),
            )
        ]

    def instance(self, instance_id: str) -> Instance | None:
        """Gone means no marker and no process: a marker that somebody removed proves nothing."""
        for row in self.instances():
            if row.id == instance_id:
                return row
        if not _LABEL.fullmatch(instance_id) or not self._lives(instance_id):
            return None
        return Instance(
            provider=self.name,
            id=instance_id,
            label=instance_id,
            state=InstanceState.RUNNING,
            usd_per_hour=self._usd_per_hour,
            created_at=None,
        )

    def create(self, order: Order) -> Created:
        label = order.label
        if not _LABEL.fullmatch(label):
            raise NoCapacity(f"{self.name}: {label!r} cannot name a run; nothing was made")
        if self._usd_per_hour > order.max_usd_per_hour:
            raise NoCapacity(
                f"{self.name} is set at ${self._usd_per_hour}/h, more than the "
                f"${order.max_usd_per_hour}/h allowed; nothing was made"
            )
        ends_at_s = int(order.ends_at.timestamp())
        made = self._run(
            host.make_text(label, self._workspace, ends_at_s, str(self._usd_per_hour)),
            timeout_s=ASK_S,
        )
        said = printable(made.tail(1))
        if made.exited == UNKNOWN_OUTCOME or made.exited not in (0, 3, 4, 5):
            raise CreateUnclear(f"{self.name}: no answer to claiming the host: {said}")
        if made.exited == 3 and said == f"held by {label}":
            raise CreateFailedButMade(f"{self.name}: {label} was made before", label)
        if made.exited == 3:
            raise NoCapacity(f"{self.name} is {said}; nothing was made")
        if made.exited == 4:
            raise NoCapacity(
                f"{self.name}: {said}; nothing was made. Name a folder that user {self._user} can "
                "write, with `workspace` in ssh_hosts of the settings"
            )
        if made.exited == 5:
            raise NoCapacity(
                f"{self.name}: {said}; nothing was made. See on the host what is there: a file, or "
                "a link to nothing? Is /var/tmp full, or read-only?"
            )
        return Created(label)

    def destroy(self, instance_id: str) -> None:
        if not _LABEL.fullmatch(instance_id):
            self._refuse_what_is_not_ours(instance_id)
            return
        self._require(self._run(host.end_text(instance_id), timeout_s=END_S), "be ended")
        self._save(instance_id)
        removal_text = host.remove_text(instance_id, self._workspace)
        self._require(self._run(removal_text, timeout_s=END_S), "be removed")

    def login(self, instance_id: str) -> Login:
        root = host.root_of(self._workspace, self._checked(instance_id))
        return self._login(root, enter=host.enter_text(instance_id))

    def self_destroy(self, instance_id: str) -> str:
        """Ends the run's processes and removes its secrets; artifacts stay."""
        return host.end_text(self._checked(instance_id))

    def salvage(self, instance_id: str) -> str:
        """Where artifacts go that nobody had fetched when the run was ended."""
        kept = host.kept_of(self._workspace, self._checked(instance_id))
        return f"{self._user}@{self._address[0]}:{kept}"

    def _login(self, root: str, enter: str) -> Login:
        where = re.sub(r"[^A-Za-z0-9._-]", "-", f"{self._address[0]}-{self._address[1]}")
        return Login(
            name=f"ssh-{where}",
            user=self._user,
            addresses=(self._address,),
            root=root,
            key=self._key,
            enter=enter,
        )

    def _lives(self, label: str) -> bool:
        said = self._run(host.lives_text(label), timeout_s=ASK_S)
        if said.exited not in (0, 1):
            raise ProviderUnreachable(f"{self.name} cannot be reached: {said.tail(1)}")
        return said.ok

    def _survey(self) -> Survey:
        result = self._run(host.survey_text(self._workspace), timeout_s=ASK_S)
        if result.exited == UNKNOWN_OUTCOME:
            raise ProviderUnreachable(f"{self.name} cannot be reached: {result.tail(1)}")
        if not result.ok or result.tail(1) != "end":
            raise ProviderError(
                f"{self.name} gives no sensible answer: {printable(result.tail(2))}"
            )
        return Survey.of(result.output)

    def _save(self, label: str) -> None:
        """What nobody fetched is kept; where the host cannot tell, the whole directory is."""
        root = host.root_of(self._workspace, label)
        kept = host.kept_of(self._workspace, label)
        source = Path(removal.__file__).read_text().partition('\nif __name__ == "__main__":')[0]
        call = f"\nsave_uncollected(Path({root!r}), Path({kept!r}))\n"
        save = (
            f"[ -d {shlex.quote(root)} ] || exit 0\n"
            "if command -v python3 >/dev/null && python3 -; then exit 0; fi\n"
            f"mkdir -p {shlex.quote(kept)} && mv {shlex.quote(root)} {shlex.quote(kept)}"
        )
        self._require(self._run(save, timeout_s=END_S, stdin=source + call), "be saved")

    def _run(self, text: str, *, timeout_s: float, stdin: str = "") -> Result:
        """Another machine in the host's place is asked nothing: no answer of it would count."""
        try:
            return self._line.run(text, timeout_s=timeout_s, stdin=stdin)
        except HostKeyChanged as error:
            raise ProviderError(f"{self.name}: {error}") from error

    def _require(self, result: Result, what: str) -> None:
        if result.exited == UNKNOWN_OUTCOME:
            raise ProviderUnreachable(f"{self.name} cannot be reached: {result.tail(1)}")
        if not result.ok:
            raise ProviderError(
                f"{self.name}: the run cannot {what} yet: {printable(result.tail(2))}"
            )

    def _refuse_what_is_not_ours(self, instance_id: str) -> None:
        if self.instance(instance_id) is not None:
            raise ProviderError(
                f"{self.name} is held by {instance_id!r}, which no gpurun wrote: look at "
                f"{host.MARKER} on the host, and remove it there if nobody needs it"
            )

    def _checked(self, instance_id: str) -> str:
        if not _LABEL.fullmatch(instance_id):
            raise ProviderError(f"{self.name}: {instance_id!r} is not the id of a run")
        return instance_id


def _until(seen: Survey) -> str:
    if seen.ends_at is None:
        return ""
    until = f" until {seen.ends_at:%Y-%m-%d %H:%M} UTC"
    if not seen.overdue:
        return until
    alive = f"{seen.processes} of its processes live" if seen.processes else "nothing of it runs"
    return (
        f"{until}, which is past, and {alive}: if whoever started it is gone for good, "
        f"`gpurun orphans --kill {seen.held_by}` gives the host free"
    )


def _decimal(text: str) -> Decimal | None:
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return found if found.is_finite() and 0 <= found < MOST_USD_PER_HOUR else None
