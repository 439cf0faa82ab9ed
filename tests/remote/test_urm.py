import math

import pytest
import torch

from remote.config import load_config
from remote.models.act import ACT, ACTLossHead
from remote.models.layers import NeighbourConv
from remote.models.urm import URM
from remote.optim.adam_atan2 import AdamATan2
from remote.optim.sign_sgd import SignSGD
from remote.ranks import Ranks
from tests.remote.fixture import fill, make_batch, one_thread

SMALL = ("arch=urm", "arch.hidden_size=64", "arch.num_heads=4", "arch.num_layers=2")
SMALL += ("arch.H_cycles=2", "arch.L_cycles=3")

__all__ = ["one_thread"]


def make(*words: str, seq_len: int = 900) -> ACTLossHead:
    config = load_config([*SMALL, *words])
    torch.manual_seed(0)
    core = URM(
        config.arch,
        vocab_size=12,
        seq_len=seq_len,
        num_puzzle_identifiers=32,
        dtype=torch.float32,
    )
    return ACTLossHead(ACT(core), config.arch.loss.loss_type)


def test_loss_gradient_and_first_update_are_upstreams() -> None:
    """Numbers measured with upstream's code on weights 0.05 sin(0.1 j + i), in sorted order."""
    head = make().train()
    fill(head)
    batch = make_batch()
    _, loss, metrics, outputs = head(head.model.initial_carry(batch), batch)
    (loss / 4).backward()
    gradient = math.sqrt(sum(p.grad.double().square().sum() for p in head.parameters()))
    SignSGD(
        head.model.inner.puzzle_emb, weight_decay=0.1, ranks=Ranks(0, 1, torch.device("cpu"))
    ).step(0.01)
    AdamATan2(head.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1).step()
    logits = outputs["logits"].double()
    assert sum(p.numel() for p in head.parameters()) == 134_274
    found = [
        loss.item(),
        metrics["lm_loss"].item(),
        metrics["q_halt_loss"].item(),
        logits.sum().item(),
        logits.abs().sum().item(),
        gradient,
        sum(p.double().abs().sum().item() for p in head.parameters()),
        head.model.inner.puzzle_emb.weights.double().abs().sum().item(),
    ]
    expected = [13.5090797, 10.1226532, 6.7728529, -26321.224, 33376.613, 4.2856701]
    expected += [4273.21521, 65.606478]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("cycles", [(2, 3), (1, 1), (3, 2)])
def test_one_step_is_the_cycles_written_naively(cycles: tuple[int, int]) -> None:
    outer, inner = cycles
    head = make(f"arch.H_cycles={outer}", f"arch.L_cycles={inner}", seq_len=20)
    core, batch = head.model.inner, make_batch(seq_len=20)
    hidden = torch.randn(core.state_shape(4, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        state, _, _ = core({"hidden": hidden}, batch["inputs"], batch["puzzle_identifiers"])
        question = core.question(batch["inputs"], batch["puzzle_identifiers"])
        for _ in range(outer):
            for _ in range(inner):
                hidden = hidden + question
                for layer in core.layers:
                    hidden = layer(hidden, core.turns())
    torch.testing.assert_close(state["hidden"], hidden)


def test_only_the_last_cycles_carry_gradient() -> None:
    batch = make_batch(seq_len=20)
    two, one = make("arch.H_cycles=2", seq_len=20), make("arch.H_cycles=1", seq_len=20)
    one.load_state_dict(two.state_dict())
    ids = batch["puzzle_identifiers"]
    start = {"hidden": two.model.inner.init_hidden.expand(two.model.inner.state_shape(4, 20))}
    with torch.no_grad():
        middle, _, _ = one.model.inner(start, batch["inputs"], ids)
    for head, state in ((two, start), (one, middle)):
        head.model.inner(state, batch["inputs"], ids)[1].square().sum().backward()
    for a, b in zip(two.parameters(), one.parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(("layers", "parameters"), [(4, 13_663_234), (8, 27_313_154)])
def test_both_published_sizes_have_upstreams_parameters(layers: int, parameters: int) -> None:
    config = load_config(["arch=urm", f"arch.num_layers={layers}"])
    with torch.device("meta"):
        core = URM(
            config.arch,
            vocab_size=12,
            seq_len=900,
            num_puzzle_identifiers=10,
            dtype=torch.bfloat16,
        )
    assert sum(p.numel() for p in core.parameters()) == parameters
    assert core.state_shape(2, 900) == (2, 901, 512)
    assert config.arch.layer_passes == (layers * 9, layers * 3)


@pytest.mark.parametrize(
    "words",
    [(), ("arch.puzzle_emb_ndim=0", "arch.puzzle_emb_len=0"), ("arch.puzzle_emb_ndim=100",)],
)
def test_each_variant_trains_all_its_weights(words: tuple[str, ...]) -> None:
    head, batch = make(*words, seq_len=20).train(), make_batch(seq_len=20)
    with torch.no_grad():
        head.model.inner.q_head.weight.normal_()
    _, loss, _, outputs = head(head.model.initial_carry(batch), batch)
    loss.backward()
    assert outputs["logits"].shape == (4, 20, 12)
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_the_convolution_is_a_conv1d_of_kernel_two_cut_to_length() -> None:
    torch.manual_seed(0)
    ours = NeighbourConv(6)
    theirs = torch.nn.Conv1d(6, 6, 2, padding=1, groups=6, dtype=torch.bfloat16)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 11, 6)
    expected = theirs(x.bfloat16().transpose(1, 2))[..., :11].transpose(1, 2)
    torch.testing.assert_close(ours(x), expected)
    assert ours(x).dtype == ours.weight.dtype == torch.bfloat16


def test_its_mlp_answers_in_bfloat16_even_in_a_float32_run() -> None:
    head = make(seq_len=20)
    assert head.model.inner.layers[0].mlp(torch.randn(2, 20, 64)).dtype == torch.bfloat16


def test_loops_are_its_act_steps_and_dead_keys_are_tolerated_with_a_word(caplog) -> None:
    with caplog.at_level("INFO"):
        config = load_config(
            ["arch=urm", "arch.loops=5", "arch.loop_deltas=[0, 8]", "+arch.ema=True"]
        )
    assert config.arch.halt_max_steps == 5
    assert not config.ema
    assert "arch.loop_deltas means nothing here" in caplog.text
