"""Runs on the box, by the box's own Python: where is each process of a training, right now?

    python3 - SECONDS < onbox.py      in the run's directory

It prints a part for each process: its stacks, by faulthandler where the program has registered it
on SIGUSR1, else by py-spy, and in any case what the kernel knows.  The signal goes to nobody who
has no handler for it: it would end them.  Names of environment variables are printed, never values.
Flight recorder dumps of NCCL are asked for and copied into .gpurun/evidence.
Standard library only.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

KEEP = Path(".gpurun")
LOG = Path("logs/train.log")
MOST_PROCESSES = 40
STACK_WAIT_S = 1.5
INSTALL_S = 20
DUMP_WAIT_S = 3.0
DUMP_BYTES = 8 * 1024 * 1024
MOST_DUMPS = 16
PROC = Path("/proc")


def main() -> None:
    until_s = time.monotonic() + float(sys.argv[1])
    processes = of_the_training()
    print("== environment names\n" + " ".join(environment_names(processes)))
    ask_for_dumps(processes)
    seen = False
    for pid in sorted(processes, key=order)[:MOST_PROCESSES]:
        print(f"== process {pid} rank {environ(pid).get('RANK', '-')}: {words(pid)}")
        if time.monotonic() < until_s:
            text = stacks(pid, may_install=not seen)
            seen = seen or text.startswith("-- stack")
            print(text)
        print("-- kernel\n" + kernel(pid), flush=True)
    copy_dumps(processes)


def of_the_training() -> set[int]:
    """The launched process, what it started, and what bears the run's mark."""
    try:
        first = int((KEEP / "train.started" / "pid").read_text())
    except (OSError, ValueError):
        return set()
    parents = {pid: parent(pid) for pid in all_pids()}
    found = {first} & set(parents)
    while more := {pid for pid, above in parents.items() if above in found} - found:
        found |= more
    mark = environ(first).get("GPURUN_LABEL")
    if mark:  # workers outlive the process that started them
        found |= {pid for pid in parents if environ(pid).get("GPURUN_LABEL") == mark}
    return found - {os.getpid(), os.getppid()}


def stacks(pid: int, *, may_install: bool) -> str:
    """Of all its threads, by the gentlest means that works."""
    if "python" not in Path(executable(pid)).name:
        return "-- no stack: not Python"
    if catches(pid, signal.SIGUSR1) and (text := by_signal(pid)):
        return "-- stack by faulthandler\n" + text
    return by_py_spy(pid, may_install=may_install)


def by_signal(pid: int) -> str:
    """What the process writes to its log once it is asked: until it falls silent."""
    logs = {LOG.resolve(), *targets(pid)}
    before = {log: size(log) for log in logs}
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
    began_s = last_s = time.monotonic()
    seen = 0
    while time.monotonic() - began_s < STACK_WAIT_S:
        time.sleep(0.02)
        grown = sum(size(log) - start for log, start in before.items())
        if grown > seen:
            seen, last_s = grown, time.monotonic()
        elif seen and time.monotonic() - last_s > 0.1:
            break
    text = "".join(tail(log, start) for log, start in before.items())
    return text if "most recent call first" in text else ""


def by_py_spy(pid: int, *, may_install: bool) -> str:
    """Needs ptrace, which many containers do not offer."""
    program = py_spy(pid, may_install=may_install)
    if program is None:
        return "-- no stack: faulthandler is not registered on SIGUSR1, and there is no py-spy"
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"-- no stack: py-spy: {type(error).__name__}"
    if done.returncode != 0:
        return f"-- no stack: py-spy: {done.stderr.strip()[-300:]}"
    return "-- stack by py-spy\n" + done.stdout


def py_spy(pid: int, *, may_install: bool) -> str | None:
    """One that is here; else from the package index, where we may look into processes at all."""
    own = KEEP / "py-spy"
    found = shutil.which("py-spy", path=f"{os.environ.get('PATH', '')}:venv/bin:{own}/bin")
    if found is None and may_install and not own.exists() and may_look_into(pid):
        own.mkdir()
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(own), "py-spy<0.5"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_S
            )
        found = shutil.which("py-spy", path=f"{own}/bin")
    return found


