"""Wheels of adam-atan2 that boxes have built, kept here for the next equal box.

    wheels/<key>/<name>.whl     as it was fetched
    wheels/<key>/sha256         its digest when it was built

A wheel is compiled code from a rented machine, perhaps a stranger's.  It never runs here: it goes
to other boxes with the same torch, CUDA, GPUs, Python and processor, which are no more trusted
than the one that built it.  Whoever rents from several owners and trusts one more than another
removes the folder between two runs.
"""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from gpurun.errors import PhaseFailed
from gpurun.phases.optimiser import KEY_TEXT, OPTIMISER_FILE, WHEELS
from gpurun.shell import Shell

KEY_S = 120.0  # importing torch from a cold disk
LOOK_S = 60.0
MOST_BYTES = 200 * 10**6

_KEY = re.compile(r"adam-atan2-[A-Za-z0-9._+-]{1,160}")
_NAME = re.compile(r"adam_atan2-[0-9.]{1,20}-[a-z0-9]{1,12}-[a-z0-9]{1,12}-[a-z0-9_.]{1,60}\.whl")


def folder(state_dir: Path) -> Path:
    """Where the wheels lie in the state directory."""
    return state_dir / "wheels"


def reuse(shell: Shell, kept: Path, log: Callable[[str], None]) -> None:
    """Put the wheel on the box that an equal one has built, if there is one.

    Nothing is done on a box whose optimiser is decided.  OSError: it did not arrive.
    """
    key = _key_of(shell, log)
    if key is None:
        return
    wheel = _wheel_in(kept / key)
    if wheel is None:
        log(f"no wheel is kept for {key}")
        return
    target = f"{WHEELS}/{wheel.name}"
    shell.run(f"mkdir -p {WHEELS}; rm -f {WHEELS}/*", timeout_s=LOOK_S)
    shell.put(wheel, target)
    arrived = shell.run(f"sha256sum {target}", timeout_s=LOOK_S)
    if not arrived.output.startswith(_sha256(wheel)):
        shell.run(f"rm -f {target}", timeout_s=LOOK_S)
        raise PhaseFailed(f"{wheel.name} did not arrive whole: {arrived.tail(1)}")
    log(f"{wheel.name}, built by an equal box ({key})")


def keep(shell: Shell, kept: Path, log: Callable[[str], None]) -> None:
    """Fetch the wheel that this box has built; one that cannot be fetched stops nothing."""
    listed = shell.run(
        f"[ -f {WHEELS}/built ] && cd {WHEELS} || exit 0\n"
        'for wheel in *.whl; do echo "$(wc -c < "$wheel") $(sha256sum "$wheel")"; done\n'
        f"echo key; cd ../..; {KEY_TEXT}",
        timeout_s=KEY_S,
    )
    found = re.search(r"^\s*(\d{1,10}) ([0-9a-f]{64})  (\S+)\nkey\n(\S+)\s*$", listed.output, re.M)
    if not listed.output.strip():
        return
    if found is None or not _NAME.fullmatch(found[3]) or not _KEY.fullmatch(found[4]):
        log(f"the wheel is not kept: the box names it strangely: {listed.tail(2)[:200]!r}")
        return
    if int(found[1]) > MOST_BYTES:
        log(f"the wheel is not kept: {found[1]} bytes are more than a wheel has")
        return
    try:
        _fetch(shell, kept / found[4], found[3], found[2])
    except (OSError, PhaseFailed) as error:
        log(f"the wheel is not kept: {error}")
        return
    log(f"{found[3]} is kept for the next box like this one ({found[4]})")


def _fetch(shell: Shell, home: Path, name: str, sha256: str) -> None:
    """Whole or not at all: the folder of a key is replaced as one."""
    home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        shell.get(f"{WHEELS}/{name}", new / name)
        if (got := _sha256(new / name)) != sha256:
            raise PhaseFailed(f"it arrived with digest {got[:12]}, the box has {sha256[:12]}")
        (new / "sha256").write_text(f"{sha256}\n")
        shutil.rmtree(home, ignore_errors=True)
        new.rename(home)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _key_of(shell: Shell, log: Callable[[str], None]) -> str | None:
    said = shell.run(f"[ ! -f {OPTIMISER_FILE} ] || exit 0\n{KEY_TEXT}", timeout_s=KEY_S)
    key = said.output.strip()
    if said.ok and _KEY.fullmatch(key):
        return key
    if key:
        log(f"no wheel is looked for: {said.tail(1)[:200]}")
    return None


def _wheel_in(home: Path) -> Path | None:
    """The wheel of a key, if it still is what was fetched."""
    wheels = [path for path in home.glob("*.whl") if _NAME.fullmatch(path.name)]
    try:
        wanted = (home / "sha256").read_text().strip()
        return next((wheel for wheel in wheels if _sha256(wheel) == wanted), None)
    except OSError:
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
