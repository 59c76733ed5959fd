"""A round of the product against the same round as plain torch and as an Opacus loop.

    python tests/bench/bench_round.py [--only logreg mlp cnn vit-tiny resnet18 lora] [--rounds 7]
        [--clients S] [--threads 2] [--flower-python PATH]

The product is what `dpfedadamw run` does in a round: ledger, sampling, clipped sums, release noise,
evidence, server, checkpoint, metrics. Its test set is not evaluated, nor by the others. The plain
loop is FedAvg by `torch.optim.SGD`; the Opacus loop the same with `GradSampleModule`, `DPOptimizer`
and Poisson loaders, with no ledger, no evidence and noise of torch's ordinary generator. Ghost is
that loop with Opacus's ghost clipping. All have the same model, data, clients, local steps and
(expected) batch.

Each contender has a process of its own, whose largest resident memory counts, and they take turns
at single rounds, so that what else the machine does hits all alike; the first round of each is
thrown away. Ratios are medians over turns of neighbouring rounds. Processor time is that of all
threads and leaves out waiting for the disk; wall time has it. Not collected by pytest.

Flower with Opacus (`flower_opacus.py`) has processes of its own beside the one that takes turns;
all of theirs count, but not what Flower takes to start. flwr has an environment of its own: where
the interpreter of ``--flower-python`` (else this one) has none, it is left out, and a line says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LOCAL_STEPS, BATCH, PER_CLIENT, LENGTH = 5, 16, 100, 128


@dataclass(frozen=True)
class Workload:
    """One model of the table.

    Attributes:
        model: The spec's section.
        shape: Of one record; none for digits.
        clients: S, all of them in every round.
        algorithm: The spec's section.
        round_goal: Largest ratio of wall time to the plain loop's.
        memory_goal: Largest resident memory in MB; None for no goal.
    """

    model: dict[str, Any]
    shape: tuple[int, ...]
    clients: int
    algorithm: dict[str, Any]
    round_goal: float
    memory_goal: int | None


_ADAMW = {"name": "dp-fedadamw", "learning_rate": 0.001}
WORKLOADS = {
    "logreg": Workload(
        {"name": "mlp", "hidden": []},
        (),
        10,
        {"name": "dp-fedavg", "learning_rate": 0.1},
        2.0,
        None,
    ),
    "mlp": Workload({"name": "mlp", "hidden": [32]}, (), 10, _ADAMW, 2.0, None),
    "cnn": Workload({"name": "cnn", "channels": [16, 32], "groups": 4}, (), 10, _ADAMW, 2.0, None),
    "vit-tiny": Workload({"name": "vit-tiny"}, (3, 32, 32), 5, _ADAMW, 1.4, 750),
    "resnet18": Workload({"name": "resnet18"}, (3, 32, 32), 5, _ADAMW, 1.4, 1200),
    "lora": Workload(
        {"name": "transformers", "length": LENGTH, "pooling": "mean"},
        (2, LENGTH),
        5,
        _ADAMW,
        1.0,
        1200,
    ),
}


def spec_of(name: str, clients: int, rounds: int, folder: Path) -> Any:
    """The spec of a workload, whose data lie in a folder."""
    from dpfedadamw import spec as specs

    work = WORKLOADS[name]
    data: dict[str, Any] = {"clients": clients, "partition": {"kind": "iid"}}
    data |= (
        {"dataset": "arrays", "path": str(folder / f"{name}.npz")}
        if work.shape
        else {"dataset": "digits"}
    )
    model = dict(work.model)
    if name == "lora":
        model |= {
            "source": str(folder / "encoder"),
            "fine_tuning": {"kind": "lora", "rank": 16, "alpha": 16, "dropout": 0.0},
        }
    mapping = {
        "version": 1,
        "name": f"bench-{name}",
        "data": data,
        "model": model,
        "algorithm": work.algorithm,
        "federation": {"rounds": rounds, "clients_per_round": clients, "local_steps": LOCAL_STEPS},
        "privacy": {
            "unit": "record",
            "clipping_norm": 1.0,
            "noise_multiplier": 1.0,
            "delta": 1e-5,
            "sampling": {"kind": "poisson", "expected_batch_size": BATCH},
        },
        "evaluation": {"every": 1_000_000},
        "randomness": "release",
    }
    import yaml

    return specs.loads(yaml.safe_dump(mapping))


def write_data(name: str, clients: int, folder: Path) -> None:
    """Records of noise, and the encoder with random weights that the adapters stand beside."""
    shape = WORKLOADS[name].shape
    if not shape:
        return
    drawn = np.random.default_rng(0)
    count = clients * PER_CLIENT
    if name == "lora":
        inputs = drawn.integers(5, 8000, (count, *shape)).astype(np.int64)
        inputs[:, 1] = 0
        _write_encoder(folder / "encoder")
    else:
        inputs = drawn.standard_normal((count, *shape)).astype(np.float32)
    labels = np.arange(count) % 2
    few = {"x_test": inputs[:4], "y_test": labels[:4]}
    np.savez(folder / f"{name}.npz", x_train=inputs, y_train=labels, **few)


def _write_encoder(folder: Path) -> None:
    """MiniLM's size: six layers of width 384, twelve heads."""
    import transformers

    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(8000 - 5))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=8000,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=LENGTH,
    )
    transformers.BertModel(config).save_pretrained(folder)


