"""What is run on a host, in POSIX sh: it needs nothing there but a base system.

    /var/tmp/gpurun/            the marker: made by mkdir, so that one controller holds the host
        again.N                 one that broke off was taken over: by mkdir, so by one controller
        label                   whose it is: made by ln, so that nobody writes over another's
        facts                   created_at (seconds), ends_at (seconds), usd per hour, boot id, root
    WORKSPACE/LABEL/            the run's own directory
    WORKSPACE/kept/LABEL/       artifacts that nobody had fetched when their run was ended

A process is ours if it is in the run's own cgroup, or bears the label in its environment, or
descends from one that does; it is never known by name or user.
"""

import shlex
from pathlib import PurePosixPath

MARKER = "/var/tmp/gpurun"
ABANDONED_MINUTES = 2  # a marker without a label: its maker died between two commands
FUSE_TIMER = ".gpurun/fuse/fuse.timer"  # seq, label, fires_at, ends_at, ...: the timer now in force
MARKER_BYTES = 500  # of each file of a marker: another hand may have made it
CGROUP = "/sys/fs/cgroup"
END_WITHIN_S = 10


ABANDONED_TEXT = f"""\
abandoned() {{
  [ ! -e {MARKER}/label ] && [ -n "$(find {MARKER} -maxdepth 0 -mmin +{ABANDONED_MINUTES})" ]
}}"""
MACHINE_TEXT = "cat /etc/machine-id /var/lib/dbus/machine-id 2>/dev/null | head -n 1"


def survey_text(workspace: str) -> str:
    """Says what the host is, whether it can be used, and by whom it is held."""
    return f"""
echo "boot $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
echo "cpus $(getconf _NPROCESSORS_ONLN 2>/dev/null)"
echo "memory_kb $(awk '/MemTotal/ {{print $2}}' /proc/meminfo 2>/dev/null)"
there={shlex.quote(workspace)}
while [ ! -d "$there" ]; do there=$(dirname "$there"); done
if [ ! -w "$there" ]; then
  [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null || echo "unwritable $there"
fi
echo "disk_kb $(df -Pk "$there" | awk 'NR == 2 {{print $4}}')"
{ABANDONED_TEXT}
if [ -d {MARKER} ] && ! abandoned; then
  label=$(head -c {MARKER_BYTES} {MARKER}/label 2>/dev/null | head -n 1)
  echo "held $label"
  [ -z "$label" ] || echo "processes $(grep -l "GPURUN_LABEL=$label" /proc/[0-9]*/environ \\
    2>/dev/null | wc -l)"
  echo "now $(date +%s)"
  echo "facts $(head -c {MARKER_BYTES} {MARKER}/facts 2>/dev/null | tr '\\n' ' ')"
  root=$(sed -n 5p {MARKER}/facts 2>/dev/null | head -c {MARKER_BYTES})
  echo "fuse $(head -c {MARKER_BYTES} "$root/{FUSE_TIMER}" 2>/dev/null | head -n 1)"
fi
if command -v nvidia-smi >/dev/null; then
  echo "smi yes"
  nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits 2>&1 | sed 's/^/gpu /'
  nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader 2>/dev/null \\
    | sed 's/^/busy /'
fi
echo end
"""


def make_text(label: str, workspace: str, ends_at_s: int, usd_per_hour: str) -> str:
    """Claims the host and makes the run's directory: all of it, or none.  Exit 3: it is held.

    Exit 4: the workspace cannot be made or written; exit 5: the marker cannot.
    """
    root = root_of(workspace, label)
    quoted, there = shlex.quote(root), shlex.quote(workspace)
    return f"""
umask 022
as_root=; [ "$(id -u)" = 0 ] || as_root="sudo -n"
{ABANDONED_TEXT}
held() {{
  echo "held by $(head -c {MARKER_BYTES} {MARKER}/label 2>/dev/null | head -n 1)"; exit 3
}}
undo() {{
  [ -e {MARKER}/label ] || rm -rf {MARKER}
  rmdir {quoted}/.gpurun {quoted} 2>/dev/null
  echo "$1"; exit 4
}}
again=$(ls -d {MARKER}/again.* 2>/dev/null | wc -l)  # who counts later finds the marker fresh
if [ -d {MARKER} ] && abandoned; then
  mkdir {MARKER}/again.$((again)) 2>/dev/null || held
elif ! mkdir {MARKER} 2>/dev/null; then
  [ ! -d {MARKER} ] || held
  echo "{MARKER} cannot be made"; exit 5
fi
if ! mkdir -p {there} 2>/dev/null || [ ! -w {there} ]; then
  $as_root mkdir -p {there} 2>/dev/null && $as_root chown "$(id -u)" {there} 2>/dev/null \\
    || undo "its workspace {workspace} can neither be made nor written"
fi
mkdir {quoted} && mkdir {quoted}/.gpurun || undo "{root} cannot be made"
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
printf '%s\\n' "$(date +%s)" {ends_at_s} {usd_per_hour} "${{boot:-none}}" {quoted} \\
  > {MARKER}/facts || undo "{MARKER} cannot be written"
named={MARKER}/label.{label}
echo {label} > $named || undo "{MARKER} cannot be written"
if ! ln $named {MARKER}/label 2>/dev/null; then  # it is there, or the disk knows no links
  [ ! -e {MARKER}/label ] || {{ rmdir {quoted}/.gpurun {quoted}; held; }}
  mv $named {MARKER}/label || undo "{MARKER} cannot be written"
fi
echo made
"""


