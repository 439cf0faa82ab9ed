import math

import pytest
import torch

from remote.models.sparse_embedding import SparseEmbedding
from remote.optim.adam_atan2 import AdamATan2
from remote.optim.ema import EMA
from remote.optim.flat import Flat
from remote.optim.schedule import lr_share
from remote.optim.sign_sgd import SignSGD
from remote.ranks import Ranks

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 1e-15),
        (torch.float32, 1e-6),
        (torch.float16, 2e-3),
        (torch.bfloat16, 5e-3),
    ],
)
def test_a_hundred_steps_follow_the_formula(dtype: torch.dtype, tolerance: float) -> None:
    """Tolerances are those of adam-atan2's own test against its reference."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 5, generator=generator, dtype=torch.float64).to(dtype)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = AdamATan2([parameter], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    p, m, v = start.clone(), torch.zeros(3, 5), torch.zeros(3, 5)
    if dtype == torch.float64:
        m, v = m.double(), v.double()
    for t in range(1, 101):
        gradient = torch.randn(3, 5, generator=generator, dtype=torch.float64).to(dtype)
        parameter.grad = gradient.clone()
        optimizer.step()
        g, wide = gradient.to(m.dtype), p.to(m.dtype)
        wide = wide * (1 - 1e-3 * 0.1)
        m = m + (g - m) * (1 - 0.9)
        v = v + (g * g - v) * (1 - 0.95)
        update = torch.atan2(m, v.sqrt() / math.sqrt(1 - 0.95**t))
        p = (wide - 1e-3 / (1 - 0.9**t) * update).to(dtype)
    torch.testing.assert_close(parameter.data, p, rtol=tolerance, atol=tolerance)


def test_the_first_step_is_ten_arc_tangents_of_a_tenth() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    parameter.grad = torch.full((1,), 3.0, dtype=torch.float64)
    AdamATan2([parameter], lr=0.5, betas=(0.9, 0.95), weight_decay=0.0).step()
    assert parameter.item() == pytest.approx(-0.5 * 10 * math.atan2(0.1, 1), rel=1e-9)


def test_a_constant_gradient_settles_at_a_quarter_of_pi() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = AdamATan2([parameter], lr=1.0, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(400):
        before = parameter.item()
        parameter.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    assert before - parameter.item() == pytest.approx(math.pi / 4, rel=1e-6)


def test_a_rate_of_zero_moves_nothing() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    AdamATan2([parameter], lr=0.0, weight_decay=0.1).step()
    assert parameter.tolist() == [1.0, 1.0]


def test_sign_sgd_sums_repeated_rows_and_leaves_the_others() -> None:
    embedding = SparseEmbedding(4, 2, torch.float32)
    embedding.weights.fill_(1.0)
    rows = embedding(torch.tensor([2, 0, 2]))
    (rows * torch.tensor([[5.0, -1.0], [5.0, -5.0], [-3.0, 3.0]])).sum().backward()
    SignSGD(embedding, weight_decay=0.1, ranks=ALONE).step(lr=0.5)
    kept = 1 - 0.5 * 0.1
    expected = [[kept - 0.5, kept + 0.5], [1, 1], [kept - 0.5, kept - 0.5], [1, 1]]
    torch.testing.assert_close(embedding.weights, torch.tensor(expected))


def test_the_rate_rises_and_then_stays_or_falls_to_its_share() -> None:
    def share(step: int, min_ratio: float) -> float:
        return lr_share(step, warmup_steps=10, total_steps=110, min_ratio=min_ratio)

    assert [share(s, 1.0) for s in (1, 5, 10, 60, 110)] == [0.1, 0.5, 1.0, 1.0, 1.0]
    assert [share(s, 0.2) for s in (10, 60, 110)] == pytest.approx([1.0, 0.6, 0.2])


def test_capturable_is_the_same_update_with_all_state_and_the_rate_in_tensors() -> None:
    plain, captured = (torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    rate = torch.tensor(0.0)
    one = AdamATan2([plain], betas=(0.9, 0.95), weight_decay=0.1)
    other = AdamATan2([captured], lr=rate, betas=(0.9, 0.95), weight_decay=0.1, capturable=True)
    for t in range(1, 20):
        one.param_groups[0]["lr"] = 1e-2 / t
        rate.fill_(1e-2 / t)
        for parameter in (plain, captured):
            parameter.grad = torch.sin(torch.arange(7.0) * t)
        one.step()
        other.step()
    torch.testing.assert_close(captured, plain, rtol=1e-6, atol=1e-6)
    assert all(isinstance(value, torch.Tensor) for value in other.state[captured].values())


def test_on_one_long_vector_it_is_the_update_of_each_parameter() -> None:
    """Views of a vector per dtype; only the last bit depends on where in it an element lies."""

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
        layers[1].bias.data = layers[1].bias.data.bfloat16()
        return layers

    def gradient(parameter: torch.Tensor, step: int) -> torch.Tensor:
        return torch.cos(torch.arange(parameter.numel()) * 0.7 + step).view_as(parameter)

    apart, together = model(), model()
    flat = Flat(together)
    ema = EMA(flat, 0.9)
    assert [vector.dtype for vector in flat.vectors] == [torch.float32, torch.bfloat16]
    one = AdamATan2(apart.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    other = AdamATan2(flat.vectors, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    averages = {name: p.detach().float().clone() for name, p in apart.named_parameters()}
    for step in range(5):
        for parameter in apart.parameters():
            parameter.grad = gradient(parameter, step).to(parameter.dtype)
        for parameter in together.parameters():
            parameter.grad += gradient(parameter, step)
        assert flat.sum_over(ALONE, torch.tensor(2.5)) == 2.5
        assert flat.all_finite()
        one.step()
        other.step()
        ema.update()
        flat.zero_grad()
        for name, parameter in apart.named_parameters():
            averages[name].lerp_(parameter.detach().float(), 1 - 0.9)
    own = dict(apart.named_parameters())
    for name, parameter in together.named_parameters():
        torch.testing.assert_close(parameter, own[name], rtol=1e-6, atol=1e-7)
        assert not parameter.grad.any()
    for name, average in ema.shadow.items():
        torch.testing.assert_close(average, averages[name])
    with ema.applied():
        assert torch.equal(together[0].weight, ema.shadow["0.weight"])
    torch.testing.assert_close(together[0].weight, apart[0].weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_gradient_or_loss_is_seen(bad: float) -> None:
    flat = Flat(torch.nn.Linear(3, 5))
    flat.sum_over(ALONE, torch.tensor(bad))
    assert not flat.all_finite()
    flat.zero_grad()
    assert flat.all_finite()
    flat.vectors[0].grad[4] = bad
    flat.sum_over(ALONE, torch.tensor(1.0))
    assert not flat.all_finite()


def test_a_step_that_is_not_ok_leaves_the_puzzle_table() -> None:
    embedding = SparseEmbedding(4, 2, torch.float32)
    for ok in (False, True):
        embedding(torch.tensor([1, 1])).sum().backward()
        SignSGD(embedding, weight_decay=0.1, ranks=ALONE).step(0.5, ok=torch.tensor(ok))
        assert bool(embedding.weights.any()) is ok
