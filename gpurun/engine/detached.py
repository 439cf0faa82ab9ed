"""A command launched once on a box, that nothing of ours has to outlive.

`mkdir` makes the launch happen once; the exit code is written beside and renamed, so that it is
whole or absent; the boot id tells "still running" from "the box was rebooted".
"""

import base64
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.phases import ENV_FILE, KEEP
from gpurun.shell import Shell

LOG_CHUNK_BYTES = 256 * 1024
BOOT_ID = "cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo none"


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at a detached command showed."""

    started: bool
    alive: bool
    rebooted: bool
    exit_code: int | None
    log: bytes  # what was printed since the given offset, at most one chunk
    metrics: tuple[str, ...]  # the last lines of the metrics file


def launch_text(name: str, command: str, secrets_file: str) -> str:
    """sh text that launches the command once; a second launch does nothing."""
    at, secrets = f"{KEEP}/{name}", shlex.quote(secrets_file)
    inner = (
        f"echo $$ > {at}.started/pid; trap : TERM\n"
        f"[ ! -f {ENV_FILE} ] || . ./{ENV_FILE}\n"
        f"[ ! -f {secrets} ] || {{ . {secrets}; rm -f {secrets}; }}\n"
        f"(\n{command}\n)\n"
        f"echo $? > {at}.tmp; mv {at}.tmp {at}.exit\n"
    )
    python = "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"
    return (
        f"mkdir {at}.started 2>/dev/null || exit 0\n"
        f"({BOOT_ID}) > {at}.started/boot; mkdir -p logs\n"
        f"inner={shlex.quote(inner)}\n"
        'if command -v setsid >/dev/null; then alone() { exec setsid sh -c "$1"; }\n'
        f'else alone() {{ exec python3 -c {shlex.quote(python)} sh -c "$1"; }}; fi\n'
        f"(trap '' HUP; alone \"$inner\") > logs/{name}.log 2>&1 </dev/null &\n"
        # Nothing may launch it a second time, so it must be known to run before we say so.
        f"until [ -s {at}.started/pid ]; do sleep 0.05; done"
    )


def look(shell: Shell, name: str, offset: int, metrics_glob: str | None, timeout_s: float) -> Sight:
    """One round trip: is it running, how did it end, what did it print since `offset` (bytes)."""
    at = f"{KEEP}/{name}"
    metrics = f"tail -qn 40 {_unquoted_glob(metrics_glob)} 2>/dev/null" if metrics_glob else ":"
    text = (
        f"[ -d {at}.started ] || {{ echo none; exit 0; }}\n"
        f"echo started; cat {at}.exit 2>/dev/null || echo -\n"
        f'kill -0 "$(cat {at}.started/pid)" 2>/dev/null && echo alive || echo dead\n'
        f'[ "$({BOOT_ID})" = "$(cat {at}.started/boot)" ] && echo same || echo rebooted\n'
        f"tail -c +{offset + 1} logs/{name}.log | head -c {LOG_CHUNK_BYTES}"
        " | base64 | tr -d '\\n'\n"
        f"echo\n{metrics}\n"
    )
    result = shell.run(text, timeout_s=timeout_s)
    lines = result.output.splitlines()
    if lines[:1] != ["none"] and len(lines) < 5:
        raise ConnectionError(f"the look at the box failed ({result.exited}): {result.tail(1)}")
    if lines[:1] == ["none"]:
        return Sight(False, False, False, None, b"", ())
    return Sight(
        started=True,
        alive=lines[2] == "alive",
        rebooted=lines[3] == "rebooted",
        exit_code=int(lines[1]) if lines[1].lstrip("-").isdigit() else None,
        log=base64.b64decode(lines[4]),
        metrics=tuple(lines[5:]),
    )


def terminate_text(name: str) -> str:
    """sh text that asks the command and all it started to stop (SIGTERM)."""
    # `kill -TERM -- -PID` is an error in dash.
    return f'kill -s TERM -- "-$(cat {KEEP}/{name}.started/pid)" 2>/dev/null || :'


def kill_text(name: str) -> str:
    """sh text that ends it (SIGKILL)."""
    return f'kill -s KILL -- "-$(cat {KEEP}/{name}.started/pid)" 2>/dev/null || :'


def _unquoted_glob(glob: str) -> str:
    """A glob for the box's shell, everything but the wildcards quoted."""
    parts: list[str] = []
    for character in glob:
        parts.append(character if character in "*?/" else shlex.quote(character))
    return "".join(parts)


def exports(values: Sequence[tuple[str, str]]) -> str:
    """Lines for the secrets file."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values)