def enter_text(label: str) -> str:
    """Run before each command of the box: its processes can be told by it, and ended together."""
    group = f"{CGROUP}/{label}"
    return (
        f"export GPURUN_LABEL={label}\n"
        f"if [ -e {CGROUP}/cgroup.procs ]; then\n"
        f"  mkdir {group} 2>/dev/null; {{ echo $$ > {group}/cgroup.procs; }} 2>/dev/null || :\n"
        "fi"
    )


def lives_text(label: str) -> str:
    """Status 0: some process of the run lives; 1: none does."""
    return f"""
as_root=; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || as_root="sudo -n"
[ -z "$(cat {CGROUP}/{label}/cgroup.procs 2>/dev/null)" ] || exit 0
LC_ALL=C $as_root grep -l "GPURUN_LABEL={label}" /proc/[0-9]*/environ 2>/dev/null | grep -q .
"""


def end_text(label: str) -> str:
    """Ends every process of the run but those that run this; status 0: none is left.

    The fuse runs it too: it and what it descends from are spared, and end by themselves.
    """
    return f"""(
as_root=; [ "$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || as_root="sudo -n"
ours() {{
  {{
    sed 's/^/mine /' {CGROUP}/{label}/cgroup.procs
    LC_ALL=C $as_root grep -l "GPURUN_LABEL={label}" /proc/[0-9]*/environ \\
      | sed 's|/proc/\\([0-9]*\\)/.*|mine \\1|'
    grep -E '^(PPid|State):' /proc/[0-9]*/status | sed 's|^/proc/\\([0-9]*\\)/status:|\\1 |'
  }} 2>/dev/null | awk -v me=$$ '
    $1 == "mine" {{ mine[$2] = 1 }}
    $2 == "PPid:" {{ parent[$1] = $3 }}
    $2 == "State:" {{ dead[$1] = ($3 == "Z" || $3 == "X") }}
    END {{
      for (p = me; p > 1 && p in parent; p = parent[p]) spared[p] = 1
      under[me] = 1
      do {{
        grown = 0
        for (p in parent) {{
          if (!(p in under) && parent[p] in under) {{ under[p] = 1; grown = 1 }}
          if (!(p in mine) && parent[p] in mine && !(parent[p] in spared)) {{
            mine[p] = 1; grown = 1
          }}
        }}
      }} while (grown)
      for (p in mine) if (p in parent && !(p in spared) && !(p in under) && !dead[p]) print p
    }}'
}}
tries={END_WITHIN_S * 5}
while left=$(ours); [ -n "$left" ]; do
  [ "$tries" -gt 0 ] || {{ echo "do not end: $(echo $left)"; exit 1; }}
  kill -s KILL $left 2>/dev/null || $as_root kill -s KILL $left 2>/dev/null
  tries=$((tries - 1)); sleep 0.2 2>/dev/null || sleep 1
done
rmdir {CGROUP}/{label} 2>/dev/null
rm -f /dev/shm/{label}.*
exit 0
)"""


def remove_text(label: str, workspace: str) -> str:
    """Takes the run's directory and, last of all, the marker away; `save` was run before it."""
    root, trash = root_of(workspace, label), f"{workspace}/.trash-{label}"
    return f"""
if [ -d {shlex.quote(root)} ]; then
  mv {shlex.quote(root)} {shlex.quote(trash)} || {{ echo "{root} cannot be removed"; exit 1; }}
fi
if [ -d {shlex.quote(trash)} ]; then
  alone=$(command -v setsid || command -v nohup)
  $alone sh -c 'chmod -R u+rwX "$0"; rm -rf "$0"' {shlex.quote(trash)} </dev/null >/dev/null 2>&1 &
fi
[ "$(cat {MARKER}/label 2>/dev/null)" != {label} ] || rm -rf {MARKER}
"""


def kept_of(workspace: str, label: str) -> str:
    return str(PurePosixPath(workspace) / "kept" / label)


def root_of(workspace: str, label: str) -> str:
    return str(PurePosixPath(workspace) / label)
