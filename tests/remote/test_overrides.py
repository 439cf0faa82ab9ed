import json
import typing
from pathlib import Path

import pytest

from remote.arch import ARCHES
from remote.config import load_config, saved_settings, to_dict
from remote.overrides import ConfigError, keys, parse_value
from remote.pretrain import main as pretrain
from remote.ranges import RANGES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("16", 16),
        ("True", True),
        ("false", False),
        ("null", None),
        ("bfloat16", "bfloat16"),
        ("[a,b]", ["a", "b"]),
        ("[]", []),
        ("['a b', 3]", ["a b", 3]),
        (
            "[{name: arc@ARC, aggregated_voting: true}]",
            [{"name": "arc@ARC", "aggregated_voting": True}],
        ),
        ("{a: [1, {b: 2}]}", {"a": [1, {"b": 2}]}),
    ],
)
def test_values_are_read_as_yaml_would(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["[a", "[a]]", "{a}", "'a"])
def test_a_value_cut_short_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_value(text)


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_plus_signs_change_nothing(prefix: str) -> None:
    config = load_config([f"{prefix}ema=True", f"{prefix}load_checkpoint=x", "arch=trm"])
    assert (config.ema, config.load_checkpoint) == (True, "x")


def test_the_commands_of_the_readme_are_understood() -> None:
    words = ["arch=trm", "data_paths=[data/arc1concept-aug-1000]", "arch.L_layers=2"]
    words += ["arch.H_cycles=3", "arch.L_cycles=4", "+run_name=my run", "ema=True"]
    words += ["evaluators=[{name: arc@ARC}]", "lr=1", "global_batch_size=1e2", "project_name=7"]
    config = load_config(words)
    assert config.data_paths == ["data/arc1concept-aug-1000"]
    assert config.evaluators == [{"name": "arc@ARC"}]
    assert (config.run_name, config.lr, config.global_batch_size) == ("my run", 1.0, 100)
    assert (config.project_name, config.arch.L_cycles) == ("7", 4)
    assert load_config(["data_path=data/x"]).data_paths == ["data/x"]
    assert load_config(['evaluators="[]"']).evaluators == []


def test_defaults_are_upstreams() -> None:
    config = load_config([])
    assert (config.global_batch_size, config.epochs, config.eval_interval) == (768, 100_000, 10_000)
    assert (config.lr, config.lr_warmup_steps, config.puzzle_emb_lr) == (1e-4, 2000, 1e-2)
    assert (config.arch.H_cycles, config.arch.L_cycles, config.arch.halt_max_steps) == (3, 6, 16)
    assert config.arch.puzzle_emb_ndim == 512
    config.settle_names("now")
    assert config.checkpoint_path == "checkpoints/Arc-aug-1000-ACT-torch/trm-now"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lr_warmup_step=5", "the nearest is lr_warmup_steps"),
        ("L_cycles=4", "the nearest is arch.L_cycles"),
        ("arch.hiden_size=64", "the nearest is arch.hidden_size"),
        ("epochs=many", "expected int"),
        ("ema=1", "expected bool"),
        ("lr", "not of the form key=value"),
        ("arch=hrm", "arch=hrm is not available here; there is trm, urm"),
        ("arch.num_heads=7", "must be a multiple"),
        ("arch.num_heads=512", "a head is 512 / 512 wide"),
        ("arch.puzzle_emb_ndim=0", "needs arch.puzzle_emb_len=0"),
        ("arch.puzzle_emb_ndim=9000", "does not fit into arch.puzzle_emb_len=16 tokens"),
        ("arch.forward_dtype=int8", "expected one of"),
        ("global_batch_size=0", "global_batch_size=0: expected a number that is from 1 to"),
        ("global_batch_size=1e12", "from 1 to 1e+06"),
        ("eval_interval=0", "eval_interval=0: expected a number that is at least 1"),
        ("max_steps=-1", "at least 1"),
        ("lr=-1e-4", "lr=-0.0001: expected a number that is at least 0"),
        ("lr=nan", "lr=nan"),
        ("lr=inf", "lr=inf"),
        ("puzzle_emb_lr=-1", "at least 0"),
        ("ema_rate=1.5", "ema_rate=1.5: expected a number that is from 0 to 1"),
        ("beta2=1", "beta2=1"),
        ("keep_last=-1", "at least 0"),
        ("arch.hidden_size=1000000000", "from 1 to 65536"),
        ("arch.L_cycles=0", "arch.L_cycles=0: expected a number that is from 1 to 1000"),
        ("arch.expansion=0", "arch.expansion=0"),
        ("arch.halt_exploration_prob=2", "from 0 to 1"),
        ("arch.puzzle_emb_ndim=-5", "arch.puzzle_emb_ndim=-5"),
        ("eval_save_outputs=[preds,logit]", "an evaluation has no logit; the nearest is logits"),
        ("eval_save_outputs=[nonsense]", "there is inputs, labels, puzzle_identifiers, logits"),
        ("data_paths=[]", "must name a dataset, or several"),
    ],
)
def test_a_wrong_setting_ends_with_2_and_says_what_is_right(
    word: str, message: str, capsys
) -> None:
    assert pretrain(["--check", word]) == 2
    assert message in capsys.readouterr().err


def test_every_number_has_a_range_and_every_range_a_number() -> None:
    numbers = set()
    for arch in ARCHES:
        config = load_config([f"arch={arch}"])
        for key in keys(config):
            owner = config.arch if key.startswith("arch.") else config
            if key.startswith("arch.loss."):
                continue
            hint = str(typing.get_type_hints(type(owner))[key.removeprefix("arch.")])
            if "int" in hint or "float" in hint:
                numbers.add(key)
    assert numbers == set(RANGES)


def test_without_data_paths_the_only_dataset_here_is_taken_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config([]).data_paths == ["data/arc-aug-1000"]
    for name, expected in (("one", ["data/one"]), ("two", ["data/arc-aug-1000"])):
        (tmp_path / "data" / name / "train").mkdir(parents=True)
        (tmp_path / "data" / name / "train" / "dataset.json").write_text("{}")
        with caplog.at_level("INFO"):
            assert load_config(["arch=urm"]).data_paths == expected
    assert "data/one is the only dataset here" in caplog.text


AWKWARD = ["don't", '"', "'both\" kinds'", "back\\slash", "a,b", "[a]", "[a", "{k: v}", ""]
AWKWARD += ["#1", "a: b", "a=b", "ärger", "\u2028", "two\nlines", " spaces ", "'", "null", "None"]
AWKWARD += ["~", "1e3", "true"]


@pytest.mark.parametrize("text", AWKWARD)
def test_a_checkpoint_gives_every_text_back_as_it_was(text: str) -> None:
    config = load_config(["arch=urm", "lr=1e-3"])
    config.run_name = config.device = config.arch.name = text
    config.data_paths = [text, "data/b"]
    config.evaluators = [{"name": "arc@ARC", "note": text, "more": [text, {text: [text]}]}]
    saved = saved_settings(json.loads(json.dumps(to_dict(config))), Path("config.json"))
    assert to_dict(load_config([], saved)) == to_dict(config)
    assert load_config(["run_name=other", "lr=1"], saved).run_name == "other"


def test_what_was_saved_without_datasets_takes_the_only_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "one" / "train").mkdir(parents=True)
    (tmp_path / "data" / "one" / "train" / "dataset.json").write_text("{}")
    assert load_config([], {"arch_name": "trm"}).data_paths == ["data/one"]
    assert load_config([], {"data_paths": ["data/two"]}).data_paths == ["data/two"]