class EndedError(Exception):
    """No round is wanted any more."""


class Turns:
    """The child's end: waits for its turn, and tells how long a round took.

    Args:
        processor: Tells the processor time taken so far, in seconds.
        out: Where it tells.
    """

    def __init__(
        self, processor: Callable[[], float] = time.process_time, out: Any = sys.stdout
    ) -> None:
        self._processor = processor
        self.out = out
        self._began = (0.0, 0.0)

    def wait(self) -> None:
        """Wait until a round is wanted."""
        self.out.write("ready\n")
        self.out.flush()
        if sys.stdin.readline().strip() != "round":
            raise EndedError
        self._began = (time.perf_counter(), self._processor())

    def done(self) -> None:
        """Tell how long the round took."""
        wall, used = time.perf_counter(), self._processor()
        took = {"wall": wall - self._began[0], "processor": used - self._began[1]}
        self.out.write(json.dumps(took) + "\n")


def product(name: str, clients: int, folder: Path, turns: Turns) -> None:
    """The rounds of `dpfedadamw run`."""
    import torch

    from dpfedadamw.experiment import prepare
    from dpfedadamw.run import setup, training

    spec = spec_of(name, clients, 10_000, folder)
    opened = setup.start(prepare(spec, torch.device("cpu")), folder / "runs")

    def after_round(_result: object, _evaluation: object) -> None:
        turns.done()
        turns.wait()

    turns.wait()
    training.train(opened, on_round=after_round)


def _parts(name: str, clients: int, folder: Path) -> tuple[Any, list[tuple[Any, Any]]]:
    """The model, and each client's records and labels as tensors."""
    import torch

    from dpfedadamw.experiment import prepare

    experiment = prepare(spec_of(name, clients, 10, folder), torch.device("cpu"))
    train = experiment.dataset.train
    inputs = train.inputs[0 : len(train)]
    labels = torch.from_numpy(train.labels)
    owner = torch.from_numpy(experiment.owner)
    rows = [(owner == client).nonzero().flatten() for client in range(clients)]
    return experiment.model.train(), [(inputs[own], labels[own]) for own in rows]


def _averaged(module: Any, run_client: Callable[[int], None], clients: int) -> None:
    """A round of FedAvg over the trainable parameters of a module."""
    import torch

    trainable = [p for p in module.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trainable]
    sums = [torch.zeros_like(p) for p in trainable]
    for client in range(clients):
        with torch.no_grad():
            for parameter, value in zip(trainable, before, strict=True):
                parameter.copy_(value)
        run_client(client)
        for total, parameter in zip(sums, trainable, strict=True):
            total += parameter.detach()
    with torch.no_grad():
        for parameter, total in zip(trainable, sums, strict=True):
            parameter.copy_(total / clients)


def plain(name: str, clients: int, folder: Path, turns: Turns) -> None:
    """FedAvg as it is written in torch."""
    import torch
    import torch.nn.functional as F

    model, held = _parts(name, clients, folder)
    trainable = [p for p in model.parameters() if p.requires_grad]

    def run_client(client: int) -> None:
        inputs, labels = held[client]
        optimiser = torch.optim.SGD(trainable, lr=0.01)
        for _ in range(LOCAL_STEPS):
            rows = torch.randint(0, len(labels), (BATCH,))
            optimiser.zero_grad()
            F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimiser.step()

    while True:
        turns.wait()
        _averaged(model, run_client, clients)
        turns.done()


