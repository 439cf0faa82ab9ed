"""All lines of a command that may be sent again: a result's output keeps only the end."""

from gpurun.shell import UNKNOWN_OUTCOME, Result, Shell

TRIES = 3
ANSWER_S = 20.0


def lines_of(
    shell: Shell, command: str, *, timeout_s: float, stdin: str = ""
) -> tuple[Result, list[str]]:
    """The last try's result and lines.

    What was told cannot be taken back, so a shell that waits for a line that is down does not do
    so while lines are heard; it does between two tries.
    """
    for left in reversed(range(TRIES)):
        lines: list[str] = []
        result = shell.run(command, timeout_s=timeout_s, stdin=stdin, on_line=lines.append)
        if result.exited != UNKNOWN_OUTCOME:
            break
        if left:
            shell.run(":", timeout_s=ANSWER_S)
    return result, lines
