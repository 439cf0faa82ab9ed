"""The official clients, run as their users run them, against an emulated cloud.

`make clients` puts them into an environment of their own (tests/clouds/official-clients.txt).  Each
session has its own HOME: both keep files there, and both cache what they have seen.

With OFFICIAL_TRANSCRIPT=FILE each command and what it printed is added to that file.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.clouds.serve import Cloud

BIN = Path(__file__).parents[2] / ".venv-clients" / "bin"
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Session:
    """One user of an official client."""

    environment: Mapping[str, str]

    def __call__(self, *argv: str, exit_code: int = 0, stdin: str = "") -> str:
        """What `argv` prints on stdout; its exit code and no traceback are asserted."""
        done = self.run(*argv, stdin=stdin)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == exit_code, (
            f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
        )
        return done.stdout

    def run(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        program = BIN / argv[0]
        assert program.exists(), f"{program} is missing: run `make clients`"
        done = subprocess.run(
            [program, *argv[1:]],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if transcript := os.environ.get("OFFICIAL_TRANSCRIPT"):
            with Path(transcript).open("a") as file:
                file.write(f"$ {shlex.join(argv)}\n{done.stdout}{done.stderr}\n")
        return done


def vastai(cloud: Cloud, home: Path, api_key: str | None = None) -> Session:
    """The CLI and the SDK of Vast; `python` runs with the SDK importable."""
    return _session(
        home,
        VAST_URL=cloud.url,
        VAST_API_KEY=api_key or cloud.api_key,
        VASTAI_NO_UPDATE_CHECK="1",
    )


def prime(cloud: Cloud, home: Path, api_key: str | None = None, **more: str) -> Session:
    """The CLI of Prime Intellect."""
    return _session(
        home,
        PRIME_API_BASE_URL=cloud.url,
        PRIME_API_KEY=api_key or cloud.api_key,
        PRIME_DISABLE_VERSION_CHECK="1",
        **more,
    )


def _session(home: Path, **variables: str) -> Session:
    home.mkdir(parents=True, exist_ok=True)
    path = f"{BIN}:{os.environ['PATH']}"
    # Wide, so that no table is folded; without a terminal neither client pages or colours.
    return Session(
        {"HOME": str(home), "PATH": path, "COLUMNS": "400", "LINES": "1000", **variables}
    )
