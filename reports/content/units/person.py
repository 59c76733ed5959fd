"""Runs that protect people: each person's mean gradient is clipped, and the sum noised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reports import formatting
from reports.content import wording
from reports.content.units import Draws, Reader, Unit, View
from reports.content.units.record import RECORD, RecordLevel
from reports.files import integer
from reports.source import RunSource


def at_clients(source: RunSource) -> str:
    """Return at how many clients one person may be, in words."""
    count = integer(source.header.get("clients_per_person"))
    return "one client" if count in (None, 1) else f"up to {formatting.count(count)} clients"


class PersonLevel(RecordLevel):
    """People are protected, with all records that are about them."""

    def promise(self, source: RunSource, view: View) -> str:
        """Return whom the leading view covers, and whom it does not."""
        whom = f" This is for a person with all of their records, at {at_clients(source)}."
        return super().promise(source, view) + whom

    def counted(self, source: RunSource) -> str:
        """Return what is counted; no public file says how many people several clients share."""
        if integer(source.header.get("clients_per_person")) in (None, 1):
            return self.words.counted
        return f"{self.words.counted}, a person counting once at each client"

    def protected_in_sentence(self, source: RunSource) -> str:
        """Return the unit with what is counted as one."""
        return f"one person, with all of their records, at {at_clients(source)}"

    def readers(self, source: RunSource, internal: bool) -> list[Reader]:
        """Return who is protected from whom; the same people at other clients see no more."""
        return [
            replace_unless(one, "hold records of the same person", "")
            for one in super().readers(source, internal)
        ]

    def views(self, source: RunSource, internal: bool) -> list[View]:
        """Return the losses, those against the server of all clients that one person is at."""
        found = super().views(source, internal)
        if integer(source.header.get("clients_per_person")) in (None, 1):
            return found
        how = f", {at_clients(source).removeprefix('up to ')} together"
        return [
            view.model_copy(update={"method": f"{view.method.partition(', mixed')[0]}{how}"})
            for view in found
        ]

    def draws(self, source: RunSource) -> Draws:
        """Return how clients are drawn, and people within a client."""
        found, most = super().draws(source), integer(source.header.get("records_per_person"))
        text = found.statement.replace("record ", "person ").replace("records", "people")
        which = "all of their records" if most is None else f"at most {most} of their records"
        return replace(found, statement=f"{text} A drawn person contributes {which}.")

    def mechanism(self, source: RunSource) -> str:
        """Return the mechanism in words."""
        return (
            super()
            .mechanism(source)
            .replace(
                "each sampled record's gradient",
                "of each sampled person's records, the mean of their gradients",
            )
        )

    def trees(self, source: RunSource) -> list[Any]:
        """Return the trees of one client's part; of several together there is none."""
        if integer(source.header.get("clients_per_person")) in (None, 1):
            return super().trees(source)
        return []


def replace_unless(reader: Reader, what: str, by: str) -> Reader:
    """Return a reader without one of the conditions that end the protection."""
    unless = reader.unless.replace(f", or {what}", by)
    return reader.model_copy(update={"unless": unless})


PERSON = PersonLevel(
    replace(
        RECORD.words,
        protected="one person with all of their records",
        guess="that a given person’s records were used for training",
        counted="people",
        adjacencies={
            "add-remove": "add-or-remove-one-person",
            "replace-one": "replace-one-person",
        },
        public="the number of people of each client is public",
        meanings=wording.check_meanings("person"),
        hazards=tuple(wording.PERSON_HAZARDS),
    )
)
_REPLACED = replace(
    PERSON.words,
    protected="what the records of one person hold",
    guess="that a given person’s records read one way and not another",
    hazards=(wording.PRESENCE_NOT_HIDDEN, *PERSON.words.hazards),
)
PERSON_BY_SAMPLER = {
    "fixed-size": PersonLevel(
        replace(_REPLACED, queries="every Gaussian query in the ledger, on batches of fixed size,")
    ),
    "shuffled": PersonLevel(
        replace(
            _REPLACED,
            queries="every batch that one person can be in, as a Gaussian query without "
            "amplification,",
        )
    ),
}


def unit(source: RunSource) -> Unit:
    """Return the unit by how the people of a step are drawn."""
    return PERSON_BY_SAMPLER.get(str(source.header.get("sampling")), PERSON)
