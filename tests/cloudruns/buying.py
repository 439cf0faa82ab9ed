"""Runs that meet a fault on their way to a box."""

from gpurun.avoid import Avoided
from gpurun.clock import SystemClock
from gpurun.model import Ending
from tests.cloudruns.scene import Scene
from tests.cloudruns.stories import BOTH, PRIME_FIRST, VAST, Story

ENDED = ("killed", 7, 1)
NEXT = ("done", 0, 2)  # the first box is ended, the next one trains


def offer_gone(scene: Scene) -> None:
    scene.cloud.fault("offer_gone", times=1)
    scene.go()


def replayed(scene: Scene) -> None:
    scene.cloud.fault("create_replayed")
    scene.go()


def refused_yet_made(scene: Scene) -> None:
    scene.cloud.fault("create_refused_made")
    scene.go()


def answer_lost(scene: Scene) -> None:
    scene.cloud.fault("list_lag_s", seconds=5)
    scene.cloud.fault("answer_lost")
    scene.go()


def bad_gateway(scene: Scene) -> None:
    scene.cloud.fault("server_error", endpoint="create", when="after", times=1)
    scene.go()


def html(scene: Scene) -> None:
    scene.cloud.fault("html", endpoint="create", when="after", times=1)
    scene.go()


def no_credit(scene: Scene) -> None:
    scene.cloud.fault("credit_zero")
    scene.refused()


def too_dear(scene: Scene) -> None:
    scene.cloud.fault("offers_up", factor=2)
    scene.refused()


def nothing_found(scene: Scene) -> None:
    scene.cloud.fault("search_empty", times=10)
    scene.refused()


def first_box(scene: Scene, fault: str, **values: object) -> None:
    """The fault is the first box's alone; its machine is avoided from then on."""
    scene.cloud.fault(fault, **values)
    run = scene.up(setup_minutes=0.8)
    scene.until(lambda: scene.made() and not scene.made()[0].alive)
    scene.cloud.clear(fault)
    scene.until_made(2)
    scene.until_training(run)
    scene.release()
    scene.finished(run)
    bad = Avoided(scene.home.places.root, SystemClock()).machines(scene.provider)
    assert len(bad) == (1 if scene.provider == "vast" else 0), "Prime does not name machines"


def fewer_gpus(scene: Scene) -> None:
    first_box(scene, "wrong_gpu")


def fewer_gpus_and_no_end(scene: Scene) -> None:
    """No next box is bought while the first may live (protocol F55, I19)."""
    scene.cloud.fault("wrong_gpu", where="row")
    scene.cloud.fault("delete_lies")
    run = scene.up()
    scene.until(lambda: scene.look(run)["state"] == "still_billing", 200)
    assert scene.last["exit_code"] == 10
    assert len(scene.made()) == 1
    killing = scene.home.start("kill", run, "--yes", "--no-collect")
    journal = scene.home.journal()
    scene.until(lambda: journal.runs.get(run).ending is Ending.KILL)
    journal.close()
    scene.cloud.clear("delete_lies")
    scene.finished(run)
    killing.communicate(timeout=120)


def dearer_row(scene: Scene) -> None:
    first_box(scene, "price_up", factor=2)


def stuck(scene: Scene) -> None:
    first_box(scene, "stuck")


def does_not_start(scene: Scene) -> None:
    first_box(scene, "start_fails")


def no_ssh(scene: Scene) -> None:
    first_box(scene, "ssh_refused")


def fuse_unheard(scene: Scene) -> None:
    """Two guards would be left: it is a misfit all the same (protocol F59)."""
    first_box(scene, "box_cut_off")


def keeper_alone(scene: Scene) -> None:
    scene.cloud.fault("schedule_refused")
    first_box(scene, "container_key_dead")


def no_direct_ssh(scene: Scene) -> None:
    scene.cloud.fault("ssh_refused", path="direct")
    scene.cloud.fault("auto_tmux")
    scene.cloud.fault("ip_with_spaces")
    scene.go()


def schedule_refused(scene: Scene) -> None:
    scene.cloud.fault("schedule_refused")
    scene.go()


def schedule_answer_lost(scene: Scene) -> None:
    scene.cloud.fault("schedule_answer_lost")
    scene.go()


# Those that take longest are first: they are told side by side.
STORIES = (
    Story("create is refused, and made a box", VAST, refused_yet_made, ("failed", 4, 1)),
    Story("the row costs twice the offer", VAST, dearer_row, NEXT),
    Story("the box has fewer GPUs than were bought", BOTH, fewer_gpus, NEXT),
    Story("the box has fewer GPUs, and its DELETE is a lie", BOTH, fewer_gpus_and_no_end, ENDED),
    Story("the box never gets ready", BOTH, stuck, NEXT),
    Story("the container does not start", VAST, does_not_start, NEXT),
    Story("nobody can log in", PRIME_FIRST, no_ssh, NEXT),
    Story("neither schedule nor the box's own key is accepted", VAST, keeper_alone, NEXT),
    Story("the offer is gone at create", BOTH, offer_gone, each=True),
    Story("create arrives twice, the second says gone", VAST, replayed),
    Story("the answer to create is lost, the box listed late", BOTH, answer_lost, each=True),
    Story("create is answered 502, and made a box", PRIME_FIRST, bad_gateway),
    Story("create is answered by a page of HTML", VAST, html),
    Story("the box cannot reach the API", VAST, fuse_unheard, NEXT),
    Story("only the proxy lets in, to tmux", VAST, no_direct_ssh),
    Story("no scheduled end is accepted", VAST, schedule_refused),
    Story("the answer to the schedule is lost", VAST, schedule_answer_lost),
    Story("the credit is gone before the purchase", BOTH, no_credit, ("refused", 3, 0), each=True),
    Story("every offer is above the price allowed", BOTH, too_dear, ("refused", 3, 0), each=True),
    Story("the search finds nothing", BOTH, nothing_found, ("refused", 3, 0), each=True),
)
