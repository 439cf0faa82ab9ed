"""What a box shows of a training that failed or stands still, kept before anything is ended.

Bounded in time and size: each part has its own limit, and none is begun after the whole one.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gpurun.clock import Clock
from gpurun.engine.watch.gpus import GpuSample
from gpurun.engine.watch.watcher import Failed
from gpurun.phases import KEEP
from gpurun.shell import UNKNOWN_OUTCOME, Shell

STACKS_S = 45.0
STACKS_SHARE = 0.7  # of their time, until no further process is asked
PART_BYTES = 256 * 1024
DUMPS, MOST_DUMPS = "dumps", 16  # in a folder of their own: the box gives them their names
LOG_LINES = 200
LEAST_S = 1.0
ONBOX = Path(__file__).with_name("onbox.py")
_DUMP = re.compile(r"^== dump ([\w][\w.-]{0,99})$", re.M)
_SECRET = re.compile(r"(?i)([\w-]*(?:key|token|secret|passw(?:or)?d|credential)[\w-]*[= ])\S+")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the evidence, and the sh text whose output it holds."""

    file: str
    text: str
    limit_s: float


STACKS = Part(
    "stacks.txt",
    "$([ -x venv/bin/python ] && echo venv/bin/python || echo python3) - {seconds:.0f}",
    STACKS_S,
)
PROCESSES = (
    "ps -e -ww --forest -o pid,ppid,pgid,stat,etimes,time,pcpu,rss,nlwp,wchan:20,args 2>&1"
    " | cut -c 1-300"
)
PARTS = (
    Part("nvidia-smi.txt", "nvidia-smi 2>&1; nvidia-smi -q 2>&1", 15),
    Part("kernel.txt", "dmesg 2>&1 | tail -n 200", 5),
    Part("processes.txt", PROCESSES, 5),
    Part(
        "machine.txt",
        "uptime; free -m; df -Pk . /dev/shm; df -Pi .; ls -la /dev/shm | head -n 50; ulimit -a\n"
        "for f in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.current"
        " /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control\n"
        'do echo "== $f"; cat "$f" 2>/dev/null; done',
        5,
    ),
)


def gather(
    shell: Shell,
    into: Path,
    failed: Failed,
    *,
    clock: Clock,
    within_s: float,
    log: Path,
    gpus: GpuSample | None = None,
) -> Path:
    """Write the folder `into`; a part that cannot be had says so in its file.  Never raises for it.

    Stacks are taken of what still runs: of a training that hangs or idles.
    """
    with suppress(OSError):
        into.mkdir(parents=True, exist_ok=True)
    until_s = clock.boot_s() + within_s
    said = asdict(failed) | {"gpus": asdict(gpus) if gpus else None}
    _write(into / "end.json", json.dumps(said, indent=1))
    _write(into / "log-tail.txt", "\n".join(last_lines(log, LOG_LINES)))
    parts = (STACKS, *PARTS) if failed.how in ("hang", "idle") else PARTS
    answers = True
    for part in parts:
        left_s = min(part.limit_s, until_s - clock.boot_s())
        if left_s < LEAST_S or not answers:
            why = "there was no time left" if answers else "the box did not answer before"
            _write(into / part.file, f"not asked: {why}\n")
            continue
        text, stdin = part.text, ""
        if part is STACKS:
            text, stdin = part.text.format(seconds=left_s * STACKS_SHARE), ONBOX.read_text()
        answers, said_of_it = _ask(shell, text, left_s, stdin=stdin)
        _write(into / part.file, said_of_it)
        if part is STACKS:
            _fetch_dumps(shell, into, said_of_it)
    return into


def last_lines(log: Path, lines: int) -> list[str]:
    """Of the local copy of the log; a progress bar's carriage returns end lines too."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - PART_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return re.split(r"\r\n|\r|\n", text)[-lines:]


def kept(folder: Path, file: str) -> str:
    """One part of the evidence; empty when it is not there."""
    try:
        return (folder / file).read_text(errors="replace")
    except OSError:
        return ""


def _ask(shell: Shell, text: str, limit_s: float, *, stdin: str) -> tuple[bool, str]:
    """Whether the box answers at all, and what it said."""
    bounded = f"{{ {text}\n}} | head -c {PART_BYTES}"
    try:
        result = shell.run(bounded, timeout_s=limit_s, stdin=stdin)
    except OSError as error:
        return False, f"it could not be asked: {error}\n"
    lines = [_without_keys(line, text) for line in result.output.splitlines()]
    if not result.ok:
        lines.append(f"(exit {result.exited})")
    elif len(result.output) >= PART_BYTES:
        lines.append("(cut here)")
    return result.exited != UNKNOWN_OUTCOME, "\n".join(lines) + "\n"


def _without_keys(line: str, text: str) -> str:
    """People put keys into command lines."""
    if text == PROCESSES or line.startswith("== process"):
        return _SECRET.sub(r"\1***", line)
    return line


def _fetch_dumps(shell: Shell, into: Path, said: str) -> None:
    names: Sequence[str] = _DUMP.findall(said)[:MOST_DUMPS]
    for name in dict.fromkeys(names):
        with suppress(OSError):
            (into / DUMPS).mkdir(exist_ok=True)
            shell.get(f"{KEEP}/evidence/{name}", into / DUMPS / name)


def _write(path: Path, text: str) -> None:
    """A full disk here loses the evidence, never the ending."""
    with suppress(OSError):
        path.write_text(text, errors="replace")
