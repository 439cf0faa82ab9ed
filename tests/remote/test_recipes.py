"""The bundled recipes' commands are ones that the trainer understands, and their money suffices."""

import re
from pathlib import Path

import pytest

from gpurun.recipe import Recipe, bundled, load
from remote.config import PretrainConfig, load_config
from remote.speed import step_flops

FUSE_MARGIN_MINUTES = 2
RECIPES = {name: path for name, path, _ in bundled() if "remote.pretrain" in Path(path).read_text()}
LONG = [name for name in RECIPES if name != "smoke"]
CASES = [(name, provider) for name in RECIPES for provider in ("vast", "local")]


def test_there_are_long_runs() -> None:
    assert LONG == ["trm-arc2-4xh100", "urm-arc1-8xh100", "urm-validation-5pct"]


def loaded(name: str, provider: str = "vast") -> Recipe:
    return load(str(RECIPES[name]), provider=provider)


def settings(command: str) -> PretrainConfig:
    words = command.split("-m remote.pretrain ")[1].split(" && ")[0].split()
    return load_config([word for word in words if word != "--check"])


@pytest.mark.parametrize(("name", "provider"), CASES)
def test_what_is_checked_is_what_is_trained(name: str, provider: str) -> None:
    recipe = loaded(name, provider)
    assert recipe.train and recipe.check
    assert settings(recipe.check) == settings(recipe.train.run)


@pytest.mark.parametrize(("name", "provider"), CASES)
def test_the_dataset_built_is_the_one_verified_and_trained_on(name: str, provider: str) -> None:
    recipe = loaded(name, provider)
    assert recipe.train and recipe.data and recipe.data.build and recipe.data.verify.run
    options = dict(re.findall(r"--([\w-]+) ((?:[^\s-]\S*(?: |$))+)", recipe.data.build))
    place = options["output-dir"].strip()
    assert settings(recipe.train.run).data_paths == [place] == [recipe.data.path]
    assert recipe.data.verify.run.endswith(f" {place}")
    assert options["test-set-name"].strip() in options["subsets"].split()


@pytest.mark.parametrize("name", RECIPES)
def test_the_highest_price_pays_for_the_whole_time(name: str) -> None:
    budget = loaded(name).budget
    minutes = budget.setup_minutes + budget.run_minutes + budget.grace_minutes
    hours = (minutes + FUSE_MARGIN_MINUTES) / 60
    assert budget.max_usd_per_hour * hours <= budget.max_usd


@pytest.mark.parametrize("name", LONG)
def test_a_long_run_wants_a_smoke_on_the_same_image_and_torch(name: str) -> None:
    recipe, smoke = loaded(name), loaded("smoke")
    assert recipe.requires and recipe.requires.recipe == "smoke"
    assert recipe.need.image == smoke.need.image
    assert recipe.setup.torch == smoke.setup.torch


@pytest.mark.parametrize(
    ("name", "steps", "gpu_usd_per_hour"),
    [
        ("trm-arc2-4xh100", 722_098, 1.89),
        ("urm-arc1-8xh100", 1_036_100, 1.89),
        ("urm-validation-5pct", 20_722, 1.89),
    ],
)
def test_the_dollars_in_the_comments_are_those_of_the_speeds_beside_them(
    name: str, steps: int, gpu_usd_per_hour: float
) -> None:
    """`5.2 it/s (40 %)  39 h  $292`; evaluations, `+ 2 h` or a few per cent, are included."""
    recipe = loaded(name)
    assert recipe.train
    flops = step_flops(settings(recipe.train.run), 900)
    peak = 989.4e12 * recipe.need.gpu_count
    rows = re.findall(
        r"#   ([\d.]+) it/s \(([\d.]+) %.*?\) +([\d.]+) h(?: \+ (\d+) h)? +\$([\d,]+)",
        Path(RECIPES[name]).read_text(),
    )
    assert len(rows) >= 2
    for speed, share, hours, more, usd in rows:
        assert float(speed) * flops / peak == pytest.approx(float(share) / 100, rel=0.03)
        trained = steps / float(speed) / 3600
        assert trained == pytest.approx(float(hours), rel=0.06)
        whole = trained + float(more or 0)
        price = gpu_usd_per_hour * recipe.need.gpu_count
        assert whole * price == pytest.approx(float(usd.replace(",", "")), rel=0.08)
