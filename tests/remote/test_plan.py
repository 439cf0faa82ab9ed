"""What is said, and refused, before the first step.  Large figures are those of published runs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from remote import forecast
from remote.config import PretrainConfig, load_config
from remote.dataset.split import DatasetError
from remote.forecast import Memory, Rate
from remote.overrides import ConfigError
from remote.plan import describe, make_plan
from remote.ranks import Ranks
from remote.speed import TFLOP_PER_S, evaluation_flops, mfu, peak_flops_per_s, step_flops

SMALL = ["arch.hidden_size=16", "arch.num_heads=2", "arch.L_layers=1", "arch.H_cycles=1"]
SMALL += ["arch.L_cycles=1", "arch.halt_max_steps=2", "arch.puzzle_emb_len=1"]
SMALL += ["global_batch_size=4", "epochs=2", "eval_interval=1"]
ARC_2 = ["arch=trm", "arch.L_cycles=4"]
URM_SCRIPT = ["arch=urm", "arch.num_layers=4", "arch.H_cycles=2", "arch.L_cycles=6"]
H100 = peak_flops_per_s("NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("words", "teraflops"),
    [
        (ARC_2, 305.8),
        (["arch=trm"], 428.0),
        (URM_SCRIPT, 575.8),
        (["arch=urm"], 863.6),
    ],
)
def test_a_step_is_as_much_arithmetic_as_was_reckoned(words: list[str], teraflops: float) -> None:
    assert step_flops(load_config(words), 900) / 1e12 == pytest.approx(teraflops, rel=5e-4)


def test_the_published_speed_is_the_published_utilisation() -> None:
    assert H100
    assert mfu(load_config(ARC_2), 900, 2.79, 4 * H100) == pytest.approx(0.215, abs=0.001)


def test_mixing_by_an_mlp_has_no_attention_to_count() -> None:
    mixed = load_config(["arch=trm", "arch.mlp_t=True", "arch.pos_encodings=none"])
    passes = mixed.arch.layer_passes[0] + 3 * mixed.arch.layer_passes[1]
    across = 6 * 916 * 2560 * 512  # a SwiGLU over 916 positions, 2560 wide, for each of 512
    inside = 6 * 916 * 1536 * 512
    assert step_flops(mixed, 900) == passes * 768 * (across + inside)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_a_gpu_is_known_by_what_the_driver_calls_it(name: str, key: str) -> None:
    assert peak_flops_per_s(name) == TFLOP_PER_S[key] * 1e12


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H1000"])
def test_of_another_gpu_nothing_is_claimed(name: str) -> None:
    assert peak_flops_per_s(name) is None


def aug_1000(eval_interval: int, mfu: float) -> tuple[PretrainConfig, forecast.Times]:
    """The full run on four H100: 722,098 steps, 222 batches of test examples."""
    assert H100
    config = load_config([*ARC_2, f"eval_interval={eval_interval}"])
    evaluations = -(-100_000 // eval_interval)
    rate = Rate(mfu * 4 * H100, "")
    expected = forecast.times(
        config, seq_len=900, steps=722_098, evaluations=evaluations, batches=222, rate=rate
    )
    return config, expected


def test_evaluating_every_800_epochs_costs_a_day_and_is_warned_of() -> None:
    config, expected = aug_1000(800, 0.215)
    assert expected.evaluation_s == pytest.approx(766, rel=0.002)
    assert expected.evaluations_s / 3600 == pytest.approx(26.6, abs=0.1)
    assert expected.run_s / 3600 - 26.6 == pytest.approx(72, abs=0.5)
    said = forecast.warning(config, expected)
    assert said is not None
    assert "evaluating takes 27% of the run (26.6 h), more than 20%: eval_interval=11" in said
    suggested = int(said.split("eval_interval=")[1].split()[0])
    assert aug_1000(suggested, 0.215)[1].share == pytest.approx(0.2, abs=0.003)


def test_ten_evaluations_of_the_full_run_are_not_warned_of() -> None:
    config, expected = aug_1000(10_000, 0.4)
    assert expected.evaluation_s == pytest.approx(412, rel=0.002)
    assert forecast.warning(config, expected) is None
    assert evaluation_flops(config, 900) * 222 == pytest.approx(651.6e15, rel=1e-3)


def cpu(world_size: int = 1) -> Ranks:
    return Ranks(0, world_size, torch.device("cpu"))


def config_of(data: Path, *more: str) -> PretrainConfig:
    return load_config([*SMALL, f"data_paths=[{data}]", *more])


def test_trying_the_model_leaves_the_random_numbers_as_they_were(small_set: Path) -> None:
    config = config_of(small_set)
    plan = make_plan(config, cpu())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    said = describe(config, plan, cpu())
    assert torch.equal(torch.rand(2), expected)
    assert any("tried: 1 x" in line for line in said)
    assert any("ACT steps each: about" in line and "% of the run" in line for line in said)


def test_evaluations_after_the_last_step_are_not_counted(small_set: Path) -> None:
    often = config_of(small_set, "epochs=40")
    plan = make_plan(often, cpu())
    assert plan.evaluations == plan.iterations
    limit = plan.first_iteration_steps + 1
    assert (
        make_plan(config_of(small_set, "epochs=40", f"max_steps={limit}"), cpu()).evaluations == 2
    )


def test_what_cannot_fit_is_refused_with_the_batch_that_would(
    small_set: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text(str(300 * 2**20))
    monkeypatch.setattr(forecast, "CGROUP_LIMIT", tmp_path / "memory.max")
    large = ["arch.hidden_size=512", "arch.num_heads=8", "arch.L_cycles=4"]
    large += ["epochs=4000", "eval_interval=4000"]
    with pytest.raises(ConfigError, match=r"rows a process need .* GiB or more, cpu has 0\.3"):
        make_plan(config_of(small_set, *large, "global_batch_size=768"), cpu())
    for limit in (300, 2000):  # for fewer rows than are in work at a time, and for more
        (tmp_path / "memory.max").write_text(str(limit * 2**20))
        memory = make_plan(config_of(small_set, *large, "global_batch_size=1"), cpu()).memory
        fit = memory.rows_that_fit
        assert memory.at_least(fit) <= limit * 2**20 < memory.at_least(fit + 1)
    (tmp_path / "memory.max").write_text(str(2**20))
    with pytest.raises(ConfigError, match="not even one row fits"):
        make_plan(config_of(small_set, *large), cpu())


@pytest.mark.parametrize(
    ("identifiers", "words"),
    [
        (25, ["global_batch_size=32", "epochs=40"]),
        (25, ["arch.hidden_size=128", "arch.num_heads=2", "ema=True"]),
        (600_000, ["arch.hidden_size=64", "arch.num_heads=2"]),
    ],
    ids=["rows", "layers", "puzzles"],
)
def test_memory_on_a_cpu_is_what_a_run_then_takes(
    identifiers: int, words: list[str], small_set: Path, tmp_path: Path
) -> None:
    """The most that was resident after three steps, in a process of its own."""
    data = copied(small_set, tmp_path / "data")
    for split in ("train", "test"):
        path = data / split / "dataset.json"
        described = json.loads(path.read_text()) | {"num_puzzle_identifiers": identifiers}
        path.write_text(json.dumps(described))
    settings = [*SMALL, f"data_paths=[{data}]", "evaluators=[]", "min_eval_interval=99"]
    settings += ["arch.hidden_size=64", f"checkpoint_path={tmp_path / 'run'}", *words]
    done = subprocess.run(
        [sys.executable, "-m", "remote.pretrain", *settings, "max_steps=3"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    forecast_gib = float(re.search(r"estimated: ([\d.]+) of", done.stdout)[1])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [said for said in map(json.loads, lines) if said["event"] == "step"]
    assert forecast_gib == pytest.approx(steps[-1]["memory_gib"], rel=0.2)


def test_memory_of_the_full_run_is_what_was_reckoned() -> None:
    """35 GB of activations for 192 rows, beside a puzzle table of 2.44 GB."""
    config = load_config([*ARC_2, "arch.forward_dtype=bfloat16", "ema=True"])
    sizes = {"parameters": 6_829_058, "table": 1_191_730 * 512, "seq_len": 900}
    found = forecast.memory(config, **sizes, device=torch.device("meta"))
    assert isinstance(found, Memory)
    assert found.fixed / 1e9 == pytest.approx(2.44 + 0.137, abs=0.01)
    assert 192 * found.per_row / 1e9 == pytest.approx(36, abs=1)


def test_a_batch_that_ranks_cannot_share_names_the_next_that_they_can(small_set: Path) -> None:
    with pytest.raises(ConfigError, match=r"4 is not divisible by 3 processes; the next .*: 6"):
        make_plan(config_of(small_set), cpu(world_size=3))


@pytest.mark.parametrize("array", ["inputs", "labels", "puzzle_indices", "group_indices"])
def test_a_set_that_was_cut_short_is_refused(array: str, small_set: Path, tmp_path: Path) -> None:
    data = copied(small_set, tmp_path)
    path = data / "train" / f"all__{array}.npy"
    np.save(path, np.load(path)[:-1])
    with pytest.raises(DatasetError, match=f"python -m remote.dataset.verify {data}"):
        make_plan(config_of(data), cpu())


def test_a_test_set_of_other_identifiers_is_refused(small_set: Path, other_puzzles: Path) -> None:
    with pytest.raises(DatasetError, match="is built for other identifiers than"):
        make_plan(config_of(small_set, f"data_paths_test=[{other_puzzles}]"), cpu())


def test_without_evaluators_only_a_test_set_that_was_named_must_be_there(
    small_set: Path, tmp_path: Path
) -> None:
    data = copied(small_set, tmp_path / "data")
    shutil.rmtree(data / "test")
    plan = make_plan(config_of(data, "evaluators=[]"), cpu())
    assert (plan.test, plan.evaluations) == (None, 0)
    for named in (data, tmp_path / "nowhere"):
        with pytest.raises(DatasetError, match=f"no file {named}/test/dataset.json"):
            make_plan(config_of(small_set, f"data_paths_test=[{named}]", "evaluators=[]"), cpu())


def test_a_puzzle_table_in_parts_counts_one_part(small_set: Path) -> None:
    def fixed(*more: str, ranks: int) -> int:
        return make_plan(config_of(small_set, *more), cpu(ranks)).memory.fixed

    whole = fixed(ranks=1)
    assert whole - fixed(ranks=4) == 4 * 16 * (25 - 7)  # float32, 16 wide, 25 rows or 7
    assert fixed("shard_puzzle_emb=False", ranks=4) == whole


def copied(data: Path, tmp_path: Path) -> Path:
    for path in data.rglob("*"):
        if path.is_file() and path.name != "manifest.json":
            (tmp_path / path.relative_to(data)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path.relative_to(data)).write_bytes(path.read_bytes())
    return tmp_path
