"""The error family: each class is one reason to stop, with the exit code a script can act on.

A message says what happened, to what, and the next command.  It never holds a key.
"""


class GpurunError(Exception):
    """Any failure that gpurun can explain; what is not one of these is a bug (exit 1)."""

    exit_code = 1


class UsageError(GpurunError):
    """A recipe, a setting or an argument is wrong; nothing was rented."""

    exit_code = 2


class BudgetError(GpurunError):
    """It would cost more than allowed; nothing was rented."""

    exit_code = 3


class NotProven(GpurunError):
    """The recipe asks for a proven shorter run, and there is none; nothing was rented."""

    exit_code = 3


class NoOffer(GpurunError):
    """Nothing for rent fits the need; nothing was rented."""

    exit_code = 3


class ProviderError(GpurunError):
    """The provider refused, or cannot be understood."""

    exit_code = 4


class NoCapacity(ProviderError):
    """The offer is gone or refused, and nothing was made."""


class AccountRefused(NoCapacity):
    """Nothing was made, nor would another offer do: the key or the credit is at fault."""


class ProviderUnreachable(ProviderError):
    """No answer from the provider; for a query it means nothing is known."""


class TimerRefused(ProviderError):
    """The provider does not take a timer of its own for this box: one guard less."""


class CreateUnclear(ProviderError):
    """The answer to `create` was lost: an instance may exist and bill."""


class CreateFailedButMade(ProviderError):
    """`create` was refused, yet an instance exists and bills."""

    def __init__(self, message: str, instance_id: str) -> None:
        super().__init__(message)
        self.instance_id = instance_id


class PhaseFailed(GpurunError):
    """A step failed on the box; the box is ended."""

    exit_code = 5


class Deadline(GpurunError):
    """The auto-kill timer ended the run."""

    exit_code = 6


class Killed(GpurunError):
    """`gpurun kill` ended the run that `up` was following."""

    exit_code = 7


class StillBilling(GpurunError):
    """A box could not be proven gone, or a `create` is unresolved: outranks every other code."""

    exit_code = 10
