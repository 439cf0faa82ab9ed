"""The one place that imports provisioners, by name, and only the one that is asked for.

Another package adds a provider by an entry point in the group `gpurun.provisioners`: a callable
that takes the settings and the clock.  It cannot take the name of one that is built in.

A name may say which of a kind: each host of `ssh` is a provider by itself, `ssh:user@host:port`,
so that one that cannot be reached does not blind the others.
"""

import difflib
import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.clock import Clock
from gpurun.errors import GpurunError, UsageError
from gpurun.provider import Provisioner

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from gpurun.settings import Settings
    from provisioners.prime.access import Access as PrimeAccess
    from provisioners.vast.access import Access as VastAccess

GROUP = "gpurun.provisioners"
VARIABLES = {  # what the environment may say of a cloud, its key first
    "prime": (
        "PRIME_API_KEY",
        "PRIME_API_BASE_URL",
        "PRIME_BASE_URL",
        "PRIME_TEAM_ID",
        "PRIME_SSH_KEY_PATH",
    ),
    "vast": ("VAST_API_KEY", "VAST_URL"),
}


def provisioner(
    name: str, settings: "Settings", clock: Clock, environ: Mapping[str, str] = os.environ
) -> Provisioner:
    """The provider of this name; UsageError names the nearest if there is none."""
    if make := _BUILT_IN.get(kind(name)):
        return make(name, settings, clock, environ)
    plugin = next(iter(_plugins().select(name=name)), None)
    if plugin is None:
        known = kinds()
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        cure = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
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


def names(settings: "Settings", environ: Mapping[str, str] = os.environ) -> list[str]:
    """All that can be asked: those built in, the clouds among them that have a key, then the
    plugins; each host by itself.
    """
    return [
        each
        for name in kinds()
        if name not in CLOUDS or has_key(name, settings, environ)
        for each in members(name, settings)
    ]


