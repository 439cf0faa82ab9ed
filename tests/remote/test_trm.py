import math

import numpy as np
import pytest
import torch

from remote.config import load_config
from remote.models.act import ACT, ACTLossHead, exploration
from remote.models.compiled import speed_up_on_cpu
from remote.models.layers import CastedLinear
from remote.models.losses import stablemax_cross_entropy
from remote.models.trm import TRM
from remote.optim.adam_atan2 import AdamATan2
from remote.optim.sign_sgd import SignSGD
from remote.ranks import Ranks
from tests.remote.fixture import fill, make_batch, one_thread

SMALL = ("arch.hidden_size=64", "arch.num_heads=4", "arch.L_layers=2", "arch.L_cycles=4")


__all__ = ["one_thread"]


def make(*words: str, seq_len: int = 900) -> ACTLossHead:
    config = load_config([*SMALL, *words])
    torch.manual_seed(0)
    core = TRM(
        config.arch,
        vocab_size=12,
        seq_len=seq_len,
        num_puzzle_identifiers=32,
        dtype=torch.float32,
    )
    return ACTLossHead(ACT(core), config.arch.loss.loss_type)


@pytest.mark.parametrize("own", [False, True], ids=["PyTorch's attention", "our own"])
def test_loss_gradient_and_first_update_are_upstreams(own: bool) -> None:
    """Numbers measured with upstream's code on weights 0.05 sin(0.1 j + i), in sorted order."""
    head = make()
    if own:
        speed_up_on_cpu(head, load_config([*SMALL, "arch.forward_dtype=float32"]))
        assert head.model.inner.L_level.layers[0].self_attn.mix is not None
    fill(head)
    head.train()
    batch = make_batch()
    _, loss, metrics, outputs = head(head.model.initial_carry(batch), batch)
    (loss / 4).backward()
    gradient = math.sqrt(sum(p.grad.double().square().sum() for p in head.parameters()))
    SignSGD(
        head.model.inner.puzzle_emb, weight_decay=0.1, ranks=Ranks(0, 1, torch.device("cpu"))
    ).step(0.01)
    AdamATan2(head.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1).step()
    logits = outputs["logits"].double()
    assert sum(p.numel() for p in head.parameters()) == 132_738
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
    expected = [13.5678158, 10.0011995, 7.1332316, -35510.817, 35866.263, 4.2855267]
    expected += [4224.90704, 65.904099]
    assert found == pytest.approx(expected, rel=1e-5)
    halting = [1.657772, 1.592231, 1.525082, 1.621267]
    assert outputs["q_halt_logits"].tolist() == pytest.approx(halting, rel=1e-5)


