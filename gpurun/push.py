"""Pushing results from the box itself: with every machine of ours off, nothing of value is lost.

The credential is one made for this purpose, given as secrets of the recipe; it lies on the box's
tmpfs while the box lives, and no process but the push reads it:
    user@host:path   COLLECT_TO_KEY, the text of a private key; COLLECT_TO_PORT if it is not 22
    remote:path      RCLONE_CONFIG_<REMOTE>_*, as rclone reads them from the environment
"""

import shlex
from pathlib import Path

from gpurun.errors import UsageError
from gpurun.phases import KEEP
from gpurun.recipe import Recipe

NAME = "push"  # of the job on the box
SCRIPT = f"{KEEP}/push.sh"
EVERY_S = 30
KEY = "COLLECT_TO_KEY"
PREFIXES = ("COLLECT_TO_", "RCLONE_")
LAST_WORDS_S = 20  # between SIGTERM and the last push: for a checkpoint
_TEXT = Path(__file__).with_name("push.sh").read_text()


def is_credential(secret: str) -> bool:
    """Whether this secret is for the push alone, and not for the training."""
    return secret.startswith(PREFIXES)


def check(recipe: Recipe) -> None:
    """UsageError when nobody has given the box what it needs to push."""
    if recipe.collect_to is None:
        return
    named = [secret.name for secret in recipe.secrets if is_credential(secret.name)]
    if over_ssh(recipe.collect_to):
        wanted, missing = KEY, KEY not in named
    else:
        remote = recipe.collect_to.partition(":")[0].upper().replace("-", "_")
        wanted = f"RCLONE_CONFIG_{remote}_TYPE"
        missing = wanted not in named
    if missing:
        raise UsageError(
            f"recipe {recipe.name} has collect_to: {recipe.collect_to}, but no secret {wanted}: "
            "add the credential made for it to `secrets` (docs/recipes.md); nothing was rented"
        )


def over_ssh(collect_to: str) -> bool:
    """`user@host:path`, not `remote:path`."""
    return "@" in collect_to.partition(":")[0]


def script(collect_to: str, credential: str, run_id: str) -> str:
    """The script of one box; each run has a folder of its own at the target."""
    words = {
        "@credential@": shlex.quote(credential),
        "@target@": shlex.quote(f"{collect_to.rstrip('/')}/{run_id}"),
        "@every_s@": str(EVERY_S),
    }
    text = _TEXT
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def tools_text(collect_to: str) -> str:
    """sh text that installs what the push needs and the box lacks."""
    tool, package = ("ssh", "openssh-client") if over_ssh(collect_to) else ("rclone", "rclone")
    install = "apt-get install -qy --no-install-recommends"
    return (
        f'command -v {tool} >/dev/null && exit 0; sudo=""\n'
        '[ "$(id -u)" = 0 ] || sudo="sudo -n"\n'
        f"$sudo apt-get update -q; DEBIAN_FRONTEND=noninteractive $sudo {install} {package}"
    )


def last_text() -> str:
    """sh text for whoever ends the box: what was saved until now is pushed."""
    return f"[ ! -f {SCRIPT} ] || {{ sleep {LAST_WORDS_S}; sh {SCRIPT} once; }}"
