"""What a container runs by itself when it starts, and how it ends itself.

Facts that shape it: `onstart` takes 4048 characters and is run at every start of the container,
also after an outbid one resumes; an entry of `env` takes 256; both can be read by the host, so
neither holds a secret.  The container's own key is in the environment of process 1 and of onstart,
never in an SSH session's; it can end this one instance.  A login opens tmux unless a file forbids
it.  Images differ: curl or Python, one of them, is enough.
"""

import base64
import gzip
import math
import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime

from gpurun.errors import NoCapacity
from gpurun.model import Order

ONSTART_MOST = 4048
ENTRY_MOST = 256
ROOT = "/workspace/gpurun"
FUSE = f"{ROOT}/.gpurun/fuse"
LEAST_S, MARGIN_S = 300, 60
ANSWER_WITHIN_S = 50  # the fuse gives it 60
_ENTRY = "GPURUN_FUSE_"
_KEYS = "~/.ssh/authorized_keys"
_LET_IN = (
    f'(umask 077; mkdir -p ~/.ssh; touch {_KEYS}; grep -qxF "$k" {_KEYS} || echo "$k" >> {_KEYS})'
)


def environment(order: Order) -> dict[str, str]:
    """The fuse's script, packed, in entries of a size that Vast documents."""
    if not order.fuse_script:
        return {}
    packed = base64.b64encode(gzip.compress(order.fuse_script.encode(), 9, mtime=0)).decode()
    size = ENTRY_MOST - len(_ENTRY) - len("00=")
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    if len(pieces) > 99:
        raise NoCapacity(f"the fuse of {order.label} is too long for its container: not rented")
    return {f"{_ENTRY}{number:02}": piece for number, piece in enumerate(pieces)}


def script(order: Order, env: Mapping[str, str], keys: Iterable[str], now: datetime) -> str:
    """Makes the run's directory, lets our keys in, and starts the fuse under the setup timer.

    The fuse's own file wins over what is written here: a restart never gives more time.  Of the
    keys those that fit are let in; the others have to be registered with the account.
    """
    head = f"touch ~/.no_auto_tmux; mkdir -p {ROOT}\n"
    pieces = sorted(name for name in env if name.startswith(_ENTRY))
    tail = _fuse_text(order, pieces, now) if pieces else ""
    for key in dict.fromkeys(" ".join(each.split()) for each in keys if each.strip()):
        line = f"k={shlex.quote(key)}; {_LET_IN}\n"
        if len(head) + len(line) + len(tail) <= ONSTART_MOST:
            head += line
    return head + tail


def self_end(url: str, instance_id: str, method: str = "DELETE") -> str:
    """POSIX sh that ends the instance it runs on; 0: surely.  With GET it only tries the key.

    The key goes to curl by its standard input, to Python by the environment: never in argv.
    404 ends it only with the words `no_such_instance`: a wrong key is 404 too.
    """
    ours = f'[ "$id" = {shlex.quote(instance_id)} ] || exit 1\n' if instance_id else ""
    yes = "*'\"id\":'*200" if method == "GET" else "*no_such_instance*404"
    python = (
        "import os,urllib.request as u\n"
        f"r=u.Request(os.environ['U'],method='{method}',"
        "headers={'Authorization':'Bearer '+os.environ['K']})\n"
        "try: a=u.urlopen(r,timeout=45)\n"
        "except u.HTTPError as e: a=e\n"
        "print(a.read().decode());print(a.status)"
    )
    return f"""(
own() {{ tr '\\0' '\\n' < /proc/1/environ 2>/dev/null | sed -n "s/^$1=//p"; }}
id=${{CONTAINER_ID:-$(own CONTAINER_ID)}} K=${{CONTAINER_API_KEY:-$(own CONTAINER_API_KEY)}}
[ "$id" ] && [ "$K" ] || exit 1
{ours}U={shlex.quote(url)}/api/v0/instances/$id/
if command -v curl > /dev/null; then
  said=$(printf 'header = "Authorization: Bearer %s"\\n' "$K" \\
    | curl -s -m {ANSWER_WITHIN_S} -X {method} -w '\\n%{{http_code}}' -K - "$U")
else
  said=$(U=$U K=$K $(command -v python3 || command -v python) -c {shlex.quote(python)})
fi
case $(printf %s "$said" | tr -d ' \\n') in
  {yes}) exit 0 ;;
  *'"success":false'* | *'"instances":null'*) exit 1 ;;
  *'"success":true'*20?) exit 0 ;;
esac
exit 1
)"""


def _fuse_text(order: Order, pieces: list[str], now: datetime) -> str:
    """As gpurun/fuse.py arms it, for somebody who was not there: its clock is the box's own."""
    fires_s, ends_s = (math.ceil(at.timestamp()) for at in (order.fires_at, order.ends_at))
    most_s = max(LEAST_S, math.ceil((order.ends_at - now).total_seconds())) + MARGIN_S
    packed = "".join(f"${name}" for name in pieces)
    return f"""umask 077; mkdir -p {FUSE}; cd {FUSE} || exit
if [ ! -s fuse.sh ]; then
  printf %s "{packed}" | base64 -d | gzip -d > fuse.sh.new && mv -f fuse.sh.new fuse.sh
fi
if [ -s fuse.timer ]; then exec sh fuse.sh start; fi
now=$(date +%s); left=$(({ends_s} - now))
[ $left -ge {LEAST_S} ] || left={LEAST_S}
[ $left -le {most_s} ] || left={most_s}
exec sh fuse.sh arm 1 {fires_s} {ends_s} $left $now"""
