"""Starting processes of our own that outlive the one that starts them."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def detached(
    module: str, *arguments: str, log: Path, environ: Mapping[str, str] = os.environ
) -> None:
    """Run `python -m module` in a session of its own, printing to `log`; it is nobody's child.

    The environment travels along: a key that lives only there must reach the driver and the
    keeper.  It is never written anywhere.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        subprocess.run(
            ["sh", "-c", '"$@" &', "sh", sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            cwd=log.parent,
            env={**environ, "PYTHONUNBUFFERED": "1"},
            check=False,
        )
    finally:
        os.close(descriptor)
