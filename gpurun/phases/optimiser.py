"""AdamATan2 on the box: the CUDA extension of adam-atan2 0.0.3 if it works, else PyTorch.

Facts that shape this file.  Built with isolation, or found in pip's cache, the package installs
without its CUDA part and fails at import only; its kernels are for compute capability 8.x and 9.0
alone, whatever TORCH_CUDA_ARCH_LIST says; it needs nvcc and a torch of the same CUDA major
release.  So it counts as there when one step on every GPU gives the right numbers, not before.

What was decided stands in one line of a file on the box: its first word is `cuda` or `torch`, the
rest is for people.
"""

import shlex
from typing import Literal

from gpurun.phases.steps import KEEP
from gpurun.recipe import Recipe

PACKAGE, VERSION = "adam-atan2", "0.0.3"
OPTIMISER_FILE = f"{KEEP}/optimiser"
WHEELS = f"{KEEP}/wheels"  # on the box: one that was brought, or one that was built

# What a wheel depends on, as one word.
KEY_TEXT = f"""\
venv/bin/python - <<'END'
import platform, sys, torch
gpus = range(torch.cuda.device_count())
caps = sorted({{"%d%d" % torch.cuda.get_device_capability(gpu) for gpu in gpus}})
print(
    "{PACKAGE}-{VERSION}", f"torch{{torch.__version__}}", f"cuda{{torch.version.cuda}}",
    "sm" + "_".join(caps), "cp%d%d" % sys.version_info[:2], platform.machine(), sep="-",
)
END"""

_TRY = """\
import math, sys, torch
import adam_atan2_backend
from adam_atan2 import AdamATan2
lr, beta1, beta2, decay = 0.01, 0.9, 0.95, 0.1
if not torch.cuda.device_count():
    sys.exit("torch sees no GPU")
for gpu in range(torch.cuda.device_count()):
    torch.cuda.set_device(gpu)
    parameter = torch.nn.Parameter(torch.full((512,), 0.5, device=f"cuda:{gpu}"))
    parameter.grad = torch.full_like(parameter, 0.25)
    AdamATan2([parameter], lr=lr, betas=(beta1, beta2), weight_decay=decay).step()
    right = 0.5 * (1 - lr * decay) - lr / (1 - beta1) * math.atan2((1 - beta1) * 0.25, 0.25)
    off = max(abs(value - right) for value in parameter.tolist())
    if not off < 1e-6:
        sys.exit(f"one step on GPU {gpu} is off by {off:.1e}")
"""

_MAY_BUILD = """\
import re, subprocess, sys, torch
if not torch.cuda.device_count():
    sys.exit("torch sees no GPU")
for gpu in range(torch.cuda.device_count()):
    major, minor = torch.cuda.get_device_capability(gpu)
    if major not in (8, 9):
        sys.exit(f"it has no kernels for compute capability {major}.{minor}")
try:
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
except OSError:
    sys.exit("nvcc is not on this box: take a `-devel` image to build it")
nvcc = re.search(r"release (\\d+)", said)
if nvcc is None or nvcc[1] != torch.version.cuda.split(".")[0]:
    sys.exit(f"nvcc is of CUDA {nvcc and nvcc[1]}, torch of {torch.version.cuda}")
"""


def chosen(recipe: Recipe) -> Literal["auto", "cuda", "torch"] | None:
    """How the recipe wants it; None where nobody has asked and our trainer is not used."""
    how = recipe.setup.adam_atan2
    texts = [recipe.check or "", recipe.train.run if recipe.train else ""]
    if how == "auto" and not any("remote." in text for text in texts):
        return None
    return "torch" if recipe.setup.device == "cpu" else how


def in_torch_text(recipe: Recipe) -> str:
    why = "setup.device is cpu" if recipe.setup.device == "cpu" else "setup.adam_atan2 is torch"
    return f"{_SETTLE}settle torch 'AdamATan2 in PyTorch, for {why}'"


def extension_text(how: str) -> str:
    """Find, install or build the extension and try it; `auto` goes on without, `cuda` fails."""
    return f"""\
{_SETTLE}mkdir -p {WHEELS}
log={KEEP}/{PACKAGE}.log
pip() {{ venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }}
last() {{
  for pattern in '[A-Za-z]Error: ' 'fatal|[^-]error: ' '.'; do
    if grep -qE "$pattern" "$log"; then
      grep -E "$pattern" "$log" | tail -n 1 | sed 's/^ *//' | cut -c 1-300
      return
    fi
  done
}}
works() {{ venv/bin/python -c {shlex.quote(_TRY)} >"$log" 2>&1; }}
without() {{
  pip uninstall -qy {PACKAGE} >/dev/null 2>&1 || :
  if [ {how} = cuda ]; then
    echo "{PACKAGE} {VERSION} does not work here: $1" >&2
    echo "set setup.adam_atan2 to auto, and AdamATan2 runs in PyTorch" >&2
    exit 1
  fi
  settle torch "AdamATan2 in PyTorch, for the CUDA extension does not work here: $1"
  exit 0
}}
if works; then settle cuda "AdamATan2, CUDA extension that was on the box"; exit 0; fi
for wheel in {WHEELS}/*.whl; do
  [ -f "$wheel" ] || continue
  if pip install -q --no-deps --no-index --force-reinstall "$wheel" >"$log" 2>&1 && works; then
    settle cuda "AdamATan2, CUDA extension from a wheel that an equal box has built"
    exit 0
  fi
  echo "the wheel that an equal box has built does not work here: $(last)"
  rm -f "$wheel"
done
pip uninstall -qy {PACKAGE} >/dev/null 2>&1 || :
if ! venv/bin/python -c {shlex.quote(_MAY_BUILD)} 2>"$log"; then without "$(last)"; fi
{build_text()}
for wheel in {WHEELS}/*.whl; do
  pip install -q --no-deps --no-index --force-reinstall "$wheel" >"$log" 2>&1 || without "$(last)"
done
if ! works; then reason=$(last); rm -f {WHEELS}/*.whl; without "$reason"; fi
: > {WHEELS}/built
settle cuda "AdamATan2, CUDA extension built on this box"
"""


def build_text() -> str:
    """A wheel in WHEELS, or `without` is called with the reason; `log`, `last`, `pip` are set."""
    return f"""\
nvcc=$(command -v nvcc) && export CUDA_HOME="${{CUDA_HOME:-$(dirname "$(dirname "$nvcc")")}}" || :
export MAX_JOBS="${{MAX_JOBS:-$(getconf _NPROCESSORS_ONLN)}}"
echo "building {PACKAGE} {VERSION} with $MAX_JOBS jobs for ${{TORCH_CUDA_ARCH_LIST:-its own list}}"
pip install -q setuptools wheel setuptools_scm ninja packaging >"$log" 2>&1 || without "$(last)"
pip wheel -q --no-build-isolation --no-cache-dir --no-binary {PACKAGE} --no-deps \\
  -w {WHEELS} {PACKAGE}=={VERSION} >"$log" 2>&1 || without "$(last)"
for wheel in {WHEELS}/*-none-any.whl; do
  [ ! -f "$wheel" ] || {{ rm -f "$wheel"; without "it was built without its CUDA part"; }}
done"""


_SETTLE = f"""\
settle() {{
  echo "optimiser: $2"
  mkdir -p {KEEP}; printf '%s %s\\n' "$1" "$2" > {OPTIMISER_FILE}.tmp
  mv {OPTIMISER_FILE}.tmp {OPTIMISER_FILE}
}}
"""