def freeze_unknown(model: Any) -> None:
    """Freeze the parameters that Opacus has no rule for."""
    from opacus import GradSampleModule

    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if own and type(module) not in GradSampleModule.GRAD_SAMPLERS:
            for parameter in own:
                parameter.requires_grad_(False)


def opacus(name: str, clients: int, folder: Path, turns: Turns) -> None:
    """The same with Opacus; parameters that it has no rule for are frozen, in its favour."""
    import torch.nn.functional as F
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    def clipped(_wrapped: Any, optimiser: Any) -> tuple[Any, Any]:
        return DPOptimizer(optimiser, **_PRIVATE), F.cross_entropy

    _opacus_rounds(name, clients, folder, turns, GradSampleModule, clipped)


def ghost(name: str, clients: int, folder: Path, turns: Turns) -> None:
    """The same with Opacus's ghost clipping, which forms no gradient of a single record."""
    import torch
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    def clipped(wrapped: Any, optimiser: Any) -> tuple[Any, Any]:
        private = DPOptimizerFastGradientClipping(optimiser, **_PRIVATE)
        loss = torch.nn.CrossEntropyLoss()
        return private, DPLossFastGradientClipping(wrapped, private, loss)

    _opacus_rounds(name, clients, folder, turns, GradSampleModuleFastGradientClipping, clipped)


_PRIVATE = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": BATCH}


def _opacus_rounds(
    name: str,
    clients: int,
    folder: Path,
    turns: Turns,
    module: Any,
    clipped: Callable[[Any, Any], tuple[Any, Any]],
) -> None:
    """Rounds of an Opacus loop.

    Args:
        name: The workload.
        clients: S.
        folder: Where its data lie.
        turns: When a round is wanted.
        module: Opacus's class that wraps the model.
        clipped: Makes Opacus's optimiser and loss of a wrapped model and an optimiser.
    """
    import warnings

    import torch
    from opacus.data_loader import DPDataLoader

    # Hooks on a model whose inputs need no gradient, at every step.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    model, held = _parts(name, clients, folder)
    freeze_unknown(model)
    wrapped = module(model, batch_first=True, loss_reduction="mean")
    # By the rate, and not from a loader: that would draw one of as many batches as make an epoch.
    loaders = [
        DPDataLoader(torch.utils.data.TensorDataset(*one), sample_rate=BATCH / len(one[1]))
        for one in held
    ]
    trainable = [p for p in wrapped.parameters() if p.requires_grad]

    def batches(client: int) -> Any:
        while True:
            yield from loaders[client]

    def run_client(client: int) -> None:
        optimiser, loss = clipped(wrapped, torch.optim.SGD(trainable, lr=0.01))
        drawn = batches(client)
        for _ in range(LOCAL_STEPS):
            inputs, labels = next(drawn)
            optimiser.zero_grad()
            loss(wrapped(inputs), labels).backward()
            optimiser.step()

    while True:
        turns.wait()
        _averaged(wrapped, run_client, clients)
        turns.done()


def flower(name: str, clients: int, folder: Path, _turns: Turns) -> None:
    """The same by Flower's simulation, whose clients train with Opacus."""
    # What its processes print may not come between the lines of the turns.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Its processes import by name what this one runs as a script.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    import flower_opacus

    turns = flower_opacus.bench.Turns(lambda: sum(map(_seconds, _family())), out)

    def ended() -> None:
        out.write(json.dumps({"peak": sum(map(_peak, _family()))}) + "\n")
        out.flush()

    flower_opacus.rounds(name, clients, folder, turns, ended)


CONTENDERS = {
    "product": product,
    "plain": plain,
    "opacus": opacus,
    "ghost": ghost,
    "flower": flower,
}


def _family() -> list[int]:
    """This process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after = (entry / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(after[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for process in found:
        found.extend(children.get(process, []))
    return found


def _seconds(process: int) -> float:
    """Processor time of a process so far, its children that have ended included."""
    with contextlib.suppress(OSError):
        after = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, after[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _peak(process: int | str = "self") -> float:
    """Largest resident memory of a process so far, in MB; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def child(name: str, contender: str, clients: int, threads: int, folder: Path) -> None:
    """Run rounds whenever they are asked for."""
    import dpfedadamw  # noqa: F401  Before torch, as in a run: how long its threads spin.

    # isort: split
    import torch

    torch.set_num_threads(threads)
    try:
        CONTENDERS[contender](name, clients, folder, Turns())
    except EndedError:
        print(json.dumps({"peak": _peak()}))


