"""Which disk of a pod a run lies on.

Facts that shape it: what the disk that was asked for is mounted at differs by upstream: the root of
the machine, /workspace, /ephemeral, or nowhere in particular; a login that is not root may own none
of it; in a container single files are mounted from the host's disk, and look as large as that is.
"""

FOLDER = "gpurun"

# $4 and $6 of `df -P`: what is free, where it is mounted.  What is in memory is no disk.
MAKE_ROOT = f"""\
cd && free_kb=$(df -Pk . | awk 'NR == 2 {{ print $4 }}')
df -Pkl | awk -v least="$free_kb" \\
  'NR > 1 && $1 !~ /^(tmpfs|devtmpfs|ramfs|udev|shm|none)$/ && $4 > least {{ print $4, $6 }}' \\
  | sort -rn | while read -r kb at; do
    [ -d "$at" ] && [ ! -e {FOLDER} ] || continue
    there=${{at%/}}/{FOLDER}
    mkdir -p "$there" || {{ sudo -n mkdir -p "$there" && sudo -n chown "$(id -u)" "$there"; }}
    [ -d "$there" ] && [ -w "$there" ] && chmod 700 "$there" && ln -sn "$there" {FOLDER}
  done
[ -d {FOLDER} ] || mkdir -m 700 {FOLDER}
"""


def root(home: str) -> str:
    return f"{home}/{FOLDER}"
