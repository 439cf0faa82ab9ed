"""A training step that is recorded once, as a CUDA graph, and played from then on.

A step of a few rows is thousands of kernels, each of which takes less time than its launch does.
Their shapes and addresses never change, none of them waits for the host, and what the host decides
(rates, exploration, the batch) comes in tensors; so a whole step, optimisers and averages included,
is one launch.

Proven on a CPU, by playing what was recorded; not yet run on a GPU.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from remote.config import PretrainConfig
from remote.ranks import Ranks

log = logging.getLogger(__name__)
WARM_UPS = 3  # steps before: libraries make their workspaces, and layers are compiled


@dataclass(slots=True)
class Given:
    """What the host gives a step, on the device.  Rates are float64 () where it is recorded."""

    batch: dict[str, Tensor]
    least_steps: Tensor
    lr: float | Tensor
    puzzle_emb_lr: float | Tensor

    def tensors(self) -> list[Tensor]:
        return [*self.batch.values(), self.least_steps, self.lr, self.puzzle_emb_lr]


Step = Callable[[], Tensor]


class Recorder(Protocol):
    def warm_up(self, step: Step) -> Tensor:
        """Takes the step where it would be recorded."""

    def record(self, step: Step) -> tuple[Callable[[], None], Tensor]:
        """What takes the step again and again, and where its result then lies; takes none itself.

        RuntimeError where it cannot be recorded.
        """


class CUDARecorder:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, step: Step) -> Tensor:
        others = torch.cuda.current_stream()
        self._stream.wait_stream(others)
        with torch.cuda.stream(self._stream):
            result = step()
        others.wait_stream(self._stream)
        return result

    def record(self, step: Step) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            result = step()
        return graph.replay, result


class Recorded:
    """Takes steps like the one it is made of, which must do all it does in place."""

    def __init__(self, step: Callable[[Given], Tensor], recorder: Recorder) -> None:
        self._step, self._recorder = step, recorder
        self._given: Given | None = None  # always the same tensors
        self._result: Tensor | None = None
        self._play: Callable[[], None] | None = None
        self._warm_ups_left: float = WARM_UPS

    def __call__(self, given: Given) -> Tensor:
        """The result is overwritten by the next call."""
        self._take(given)
        if self._play is None and not self._warm_ups_left:
            self._record()
        if self._play is None:
            self._warm_ups_left -= 1
            return self._recorder.warm_up(self._take_step)
        self._play()
        return self._result

    def _take(self, given: Given) -> None:
        if self._given is None:
            self._given = given
            return
        for own, new in zip(self._given.tensors(), given.tensors(), strict=True):
            own.copy_(new)

    def _take_step(self) -> Tensor:
        return self._step(self._given)

    def _record(self) -> None:
        try:
            self._play, self._result = self._recorder.record(self._take_step)
        except RuntimeError as error:
            log.warning("cuda_graph: off, for a step could not be recorded: %s", error)
            self._warm_ups_left = float("inf")


def recorder_for(config: PretrainConfig, ranks: Ranks) -> Recorder | None:
    """None, and a word on why in the log, where steps are not to be recorded."""
    if not config.cuda_graph:
        return None
    if ranks.device.type != "cuda":
        log.info("cuda_graph: off on a CPU")
    elif ranks.world_size > 1:
        log.info("cuda_graph: off, for it is made for one process, not for %d", ranks.world_size)
    else:
        log.info("cuda_graph: on")
        return CUDARecorder(ranks.device)
    return None
