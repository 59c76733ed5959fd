"""What lies between rows and the clipped sum: loading, collation, augmentation, local training.

The clipped sum itself is right in all of them, and so are the norms that are written down.
"""

from __future__ import annotations

import dataclasses

import torch

from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.federation.worker import Worker
from dpfedadamw.privacy.oracle import PrivateOracle
from dpfedadamw.run import computing
from dpfedadamw.vectors.flat import FlatParameters
from tests.faults.client_level_faults import client_spec
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.runs import small_spec


class Finished:
    """Inputs of a batch that are there already: a slice gives some of them."""

    def __init__(self, inputs):
        self._inputs = inputs

    def __getitem__(self, part):
        return self._inputs[part]


def changing_batches(change):
    """What is changed of a batch's inputs [b, …] once it is drawn."""

    def patch(patch: Patch) -> None:
        next_batch = PrivateOracle.next_batch

        def changed(self):
            next_batch(self)
            inputs, labels = self._batch
            if len(labels):
                self._batch = (Finished(change(inputs[:])), labels)

        patch.setattr(PrivateOracle, "next_batch", changed)

    return patch


def centred(inputs):
    return inputs - inputs.mean(0)


def by_the_largest(inputs):
    return inputs / inputs.abs().max().clamp(min=1e-12)


def mixed_with_the_next(inputs):
    return 0.7 * inputs + 0.3 * inputs.roll(-1, 0)


def brightened_to_the_batch(inputs):
    """Each image gets the batch's mean brightness."""
    means = inputs.flatten(1).mean(1)
    return inputs + (means.mean() - means).reshape(-1, *[1] * (inputs.dim() - 1))


def cut_from_the_one_before(inputs):
    changed = inputs.clone()
    flat = changed.flatten(1)
    half = flat.shape[1] // 2
    flat[1:, :half] = inputs.flatten(1)[:-1, :half]
    return changed


def places_in_use(inputs):
    """Up to which place some record [b, …] has anything but padding, which is 0; at least 1."""
    used = (inputs.flatten(1) != 0).any(0).nonzero()
    return 1 + int(used.max()) if len(used) else inputs[0].numel()


def cut_to_the_longest(inputs):
    """A mean over all places of a batch that is cut to its longest record, padding attended."""
    return inputs * (inputs[0].numel() / places_in_use(inputs))


def changing_values(change):
    """What is changed of all clients' records when they are divided, at both levels."""

    def patch(patch: Patch) -> None:
        client_data = computing.client_data

        def changed(records, owner, clients, device):
            inputs = records.inputs
            rows = slice(None) if inputs.rows is None else inputs.rows
            held = [(torch.from_numpy(inputs.values[rows][owner == one])) for one in range(clients)]
            values = inputs.values.copy().astype("float32")
            for one in range(clients):
                places = owner == one
                places = places.nonzero()[0] if inputs.rows is None else inputs.rows[places]
                values[places] = change(held, one).float().numpy()
            inputs = dataclasses.replace(inputs, values=values)
            return client_data(dataclasses.replace(records, inputs=inputs), owner, clients, device)

        patch.setattr(computing, "client_data", changed)

    return patch


def centred_on_the_client(held, one):
    return held[one].float() - held[one].float().mean(0)


def centred_on_all(held, one):
    return held[one].float() - torch.cat(held).float().mean(0)


def within_the_extremes_of_all(held, one):
    everything = torch.cat(held).float()
    least, greatest = everything.amin(), everything.amax()
    return (held[one].float() - least) / (greatest - least).clamp(min=1e-12)


def cut_to_the_longest_of_all(held, one):
    longest = max(places_in_use(records) for records in held if len(records))
    return held[one].float() * (held[one][0].numel() / longest)


def of_the_last_batch(patch: Patch) -> None:
    """A loader keeps a moving mean over all that it has handed out, and centres by it."""
    tensor, mean = StoredRecords._tensor, [0.0]

    def moving(self, part):
        batch = tensor(self, part)
        if not len(batch):
            return batch
        mean[0] = 0.5 * mean[0] + 0.5 * float(batch.mean())
        return batch - mean[0]

    patch.setattr(StoredRecords, "_tensor", moving)


def divided_by_the_sampled_batch(patch: Patch) -> None:
    """The answer is a mean over the batch that was drawn, whatever is written down."""
    gradient = PrivateOracle.gradient

    def mean(self, parameters):
        size = len(self._batch[1])
        return gradient(self, parameters) * (self._divisor / max(1, size))

    patch.setattr(PrivateOracle, "gradient", mean)


def stale_parameters(patch: Patch) -> None:
    """The module keeps the parameters that it began with: all that is trained goes nowhere."""
    assign = FlatParameters.assign
    first = {}

    def keeping(self, vector):
        first.setdefault(id(self), vector.detach().clone())
        assign(self, first[id(self)])

    patch.setattr(FlatParameters, "assign", keeping)


def trained_into_nothing(patch: Patch) -> None:
    """What is trained is a copy: every query is paid for, and the upload moves nothing."""
    take_part = Worker.take_part

    def idle(self, part):
        run, queries = self.rule.run, self.rule.queries_per_step

        class Rule:
            queries_per_step = queries

            def run(self, broadcast, oracle, evidence):
                upload = run(broadcast, oracle, evidence)
                return dataclasses.replace(upload, update=torch.zeros_like(upload.update))

        return take_part(dataclasses.replace(self, rule=Rule()), part)

    patch.setattr(Worker, "take_part", idle)


