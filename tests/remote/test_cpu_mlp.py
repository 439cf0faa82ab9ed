"""The MLP of our own on a CPU is PyTorch's to rounding, where no gradient is wanted."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from remote.models.cpu.mlp import CPUFeed
from tests.remote.fixture import one_thread

__all__ = ["one_thread"]

EPSILON = 1e-5
Heads = tuple[Tensor, Tensor]


@pytest.fixture(scope="module", params=[(64, 256), (32, 512), (96, 256)], ids=str)
def widths(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param


@pytest.fixture(scope="module")
def feed(widths: tuple[int, int]) -> CPUFeed:
    return CPUFeed(*widths, "g++")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(width: int, inner: int) -> tuple[Tensor, Tensor]:
    return draw(2 * inner, width, seed=1) * width**-0.5, draw(width, inner, seed=2) * inner**-0.5


def plainly(x: Tensor, gate_up: Tensor, down: Tensor, heads: Heads | None) -> Tensor:
    """The same by PyTorch, in float64."""
    x = x.double()
    if heads is not None:
        mixed, projection = (given.double() for given in heads)
        x = rms_norm(x + linear(mixed, projection))
    gate, up = linear(x, gate_up.double()).chunk(2, dim=-1)
    return rms_norm(x + linear(silu(gate) * up, down.double()))


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def off(
    feed: CPUFeed, x: Tensor, gate_up: Tensor, down: Tensor, heads: Heads | None = None
) -> float:
    found = feed(x, gate_up, down, EPSILON, heads)
    assert found.shape == x.shape
    return float((found - plainly(x, gate_up, down, heads)).abs().max())


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (9,), (2, 900), (3, 5, 17)])
def test_it_is_what_pytorch_finds(
    feed: CPUFeed, widths: tuple[int, int], shape: tuple[int, ...]
) -> None:
    x, (width, _) = draw(*shape, widths[0]), widths
    mixed, projection = draw(*x.shape, seed=3), draw(width, width, seed=4) * width**-0.5
    assert off(feed, x, *weights(*widths)) < 3e-6
    assert off(feed, x, *weights(*widths), (mixed, projection)) < 3e-6


@pytest.mark.parametrize("factor", [1e-4, 30.0, 1e4])
def test_gates_of_any_size_are_met(feed: CPUFeed, widths: tuple[int, int], factor: float) -> None:
    """Where a gate is shut for good, or wide open."""
    gate_up, down = weights(*widths)
    gate_up[: widths[1]] *= factor
    assert off(feed, draw(100, widths[0]), gate_up, down) < 1e-5


def test_nobody_is_fed_nothing(feed: CPUFeed, widths: tuple[int, int]) -> None:
    assert feed(draw(0, widths[0]), *weights(*widths), EPSILON).shape == (0, widths[0])


def test_threads_share_the_work_and_others_beside_it_change_no_bit(
    feed: CPUFeed, widths: tuple[int, int]
) -> None:
    x, mixed, given = draw(131, widths[0]), draw(131, widths[0], seed=3), weights(*widths)
    projection = draw(widths[0], widths[0], seed=4)
    alone = feed(x, *given, EPSILON, (mixed, projection))
    torch.set_num_threads(3)
    assert torch.equal(feed(x, *given, EPSILON, (mixed, projection)), alone)
    some = slice(50, 53)
    assert torch.equal(feed(x[some], *given, EPSILON, (mixed[some], projection)), alone[some])


def test_tensors_may_lie_anyhow(feed: CPUFeed, widths: tuple[int, int]) -> None:
    x, (gate_up, down) = draw(131, widths[0]), weights(*widths)
    mixed, projection = draw(131, widths[0], seed=3), draw(widths[0], widths[0], seed=4)
    plain = x, gate_up, down, mixed, projection
    turned = [given.t().contiguous().t() for given in plain]
    assert not any(given.is_contiguous() for given in turned)
    found = [feed(*given[:3], EPSILON, tuple(given[3:])) for given in (plain, turned)]
    assert torch.equal(*found)


def test_what_is_not_a_number_stays_none(feed: CPUFeed, widths: tuple[int, int]) -> None:
    for wrong in (torch.nan, torch.inf, -torch.inf):
        x = draw(20, widths[0])
        x[11, 3] = wrong
        found = feed(x, *weights(*widths), EPSILON)
        assert found[11].isnan().any()
        assert found[[0, 10, 12, 19]].isfinite().all()


def test_it_is_made_for_float32(feed: CPUFeed, widths: tuple[int, int]) -> None:
    with pytest.raises(TypeError, match=r"float32, not for torch\.bfloat16"):
        feed(draw(3, widths[0]).bfloat16(), *weights(*widths), EPSILON)
