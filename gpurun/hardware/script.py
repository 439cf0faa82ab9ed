"""What is asked of a box, as one POSIX sh text: a line `=name value` for each thing.

Nothing is taken for granted: no tool need be there, no answer need come.  The prefix tells an
answer from what a login's rc files print.
"""

READ_S = 90.0

# Container images put their tools here by ENV, which a session over SSH does not see.
PATH_BEHIND = "/usr/local/cuda/bin:/opt/conda/bin:/usr/local/sbin:/usr/sbin:/sbin"

OLDEST_PYTHON = (3, 10)
_PYTHONS = (
    '"${GPURUN_PYTHON:-}" python3 /opt/conda/bin/python3 /venv/main/bin/python3'
    " python3.14 python3.13 python3.12 python3.11 python3.10"
)


def python_script() -> str:
    """sh functions: `pythons` prints each interpreter that is new enough, the first choice first.

    `GPURUN_PYTHON`, where it is set, stands before all others.
    """
    old = f"import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return f"""\
pythons() {{
  for candidate in {_PYTHONS}; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    ! "$candidate" -c '{old}' 2>/dev/null || command -v "$candidate"
  done
}}
"""


# The registry's page of uv, about 2 MB: what the setup reads anyway when it installs uv.
_DOWNLOAD = """
import os, time, urllib.request
index = os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
with urllib.request.urlopen(index.rstrip("/") + "/uv/", timeout=4) as page:
    started, count = time.monotonic(), 0
    while time.monotonic() - started < 4 and count < 8_000_000 and (block := page.read(65536)):
        count += len(block)
    print("=download", count, "%.4f" % max(time.monotonic() - started, 0.0001))
"""

_GPU_FIELDS = "index,name,memory.total,driver_version,uuid,memory.used,mig.mode.current"

SCRIPT = f"""\
export LC_ALL=C PATH="$PATH:{PATH_BEHIND}:$HOME/.local/bin"
say() {{ printf '=%s\\n' "$*"; }}
has() {{ command -v "$1" >/dev/null 2>&1; }}
within() {{ if has timeout; then timeout "$@"; else shift; "$@"; fi; }}
{python_script()}
say date_s "$(date +%s)"
say boot "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
python=$(pythons | head -n 1)
[ -n "$python" ] || ! has python3 || python=python3
if [ -n "$python" ]; then
  say python "$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"
  "$python" -m pip --version >/dev/null 2>&1 && say tool pip
  "$python" -c 'import ensurepip, venv' 2>/dev/null && say tool venv
fi
for tool in uv nvcc tmux rsync git curl wget apt-get flock setsid; do
  has $tool && say tool $tool
done
say nvcc "$(nvcc --version 2>/dev/null | sed -n 's/.*release \\([0-9.]*\\).*/\\1/p')"
say user "$(id -un 2>/dev/null || id -u)"
say uid "$(id -u)"
has sudo && within 5 sudo -n true </dev/null >/dev/null 2>&1 && say sudo yes
say cpus "$(getconf _NPROCESSORS_ONLN 2>/dev/null)"
has nproc && say cpus_allowed "$(nproc)"
say cpu_quota "$(cat /sys/fs/cgroup/cpu.max 2>/dev/null)"
say memory_kb "$(awk '/MemTotal/ {{print $2}}' /proc/meminfo 2>/dev/null)"
for limit in memory.max memory/memory.limit_in_bytes; do
  [ ! -r /sys/fs/cgroup/$limit ] || say memory_limit "$(cat /sys/fs/cgroup/$limit 2>/dev/null)"
done
say disk_kb "$(df -Pk . 2>/dev/null | awk 'NR == 2 {{print $4}}')"
say shm_kb "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {{print $2}}')"
say open_files "$(ulimit -n 2>/dev/null)"
say locked_kb "$(ulimit -l 2>/dev/null)"
say ptrace_scope "$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null)"
kind=machine
if has systemd-detect-virt && virt=$(systemd-detect-virt 2>/dev/null); then kind=$virt
elif [ -f /.dockerenv ] || [ -f /run/.containerenv ] || [ -n "${{KUBERNETES_SERVICE_HOST:-}}" ] ||
  grep -qE 'docker|kubepods|containerd|lxc' /proc/1/cgroup 2>/dev/null ||
  [ ! -d /run/systemd/system ]; then kind=container
fi
say kind "$kind"
if has nvidia-smi; then
  say smi yes
  csv=--format=csv,noheader,nounits
  rows=$(within 20 nvidia-smi --query-gpu={_GPU_FIELDS},compute_cap $csv 2>&1)
  case $? in 124) rows="nvidia-smi did not answer within 20 s" ;; esac
  case $rows in
    *'not a valid field'*) rows=$(within 20 nvidia-smi --query-gpu={_GPU_FIELDS} $csv 2>&1) ;;
  esac
  printf '%s\\n' "$rows" | sed 's/^/=gpu /'
  case $rows in
    *'did not answer'*) ;;
    *)
      within 10 nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory $csv 2>/dev/null |
        sed 's/^/=app /'
      within 10 nvidia-smi topo -m 2>/dev/null | sed 's/^/=topo /'
      cuda='s/.*CUDA Version *: *\\([0-9.]*\\).*/\\1/p'
      say cuda "$(within 10 nvidia-smi 2>/dev/null | sed -n "$cuda" | head -n 1)"
      ;;
  esac
fi
[ -z "$python" ] || within 10 "$python" -c '{_DOWNLOAD}' 2>/dev/null
say end
"""
