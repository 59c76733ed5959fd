"""Whom records are about in a federation of machines, and how much of it each party knows.

A person is one digest, keyed with the clients' salt, wherever their records are. A client has the
digests of its own records, those that it may not train on included. The server's folder has those
of test records, and the server lacks the salt. All know the numbers in `PeopleFacts`, which are
counted where the data are divided.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.evidence.records import people_digests, whose_digest
from dpfedadamw.experiment import Counts, Experiment
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.privacy.sampling import People
from dpfedadamw.spec import Spec

_BYTES = 16
_DOMAIN = b"dpfedadamw people of one client 1\x00"


@dataclass(frozen=True, kw_only=True)
class PeopleFacts:
    """What all of a federation know where the data say whom records are about.

    Attributes:
        sha256: Commits to whom each record is about; the ledger's header has it too.
        shares_sha256: For each client, what commits to whom its own records are about.
        of_clients: How many people each client has; None where people are not protected, in which
            case nobody need know it.
        most_records: Most training records of one person; None where single records are not
            protected.
        clients_per_person: s, at how many clients anyone is at most, as was checked.
    """

    sha256: str
    shares_sha256: tuple[str, ...]
    of_clients: tuple[int, ...] | None
    most_records: int | None
    clients_per_person: int

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """What JSON has of them.

        Raises:
            ValueError: If it is something else.
            KeyError: If something is missing.
            TypeError: If something is of another type.
        """
        values = {**found}
        of_clients, digests = values.pop("of_clients"), values.pop("shares_sha256")
        counts = None if of_clients is None else tuple(of_clients)
        most, at = values["most_records"], values["clients_per_person"]
        numbers = [*(counts or ()), at, *([] if most is None else [most])]
        if any(type(one) is not int or one < 1 for one in numbers):
            raise ValueError("numbers that are none")
        return cls(of_clients=counts, shares_sha256=tuple(digests), **values)

    def check_share(self, whose: Whose, rows: NDArray[np.int64], client: int, salt: bytes) -> None:
        """Refuse a client's people that are not those which were counted.

        Args:
            whose: Whom its records are about.
            rows: Those of them that it trains on.
            client: Which client it is.
            salt: The clients' secret.

        Raises:
            DeploymentError: With what differs.
        """
        if whose.commitment(salt) not in self.shares_sha256[client : client + 1]:
            raise DeploymentError(
                "whom its records are about is not what the federation was made with"
            )
        each = np.bincount(whose.of(rows, 1).persons)
        if self.of_clients is not None and len(each) != self.of_clients[client]:
            raise DeploymentError(
                f"has {len(each)} people, but federation.json says {self.of_clients[client]} for "
                f"client {client}"
            )
        if self.most_records is not None and each.max(initial=0) > self.most_records:
            raise DeploymentError(
                f"has {each.max()} training records of one person, but federation.json says "
                f"{self.most_records} at most"
            )

    def check(self, spec: Spec) -> None:
        """Refuse a spec that promises people more than was counted at the division.

        Raises:
            DeploymentError: If it does.
        """
        at = spec.federation.clients_per_person
        most = getattr(spec.data, "most_records_per_person", None)
        if (spec.privacy.unit == "person") != (self.of_clients is not None):
            raise DeploymentError(
                f"privacy.unit: is {spec.privacy.unit}, but federation.json was made for another; "
                "restore spec.yaml, or make a new project"
            )
        for name, said, counted in (
            ("federation.clients_per_person", at, self.clients_per_person),
            ("data.most_records_per_person", most, self.most_records),
        ):
            if said is not None and counted is not None and said < counted:
                raise DeploymentError(
                    f"{name}: is {said}, but the data were divided under {counted}; restore "
                    "spec.yaml, or make a new project"
                )


def counts_of(spec: Spec, records: tuple[int, ...], people: PeopleFacts | None) -> Counts:
    """What a plan needs to know of records that are elsewhere.

    Args:
        spec: The federation's.
        records: How many each client trains on.
        people: What is known of the people; None where the data name none.

    Raises:
        DeploymentError: If the spec promises something else than was counted.
    """
    if (people is None) != (spec.data.person is None):
        raise DeploymentError(
            "data.person: spec.yaml and federation.json disagree on whether the data name people; "
            "restore them, or make a new project"
        )
    if people is None:
        return Counts(units=records)
    people.check(spec)
    units = records if people.of_clients is None else people.of_clients
    if not len(units) == len(people.shares_sha256) == len(records):
        raise DeploymentError(
            "federation.json: its counts of people are of other clients; restore it"
        )
    if any(count > held for count, held in zip(units, records, strict=True)):
        raise DeploymentError(
            "federation.json: counts more people than records at some client; restore it"
        )
    return Counts(units=units, most_records=people.most_records)


@dataclass(frozen=True, kw_only=True)
class Whose:
    """Whom some stored records are about.

    Attributes:
        rows: Which of the stored records, int64 [k], each once.
        digests: The person of each, uint8 [k, 16].
    """

    rows: NDArray[np.int64]
    digests: NDArray[np.uint8]

    def __post_init__(self) -> None:
        """Check the form.

        Raises:
            ValueError: If it is another.
        """
        rows, digests = self.rows, self.digests
        if rows.ndim != 1 or rows.dtype.kind != "i" or len(np.unique(rows)) != len(rows):
            raise ValueError("rows that are no different whole numbers")
        if digests.dtype != np.uint8 or digests.shape != (len(rows), _BYTES):
            raise ValueError("digests of another form")

    def commitment(self, salt: bytes) -> str:
        """What commits to them, hexadecimal; nobody without the salt can test a guess by it."""
        order = np.argsort(self.rows)
        digest = hashlib.sha256(_DOMAIN + salt + self.rows[order].astype("<i8").tobytes())
        digest.update(self.digests[order].tobytes())
        return digest.hexdigest()

    def of(self, rows: NDArray[np.int64], most: int) -> People:
        """The people of a client's records, as batches are drawn of them.

        Args:
            rows: The client's training records, in its own order, all of which are known here.
            most: Most records of a drawn person in a batch.
        """
        order = np.argsort(self.rows)
        digests = self.digests[order[np.searchsorted(self.rows, rows, sorter=order)]]
        numbers = np.unique(digests, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
        return People(numbers, most).among(np.arange(len(rows), dtype=np.int64))


def divided_people(
    experiment: Experiment, salt: bytes
) -> tuple[PeopleFacts, Whose, list[Whose]] | None:
    """Divide what is known of the people: facts for all, test records' people, and each client's.

    None where the data name no people.
    """
    dataset, owner, plan = experiment.dataset, experiment.owner, experiment.plan
    if dataset.people is None:
        return None
    people, clients = dataset.people, len(plan.records)
    digests = people_digests(people.stored, salt)
    every = np.arange(len(people.stored), dtype=np.int64)
    trained = every if dataset.train.inputs.rows is None else dataset.train.inputs.rows
    if people.test is not None:
        tested = np.arange(len(people.test), dtype=np.int64)
        test = Whose(rows=tested, digests=people_digests(people.test, salt))
        unused = np.setdiff1d(every, trained)
    else:
        tested = every[:0] if dataset.test.inputs.rows is None else dataset.test.inputs.rows
        test = Whose(rows=tested, digests=digests[tested])
        unused = np.setdiff1d(every, np.concatenate([trained, tested]))
    holder = np.full(len(every), -1, np.int64)
    holder[trained] = owner
    holder[unused] = _holders(experiment, trained, unused)
    shares = [
        Whose(rows=rows, digests=digests[rows])
        for rows in (np.flatnonzero(holder == client) for client in range(clients))
    ]
    facts = PeopleFacts(
        sha256=whose_digest(salt, people.stored, people.test),
        shares_sha256=tuple(share.commitment(salt) for share in shares),
        of_clients=plan.records if plan.unit.of_people else None,
        most_records=plan.most_records if plan.unit.name == "record" else None,
        clients_per_person=plan.clients_per_person,
    )
    return facts, test, shares


def _holders(
    experiment: Experiment, trained: NDArray[np.int64], unused: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The client of each record that a bound on records keeps out of training.

    It is the one that the data say. Where they say none, or one without any training record, it is
    one that trains on other records of the same person.
    """
    people, owner = experiment.dataset.people, experiment.owner.tolist()
    assert people is not None
    of_person = dict(zip(people.stored[trained].tolist(), owner, strict=True))
    found = [of_person[one] for one in people.stored[unused].tolist()]
    if experiment.spec.data.partition.kind == "column" and people.clients is not None:
        said = dict(zip(people.clients[trained].tolist(), owner, strict=True))
        own = people.clients[unused].tolist()
        found = [said.get(one, other) for one, other in zip(own, found, strict=True)]
    return np.array(found, np.int64)
