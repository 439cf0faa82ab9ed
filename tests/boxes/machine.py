"""The namespaces of a box, and the two processes that hold them.

The *disk* keeps what outlives a reboot: file system, network, name.  It ends with its standard
input, so that a box dies with its test however that dies.  The *boot* is everything else: its own
process numbers, clocks and volatile mounts, inside of the disk's process namespace.
"""

import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.boxes import claims, furnish, registry
from tests.boxes.claims import NETWORK, Claim
from tests.boxes.shape import Shape

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LAST_RESORT = 2**32 - 1  # the metric of a route that is taken when there is no other
PRIVATE = ("/root", "/home", "/tmp", "/var/tmp")  # this machine's own, never seen in a box


class Machine:
    """A box without its comforts.  Its `state` folder, on this machine, holds keys and log."""

    def __init__(self, claim: Claim, shape: Shape) -> None:
        self.claim = claim
        self.shape = shape
        self.state = claim.folder
        self._group = claim.cgroup / "boot"
        self._log_path = claim.folder / "log"
        self._disk: subprocess.Popen[str] | None = None
        self._boot: subprocess.Popen[bytes] | None = None
        self._clocks: tuple[str, ...] = ()

    def assemble(self) -> None:
        """Make disk, name and network; nothing runs yet."""
        for folder in ("disk", "gpu"):
            (self.state / folder).mkdir()
        self._group.mkdir(parents=True)
        hidden = {*PRIVATE, str(REPOSITORY), str(Path.home())}
        hidden |= {str(path) for path in Path("/usr/local").glob("cuda*") if not path.is_symlink()}
        with self._log_path.open("ab") as log:
            self._disk = subprocess.Popen(
                [
                    *_in_cgroup(self.claim.cgroup),
                    *("unshare", "--mount", "--net", "--uts", "--pid"),
                    *("--fork", "--kill-child=KILL", "--propagation=private"),
                    *("sh", str(HERE / "disk.sh")),
                ],
                env={
                    "PATH": PATH,
                    "STATE": str(self.state),
                    "NAME": self.claim.name,
                    "DISK_MB": str(self.shape.disk_mb),
                    "LOWER": str(furnish.lower(self.shape)),
                    "HIDDEN": " ".join(sorted(hidden)) if self.shape.base == "host" else "",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._disk.stdout is not None
        if self._disk.stdout.readline() != "ready\n":
            raise RuntimeError(f"{self.claim.name} has no disk: {self.log()}")
        self._plug_in()

    def new_kernel(self) -> None:
        """Another boot id, and clocks that begin now, for the boots from now on."""
        (self.state / "boot_id").write_text(f"{uuid.uuid4()}\n")
        boottime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        self._clocks = (f"--boottime=-{boottime_s}", f"--monotonic=-{int(time.monotonic())}")

    def boot(self) -> None:
        """Start the box's processes."""
        assert self._disk is not None
        of_disk = f"/proc/{self._disk.pid}/ns"
        shared = list(self.shape.share)
        if self.shape.base == "minbase" and self.shape.network == "internet":
            shared += registry.folders()
        with self._log_path.open("ab") as log:
            self._boot = subprocess.Popen(
                [
                    *_in_cgroup(self._group),
                    *("nsenter", f"--mount={of_disk}/mnt", f"--net={of_disk}/net"),
                    *(f"--uts={of_disk}/uts", f"--pid={of_disk}/pid_for_children"),
                    *("unshare", "--mount", "--pid", "--ipc", "--cgroup", "--time", *self._clocks),
                    *("--fork", "--kill-child=KILL", "--propagation=private"),
                    *("sh", str(HERE / "boot.sh")),
                ],
                env={
                    "PATH": PATH,
                    "STATE": str(self.state),
                    "SHM_MB": str(self.shape.shm_mb),
                    "SHARED": " ".join(str(path) for path in shared),
                    "WORKSPACE": self.shape.workspace,
                    "INIT": "systemd" if self.shape.systemd else "sshd",
                    "CGROUP_ACCESS": "rw" if self.shape.cgroups or self.shape.systemd else "ro",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def halt(self) -> None:
        """End the box's processes, frozen or not; the disk stays."""
        claims.kill(self._group)
        if self._group.exists():
            self.freeze(False)
        if self._boot is not None:
            self._boot.wait()
            self._boot = None

    def scrap(self) -> None:
        """End it all: processes, disk, network."""
        self.halt()
        claims.end(self.claim)
        if self._disk is not None:
            assert self._disk.stdin is not None
            assert self._disk.stdout is not None
            self._disk.stdin.close()
            self._disk.stdout.close()
            self._disk.wait()
            self._disk = None

    @property
    def runs(self) -> bool:
        """Whether process 1 lives."""
        return self._boot is not None and self._boot.poll() is None

    @property
    def init_pid(self) -> int:
        """The box's process 1, by its number here."""
        for pid in self.pids():
            with suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{pid}/status").read_text()
                numbers = status.partition("NSpid:")[2].partition("\n")[0].split()
                if len(numbers) >= 3 and numbers[-1] == "1":
                    return pid
        raise RuntimeError(f"{self.claim.name} is not running: {self.log()}")

    def listens(self, port: int) -> bool:
        """Whether a process of the box accepts TCP connections at `port`."""
        assert self._disk is not None
        rows = Path(f"/proc/{self._disk.pid}/net/tcp").read_text().splitlines()[1:]
        sockets = [row.split()[1:4] for row in rows]  # local address, remote one, state
        return any(local.endswith(f":{port:04X}") and state == "0A" for local, _, state in sockets)

    def pids(self) -> list[int]:
        """Every process of the box, by its number here; what holds its namespaces too."""
        found: list[int] = []
        for group in [self._group, *self._group.glob("**/")]:
            with suppress(FileNotFoundError):
                found += [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        return sorted(set(found))

    @property
    def merged(self) -> Path:
        """The box's file system as its disk sees it, from outside: without volatile mounts."""
        assert self._disk is not None
        return Path(f"/proc/{self._disk.pid}/root{self.state}/disk/root")

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The argv that runs a command in the box, as root."""
        enter = ["nsenter", f"--target={self.init_pid}", "--all", "--"]
        return [*_in_cgroup(self._group), *enter, *argv]

    def beside(self, *argv: str, stdin: str = "") -> str:
        """What one of this machine's commands prints that runs on the box's disk and network."""
        assert self._disk is not None
        enter = ["nsenter", f"--target={self._disk.pid}", "--mount", "--net", "--"]
        done = subprocess.run([*enter, *argv], input=stdin, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
        return done.stdout

    def freeze(self, frozen: bool) -> None:
        """Stop, or continue, every process of the box."""
        (self._group / "cgroup.freeze").write_text(str(int(frozen)))
        while f"frozen {int(frozen)}" not in (self._group / "cgroup.events").read_text():
            time.sleep(0.002)

    def resize_disk(self, size: str) -> None:
        """Give the disk another size, in the words of mount(8)."""
        self.beside("mount", "-o", f"remount,size={size}", str(self.state / "disk"))

    def disk_used_kib(self) -> int:
        shown = self.beside("df", "--output=used", "--block-size=1K", str(self.state / "disk"))
        return int(shown.split()[-1])

    def log(self) -> str:
        """What sshd, and what started it, have said so far."""
        return self._log_path.read_text()

    def _plug_in(self) -> None:
        assert self._disk is not None
        link = self.claim.name
        here = [
            f"link add {link} type veth peer name eth0 netns {self._disk.pid}",
            f"address add {self.claim.gateway}/30 dev {link}",
            f"link set {link} up",
            # It stays: what looks for a box that is gone is told so, and never asks beyond here.
            f"route replace unreachable {NETWORK} metric {LAST_RESORT}",
        ]
        there = [
            "link set lo up",
            f"address add {self.claim.address}/30 dev eth0",
            "link set eth0 up",
        ]
        if self.shape.network == "internet":
            there.append(f"route add default via {self.claim.gateway}")
        subprocess.run(
            ["ip", "-batch", "-"], input="\n".join(here), text=True, check=True, capture_output=True
        )
        self.beside("ip", "-batch", "-", stdin="\n".join(there))


def _in_cgroup(group: Path) -> list[str]:
    """The beginning of an argv that starts the rest of it inside of the cgroup."""
    return ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(group / "cgroup.procs")]
