"""What of a market a recipe could use: nothing is bought that is known to be refused afterwards."""

from decimal import Decimal

import pytest

from gpurun.engine.needs import fitting, need_of
from gpurun.model import Offer
from gpurun.recipe import Recipe

PLAIN = Offer("vast", "1", "H100 SXM", 4, Decimal(8), 200, vram_gb=80, nvlink=True, down_mbps=900)


def recipe(**need: object) -> Recipe:
    return Recipe.from_dict(
        {
            "name": "r",
            "need": {"gpu": "H100", "gpu_count": 4} | need,
            "budget": {"max_usd_per_hour": 10, "max_usd": 20, "run_minutes": 60},
        }
    )


@pytest.mark.parametrize(
    ("need", "fits"),
    [
        ({}, True),
        ({"nvlink": True, "vram_gb": 80, "download_mbit_s": 900}, True),
        ({"vram_gb": 94}, False),
        ({"download_mbit_s": 1000}, False),
    ],
)
def test_an_offer_fits_by_what_its_provider_tells(need: dict[str, object], fits: bool) -> None:
    assert bool(fitting([PLAIN], recipe(**need))) is fits


def test_what_a_provider_does_not_tell_is_seen_on_the_box() -> None:
    silent = Offer("vast", "2", "H100 SXM", 4, Decimal(8), 200)
    apart = Offer("vast", "3", "H100 PCIE", 4, Decimal(7), 200, nvlink=False)
    wanted = recipe(nvlink=True, vram_gb=80, download_mbit_s=100)
    assert fitting([apart, silent], wanted) == [silent]


def test_one_asked_for_by_name_is_the_only_one() -> None:
    apart = Offer("vast", "3", "H100 PCIE", 4, Decimal(7), 200, nvlink=False)
    assert fitting([PLAIN, apart], recipe(nvlink=True), "3") == [apart]


def test_it_is_wanted_for_as_long_as_its_timers_and_the_fuse_let_it_run() -> None:
    # 40 minutes of setup, 60 of training, 5 of grace, 2 until the fuse.
    assert need_of(recipe()).rent_s == 107 * 60
    assert need_of(recipe(spot=True)).spot
