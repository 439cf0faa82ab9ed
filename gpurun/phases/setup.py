"""Phase setup: Debian packages, a virtual environment, Python packages, torch, the optimiser.

Every step is done once per box and text.  Nothing is expected of the box but a Python, or apt to
install one: no pip, no venv module, root or a user with sudo.
"""

import shlex
from collections.abc import Iterator

from gpurun.hardware import python_script
from gpurun.phases import optimiser, pytorch
from gpurun.phases.steps import KEEP, Command, Facts, KeepWheel, ReuseWheel, Step, limit_s, once
from gpurun.recipe import Recipe

PYTHON_FILE = f"{KEEP}/python"  # the interpreter that the virtual environment was made from

_APT = """\
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
  else
    echo "$(id -un) may not install Debian packages (not root, no sudo without a password):" \\
      "put them into the image, or leave them out of setup.apt" >&2
    return 1
  fi
}
apt_install() {
  if ! command -v apt-get >/dev/null; then
    echo "this box has no apt-get: put $* into the image, or leave setup.apt out" >&2
    return 1
  fi
  as_root true || return 1
  # A VM that has just booted often runs its unattended upgrades: wait for their lock.
  set -- -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qy --no-install-recommends "$@"
  as_root apt-get update -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 || return 1
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install "$@"
}
"""

# uv does not read pip's configuration: a box that has one of its own keeps pip.
INSTALL = """\
install() {
  if [ -x venv/bin/uv ]; then
    # Its cache on the file system of the run: it links instead of copying gigabytes.
    UV_CACHE_DIR="${UV_CACHE_DIR:-$PWD/.gpurun/uv}" VIRTUAL_ENV="$PWD/venv" \\
      venv/bin/uv pip install "$@" && return 0
    echo "uv could not install this; pip tries"
  fi
  venv/bin/python -m pip install --no-input --disable-pip-version-check "$@"
}
"""


def setup(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """Pinned dependencies, a torch that really works, and the optimiser, said."""
    part, within_s = recipe.setup, limit_s(recipe)
    if part.apt:
        yield Command(once(apt_text(part.apt)), within_s, f"apt: {' '.join(part.apt)}")
    if not (part.pip or part.torch):
        return
    yield Command(venv_text(part.torch), within_s, "make a virtual environment")
    yield Command(once(uv_text()), within_s, "uv, or pip where it cannot be had")
    if part.pip:
        wanted = shlex.join(part.pip)
        yield Command(once(f"{INSTALL}install {wanted}"), within_s, f"pip: {wanted}")
    if part.torch:
        yield Command(
            once(INSTALL + pytorch.install_text(part.torch, part.device, facts)),
            within_s,
            pytorch.says(part.torch, part.device, facts),
        )
        yield Command(pytorch.check_text(part.device), within_s, f"try torch on {part.device}")
    else:
        yield Command(once(pytorch.image_text()), within_s, "torch of the image, if it has one")
    yield from _optimiser(recipe, within_s)


def apt_text(packages: list[str]) -> str:
    wanted = shlex.join(packages)
    return (
        f"{_APT}here() {{ dpkg-query -W -f '${{db:Status-Status}}\\n' \"$1\" 2>/dev/null; }}\n"
        f"missing=\nfor package in {wanted}; do\n"
        '  [ "$(here "$package")" = installed ] || missing=yes\ndone\n'
        f'[ -z "$missing" ] || apt_install {wanted}'
    )


def venv_text(torch_version: str | None) -> str:
    """A virtual environment with pip, of the interpreter that has the wanted torch if one has."""
    release = shlex.quote((torch_version or "").partition("+")[0])  # '': any
    has_torch = (
        "import sys; from importlib.metadata import version; "
        'sys.exit(sys.argv[1] not in ("", version("torch").partition("+")[0]))'
    )
    return f"""\
{_APT}{python_script()}
works() {{ venv/bin/python -m pip --version >/dev/null 2>&1; }}
! works || exit 0
mkdir -p {KEEP}
base=
for python in $(pythons); do
  if "$python" -c '{has_torch}' {release} 2>/dev/null; then base=$python; break; fi
done
base=${{base:-$(pythons | head -n 1)}}
if [ -z "$base" ]; then
  echo "this box has no Python of 3.10 or newer: add python3 to setup.apt" >&2
  exit 1
fi
echo "Python: $base"
fresh() {{ rm -rf venv; }}
with_venv() {{ fresh; "$base" -m venv venv >{KEEP}/venv.log 2>&1 && works; }}
with_uv() {{
  fresh; command -v uv >/dev/null && uv venv -q --seed --python "$base" venv && works
}}
with_apt() {{
  package=python3-venv
  case $base in *python3.*) package=${{base##*/}}-venv ;; esac
  command -v apt-get >/dev/null && apt_install "$package" && with_venv
}}
with_virtualenv() {{
  fresh; "$base" -m pip install -q --target {KEEP}/virtualenv virtualenv &&
    PYTHONPATH={KEEP}/virtualenv "$base" -m virtualenv -q venv && works
}}
if ! with_venv && ! with_uv && ! with_apt && ! with_virtualenv; then
  fresh
  tail -n 3 {KEEP}/venv.log
  echo "no virtual environment can be made here: add python3-venv to setup.apt" >&2
  exit 1
fi
echo "$base" > {PYTHON_FILE}"""


def uv_text() -> str:
    """uv in the virtual environment; a box without it, or with pip's own indexes, uses pip."""
    return """\
pip() { venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }
if pip config list | grep -E '(index-url|find-links|no-index)=' >/dev/null; then
  echo "pip has indexes of its own here: it installs"
elif ! pip install -q --only-binary=:all: uv || ! venv/bin/uv --version; then
  echo "uv cannot be had here: pip installs"
fi"""


def _optimiser(recipe: Recipe, within_s: float) -> Iterator[Step]:
    how = optimiser.chosen(recipe)
    if how is None:
        return
    if how == "torch":
        yield Command(optimiser.in_torch_text(recipe), within_s, "AdamATan2 in PyTorch")
        return
    yield ReuseWheel()
    says = {
        "cuda": "AdamATan2: its CUDA extension",
        "auto": "AdamATan2: its CUDA extension if it works, else in PyTorch",
    }
    yield Command(once(optimiser.extension_text(how)), within_s, says[how])
    yield KeepWheel()
