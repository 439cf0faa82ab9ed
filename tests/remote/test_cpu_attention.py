"""Attention of our own on a CPU is PyTorch's to rounding."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from remote.models.cpu.attention import CPUAttention, Turns
from remote.models.layers import RotaryEmbedding, rotate
from tests.remote.fixture import one_thread

__all__ = ["one_thread"]

ROWS, HEADS, HIDDEN = 3, 4, 40


@pytest.fixture(scope="module", params=[16, 48, 64])
def mix(request: pytest.FixtureRequest) -> CPUAttention:
    return CPUAttention(request.param, HIDDEN, "g++")


@pytest.fixture(scope="module")
def narrow() -> CPUAttention:
    return CPUAttention(16, HIDDEN, "g++")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def project(mix: CPUAttention, positions: int) -> Tensor:
    return draw(ROWS, positions, 3 * HEADS * mix.width)


def joined(*heads: Tensor) -> Tensor:
    """As a layer projects them, from queries, keys and values (B, S, heads, width)."""
    return torch.cat([x.flatten(2) for x in heads], dim=-1)


def turns_of(mix: CPUAttention, positions: int) -> Turns:
    return RotaryEmbedding(mix.width, positions, 10000.0)()


def plainly(
    mix: CPUAttention, projected: Tensor, turns: Turns | None = None, asking: Tensor | None = None
) -> Tensor:
    """The same by PyTorch, in the dtype of what is projected."""
    query, key, value = projected.unflatten(-1, (3, -1, mix.width)).unbind(2)
    if turns is not None:
        in_dtype = [x.to(projected.dtype) for x in turns]
        query, key = (
            x * in_dtype[0][:, None] + x.roll(mix.width // 2, -1) * in_dtype[1][:, None]
            for x in (query, key)
        )
    heads = (x.transpose(1, 2) for x in (query, key, value))
    mixed = scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    return mixed.flatten(0, 1) if asking is None else mixed[asking]


def learnt(attend, projected: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """What is found, and the gradient of what is projected."""
    leaf = projected.clone().requires_grad_()
    found = attend(leaf)
    return found.detach(), *torch.autograd.grad(found, leaf, slopes.to(found.dtype))


def matrix_of(mix: CPUAttention) -> Tensor:
    """From states to what is projected."""
    return draw(3 * HEADS * mix.width, HIDDEN, seed=2) * HIDDEN**-0.5


def assert_agrees_of_states(
    mix: CPUAttention, states: Tensor, turns: Turns | None, asking: Tensor | None = None
) -> None:
    """As when they are projected before, to rounding."""
    matrix = matrix_of(mix)
    found = mix.of_states(states, matrix, turns, asking)
    expected = mix(linear(states, matrix), turns, asking)
    assert found.shape == expected.shape
    assert largest(found - expected) < 3e-6


def largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def assert_agrees(
    mix: CPUAttention,
    projected: Tensor,
    turns: Turns | None = None,
    asking: Tensor | None = None,
) -> None:
    """With float64 about as well as PyTorch's float32 does, forward and backward."""
    ours = mix(projected, turns, asking)
    slopes = draw(*ours.shape, seed=1)
    found = learnt(lambda x: mix(x, turns, asking), projected, slopes)
    plain = learnt(lambda x: plainly(mix, x, turns, asking), projected, slopes)
    exact = learnt(lambda x: plainly(mix, x, turns, asking), projected.double(), slopes)
    assert torch.equal(ours, found[0])
    for own, theirs, true in zip(found, plain, exact, strict=True):
        assert own.shape == true.shape
        assert largest(own - true) <= 3 * largest(theirs - true) + 1e-6 * max(1, largest(true))


@pytest.mark.parametrize("positions", [1, 15, 64, 129, 917])
@pytest.mark.parametrize("turned", [False, True])
def test_every_position_finds_and_learns_what_it_should(
    mix: CPUAttention, positions: int, turned: bool
) -> None:
    turns = turns_of(mix, positions) if turned else None
    assert_agrees(mix, project(mix, positions), turns)
    assert_agrees_of_states(mix, draw(ROWS, positions, HIDDEN), turns)


def test_positions_turn_as_the_layers_turn_them(mix: CPUAttention) -> None:
    projected, turns = project(mix, 65), turns_of(mix, 65)
    query, key, value = projected.unflatten(-1, (3, -1, mix.width)).unbind(2)
    before = joined(rotate(query, *turns), rotate(key, *turns), value)
    assert largest(mix(projected, turns) - mix(before, None)) < 1e-5


