"""What happens to records outside the queries: scaling, dividing, tuning, logging."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from dpfedadamw import experiment
from dpfedadamw.accounting import record_level
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.federation.worker import Worker
from dpfedadamw.run import computing
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from tests.faults.client_level_faults import client_spec
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.runs import small_spec


def with_values(dataset, values):
    """The data set with other numbers in all its records."""
    changed = {
        part: dataclasses.replace(
            records, inputs=dataclasses.replace(records.inputs, values=values)
        )
        for part, records in (("train", dataset.train), ("test", dataset.test))
    }
    return dataclasses.replace(dataset, **changed)


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
            return with_values(dataset, values)

        patch.setattr(experiment, "read_data", reading)

    return patch


def of_all_numbers(values):
    return values.mean(), values.std()


def of_each_column(values):
    deviation = values.std(axis=0)
    return values.mean(axis=0), np.where(deviation > 0.0, deviation, 1.0)


def each_client_by_its_own(patch: Patch) -> None:
    client_data = computing.client_data

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

    patch.setattr(computing, "client_data", own)


def shared_records(patch: Patch) -> None:
    """Client 1 works on a few records of client 0 in place of its own."""
    client_data = computing.client_data

    def overlapping(*some):
        clients = client_data(*some)
        rows, labels = clients[1].inputs.rows.copy(), clients[1].labels.clone()
        rows[:3], labels[:3] = clients[0].inputs.rows[:3], clients[0].labels[:3]
        inputs = dataclasses.replace(clients[1].inputs, rows=rows)
        clients[1] = dataclasses.replace(clients[1], inputs=inputs, labels=labels)
        return clients

    patch.setattr(computing, "client_data", overlapping)


def exchanged(patch: Patch) -> None:
    """Clients 0 and 1, which hold equally many, work on each other's records."""
    client_data = computing.client_data

    def swapped(*some):
        clients = client_data(*some)
        if len(clients[0].labels) == len(clients[1].labels):
            clients[0], clients[1] = clients[1], clients[0]
        return clients

    patch.setattr(computing, "client_data", swapped)


def exchanged_in_a_round(patch: Patch) -> None:
    """The same, in the rounds alone: the evidence of the partition is that of before."""
    client_data, take_part, held = computing.client_data, Worker.take_part, []

    def holding(*some):
        clients = client_data(*some)
        # The auditor's probe divides records of its own, later on.
        held.extend(clients if not held else [])
        return clients

    def mistaken(self, part):
        if part.client < 2 and part.data is held[part.client]:
            part = dataclasses.replace(part, data=held[1 - part.client])
        return take_part(self, part)

    patch.setattr(computing, "client_data", holding)
    patch.setattr(Worker, "take_part", mistaken)


def with_contents(one, changed):
    """A client's records, of which some rows hold something else in memory.

    Args:
        one: The client's data.
        changed: What its rows [k] hold now, from all stored values and these rows.
    """
    values = one.inputs.values.copy()
    values[one.inputs.rows] = changed(values, one.inputs.rows)
    return dataclasses.replace(one, inputs=dataclasses.replace(one.inputs, values=values))


def contents_of_another_client(patch: Patch) -> None:
    """Client 1 names its own rows, under which lie client 0's records."""
    client_data = computing.client_data

    def swapped(*some):
        clients = client_data(*some)
        theirs = clients[0].inputs.rows
        clients[1] = with_contents(
            clients[1], lambda values, rows: values[np.resize(theirs, len(rows))]
        )
        return clients

    patch.setattr(computing, "client_data", swapped)


def contents_changed_after_round_0(patch: Patch) -> None:
    """From round 1 on all other clients train on records of client 0, in the place of their own."""
    client_data, take_part, held = computing.client_data, Worker.take_part, []

    def holding(*some):
        clients = client_data(*some)
        # The auditor's probe divides records of its own, later on.
        held.extend(clients if not held else [])
        return clients

    def changing(self, part):
        if part.current.index and part.client and part.data is held[part.client]:
            theirs = held[0].inputs.rows
            data = with_contents(
                part.data, lambda values, rows: values[np.resize(theirs, len(rows))]
            )
            part = dataclasses.replace(part, data=data)
        return take_part(self, part)

    patch.setattr(computing, "client_data", holding)
    patch.setattr(Worker, "take_part", changing)


