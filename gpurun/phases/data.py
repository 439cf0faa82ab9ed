"""Files that the box fetches itself."""

import shlex

# Goes on where a broken download stopped; the file appears under its name only when it is right.
_FETCH = """
import hashlib, os, sys, time, urllib.error, urllib.request
source, target, wanted = sys.argv[1:]
part, tries_left = target + ".part", 5

def digest(path):
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()

def size(path):
    return os.path.getsize(path) if os.path.exists(path) else 0

if os.path.isfile(target) and (not wanted or digest(target) == wanted):
    sys.exit(print(target, "is here"))
os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
while True:
    had = size(part)
    request = urllib.request.Request(source, headers={"Range": f"bytes={had}-"} if had else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            with open(part, "ab" if answer.status == 206 else "wb") as file:
                while block := answer.read(1 << 20):
                    file.write(block)
            whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
            whole = whole or answer.headers.get("Content-Length")
            if not whole or not whole.isdigit() or size(part) >= int(whole):
                break
            error = f"broke off at {size(part)} of {whole} bytes"
    except urllib.error.HTTPError as refused:
        if refused.code == 416 and had:  # there is no more of it
            break
        error = refused
        if refused.code < 500:
            tries_left = 1
    except OSError as broken:
        error = broken
    tries_left = 5 if size(part) > had else tries_left - 1
    if not tries_left:
        sys.exit(f"{source} cannot be fetched: {error}")
    print(f"{error}; trying again", flush=True)
    time.sleep(2)
if wanted and (got := digest(part)) != wanted:
    os.remove(part)
    sys.exit(f"{source} has sha256 {got}, the recipe expects {wanted}")
os.replace(part, target)
print(f"{target}: {size(target)} bytes")
"""


def fetch_text(source: str, target: str, sha256: str | None) -> str:
    """sh text that leaves the file of this digest at `target`, and downloads it once."""
    arguments = shlex.join([source, target, sha256 or ""])
    return f"python3 -c {shlex.quote(_FETCH)} {arguments}"
