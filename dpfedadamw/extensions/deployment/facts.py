"""What the server and every client know of a federation before it begins: no record is in it.

`Facts` are stored in ``federation.json`` next to the resolved spec. A `Share` is one client's
records, which nobody else has. `experiment_of` makes the run's experiment from the facts and the
shares available here; of shares held elsewhere only number, shape and type are known. `people` has
what is known of whom records are about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw.data.datasets import Dataset, Records
from dpfedadamw.data.stored import StoredRecords, batchwise
from dpfedadamw.experiment import Experiment, prepare_with
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.people import PeopleFacts, Whose, counts_of, divided_people
from dpfedadamw.models import registry as models
from dpfedadamw.rundir import write_arrays
from dpfedadamw.spec import Spec
from dpfedadamw.spec.task_section import CLASSIFICATION
from dpfedadamw.storage.disk import PUBLIC_MODE, json_line, write_atomically
from dpfedadamw.storage.foreign import read_arrays, read_mapping

_ARRAYS = ("places", "rows", "values", "labels")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What all of a federation know.

    Attributes:
        records: How many records each client trains on, by client.
        stored: Shape of all stored records together, [m, …]; rows count in it.
        kind: NumPy's name of their type.
        classes: Number of classes.
        data_sha256: Digest of the data set, hexadecimal.
        salt_sha256: Digest of the secret that the clients share and the server lacks, hexadecimal.
        keys: Each client's public key, 64 hex digits, by client.
        people: What is known of whom records are about; None where the data do not say it.
    """

    records: tuple[int, ...]
    stored: tuple[int, ...]
    kind: str
    classes: int
    data_sha256: str
    salt_sha256: str
    keys: tuple[str, ...]
    people: PeopleFacts | None = None

    def write(self, path: Path) -> None:
        """Write them as JSON."""
        told = {name: value for name, value in asdict(self).items() if value is not None}
        write_atomically(path, json_line({"format": 1, **told}), PUBLIC_MODE)

    @classmethod
    def read(cls, path: Path) -> Facts:
        """Read what `write` wrote.

        Raises:
            DeploymentError: If it is something else.
        """
        try:
            found = read_mapping(path)
            if found.pop("format") != 1:
                raise ValueError("another format")
            lists: dict[str, Any] = {
                name: tuple(found.pop(name)) for name in ("records", "stored", "keys")
            }
            people = found.pop("people", None)
            return cls(
                **lists, **found, people=None if people is None else PeopleFacts.read(people)
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            kind = type(error).__name__
            raise DeploymentError(f"{path}: does not describe a federation ({kind})") from None

    def header(self, drop_outs: int) -> dict[str, Any]:
        """What the ledger's header says of clients that hold their records themselves.

        Args:
            drop_outs: How many of a round may give no answer.
        """
        sites = {"keys": list(self.keys), "drop_outs": drop_outs}
        people = {} if self.people is None else {"people_sha256": self.people.sha256}
        return {"selection_sha256": self.salt_sha256, **people, "sites": sites}


@dataclass(frozen=True, kw_only=True)
class Share:
    """Records that lie in one place: a client's, or those held out for testing.

    Attributes:
        places: Where they stand among all training, or all test records, int64 [r].
        rows: Which of the stored records they are, int64 [r].
        values: As they are stored, [r, …].
        labels: int64 [r].
        whose: Whom they are about, and other records of the same client that nobody trains on; None
            where the data do not say it.
    """

    places: NDArray[np.int64]
    rows: NDArray[np.int64]
    values: NDArray[Any]
    labels: NDArray[np.int64]
    whose: Whose | None = None

    @classmethod
    def of(cls, records: Records, places: NDArray[np.int64], whose: Whose | None = None) -> Share:
        """Some of a data set's records."""
        held = records.inputs
        rows = np.arange(len(held), dtype=np.int64) if held.rows is None else held.rows
        chosen = rows[places]
        return cls(
            places=places,
            rows=chosen,
            values=held.values[chosen],
            labels=records.labels[places],
            whose=whose,
        )

    def write(self, path: Path) -> None:
        """Write them for their owner alone (mode 0600)."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        if self.whose is not None:
            arrays |= {"people_rows": self.whose.rows, "people": self.whose.digests}
        write_arrays(path, arrays)

    @classmethod
    def read(cls, path: Path) -> Share:
        """Read what `write` wrote; nothing is unpickled.

        Raises:
            DeploymentError: If it is something else.
        """
        try:
            arrays = read_arrays(path)
            whose = None
            if "people" in arrays:
                whose = Whose(rows=arrays["people_rows"], digests=arrays["people"])
            found = cls(**{name: arrays[name] for name in _ARRAYS}, whose=whose)
            sizes = {len(getattr(found, name)) for name in _ARRAYS}
            numbers = (found.places, found.rows, found.labels)
            if len(sizes) != 1 or any(one.ndim != 1 or one.dtype.kind != "i" for one in numbers):
                raise ValueError("of different lengths, or not whole numbers")
        except (OSError, ValueError, KeyError, TypeError) as error:
            kind = type(error).__name__
            raise DeploymentError(f"{path}: holds no records ({kind})") from None
        return found

    def check(self, facts: Facts, whose: str = "records here") -> None:
        """Refuse records that are not of a federation.

        Args:
            facts: The federation's.
            whose: What the refusal calls them.

        Raises:
            DeploymentError: If their shape, type, row numbers, places or labels are not its own.
        """
        if self.values.shape[1:] != facts.stored[1:] or str(self.values.dtype) != facts.kind:
            raise DeploymentError(
                f"{whose} are {self.values.dtype} {list(self.values.shape[1:])}, and the "
                f"federation's are {facts.kind} {list(facts.stored[1:])}"
            )
        for found, most, what in (
            (self.rows, facts.stored[0], "row numbers"),
            (self.places, sum(facts.records), "places"),
            (self.labels, facts.classes, "labels"),
            *([] if self.whose is None else [(self.whose.rows, facts.stored[0], "people's rows")]),
        ):
            if len(found) and not 0 <= found.min() <= found.max() < most:
                raise DeploymentError(f"{whose} have {what} that the federation does not have")
        if (self.whose is None) != (facts.people is None):
            raise DeploymentError(
                f"{whose}: share.npz and federation.json disagree on whether people are named; "
                "restore both"
            )
        if self.whose is not None and not np.isin(self.rows, self.whose.rows).all():
            raise DeploymentError(f"{whose}: share.npz does not say whom each record is about")

    def stored_among(self, facts: Facts, spec: Spec) -> StoredRecords:
        """The records under the row numbers that they have among all, as the model reads them.

        Memory is taken for these alone: what nobody writes to, the operating system keeps no page
        for.

        Raises:
            DeploymentError: As of `check`.
        """
        self.check(facts)
        values = np.zeros(facts.stored, self.values.dtype)
        values[self.rows] = self.values
        return _as_read(values, self.rows, spec)


def experiment_of(
    spec: Spec, facts: Facts, test: Share | None, shares: Mapping[int, Share]
) -> Experiment:
    """The run's experiment, as far as it is known in this place.

    Args:
        spec: The resolved spec.
        facts: The federation's.
        test: The records that accuracy is measured on; None where nothing is measured.
        shares: Clients' records that are here, by client.

    Raises:
        DpfedadamwError: If the spec cannot run, or what is here does not belong to it.
    """
    if len(facts.records) != spec.data.clients or len(facts.keys) != spec.data.clients:
        raise DeploymentError(
            f"the federation has {len(facts.records)} clients, its spec {spec.data.clients}"
        )
    counts = counts_of(spec, facts.records, facts.people)
    count = sum(facts.records)
    owner = np.repeat(np.arange(len(facts.records), dtype=np.int64), facts.records)
    rows, labels = np.zeros(count, np.int64), np.zeros(count, np.int64)
    values = np.zeros(facts.stored, np.dtype(facts.kind))
    if len(shares) == len(facts.records):
        places = np.concatenate([share.places for share in shares.values()])
        if not np.array_equal(np.sort(places), np.arange(count)):
            raise DeploymentError(
                "the clients' records are not the ones that were divided among them"
            )
        for client, share in shares.items():
            share.check(facts, f"client {client}'s records")
            rows[share.places], labels[share.places] = share.rows, share.labels
            owner[share.places] = client
            values[share.rows] = share.values
    nothing = np.zeros((0, *facts.stored[1:]), facts.kind)
    tested = Records(_as_read(nothing, None, spec), np.zeros(0, np.int64))
    if test is not None:
        tested = Records(_as_read(test.values, None, spec), test.labels)
    dataset = Dataset(
        Records(_as_read(values, rows, spec), labels),
        tested,
        None,
        facts.classes,
        facts.data_sha256,
    )
    return prepare_with(spec, dataset, owner, torch.device("cpu"), counts)


def facts_of(
    experiment: Experiment, keys: Sequence[str], salt: bytes
) -> tuple[Facts, Share, list[Share]]:
    """Divide an experiment's data: the facts, the test records, and each client's share.

    Raises:
        DeploymentError: If its data cannot be divided so.
    """
    dataset, owner = experiment.dataset, experiment.owner
    if dataset.validation is not None:
        raise DeploymentError(
            "data.validation: a federation of machines cannot have public validation records yet; "
            "leave it out"
        )
    if dataset.task.kind != CLASSIFICATION:
        raise DeploymentError(
            f"task.kind: is {dataset.task.kind}, but a federation of machines supports only "
            "classification yet; use classification"
        )
    stored = dataset.train.inputs.values
    order = np.argsort(owner, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(owner, minlength=experiment.spec.data.clients))
    people, of_test, of_clients = divided_people(experiment, salt) or (None, None, None)
    shares = [
        Share.of(dataset.train, places, None if of_clients is None else of_clients[client])
        for client, places in enumerate(np.split(order, ends[:-1]))
    ]
    test = Share.of(dataset.test, np.arange(len(dataset.test), dtype=np.int64), of_test)
    facts = Facts(
        records=tuple(len(share.rows) for share in shares),
        stored=tuple(stored.shape),
        kind=str(stored.dtype),
        classes=dataset.classes,
        data_sha256=dataset.sha256,
        salt_sha256=hashlib.sha256(salt).hexdigest(),
        keys=tuple(keys),
        people=people,
    )
    return facts, test, shares


def _as_read(values: NDArray[Any], rows: NDArray[np.int64] | None, spec: Spec) -> StoredRecords:
    finishing = batchwise(models.preprocessing(spec.model))
    return StoredRecords(values, rows, finishing, augmentation=tuple(spec.data.augmentation or ()))
