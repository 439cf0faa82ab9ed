"""Storing a provider's API key in config.toml: closed to others, the rest of the file untouched.

No library that keeps comments is at hand for one line; so the line is put where TOML wants it, and
the file is only replaced when the result, read again, is the old one with that key.
"""

import json
import os
import re
import stat
import tempfile
import tomllib
from pathlib import Path

from gpurun.errors import UsageError

TABLE = re.compile(r"^\s*\[\s*keys\s*\]\s*(#.*)?$", re.M)
ANY_TABLE = re.compile(r"^\s*\[", re.M)


def store(path: Path, provider: str, key: str) -> None:
    """UsageError, and the file as it was, where it cannot be changed safely."""
    path = path.resolve()
    try:
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        before = tomllib.loads(old)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read as TOML ({error}): mend or remove it") from None
    new = _with_key(old, provider, key)
    keys = before.get("keys")
    wanted = {**before, "keys": {**(keys if isinstance(keys, dict) else {}), provider: key}}
    if not _is(new, wanted):
        raise UsageError(
            f'the keys in {path} are not written as a table [keys]: put `{provider} = "..."` '
            "there by hand"
        )
    _replace(path, new)


def _with_key(text: str, provider: str, key: str) -> str:
    line = f"{provider} = {json.dumps(key)}\n"
    table = TABLE.search(text)
    if table is None:
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[keys]\n{line}"
    start = min(table.end() + 1, len(text))
    following = ANY_TABLE.search(text, start)
    end = following.start() if following else len(text)
    body = text[start:end]
    said = re.compile(rf"^\s*{re.escape(provider)}\s*=.*(\n|$)", re.M)
    body = said.sub(lambda _found: line, body, count=1) if said.search(body) else line + body
    head = text[:start] if text[:start].endswith("\n") else text[:start] + "\n"
    return head + body + text[end:]


def _is(text: str, wanted: dict[str, object]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _replace(path: Path, text: str) -> None:
    """In one step, mode 0600 from its first byte on."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(stat.S_IRUSR | stat.S_IWUSR)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}): nothing was stored"
        ) from None
