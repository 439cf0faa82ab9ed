"""Runs that meet a fault while they train."""

from tests.cloudruns.scene import Scene
from tests.cloudruns.stories import BOTH, PRIME_FIRST, VAST, Story

LOST = ("failed", 5, 1)


def meets(scene: Scene, fault: str, **values: object) -> None:
    """What ends the training from outside."""
    run = scene.in_training(run_minutes=0.7)
    scene.cloud.fault(fault, **values)
    scene.finished(run)


def outbid(scene: Scene) -> None:
    meets(scene, "outbid")


def ended_in_the_console(scene: Scene) -> None:
    meets(scene, "console_destroy")


def credit_ran_out(scene: Scene) -> None:
    meets(scene, "credit_zero")


def restarted(scene: Scene) -> None:
    meets(scene, "container_restart")


def rebooted(scene: Scene) -> None:
    meets(scene, "host_reboot")


def recycled(scene: Scene) -> None:
    meets(scene, "recycle")


def goes_on(scene: Scene, fault: str, **values: object) -> None:
    """What must not touch a training: it is there until the run is over."""
    run = scene.in_training()
    scene.cloud.fault(fault, **values)
    scene.release()
    scene.finished(run)


def unknown_word(scene: Scene) -> None:
    goes_on(scene, "status_word", word="hibernating")


def relabelled(scene: Scene) -> None:
    goes_on(scene, "relabel")


def lists_nothing(scene: Scene) -> None:
    goes_on(scene, "list_empty")


def older_twin(scene: Scene) -> None:
    goes_on(scene, "twin_label", seconds_before=3600)


def id_given_again(scene: Scene) -> None:
    goes_on(scene, "id_reuse", after_s=5)  # while it is being proven that ours is gone


def out_for_the_end(scene: Scene, fault: str, **values: object) -> None:
    """There until the end of the run was tried in vain; then it is over, and the run with it."""
    run = scene.in_training()
    scene.cloud.fault(fault, **values)
    scene.release()
    scene.until_phase(run, "destroy")
    scene.until_asked(6)
    assert scene.alive() == 1
    assert scene.look(run)["state"] not in ("done", "failed"), "a false death"
    scene.cloud.clear(fault)
    scene.finished(run)


def key_revoked(scene: Scene) -> None:
    out_for_the_end(scene, "key_revoked")


def key_of_another(scene: Scene) -> None:
    out_for_the_end(scene, "key_of_other_account")


def down(scene: Scene) -> None:
    out_for_the_end(scene, "down", how="503")


def timer(scene: Scene) -> None:
    """Not a fault: the training is longer than its timer."""
    scene.finished(scene.up(run_minutes=0.1, grace_minutes=0.1))


STORIES = (
    Story("destroyed in the console", BOTH, ended_in_the_console, LOST),
    Story("the credit runs out", PRIME_FIRST, credit_ran_out, LOST),
    Story("the key is revoked", BOTH, key_revoked),
    Story("the key is another account's", VAST, key_of_another),
    Story("the API is down", PRIME_FIRST, down),
    Story("stopped for a higher bid", BOTH, outbid, LOST),
    Story("the container restarts", VAST, restarted, LOST),
    Story("the machine reboots", PRIME_FIRST, rebooted, LOST),
    Story("the container is made anew, its disk empty", VAST, recycled, ("deadline", 6, 1)),
    Story("the row says a word nobody knows", PRIME_FIRST, unknown_word),
    Story("the label is changed in the console", BOTH, relabelled),
    Story("every list is empty", PRIME_FIRST, lists_nothing),
    Story("somebody's older box bears the label", BOTH, older_twin),
    Story("the id is given to somebody's box", BOTH, id_given_again),
    Story("none: the timer ends it", BOTH, timer, ("deadline", 6, 1)),
)
