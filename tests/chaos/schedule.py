"""A schedule: one run, and what befalls it; a small JSON that can be played again."""

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any

HOURS_9_S = 32_400.0
SECOND_UP, SECOND_MACHINE, COPIED = "second up", "second machine", "copied"


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done, and when: at a point that a process passes, or `at_s` after `up` began.

    who, point, nth  the process (cli, driver, takeover, keeper, any) at its nth passing of a point
    do               kill, kill keeper, kill all, stop, sleep, wall, fault, disk full, gpurun,
                     back up, restore
    seconds          how long it lasts: until the next command, SIGCONT, the end of a fault, room
                     on the disk; for sleep and wall how far the clock jumps
    words            of a gpurun command, RUN standing for the run; a fault's name; "no reserve",
                     when the disk was full before; "black box", which is restored with the journal
    values           of a fault
    """

    do: str
    who: str = ""
    point: str = ""
    nth: int = 1
    at_s: float = 0.0
    seconds: float = 0.0
    words: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run, and what befalls it.

    train   a word of tests.chaos.machine.TRAININGS
    then    "restored": once more, from a copy of the journal that is older than the first time
    beside  what else is at work in the account: "second up" in our own home, at the same moment;
            "second machine"; "copied", our state directory on another machine
    """

    provider: str
    train: str
    deeds: tuple[Deed, ...] = ()
    name: str = ""
    setup_minutes: float = 0.5
    run_minutes: float = 0.05
    grace_minutes: float = 0.03
    max_usd: float = 10
    then: str = ""
    beside: str = ""
    only: str = ""  # "": whatever; else a word that must be said of the run: done, deadline

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def told(self) -> str:
        """In words: `local waits, kill driver at Cloud.create`."""
        deeds = [
            " ".join(
                filter(None, (deed.do, *deed.words, deed.who, deed.point and "at", deed.point))
            )
            for deed in self.deeds
        ]
        more = filter(None, [self.beside, self.then])
        return ", ".join([f"{self.provider} {self.train}", *deeds, *more])

    @property
    def faults(self) -> set[str]:
        return {deed.words[0] for deed in self.deeds if deed.do == "fault"}

    @property
    def disturbs(self) -> bool:
        """Whether a command of ours may be refused: no room, or no answer."""
        return any(deed.do in ("fault", "disk full") for deed in self.deeds)

    @property
    def spares_drivers(self) -> bool:
        """Whether every driver lives, awake, and everything answers."""
        harmless = ("kill keeper", "wall", "gpurun")
        return not self.beside and not self.then and all(d.do in harmless for d in self.deeds)

    @property
    def extended_minutes(self) -> float:
        """The most that its deeds may lengthen a run by."""
        given = [deed.words[2] for deed in self.deeds if deed.words[:1] == ("extend",)]
        return sum(float(minutes.removesuffix("m")) for minutes in given)

    def excuses(self, ending: str | None) -> bool:
        """Whether a box may have ended before its time: as was wanted, or by its training.

        A `kill` that finds no room to be written ends the box all the same; of its run the journal
        knows only, later, that its timer fired.
        """
        killed = any(deed.words[:1] == ("kill",) for deed in self.deeds)
        full = any(deed.do == "disk full" for deed in self.deeds)  # what needs room fails
        # Without its key a provider's timer is not moved: nothing is launched beside a stale one.
        fails = self.train == "fails" or full or self.faults & {"host_reboot", "key_revoked"}
        # A run that by an older journal had not bought yet is given up, and its box ended.
        fails = fails or any(deed.do == "restore" for deed in self.deeds)
        wanted = {
            "kill": killed,
            "done": self.train == "ends",
            "failed": bool(fails),
            "deadline": killed and full,
        }
        return wanted.get(ending or "", False)


def from_json(text: str) -> Schedule:
    found = json.loads(text)
    deeds = [deed | {"words": tuple(deed.get("words", ()))} for deed in found.pop("deeds", [])]
    return Schedule(deeds=tuple(Deed(**deed) for deed in deeds), **found)


def drawn(seed: int, number: int, provider: str) -> Schedule:
    """The schedule of this number: one to three deeds, at random points or times."""
    dice = random.Random(f"{seed}/{number}/{provider}")
    train = dice.choice(["waits", "waits", "ends", "ends", "ignores", "fails"])
    deeds = [_deed(dice, provider) for _ in range(dice.choice([1, 1, 2, 2, 3]))]
    beside = dice.choice([*[""] * 12, SECOND_UP, SECOND_MACHINE, COPIED])
    sleeps = [deed for deed in deeds if deed.do == "sleep"]
    if not beside:  # else what sleeps is one of two, and a box of the other has another clock
        sleeps = sleeps[1:]
    return Schedule(
        provider=provider,
        train=train,
        deeds=tuple(deed for deed in deeds if deed not in sleeps),
        name=f"seed {seed} number {number}",
        run_minutes=round(dice.uniform(1, 5) / 60, 4),
        grace_minutes=round(dice.uniform(1, 3) / 60, 4),
        beside=beside,
    )


