"""What a recipe becomes: merged, exact in money, whole in the journal."""

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import UsageError
from gpurun.recipe import Caps, Recipe, bundled, load, missing_secrets, show_yaml

LEAST = """\
name: least
need:
  gpu: H100
budget:
  max_usd_per_hour: 2.50
  max_usd: 3.10
  run_minutes: 0.5
"""


@dataclass
class Folder:
    """A place to write recipes in."""

    path: Path

    def write(self, text: str, name: str = "x.yaml") -> str:
        (self.path / name).write_text(text)
        return str(self.path / name)

    def load(self, text: str, **how: Any) -> Recipe:
        return load(self.write(text), **how)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_three_lines_of_need_and_budget_are_a_recipe(folder: Folder) -> None:
    recipe = folder.load(LEAST)
    assert (recipe.name, recipe.need.gpu, recipe.need.gpu_count) == ("least", "H100", 1)
    assert recipe.providers == ["any"]
    assert recipe.budget.grace_minutes == 5


def test_without_train_the_recipe_is_an_interactive_box(folder: Folder) -> None:
    assert folder.load(LEAST).train is None


def test_a_recipe_without_a_name_is_called_after_its_file(folder: Folder) -> None:
    path = folder.write(LEAST.replace("name: least\n", ""), "nightly.yaml")
    assert load(path).name == "nightly"


def test_money_keeps_the_digits_of_its_text(folder: Folder) -> None:
    budget = folder.load(LEAST.replace("3.10", "0.10000000000000000001")).budget
    assert str(budget.max_usd_per_hour) == "2.50"
    assert budget.max_usd == Decimal("0.10000000000000000001")
    assert budget.run_minutes == Decimal("0.5")


@pytest.mark.parametrize("text", ["on", "off", "yes", "no", "1:30", "012", "1_000", "0x10", "0o7"])
def test_what_yaml_1_2_does_not_call_a_number_stays_text(folder: Folder, text: str) -> None:
    assert folder.load(f"{LEAST}env:\n  A: {text}\n").env == {"A": text}


def test_a_quoted_version_keeps_its_zero(folder: Folder) -> None:
    assert folder.load(LEAST + 'setup:\n  torch: "2.10"\n').setup.torch == "2.10"


def test_the_provider_s_part_is_merged_deeply_and_its_lists_replace(folder: Folder) -> None:
    text = LEAST + (
        "setup:\n  apt: [git, tmux]\n  pip: [numpy]\n"
        "per_provider:\n  local:\n    need: {gpu: none}\n    setup: {apt: [], device: cpu}\n"
    )
    local = folder.load(text, provider="local")
    assert (local.need.gpu, local.gpus) == ("none", 1)
    assert (local.setup.apt, local.setup.pip) == ([], ["numpy"])
    assert local.per_provider == {}
    vast = folder.load(text, provider="vast")
    assert (vast.need.gpu, vast.setup.apt) == ("H100", ["git", "tmux"])


def test_a_provider_can_take_an_optional_key_away(folder: Folder) -> None:
    text = LEAST + "check: python -m check\nper_provider:\n  local:\n    check:\n"
    assert folder.load(text).check == "python -m check"
    assert folder.load(text, provider="local").check is None


def test_the_settings_caps_tighten_a_budget(folder: Folder) -> None:
    caps = Caps(max_usd_per_hour=Decimal("1.20"), max_usd=Decimal(100))
    budget = folder.load(LEAST, caps=caps).budget
    assert (budget.max_usd_per_hour, budget.max_usd) == (Decimal("1.20"), Decimal("3.10"))


def test_an_override_is_stronger_than_recipe_provider_and_caps(folder: Folder) -> None:
    text = LEAST + "per_provider:\n  local:\n    budget: {max_usd: 2}\n"
    how = {"provider": "local", "caps": Caps(max_usd=Decimal(1))}
    assert folder.load(text, **how).budget.max_usd == 1
    assert folder.load(text, **how, overrides=["budget.max_usd=4.50"]).budget.max_usd == Decimal(
        "4.50"
    )


