"""One question to several providers at once.

One that does not answer in time costs that time and hides nobody; why it is missing is told.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpurun.clock import Clock
from gpurun.errors import GpurunError, ProviderUnreachable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Heard(Generic[T]):
    """What one provider has said, or what stood in the way."""

    provider: str
    answer: T | None = None
    trouble: GpurunError | None = None


def ask_each(
    providers: Sequence[str], ask: Callable[[str], T], clock: Clock, within_s: float
) -> list[Heard[T]]:
    """One for each provider, in their order, after `within_s` at the latest.

    What `ask` raises beside GpurunError is a bug, and raised here.
    """
    came: queue.SimpleQueue[tuple[Heard[T], Exception | None]] = queue.SimpleQueue()

    def work(name: str) -> None:
        try:
            came.put((Heard(name, ask(name)), None))
        except GpurunError as error:
            came.put((Heard(name, trouble=error), None))
        except Exception as error:  # carried to whoever asked
            came.put((Heard(name), error))

    for name in providers:
        threading.Thread(target=work, args=(name,), daemon=True, name=f"ask {name}").start()
    ends_s = clock.boot_s() + within_s
    found: dict[str, Heard[T]] = {}
    while len(found) < len(set(providers)):
        try:
            heard, bug = came.get(timeout=max(0.0, ends_s - clock.boot_s()))
        except queue.Empty:
            break
        if bug is not None:
            raise bug
        found[heard.provider] = heard
    return [found.get(name) or _late(name, within_s) for name in providers]


def _late(name: str, within_s: float) -> Heard[T]:
    return Heard(name, trouble=ProviderUnreachable(f"{name} did not answer in {within_s:.0f} s"))
