"""The command line: parse, call, print.  What is slow to import is imported by who needs it."""

import sys
from io import TextIOWrapper

WINDOWS = "gpurun runs on Linux and macOS; on Windows use it inside WSL (wsl --install)."


def main() -> None:
    """The entry point `gpurun`."""
    if sys.platform == "win32":
        print(WINDOWS, file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show is no crash
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    from gpurun.cli.app import run

    sys.exit(run(sys.argv[1:]))