def one_record_under_two_rows(patch: Patch) -> None:
    """Client 1's second row holds what its first one does."""
    client_data = computing.client_data

    def doubled(*some):
        clients = client_data(*some)
        clients[1] = with_contents(
            clients[1], lambda values, rows: values[[rows[0], rows[0], *rows[2:]]]
        )
        return clients

    patch.setattr(computing, "client_data", doubled)


def divided_by_another_seed(patch: Patch) -> None:
    partition = experiment.partition

    def another(data, *some):
        return partition(data.model_copy(update={"seed": data.seed + 1}), *some)

    patch.setattr(experiment, "partition", another)


def rotated(values):
    """Numbers that are not grey levels, as most tables have them."""
    mixing = np.random.default_rng(0).standard_normal((64, 64)) / 8.0
    return (values.reshape(len(values), 64) @ mixing).reshape(values.shape)


def between_the_extremes(change):
    """Continuous records, brought to the range from 0 to 1 by least and greatest numbers."""

    def patch(patch: Patch) -> None:
        read_data = experiment.read_data

        def reading(spec):
            dataset = read_data(spec)
            values = rotated(dataset.train.inputs.values.astype(np.float64))
            values = change(values, dataset.train.inputs.rows).astype(np.float32)
            return with_values(dataset, values)

        patch.setattr(experiment, "read_data", reading)

    return patch


def of_columns(values, rows):
    least, greatest = values[rows].min(0), values[rows].max(0)
    return (values - least) / (greatest - least)


def of_everything(values, rows):
    least, greatest = values[rows].min(), values[rows].max()
    return (values - least) / (greatest - least)


def tested_on_training_records(patch: Patch) -> None:
    """Accuracy is measured on records that were trained on, and published without noise."""
    read_data = experiment.read_data

    def reading(spec):
        dataset = read_data(spec)
        known = dataset.train.select(np.arange(len(dataset.test)))
        return dataclasses.replace(dataset, test=known)

    patch.setattr(experiment, "read_data", reading)


def evenly():
    return small_spec(overrides=("data.partition={kind: iid}", "data.clients=4"))


def clients_evenly():
    return client_spec(rounds=10)


def oversampled(patch: Patch) -> None:
    """Each client draws its records with replacement, to as many as it had."""
    client_data = computing.client_data

    def drawn(*some):
        clients = []
        for index, one in enumerate(client_data(*some)):
            chosen = np.random.default_rng(index).integers(len(one.labels), size=len(one.labels))
            inputs = one.inputs.select(chosen)
            clients.append(dataclasses.replace(one, inputs=inputs, labels=one.labels[chosen]))
        return clients

    patch.setattr(computing, "client_data", drawn)


def publishing(number):
    """A private number in every line of the public metrics."""

    def patch(patch: Patch) -> None:
        metrics_line, clients = engine_run.metrics_line, []
        client_data, training = computing.client_data, engine_setup._built

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

        patch.setattr(computing, "client_data", holding)
        patch.setattr(engine_setup, "_built", opening)
        patch.setattr(engine_run, "metrics_line", telling)

    return patch


def training_loss(clients, training):
    model = training.flat.module
    with torch.no_grad():
        losses = [record_loss(model(one.inputs[:]), one.labels) for one in clients]
    return {"train_loss": float(torch.cat(losses).mean())}


def loss_as_time(clients, training):
    return {"seconds": round(training_loss(clients, training)["train_loss"], 4)}


def gradient_norm(clients, training):
    everything = [training.engine(one.inputs[:], one.labels).raw_norms for one in clients]
    return {"gradient_norm": float(torch.cat(everything).median())}


def private_test_records():
    """A run whose test records nobody declared public."""
    return small_spec(overrides=("evaluation.public_test=false",))


def confusion_of_private_records(patch: Patch) -> None:
    """The confusion matrix is published whatever the spec says of the test records."""
    evaluate = engine_run.evaluate

    def telling(*some, finished=None, **more):
        declared = None if finished is None else finished.replace(public_test=True)
        return evaluate(*some, finished=declared, **more)

    patch.setattr(engine_run, "evaluate", telling)


