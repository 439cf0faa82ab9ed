"""A real machine to rent, for the length of a test."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.boxes import claims, furnish, keys
from tests.boxes.claims import Claim
from tests.boxes.gpus import Gpus
from tests.boxes.machine import PATH, Machine
from tests.boxes.shape import WITHOUT_GPUS, Shape

NEEDED = {  # command: the Debian package it comes from
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "iptables": "iptables",
    "unshare": "util-linux",
    "setfattr": "attr",
    "sudo": "sudo",
    "tmux": "tmux",
    "rsync": "rsync",
    "curl": "curl",
}


@contextmanager
def box(shape: Shape = WITHOUT_GPUS) -> Iterator["Box"]:
    """A running box of this shape, sshd answering; nothing of it is left on the way out."""
    check_this_machine()
    claim = claims.claim()
    with ExitStack() as undo:
        undo.callback(claims.release, claim)
        made = Box(claim, shape)
        undo.callback(made.destroy)
        if shape.network == "internet":
            undo.enter_context(claims.internet(claim))
        made.start()
        yield made


def check_this_machine() -> None:
    """Raise, with what to do, where no box can be made."""
    if os.geteuid() != 0:
        raise RuntimeError("test boxes need root: run as root, or deselect with -m 'not box'")
    if lacking := lacking_packages(f"{os.environ['PATH']}:{PATH}"):
        raise RuntimeError(f"test boxes need: apt-get install {' '.join(lacking)}")


def lacking_packages(path: str) -> list[str]:
    """The Debian packages whose commands are not on `path`."""
    return sorted(
        {package for tool, package in NEEDED.items() if not shutil.which(tool, path=path)}
    )


@dataclass(frozen=True, slots=True)
class Network:
    """What is wrong with a box's network."""

    cut: bool = False
    loss_percent: float = 0
    refuses: bool = False

    def rules(self) -> Iterator[str]:
        for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o")):
            if self.cut:
                yield f"-A {chain} {side} eth0 -j DROP"
            if self.loss_percent:
                chance = f"--mode random --probability {self.loss_percent / 100}"
                yield f"-A {chain} {side} eth0 -m statistic {chance} -j DROP"
        if self.refuses:
            yield "-A INPUT -p tcp --dport 22 --syn -j REJECT --reject-with tcp-reset"


