"""Compiled, in bfloat16, with casts kept: the same model to the bounds of rounding."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from remote.arch import ARCHES
from remote.config import load_config
from remote.models.act import ACT, ACTLossHead
from remote.models.blocks import run
from remote.models.build import CORES
from remote.models.compiled import decide
from tests.remote.fixture import make_batch, one_thread

__all__ = ["one_thread"]

SMALL = ("arch.hidden_size=32", "arch.num_heads=2", "arch.H_cycles=2", "arch.L_cycles=2")
# Few passes: a random stack multiplies every rounding.
OWN = {
    "trm": ("arch.L_layers=1", "arch.halt_max_steps=2"),
    "urm": ("arch.num_layers=1", "arch.loops=2"),
}


def make(name: str, dtype: torch.dtype = torch.float32) -> ACTLossHead:
    config = load_config([f"arch={name}", *OWN[name], *SMALL])
    torch.manual_seed(0)
    core = CORES[name](
        config.arch, vocab_size=12, seq_len=20, num_puzzle_identifiers=32, dtype=dtype
    )
    return ACTLossHead(ACT(core), config.arch.loss.loss_type).train()


def steps(head: ACTLossHead, count: int = 2) -> list[float]:
    """Loss and norm of its gradient, step by step; weights stay."""
    batch, found = make_batch(seq_len=20), []
    carry = head.model.initial_carry(batch)
    for _ in range(count):
        carry, loss, _, _ = head(carry, batch)
        loss.backward()
        squares = [p.grad.double().square().sum() for p in head.parameters()]
        found += [loss.item(), float(torch.stack(squares).sum().sqrt())]
    return found


@pytest.mark.parametrize(("name", "backend"), [("trm", "inductor"), ("urm", "aot_eager")])
def test_a_compiled_model_is_the_eager_one_and_compiled_three_times(
    name: str, backend: str
) -> None:
    """Without gradient, with it, and with it on both inputs; nothing later adds a fourth."""
    graphs = CompileCounterWithBackend(backend)
    eager, compiled = make(name), make(name)
    compiled.model.inner.run = torch.compile(run, dynamic=False, backend=graphs)
    assert steps(compiled) == pytest.approx(steps(eager), rel=1e-4)
    batch = make_batch(seq_len=20)
    with torch.inference_mode():
        ours, theirs = (head.eval().answer(batch)[1]["logits"] for head in (compiled, eager))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert graphs.frame_count == 3


@pytest.mark.parametrize("name", ARCHES)
def test_bfloat16_is_within_two_hundredths_of_float32(name: str) -> None:
    wide, narrow = steps(make(name)), steps(make(name, torch.bfloat16))
    assert narrow[::2] == pytest.approx(wide[::2], rel=2e-2)


def test_casts_that_are_kept_change_nothing() -> None:
    """To the bit: the same rounding, once in place of many times."""
    head = make("trm", torch.bfloat16)
    batch = make_batch(seq_len=20)
    kept = head(head.model.initial_carry(batch), batch)[3]["logits"]
    head.model.inner.without_gradient = torch.no_grad
    assert torch.equal(head(head.model.initial_carry(batch), batch)[3]["logits"], kept)
    assert all(getattr(module, "cast", None) is None for module in head.modules())


def nothing(name: str) -> None:
    return None


def everything(name: str) -> str:
    return f"/usr/bin/{name}"


@pytest.mark.parametrize(
    ("setting", "device", "environ", "which", "expected", "word"),
    [
        (None, "cuda", {}, everything, True, "on"),
        (None, "cuda", {"DISABLE_COMPILE": "1"}, everything, False, "DISABLE_COMPILE"),
        (True, "cpu", {"DISABLE_COMPILE": ""}, everything, False, "DISABLE_COMPILE"),
        (False, "cuda", {}, everything, False, "compile=False"),
        (None, "cpu", {}, everything, False, "compile=True turns it on"),
        (True, "cpu", {}, everything, True, "on"),
        (None, "cuda", {}, nothing, False, "apt-get install"),
    ],
)
def test_what_decides_on_compiling(setting, device, environ, which, expected, word) -> None:
    compiles, said = decide(setting, device, environ, which)
    assert compiles is expected
    assert word in said
