"""The GPUs of a running box: what they are doing, and what its commands say of them."""

import dataclasses
import time
import uuid
from pathlib import Path

from tests.boxes import smi
from tests.boxes.fleet import Card, Failure, Fleet, Process, Reading

BUSES = ("18", "2A", "3A", "5D", "9A", "AB", "BA", "DB")


class Gpus:
    """The GPUs of a running box: a test changes what they say while others look.

    `folder` is the box's /var/lib/gpu; a full disk, a reboot and a frozen box leave it as it is.
    """

    def __init__(self, fleet: Fleet, folder: Path, box: str) -> None:
        self.fleet = fleet
        self._folder = folder
        self._booted_s = time.monotonic()
        self._failure = fleet.failure
        self._processes: tuple[Process, ...] = ()
        self._lost: frozenset[int] = frozenset()
        self.cards = tuple(
            Card(
                index,
                model,
                f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{box}')}",
                f"00000000:{BUSES[index]}:00.0",
                Reading(0, model.idle_w, 0, 28 + index),
            )
            for index, model in enumerate(fleet.models)
        )
        self._write()
        self.forget_kernel_messages()

    def set(
        self,
        index: int | None = None,
        *,
        util_percent: int | None = None,
        power_w: float | None = None,
        used_mib: int | None = None,
        temperature_c: int | None = None,
    ) -> None:
        """Change what one GPU, or every one, measures from now on."""

        def changed(old: Reading) -> Reading:
            return Reading(
                old.util_percent if util_percent is None else util_percent,
                old.power_w if power_w is None else power_w,
                old.used_mib if used_mib is None else used_mib,
                old.temperature_c if temperature_c is None else temperature_c,
            )

        self.cards = tuple(
            dataclasses.replace(card, reading=changed(card.reading))
            if index in (None, card.index)
            else card
            for card in self.cards
        )
        self._write()

    def processes(self, *processes: Process) -> None:
        """These processes, and no others, are on the GPUs from now on."""
        self._processes = processes
        self._write()

    def lose(self, index: int, *, newer: bool = False) -> None:
        """A GPU falls off its bus.

        Older releases of `nvidia-smi` then say only that; newer ones (about 550 on) say it on
        stderr, list the others, and exit with 0.
        """
        bus = self.cards[index].bus.removeprefix("0000")
        name = f"GPU{index}: {bus}" if newer else f"GPU{bus}"
        self._lost |= {index}
        self.fail(
            Failure(
                f"Unable to determine the device handle for {name}: Unknown Error",
                0 if newer else 255,
                "stderr" if newer else "stdout",
                goes_on=newer,
            )
        )

    def fail(self, failure: Failure) -> None:
        """`nvidia-smi` fails like this from now on."""
        self._failure = failure
        self._write()

    def recover(self) -> None:
        """End `lose` and `fail`."""
        self._lost = frozenset()
        self._failure = None
        self._write()

    def xid(self, number: int, index: int = 0, text: str = "") -> None:
        """The kernel reports an Xid of a GPU, in the words of the driver."""
        bus = self.cards[index].bus.removeprefix("0000").removesuffix(".0")
        said = text or smi.XID_TEXTS.get(number, "")
        self.kernel_says(
            f"NVRM: Xid (PCI:{bus}): {number}, pid='<unknown>', name=<unknown>, {said}"
        )

    def kernel_says(self, line: str) -> None:
        """Add a line to what `dmesg` prints."""
        with (self._folder / "dmesg").open("a") as messages:
            messages.write(f"[{time.monotonic() - self._booted_s:12.6f}] {line}\n")

    def forget_kernel_messages(self) -> None:
        """Begin as after a boot."""
        self._booted_s = time.monotonic()
        (self._folder / "dmesg").write_text("")
        self.kernel_says(f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {self.fleet.driver}")

    def _write(self) -> None:
        seen = [card for card in self.cards if card.index not in self._lost]
        texts = smi.texts(seen, self.fleet, self._processes)
        for name, text in texts.items():
            self._put(name, text)
        failure = self._failure
        if failure is None:
            (self._folder / "failure").unlink(missing_ok=True)
        else:
            then = "goes-on" if failure.goes_on else "ends"
            self._put("failure", f"{failure.exit_code} {failure.stream} {then}\n{failure.text}\n")

    def _put(self, name: str, text: str) -> None:
        """Replace a file at once: a reader sees the old text or the new one."""
        new = self._folder / f".{name}"
        new.write_text(text)
        new.rename(self._folder / name)
