"""One masquerade rule per box that may reach package registries, and forwarding while one is open.

Called under the lock of tests/boxes/claims.py: the first box to open turns forwarding on and writes
down what it was, the last one to close puts that back.
"""

import subprocess
from pathlib import Path

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


def open_to(state: Path, network: str) -> None:
    """Let `network` (a /30) out through this machine's own address."""
    before = state / "ip_forward.before"
    if not before.exists():
        before.write_text(FORWARDING.read_text())
    FORWARDING.write_text("1")
    (state / "nat").mkdir(exist_ok=True)
    _note(state, network).touch()  # first, so that whoever is killed here is cleaned up after
    subprocess.run(["iptables", "-w", "-t", "nat", "-A", *_rule(network)], check=True)


def close(state: Path, network: str) -> None:
    """Take the rule back; nothing happens when there is none."""
    if not _note(state, network).exists():
        return
    gone = subprocess.run(
        ["iptables", "-w", "-t", "nat", "-D", *_rule(network)], capture_output=True, text=True
    )
    assert gone.returncode in (0, 1), gone.stderr  # 1: the rule is not there
    _note(state, network).unlink()
    before = state / "ip_forward.before"
    if not any((state / "nat").iterdir()):
        FORWARDING.write_text(before.read_text())
        before.unlink()


def opened(state: Path) -> set[str]:
    """The networks that were opened and not closed."""
    return {note.name.replace("_", "/") for note in (state / "nat").glob("*")}


def rules() -> list[str]:
    """The masquerade rules of test boxes that are in force now."""
    shown = subprocess.run(
        ["iptables", "-w", "-t", "nat", "-S", "POSTROUTING"],
        check=True,
        capture_output=True,
        text=True,
    )
    return [line for line in shown.stdout.splitlines() if "gpurun-test-box" in line]


def _rule(network: str) -> list[str]:
    why = ["-m", "comment", "--comment", "gpurun-test-box"]
    return ["POSTROUTING", "-s", network, *why, "-j", "MASQUERADE"]


def _note(state: Path, network: str) -> Path:
    return state / "nat" / network.replace("/", "_")
