"""From an end to its verdict: gather the evidence, read it, decide, and say it in a message."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gpurun.clock import Clock
from gpurun.engine.watch import stacks
from gpurun.engine.watch.evidence import gather, kept, last_lines
from gpurun.engine.watch.signs import newer
from gpurun.engine.watch.table import TABLE
from gpurun.engine.watch.verdict import Found, Verdict, decide
from gpurun.engine.watch.watcher import Failed, Watcher
from gpurun.shell import Shell

SHOWN_LINES = 10
END_LINES, STALL_LINES = 1000, 50  # a training that stands still has said why lately, or not at all


@dataclass(frozen=True, slots=True)
class Judged:
    """A failed training, why it failed, and where the evidence lies."""

    failed: Failed
    verdict: Verdict
    evidence: Path
    last_lines: str

    @property
    def message(self) -> str:
        return (
            f"{self.failed.error}: {self.verdict.says} {self.verdict.cure}\n"
            f"Evidence: {self.evidence}\nIts last lines:\n{self.last_lines}"
        )

    def document(self) -> dict[str, str]:
        """The `verdict` of `status --json`."""
        return asdict(self.verdict) | {"evidence": str(self.evidence)}


def judge(
    watcher: Watcher,
    failed: Failed,
    shell: Shell,
    *,
    clock: Clock,
    into: Path,
    within_s: float,
    log: Path,
) -> Judged:
    """Ask the box what there is to see, for at most `within_s`, and decide."""
    last = watcher.gpus
    watcher.look_at_health()
    folder = gather(shell, into, failed, clock=clock, within_s=within_s, log=log, gpus=last)
    verdict = decide(found_in(folder, failed, watcher, log), TABLE)
    judged = Judged(failed, verdict, folder, tail(log))
    try:
        (folder / "verdict.json").write_text(json.dumps(asdict(verdict), indent=1))
        (folder / "verdict.txt").write_text(f"{verdict.says}\n{verdict.cure}\n")
    except OSError:
        pass  # a full disk here does not change what is said
    return judged


def found_in(folder: Path, failed: Failed, watcher: Watcher, log: Path) -> Found:
    """The evidence of a folder, and what the watcher has seen since the training began."""
    stalled = failed.how in ("hang", "idle")
    since_s = watcher.signs.kernel_since_s
    kernel = kept(folder, "kernel.txt").splitlines()
    return Found(
        how=failed.how,
        exit_code=failed.exit_code,
        log="\n".join(last_lines(log, STALL_LINES if stalled else END_LINES)),
        kernel="\n".join(newer(kernel, since_s or 0.0) or watcher.signs.kernel),
        gpus=watcher.gpus,
        stacks=tuple(stacks.ranks(stacks.read(kept(folder, "stacks.txt")))),
        oom_kills=watcher.signs.oom_kills,
        broken_loss=watcher.progress.broken_since is not None,
        disk_free_gb=watcher.signs.disk_free_gb,
    )


def tail(log: Path, lines: int = SHOWN_LINES) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(last_lines(log, lines + 1)).strip("\n") or "(it printed nothing)"
