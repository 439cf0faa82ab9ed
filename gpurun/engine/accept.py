"""Phase accept: the box as it is, read in one round trip, against what was bought."""

from dataclasses import dataclass

from gpurun.clock import Clock
from gpurun.errors import PhaseFailed
from gpurun.hardware import READ_S, SCRIPT, Check, Hardware, checks, misfits, read
from gpurun.model import Attempt
from gpurun.recipe import Recipe
from gpurun.shell import Shell

__all__ = ["READ_S", "SCRIPT", "Seen", "look", "misfits", "read", "require"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a box."""

    hardware: Hardware
    clock_off_s: float | None  # the box's clock less ours; None: it tells no time
    output: str


def look(shell: Shell, clock: Clock, also: str = "") -> Seen:
    """Read the box; PhaseFailed when it does not answer to the end.

    `also` is more sh text, run behind it in the same round trip; what it prints is in `output`.
    """
    before_s = clock.now().timestamp()
    result = shell.run(f"(\n{SCRIPT})\n{also}", timeout_s=READ_S)
    hardware = read(result.output)
    if not hardware.complete:
        raise PhaseFailed(
            f"the box could not be read (exit {result.exited}): {result.tail(3) or 'no answer'}"
        )
    off_s = _off_s(hardware.date_s, before_s, clock.now().timestamp())
    return Seen(hardware, off_s, result.output)


def require(seen: Seen, recipe: Recipe, bought: Attempt | None = None) -> list[Check]:
    """Every check, all of them well; PhaseFailed with every misfit otherwise."""
    found = checks(seen.hardware, recipe, bought, clock_off_s=seen.clock_off_s)
    if wrong := [check.says for check in found if not check.ok]:
        raise PhaseFailed(f"the box is not what was ordered: {'; '.join(wrong)}")
    return found


def _off_s(date_s: int | None, before_s: float, after_s: float) -> float | None:
    """0 where the box's second may lie within the round trip."""
    if date_s is None:
        return None
    if date_s > after_s:
        return date_s - after_s
    return min(0.0, date_s + 1 - before_s)