def measure(
    name: str,
    clients: int,
    rounds: int,
    threads: int,
    contenders: Mapping[str, str],
) -> tuple[dict[str, list[dict[str, float]]], dict[str, float]]:
    """Times of each contender's rounds, the first left out, and its largest memory in MB.

    Args:
        name: The workload.
        clients: S.
        rounds: Of each contender.
        threads: Of each contender.
        contenders: Their interpreters, by name.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_data(name, clients, folder)
        command = [__file__, "--folder", made, "--only", name]
        command += ["--clients", str(clients), "--threads", str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        started = {
            one: subprocess.Popen(
                [interpreter, *command, "--child", one],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for one, interpreter in contenders.items()
        }
        times: dict[str, list[dict[str, float]]] = {one: [] for one in started}
        for one, process in started.items():
            _expect_ready(one, process)
        for turn in range(rounds + 1):
            for one, process in started.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("round\n")
                process.stdin.flush()
                told = process.stdout.readline()
                if not told:
                    raise SystemExit(f"{one} on {name} ended")
                if turn:
                    times[one].append(json.loads(told))
                _expect_ready(one, process)
        peaks = {}
        for one, process in started.items():
            rest, _ = process.communicate("end\n")
            peaks[one] = json.loads(rest.splitlines()[-1])["peak"]
    return times, peaks


def _has_flower(interpreter: str) -> bool:
    """Whether an interpreter has what the contender of Flower needs."""
    tried = [interpreter, "-c", "import flwr.simulation, ray, opacus"]
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _expect_ready(one: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise SystemExit(f"{one} could not begin")


def main() -> None:
    """Measure the models that are named, and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clients", type=int, help="S; ten for digits, else five")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-opacus", action="store_true")
    parser.add_argument("--flower-python", default=sys.executable)
    parser.add_argument("--child", choices=list(CONTENDERS))
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    if chosen.child:
        (name,) = chosen.only
        child(name, chosen.child, chosen.clients, chosen.threads, chosen.folder)
        return
    print(
        "| model | S | plain round, ms | product / plain, wall | processor | goal | "
        "Opacus / plain, wall | processor | ghost / plain, wall | processor | "
        "Flower / plain, wall | processor | memory, MB: product | goal | plain | "
        "Opacus | ghost | Flower |"
    )
    print("|" + "---|" * 18)
    optional = ("opacus", "ghost", "flower")
    contenders = dict.fromkeys(CONTENDERS, sys.executable) | {"flower": chosen.flower_python}
    if chosen.no_opacus:
        del contenders["opacus"], contenders["ghost"]
    if not _has_flower(chosen.flower_python):
        del contenders["flower"]
        sys.stderr.write(
            f"Flower with Opacus is left out: {chosen.flower_python} cannot import flwr, ray and "
            "opacus; --flower-python names an interpreter that can\n"
        )
    for name in chosen.only:
        work = WORKLOADS[name]
        clients = chosen.clients or work.clients
        times, peaks = measure(name, clients, chosen.rounds, chosen.threads, contenders)

        def ratio(one: str, kind: str, times: Any = times) -> float:
            pairs = zip(times[one], times["plain"], strict=True)
            return statistics.median(mine[kind] / theirs[kind] for mine, theirs in pairs)

        def of(one: str, kind: str, ratio: Any = ratio, times: Any = times) -> str:
            return f"{ratio(one, kind):.2f}" if one in times else ""

        milliseconds = statistics.median(one["wall"] for one in times["plain"]) * 1e3
        print(
            f"| {name} | {clients} | {milliseconds:.0f} | {ratio('product', 'wall'):.2f} | "
            f"{ratio('product', 'processor'):.2f} | {work.round_goal:g} | "
            f"{of('opacus', 'wall')} | {of('opacus', 'processor')} | "
            f"{of('ghost', 'wall')} | {of('ghost', 'processor')} | "
            f"{of('flower', 'wall')} | {of('flower', 'processor')} | "
            f"{peaks['product']:.0f} | {work.memory_goal or ''} | {peaks['plain']:.0f} | "
            + "".join(f"{peaks[one]:.0f} |" if one in peaks else " |" for one in optional),
            flush=True,
        )


if __name__ == "__main__":
    main()
