"""What happens to records outside the queries: scaling, dividing, tuning, logging."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from dpfedadamw import experiment
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.privacy.accounting import record_level
from dpfedadamw.run import training as engine_run
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.runs import small_spec


def scaled_by(statistics):
    """All records, test records too, are scaled by statistics of the training records."""

    def patch(patch: Patch) -> None:
        read_data = experiment.read_data

        def reading(spec):
            dataset = read_data(spec)
            train = dataset.train.inputs
            values = train.values.astype(np.float64)
            mean, deviation = statistics(values[train.rows])
            values = ((values - mean) / deviation).astype(np.float32)
            changed = {
                part: dataclasses.replace(
                    records, inputs=dataclasses.replace(records.inputs, values=values)
                )
                for part, records in (("train", dataset.train), ("test", dataset.test))
            }
            return dataclasses.replace(dataset, **changed)

        patch.setattr(experiment, "read_data", reading)

    return patch


def of_all_numbers(values):
    return values.mean(), values.std()


def of_each_column(values):
    deviation = values.std(axis=0)
    return values.mean(axis=0), np.where(deviation > 0.0, deviation, 1.0)


def each_client_by_its_own(patch: Patch) -> None:
    client_data = engine_run.client_data

    def own(*some):
        clients = client_data(*some)
        changed = []
        for one in clients:
            values = one.inputs.values.astype(np.float64)
            mean, deviation = of_all_numbers(values[one.inputs.rows])
            scaled = ((values - mean) / deviation).astype(np.float32)
            inputs = dataclasses.replace(one.inputs, values=scaled)
            changed.append(dataclasses.replace(one, inputs=inputs))
        return changed

    patch.setattr(engine_run, "client_data", own)


def shared_records(patch: Patch) -> None:
    """Client 1 works on a few records of client 0 in place of its own."""
    client_data = engine_run.client_data

    def overlapping(*some):
        clients = client_data(*some)
        rows, labels = clients[1].inputs.rows.copy(), clients[1].labels.clone()
        rows[:3], labels[:3] = clients[0].inputs.rows[:3], clients[0].labels[:3]
        inputs = dataclasses.replace(clients[1].inputs, rows=rows)
        clients[1] = dataclasses.replace(clients[1], inputs=inputs, labels=labels)
        return clients

    patch.setattr(engine_run, "client_data", overlapping)


def oversampled(patch: Patch) -> None:
    """Each client draws its records with replacement, to as many as it had."""
    client_data = engine_run.client_data

    def drawn(*some):
        clients = []
        for index, one in enumerate(client_data(*some)):
            chosen = np.random.default_rng(index).integers(len(one.labels), size=len(one.labels))
            inputs = one.inputs.select(chosen)
            clients.append(dataclasses.replace(one, inputs=inputs, labels=one.labels[chosen]))
        return clients

    patch.setattr(engine_run, "client_data", drawn)


def publishing(number):
    """A private number in every line of the public metrics."""

    def patch(patch: Patch) -> None:
        metrics_line, clients = engine_run.metrics_line, []
        client_data, training = engine_run.client_data, engine_run._training

        def holding(*some):
            clients.extend(client_data(*some))
            return list(clients)

        opened = []

        def opening(*some, **more):
            opened.append(training(*some, **more))
            return opened[-1]

        def telling(*some, **more):
            line = metrics_line(*some, **more)
            return line | number(clients, opened[-1]) if opened else line

        patch.setattr(engine_run, "client_data", holding)
        patch.setattr(engine_run, "_training", opening)
        patch.setattr(engine_run, "metrics_line", telling)

    return patch


def training_loss(clients, training):
    model = training.flat.module
    with torch.no_grad():
        losses = [record_loss(model(one.inputs[:]), one.labels) for one in clients]
    return {"train_loss": float(torch.cat(losses).mean())}


def gradient_norm(clients, training):
    everything = [training.engine(one.inputs[:], one.labels).raw_norms for one in clients]
    return {"gradient_norm": float(torch.cat(everything).median())}


def running_statistics_in_the_model(patch: Patch) -> None:
    """Means of the clients' records travel in the model's file, as batch normalisation has them."""
    write_weights, client_data = engine_run.checkpoints.write_weights, engine_run.client_data
    clients = []

    def holding(*some):
        clients.extend(client_data(*some))
        return list(clients)

    def writing(path, model):
        mean = torch.cat([one.inputs[:] for one in clients]).mean(0).flatten()
        model.register_buffer("running_mean", mean)
        write_weights(path, model)

    patch.setattr(engine_run, "client_data", holding)
    patch.setattr(engine_run.checkpoints, "write_weights", writing)


def silent_about_tuning(patch: Patch) -> None:
    claim = record_level.claim

    def without(*some, **more):
        made = claim(*some, **more)
        said = [one for one in made["assumptions"] if "hyperparameters" not in one]
        return {**made, "assumptions": said}

    patch.setattr(record_level, "claim", without)


GROUP = FaultGroup(
    80,
    "Records and what is told of them",
    (
        Fault(
            "normalisation-from-private-data",
            "mean and deviation of all training records are released to every client, unpaid",
            "image pipelines with the data set's own mean and deviation",
            ("outside-budget",),
            small_spec,
            scaled_by(of_all_numbers),
        ),
        Fault(
            "normalisation-column-by-column",
            "each column is scaled by its own statistics, as a scaler fitted to the data does",
            "tabular pipelines with a standard scaler",
            ("outside-budget",),
            small_spec,
            scaled_by(of_each_column),
        ),
        Fault(
            "normalisation-by-each-client",
            "each client scales by its own statistics: one record moves all others' gradients",
            "cross-silo pipelines with local preprocessing",
            ("outside-budget",),
            small_spec,
            each_client_by_its_own,
        ),
        Fault(
            "a-record-in-two-clients",
            "two clients work on the same records, and what both spend on them adds up",
            "partitions that draw each client's records by itself",
            ("partition",),
            small_spec,
            shared_records,
        ),
        Fault(
            "records-drawn-with-replacement",
            "a client holds some records twice, which then weigh twice the clipping norm",
            "partitions that fill small clients up by oversampling",
            ("partition",),
            small_spec,
            oversampled,
        ),
        Fault(
            "training-loss-in-public-metrics",
            "the loss on the clients' records is logged without noise",
            "experiment trackers that log every scalar",
            ("disclosure",),
            small_spec,
            publishing(training_loss),
            says="train_loss",
        ),
        Fault(
            "gradient-norms-in-public-metrics",
            "the median norm of the clients' gradients is logged, to tune C by",
            "experiment trackers that log every scalar",
            ("disclosure",),
            small_spec,
            publishing(gradient_norm),
            says="gradient_norm",
        ),
        Fault(
            "batch-norm-statistics-in-the-model",
            "the published file holds means over the clients' records",
            "models with batch normalisation, saved with their buffers",
            ("disclosure",),
            small_spec,
            running_statistics_in_the_model,
            says="running_mean",
        ),
        Fault(
            "claim-silent-about-tuning",
            "the claim does not say that the choice of settings is not accounted",
            "papers and model cards that give ε alone",
            ("outside-budget",),
            small_spec,
            silent_about_tuning,
            says="tuned",
        ),
    ),
)
