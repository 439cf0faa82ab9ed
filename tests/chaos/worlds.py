"""What else may be there: a second run, machine or keeper, a copy, no room; a schedule for each."""

from tests.chaos.restore import BLACKBOX
from tests.chaos.schedule import COPIED, SECOND_MACHINE, SECOND_UP, Deed, Schedule

TRAIN = ("driver", "Runs.begin_phase", 8)  # the phase of this number is the training
LONG_S = 60.0  # so long that somebody else has time to do something


def worlds(provider: str) -> list[Schedule]:
    return [
        *in_the_account(provider),
        *in_the_home(provider),
        *in_the_past(provider),
        *in_the_driver(provider),
    ]


def in_the_account(provider: str) -> list[Schedule]:
    """Who else can see the box, and what its provider shows of it."""
    machine, copied = "a second machine ends all that it has", "a copied directory"
    found = [
        Schedule(provider, "waits", name="two at once", beside=SECOND_UP, only="deadline"),
        _long(provider, name=machine, beside=SECOND_MACHINE),
        _long(provider, name=copied, beside=COPIED),
    ]
    if provider == "local":  # it shows what there is
        return found
    values = {"seconds": 30}
    fault = ("fault", "driver", "Attempts.deleting")
    hides = Deed(*fault, seconds=LONG_S, words=("reappear_after_s",), values=values)
    back = Schedule(provider, "ends", (hides,), name="it comes back", run_minutes=1, only="done")
    return [*found, back]


def in_the_home(provider: str) -> list[Schedule]:
    """What becomes of the keeper, and of the journal's disk."""
    typed = Deed("gpurun", "driver", "Runs.begin_phase", 2, words=("keeper", "run"))
    killed = Deed("kill keeper", *TRAIN)
    stopped = Deed("stop", "keeper", "Timers.acknowledge", 2, seconds=15)
    full = Deed("disk full", "driver", "Cloud.create", seconds=LONG_S)
    bare = Deed("disk full", *TRAIN, seconds=LONG_S, words=("no reserve",))
    deeds = {
        "two keepers, and one is killed": (typed, killed),
        "the keeper is stopped beyond the end": (stopped, Deed("kill", *TRAIN)),
        "the disk is full as soon as it is bought": (full,),
        "no room at all from the training on": (bare,),
    }
    return [Schedule(provider, "waits", each, name=name) for name, each in deeds.items()]


def in_the_past(provider: str) -> list[Schedule]:
    """An older journal is put back while the box trains, with timers.log or without."""
    found = []
    for point in ("Runs.take", "Attempts.intend", "Attempts.sending", "Attempts.seen"):
        for words in ((), (BLACKBOX,)):
            if provider == "prime" and point == "Runs.take" and words:
                continue  # nothing knows it, and no fuse ends its bill: it is shown, and a person's
            deeds = (
                Deed("back up", "driver", point),
                Deed("restore", *TRAIN, seconds=1, words=words),
            )
            name = f"{' and '.join(['the journal', *words])} of {point} put back"
            found.append(Schedule(provider, "waits", deeds, name=name))
    return found


def in_the_driver(provider: str) -> list[Schedule]:
    """A purchase that comes too late, and money that ends before the time does."""
    stopped = Deed("stop", "driver", "BlackBox.append sending", seconds=8)
    unsent = "stopped before the request"
    found = [Schedule(provider, "waits", (stopped,), name=unsent, only="failed")]
    if provider != "local":  # a price per offer: how much is little money depends on it
        return found
    # A cent over what setup, a minute of training and its end may cost at $3.60/h.
    poor = Schedule(
        provider,
        "waits",
        name="the money ends first",
        setup_minutes=0.25,
        run_minutes=10,
        max_usd=0.21,
        only="deadline",
    )
    return [*found, poor]


def _long(provider: str, *, name: str, beside: str) -> Schedule:
    minutes = LONG_S / 60
    return Schedule(
        provider, "waits", name=name, run_minutes=minutes, beside=beside, only="deadline"
    )