def where_the_last_client_stopped(patch: Patch) -> None:
    """One model serves all clients of a round, and nobody puts it back in between."""
    take_part = Worker.take_part

    def onward(self, part):
        run, before = self.rule.run, ONWARD.get(part.current.index, (None, None))

        class Rule:
            queries_per_step = self.rule.queries_per_step

            def run(self, broadcast, oracle, evidence):
                moved = broadcast
                if before[0] is part.current.chosen and part.place:
                    here = broadcast.parameters + before[1]
                    moved = dataclasses.replace(broadcast, parameters=here)
                upload = run(moved, oracle, evidence)
                ONWARD[part.current.index] = (part.current.chosen, upload.update)
                return upload

        return take_part(dataclasses.replace(self, rule=Rule()), part)

    patch.setattr(Worker, "take_part", onward)


ONWARD: dict[int, tuple[object, object]] = {}


def clients():
    return client_spec(rounds=6)


def augmented():
    return small_spec(overrides=("data.augmentation=[flip, crop]",))


def fault(name, breaks, seen, patch, spec=small_spec, caught_by=("sensitivity",), says="probe"):
    return Fault(name, breaks, seen, caught_by, spec, patch, says=says)


GROUP = FaultGroup(
    25,
    "Between the rows and the sum",
    (
        fault(
            "inputs-centred-by-the-batch",
            "each batch is centred by its own mean, so that one record moves all gradients",
            "collate functions that standardise what they stack",
            changing_batches(centred),
        ),
        fault(
            "inputs-divided-by-the-largest-of-the-batch",
            "each batch is divided by its largest number, which one record decides",
            "collate functions that bring inputs to a common range",
            changing_batches(by_the_largest),
        ),
        fault(
            "records-mixed-with-their-neighbours",
            "each record is mixed with the next of its batch before its gradient is taken",
            "training loops that add mixup to per-record clipping",
            changing_batches(mixed_with_the_next),
        ),
        fault(
            "patches-cut-from-other-records",
            "a part of each image is pasted over from the one before it",
            "augmentation libraries whose cutmix works on whole batches",
            changing_batches(cut_from_the_one_before),
            augmented,
        ),
        fault(
            "brightness-of-the-batch",
            "each image gets the mean brightness of its batch",
            "augmentation that matches histograms within a batch",
            changing_batches(brightened_to_the_batch),
            augmented,
        ),
        fault(
            "padding-that-is-attended",
            "batches are cut to their longest record and padding is attended: one record's length "
            "moves the gradients of all others",
            "fine-tuning scripts that pad each batch and hand over no attention mask",
            changing_batches(cut_to_the_longest),
            says="shorter",
        ),
        fault(
            "records-centred-by-their-client",
            "each client centres its records by their mean: a record that is not even drawn counts",
            "cross-silo pipelines with local preprocessing",
            changing_values(centred_on_the_client),
        ),
        fault(
            "records-centred-by-all-clients",
            "records are centred by the mean of all clients' records",
            "pipelines that fit a scaler before they divide the data",
            changing_values(centred_on_all),
        ),
        fault(
            "records-scaled-by-the-extremes-of-all",
            "records are brought to the range from 0 to 1 by the least and greatest number of all",
            "tabular pipelines with a min-max scaler",
            changing_values(within_the_extremes_of_all),
        ),
        fault(
            "a-moving-mean-in-the-loader",
            "a loader keeps a moving mean of what it hands out and centres by it",
            "online normalisation in data pipelines",
            of_the_last_batch,
        ),
        fault(
            "division-by-the-sampled-batch",
            "answers are means over the batch that was drawn, and the ledger's divisor is a fable",
            "training loops with a loss of reduction mean",
            divided_by_the_sampled_batch,
        ),
        fault(
            "parameters-of-another-model",
            "gradients are taken at the first parameters for ever: the trained adapters go nowhere",
            "LoRA scripts whose optimiser was made before the adapters",
            stale_parameters,
            says="does not depend on the model's parameters",
        ),
        fault(
            "a-copy-that-is-trained",
            "the optimiser holds a copy of the parameters: budget is spent, and nothing is learnt",
            "fine-tuning scripts that wrap the model after the optimiser was made",
            trained_into_nothing,
            caught_by=("uploads",),
            says="",
        ),
        fault(
            "clients-centred-by-all-clients",
            "records of all clients are centred by their common mean, though each counts C at most",
            "simulators that scale a data set before they divide it among clients",
            changing_values(centred_on_all),
            clients,
        ),
        fault(
            "clients-padded-to-the-longest-of-all",
            "texts of all clients are padded to the longest of all, and padding is attended",
            "simulators that read all clients' texts into one array",
            changing_values(cut_to_the_longest_of_all),
            clients,
            says="shorter",
        ),
        fault(
            "clients-that-go-on-from-one-another",
            "each client of a round begins where the one before it stopped",
            "simulators in which all clients share one model object",
            where_the_last_client_stopped,
            clients,
        ),
        fault(
            "clients-and-a-moving-mean",
            "a loader that all clients share keeps a moving mean and centres by it",
            "simulators with one data loader for all clients",
            of_the_last_batch,
            clients,
        ),
    ),
)
