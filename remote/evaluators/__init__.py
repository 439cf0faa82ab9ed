"""What is made of a model's answers: an evaluator gathers them and says how good they are."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remote.evaluators.arc import ARC
from remote.overrides import ConfigError

EVALUATORS = {"arc@ARC": ARC}


def make(entries: list[dict[str, Any]], data: Sequence[Path]) -> list[ARC]:
    """From the setting `evaluators`; a wrong name or option is found before training."""
    made = []
    for entry in entries:
        options = dict(entry)
        name = str(options.pop("name", None))
        if name not in EVALUATORS:
            known = ", ".join(EVALUATORS)
            raise ConfigError(f"evaluators: no evaluator {name}; there is {known}")
        kind = EVALUATORS[name]
        for option, value in options.items():
            if option not in kind.OPTIONS:
                nearest = difflib.get_close_matches(option, kind.OPTIONS, 1, cutoff=0.0)[0]
                raise ConfigError(f"evaluators: {name} has no {option}; the nearest is {nearest}")
            expected, is_that = kind.OPTIONS[option]
            if not is_that(value):
                raise ConfigError(f"evaluators: {name} has {option}={value!r}: expected {expected}")
        made.append(kind(data, options))
    return made
