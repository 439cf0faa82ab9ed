"""Real boxes for a cloud: each instance is a machine of tests/boxes with its own sshd.

Facts that shape it: a container's environment is seen in the onstart script and in process 1, never
in an SSH session; the script runs at every container start; who may log in is decided at the start.
"""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.boxes import Box, Fleet, Proxy, Shape, box, fleet
from tests.boxes.fleet import Model
from tests.boxes.shape import TMUX_RC
from tests.clouds.boxes import Spec, Start
from tests.clouds.inlet import Inlet

MODELS: Mapping[str, Model] = {
    "H100_SXM": fleet.H100_SXM,
    "H100_PCIE": fleet.H100_PCIE,
    "H100_NVL": Model("NVIDIA H100 NVL", 95830, "9.0", 400, 61.2),
    "H200": fleet.H200,
    "A100_80GB": fleet.A100_80GB,
    "A100_40GB": fleet.A100_40GB,
    "A100_PCIE": Model("NVIDIA A100 80GB PCIe", 81920, "8.0", 300, 44.7),
    "L40S": fleet.L40S,
    "RTX_4090": Model("NVIDIA GeForce RTX 4090", 24564, "8.9", 450, 21.3),
}
CONTAINER = Shape(shm_mb=16_384)


class RealBoxes:
    """Boxes like `template`, with the GPUs, the user and the disk that were bought."""

    def __init__(self, template: Shape = CONTAINER) -> None:
        self.template = template

    def make(self, spec: Spec, api_port: int) -> "RealBox":
        return RealBox(self._shape(spec), spec, api_port)

    def _shape(self, spec: Spec) -> Shape:
        models = (MODELS[spec.gpu],) * spec.gpu_count if spec.gpu else ()
        return replace(
            self.template,
            gpus=Fleet(models, link=_link(spec)) if models else self.template.gpus,
            user=spec.user,
            systemd=spec.vm,
            workspace="none" if spec.vm else self.template.workspace,
            disk_mb=spec.disk_gb * 10**9 // 2**20,
            rc=TMUX_RC if spec.auto_tmux else self.template.rc,
        )


class RealBox:
    """One box, as a provider handles it."""

    def __init__(self, shape: Shape, spec: Spec, api_port: int) -> None:
        self._spec = spec
        self._proxy: Proxy | None = None
        with ExitStack() as undo:
            self.box: Box = undo.enter_context(box(shape))
            self._inlet = Inlet(self.box.init_pid, api_port)
            undo.callback(self._inlet.close)
            self._undo = undo.pop_all()
        self.host, self.port, self.user = self.box.host, self.box.port, self.box.user

    def proxy_port(self) -> int:
        if self._proxy is None:
            self._proxy = self._undo.enter_context(Proxy(self.host, self.port))
        return self._proxy.port

    def start(self, how: Start) -> None:
        self.authorize(how.keys)
        if self._spec.vm:
            lines = "".join(f"{name}={value}\n" for name, value in how.environment.items())
            (self.box.root / "etc/environment").write_text(lines)
            return
        # sshd, process 1 of a box, writes its title over its environment.
        environ = self.box.root / "run/environ"
        environ.write_text("".join(f"{name}={value}\0" for name, value in how.environment.items()))
        environ.chmod(0o400)
        self.box.sh("mount --bind /run/environ /proc/1/environ")
        if how.script:
            (self.box.root / "root/onstart.sh").write_text(how.script)
            self._run_onstart(how.environment)

    def authorize(self, keys: Sequence[str]) -> None:
        (self.box.home / ".ssh/authorized_keys").write_text("".join(f"{key}\n" for key in keys))

    def restart(self) -> None:
        self.box.restart()

    def reboot(self) -> None:
        self.box.reboot()

    def halt(self) -> None:
        self.box.power_off()

    def boot(self) -> None:
        if self._spec.vm:
            self.box.reboot()
        else:
            self.box.restart()

    def destroy(self) -> None:
        self._undo.close()

    def refuse_ssh(self) -> None:
        self.box.refuse()

    def refuse_proxy(self) -> None:
        self.proxy_port()
        assert self._proxy is not None
        self._proxy.refuse()

    def cut_off(self) -> None:
        self._inlet.close()

    def traffic(self) -> tuple[int, int]:
        """What this machine's end of the box's link has received and sent."""
        counters = Path(f"/sys/class/net/{self.box.name}/statistics")
        sent, received = ((counters / f"{way}_bytes").read_text() for way in ("rx", "tx"))
        return int(sent), int(received)

    def _run_onstart(self, environment: Mapping[str, str]) -> None:
        """Begin it; it goes on by itself."""
        exports = "".join(
            f"export {name}={shlex.quote(value)}\n"
            for name, value in environment.items()
            if name.isidentifier()
        )
        begin = "setsid --fork bash /root/onstart.sh </dev/null >/var/log/onstart.log 2>&1\n"
        done = self.box.run(["sh"], stdin=exports + begin)
        assert done.returncode == 0, done.stderr


def _link(spec: Spec) -> str:
    """What `nvidia-smi topo -m` says between two GPUs of the machine."""
    if not spec.linked:
        return "NODE"
    return "NV12" if spec.gpu.startswith("A100") else "NV18"
