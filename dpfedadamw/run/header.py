"""What a run writes of itself: ledger header, public metrics, how to rebuild the model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from dpfedadamw import __version__
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.data.learnt import learnable, to_plain
from dpfedadamw.evidence.commitments import BLAKE3
from dpfedadamw.evidence.exchanges import frozen_digest
from dpfedadamw.evidence.records import are_told, contents_digest, whose_digest
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.messages import pack
from dpfedadamw.models.registry import MODELS
from dpfedadamw.privacy.noise.key_tree import DERIVATION
from dpfedadamw.privacy.noise.randomness import RandomSource
from dpfedadamw.run.checkpoints import RoundNumbers, tensor_list
from dpfedadamw.run.evaluation import Evaluation
from dpfedadamw.run.start_options import StartOptions
from dpfedadamw.rundir import RunDirectory, RunDirectoryError
from dpfedadamw.spec import Spec
from dpfedadamw.spec.task_section import CLASSIFICATION
from dpfedadamw.storage.disk import write_json
from dpfedadamw.storage.foreign import read_mapping, read_salt
from dpfedadamw.units.registry import unit_named

if TYPE_CHECKING:
    from dpfedadamw.canaries.engine import CanaryOrder

REPRODUCIBLE = "reproducible mode: not a privacy guarantee to anyone who knows the seed"
NO_PRIVACY = "no differential privacy"
UNACCOUNTED_TUNING = (
    "the hyper-parameters were chosen by looking at the private records, and no ε covers that "
    "choice"
)


def qualifications(spec: Spec, order: CanaryOrder | None = None) -> list[str]:
    """What limits every claim about a run's artefacts, and so stands on each of them."""
    if order is not None:
        planted = f"audit run with {order.count} planted canaries: its model is not for release"
        return [planted, *qualifications(spec)]
    if not unit_named(spec.privacy.unit).private:
        # That a known seed voids the guarantee would read as if there were one.
        return [NO_PRIVACY]
    return [
        *([UNACCOUNTED_TUNING] if spec.tune.selection == "unaccounted" else []),
        *([REPRODUCIBLE] if spec.randomness.mode == "reproducible" else []),
    ]


def header(
    experiment: Experiment,
    run: RunDirectory,
    spec_text: bytes,
    randomness: RandomSource,
    reserved: Mapping[str, Any] | None,
    options: StartOptions,
) -> dict[str, Any]:
    """The ledger's first entry: what the run promises, and from which spec and data.

    Args:
        experiment: What is run.
        run: Where it is written.
        spec_text: Bytes of the resolved spec.
        randomness: For the commitment to its key.
        reserved: What is reserved of the data set's budget; None where there is none.
        options: What it is started with, and when.
    """
    order, trial, challenged = options.canaries, options.trial, options.challenged
    assert options.created is not None
    spec, plan = experiment.spec, experiment.plan
    private, frozen = plan.private, frozen_digest(experiment.model)
    return {
        "format": 1,
        "run": run.identifier,
        "spec_sha256": hashlib.sha256(spec_text).hexdigest(),
        "data_sha256": experiment.dataset.sha256,
        "package": __version__,
        "created": f"{options.created:%Y-%m-%dT%H:%M:%SZ}",
        "unit": plan.unit.name,
        "adjacency": plan.adjacency,
        "delta": plan.delta,
        "rounds": plan.rounds,
        "local_steps": plan.local_steps,
        "clients": len(plan.records),
        "clients_per_round": plan.clients_per_round,
        "client_sampling": plan.client_sampling,
        "records": list(plan.records),
        **people_of(experiment),
        "sampling": plan.sampling.event_kind,
        "expected_batch_size": plan.fixed_divisor(0),
        **({"sampling_rate": plan.stated_rate} if plan.stated_rate is not None else {}),
        **({"rate_assumption": plan.rate_assumption} if plan.rate_assumption is not None else {}),
        "clipping_norm": plan.clipping_norm if private else None,
        "noise_multiplier": plan.noise_multiplier if private else None,
        "participation": plan.participation,
        "noise_added_by": plan.noise_added_by,
        "sparsification": asdict(plan.sparsification) if plan.sparsification else None,
        "adaptation": asdict(plan.adaptation) if plan.adaptation else None,
        **({"max_epsilon": plan.max_epsilon} if plan.max_epsilon is not None else {}),
        **({"column_queries": asdict(plan.column_queries)} if plan.column_queries else {}),
        **({"budget": reserved} if reserved is not None else {}),
        **({"tuning": trial.header} if trial is not None else {}),
        **({"grid": asdict(plan.unit.grid)} if plan.unit.grid is not None else {}),
        # How the times in metrics.jsonl are written: what is written finer broke a promise.
        "seconds": "whole",
        "precision": spec.compute.precision,
        "randomness": spec.randomness.mode,
        "qualifications": qualifications(spec, order),
        **({"canaries": asdict(order)} if order is not None else {}),
        "commitment": randomness.commitment,
        **({"streams": DERIVATION} if randomness.mode == "release" else {}),
        **({"public_coin": challenged.header} if challenged is not None else {}),
        "seed": spec.randomness.seed,
        # Loss distributions, which carry the claim, are composed here; RDP is dp-accounting's.
        "accountant": {"library": "dpfedadamw", "version": __version__},
        "parameters": sum(p.numel() for p in experiment.model.parameters() if p.requires_grad),
        # The key that draws which evidence is kept: it cannot be chosen once that is known.
        "selection_sha256": hashlib.sha256(read_salt(run.evidence / "salt")).hexdigest(),
        **({"commitments": BLAKE3} if private else {}),
        # What the published weights will be called, before there are any.
        "tensors_sha256": tensors_digest(experiment.model),
        # What every round computes with and none may move.
        **({"frozen_sha256": frozen} if frozen is not None else {}),
    }