def _deed(dice: random.Random, provider: str) -> Deed:
    where: dict[str, Any] = dict(zip(("who", "point"), dice.choice(POINTS), strict=True))
    do = dice.choice(["kill", "kill", "kill", "kill all", "kill all", "kill keeper", *OTHERS])
    match do:
        case "kill all" | "stop":
            return Deed(do, **where, seconds=round(dice.uniform(0.2, 9), 2))
        case "disk full":
            words = dice.choice([(), ("no reserve",)])
            return Deed(do, **where, seconds=round(dice.uniform(0.2, 20), 2), words=words)
        case "sleep":  # before its timer there is nothing to sleep past
            where = dict(zip(("who", "point"), dice.choice(TIMED), strict=True))
            return Deed(do, **where, seconds=dice.choice([60.0, 3600.0, HOURS_9_S]))
        case "wall":  # on this machine a box has the same clock, which `accept` compares
            where = {"who": "driver", "point": dice.choice(AFTER_ACCEPT)}
            return Deed(do, **where, seconds=dice.choice([HOURS_9_S, -86_400.0, 3600.0]))
        case "fault":
            fault, values = dice.choice(FAULTS[provider])
            if "other_account" in fault:  # with that key nothing of ours would be bought
                where = {"who": "driver", "point": dice.choice(AFTER_ACCEPT)}
            seconds = round(dice.uniform(1, 8), 2)
            return Deed(do, **where, seconds=seconds, words=(fault,), values=values)
        case "gpurun":
            words = dice.choice(COMMANDS)
            return Deed(do, at_s=round(dice.uniform(2, 9), 2), words=words)
    return Deed(do, **where)


OTHERS = ("stop", "sleep", "wall", "fault", "fault", "fault", "gpurun", "gpurun", "disk full")
COMMANDS = (
    ("kill", "RUN", "--yes"),
    ("kill", "RUN", "--yes", "--no-collect"),
    ("extend", "RUN", "0.05m", "--yes"),
    ("resume", "RUN"),
    ("status",),
    ("kill", "--all", "--yes"),
    ("keeper", "run"),
)
POINTS = (
    ("cli", "Runs.add"),
    ("driver", "Runs.take"),
    ("driver", "Attempts.intend"),
    ("driver", "BlackBox.append intent"),
    ("driver", "Attempts.sending"),
    ("driver", "before Cloud.create"),
    ("driver", "Cloud.create"),
    ("driver", "BlackBox.append made"),
    ("driver", "Attempts.made"),
    ("driver", "Attempts.seen"),
    ("driver", "Runs.begin_phase"),
    ("driver", "Timers.guard"),
    ("driver", "Runs.end_phase"),
    ("driver", "Timers.arming"),
    ("driver", "Timers.put_in_force"),
    ("driver", "Ledger.book"),
    ("driver", "Endings.end_run"),
    ("driver", "Attempts.deleting"),
    ("driver", "before Cloud.destroy"),
    ("driver", "Cloud.destroy"),
    ("driver", "Attempts.evidence"),
    ("driver", "Attempts.gone"),
    ("driver", "BlackBox.append gone"),
    ("keeper", "Timers.acknowledge"),
    ("keeper", "Endings.fire"),
    ("keeper", "BlackBox.append deleting"),
    ("keeper", "before Cloud.destroy"),
    ("keeper", "Cloud.destroy"),
    ("keeper", "Attempts.gone"),
    ("any", "Attempts.deleting"),
    ("any", "Attempts.gone"),
)
TIMED = POINTS[POINTS.index(("driver", "Attempts.intend")) :]
AFTER_ACCEPT = ("Timers.arming", "Timers.put_in_force", "Runs.collected", "Cloud.destroy")
FAULTS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "local": (
        ("create_lost", {"times": 1}),
        ("create_never", {"times": 1}),
        ("destroy_lies", {"times": 2}),
        ("list_empty", {"times": -1}),
        ("other_account", {"times": -1}),
        ("down", {"times": -1}),
    ),
    "vast": (
        ("answer_lost", {}),
        ("list_lag_s", {"seconds": 5}),
        ("list_empty", {}),
        ("delete_lies", {"times": 2}),
        ("auth_404", {"endpoint": "destroy", "times": 2}),
        ("server_error", {"endpoint": "destroy", "times": 2}),
        ("rate_limited", {"times": 3}),
        ("rate_limited", {"endpoint": "destroy", "times": 2}),
        ("list_page_fails", {"page": 1}),
        ("key_of_other_account", {}),
        ("down", {"how": "503"}),
        ("flicker", {}),
        ("total_wrong", {}),
        ("schedule_answer_lost", {}),
        ("reappear_after_s", {"seconds": 30}),
        ("key_revoked", {}),
        ("price_up", {"factor": 2}),
        ("host_reboot", {}),
    ),
    "prime": (
        ("answer_lost", {}),
        ("list_empty", {}),
        ("delete_lies", {"times": 2}),
        ("delete_404", {"times": 1}),
        ("deleting_s", {"seconds": 5}),
        ("server_error", {"endpoint": "destroy", "times": 2}),
        ("pod_404", {"times": 2}),
        ("rate_limited", {"endpoint": "destroy", "times": 2}),
        ("list_page_fails", {"page": 1}),
        ("down", {"how": "503"}),
        ("flicker", {}),
        ("reappear_after_s", {"seconds": 30}),
        ("key_revoked", {}),
        ("price_up", {"factor": 2}),
        ("host_reboot", {}),
    ),
}
