"""Attention of our own on a CPU is PyTorch's to rounding, and left where it cannot be."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from remote.config import load_config
from remote.models.build import build_model
from remote.models.compiled import speed_up_attention
from remote.models.cpu_attention import CPUAttention, Mix, make
from remote.models.layers import Attention
from tests.remote.fixture import fill, make_batch, one_thread

__all__ = ["one_thread"]

ROWS, POSITIONS, HEADS = 3, 917, 4


@pytest.fixture(scope="module", params=[16, 64])
def mix(request: pytest.FixtureRequest) -> Mix:
    return CPUAttention(request.param, "g++")


@pytest.fixture
def heads(mix: CPUAttention) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (B, S, heads, width), cut from one tensor as in a model."""
    random = torch.Generator().manual_seed(0)
    whole = torch.randn(ROWS, POSITIONS, 3 * HEADS, mix.width, generator=random)
    query, key, value = whole.chunk(3, dim=2)
    return 2 * query, key, value


def expected(*heads: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """(B, S, heads * width), by PyTorch."""
    apart = (x.to(dtype).transpose(1, 2) for x in heads)
    return scaled_dot_product_attention(*apart).transpose(1, 2).flatten(2)


def rounding(heads: tuple[Tensor, Tensor, Tensor]) -> float:
    """A little more than PyTorch's own in float32."""
    return 3 * largest(expected(*heads, dtype=torch.float32) - expected(*heads))


def largest(x: Tensor) -> float:
    return float(x.abs().max())


def test_every_position_finds_what_it_should(
    mix: Mix, heads: tuple[Tensor, Tensor, Tensor]
) -> None:
    query, key, value = heads
    found = mix(query.flatten(0, 1), key, value, [POSITIONS] * ROWS)
    assert largest(found - expected(*heads).flatten(0, 1)) < rounding(heads)


def test_scores_of_any_size_are_met(mix: Mix, heads: tuple[Tensor, Tensor, Tensor]) -> None:
    """Far below zero, where every power of two would vanish, and far above, where all overflow."""
    _, key, value = heads
    for factor in (-30.0, 30.0):
        alike = key[:, :1].expand_as(key).contiguous()  # so scores are near factor * |key|^2
        near = alike + 0.01 * key
        found = mix((factor * alike).flatten(0, 1), near, value, [POSITIONS] * ROWS)
        wanted = expected(factor * alike, near, value).flatten(0, 1)
        assert largest(found - wanted) < 1e-3 * largest(wanted)


def test_some_positions_may_ask_and_rows_may_ask_nothing(
    mix: Mix, heads: tuple[Tensor, Tensor, Tensor]
) -> None:
    query, key, value = heads
    asking = torch.rand(ROWS, POSITIONS, generator=torch.Generator().manual_seed(1)) < 0.2
    asking[1] = False
    found = mix(query[asking], key, value, asking.sum(1).tolist())
    assert largest(found - expected(*heads)[asking]) < rounding(heads)
    nobody = mix(query[~asking.logical_or(torch.tensor(True))], key, value, [0] * ROWS)
    assert nobody.shape == (0, found.shape[1])


def test_threads_share_the_work_and_change_no_bit(
    mix: Mix, heads: tuple[Tensor, Tensor, Tensor]
) -> None:
    query, key, value = heads
    alone, _ = (mix(query.flatten(0, 1), key, value, [POSITIONS] * ROWS) for _ in range(2))
    torch.set_num_threads(3)
    together = mix(query.flatten(0, 1), key, value, [POSITIONS] * ROWS)
    assert torch.equal(alone, together)


def test_what_is_not_a_number_stays_none(mix: Mix, heads: tuple[Tensor, Tensor, Tensor]) -> None:
    """So that a training that has gone wrong is seen to."""
    query, key, value = heads
    for wrong in (torch.nan, torch.inf):
        spoilt = key.clone()
        spoilt[1, 500] = wrong
        found = mix(query.flatten(0, 1), spoilt, value, [POSITIONS] * ROWS)
        rows = found.unflatten(0, (ROWS, POSITIONS))
        assert rows[1].isnan().any(dim=-1).all()
        assert rows[[0, 2]].isfinite().all()


class Shape:
    vocab_size, seq_len, num_puzzle_identifiers = 12, 900, 32


@pytest.mark.parametrize(
    ("words", "bound"),
    [
        (["arch=trm", "arch.L_layers=1", "arch.halt_max_steps=1"], 1e-5),
        (["arch=urm", "arch.num_layers=1", "arch.loops=1"], 5e-3),  # its convolution is bfloat16
    ],
)
def test_a_model_answers_and_learns_the_same_with_it(words: list[str], bound: float) -> None:
    words = [*words, "arch.hidden_size=64", "arch.num_heads=4", "arch.H_cycles=2"]
    config = load_config([*words, "arch.L_cycles=1", "arch.forward_dtype=float32"])
    found = []
    for ours in (False, True):
        model = build_model(config, Shape, torch.device("cpu"))
        fill(model)
        model.model.inner.spare_blanks()
        if ours:
            speed_up_attention(model, config)
        assert ours == any(m.mix is not None for m in model.modules() if isinstance(m, Attention))
        batch = make_batch(4, 900)
        carry, loss, _, _ = model.train()(model.model.initial_carry(batch), batch)
        loss.backward()
        grads = [parameter.grad for parameter in model.parameters()]
        answers = model.eval().answer(batch)[1]["logits"]
        found.append([loss.detach(), answers, *carry.state.values(), *grads])
    for plain, own in zip(*found, strict=True):
        assert (own - plain).norm() <= bound * plain.norm()


@pytest.mark.parametrize("setting", ["compile=False", "arch.forward_dtype=bfloat16"])
def test_it_is_left_where_it_is_not_wanted_or_not_meant_for(setting: str) -> None:
    config = load_config(["arch=trm", "arch.hidden_size=64", "arch.num_heads=4", setting])
    model = build_model(config, Shape, torch.device("cpu"))
    speed_up_attention(model, config)
    assert all(m.mix is None for m in model.modules() if isinstance(m, Attention))


def test_without_a_compiler_that_works_pytorch_is_used_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert make(16, {}, lambda _: None) is None
    assert "apt-get install g++" in caplog.text
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert make(16, {"CXX": str(broken)}, shutil.which) is None
    assert f"{broken} did not make ours" in caplog.text
    assert make(16, {"DISABLE_COMPILE": "1"}, shutil.which) is None
    assert make(24, {}, shutil.which) is None
