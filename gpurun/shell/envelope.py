"""What goes around a command on its way through a login shell, and comes around its output.

A login may print before it runs what it was asked to (start-up files, messages of the day), may
not run it at all (start-up files that open tmux), and its exit status says too little.  So a small
wrapper runs the command and says when it begins and how it ended, in words that nothing else
prints: each holds a fresh nonce.
"""

import secrets
import shlex

from gpurun.errors import UsageError

LONGEST_BYTES = 130_000  # Linux takes 131,071 in one argument
NOISE_BYTES = 65_536

# $1 nonce, $2 directory, $3 command, $4 what makes the directory where there is none.  stderr is
# closed to what sh says of killed commands; a signal that the command sends to its whole group must
# not end who tells of it.
_WRAPPER = """\
exec 2>/dev/null{stdin}
trap : HUP INT QUIT TERM
printf '\\ngpurun-%s-%s %s\\n' begin "$1" $$
cd "$2" || sh -c "$4" </dev/null >&2
if cd "$2"; then (exec sh -c "$3" 2>&1); set -- "$1" $?; else set -- "$1" nowhere; fi
printf 'gpurun-%s-%s %s\\n' end "$1" "$2"
"""

# $1 nonce, $2 the wrapper's process: sshd made it the leader of a session.  Only while that process
# is the one with our nonce does the number mean anything; a reboot gives it to others.
_KILL = """\
case $(tr -d '\\0' <"/proc/$2/cmdline") in *"$1"*) ;; *) exit 0;; esac
for pass in 1 2 3 4 5 6 7 8 9 10; do
  left=
  for stat in /proc/[0-9]*/stat; do
    text=
    while IFS= read -r line; do text="$text $line"; done <"$stat"
    set -- "$1" "$2" ${text##*) }
    [ "$6" = "$2" ] && [ "$3" != Z ] || continue
    pid=${stat#/proc/} left=yes
    kill -s KILL "${pid%/stat}" || sudo -n kill -s KILL "${pid%/stat}"
  done
  [ "$left" ] || exit 0
done
exit 1
"""


class Envelope:
    """One command as sent, and its answer as it comes: feed `opened` with all that is received.

    `pid` is the process that leads the command's session on the box, None before it has begun.
    `code` is its exit code, None before it has ended; `nowhere` if its directory is not there.
    """

    def __init__(
        self, command: str, directory: str, *, with_stdin: bool, make_directory: str = ""
    ) -> None:
        self.nonce = secrets.token_hex(8)
        self.pid: int | None = None
        self.code: int | None = None
        self.nowhere = False
        self._begin = f"gpurun-begin-{self.nonce} ".encode()
        self._end = f"gpurun-end-{self.nonce} ".encode()
        self._held = b""
        wrapper = _WRAPPER.format(stdin="" if with_stdin else " </dev/null")
        words = ("sh", "-c", wrapper, "gpurun", self.nonce, directory, command, make_directory)
        self.sent = f"exec {shlex.join(words)}".encode(errors="surrogateescape")
        if len(self.sent) > LONGEST_BYTES:
            raise UsageError(
                f"a command of {len(command):,} characters is too long to be sent to a box "
                f"(it begins with {command[:60]!r}): put it into a script and ship that"
            )

    @property
    def ended(self) -> bool:
        return self.code is not None or self.nowhere

    @property
    def noise(self) -> str:
        """What the login printed before the command began."""
        return "" if self.pid is not None else self._held.decode(errors="replace").strip()

    def opened(self, data: bytes) -> bytes:
        """The command's own output in what was received; some may be held back until more comes."""
        data = self._held + data if self._held else data
        self._held = b""
        if self.pid is None and not (data := self._after_begin(data)):
            return b""
        if self.ended:
            return b""
        end = data.find(self._end)
        newline = data.find(b"\n", end) if end >= 0 else -1
        if newline < 0:
            held = len(data) - end if end >= 0 else _beginning_of(self._end, data)
            self._held = data[len(data) - held :]
            return data[: len(data) - held] if held else data
        word = data[end + len(self._end) : newline]
        self.nowhere = word == b"nowhere"
        self.code = int(word) if word.isdigit() else None
        return data[:end]

    def remainder(self) -> bytes:
        """What was held back, once nothing more comes."""
        return b"" if self.pid is None else self._held

    def _after_begin(self, data: bytes) -> bytes:
        _, found, rest = data.partition(self._begin)
        pid, newline, rest = rest.partition(b"\n")
        if not found or not newline or not pid.isdigit():
            self._held = data[-NOISE_BYTES:]
            return b""
        self.pid = int(pid)
        return rest


def kill_command(envelope: Envelope) -> str:
    """sh text that kills the command and all of its session; exit 0 when nothing of it is left.

    What made a session of its own (setsid) lives on.
    """
    words = ("sh", "-c", _KILL, "gpurun", envelope.nonce, str(envelope.pid))
    return f"exec {shlex.join(words)}"


def _beginning_of(mark: bytes, data: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of `mark`."""
    end = data[-len(mark) :]
    if mark[:1] not in end:
        return 0
    return next((n for n in range(len(end), 0, -1) if end.endswith(mark[:n])), 0)
