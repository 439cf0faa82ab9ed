"""The fuse: a dead man's switch that runs on the box, or beside it, and needs nobody.

Its deadline F is `ends_at` + margin, so that it never cuts a collection the keeper is making.
Within one boot of the box only the box's uptime decides: no step of a wall clock kills or delays.
The script is POSIX sh and holds no secret; all its words and paths are quoted.  One home holds the
fuse of one label: fuse.sh, fuse.timer (the deadline), fuse.pid, fuse.beat (what it last saw).
"""

import math
import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from gpurun.clock import Clock
from gpurun.model import Timer
from gpurun.shell import Shell

MARGIN_S = 120
TERM_DELAY_S = 60
BEAT_WITHIN_S = 60  # it beats every 5 s
ANSWER_WITHIN_S = 30.0
SENT_WITHIN_S = 10.0
REPORT = "gpurun-fuse"
MOST_SEQ = 2**31
LAST_END_S = 4102444800  # the year 2100
_SCRIPT = Path(__file__).with_name("fuse.sh").read_text()


@dataclass(frozen=True, slots=True)
class FuseState:
    """What the fuse was read to hold; `seq` is what its process took in, not what was sent."""

    seq: int
    ends_at: datetime
    alive: bool
    beat_age_s: float
    fired: bool
    disarmed: bool = False

    def holds(self, seq: int) -> bool:
        """A guard for this timer: its process lives, looked just now, and knows this seq."""
        watching = self.alive and self.beat_age_s <= BEAT_WITHIN_S
        return watching and not self.disarmed and self.seq == seq


def arm(
    shell: Shell,
    home: str,
    timer: Timer,
    clock: Clock,
    *,
    self_destroy: str,
    terminate: str,
    margin_s: int = MARGIN_S,
    term_delay_s: int = TERM_DELAY_S,
) -> FuseState | None:
    """Hand the timer to the fuse, and start its process if none lives; what it then holds.

    A seq that is not greater is not taken: compare `state.seq`.  None: the outcome is not known.
    A process that lives already keeps the texts that it was started with.
    """
    text = script(home, timer.label, self_destroy, terminate, margin_s, term_delay_s)
    sent_s = clock.boot_s()
    state = _arm(shell, home, timer, clock, text)
    if clock.boot_s() - sent_s > SENT_WITHIN_S:
        # This machine slept on the way, and the fuse was told of more time than there is.
        state = _arm(shell, home, timer, clock, text)
    return state


def read_back(shell: Shell, home: str) -> FuseState | None:
    """What the fuse holds; None when it cannot be asked or was never there."""
    command = f"cd {shlex.quote(home)} && [ -e fuse.sh ] && sh fuse.sh report"
    return _state(shell.run(command, timeout_s=ANSWER_WITHIN_S).output)


def disarm(shell: Shell, home: str) -> bool:
    """True when it is sure that no fuse will fire: its process is gone, or there was none."""
    command = f"cd {shlex.quote(home)} 2>/dev/null && [ -e fuse.sh ] || exit 0; sh fuse.sh disarm"
    result = shell.run(command, timeout_s=ANSWER_WITHIN_S)
    state = _state(result.output)
    return result.ok and (state is None or (state.disarmed and not state.alive))


def script(
    home: str,
    label: str,
    self_destroy: str,
    terminate: str,
    margin_s: int = MARGIN_S,
    term_delay_s: int = TERM_DELAY_S,
    *,
    last_resort: str = ":",
    uptime_command: str = "",
    wall_command: str = "",
) -> str:
    """The script of one box.  The texts are sh: `terminate` stops the training, `self_destroy`
    ends the box (0 = surely gone), `last_resort` is added after ten refusals.  The two commands
    print whole seconds; they replace the clocks for whoever tests the fuse.
    """
    uptime = "{ IFS=' .' read -r up_s rest < /proc/uptime; } 2>/dev/null"
    words = {
        "home": shlex.quote(home),
        "label": shlex.quote(quote(label, safe="")),
        "margin_s": str(margin_s),
        "term_delay_s": str(term_delay_s),
        "self_destroy": shlex.quote(self_destroy),
        "terminate": shlex.quote(terminate),
        "last_resort": shlex.quote(last_resort),
        "uptime": f"up_s=$({uptime_command})" if uptime_command else uptime,
        "wall": f"wall_now=$({wall_command or 'date +%s'})",
    }
    # In one pass: a text may hold what looks like another placeholder.
    return re.sub("@([a-z_]+)@", lambda found: words[found[1]], _SCRIPT)


def _arm(shell: Shell, home: str, timer: Timer, clock: Clock, text: str) -> FuseState | None:
    now = clock.now()
    figures = (
        timer.seq,
        math.ceil(timer.fires_at.timestamp()),
        math.ceil(timer.ends_at.timestamp()),
        math.ceil((timer.ends_at - now).total_seconds()),
        round(now.timestamp()),
    )
    # A connection cut in the middle of the script must not leave half of it as the fuse.
    command = f"""umask 077; mkdir -p {shlex.quote(home)} && cd {shlex.quote(home)} || exit 9
seq= label=; {{ read -r seq label rest < fuse.timer; }} 2>/dev/null
case $seq in '' | *[!0-9]*) ;; *) [ "$label" = {quote(timer.label, safe="")} ] || exit 3 ;; esac
cat > fuse.sh.$$ && [ $(($(wc -c < fuse.sh.$$))) -eq {len(text.encode())} ] \\
    && mv -f fuse.sh.$$ fuse.sh || rm -f fuse.sh.$$
sh fuse.sh arm {" ".join(map(str, figures))}"""
    return _state(shell.run(command, timeout_s=ANSWER_WITHIN_S, stdin=text).output)


def _state(output: str) -> FuseState | None:
    lines = [line.split() for line in output.splitlines() if line.startswith(REPORT + " ")]
    if not lines or len(lines[-1]) != 6:
        return None
    _, seq, ends, age_s, status, alive = lines[-1]
    try:
        if not (0 <= int(seq) < MOST_SEQ and 0 <= int(ends) < LAST_END_S):
            return None  # nobody has told it that
        return FuseState(
            seq=int(seq),
            ends_at=datetime.fromtimestamp(int(ends), UTC),
            alive=alive == "1",
            beat_age_s=float(age_s),
            fired=status == "fired",
            disarmed=status == "disarmed",
        )
    except (ValueError, OverflowError):  # a box can answer anything
        return None
