"""A command launched once on a box, that nothing of ours has to outlive.

`mkdir` makes the launch happen once; the exit code is written beside and renamed, so that it is
whole or absent, into room that was taken before: the command may fill the disk.  The boot id tells
"still running" from "the box was rebooted".
"""

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gpurun.phases import ENV_FILE, KEEP
from gpurun.shell import Shell

LOG_CHUNK_BYTES = 256 * 1024
WAIT_STEP_S = 0.2
LAUNCHED_WITHIN_S = 5
SECTION = "gpurun-section"
_CODE = "printf '%-3s\\n'"  # as long for one code as for another
# A pid may be another process's by now, one that started later; without /proc nothing tells.
_START = (
    'start() { { IFS= read -r s < "/proc/$1/stat"; } 2>/dev/null || return 0; '
    'set -- ${s##*) }; echo "${20}"; }'
)
BOOT_ID = "cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo none"


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at a detached command showed."""

    started: bool
    alive: bool
    rebooted: bool
    exit_code: int | None
    log: bytes  # what was printed since the given offset, at most one chunk
    sections: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what else was asked


def log_of(name: str) -> str:
    """The training's log is among what is collected; a step's lies with our own files."""
    return f"{KEEP}/{name}.log" if "/" in name else f"logs/{name}.log"


def launch_text(name: str, command: str, secrets_file: str = "") -> str:
    """sh text that launches the command once; a second launch does nothing."""
    at, log, secrets = f"{KEEP}/{name}", log_of(name), shlex.quote(secrets_file)
    inner = (
        f"{_START}\nstart $$ > {at}.started/start; echo $$ > {at}.started/pid; trap : TERM\n"
        f"[ ! -f {ENV_FILE} ] || . ./{ENV_FILE}\n"
        f"[ ! -f {secrets} ] || {{ . {secrets}; rm -f {secrets}; }}\n"
        f"{_CODE} - > {at}.tmp\n"
        f"(\n{command}\n)\n"
        f"{_CODE} $? 1<> {at}.tmp; mv {at}.tmp {at}.exit\n"
    )
    python = "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"
    return (
        f"mkdir -p $(dirname {at}) $(dirname {log})\n"
        f"if ! mkdir {at}.started 2>/dev/null; then\n"
        # Whoever launches it may be about to: until then it would look like one that died.
        f"n={LAUNCHED_WITHIN_S * 20}\n"
        f'until [ -s {at}.started/pid ] || [ "$n" = 0 ]; do n=$((n - 1)); sleep 0.05; done\n'
        "exit 0\nfi\n"
        f"({BOOT_ID}) > {at}.started/boot\n"
        f"inner={shlex.quote(inner)}\n"
        'if command -v setsid >/dev/null; then alone() { exec setsid sh -c "$1"; }\n'
        f'else alone() {{ exec python3 -c {shlex.quote(python)} sh -c "$1"; }}; fi\n'
        f"(trap '' HUP; alone \"$inner\") > {log} 2>&1 </dev/null &\n"
        # Nothing may launch it a second time, so it must be known to run before we say so.
        f"until [ -s {at}.started/pid ]; do sleep 0.05; done"
    )


def look(
    shell: Shell,
    name: str,
    offset: int,
    sections: Mapping[str, str] = MappingProxyType({}),
    *,
    timeout_s: float,
    wait_s: float = 0,
) -> Sight:
    """One round trip: is it running, how did it end, what did it print since `offset` (bytes).

    `sections` is more sh text to be run there, by name.  With `wait_s` the box answers as soon
    as there is news, and after that time without.
    """
    at = f"{KEEP}/{name}"
    also = "".join(f"echo {SECTION} {key}; (\n{text}\n)\n" for key, text in sections.items())
    text = (
        f"[ -d {at}.started ] || {{ echo none; exit 0; }}\n"
        f"{{\n{_wait_text(name, offset, wait_s)}"
        f"echo started; code=; [ ! -e {at}.exit ] || read -r code < {at}.exit\n"
        'echo "${code:--}"\n'
        f'{_ours(name)} && kill -0 "$pid" 2>/dev/null && echo alive || echo dead\n'
        f'[ "$({BOOT_ID})" = "$(cat {at}.started/boot)" ] && echo same || echo rebooted\n'
        f"tail -c +{offset + 1} {log_of(name)} | head -c {LOG_CHUNK_BYTES}"
        " | base64 | tr -d '\\n'\n"
        # What a command substitution complains of would stand among the answers.
        f"}} 2>/dev/null\necho\n{also}"
    )
    result = shell.run(text, timeout_s=timeout_s)
    lines = result.output.splitlines()
    if lines[:1] != ["none"] and len(lines) < 5:
        raise ConnectionError(f"the look at the box failed ({result.exited}): {result.tail(1)}")
    if lines[:1] == ["none"]:
        return Sight(False, False, False, None, b"")
    return Sight(
        started=True,
        alive=lines[2] == "alive",
        rebooted=lines[3] == "rebooted",
        exit_code=int(lines[1]) if lines[1].lstrip("-").isdigit() else None,
        log=base64.b64decode(lines[4]),
        sections=_sections(lines[5:]),
    )


def terminate_text(name: str) -> str:
    """sh text that asks the command and all it started to stop (SIGTERM)."""
    # `kill -TERM -- -PID` is an error in dash.
    return f'{{ {_ours(name)} && kill -s TERM -- "-$pid"; }} 2>/dev/null || :'


def kill_text(name: str) -> str:
    """sh text that ends it (SIGKILL)."""
    return f'{{ {_ours(name)} && kill -s KILL -- "-$pid"; }} 2>/dev/null || :'


def _ours(name: str) -> str:
    """sh text, of several lines: sets `pid`; 0 unless its number is another process's now."""
    at = f"{KEEP}/{name}.started"
    return (
        f"{_START}\npid=$(cat {at}/pid) && was=$(cat {at}/start || :) && "
        'now=$(start "$pid") && '
        '{ [ -z "$was" ] || [ -z "$now" ] || [ "$now" = "$was" ]; }'
    )


def _wait_text(name: str, offset: int, wait_s: float) -> str:
    if wait_s <= 0:
        return ""
    return (
        f"n={round(wait_s / WAIT_STEP_S)}\n"
        f'while [ "$n" -gt 0 ] && [ ! -e {KEEP}/{name}.exit ]'
        f' && kill -0 "$(cat {KEEP}/{name}.started/pid)" 2>/dev/null'
        f" && [ $(($(wc -c < {log_of(name)}))) -le {offset} ]; do\n"
        f"n=$((n - 1)); sleep {WAIT_STEP_S}; done\n"
    )


def _sections(lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        first, _, name = line.partition(" ")
        if first == SECTION:
            found[name] = []
        elif found:
            found[next(reversed(found))].append(line)
    return {name: tuple(said) for name, said in found.items()}


def tail_text(glob: str) -> str:
    """sh text that prints the last lines of the files that match."""
    return f"tail -qn 40 {_unquoted_glob(glob)} 2>/dev/null"


def _unquoted_glob(glob: str) -> str:
    """A glob for the box's shell, everything but the wildcards quoted."""
    parts: list[str] = []
    for character in glob:
        parts.append(character if character in "*?/" else shlex.quote(character))
    return "".join(parts)


def exports(values: Sequence[tuple[str, str]]) -> str:
    """Lines for the secrets file."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values)
