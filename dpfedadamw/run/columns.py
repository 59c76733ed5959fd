"""Before the first round: the bounds of columns that a run learns privately, once and for all.

Each client counts its records in public cells and sends the counts with noise
(`privacy.histograms`). What they cost is in the ledger, and on the disk, before any noise is drawn.
The bounds follow from what was sent. They stand in the ledger, and in model.json for prediction.

A run that was cut off between its charge and the bounds is not continued: what was sent may have
been seen, and a second answer to the same question was never paid for.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.datasets import Dataset, Records
from dpfedadamw.data.learnt import Bounds, bounds_of, from_plain, learnable, to_plain
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.privacy.charges import charges_of_columns
from dpfedadamw.privacy.histograms import counted, noised
from dpfedadamw.privacy.noise.randomness import RandomSource
from dpfedadamw.run.header import write_model_config
from dpfedadamw.run.journal import Journal
from dpfedadamw.rundir import RunDirectory, RunDirectoryError, write_arrays
from dpfedadamw.storage.foreign import read_arrays, read_mapping

# What its noise is drawn from; the streams of round 0, of which no other has this name.
PURPOSE = "columns"
EVIDENCE = "columns.npz"


def learnt(
    experiment: Experiment, run: RunDirectory, journal: Journal, randomness: RandomSource
) -> Experiment:
    """The experiment with the bounds that its run learns, or has learnt before it was cut off.

    Args:
        experiment: What is run.
        run: Its directory.
        journal: Its course.
        randomness: Where every stream of the run comes from.

    Raises:
        RunError: If the run was cut off in the middle of it (`refuse_half_done`).
    """
    queries, ledger = experiment.plan.column_queries, journal.ledger
    if queries is None:
        return experiment
    refuse_half_done(run, journal)
    if not ledger.of_kind("bounds"):
        journal.charge(charges_of_columns(experiment.plan), "query")
        counts = counts_of(experiment)
        sent = np.stack(
            [
                noised(
                    own,
                    queries,
                    randomness.stream(PURPOSE, 0, client, 1, ledger.history),
                    experiment.plan.gaussian_sampler,
                )
                for client, own in enumerate(counts)
            ]
        )
        write_arrays(run.evidence / EVIDENCE, {"counts": counts, "noised": sent})
        run.disk.sync_folder(run.evidence)
        columns = learnable(experiment.spec.data)
        bounds = bounds_of(columns, sent, queries.noise_multiplier)
        said = {"columns": to_plain(columns, bounds), "noised_sha256": digest(sent)}
        ledger.append("bounds", said)
    (entry,) = ledger.of_kind("bounds")
    found = with_bounds(experiment, from_plain(entry["columns"], experiment.dataset.input_shape))
    write_model_config(found, run)
    return found


def refuse_half_done(run: RunDirectory, journal: Journal) -> None:
    """Refuse a run that was charged for histograms and kept no bounds.

    Raises:
        RunError: If it is one.
    """
    if journal.ledger.of_kind("query") and not journal.ledger.of_kind("bounds"):
        raise RunError(
            f"{run.path}: this run was interrupted after it had paid for its column bounds and "
            "before they were saved; their noise is not drawn twice, so start a new run"
        )


def of_run(experiment: Experiment, run: RunDirectory) -> Experiment:
    """The experiment with the bounds that a run has learnt, as its model.json states them.

    Raises:
        DpfedadamwError: If it states none that a run writes, or lacks those that it must have.
    """
    if experiment.plan.column_queries is None:
        return experiment
    return with_bounds(experiment, bounds_in(run, experiment.dataset))


def bounds_in(run: RunDirectory, dataset: Dataset) -> Bounds:
    """The bounds that a run's model.json states.

    Raises:
        DpfedadamwError: If it states none that a run writes.
    """
    try:
        plain = read_mapping(run.model_config).get("learnt")
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{run.model_config}: cannot be read ({error})") from None
    bounds = from_plain(plain, dataset.input_shape)
    if bounds is None:
        raise RunDirectoryError(
            f"{run.model_config}: learnt: is missing; it holds the learnt bounds"
        )
    return bounds


def same_counts(experiment: Experiment, run: RunDirectory) -> bool:
    """Whether the data have the counts that a run's evidence says its clients had.

    Raises:
        OSError: If the evidence cannot be read.
        ValueError: If it is damaged.
    """
    kept = read_arrays(run.evidence / EVIDENCE).get("counts")
    return kept is not None and np.array_equal(kept, counts_of(experiment))


def with_bounds(experiment: Experiment, bounds: Bounds | None) -> Experiment:
    """The experiment, whose batches are held to bounds."""
    return replace(experiment, dataset=within(experiment.dataset, bounds))


def within(dataset: Dataset, bounds: Bounds | None) -> Dataset:
    """The data set, whose batches are held to bounds."""

    def of(records: Records) -> Records:
        return replace(records, inputs=replace(records.inputs, bounds=bounds))

    validation = dataset.validation
    return replace(
        dataset,
        train=of(dataset.train),
        test=of(dataset.test),
        validation=None if validation is None else of(validation),
    )


def counts_of(experiment: Experiment) -> NDArray[np.int64]:
    """Each client's counts, [clients, sum of bins]: clean, and for its evidence alone."""
    queries, records = experiment.plan.column_queries, experiment.dataset.train.inputs
    assert queries is not None
    places = [column.place for column in learnable(experiment.spec.data)]
    values = records.stored(slice(None))[:, places]
    return np.stack(
        [
            counted(values[experiment.owner == client], queries.bins)
            for client in range(len(experiment.plan.records))
        ]
    )


def digest(sent: NDArray[np.float64]) -> str:
    """SHA-256 (hex) of what the clients sent, [clients, cells], as little-endian float64."""
    return hashlib.sha256(sent.astype("<f8").tobytes()).hexdigest()
