"""Each provider made once and kept, and made anew when its key has changed.

A keeper or a driver lives for weeks: a key that is replaced in the settings, or handed over by a
newer `up`, must reach it.  One that was handed over is kept here when its file goes, as it does
when the user logs out.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpurun import places as files
from gpurun import settings as configuration
from gpurun import wiring
from gpurun.clock import Clock
from gpurun.errors import GpurunError
from gpurun.keeper import handed
from gpurun.places import Places
from gpurun.provider import Provisioner
from gpurun.settings import Settings

log = logging.getLogger("gpurun.keeper")

LOOK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class _Made:
    cloud: Provisioner
    digest: str  # of the key that it was made with
    looked_s: float  # when that was last compared with the key there is
    handed: dict[str, str] = field(repr=False)  # the variables that it was made with


class Clouds:
    """By name.  Threads may ask at once; what two of them make at once is the same."""

    def __init__(self, places: Places, settings: Settings, clock: Clock) -> None:
        self._places = places
        self._settings = settings
        self._clock = clock
        self._read: tuple[int, ...] | None = None  # it may have changed since they were read
        self._made: dict[str, _Made] = {}

    def __call__(self, name: str) -> Provisioner:
        """The provider of this name; a GpurunError where there is no key for it, and never was."""
        now_s, made = self._clock.boot_s(), self._made.get(name)
        if made is None or now_s - made.looked_s >= LOOK_EVERY_S:
            self._read_settings()
            made = self._look(name, made, now_s)
            self._made[name] = made
        return made.cloud

    def names(self) -> list[str]:
        """All that can be asked now."""
        return wiring.names(self._settings, handed.environ(handed.read(self._places)))

    def environ(self) -> Mapping[str, str]:
        """For a process that is to have the keys that these were made with."""
        made = dict(self._made)
        return handed.environ({name: each.handed for name, each in made.items() if each.handed})

    def _look(self, name: str, made: _Made | None, now_s: float) -> _Made:
        keys = handed.read(self._places)
        environ = handed.environ(keys)
        digest = wiring.credentials(name, self._settings, environ)
        if made is not None and digest in ("", made.digest):
            return replace(made, looked_s=now_s)
        try:
            cloud = wiring.provisioner(name, self._settings, self._clock, environ)
        except GpurunError as error:
            if made is None:
                raise
            log.error("%s goes on with the key that it had: %s", name, error)
            return _Made(made.cloud, digest, now_s, made.handed)
        if made is not None:
            log.info("%s has another key now", name)
        return _Made(cloud, digest, now_s, keys.get(name, {}))

    def _read_settings(self) -> None:
        """If the file has changed; a key that it has lost to a wrong line stays as it was."""
        stamp = _stamp()
        if stamp == self._read:
            return
        first, self._read = self._read is None, stamp
        settings, trouble = configuration.load_for_ending()
        self._places.keep_settings_trouble(trouble)
        if trouble:
            before = self._settings
            keys, box_keys = before.keys | settings.keys, before.box_keys | settings.box_keys
            settings = settings.model_copy(update={"keys": keys, "box_keys": box_keys})
            if not first:  # else whoever has read them before has said so
                log.error("keys that are missing stay as they were: %s", trouble)
        self._settings = settings


def _stamp() -> tuple[int, ...]:
    """Another one whenever the settings were written."""
    try:
        seen = files.config_file().stat()
    except OSError:
        return ()
    return seen.st_ino, seen.st_mtime_ns, seen.st_size, seen.st_mode
