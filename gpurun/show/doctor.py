"""What `doctor` found: a line for each thing, and whether it is fit for use."""

from collections.abc import Sequence

from gpurun.show.text import GAP, Look


def doctor_lines(rows: Sequence[tuple[bool, str, str]], look: Look) -> list[str]:
    """`ok` or `WANT`, what was looked at, what was found; what was found is never cut."""
    wide = max((len(what) for _, what, _ in rows), default=0)
    return [
        GAP.join(
            (
                look.paint("ok  ", "green") if ok else look.paint("WANT", "red"),
                what.ljust(wide),
                " ".join(says.split()),
            )
        )
        for ok, what, says in rows
    ]
