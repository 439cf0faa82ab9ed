"""The CUDA extension of the optimiser is taken where its backend really imports, and said.

In an interpreter of its own, where packages come and go.  Its GPU is pretended: tensors without
content on a device that need not exist.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = """
import torch

class AdamATan2(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
"""
PROGRAM = """
import importlib, json, logging, os, sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from remote.optim import adam_atan2 as ours

heard = []
ours.log.setLevel(logging.INFO)
ours.log.addHandler(logging.Handler())
ours.log.handlers[0].emit = lambda record: heard.append(record.getMessage())
torch.cuda.get_device_capability = lambda device: (9, 0)
found = {}
for name, folder, environ in json.load(sys.stdin):
    heard.clear()
    for module in ("adam_atan2", "adam_atan2_backend"):
        sys.modules.pop(module, None)
    os.environ.pop("GPURUN_OPTIMISER", None)
    os.environ.update(environ)
    sys.path[0] = folder
    importlib.invalidate_caches()
    with FakeTensorMode():
        given = [torch.empty(4, dtype=d, device="cuda") for d in (torch.float32, torch.bfloat16)]
        parameters = [torch.nn.Parameter(tensor) for tensor in given]
        optimizer, kind = ours.adam_atan2(parameters, betas=(0.9, 0.95), weight_decay=0.1)
        states = [optimizer.state[parameter] for parameter in parameters]
        said = " ".join(heard)
        recorded = ours.adam_atan2(parameters, betas=(0, 0), weight_decay=0, recorded=True)[1]
    settings = [optimizer.defaults[key] for key in ("lr", "betas", "weight_decay")]
    dtypes = [{key: str(tensor.dtype)[6:] for key, tensor in state.items()} for state in states]
    found[name] = [type(optimizer).__module__, kind, said, settings, dtypes, recorded]
print(json.dumps(found))
"""
BOTH = {"adam_atan2": PACKAGE, "adam_atan2_backend": ""}
UNLOADABLE = "raise ImportError('libcudart.so.12')"
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {  # modules, environment
    "both": (BOTH, {}),
    "no backend": ({"adam_atan2": PACKAGE}, {}),
    "one that does not load": ({**BOTH, "adam_atan2_backend": UNLOADABLE}, {}),
    "another package": ({**BOTH, "adam_atan2": ""}, {}),
    "settled": (BOTH, {"GPURUN_OPTIMISER": "torch"}),
}


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Of each case the optimiser's module, its name, what the log says, settings and state."""
    asked = []
    for name, (modules, environ) in CASES.items():
        folder = tmp_path_factory.mktemp("packages")
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        asked.append([name, str(folder), environ])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_with_its_backend_the_extension_is_taken(taken: dict[str, list[Any]]) -> None:
    assert taken["both"][:3] == [
        "adam_atan2",
        "AdamATan2, CUDA extension",
        "optimiser: AdamATan2, CUDA extension",
    ]


@pytest.mark.parametrize(
    ("case", "word"),
    [
        ("no backend", "built without nvcc"),
        ("one that does not load", "libcudart.so.12"),
        ("another package", "another one"),
        ("settled", "GPURUN_OPTIMISER=torch"),
    ],
)
def test_without_it_the_same_update_runs_in_pytorch_and_why_is_said(
    taken: dict[str, list[Any]], case: str, word: str
) -> None:
    assert taken[case][:2] == ["remote.optim.adam_atan2", "AdamATan2, in PyTorch"]
    assert word in taken[case][2]


@pytest.mark.parametrize("case", CASES)
def test_either_has_its_settings_and_its_moments_from_the_start(
    taken: dict[str, list[Any]], case: str
) -> None:
    settings, dtypes, _ = taken[case][3:]
    assert settings == [0.0, [0.9, 0.95], 0.1]
    # The extension takes all of a parameter's tensors for the parameter's own type.
    for dtype, state in zip(("float32", "bfloat16"), dtypes, strict=True):
        moment = dtype if case == "both" else "float32"
        assert state == {"exp_avg": moment, "exp_avg_sq": moment, "step": "float32"}


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_step_never_has_the_extension_which_reads_no_rate_from_the_device(
    taken: dict[str, list[Any]], case: str
) -> None:
    assert taken[case][-1] == "AdamATan2, in PyTorch"
