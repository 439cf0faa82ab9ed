"""Everything slept past the end of a box: so long may its results still be collected, once."""

import json
from decimal import Decimal, InvalidOperation

from gpurun.settings import Settings


def late_collect_s(recipe_json: str, settings: Settings) -> float:
    """The recipe's own word, else the setting; a damaged row keeps no box alive."""
    minutes = settings.late_collect_minutes
    try:
        own = json.loads(recipe_json)["budget"].get("late_collect_minutes")
        if own is not None:
            minutes = Decimal(str(own))
    except (ValueError, KeyError, TypeError, AttributeError, InvalidOperation):
        pass
    return float(minutes) * 60
