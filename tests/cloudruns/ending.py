"""Runs that meet a fault while their box is ended."""

from tests.cloudruns.scene import Scene
from tests.cloudruns.stories import BOTH, PRIME, VAST, Story


def ends(scene: Scene, fault: str, **values: object) -> None:
    scene.cloud.fault(fault, **values)
    scene.go()


def delete_lies(scene: Scene) -> None:
    ends(scene, "delete_lies", times=2)


def delete_404(scene: Scene) -> None:
    ends(scene, "delete_404")


def auth_404(scene: Scene) -> None:
    ends(scene, "auth_404", endpoint="destroy", times=2)


def delete_fails(scene: Scene) -> None:
    ends(scene, "server_error", endpoint="destroy", times=3)


def long_deleting(scene: Scene) -> None:
    ends(scene, "deleting_s", seconds=10)


def tail(scene: Scene) -> None:
    ends(scene, "tail_s", seconds=318)


def wrong_total(scene: Scene) -> None:
    run = scene.in_training()
    scene.cloud.fault("total_wrong", by=1)
    scene.release()
    scene.until_phase(run, "destroy")
    scene.until(lambda: scene.alive() == 0)
    scene.until_asked(6)
    scene.cloud.clear("total_wrong")
    scene.finished(run)


def reappears(scene: Scene) -> None:
    """DELETE only hid it: the keeper ends it again, and that is shown."""
    scene.cloud.fault("reappear_after_s", seconds=30)
    run = scene.up(train="mkdir -p out; echo 42 > out/result.txt")
    scene.finished(run)
    assert scene.alive() == 1, "said to be gone by an API that lies"
    scene.until(lambda: scene.alive() == 0, 120)
    scene.finished(run)


STORIES = (
    Story("it is hidden by DELETE, and reappears", VAST, reappears),
    Story("DELETE answers success and does nothing, twice", BOTH, delete_lies),
    Story("DELETE ends the pod and answers 404", PRIME, delete_404),
    Story("DELETE is answered 404 auth_error, twice", VAST, auth_404),
    Story("DELETE is answered 502, three times", BOTH, delete_fails),
    Story("a pod stays in DELETING", PRIME, long_deleting),
    Story("billing goes on after DELETE", BOTH, tail),
    Story("the total of the list is wrong", VAST, wrong_total),
)