class Box:
    """One rented machine: `host`, `port`, `user` and `key` (a file) are what a client needs.

    `gateway` is this machine's address on the box's network.  `gpus` says what the box's GPUs do.
    """

    port = 22

    def __init__(self, claim: Claim, shape: Shape) -> None:
        self.shape = shape
        self.name = claim.name
        self.host = claim.address
        self.gateway = claim.gateway
        self.user = shape.user
        self.state = claim.folder
        self.key = self.state / "key"
        self.known_hosts = self.state / "known_hosts"
        self._machine = Machine(claim, shape)
        self._network = Network()

    def start(self) -> None:
        self._machine.assemble()
        keys.make_key(self.key)
        keys.make_key(self.state / "host_key")
        furnish.furnish(self._machine.merged, self.shape, self.state)
        self.gpus = Gpus(self.shape.gpus, self.state / "gpu", f"{time.time_ns()}")
        self._machine.new_kernel()
        self._boot()

    # Looking in, and working on it from outside.

    @property
    def alive(self) -> bool:
        return self._machine.runs

    @property
    def root(self) -> Path:
        """The root directory as the box's processes see it.  Another path after a reboot."""
        return Path(f"/proc/{self._machine.init_pid}/root")

    @property
    def home(self) -> Path:
        """The user's home directory, below `root`."""
        return furnish.home(self.root, self.shape)

    @property
    def init_pid(self) -> int:
        """The box's process 1, by its number here."""
        return self._machine.init_pid

    def pids(self) -> list[int]:
        """Every process of the box, by its number here."""
        return self._machine.pids()

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The argv that runs a command in the box as root: for a process that a test keeps."""
        return self._machine.inside(argv)

    def run(
        self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the box as root, without sshd or network."""
        return subprocess.run(
            self.inside(argv),
            env={"PATH": PATH, "HOME": "/root"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def sh(self, script: str) -> str:
        """What a shell script prints that root runs in the box; it must succeed."""
        done = self.run(["sh", "-c", script])
        assert done.returncode == 0, f"{script}: {done.returncode}: {done.stderr}"
        return done.stdout

    def ssh(self, command: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command over ssh, as the user, with OpenSSH's own client."""
        return subprocess.run(
            ["ssh", *self.ssh_options(), f"{self.user}@{self.host}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def ssh_options(self) -> list[str]:
        """Options for OpenSSH's clients that let none of this machine's settings in."""
        options = {
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "StrictHostKeyChecking": "accept-new",
            "KexAlgorithms": "curve25519-sha256",  # the default costs 100 ms of CPU
            "LogLevel": "ERROR",
            "Port": self.port,
        }
        return ["-F", "none", *(f"-o{name}={value}" for name, value in options.items())]

    @property
    def host_key(self) -> str:
        """Type and text of sshd's public key, as in a known_hosts line."""
        return keys.public_line(self.state / "host_key")

    def authorise(self, key: Path) -> None:
        """Let the user in with this private key too."""
        with (self.home / ".ssh/authorized_keys").open("a") as authorised:
            authorised.write(f"{keys.public_line(key)}\n")

    def authorise_nobody(self) -> None:
        """Let no key in any more."""
        (self.home / ".ssh/authorized_keys").write_text("")

    def install(self, command: str, script: str) -> None:
        """Put a program of this text at /usr/local/bin/`command`, before all others on the PATH."""
        furnish.write(self.root, f"usr/local/bin/{command}", script, 0o755)

    def log(self) -> str:
        """What sshd, and what started it, have said so far."""
        return self._machine.log()

    # Faults of the network.

    def cut(self) -> None:
        """Lose every packet in both directions: connections stay open on both ends."""
        self._spoil_network(cut=True)

    def heal(self) -> None:
        """End `cut`."""
        self._spoil_network(cut=False)

    def loss(self, percent: float) -> None:
        """Lose this share of the packets in each direction; 0 ends it."""
        self._spoil_network(loss_percent=percent)

    def refuse(self) -> None:
        """Refuse new connections to sshd, as when it is down; open ones go on."""
        self._spoil_network(refuses=True)

    def accept(self) -> None:
        """End `refuse`."""
        self._spoil_network(refuses=False)

    def rate(self, mbit_per_s: float) -> None:
        """Limit how fast the box sends; 0 ends it."""
        if not mbit_per_s:
            self._machine.beside("tc", "qdisc", "del", "dev", "eth0", "root")
            return
        limit = ("rate", f"{mbit_per_s}mbit", "burst", "32kb", "latency", "200ms")
        self._machine.beside("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *limit)

    def reset_connections(self) -> None:
        """End every open connection to sshd with a RST."""
        self._machine.beside("ss", "--kill", "--numeric", "state", "established", "sport = :22")

    # Faults of the machine.

    def freeze(self) -> None:
        """Stop every process where it is: the kernel still accepts connections, nobody answers."""
        self._machine.freeze(True)

    def thaw(self) -> None:
        """End `freeze`."""
        self._machine.freeze(False)

    def reboot(self) -> None:
        """Power off and on: processes and volatile files go; boot id and clocks begin anew."""
        self.power_off()
        self._machine.new_kernel()
        self.gpus.forget_kernel_messages()
        self._boot()

    def restart(self) -> None:
        """Restart as a container does: as `reboot`, but the kernel is the same and goes on."""
        self.power_off()
        self._boot()

    def power_off(self) -> None:
        """End every process; the disk and the address stay."""
        self._machine.halt()

    def destroy(self) -> None:
        """End the machine, its disk and its network.  Twice is fine."""
        self._machine.scrap()

    def fill_disk(self, *, left_kib: int = 0) -> None:
        """Make the disk as small as what lies on it, but for this much."""
        self._machine.resize_disk(f"{self._machine.disk_used_kib() + left_kib}k")

    def free_disk(self) -> None:
        """End `fill_disk`."""
        self._machine.resize_disk(f"{self.shape.disk_mb}m")

    def change_host_key(self) -> None:
        """Give sshd another key, as when another machine answers at this address.

        sshd reads its keys anew for each connection.
        """
        for file in ("host_key", "host_key.pub"):
            (self.state / file).unlink()
        keys.make_key(self.state / "host_key")
        furnish.host_key(self.root, self.state)

    def _boot(self) -> None:
        """Boot, and wait for sshd: by its socket, not by the network, which may be spoilt."""
        self._machine.boot()
        give_up_s = time.monotonic() + 60
        while not self._machine.listens(self.port):
            if not self.alive or time.monotonic() > give_up_s:
                raise RuntimeError(f"{self.name} did not start: {self.log()}")
            time.sleep(0.005)

    def _spoil_network(
        self,
        *,
        cut: bool | None = None,
        loss_percent: float | None = None,
        refuses: bool | None = None,
    ) -> None:
        """Change what is named.  The link stays up: without it packets would take another way."""
        before = self._network
        self._network = now = Network(
            before.cut if cut is None else cut,
            before.loss_percent if loss_percent is None else loss_percent,
            before.refuses if refuses is None else refuses,
        )
        rules = "".join(f"{rule}\n" for rule in now.rules())
        self._machine.beside("iptables-restore", "-w", stdin=f"*filter\n{rules}COMMIT\n")
