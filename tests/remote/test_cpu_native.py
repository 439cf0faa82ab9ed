"""C++ of our own is used on a CPU where it can be, and changes nothing but the time."""

import logging
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from remote.config import load_config
from remote.models.act import ACTLossHead
from remote.models.blocks import Block
from remote.models.build import build_model
from remote.models.compiled import speed_up_on_cpu
from remote.models.cpu import attention, mlp, native
from remote.models.layers import Attention
from tests.remote.fixture import fill, make_batch, one_thread

__all__ = ["one_thread"]

OURS, THEIRS = "_AttendBackward", "ScaledDotProduct"


class Shape:
    vocab_size, seq_len, num_puzzle_identifiers = 12, 900, 32


def steps_back(result: Tensor) -> Iterator[str]:
    """The names of all that a gradient goes through."""
    todo, seen = [result.grad_fn], set()
    while todo:
        if (node := todo.pop()) is not None and node not in seen:
            seen.add(node)
            yield node.name()
            todo += [before for before, _ in node.next_functions]


@pytest.mark.parametrize(
    ("words", "bound", "fed"),
    [
        (["arch=trm", "arch.L_layers=1", "arch.halt_max_steps=1"], 1e-5, True),
        (["arch=trm", "arch.L_layers=1", "arch.mlp_t=True", "arch.pos_encodings=none"], 1e-5, True),
        (["arch=urm", "arch.num_layers=1", "arch.loops=1"], 5e-3, False),  # partly in bfloat16
    ],
    ids=["attention", "mlp_t", "urm"],
)
def test_a_model_answers_and_learns_the_same_with_it(
    words: list[str], bound: float, fed: bool
) -> None:
    words = [*words, "arch.hidden_size=64", "arch.num_heads=4", "arch.H_cycles=2"]
    config = load_config([*words, "arch.L_cycles=1", "arch.forward_dtype=float32"])
    mixed = "arch.mlp_t=True" not in words
    found = []
    for ours in (False, True):
        model = build_model(config, Shape, torch.device("cpu"))
        fill(model)
        model.model.inner.spare_blanks()
        if ours:
            speed_up_on_cpu(model, config)
        fed_without_gradient = count_feeding(model)
        batch = make_batch(4, 900)
        carry, loss, _, _ = model.train()(model.model.initial_carry(batch), batch)
        through = " ".join(steps_back(loss))
        assert (OURS in through, THEIRS in through) == (ours and mixed, not ours and mixed)
        loss.backward()
        grads = [parameter.grad for parameter in model.parameters()]
        with torch.inference_mode():
            answers = model.eval().answer(batch)[1]["logits"]
        assert bool(fed_without_gradient) == (ours and fed)
        found.append([loss.detach(), answers, *carry.state.values(), *grads])
    for plain, own in zip(*found, strict=True):
        assert (own - plain).norm() <= bound * plain.norm()


def count_feeding(model: ACTLossHead) -> list[torch.Size]:
    """The shapes that our MLP is given, once it is."""
    shapes: list[torch.Size] = []

    def seen(feed: mlp.Feed) -> mlp.Feed:
        def fed(x: Tensor, *rest: Any) -> Tensor:
            assert not torch.is_grad_enabled()
            shapes.append(x.shape)
            return feed(x, *rest)

        return fed

    for block in model.modules():
        if isinstance(block, Block) and block.feed is not None:
            block.feed = seen(block.feed)
    return shapes


@pytest.mark.parametrize("setting", ["compile=False", "arch.forward_dtype=bfloat16"])
def test_it_is_left_where_it_is_not_wanted_or_not_meant_for(setting: str) -> None:
    config = load_config(["arch=trm", "arch.hidden_size=64", "arch.num_heads=4", setting])
    model = build_model(config, Shape, torch.device("cpu"))
    speed_up_on_cpu(model, config)
    assert all(m.mix is None for m in model.modules() if isinstance(m, Attention))
    assert all(m.feed is None for m in model.modules() if isinstance(m, Block))


@pytest.mark.parametrize("make", [partial(attention.make, 16, 64), partial(mlp.make, 64, 256)])
def test_without_a_compiler_that_works_pytorch_is_used_and_that_is_said(
    make: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert make({}, lambda _: None) is None
    assert "apt-get install g++" in caplog.text
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert make({"CXX": str(broken)}, shutil.which) is None
    assert f"{broken} did not make ours" in caplog.text
    assert make({"DISABLE_COMPILE": "1"}, shutil.which) is None
    assert make({}, shutil.which) is not None


def test_what_is_off_by_more_than_rounding_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    for off, wanted in ((0.9e-5, True), (1.1e-5, False), (float("nan"), False)):
        found = native.proven("it", lambda _: "made", lambda _: off, {}, lambda _: "g++")  # noqa: B023
        assert (found == "made") == wanted
    assert caplog.text.count("ours is off by") == 2


def test_widths_that_do_not_fill_a_vector_are_left_to_pytorch() -> None:
    assert all(attention.make(odd, 64, {}, shutil.which) is None for odd in (8, 24, 31))
    for odd in ((16, 256), (48, 256), (64, 272)):
        assert mlp.make(*odd, {}, shutil.which) is None
