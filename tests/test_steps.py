"""A step of a phase outlives whoever launched it, and is done once."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpurun.clock import Deadline, SystemClock
from gpurun.engine import detached, steps
from gpurun.engine.steady import SteadyShell
from gpurun.errors import PhaseFailed
from gpurun.model import Need
from gpurun.shell import TIMED_OUT, UNKNOWN_OUTCOME, Result
from gpurun.shell.local import LocalShell
from provisioners.local import processes
from tests.contract import order
from tests.fakecloud import FakeClock, FakeCloud

NAME = steps.name_of("run1", "setup", 0, "text")


class Lossy:
    """A line that loses the answer of every other command, after the box has done it."""

    def __init__(self, shell: LocalShell) -> None:
        self.shell = shell
        self.sent = 0

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        stdin: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Result:
        done = self.shell.run(command, timeout_s=timeout_s, stdin=stdin, on_line=on_line)
        self.sent += 1
        return Result(UNKNOWN_OUTCOME, "cut") if self.sent % 2 else done

    def put(self, source: Path, target: str) -> None:
        self.shell.put(source, target)

    def get(self, source: str, target: Path) -> None:
        self.shell.get(source, target)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[LocalShell]:
    (tmp_path / "root").mkdir()
    made = LocalShell(tmp_path / "root", env={"PATH": "/usr/local/bin:/usr/bin:/bin"})
    yield made
    made.run(detached.kill_text(NAME), timeout_s=10)


def perform(shell: LocalShell | SteadyShell, text: str, timeout_s: float = 20) -> tuple[int, str]:
    lines: list[str] = []
    result = steps.perform(
        shell, NAME, text, timeout_s=timeout_s, clock=SystemClock(), on_line=lines.append
    )
    assert result.output == "".join(f"{line}\n" for line in lines) or not result.output
    return result.exited, "|".join(lines)


def test_its_lines_and_exit_code_are_the_commands_own(shell: LocalShell) -> None:
    assert perform(shell, "echo one; echo two >&2; exit 3") == (3, "one|two")


def test_it_fails_when_any_line_of_it_fails(shell: LocalShell) -> None:
    assert perform(shell, "echo one\nfalse\necho two") == (1, "one")


def test_who_comes_second_hears_it_from_the_first_line_and_does_not_repeat_it(
    shell: LocalShell,
) -> None:
    text = "echo begun; until [ -e go ]; do sleep 0.05; done; echo x >> done; echo ended"
    first = threading.Thread(target=perform, args=(shell, text))
    first.start()
    heard: list[str] = []

    def hear(line: str) -> None:
        heard.append(line)
        (shell.root / "go").touch()

    clock = SystemClock()
    result = steps.perform(shell, NAME, text, timeout_s=20, clock=clock, on_line=hear)
    first.join()
    assert (result.exited, heard) == (0, ["begun", "ended"])
    assert (shell.root / "done").read_text() == "x\n"


def test_a_step_that_takes_too_long_is_killed_with_all_it_started(shell: LocalShell) -> None:
    code, _ = perform(shell, "sleep 60 & echo $! > child; wait", timeout_s=1)
    assert code == TIMED_OUT
    child = int((shell.root / "child").read_text())
    deadline = Deadline(10)
    while (left := processes.find(child)) and not left.dead:
        assert not deadline.passed()


def test_a_step_that_was_killed_says_so(shell: LocalShell) -> None:
    with pytest.raises(PhaseFailed, match=r"it was killed.*\n.*begun"):
        perform(shell, f"echo begun; kill -s KILL -- -$(cat .gpurun/{NAME}.started/pid)")


def test_a_box_that_was_restarted_under_it_is_told(shell: LocalShell) -> None:
    assert perform(shell, "exit 0") == (0, "")
    marks = shell.root / f".gpurun/{NAME}"
    Path(f"{marks}.exit").unlink()
    Path(f"{marks}.started/boot").write_text("another boot\n")
    with pytest.raises(PhaseFailed, match="restarted under it"):
        perform(shell, "exit 0")


def test_lost_answers_neither_repeat_nor_fail_a_step(shell: LocalShell) -> None:
    cloud = FakeCloud(FakeClock())
    made = cloud.create(order(cloud, need=Need(None, 0, 1)))
    lossy = Lossy(shell)
    steady = SteadyShell(lossy, cloud, made.instance_id, FakeClock(), lambda: 60.0)
    assert perform(steady, "echo x >> done; cat done; exit 4") == (4, "x")
    assert lossy.sent >= 4


def test_of_a_box_that_is_gone_nothing_more_is_asked(shell: LocalShell) -> None:
    cloud, clock = FakeCloud(FakeClock()), FakeClock()
    lossy = Lossy(shell)
    steady = SteadyShell(lossy, cloud, "nothing", clock, lambda: 3600.0)
    began_s = clock.boot_s()
    assert steady.run("true", timeout_s=5).exited == UNKNOWN_OUTCOME
    assert clock.boot_s() == began_s
    assert lossy.sent == 1


def test_patience_ends(shell: LocalShell) -> None:
    cloud, clock = FakeCloud(FakeClock()), FakeClock()
    made = cloud.create(order(cloud, need=Need(None, 0, 1)))

    class Dead(Lossy):
        def run(self, *_: object, **__: object) -> Result:
            return Result(UNKNOWN_OUTCOME, "no route")

    steady = SteadyShell(Dead(shell), cloud, made.instance_id, clock, lambda: 30.0)
    began_s = clock.boot_s()
    assert steady.run("true", timeout_s=5).exited == UNKNOWN_OUTCOME
    assert 30 <= clock.boot_s() - began_s <= 36
