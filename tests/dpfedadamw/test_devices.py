"""The same on every device that there is: sums, noise, and a run with its audit.

The CPU is always there, so that what the tests ask for is itself tried; a CUDA device is skipped
where torch sees none.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpfedadamw.experiment import prepare
from dpfedadamw.filing import after_training as filing
from dpfedadamw.models.networks.cnn import GroupNormCNN
from dpfedadamw.models.networks.vit import VisionTransformer
from dpfedadamw.privacy.clipping.engines import choose
from dpfedadamw.privacy.noise.noise import NoiseAhead, add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.run import training as engine_run
from tests.runs import attest, failing, small_spec

MODELS = {
    "cnn": lambda: GroupNormCNN((1, 8, 8), [8, 16], 4, 10),
    "vit": lambda: VisionTransformer((1, 8, 8), 2, 16, 2, 4, 2, 10),
}


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    return torch.device(request.param)


def cross_entropy(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("name", MODELS)
def test_a_clipped_sum_is_the_plain_loops_in_double_precision_on_a_cpu(name, device):
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs, labels = torch.randn(5, 1, 8, 8), torch.arange(5)
    exact = choose(model.double(), cross_entropy, 0.5, engine="loop")(inputs.double(), labels)
    own = choose(model.float().to(device), cross_entropy, 0.5, engine="book-keeping")
    found = own(inputs.to(device), labels.to(device))
    assert found.total.device.type == device.type
    torch.testing.assert_close(found.total.cpu().double(), exact.total, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.raw_norms.cpu(), exact.raw_norms, rtol=1e-4, atol=0)


def test_noise_on_a_device_is_that_of_the_cpu_to_the_last_bit(device):
    total = torch.linspace(-1.0, 1.0, 10_007)

    def stream():
        return ReproducibleRandomness(7).stream("noise", 0, 0)

    expected = add_gaussian_noise(total, 0.37, stream(), dtype=torch.float32)
    assert not torch.equal(expected, total)
    ahead = NoiseAhead(len(total), stream())
    found = ahead.add(total.to(device), 0.37, torch.float32)
    assert found.device.type == device.type
    np.testing.assert_array_equal(found.cpu().numpy(), expected.numpy())


def test_a_run_on_a_device_passes_its_audit(device, tmp_path):
    training = engine_run.start(prepare(small_spec(rounds=2), device), tmp_path)
    engine_run.train(training)
    assert training.state.parameters.device.type == device.type
    attest(training)
    findings = filing.audit(training.run).to_json()
    assert findings["verdict"] == "PASS", failing(findings)


class Waits(TorchDispatchMode):
    """Counts what makes a program wait: single numbers, and shapes that data decide."""

    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in self.ASKING
        return func(*args, **(kwargs or {}))


def waits_of(steps: int, method: str, folder) -> int:
    overrides = (f"federation.local_steps={steps}", f"privacy.gaussian_sampler={method}")
    training = engine_run.start(
        prepare(small_spec(rounds=1, overrides=overrides), torch.device("cpu")), folder
    )
    with Waits() as waits:
        engine_run.train(training)
    return waits.count


@pytest.mark.parametrize(("method", "each"), [("box-muller", 1), ("on-device", 2)])
def test_a_local_step_asks_the_device_for_two_numbers_at_most(method, each, tmp_path):
    """Whether gradients are finite; and where noise is added on the device, the sum's size."""
    clients = 4
    few, many = (waits_of(steps, method, tmp_path / str(steps)) for steps in (1, 5))
    assert many - few == each * (5 - 1) * clients
