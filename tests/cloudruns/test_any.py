"""`--provider any`: two clouds are asked, one of them is rented from, and it alone."""

from pathlib import Path

from tests.cloudruns.scene import AT_ONCE, FOUR_H100, scene
from tests.clouds.serve import cloud


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