def test_some_positions_may_ask_and_rows_may_ask_nothing(mix: CPUAttention) -> None:
    projected, turns = project(mix, 131), turns_of(mix, 131)
    asking = torch.rand(ROWS, 131, generator=torch.Generator().manual_seed(1)) < 0.2
    asking[1] = False
    assert_agrees(mix, projected, turns, asking)
    assert_agrees_of_states(mix, draw(ROWS, 131, HIDDEN), turns, asking)
    nobody = torch.zeros_like(asking)
    nothing = torch.empty(0, HEADS * mix.width)
    found, gradient = learnt(lambda x: mix(x, turns, nobody), projected, nothing)
    assert found.shape == nothing.shape
    assert not gradient.any()
    states = draw(ROWS, 131, HIDDEN)
    assert mix.of_states(states, matrix_of(mix), turns, nobody).shape == nothing.shape


def test_scores_of_any_size_are_met(narrow: CPUAttention) -> None:
    """Far below zero, where every power of two would vanish, and far above, where all overflow."""
    _, key, value = project(narrow, 131).unflatten(-1, (3, -1, 16)).unbind(2)
    for factor in (-30.0, 30.0):
        alike = key[:, :1].expand_as(key).contiguous()  # so scores are near factor * |key|^2
        given = joined(factor * alike, alike + 0.01 * key, value)
        slopes = draw(ROWS * 131, HEADS * 16, seed=1)
        found = learnt(lambda x: narrow(x, None), given, slopes)
        exact = learnt(lambda x: plainly(narrow, x), given.double(), slopes)
        for own, true in zip(found, exact, strict=True):
            assert largest(own - true) < 1e-3 * largest(true)
        # The same of states: each position's are what is projected of it.
        itself = torch.eye(given.shape[-1])
        wide = CPUAttention(16, len(itself), "g++")
        assert largest(wide.of_states(given, itself, None) - exact[0]) < 1e-3 * largest(exact[0])


def test_threads_share_the_work_and_change_no_bit(narrow: CPUAttention) -> None:
    projected, turns = project(narrow, 131), turns_of(narrow, 131)
    slopes = draw(ROWS * 131, HEADS * 16, seed=1)
    states, matrix = draw(ROWS, 131, HIDDEN), matrix_of(narrow)

    def all_of_it() -> list[Tensor]:
        found = learnt(lambda x: narrow(x, turns), projected, slopes)
        return [*found, narrow.of_states(states, matrix, turns)]

    alone, again = all_of_it(), all_of_it()
    torch.set_num_threads(3)
    together = all_of_it()
    for one, other, third in zip(alone, again, together, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_tensors_may_lie_anyhow(narrow: CPUAttention) -> None:
    projected = project(narrow, 65)
    strange = torch.empty(65, ROWS, 2 * projected.shape[-1])[..., ::2].transpose(0, 1)
    strange.copy_(projected)
    assert not strange.is_contiguous()
    slopes = torch.ones(()).expand(ROWS * 65, HEADS * 16)  # as `sum` gives them
    leaf = strange.requires_grad_()
    found = narrow(leaf, None)
    (gradient,) = torch.autograd.grad(found, leaf, slopes)
    expected, wanted = learnt(lambda x: narrow(x, None), projected, torch.ones_like(found))
    assert torch.equal(found, expected)
    assert torch.equal(gradient, wanted)
    states, matrix = draw(ROWS, 65, HIDDEN), matrix_of(narrow)
    turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (states, matrix)]
    assert not any(x.is_contiguous() for x in turned)
    found = narrow.of_states(*turned, None)
    assert torch.equal(found, narrow.of_states(states, matrix, None))


def test_what_is_not_a_number_stays_none(narrow: CPUAttention) -> None:
    """So that a training that has gone wrong is seen to."""
    projected = project(narrow, 131)
    slopes = draw(ROWS * 131, HEADS * 16, seed=1)
    for wrong in (torch.nan, torch.inf):
        spoilt = projected.clone()
        spoilt[1, 100, HEADS * 16 :] = wrong  # its keys and values
        found, gradient = learnt(lambda x: narrow(x, None), spoilt, slopes)
        rows = found.unflatten(0, (ROWS, 131))
        assert rows[1].isnan().any(dim=-1).all()
        assert gradient[1].isnan().any(dim=-1).all()
        assert rows[[0, 2]].isfinite().all()
        assert gradient[[0, 2]].isfinite().all()
        states = draw(ROWS, 131, HIDDEN)
        states[1, 100, 7] = wrong
        rows = narrow.of_states(states, matrix_of(narrow), None).unflatten(0, (ROWS, 131))
        assert rows[1].isnan().any(dim=-1).all()
        assert rows[[0, 2]].isfinite().all()


def test_it_is_differentiable_once_and_in_float32(narrow: CPUAttention) -> None:
    leaf = project(narrow, 5).requires_grad_()
    with pytest.raises(TypeError, match=r"float32, not for torch\.bfloat16"):
        narrow(leaf.bfloat16(), None)
    with pytest.raises(TypeError, match=r"float32, not for torch\.bfloat16"):
        narrow.of_states(draw(1, 5, HIDDEN), matrix_of(narrow).bfloat16(), None)
    found = narrow(leaf, None).square().sum()
    (gradient,) = torch.autograd.grad(found, leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