def test_overrides_are_read_by_the_kind_of_their_key(folder: Folder) -> None:
    recipe = folder.load(
        LEAST,
        overrides=[
            "setup.torch=2.10",
            "env.FLAG=1",
            "train.run=python -c 'print(1)': twice",
            "collect=[a, b/*.json]",
            'data.verify.files={"*/dataset.json": 2}',
            "need.nvlink=true",
        ],
    )
    assert recipe.setup.torch == "2.10"
    assert recipe.env == {"FLAG": "1"}
    assert recipe.train is not None
    assert recipe.train.run == "python -c 'print(1)': twice"
    assert recipe.collect == ["a", "b/*.json"]
    assert recipe.data is not None
    assert recipe.data.verify.files == {"*/dataset.json": 2}
    assert recipe.need.nvlink


def test_a_later_override_wins(folder: Folder) -> None:
    recipe = folder.load(LEAST, overrides=["budget.max_usd=4", "budget.max_usd=5"])
    assert recipe.budget.max_usd == 5


def test_anchors_may_be_used_with_measure(folder: Folder) -> None:
    text = LEAST + "setup:\n  apt: &tools [git, tmux]\n  pip: *tools\n"
    assert folder.load(text).setup.pip == ["git", "tmux"]


def test_a_ship_folder_is_found_from_the_recipe_s_file(folder: Folder) -> None:
    (folder.path / "code").mkdir()
    recipe = folder.load(LEAST + "ship:\n  - {from: code, to: app}\n")
    assert recipe.ship[0].from_ == str((folder.path / "code").resolve())


def test_secrets_are_named_alone_or_as_optional(folder: Folder) -> None:
    recipe = folder.load(LEAST + "secrets:\n  - HF_TOKEN\n  - {name: WANDB, optional: true}\n")
    assert missing_secrets(recipe, {}) == ["HF_TOKEN"]
    assert missing_secrets(recipe, {"HF_TOKEN": ""}) == ["HF_TOKEN"]
    assert missing_secrets(recipe, {"HF_TOKEN": "x"}) == []


@pytest.mark.parametrize("provider", [None, "local", "vast"])
def test_the_journal_gives_the_same_recipe_back(provider: str | None) -> None:
    recipe = load("smoke", provider=provider)
    kept = json.loads(json.dumps(recipe.to_dict()))
    again = Recipe.from_dict(kept)
    assert again.model_copy(update={"per_provider": {}}) == recipe.model_copy(
        update={"per_provider": {}}
    )
    assert kept["budget"]["max_usd_per_hour"] == str(recipe.budget.max_usd_per_hour)


def test_a_journal_of_another_version_is_refused_in_one_line() -> None:
    kept = {**load("smoke").to_dict(), "teleport": True}
    with pytest.raises(UsageError, match=r"another version of gpurun \(teleport\)"):
        Recipe.from_dict(kept)


@pytest.mark.parametrize("provider", [None, "local"])
def test_what_show_prints_is_the_same_recipe(folder: Folder, provider: str | None) -> None:
    recipe = load("smoke", provider=provider, overrides=["env.A=012", "env.B=on\nand on"])
    assert folder.load(show_yaml(recipe)) == recipe


def test_show_prints_block_style_and_keeps_the_digits_of_money() -> None:
    text = show_yaml(load("smoke"))
    assert "  max_usd: 13.00\n" in text
    assert "{gpu" not in text


def test_a_bundled_recipe_is_found_by_its_name_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("smoke").name == "smoke"


def test_a_recipe_is_frozen() -> None:
    recipe = load("smoke")
    for key in ("name", "budget"):
        with pytest.raises(ValueError, match="frozen"):
            setattr(recipe, key, None)


@pytest.mark.parametrize("name", [name for name, _, _ in bundled()])
def test_every_bundled_recipe_says_what_it_is_and_loads_everywhere(name: str) -> None:
    _, path, description = next(entry for entry in bundled() if entry[0] == name)
    assert description.endswith(".")
    assert load(str(path)).name == name
    for provider in load(str(path)).per_provider:
        load(str(path), provider=provider)


def test_the_smoke_on_this_machine_needs_no_gpu_and_little_money() -> None:
    local = load("smoke", provider="local")
    assert not local.need.wants_gpu
    assert local.setup.device == "cpu"
    assert local.budget.max_usd <= 5
