"""From a configuration to a model with its loss."""

import torch

from remote.config import PretrainConfig
from remote.dataset.split import Split
from remote.machine import choose_dtype, look
from remote.models.act import ACT, ACTLossHead
from remote.models.trm import TRM
from remote.models.urm import URM
from remote.ranks import Ranks

CORES = {"trm": TRM, "urm": URM}


def build_model(
    config: PretrainConfig, split: Split, device: torch.device, ranks: Ranks | None = None
) -> ACTLossHead:
    """With `ranks`, each has a part of the puzzle table if `shard_puzzle_emb` says so."""
    core = CORES[config.arch_name](
        config.arch,
        vocab_size=split.vocab_size,
        seq_len=split.seq_len,
        num_puzzle_identifiers=split.num_puzzle_identifiers,
        dtype=forward_dtype(config, device),
    )
    identifiers = split.num_puzzle_identifiers
    if ranks is not None and table_rows(config, identifiers, ranks.world_size) < identifiers:
        core.puzzle_emb.split_over(ranks)  # before it moves to a GPU without room for all of it
    return ACTLossHead(ACT(core), config.arch.loss.loss_type).to(device)


def table_rows(config: PretrainConfig, identifiers: int, ranks: int) -> int:
    """Rows of the puzzle table that one rank holds, at most."""
    if not config.arch.puzzle_emb_ndim or not config.shard_puzzle_emb or ranks > identifiers:
        return identifiers
    return -(-identifiers // ranks)


def forward_dtype(config: PretrainConfig, device: torch.device) -> torch.dtype:
    return choose_dtype(config.arch.forward_dtype, look(device))
