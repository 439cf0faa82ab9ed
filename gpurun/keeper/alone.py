"""What fails keeps nothing else waiting."""

import logging
from collections.abc import Callable

from gpurun.errors import GpurunError

log = logging.getLogger("gpurun.keeper")


def alone(serve: Callable[[], None]) -> None:
    """Whatever goes wrong is a line in the log."""
    try:
        serve()
    except GpurunError as error:
        log.error("%s", error)
    except Exception:
        log.exception("part of the keeper's work failed")