def people_of(experiment: Experiment) -> dict[str, Any]:
    """What the header says of records where "records" are people: each client's rows, m and s."""
    plan = experiment.plan
    if not plan.unit.of_people:
        return {}
    return {
        "rows": np.bincount(experiment.owner, minlength=len(plan.records)).tolist(),
        "records_per_person": plan.records_per_person,
        "clients_per_person": plan.clients_per_person,
    }


def contents_committed(experiment: Experiment, run: RunDirectory) -> dict[str, str]:
    """What the ledger's header says of the records: what lies under each row, and who it is about.

    Args:
        experiment: What is run.
        run: Where it is written, with its salt.
    """
    if not experiment.plan.private:
        return {}
    dataset, salt = experiment.dataset, read_salt(run.evidence / "salt")
    found, people = {}, dataset.people
    if are_told(dataset.train.inputs, dataset.test.inputs):
        found["contents_sha256"] = contents_digest(salt, dataset.train.inputs)
    if people is not None:
        found["people_sha256"] = whose_digest(salt, people.stored, people.test)
    return found


def initial_weights(experiment: Experiment, start: ServerState) -> dict[str, Any]:
    """What the ledger's header says of the weights that training begins with.

    Weights that were trained on clients' records beforehand would carry these without any noise, so
    that a claim covers only weights which can be derived without a record.

    Args:
        experiment: What is run.
        start: The server's state before the first round.

    Returns:
        Digest of the first broadcast (``broadcast_sha256``), and ``origin``: "seed" (a model of
        this package, made from the spec's public seed), "file" (published weights, with their name
        and ``file_sha256``; what is new in the model comes from the seed), "code" (made by somebody
        else's code) or "given" (handed over as a module: nobody can derive them).
    """
    keys, published = experiment.spec.model, origin_of(experiment.model)
    entry, origin = MODELS[keys.name], {"origin": "seed"}
    if not entry.rebuilt:
        origin = {"origin": "given"}
    elif entry.names_code(keys) is not None or MODELS.origin(keys.name):
        origin = {"origin": "code"}
    elif published is not None:
        digest = published["weights_sha256"]
        origin = {"origin": "file", "file": published["source"], "file_sha256": digest}
    message = pack(start.parameters, start.state)
    return {"broadcast_sha256": hashlib.sha256(message).hexdigest(), **origin}


class WholeSeconds:
    """The times of rounds as they are published: whole numbers that add up to all, rounded up.

    The digits of a finer time could carry anything, as could its jitter: how long a step takes
    depends on its records. A quick round shows 0, and every so often 1.
    """

    def __init__(self) -> None:
        self._total = 0.0

    def of(self, seconds: float) -> int:
        """Return by how many whole seconds a round of so many makes the total longer."""
        before = math.ceil(self._total)
        self._total += seconds
        return math.ceil(self._total) - before


