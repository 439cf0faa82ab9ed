"""What a purchase is not: at a second cloud, or of a box that nobody could enter."""

from pathlib import Path

from tests.cloudruns.scene import AT_ONCE, FOUR_H100, scene
from tests.clouds.serve import cloud
from tests.clouds.stub import StubBoxes
from tests.homes import Home


def test_a_purchase_through_any_stays_at_its_provider(tmp_path: Path) -> None:
    """Also when its first offer is gone: the dearer cloud is not bought from behind one's back."""
    with cloud("prime") as prime, scene("vast", tmp_path / "home") as stage:
        stage.home.open_account(prime)
        stage.cloud.fault("offer_gone", times=1)
        recipe = stage.home.recipe(train=AT_ONCE)
        run = stage.home.up(recipe, "--provider", "any", *FOUR_H100, "--accept-one-guard")
        assert stage.finished(run)["provider"] == "vast"
        outcome = stage.outcome()
        assert (outcome.state, outcome.boxes, outcome.leaked_usd) == ("done", 1, 0)
        assert (prime.world.asked["create"], prime.meter().instances) == (0, ())


def test_without_an_ssh_key_here_nothing_is_bought(home: Home) -> None:
    """Nobody could enter the box, which would bill until half of its setup is over."""
    with cloud("vast", boxes=StubBoxes()) as vast:
        home.open_account(vast)
        for file in (home.user / ".ssh").iterdir():
            file.unlink()
        done = home.run("up", home.recipe(), "--provider", "vast", *FOUR_H100, "--yes")
        assert (done.returncode, vast.meter().instances) == (4, ()), done.stderr
        assert "ssh-keygen" in done.stderr