def test_the_halves_of_a_layer_are_those_of_the_whole_and_learn_as_they_do() -> None:
    """By two products on a CPU, so to rounding."""
    layer, found = CastedLinear(64, 512), []
    x = torch.randn(2, 30, 64, generator=torch.Generator().manual_seed(0))
    for halves in (lambda rows: layer(rows).chunk(2, dim=-1), layer.halves):
        rows = x.clone().requires_grad_()
        first, second = halves(rows)
        learnt = torch.autograd.grad((first.sin() * second).sum(), (rows, layer.weight))
        found.append((first, second, *learnt))
    for whole, half in zip(*found, strict=True):
        torch.testing.assert_close(half, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cycles", [(3, 4), (1, 1), (2, 3)])
def test_one_step_is_the_papers_recursion_written_naively(cycles: tuple[int, int]) -> None:
    outer, inner = cycles
    head = make(f"arch.H_cycles={outer}", f"arch.L_cycles={inner}", seq_len=20)
    core, batch = head.model.inner, make_batch(seq_len=20)
    shape = core.state_shape(4, 20)
    generator = torch.Generator().manual_seed(1)
    y, z = torch.randn(2, *shape, generator=generator)
    with torch.no_grad():
        state, _, _ = core({"z_H": y, "z_L": z}, batch["inputs"], batch["puzzle_identifiers"])
        x = core.question(batch["inputs"], batch["puzzle_identifiers"])
        for _ in range(outer):
            for _ in range(inner):
                hidden = z + y + x
                for layer in core.L_level.layers:
                    hidden = layer(hidden, core.rotary_emb())
                z = hidden
            hidden = y + z
            for layer in core.L_level.layers:
                hidden = layer(hidden, core.rotary_emb())
            y = hidden
    # Sums in another order, through up to fifteen passes of a random stack.
    torch.testing.assert_close(state["z_H"], y, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(state["z_L"], z, rtol=1e-3, atol=1e-3)


def test_only_the_last_round_carries_gradient() -> None:
    """The gradient of three rounds is that of one round started from the second one's states."""
    batch = make_batch(seq_len=20)
    three, one = make("arch.H_cycles=3", seq_len=20), make("arch.H_cycles=1", seq_len=20)
    one.load_state_dict(three.state_dict())
    before = make("arch.H_cycles=2", seq_len=20)
    before.load_state_dict(three.state_dict())
    ids = batch["puzzle_identifiers"]
    start = {
        name: row.expand(three.model.inner.state_shape(4, 20))
        for name, row in three.model.inner.initial_state().items()
    }
    with torch.no_grad():
        middle, _, _ = before.model.inner(start, batch["inputs"], ids)
    for head, state in ((three, start), (one, middle)):
        head.model.inner(state, batch["inputs"], ids)[1].square().sum().backward()
    for a, b in zip(three.parameters(), one.parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def test_default_model_has_seven_million_parameters_and_916_positions() -> None:
    config = load_config([])
    with torch.device("meta"):
        core = TRM(
            config.arch,
            vocab_size=12,
            seq_len=900,
            num_puzzle_identifiers=10,
            dtype=torch.bfloat16,
        )
    assert sum(p.numel() for p in core.parameters()) == 6_829_058
    assert core.state_shape(2, 900) == (2, 916, 512)


@pytest.mark.parametrize(
    "words",
    [
        ("arch.puzzle_emb_ndim=0", "arch.puzzle_emb_len=0"),
        ("arch.mlp_t=True", "arch.pos_encodings=none"),
        ("arch.pos_encodings=learned",),
        ("arch.no_ACT_continue=False",),
        ("arch.loss.loss_type=softmax_cross_entropy",),
        ("arch.puzzle_emb_ndim=32", "arch.puzzle_emb_len=2"),
    ],
)
def test_each_variant_trains_all_its_weights(words: tuple[str, ...]) -> None:
    head, batch = make(*words, seq_len=20), make_batch(seq_len=20)
    head.train()
    with torch.no_grad():
        head.model.inner.q_head.weight.normal_()
    _, loss, _, outputs = head(head.model.initial_carry(batch), batch)
    loss.backward()
    assert outputs["logits"].shape == (4, 20, 12)
    assert torch.isfinite(loss)
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_in_evaluation_every_row_takes_all_steps() -> None:
    head, batch = make("arch.halt_max_steps=3", seq_len=20).eval(), make_batch(seq_len=20)
    head.model.inner.q_head.bias.data.fill_(5.0)  # would halt at once in training
    carry = head.model.initial_carry(batch)
    halted = []
    for _ in range(3):
        carry = head.model(carry, batch)[0]
        halted.append(carry.halted.any().item())
    assert halted == [False, False, True]
    assert carry.steps.tolist() == [3] * 4


def test_a_halted_row_gets_a_new_example_and_the_others_keep_theirs() -> None:
    head = make("arch.halt_exploration_prob=0", seq_len=20).train()
    first, second = make_batch(seq_len=20), make_batch(seq_len=20)
    second["inputs"] = 11 - second["inputs"]
    carry = head.model(head.model.initial_carry(first), first)[0]
    assert not carry.halted.any()
    carry.halted[2] = True
    carry = head.model(carry, second)[0]
    assert carry.steps.tolist() == [2, 2, 1, 2]
    assert (carry.data["inputs"][2] == second["inputs"][2]).all()
    assert (carry.data["inputs"][[0, 1, 3]] == first["inputs"][[0, 1, 3]]).all()


def test_a_confident_row_halts_unless_it_explores() -> None:
    batch = make_batch(rows=4, seq_len=20)
    for probability, expected in ((0.0, [True] * 4), (1.0, [False] * 4)):
        head = make(f"arch.halt_exploration_prob={probability}", seq_len=20).train()
        head.model.inner.q_head.bias.data.fill_(5.0)
        least = torch.from_numpy(exploration(head.model.inner.config, seed=0, step=1, rows=4))
        carry = head.model(head.model.initial_carry(batch), batch, least)[0]
        assert carry.halted.tolist() == expected  # an explorer takes two steps at least


def test_explorers_are_a_tenth_and_their_least_steps_uniform() -> None:
    arch = load_config([]).arch
    drawn = np.concatenate([exploration(arch, seed=0, step=s, rows=768) for s in range(200)])
    assert (drawn > 0).mean() == pytest.approx(0.1, abs=0.005)
    counts = np.bincount(drawn[drawn > 0], minlength=17)
    assert counts[:2].sum() == 0
    assert counts[2:17] == pytest.approx(len(drawn) / 150, rel=0.15)
    again = exploration(arch, seed=0, step=7, rows=768)
    assert (again == exploration(arch, seed=0, step=7, rows=768)).all()
    assert (again != exploration(arch, seed=1, step=7, rows=768)).any()


@pytest.mark.parametrize("words", [(), ("arch.mlp_t=True",)])
def test_thinking_through_is_all_steps_one_by_one(words: tuple[str, ...]) -> None:
    """To the bit: only what stays the same, or is thrown away, is left out."""
    head, batch = make("arch.halt_max_steps=3", *words, seq_len=20).eval(), make_batch(seq_len=20)
    with torch.inference_mode():
        carry = head.model.initial_carry(batch)
        for _ in range(3):
            carry, _, metrics, outputs = head(carry, batch)
        short_metrics, short_outputs = head.answer(batch)
    for one, other in ((metrics, short_metrics), (outputs, short_outputs)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_stablemax_is_its_definition_in_float64() -> None:
    logits = torch.tensor([[[2.0, -3.0, 0.0]]])
    scores = torch.tensor([3.0, 1 / 4, 1.0], dtype=torch.float64)
    loss = stablemax_cross_entropy(logits, torch.tensor([[1]]))
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(-math.log(scores[1] / scores.sum()), rel=1e-12)
    assert stablemax_cross_entropy(logits, torch.tensor([[-100]])).item() == 0
