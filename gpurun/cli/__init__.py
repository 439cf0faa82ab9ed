"""The command line: parse, call, print.  What is slow to import is imported by who needs it."""

import sys

WINDOWS = "gpurun runs on Linux and macOS; on Windows use it inside WSL (wsl --install)."


def main() -> None:
    """The entry point `gpurun`."""
    if sys.platform == "win32":
        print(WINDOWS, file=sys.stderr)
        sys.exit(2)
    from gpurun.cli.app import run

    sys.exit(run(sys.argv[1:]))
