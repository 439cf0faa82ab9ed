"""The one place that imports provisioners, by name, and only the one that is asked for.

Another package adds a provider by an entry point in the group `gpurun.provisioners`: a callable
that takes the settings and the clock.  It cannot take the name of one that is built in.
"""

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpurun.clock import Clock
from gpurun.errors import GpurunError, UsageError
from gpurun.provider import Provisioner

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from gpurun.settings import Settings

GROUP = "gpurun.provisioners"


def provisioner(name: str, settings: "Settings", clock: Clock) -> Provisioner:
    """The provider of this name; UsageError names the nearest if there is none."""
    if make := _BUILT_IN.get(name):
        return make(settings, clock)
    plugin = next(iter(_plugins().select(name=name)), None)
    if plugin is None:
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
        cure = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}."
        raise UsageError(f"{name!r} is not a provider: {cure}")
    try:
        made: Provisioner = plugin.load()(settings, clock)
    except GpurunError:
        raise
    except Exception as error:  # another package's code: name it, whatever it does
        raise UsageError(
            f"provider {name} ({plugin.value}) cannot be loaded: {error!r}: "
            "mend or uninstall the package that brings it"
        ) from error
    return made


def names() -> list[str]:
    """All that `provisioner` knows: those built in, then the plugins."""
    return [*_BUILT_IN, *sorted({p.name for p in _plugins()} - set(_BUILT_IN))]


def _local(settings: "Settings", clock: Clock) -> Provisioner:
    from provisioners.local import Local

    return Local(settings.state_dir, settings.local_usd_per_hour, clock)


_BUILT_IN: dict[str, "Callable[[Settings, Clock], Provisioner]"] = {
    "local": _local,
}


def _plugins() -> "EntryPoints":
    from importlib.metadata import entry_points  # slow: it reads every installed package

    return entry_points(group=GROUP)
