"""What a CPU leaves out, and takes in parts, changes nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from remote.config import load_config
from remote.dataset.grids import IGNORE_LABEL
from remote.dataset.sets import open_splits
from remote.models.build import build_model
from remote.models.losses import LOSSES
from remote.ranks import Ranks
from remote.recorded import Given
from remote.training import ROWS_IN_CACHE, Training
from tests.remote.fixture import fill, make_batch, one_thread

__all__ = ["one_thread"]

SEQ_LEN, IDENTIFIERS = 900, 32
MODEL = ["arch=trm", "arch.hidden_size=64", "arch.num_heads=4", "arch.H_cycles=1"]
MODEL += ["arch.L_cycles=1", "arch.forward_dtype=float32"]
BARE = ["arch.puzzle_emb_ndim=0", "arch.puzzle_emb_len=0"]


class Shape:
    vocab_size, seq_len, num_puzzle_identifiers = 12, SEQ_LEN, IDENTIFIERS


def sparse_batch() -> dict[str, Tensor]:
    """As many labels as real ones have, but for a row that has all and one that has a single."""
    batch = make_batch(4, SEQ_LEN)
    labelled = torch.rand(4, SEQ_LEN, generator=torch.Generator().manual_seed(0)) < 0.19
    labelled[0], labelled[1] = True, False
    labelled[1, 777] = True
    labels = batch["labels"].masked_fill(batch["labels"] == IGNORE_LABEL, 1)
    return batch | {"labels": labels.masked_fill(~labelled, IGNORE_LABEL)}


def learnt(words: list[str], dtype: str, *, spares: bool) -> dict[str, Tensor]:
    """Loss, state, and every gradient of one step."""
    config = load_config([*MODEL, *words])
    config.arch.forward_dtype = dtype  # one that the settings do not offer
    model = build_model(config, Shape, torch.device("cpu"))
    fill(model)
    inner = model.train().model.inner
    if spares:
        inner.spare_blanks()
        assert inner.spares_blanks
    batch = sparse_batch()
    carry, loss, _, outputs = model(model.model.initial_carry(batch), batch)
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    if hasattr(inner, "puzzle_emb"):
        ((_, leaf),) = inner.puzzle_emb.used
        found["puzzle vectors"] = leaf.grad
    return found | {"loss": loss} | carry.state | {"logits": outputs["logits"]}


@pytest.mark.parametrize(
    ("words", "dtype", "rounding"),
    [([], "float32", 5e-6), (BARE, "float32", 5e-6), (["arch.L_layers=1"], "float64", 1e-7)],
)
def test_leaving_out_positions_without_a_label_is_exact(
    words: list[str], dtype: str, rounding: float
) -> None:
    """But for the order of sums, whose rounding is seen to fall with the type."""
    plain, spared = (learnt(words, dtype, spares=spares) for spares in (False, True))
    for name, expected in plain.items():
        difference = (spared[name] - expected).norm() / expected.norm()
        assert difference < rounding, f"{name} differs by {difference:.1e}"


def test_where_an_mlp_or_a_convolution_mixes_positions_nothing_is_left_out() -> None:
    for words in (["arch=trm", "arch.mlp_t=True", "arch.pos_encodings=none"], ["arch=urm"]):
        small = ["arch.hidden_size=64", "arch.num_heads=4"]
        model = build_model(load_config([*words, *small]), Shape, torch.device("cpu"))
        model.model.inner.spare_blanks()
        assert not model.model.inner.spares_blanks


@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_loss_of_labelled_positions_alone_is_that_of_all(loss_type: str) -> None:
    logits = torch.randn(4, SEQ_LEN, 12, generator=torch.Generator().manual_seed(1))
    labels = sparse_batch()["labels"]
    loss = LOSSES[loss_type]
    alone = loss(logits, labels)
    assert loss(logits.to("meta"), labels.to("meta")).shape == alone.shape  # as on a GPU
    assert torch.equal(loss(logits, labels, fixed_shapes=True), alone)
    everywhere = loss(logits, labels.clamp(min=0))
    assert torch.equal(alone, everywhere.where(labels != IGNORE_LABEL, 0))


@pytest.fixture
def rows(small_set: Path) -> Iterator[tuple[Training, dict[str, Tensor]]]:
    words = [*MODEL, f"data_paths=[{small_set}]", f"global_batch_size={ROWS_IN_CACHE + 3}"]
    config = load_config([*words, "device=cpu", "arch.halt_max_steps=4"])
    ranks = Ranks(0, 1, torch.device("cpu"))
    split = open_splits(config.train_paths, "train")
    batch = make_batch(ROWS_IN_CACHE + 3, SEQ_LEN)
    yield Training(config, split, ranks, schedule_steps=1), batch


def test_rows_that_are_taken_a_few_at_a_time_add_up_to_all_at_once(
    rows: tuple[Training, dict[str, Tensor]],
) -> None:
    """Also with a last part that is smaller, and ids that are in several parts."""
    training, batch = rows
    batch["puzzle_identifiers"] = batch["puzzle_identifiers"] % 5
    carry = training.model.model.initial_carry(batch)
    least = training._least_steps()
    training.model.train()
    new, loss, metrics, _ = training.model(carry, batch, least)
    (loss / len(least)).backward()
    expected = training.flat.vectors[0].grad.clone()
    ids, vectors = training.puzzle_optimizer.gather()
    training.flat.zero_grad()
    given = Given(batch, least, 0.0, 0.0)
    in_parts, its_loss, its_metrics = training._forward_and_backward(carry, given)
    assert its_loss.item() == pytest.approx(loss.item(), rel=1e-6)
    assert {n: v.item() for n, v in its_metrics.items()} == pytest.approx(
        {n: v.item() for n, v in metrics.items()}, rel=1e-6
    )
    assert (training.flat.vectors[0].grad - expected).norm() < 1e-6 * expected.norm()
    its_ids, its_vectors = training.puzzle_optimizer.gather()
    assert torch.equal(its_ids, ids)
    torch.testing.assert_close(its_vectors, vectors, rtol=1e-4, atol=1e-7)
    assert torch.equal(in_parts.halted, new.halted)
    torch.testing.assert_close(in_parts.state, new.state)
