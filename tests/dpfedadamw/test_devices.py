"""The same on every device that there is: sums, noise, and a run with its audit.

The CPU is always there, so that what the tests ask for is itself tried; a CUDA device is skipped
where torch sees none.
"""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dpfedadamw.clipping.chain import SmallChain
from dpfedadamw.clipping.engines import choose
from dpfedadamw.evidence.commitments import Commitment
from dpfedadamw.evidence.exchanges import Exchange
from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.experiment import prepare
from dpfedadamw.filing import after_training as filing
from dpfedadamw.models.networks.cnn import GroupNormCNN
from dpfedadamw.models.networks.vit import VisionTransformer
from dpfedadamw.privacy.noise import on_device
from dpfedadamw.privacy.noise.noise import NoiseAhead, add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.privacy.oracle import Query
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.vectors.flat import Blocks, blocks_of
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
    training = engine_setup.start(prepare(small_spec(rounds=2), device), tmp_path)
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


class Crossings(TorchFunctionMode):
    """Counts by name what brings tensors from one memory to the other, or asks for numbers.

    On a CPU these calls copy nothing, so that no operation shows them; an accelerator finishes all
    that it was given before each. What is copied over is counted where a device is named.
    """

    ASKING = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__", "nonzero", "equal")
    MAKING = ("tensor", "as_tensor")

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.__name__
        named = any(isinstance(one, torch.device) for one in (*args[1:], *kwargs.values()))
        forced = name == "numpy" and kwargs.get("force", False)
        if name in self.ASKING or forced or (named and name in ("to", *self.MAKING)):
            self.count[name] += 1
        return func(*args, **kwargs)


CLIENTS = 2


def watched(mode, folder, *overrides: str, algorithm: str = "dp-fedadamw"):
    """What a mode counts in a round of training, as on an accelerator: numpy computes on a CPU."""
    spec = small_spec(algorithm, rounds=1, clients_per_round=CLIENTS, overrides=overrides)
    training = engine_setup.start(prepare(spec, torch.device("cpu")), folder)
    # How often it looks is a matter of time.
    unchecked = mock.patch.object(SpotCheck, "due", return_value=False)
    with mock.patch.object(SmallChain, "of", return_value=None), unchecked, mode:
        engine_run.train(training)
    return mode.count


def waits_of(steps: int, method: str, folder) -> int:
    which = (f"federation.local_steps={steps}", f"privacy.gaussian_sampler={method}")
    return watched(Waits(), folder, *which)


@pytest.mark.parametrize(("method", "each"), [("box-muller", 1), ("on-device", 2)])
def test_a_local_step_asks_the_device_for_two_numbers_at_most(method, each, tmp_path):
    """Whether gradients are finite; and where noise is added on the device, the sum's size."""
    few, many = (waits_of(steps, method, tmp_path / str(steps)) for steps in (1, 5))
    assert many - few == each * (5 - 1) * CLIENTS


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["dp-fedadamw", "dp-fedavg"])
def test_a_local_step_of_a_large_model_crosses_between_memories_eight_times(name, tmp_path):
    """Named one by one, so that a new one is noticed, and the missing of an old one too."""
    steps = (1, 3)
    which = ("model={name: mlp, hidden: [600]}", "privacy.gaussian_sampler=on-device")
    few, many = (
        watched(
            Crossings(), tmp_path / str(k), *which, f"federation.local_steps={k}", algorithm=name
        )
        for k in steps
    )
    extra = CLIENTS * (steps[1] - steps[0])
    each = {call: (many[call] - few[call]) / extra for call in many if many[call] != few[call]}
    assert each == {
        "to": 2,  # which labels; the batch's inputs
        "__bool__": 2,  # whether gradients are finite; whether noise covers the sum
        "numpy": 3,  # what was asked and answered; and all that was seen of noise and sum
        "cpu": 1,  # the batch's rows, which are here (`test_oracle`)
    }