def has_key(cloud: str, settings: "Settings", environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a key for this cloud is found anywhere; nothing is asked of the cloud."""
    return _ACCESS[cloud](settings, environ) is not None


def credentials(name: str, settings: "Settings", environ: Mapping[str, str]) -> str:
    """A digest of the key that the provider would be made with now, and of what goes with it.

    Empty where a cloud has no key.
    """
    if name in CLOUDS:
        access = _ACCESS[name](settings, environ)
        said = "" if access is None else repr(astuple(access))
    else:
        said = f"key {_key(name, settings)}"
    return hashlib.sha256(said.encode()).hexdigest() if said else ""


def only_here(cloud: str, settings: "Settings") -> dict[str, str]:
    """The variables of this environment that hold the key in use, and what goes with it; none if
    it is found elsewhere.
    """
    access = _ACCESS[cloud](settings, os.environ)
    if access is None or access.source != VARIABLES[cloud][0]:
        return {}
    return {name: os.environ[name] for name in VARIABLES[cloud] if name in os.environ}


def members(name: str, settings: "Settings") -> list[str]:
    """`ssh` stands for each host of the settings, `ssh:host` for the login there; any other name
    for itself.
    """
    if kind(name) != "ssh":
        return [name]
    if name == "ssh":
        return [_name(known.user, known.host, known.port) for known in settings.ssh_hosts]
    return [_name(*_login(name, settings))]


def kind(name: str) -> str:
    """What recipes call it: `ssh` for every host."""
    return name.partition(":")[0]


def _prime(
    name: str, settings: "Settings", clock: Clock, environ: Mapping[str, str]
) -> Provisioner:
    from gpurun import web
    from gpurun.hardware.models import is_the
    from gpurun.sshkeys import public_keys
    from provisioners.prime import Prime
    from provisioners.prime.api import ENDPOINTS

    access = _prime_access(settings, environ)
    if access is None:
        raise UsageError("there is no key for prime: run `gpurun auth prime`")
    http = web.client("prime", access.url, access.api_key, ENDPOINTS, clock)
    return Prime(access, http, is_the, public_keys(access.key_file, Path.home()))


def _vast(name: str, settings: "Settings", clock: Clock, environ: Mapping[str, str]) -> Provisioner:
    from gpurun import web
    from gpurun.avoid import Avoided
    from gpurun.sshkeys import public_keys
    from provisioners.vast import Vast
    from provisioners.vast.limits import ENDPOINTS

    access = _vast_access(settings, environ)
    if access is None:
        raise UsageError("there is no key for vast: run `gpurun auth vast`")
    http = web.client("vast", access.url, access.api_key, ENDPOINTS, clock)
    avoided = Avoided(settings.state_dir, clock)
    own_keys = public_keys(None, Path.home())
    by_agent = bool(os.environ.get("SSH_AUTH_SOCK"))  # what it holds may be registered
    keys = own_keys if own_keys or by_agent else None
    return Vast(http, clock, lambda: avoided.machines("vast"), keys)


def _prime_access(settings: "Settings", environ: Mapping[str, str]) -> "PrimeAccess | None":
    from provisioners.prime.access import find

    for_box = settings.box_keys.get("prime")
    box_key = for_box.get_secret_value() if for_box is not None else ""
    return find(_key("prime", settings), environ, Path.home(), box_key)


def _vast_access(settings: "Settings", environ: Mapping[str, str]) -> "VastAccess | None":
    from provisioners.vast.access import find

    return find(_key("vast", settings), environ, Path.home())


def _key(cloud: str, settings: "Settings") -> str:
    """The key in the settings, or nothing."""
    secret = settings.keys.get(cloud)
    return secret.get_secret_value() if secret is not None else ""


def kinds() -> list[str]:
    return [*_BUILT_IN, *sorted({p.name for p in _plugins()} - set(_BUILT_IN))]


def _local(
    name: str, settings: "Settings", clock: Clock, environ: Mapping[str, str]
) -> Provisioner:
    from provisioners.local import Local

    return Local(settings.state_dir, settings.local_usd_per_hour, clock)


def _ssh(name: str, settings: "Settings", clock: Clock, environ: Mapping[str, str]) -> Provisioner:
    from gpurun.places import Places
    from gpurun.shell.fabric import FabricShell
    from provisioners.ssh import Ssh

    user, host, port = _login(name, settings)
    known_hosts = Places(settings.state_dir).known_hosts
    hosts = [
        one for one in settings.ssh_hosts if (one.user, one.host, one.port) == (user, host, port)
    ]
    details = hosts[0].model_dump(exclude={"host", "user", "port"}) if hosts else {}
    canonical = _name(user, host, port)
    return Ssh(canonical, user, (host, port), lambda to: FabricShell(to, known_hosts), **details)


def _login(name: str, settings: "Settings") -> tuple[str, str, int]:
    """User, host and port of `ssh:user@host:port`.

    What is left out is that of the one host in the settings that fits, else root and 22.
    """
    where = name.partition(":")[2]
    user, _, rest = where.rpartition("@")
    host, _, port = rest.rpartition(":") if ":" in rest else (rest, "", "")
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not (port or "22").isdecimal() or not 0 < int(port or 22) < 65536:
        raise UsageError(
            f"{name!r} does not name a host: write --host user@host:port, or list hosts as "
            "ssh_hosts in the settings"
        )
    listed = [
        (one.user, one.host, one.port)
        for one in settings.ssh_hosts
        if one.host == host and user in ("", one.user) and port in ("", str(one.port))
    ]
    return listed[0] if len(listed) == 1 else (user or "root", host, int(port or 22))


def _is_host(text: str) -> bool:
    if ":" not in text:
        return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", text) is not None
    try:
        return bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def _name(user: str, host: str, port: int) -> str:
    return f"ssh:{user}@{host}:{port}"


_BUILT_IN: dict[str, "Callable[[str, Settings, Clock, Mapping[str, str]], Provisioner]"] = {
    "local": _local,
    "ssh": _ssh,
    "prime": _prime,
    "vast": _vast,
}
_ACCESS: "dict[str, Callable[[Settings, Mapping[str, str]], PrimeAccess | VastAccess | None]]" = {
    "prime": _prime_access,
    "vast": _vast_access,
}
CLOUDS = tuple(_ACCESS)  # those that `gpurun auth` has a key for


def _plugins() -> "EntryPoints":
    from importlib.metadata import entry_points  # slow: it reads every installed package

    return entry_points(group=GROUP)
