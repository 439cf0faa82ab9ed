"""Settings: config.toml in the platform's place for it, GPURUN_* in the environment above it.

The file is never created.  Money is read from its text to Decimal; a file that holds keys and can
be read by others is refused.  What the fast `status` needs is in places.py, not here.
"""

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gpurun import mangled, places
from gpurun.errors import UsageError
from gpurun.notify import EVENTS
from gpurun.recipe.explain import nearest
from gpurun.recipe.kinds import shown
from gpurun.recipe.merge import Caps

PREFIX = "GPURUN_"
SECRET = ("keys", "box_keys", "secrets", "notify")
MOST_BYTES = 65_536  # of a file that is wrong
ELSEWHERE = {"state_dir": "set GPURUN_HOME in the environment", "home": "set GPURUN_HOME"}

Usd = Annotated[Decimal, Field(gt=0, allow_inf_nan=False)]


class SshHost(BaseModel):
    """A machine of the user's own, rented to their runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str
    user: str = "root"
    port: int = Field(default=22, ge=1, le=65535)
    key: Path | None = None  # private key file; left out: the agent, then the default keys
    gpu: str | None = None  # as it is offered, H100; left out: what nvidia-smi says
    gpu_count: int | None = Field(default=None, ge=0)
    usd_per_hour: Decimal = Field(default=Decimal(0), ge=0, allow_inf_nan=False)
    workspace: str = "/workspace"  # runs live in folders of it, one at a time

    @field_validator("key")
    @classmethod
    def _at_home(cls, path: Path | None) -> Path | None:
        return path and _absolute_path(path)

    @field_validator("workspace")
    @classmethod
    def _absolute(cls, folder: str) -> str:
        if not folder.startswith("/") or ".." in folder.split("/"):
            raise ValueError("write a path from / on")
        return folder


class Settings(BaseSettings):
    """Everything a user can set once for all runs."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    runs_dir: Path = Path("runs")  # artifacts land in a folder per run
    max_usd_per_hour: Usd | None = None  # caps: a recipe may ask for less, not for more
    max_usd: Usd | None = None
    max_concurrent_usd_per_hour: Usd | None = None
    max_usd_per_day: Usd | None = None  # of all runs together; days and months are those of UTC
    max_usd_per_month: Usd | None = None
    max_usd_per_day_at: dict[str, Usd] = {}  # provider -> of the runs there
    max_usd_per_month_at: dict[str, Usd] = {}
    min_guards: int = Field(default=2, ge=1, le=3)
    accept_one_guard: bool = False
    local_usd_per_hour: Decimal = Field(default=Decimal(0), ge=0, allow_inf_nan=False)
    ssh_hosts: tuple[SshHost, ...] = ()
    torch_cpu_index: str = "https://download.pytorch.org/whl/cpu"  # empty: do not try it
    leave_after_minutes: Decimal = Field(default=Decimal(5), ge=0, allow_inf_nan=False)
    late_collect_minutes: Decimal = Field(default=Decimal(2), ge=0, le=60, allow_inf_nan=False)
    keys: dict[str, SecretStr] = Field(default={}, repr=False)  # provider -> its API key
    box_keys: dict[str, SecretStr] = Field(default={}, repr=False)  # -> one that may lie on a box
    secrets: dict[str, SecretStr] = Field(default={}, repr=False)  # for the recipes' `secrets:`
    notify: tuple[SecretStr, ...] = Field(default=(), repr=False)  # addresses of apprise
    notify_on: tuple[str, ...] = EVENTS

    @field_validator("runs_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return _absolute_path(path)

    @field_validator("notify_on")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in EVENTS:
                raise ValueError(f"{shown(name)}: {nearest(name, EVENTS)}")
        return names

    @property
    def state_dir(self) -> Path:
        return places.state_dir()

    @property
    def caps(self) -> Caps:
        return Caps(self.max_usd_per_hour, self.max_usd)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


def load() -> Settings:
    """The settings in force; UsageError names the file and key, or the variable."""
    path = places.config_file()
    text = _text(path)
    written = _parsed(path, text)
    for key in written:
        if key not in Settings.model_fields:
            cure = ELSEWHERE.get(key) or nearest(key, Settings.model_fields)
            raise UsageError(f"{_line(path, text, key)}: {shown(key)} is not a setting: {cure}")
    if any(written.get(key) for key in SECRET):
        _refuse_readable(path)
    _refuse_near_misses(os.environ)
    try:
        found = Settings(**written)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        loc = detail["loc"] or ("config.toml",)
        key = str(loc[0])
        value = "not text" if key in SECRET else shown(detail["input"])
        what = f"{_line(path, text, key)}: {'.'.join(map(str, loc))}"
        if (variable := PREFIX + key.upper()) in os.environ:
            what = variable
        cure = shown(detail["msg"]).replace("Input should be", "it should be")
        raise UsageError(f"{what} is {value}: {cure}") from None
    except SettingsError as error:  # a mapping in the environment that is not JSON
        raise UsageError(f"{shown(error)}: unset that GPURUN_ variable") from None
    _refuse_twice(found.ssh_hosts, _line(path, text, "ssh_hosts"))
    return found


def load_for_ending() -> tuple[Settings, str]:
    """The settings without what is wrong with them, and one sentence about that.

    It never fails: no file may keep a box alive, and above all no other line of it a key.
    """
    try:
        return load(), ""
    except UsageError as error:
        trouble = f"going on without what is wrong in the settings: {error}"
    found = _right_of(_of_file())
    for name, value in _right_of(_of_environment()).items():
        below = found.get(name)
        found[name] = below | value if isinstance(below, dict) else value
    return _Given(**found), trouble


class _Given(Settings):
    """Of what is given alone: the environment is in it already."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def _right_of(values: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that are wrong, or those entries of their tables and lists."""
    while True:
        try:
            _Given(**values)
        except ValidationError as error:
            _drop(values, error.errors(include_url=False)[0]["loc"])
        else:
            return values


def _drop(values: dict[str, Any], loc: Sequence[int | str]) -> None:
    """Whatever an error is placed at, something goes: at last there is nothing left to be wrong.

    No less than a whole entry: a host without its port would be another host.
    """
    field, *inside = loc or ("",)
    part = values.get(str(field))
    if inside and isinstance(part, dict) and inside[0] in part:
        values[str(field)] = {name: each for name, each in part.items() if name != inside[0]}
    elif inside and isinstance(part, list) and inside[0] in range(len(part)):
        values[str(field)] = [each for at, each in enumerate(part) if at != inside[0]]
    elif field in values:
        del values[str(field)]
    else:
        values.clear()


def _of_file() -> dict[str, Any]:
    try:
        text = places.config_file().read_bytes()[:MOST_BYTES].decode(errors="replace")
    except (OSError, UsageError):
        return {}
    return mangled.understood(text)


def _of_environment() -> dict[str, Any]:
    source, found = EnvSettingsSource(Settings), {}
    for name, field in Settings.model_fields.items():
        with suppress(ValueError):  # it is no JSON
            value, key, is_complex = source.get_field_value(field, name)
            value = source.prepare_field_value(key, field, value, is_complex)
            if value is not None:
                found[name] = value
    return found


def _absolute_path(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:  # "~nobody-here"
        raise ValueError("there is no such home directory") from error
    except OSError:  # the working directory is gone: no reason not to end a box
        return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{path} cannot be read ({why}): mend or remove it") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {shown(error)}: mend that line") from error


def _line(path: Path, text: str, key: str) -> str:
    """File and line of a key; tomllib does not tell, so the text is searched."""
    pattern = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[\].=]""")
    lines = (number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line))
    number = next(lines, None)
    return f"{path}:{number}" if number else str(path)


def _refuse_twice(hosts: Sequence[SshHost], where: str) -> None:
    """The second entry of a host would never be looked at, its price neither."""
    logins = [f"{host.user}@{host.host}:{host.port}" for host in hosts]
    for login in logins:
        if logins.count(login) > 1:
            raise UsageError(f"{where}: ssh_hosts lists {login} twice: delete one of them")


def _refuse_readable(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise UsageError(
            f"{path} holds keys and others can read it (mode {mode:o}): run `chmod 600 {path}`"
        )


def _refuse_near_misses(environ: Mapping[str, str]) -> None:
    """A misspelt cap that is silently ignored costs money."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
            if close:
                raise UsageError(f"{name} is not a setting: did you mean {close[0]}?")
