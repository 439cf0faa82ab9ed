"""From a command line to a run, or to what `--check` says of one; and from its end to a status."""

import logging
import os
import sys
import time

import torch

from remote import checkpoint, evaluators, evidence
from remote.config import PretrainConfig, load_config
from remote.dataset.split import DatasetError
from remote.machine import look, require_kernels
from remote.machine import words as machine_words
from remote.memory import OutOfMemory
from remote.overrides import ConfigError
from remote.place import require_a_place
from remote.plan import Plan, describe, make_plan
from remote.ranks import Ranks, joined
from remote.run import NotFinite, Run
from remote.signals import Sigterm

log = logging.getLogger(__name__)


def launch(words: list[str], sigterm: Sigterm, *, only_check: bool) -> int:
    """The exit status."""
    # What every rank would say alike is said by one.
    level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stdout)
    machine = look(torch.device("cpu"))
    try:
        config = load_config(words)
        with joined(config.device) as ranks:
            sigterm.hold()
            machine = look(ranks.device)
            require_kernels(machine)
            config.settle_names(ranks.gather(time.strftime("%Y%m%d-%H%M%S"))[0])
            require_a_place(config.checkpoint_path, ranks)
            plan = make_plan(config, ranks)
            if only_check:
                check(config, plan, ranks)
            elif ranks.any(flag=sigterm.asked):
                sigterm.say_nothing_is_lost()
            else:
                for word in machine_words(machine, ranks=ranks.world_size):
                    log.info("%s", word)
                Run(config, plan, ranks, sigterm).train()
    except (ConfigError, DatasetError, checkpoint.CheckpointError) as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return 2
    except checkpoint.NotSaved as error:
        print(f"pretrain: {error}; what came after it is lost", file=sys.stderr)
        return 1
    except NotFinite as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return 1
    except OutOfMemory as error:
        then = "load_checkpoint=latest goes on from the last checkpoint"
        print(f"pretrain: {error}; {then}", file=sys.stderr)
        return 1
    except Exception as error:
        if sigterm.asked and not sigterm.trained:  # another rank may have ended first
            print(f"pretrain: after SIGTERM: {type(error).__name__}: {error}", file=sys.stderr)
            sigterm.say_nothing_is_lost()
            return 0
        if said := evidence.explain(error, machine):
            print(f"pretrain: {said}", file=sys.stderr)
        raise
    return 0


def check(config: PretrainConfig, plan: Plan, ranks: Ranks) -> None:
    evaluators.make(config.evaluators, config.test_paths)
    if config.load_checkpoint:
        checkpoint.check(config)
    if ranks.first:
        print("\n".join(describe(config, plan, ranks)))