def may_look_into(pid: int) -> bool:
    """The kernel asks the same question of whoever opens this file as of ptrace."""
    try:
        with (PROC / str(pid) / "mem").open("rb"):
            return True
    except OSError:
        return False


def kernel(pid: int) -> str:
    """State and memory, and where the kernel holds each thread that waits."""
    lines = [
        line
        for line in read(PROC / str(pid) / "status").splitlines()
        if line.startswith(("State", "VmRSS", "Threads", "PPid"))
    ]
    for task in sorted((PROC / str(pid) / "task").glob("*"))[:64]:
        what = read(task / "stack").split("\n")[:3]
        wait = read(task / "wchan")
        call = read(task / "syscall").split(" ")[0].strip()
        lines.append(
            f"  thread {task.name} {read(task / 'comm').strip()}: wchan {wait or '?'}"
            f" syscall {call or '?'} {' '.join(what)}".rstrip()
        )
    return "\n".join(lines)


def ask_for_dumps(processes: set[int]) -> None:
    """PyTorch's flight recorder dumps when its pipe is written to, if it was given one."""
    asked = False
    for pid in processes:
        known = environ(pid)
        base, rank = known.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"), known.get("RANK")
        if base and rank:
            with contextlib.suppress(OSError):  # nobody reads it
                pipe = os.open(f"{base}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, b"1\n")
                os.close(pipe)
                asked = True
    if asked:
        time.sleep(DUMP_WAIT_S)


def copy_dumps(processes: set[int]) -> None:
    """What the recorder has left since the training began, a file for each rank."""
    with contextlib.suppress(OSError):
        began_s = (KEEP / "train.started" / "pid").stat().st_mtime
        bases = {"/tmp/nccl_trace_rank_", str(Path.home() / ".cache/torch/comm_lib_trace_rank_")}
        for pid in processes:
            for name in ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"):
                if base := environ(pid).get(name):
                    bases.add(base)
        found = sorted({path for base in map(Path, bases) for path in dumps(base)})
        into = KEEP / "evidence"
        into.mkdir(exist_ok=True)
        for path in found[:MOST_DUMPS]:
            info = path.stat()
            if info.st_mtime >= began_s and info.st_size <= DUMP_BYTES:
                name = re.sub(r"[^\w.-]", "_", path.name)
                shutil.copyfile(path, into / name)
                print(f"== dump {name}")


def dumps(base: Path) -> list[Path]:
    """The files whose names begin like this."""
    try:
        return [path for path in base.parent.iterdir() if path.name.startswith(base.name)]
    except OSError:
        return []


def order(pid: int) -> tuple[bool, int, int]:
    """Ranks first: there may be many loaders."""
    rank = environ(pid).get("RANK", "")
    child = environ(parent(pid)).get("RANK", "") == rank
    return (not rank.isdigit() or child, int(rank) if rank.isdigit() else 0, pid)


def environment_names(processes: set[int]) -> list[str]:
    return sorted({name for pid in processes for name in environ(pid)})


def environ(pid: int) -> dict[str, str]:
    entries = read(PROC / str(pid) / "environ").split("\0")
    return {name: value for name, found, value in (e.partition("=") for e in entries) if found}


def catches(pid: int, number: int) -> bool:
    matched = re.search(r"^SigCgt:\s*([0-9a-f]+)", read(PROC / str(pid) / "status"), re.M)
    return matched is not None and bool(int(matched.group(1), 16) >> (number - 1) & 1)


def targets(pid: int) -> list[Path]:
    """The ordinary files that the process prints to."""
    found = []
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            path = (PROC / str(pid) / "fd" / str(descriptor)).readlink()
            if path.is_file():
                found.append(path)
    return found


def executable(pid: int) -> str:
    try:
        return str((PROC / str(pid) / "exe").readlink())
    except OSError:
        return ""


def words(pid: int) -> str:
    return " ".join(read(PROC / str(pid) / "cmdline").split("\0"))[:200].replace("\n", " ")


def parent(pid: int) -> int:
    fields = read(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def all_pids() -> list[int]:
    return [int(path.name) for path in PROC.glob("[0-9]*")]


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path, start: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(256 * 1024).decode(errors="replace")
    except OSError:
        return ""


def read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main()