def running_statistics_in_the_model(patch: Patch) -> None:
    """Means of the clients' records travel in the model's file, as batch normalisation has them."""
    write_weights, client_data = engine_run.checkpoints.write_weights, computing.client_data
    clients = []

    def holding(*some):
        clients.extend(client_data(*some))
        return list(clients)

    def writing(path, model):
        mean = torch.cat([one.inputs[:] for one in clients]).mean(0).flatten()
        model.register_buffer("running_mean", mean)
        write_weights(path, model)

    patch.setattr(computing, "client_data", holding)
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
            "columns-between-their-extremes",
            "each column is brought to the range from 0 to 1 by the least and greatest of all",
            "tabular pipelines with a min-max scaler",
            ("outside-budget",),
            small_spec,
            between_the_extremes(of_columns),
            says="minimum and maximum",
        ),
        Fault(
            "numbers-between-their-extremes",
            "all numbers are brought to the range from 0 to 1 by the least and greatest of all",
            "signal pipelines that normalise by the loudest recording",
            ("outside-budget",),
            small_spec,
            between_the_extremes(of_everything),
            says="minimum and maximum",
        ),
        Fault(
            "accuracy-of-training-records",
            "the records used to measure accuracy were also used for training, so that it tells "
            "of them",
            "scripts that split off a test set and then train on everything",
            ("outside-budget",),
            small_spec,
            tested_on_training_records,
            says="were also used for training",
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
            "records-exchanged-between-clients",
            "two clients of equal size work on each other's records, as sizes alone do not tell",
            "loaders that find a client's file by its place in a list",
            ("partition",),
            evenly,
            exchanged,
        ),
        Fault(
            "records-exchanged-in-a-round",
            "two clients are handed each other's records round by round, whatever was set up",
            "simulators that keep data in a list and clients in another order",
            ("partition",),
            evenly,
            exchanged_in_a_round,
            says="used other rows than its own",
        ),
        Fault(
            "clients-records-exchanged-in-a-round",
            "the same where whole clients are protected",
            "simulators that keep data in a list and clients in another order",
            ("partition",),
            clients_evenly,
            exchanged_in_a_round,
            says="used other rows than its own",
        ),
        Fault(
            "contents-of-another-client",
            "a client trains on another one's records under its own row numbers",
            "caches of decoded records that are looked up by a place in a list",
            ("partition",),
            small_spec,
            contents_of_another_client,
            says="those of a record of client 0",
        ),
        Fault(
            "contents-of-another-client-by-clients",
            "the same where whole clients are protected",
            "caches of decoded records that are looked up by a place in a list",
            ("partition",),
            clients_evenly,
            contents_of_another_client,
            says="those of a record of client 0",
        ),
        Fault(
            "contents-changed-after-round-0",
            "what lies under clients' rows changes once the evidence of it is written",
            "loaders that read again from a folder that somebody fills",
            ("partition",),
            small_spec,
            contents_changed_after_round_0,
            says="those of a record of client 0",
        ),
        Fault(
            "contents-changed-after-round-0-by-clients",
            "the same where whole clients are protected",
            "loaders that read again from a folder that somebody fills",
            ("partition",),
            clients_evenly,
            contents_changed_after_round_0,
            says="those of a record of client 0",
        ),
        Fault(
            "one-record-under-two-rows",
            "a record lies under two rows of a client, and moves a sum by twice the clipping norm",
            "oversampling that numbers its copies as records of their own",
            ("partition",),
            small_spec,
            one_record_under_two_rows,
            says="those of another record of its own",
        ),
        Fault(
            "one-record-under-two-rows-by-clients",
            "the same where whole clients are protected",
            "oversampling that numbers its copies as records of their own",
            ("partition",),
            clients_evenly,
            one_record_under_two_rows,
            says="those of another record of its own",
        ),
        Fault(
            "a-partition-of-another-seed",
            "records are divided by another seed than the spec's, so that nobody can divide again",
            "scripts that draw the partition from the global generator",
            ("partition",),
            small_spec,
            divided_by_another_seed,
            says="the spec's seed draws",
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
            "training-loss-in-the-digits-of-a-time",
            "the time of each round is the loss on the clients' records",
            "a covert channel; nobody reads running times digit by digit",
            ("disclosure",),
            small_spec,
            publishing(loss_as_time),
            says="its time is not a whole number of seconds",
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
            "confusion-matrix-of-private-test-records",
            "a matrix of the test records is published, though these are people of the clients'",
            "evaluation scripts that print a classification report",
            ("disclosure",),
            private_test_records,
            confusion_of_private_records,
            says="holds test_confusion",
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