def metrics_line(
    completed: int,
    evaluation: Evaluation,
    numbers: RoundNumbers | None,
    seconds: int | None,
    order: CanaryOrder | None = None,
    epsilon: float | None = None,
) -> dict[str, Any]:
    """One line of the public metrics.

    Args:
        completed: Rounds completed.
        evaluation: Test metrics, where the round was evaluated.
        numbers: The round's; None for the untrained model.
        seconds: Its time (`WholeSeconds`); None where it may not be told, or the process that knew
            it was killed.
        order: What canaries are planted; None in a run that is no audit run.
        epsilon: What the rounds so far spent (`RunPlan.epsilon_after`); None where nothing is
            told.

    Returns:
        The line; with further measures of other tasks than a classification (test_rmse, test_mae,
        test_r2, test_micro_f1); where training records were evaluated, which no private run does,
        with train_accuracy and train_loss. After the last round also the measures of a finished
        model (test_auc and others); test_classes, a pair for each class: its test records and how
        many of them were classified rightly; and where test records are public test_confusion,
        and test_own, metrics of the user's own by name.
    """
    line: dict[str, Any] = {
        **({"canaries": order.count} if order is not None else {}),
        "round": completed,
        "learning_rate": numbers.learning_rate if numbers else None,
        "test_accuracy": evaluation.accuracy,
        "test_loss": evaluation.loss,
        "validation_accuracy": evaluation.validation_accuracy,
        "bytes_up": numbers.bytes_up if numbers else 0,
        "bytes_down": numbers.bytes_down if numbers else 0,
        "seconds": seconds,
        **({"epsilon": epsilon} if epsilon is not None else {}),
    }
    line |= {f"test_{name}": value for name, value in evaluation.measures.items()}
    last = numbers is not None and numbers.last
    if evaluation.validation_loss is not None:
        line["validation_loss"] = evaluation.validation_loss
    if evaluation.train_accuracy is not None or evaluation.train_loss is not None:
        line |= {"train_accuracy": evaluation.train_accuracy, "train_loss": evaluation.train_loss}
    if last and evaluation.by_class:
        line["test_classes"] = [list(pair) for pair in evaluation.by_class]
    if last and evaluation.confusion is not None:
        line["test_confusion"] = evaluation.confusion
    if last and evaluation.own:
        line["test_own"] = dict(evaluation.own)
    return line


def origin_of(model: nn.Module) -> dict[str, str] | None:
    """Source, revision and digest of the published weights that a model began with, if any."""
    found = getattr(model, "origin", None)
    # A module of somebody else may call something of its own ``origin``.
    return found if found and isinstance(found, dict) else None


def source_of(spec: Spec) -> dict[str, str] | None:
    """Digests of the source that builds a model of one's own, by name; None of any other."""
    made_of = MODELS[spec.model.name].made_of
    return None if made_of is None else dict(made_of(spec.model))


def refuse_changed_source(run: RunDirectory, spec: Spec) -> None:
    """Refuse to go on with another source of a model of one's own, by the names of its files.

    Raises:
        RunDirectoryError: If it is not what the run began with.
    """
    found = source_of(spec)
    if found is None:
        return
    before = _recorded(run, "source") or {}
    changed = sorted(name for name in {*before, *found} if before.get(name) != found.get(name))
    if changed:
        raise RunDirectoryError(
            f"{run.path}: the model's source has changed since the run began "
            f"({', '.join(changed)}); restore it, or start a new run"
        )


def recorded_origin(run: RunDirectory) -> dict[str, str] | None:
    """What `origin_of` said when the run began.

    Raises:
        RunDirectoryError: If the run's model.json cannot be read.
    """
    return _recorded(run, "base")


def _recorded(run: RunDirectory, key: str) -> dict[str, str] | None:
    try:
        found: dict[str, str] | None = read_mapping(run.model_config).get(key)
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{run.model_config}: cannot be read ({error})") from None
    return found


def write_model_config(
    experiment: Experiment, run: RunDirectory, order: CanaryOrder | None = None
) -> None:
    """Write what is needed to rebuild the model around its weights."""
    source, task = source_of(experiment.spec), experiment.spec.task
    dataset = experiment.dataset
    bounds = dataset.train.inputs.bounds
    config = {
        "format": 1,
        "model": experiment.spec.to_mapping()["model"],
        "input_shape": list(experiment.dataset.input_shape),
        "classes": experiment.dataset.classes,
        # Who loads the model must know what its outputs are; a class each where nothing is said.
        **({"task": task.to_mapping()} if task.kind != CLASSIFICATION else {}),
        # What its answers are called, and how further records are read.
        **({"labels": list(dataset.labels)} if dataset.labels else {}),
        **({"inputs": dict(dataset.read_by)} if dataset.read_by else {}),
        # What is done to them once they are read: bounds that the run learnt.
        **({"learnt": to_plain(learnable(experiment.spec.data), bounds)} if bounds else {}),
        "parameters": sum(p.numel() for p in experiment.model.parameters()),
        "tensors": tensor_list(experiment.model),
        # Which published weights the file with the trained ones belongs to.
        "base": origin_of(experiment.model),
        # By which source a model of one's own was built.
        **({"source": source} if source is not None else {}),
        "qualifications": qualifications(experiment.spec, order),
        **({"canaries": order.count} if order is not None else {}),
    }
    write_json(run.model_config, config)


def tensors_digest(model: nn.Module) -> str:
    """Sha256 (hex) of the list of the model's tensors, as canonical JSON."""
    text = json.dumps(tensor_list(model), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