class Launches(TorchDispatchMode):
    """Counts what an accelerator is told to do, on the device "meta", which computes nothing.

    An operation is one launch, and one on a list of tensors as many as CUDA's kernels for lists
    take. What is copied to the host comes back as zeros.
    """

    # What fits in the arguments of one launch: `MultiTensorApply.cuh`, and `Shape.cu`.
    CHUNK, BLOCKS, TENSORS, JOINED = 65_536, 320, 110, 128

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.copies, self.bytes = 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_to_copy" and kwargs.get("device") == torch.device("cpu"):
            self.copies += 1
            self.bytes += args[0].nbytes
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        returned = func._schema.returns[0].alias_info if func._schema.returns else None
        if name.startswith("_foreach"):
            chunks = sum(-(-one.numel() // self.CHUNK) for one in args[0])
            self.launches += 1 + max(-(-chunks // self.BLOCKS), -(-len(args[0]) // self.TENSORS))
        elif name in ("cat", "stack"):
            self.launches += -(-len(args[0]) // self.JOINED)
        elif not (name.startswith("empty") or (returned is not None and not returned.is_write)):
            self.launches += 1
        return func(*args, **kwargs)


META = torch.device("meta")


def of_vit_base(kind: str) -> Blocks:
    """Blocks of a model of 86 million parameters."""
    with META:
        model = VisionTransformer((3, 224, 224), 16, 768, 12, 12, 4, 1000)
    with torch.device("cpu"):
        return blocks_of(model, kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "most"), [("heads", 60), ("tensor", 40), ("hessian", 430), ("layer", 40)]
)
def test_evidence_of_a_query_is_few_launches_and_one_copy_for_86_million_parameters(kind, most):
    blocks = of_vit_base(kind).to(META)
    sums = torch.empty(2, blocks.parameters, device=META)
    sample = torch.empty(4096, dtype=torch.int64, device=META)
    exchange = Exchange(blocks, sample)
    evidence = ClientEvidence(
        blocks, 1.0, sample, exchange, Commitment(bytes(32)), torch.empty_like(sums[0])
    )
    norms = torch.zeros(16)
    with Launches() as of_query:
        evidence.query(
            Query(
                clean_sum=sums[0],
                noisy_sum=sums[1],
                raw_norms=norms,
                clipped_norms=norms,
                batch_size=16,
                nonfinite=0,
                divisor=16.0,
            )
        )
    assert of_query.launches <= most
    assert of_query.copies == 1
    with Launches() as of_answer:
        exchange.answered(sums[0])
    assert of_answer.launches <= most
    assert of_query.bytes + of_answer.bytes < 2**21


def one_launch(words: torch.Tensor) -> torch.Tensor:
    """What a compiled double round is to an accelerator."""
    return words.clone()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("double_round", "gibibytes", "most"),
    [(None, 16, 1700), (one_launch, 16, 450), (one_launch, 80, 150), (None, 80, 560)],
)
def test_noise_by_chacha20_for_86_million_numbers_is_few_launches(
    double_round, gibibytes, most, monkeypatch
):
    monkeypatch.setattr(on_device, "_memory", lambda device: gibibytes * 2**30)

    def key_stream(*given):
        return on_device.by_torch(*given, double_round)

    monkeypatch.setattr(on_device, "key_stream", key_stream)
    with Launches() as of_noise:
        on_device.normals(bytes(32), 0, 86_600_000, META)
    assert most * 0.9 < of_noise.launches <= most
    assert of_noise.copies == 0


@pytest.mark.parametrize("method", ["box-muller", "on-device"])
def test_noise_waits_for_the_device_once_a_sum_and_its_own_numbers_never(method):
    """By AES what was drawn is copied over; ChaCha20's words are made where they are used."""
    total = torch.zeros(100)
    with Crossings() as crossings:
        stream = ReproducibleRandomness(7).stream("noise", 0, 0)
        if method == "on-device":
            add_gaussian_noise(total, 0.37, stream, method=method)
            on_device.by_torch(bytes(32), bytes(12), 0, 3, total.device)
        else:
            NoiseAhead(len(total), stream, method).add(total, 0.37, torch.float32)
    copied = {"to": 1} if method == "box-muller" else {}
    assert crossings.count == {"__bool__": 1, **copied}
