"""The keeper as a systemd user unit: started at boot, and again whenever it ends.

The unit names the state directory and the settings; it never holds a key.  A key that lives only
in a shell's environment is not there after a reboot, so that is asked with the very environment
that the unit will have.
"""

import getpass
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpurun import keeper, wiring
from gpurun.clock import Deadline
from gpurun.errors import GpurunError
from gpurun.places import Places, config_file, state_dir

RUNS_WITHIN_S = 20.0
ANSWERS_WITHIN_S = 20.0
PROXIES = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")  # in either case
LINGER = Path("/var/lib/systemd/linger")  # a file for each user, by `loginctl enable-linger`

_UNIT = """\
[Unit]
Description=gpurun's keeper: it ends every box whose timer is due ({home})
StartLimitIntervalSec=0

[Service]
ExecStart={command}
{environment}
Restart=always
RestartSec=0.5
RestartSteps=8
RestartMaxDelaySec=30
# The drivers that it starts go on without it.
KillMode=process

[Install]
WantedBy=default.target
"""
_KEYS = """\
import json
from gpurun import settings, wiring
found, trouble = settings.load_for_ending()
keys = [name for name in wiring.CLOUDS if wiring.has_key(name, found)]
print(json.dumps({"keys": keys, "trouble": trouble}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """What stands now; `fleeting` are the clouds whose key the unit's keeper will not have."""

    path: Path
    pid: int | None
    lingers: bool
    fleeting: tuple[str, ...]
    overlooked: tuple[str, ...]  # other variables of this shell that it will not have
    trouble: str  # with the settings, as the unit's keeper reads them


def unit_path(places: Places) -> Path:
    """One unit for each state directory; the usual one has the plain name."""
    usual = places.root == state_dir({})
    mark = "" if usual else f"-{hashlib.sha256(os.fsencode(places.root)).hexdigest()[:8]}"
    top = os.environ.get("XDG_CONFIG_HOME", "").strip() or str(Path.home() / ".config")
    return Path(top) / "systemd" / "user" / f"gpurun-keeper{mark}.service"


def has_systemd() -> bool:
    """Whether this user's systemd can be asked."""
    return shutil.which("systemctl") is not None and _systemctl("show-environment") is None


def lingers() -> bool:
    """Whether this user's units run without a login."""
    return (LINGER / getpass.getuser()).exists()


def command() -> list[str]:
    """What a supervisor is to run; it stays in the foreground and ends on SIGTERM."""
    return [sys.executable, "-m", "gpurun.cli", "keeper", "run"]


def environment(places: Places) -> dict[str, str]:
    """All that the keeper must be told; PATH, for the tools of the drivers that it starts."""
    return {
        "GPURUN_HOME": str(places.root),
        "GPURUN_CONFIG": str(config_file()),
        "PATH": os.environ.get("PATH", os.defpath),
        **keeper.FEW_ARENAS,
    }


def text(places: Places) -> str:
    variables = [f"{name}={value}" for name, value in environment(places).items()]
    return _UNIT.format(
        home=_plain(str(places.root)),
        command=" ".join(_quoted(word) for word in command()),
        environment="\n".join(f"Environment={_quoted(each, '')}" for each in variables),
    )


def install(places: Places) -> Installed:
    """Write, enable and start it; a keeper that runs already gives way to it."""
    path = unit_path(places)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(places))
    path.chmod(0o644)
    keeper.stop(places)
    for order in (["daemon-reload"], ["enable", path.name], ["restart", path.name]):
        if trouble := _systemctl(*order):
            raise GpurunError(
                f"systemctl --user {' '.join(order)} failed: {trouble}. The unit is {path}; "
                f"`gpurun keeper uninstall` removes it"
            )
    pid, deadline = keeper.running(places), Deadline(RUNS_WITHIN_S)
    while pid is None and not deadline.passed():
        pid = keeper.running(places)
    told = _given() | environment(places)
    seen = _keys(_user() | told)
    kept = set(seen["keys"])
    fleeting = tuple(name for name in _keys(os.environ)["keys"] if name not in kept)
    return Installed(path, pid, lingers(), fleeting, overlooked(told), str(seen["trouble"]))


def overlooked(told: Mapping[str, str]) -> tuple[str, ...]:
    """What this shell says to gpurun or its SSH and `told` does not, but for keys of clouds."""
    of_clouds = {name for _key, *others in wiring.VARIABLES.values() for name in others}
    return tuple(
        name
        for name in sorted(os.environ)
        if os.environ[name]
        and name not in told
        and (
            name.startswith("GPURUN_")
            or name in of_clouds
            or name == "SSH_AUTH_SOCK"
            or name.upper() in PROXIES
        )
    )


def uninstall(places: Places) -> Path | None:
    """Stop it and remove it; None when there is none."""
    path = unit_path(places)
    if not path.exists():
        return None
    if has_systemd() and (trouble := _systemctl("disable", "--now", path.name)):
        raise GpurunError(f"systemctl --user disable --now {path.name} failed: {trouble}")
    path.unlink()
    _systemctl("daemon-reload")
    return path


def _systemctl(*order: str) -> str | None:
    """What went wrong; None when nothing did."""
    try:
        done = _ask(*order)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    said = " ".join(done.stderr.split()) or f"exit {done.returncode}"
    return None if done.returncode == 0 else said


def _given() -> dict[str, str]:
    """What this user's systemd gives to every unit; a value that it shows quoted stays so."""
    try:
        lines = _ask("show-environment").stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {
        name: value for name, equals, value in (each.partition("=") for each in lines) if equals
    }


def _ask(*order: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemctl", "--user", *order],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWERS_WITHIN_S,
        check=False,
    )


def _keys(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """The clouds that gpurun has a key for in this environment."""
    done = subprocess.run(
        [sys.executable, "-c", _KEYS],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=dict(environ),
        check=False,
    )
    try:
        found: dict[str, list[str]] = json.loads(done.stdout)
    except ValueError:
        raise GpurunError(f"the settings cannot be read: {done.stderr.strip()[-300:]}") from None
    return found


def _user() -> dict[str, str]:
    """What every user's systemd gives to its units."""
    return {"HOME": str(Path.home()), "USER": getpass.getuser()}


def _quoted(word: str, dollar: str = "$") -> str:
    """As systemd reads a word: %, quotes and backslashes escaped, and $ where it is expanded."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", " ")
    return f'"{escaped.replace(dollar, dollar * 2) if dollar else escaped}"'


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text).replace("%", "%%")
