"""A real machine to rent: own network, processes, disk and sshd, started in a fraction of a second.

Two processes hold a box.  The *disk* keeps what outlives a reboot (namespaces of mounts and
network); it ends with its standard input, so a box dies with its test however that dies.
The *boot* is everything else, in a process namespace of its own, below the disk's.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.boxes import claims, furnish, keys
from tests.boxes.claims import Claim
from tests.boxes.shape import Shape

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
NEEDED = {  # command: the Debian package it comes from
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "iptables": "iptables",
    "unshare": "util-linux",
    "setfattr": "attr",
    "sudo": "sudo",
}


@contextmanager
def box(shape: Shape = Shape()) -> Iterator["Box"]:  # noqa: B008 (frozen)
    """A running box of this shape, sshd answering; destroyed on the way out."""
    check_this_machine()
    claim = claims.claim()
    with ExitStack() as undo:
        undo.callback(claims.release, claim)
        made = Box(claim, shape)
        undo.callback(made.destroy)
        made.start()
        if shape.network == "internet":
            undo.enter_context(claims.internet(claim))
        yield made


def check_this_machine() -> None:
    """Raise, with what to install, where no box can be made."""
    if os.geteuid() != 0:
        raise RuntimeError("test boxes need root: run the tests as root, or leave out `-m box`")
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = {package for tool, package in NEEDED.items() if not shutil.which(tool, path=path)}
    if lacking:
        raise RuntimeError(f"test boxes need: apt-get install {' '.join(sorted(lacking))}")


class Box:
    """One machine.  `host`, `port`, `user` and `key` are what a client needs."""

    port = 22

    def __init__(self, claim: Claim, shape: Shape) -> None:
        self.claim = claim
        self.shape = shape
        self.host = claim.address
        self.gateway = claim.gateway
        self.user = shape.user
        self.state = claim.folder
        self.key = self.state / "key"
        self._disk: subprocess.Popen[str] | None = None
        self._boot: subprocess.Popen[bytes] | None = None

    # Life.

    def start(self) -> None:
        for folder in ("disk", "gpu"):
            (self.state / folder).mkdir()
        keys.make(self.key)
        keys.make(self.state / "host_key")
        self._start_disk()
        furnish.furnish(self._merged, self.shape, self.state)
        self._new_boot_id()
        self.boot()

    def boot(self) -> None:
        """Start the box's processes and wait until sshd answers."""
        assert self._disk is not None
        group = self.claim.cgroup / "boot"
        group.mkdir(exist_ok=True)
        target = self._disk.pid
        clocks = [f"--boottime=-{self._booted_at_s[0]}", f"--monotonic=-{self._booted_at_s[1]}"]
        self._boot = subprocess.Popen(
            [
                *_in_cgroup(group),
                *("nsenter", f"--target={target}", "--mount", "--net", "--uts"),
                f"--pid=/proc/{target}/ns/pid_for_children",
                *("unshare", "--mount", "--pid", "--ipc", "--cgroup", "--time", *clocks),
                *("--fork", "--kill-child=KILL", "--propagation=private"),
                *("sh", str(HERE / "boot.sh")),
            ],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "STATE": str(self.state),
                "SHM_MB": str(self.shape.shm_mb),
                "SHARED": " ".join(str(path) for path in self.shape.share),
                "WORKSPACE": self.shape.workspace,
            },
            stdin=subprocess.DEVNULL,
            stdout=(self.state / "log").open("ab"),
            stderr=subprocess.STDOUT,
        )
        self._wait_for_sshd()

    def reboot(self) -> None:
        """Power off and on: every process dies, the disk stays, boot id and uptime start anew."""
        self._halt()
        self._new_boot_id()
        self.boot()

    def restart(self) -> None:
        """Restart as a container does: every process dies; the kernel goes on as if nothing was."""
        self._halt()
        self.boot()

    def destroy(self) -> None:
        """End the machine and its disk, at once."""
        self._halt()
        claims.kill(self.claim.cgroup)
        if self._disk is not None:
            assert self._disk.stdin is not None
            self._disk.stdin.close()
            self._disk.wait()
            self._disk = None
        claims.release(self.claim)

    # Looking in, and working on it from outside.

    @property
    def root(self) -> Path:
        """The root directory as the box's processes see it, from outside."""
        return Path(f"/proc/{self.init_pid}/root")

    @property
    def init_pid(self) -> int:
        """The box's process 1, by its number here."""
        for pid in self.pids():
            with suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{pid}/status").read_text()
                inner = status.partition("NSpid:")[2].partition("\n")[0].split()
                if len(inner) == 3 and inner[-1] == "1":
                    return pid
        raise RuntimeError(f"{self.claim.name} is not running")

    def pids(self) -> list[int]:
        """Every process of the box, by its number here."""
        found: list[int] = []
        for group in sorted((self.claim.cgroup / "boot").glob("**/")):
            with suppress(FileNotFoundError):
                found += [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        return found

    def run(
        self, argv: Sequence[str], stdin: str = "", check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the box as root, from outside: no sshd, no network."""
        return subprocess.run(
            [
                *_in_cgroup(self.claim.cgroup / "boot"),
                *("nsenter", f"--target={self.init_pid}", "--all"),
                *argv,
            ],
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            input=stdin,
            capture_output=True,
            text=True,
            check=check,
        )

    def sh(self, script: str) -> str:
        """What a shell script prints that root runs in the box; it must succeed."""
        done = self.run(["sh", "-c", script])
        assert done.returncode == 0, f"{script}: {done.returncode}: {done.stderr}"
        return done.stdout

    def ssh(self, command: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command over ssh, with OpenSSH's own client and a key."""
        return subprocess.run(
            ["ssh", *self.ssh_options(), f"{self.user}@{self.host}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def ssh_options(self) -> list[str]:
        """Options for OpenSSH's clients that let nothing of this machine's settings in."""
        options = {
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "UserKnownHostsFile": self.state / "known_hosts",
            "StrictHostKeyChecking": "accept-new",
            "KexAlgorithms": "curve25519-sha256",
            "Port": self.port,
        }
        return ["-F", "none", *(f"-o{name}={value}" for name, value in options.items())]

    @property
    def host_key(self) -> str:
        """The public line of sshd's key, without comment."""
        return keys.public_line(self.state / "host_key")

    # Faults of the network.

    def cut(self) -> None:
        """Unplug the network: packets vanish, connections stay open on both ends."""
        self._ip("link", "set", self.claim.name, "down")

    def heal(self) -> None:
        """Plug the network in again."""
        self._ip("link", "set", self.claim.name, "up")

    def loss(self, percent: float) -> None:
        """Lose this share of the packets towards the box; 0 ends it."""
        self._iptables("-F", "INPUT")
        if percent:
            chance = ["-m", "statistic", "--mode", "random", "--probability", f"{percent / 100}"]
            self._iptables("-A", "INPUT", "-i", "eth0", *chance, "-j", "DROP")

    def refuse(self) -> None:
        """Refuse new connections to sshd, as when it is down; open ones go on."""
        self._iptables("-I", "INPUT", *SSH, "--syn", *RESET)

    def accept(self) -> None:
        """End `refuse`."""
        self._iptables("-D", "INPUT", *SSH, "--syn", *RESET)

    def reset_connections(self) -> None:
        """Tear down every open connection to sshd with a RST."""
        self._nsenter("ss", "--kill", "--numeric", "state", "established", "sport = :22")

    # Faults of the machine.

    def freeze(self) -> None:
        """Stop every process where it is: the kernel still accepts connections, nobody answers."""
        self._freeze(True)

    def thaw(self) -> None:
        """End `freeze`."""
        self._freeze(False)

    def fill_disk(self, left_mb: int = 0) -> None:
        """Make the disk as small as what lies on it."""
        used = self._nsenter("df", "--output=used", "--block-size=4096", str(self.state / "disk"))
        pages = int(used.split()[-1]) + left_mb * 256
        self._resize_disk(f"{pages * 4}k")

    def free_disk(self) -> None:
        """End `fill_disk`."""
        self._resize_disk(f"{self.shape.disk_mb}m")

    def change_host_key(self) -> None:
        """Give sshd another key, as when another machine answers at this address."""
        for file in ("host_key", "host_key.pub"):
            (self.state / file).unlink()
        keys.make(self.state / "host_key")
        furnish.host_key(self.root, self.state)
        os.kill(self.init_pid, signal.SIGHUP)
        self._wait_for_sshd()

    # How it is done.

    @property
    def _merged(self) -> Path:
        assert self._disk is not None
        return Path(f"/proc/{self._disk.pid}/root{self.state}/disk/root")

    def _start_disk(self) -> None:
        self.claim.cgroup.mkdir()
        hidden = {"/root", "/home", "/tmp", "/var/tmp", str(REPOSITORY), str(Path.home())}
        self._disk = subprocess.Popen(
            [
                *_in_cgroup(self.claim.cgroup),
                *("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child=KILL"),
                *("--propagation=private", "sh", str(HERE / "disk.sh")),
            ],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "STATE": str(self.state),
                "NAME": self.claim.name,
                "DISK_MB": str(self.shape.disk_mb),
                "LOWER": str(furnish.lower(self.shape)),
                "HIDDEN": " ".join(sorted(hidden)) if self.shape.base == "host" else "",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.state / "log").open("ab"),
            text=True,
        )
        assert self._disk.stdout is not None
        if self._disk.stdout.readline() != "ready\n":
            raise RuntimeError(f"{self.claim.name} did not start: {self.log()}")
        self._plug_in()

    def _plug_in(self) -> None:
        assert self._disk is not None
        link = self.claim.name
        self._ip(
            *("link", "add", link, "type", "veth", "peer", "name", "eth0"),
            *("netns", str(self._disk.pid)),
        )
        self._ip("address", "add", f"{self.gateway}/30", "dev", link)
        self._ip("link", "set", link, "up")
        inside = ["link set lo up", f"address add {self.host}/30 dev eth0", "link set eth0 up"]
        if self.shape.network == "internet":
            inside.append(f"route add default via {self.gateway}")
        self._nsenter("ip", "-batch", "-", stdin="\n".join(inside))

    def _new_boot_id(self) -> None:
        (self.state / "boot_id").write_text(f"{uuid.uuid4()}\n")
        clocks = (time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC)
        self._booted_at_s = [int(time.clock_gettime(clock)) for clock in clocks]

    def _halt(self) -> None:
        claims.kill(self.claim.cgroup / "boot")
        if self._boot is not None:
            self._boot.wait()
            self._boot = None

    def _wait_for_sshd(self) -> None:
        for _ in range(1000):
            with suppress(OSError), socket.create_connection((self.host, self.port), 1) as wire:
                if wire.recv(4) == b"SSH-":
                    return
            if self._boot is not None and self._boot.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"{self.claim.name} did not start: {self.log()}")

    def log(self) -> str:
        """What sshd, and what started it, have said so far."""
        return (self.state / "log").read_text()

    def _freeze(self, frozen: bool) -> None:
        group = self.claim.cgroup / "boot"
        (group / "cgroup.freeze").write_text(str(int(frozen)))
        while f"frozen {int(frozen)}" not in (group / "cgroup.events").read_text():
            time.sleep(0.002)

    def _resize_disk(self, size: str) -> None:
        self._nsenter("mount", "-o", f"remount,size={size}", str(self.state / "disk"))

    def _iptables(self, *rule: str) -> None:
        self._nsenter("iptables", "-w", *rule)

    def _nsenter(self, *argv: str, stdin: str = "") -> str:
        """Run one of this machine's commands on the box's network and disk."""
        assert self._disk is not None
        enter = ["nsenter", f"--target={self._disk.pid}", "--mount", "--net"]
        done = subprocess.run([*enter, *argv], input=stdin, capture_output=True, text=True)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def _ip(self, *argv: str) -> None:
        done = subprocess.run(["ip", *argv], capture_output=True, text=True)
        assert done.returncode == 0, f"ip {' '.join(argv)}: {done.stderr}"


SSH = ("-p", "tcp", "--dport", "22")
RESET = ("-j", "REJECT", "--reject-with", "tcp-reset")


def _in_cgroup(group: Path) -> list[str]:
    """The beginning of an argv that starts the rest of it inside of the cgroup."""
    return ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(group / "cgroup.procs")]
