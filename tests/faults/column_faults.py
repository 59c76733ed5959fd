"""Bounds of columns that are learnt from private records, and not in the way that is paid for."""

from __future__ import annotations

import dataclasses

import numpy as np

from dpfedadamw.accounting import record_level
from dpfedadamw.run import columns
from dpfedadamw.run.journal import Journal
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.tables import learning_spec


def without_noise(patch: Patch) -> None:
    """What is sent is the counts themselves."""
    patch.setattr(columns, "noised", lambda counts, *_: counts.astype(np.float64))


def read_off_clean_counts(patch: Patch) -> None:
    """Noised histograms are sent and kept, and the bounds are those of the counts."""
    clean = {}
    counts_of, bounds_of = columns.counts_of, columns.bounds_of

    def counting(experiment):
        clean["counts"] = counts_of(experiment)
        return clean["counts"]

    def bounds(found, _, noise_multiplier):
        return bounds_of(found, clean["counts"].astype(np.float64), noise_multiplier)

    patch.setattr(columns, "counts_of", counting)
    patch.setattr(columns, "bounds_of", bounds)


def half_the_noise(patch: Patch) -> None:
    """Counts have half the noise that is charged for them."""
    noised = columns.noised

    def less(counts, queries, stream, method):
        half = dataclasses.replace(queries, noise_multiplier=queries.noise_multiplier / 2)
        return noised(counts, half, stream, method)

    patch.setattr(columns, "noised", less)


def not_charged(patch: Patch) -> None:
    """The histograms are asked for, and no line of the ledger says so."""
    charge = Journal.charge

    def rounds_alone(self, spends, kind="spend"):
        if kind == "spend":
            charge(self, spends, kind)

    patch.setattr(Journal, "charge", rounds_alone)


def left_out(patch: Patch) -> None:
    """The ledger charges the histograms, and no ε counts them."""
    patch.setattr(record_level, "queries_from_ledger", lambda lines: ())


def counted_twice(patch: Patch) -> None:
    """Every record is counted twice in each histogram, with noise for one."""
    counts_of = columns.counts_of
    patch.setattr(columns, "counts_of", lambda experiment: 2 * counts_of(experiment))


def of_one_stream(patch: Patch) -> None:
    """All clients draw the noise on their histograms from one stream."""
    noised, drawn = columns.noised, {}

    def same(counts, queries, stream, method):
        if "noise" not in drawn:
            drawn["noise"] = noised(np.zeros_like(counts), queries, stream, method)
        return counts + drawn["noise"]

    patch.setattr(columns, "noised", same)


GROUP = FaultGroup(
    38,
    "Bounds of columns that are learnt",
    (
        Fault(
            "bounds-of-clean-counts",
            "the bounds of a column are quantiles of the records themselves, while noised "
            "histograms are what the evidence shows",
            "preprocessing that fits scalers before training",
            ("columns",),
            learning_spec,
            read_off_clean_counts,
            says="not those that the noised histograms give",
        ),
        Fault(
            "histograms-without-noise",
            "the histograms by which bounds are learnt leave the clients without noise",
            "federated analytics in front of private training",
            ("columns",),
            learning_spec,
            without_noise,
            says="less than the standard deviation",
        ),
        Fault(
            "half-the-noise-on-histograms",
            "the histograms by which bounds are learnt have half the noise that is charged",
            "noise that is scaled to a sensitivity of ½",
            ("columns",),
            learning_spec,
            half_the_noise,
            says="less than the standard deviation",
        ),
        Fault(
            "histograms-not-charged",
            "bounds are learnt from private histograms, and neither ledger nor ε knows of it",
            "private quantiles whose cost is left out of the total",
            ("promise",),
            learning_spec,
            not_charged,
            says="not every client is charged",
        ),
        Fault(
            "histograms-left-out-of-epsilon",
            "the histograms of columns are charged to the ledger, and ε is that of rounds alone",
            "accountants that are stepped by the optimiser",
            ("accounting", "views"),
            learning_spec,
            left_out,
        ),
        Fault(
            "records-counted-twice",
            "each record is counted twice in a histogram whose noise covers one count",
            "histograms over rows that were repeated to balance classes",
            ("columns",),
            learning_spec,
            counted_twice,
            says="does not count each record of a client once",
        ),
        Fault(
            "one-noise-for-all-histograms",
            "all clients add the same noise to their histograms, so that it can be subtracted",
            "simulations that seed each client alike",
            ("columns",),
            learning_spec,
            of_one_stream,
            says="the same noise",
        ),
    ),
)
