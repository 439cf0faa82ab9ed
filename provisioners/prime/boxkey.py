"""A key that the user has made for the box: with it the fuse there can end the bill.

Facts that shape it: a key has areas and an end, but none is tied to one pod: on a stranger's
machine it can end every pod of the account and make new ones until it expires.  So it is never the
account's own, never in argv, and only in a file on tmpfs.  A pod is not told its id.  Images
differ: curl or Python, one of them, is enough.
"""

import re
import shlex
from collections.abc import Mapping

from gpurun.errors import ProviderError
from provisioners.prime.access import Access
from provisioners.prime.account import may, team, whoami
from provisioners.prime.api import V1, Api

ANSWER_WITHIN_S = 14  # the fuse gives all of it 60, and it may ask four times
SETTING = "box_keys.prime in the settings"
_PLAIN = re.compile(r"[A-Za-z0-9._~+/=-]{8,512}")  # what needs no quotes anywhere


def file_of(instance_id: str) -> str:
    return f"/dev/shm/gpurun-key-{instance_id}"


def usable(access: Access) -> str:
    """The key, if it may lie on a box; else nothing."""
    key = access.box_key
    return key if key != access.api_key and _PLAIN.fullmatch(key) else ""


def unfit(api: Api, own: Api, access: Access) -> str:
    """Why the key that was given could not end a pod; nothing where it can, or nobody can tell.

    `own` asks with it, `api` with the account's.
    """
    if access.box_key == access.api_key:
        return "is the account's own key, which never goes to a box: make another"
    if not usable(access):
        return "is not a key: copy it whole, without quotes"
    answer = own.ask("GET", "/user/whoami", team(access))
    if answer.status == 401:
        return "is refused by prime: it may have expired"
    if answer.status == 403:  # it may not say whose it is; the rehearsal on the box tries it
        return ""
    said = own.require(answer, "say whose the key for the box is").get("data")
    told = said if isinstance(said, Mapping) else {}
    if told.get("id") != whoami(api, access).get("id"):
        return "is another account's"
    scope = told.get("scope")
    if isinstance(scope, Mapping) and not may(scope, "instances", True):
        return "lacks the permission Instances (read and write)"
    return ""


def excess(own: Api, access: Access) -> str:
    """What it may do beside ending pods; nothing where that cannot be told."""
    try:
        scope = whoami(own, access).get("scope")
    except ProviderError:
        return ""
    areas = scope if isinstance(scope, Mapping) else {}
    return ", ".join(area for area in areas if area != "instances" and may(areas, area, True))


def self_end(url: str, instance_id: str, method: str = "DELETE") -> str:
    """POSIX sh that ends this pod, run on it; 0: surely.  With GET it only tries the key.

    Gone is what the API's own JSON calls so, never a proxy's page, and a 404 only when the row is
    404 too.  The key goes to curl by its standard input, to Python by the environment.
    """
    python = (
        "import os,urllib.request as u\n"
        "r=u.Request(os.environ['U'],method=os.environ['M'],"
        "headers={'Authorization':'Bearer '+os.environ['K']})\n"
        f"try: a=u.urlopen(r,timeout={ANSWER_WITHIN_S})\n"
        "except u.HTTPError as e: a=e\n"
        "print(a.read().decode());print(a.status)"
    )
    row = f'*\'"id":"{instance_id}"\'*'
    gone = '{*\'"status":"TERMINATED"\'*}20? | {*\'"status":"DELETING"\'*}20?'
    wanted = {
        "GET": f"ask GET\ncase $said in {{{row}}}200) exit 0 ;; esac",
        "DELETE": f"""ask DELETE
case $said in
  {gone} | 204) exit 0 ;;
  {{*'"detail":'*}}404) ask GET ;;
  *) exit 1 ;;
esac
case $said in {gone} | {{*'"detail":'*}}404) exit 0 ;; esac""",
    }
    return f"""(
K=
{{ IFS= read -r K || [ "$K" ]; }} 2>/dev/null < {file_of(instance_id)}
[ "$K" ] || exit 1
ask() {{
  for U in {shlex.quote(f"{url}{V1}/pods/{instance_id}")} \\
      {shlex.quote(f"{url}{V1}/pods/{instance_id}/")}; do
    if command -v curl > /dev/null; then
      said=$(printf 'header = "Authorization: Bearer %s"\\n' "$K" \\
        | curl -s -m {ANSWER_WITHIN_S} -X "$1" -w '\\n%{{http_code}}' -K - "$U")
    else
      said=$(U=$U K=$K M=$1 $(command -v python3 || command -v python) -c {shlex.quote(python)})
    fi
    said=$(printf %s "$said" | tr -d ' \\r\\n')
    case $said in *30[78]) ;; *) return ;; esac
  done
}}
{wanted[method]}
exit 1
)"""
