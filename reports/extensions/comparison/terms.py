"""What must agree before two runs may be ranked, and the words for where they do not.

Second step of the package. Unit, adjacency, δ, against whom, who adds the noise, at how many
clients a person is, data, partition, test set and mode of randomness have to be equal; ε has to lie
within a stated tolerance. Every value is fixed by the spec and the data, so which runs stand
together says nothing about who took part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reports import formatting
from reports.content import guarantee
from reports.content.units import unit_of
from reports.files import clean, integer, mapping, number
from reports.run_rows import ComparedRun

TOLERANCE = 0.01


class Towards(StrEnum):
    """Against whom ε has to agree at record level."""

    server = "server"
    third_party = "third-party"


@dataclass(frozen=True)
class Term:
    """One thing that must agree.

    Attributes:
        name: What it is.
        value: What is compared.
        shown: How a reader sees it.
        of_the_claim: Whether it only means something under a unit of privacy.
    """

    name: str
    value: Any
    shown: str
    of_the_claim: bool = False


@dataclass(frozen=True)
class Terms:
    """All that must agree but ε.

    Attributes:
        terms: In the order in which differences are said.
        heading: The terms as one line.
        towards: Against whom ε holds, in words; empty without privacy.
        view: Key of the view whose ε has to agree, empty without privacy.
    """

    terms: tuple[Term, ...]
    heading: str
    towards: str
    view: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What runs are grouped by."""
        return tuple((term.name, repr(term.value)) for term in self.terms)

    @property
    def claim(self) -> tuple[Any, ...]:
        """What an ε means: its unit, view, and what else belongs to the claim."""
        meant = [term for term in self.terms if term.of_the_claim or term.name == "unit"]
        return (self.view, *((term.name, repr(term.value)) for term in meant))

    @property
    def private(self) -> bool:
        """Whether differential privacy is claimed."""
        return bool(self.view)


def terms_of(run: ComparedRun, towards: Towards) -> Terms:
    """Return what must agree between this run and one it is ranked with.

    Args:
        run: The run.
        towards: Against whom ε holds at record level; at client level it is the third party.
    """
    source = run.source
    header, data = source.header, run.data
    unit = clean(header.get("unit"), 40) or "unstated"
    terms = [Term("unit", unit, unit_of(source).words.protected if source.private else "none")]
    whom, view = "", ""
    if source.private:
        # One number of a recorded loop holds against everybody.
        one_view = source.protects_clients or source.recorded
        # The losses of a private selection against the server are for insiders alone.
        seen = {view.key for view in run.views}
        hidden = bool(seen) and "server_worst_case" not in seen
        third = one_view or hidden or towards is Towards.third_party
        whom = "a third party" if third else "the server (worst case)"
        view = "third_party" if third else "server_worst_case"
        delta, adder = source.delta, unit_of(source).noise_added_by(source)
        terms += [
            Term("adjacency", header.get("adjacency"), guarantee.adjacency(source), True),
            Term("δ", delta, formatting.power(delta), True),
            Term("against", view, whom, True),
            *([] if source.recorded else [Term("noise added by", adder, f"the {adder}", True)]),
        ]
        if unit == "person":
            at = integer(header.get("clients_per_person")) or 1
            terms.append(Term("clients of a person", at, f"at most {at}", True))
    dataset = clean(data.get("dataset"), 200) or "unknown"
    terms.append(Term("data set", (dataset, header.get("data_sha256")), dataset))
    settings = {key: value for key, value in data.items() if key != "dataset"}
    terms += [Term(name, value, _printed(value)) for name, value in _leaves("data", settings)]
    terms.append(Term("client sizes", source.records, "others"))
    randomness = clean(header.get("randomness"), 40) or "unstated"
    terms.append(Term("randomness", randomness, randomness))
    return Terms(tuple(terms), _heading(run, terms), whom, view)


def _leaves(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [leaf for key, inner in value.items() for leaf in _leaves(f"{prefix}.{key}", inner)]


def _printed(value: Any) -> str:
    known = number(value)
    return formatting.plain(known, 6) if known is not None else clean(value, 80) or "none"


def _heading(run: ComparedRun, terms: Sequence[Term]) -> str:
    source = run.source
    shown = {term.name: term.shown for term in terms}
    clients, partition = number(run.data.get("clients")), mapping(run.data.get("partition"))
    parts = [f"{shown['data set']}, {formatting.count(clients)} clients"]
    if source.recorded:
        what = unit_of(source).words.counted
        parts = [f"a recorded loop, {formatting.count(sum(source.records))} {what}"]
    if partition:
        rest = ", ".join(
            f"{name} {value}"
            for name, value in formatting.settings(partition)
            if name != "kind" and value != "none"
        )
        kind = clean(partition.get("kind"), 60)
        parts.append(f"{kind} ({rest})" if rest else kind)
    if source.private:
        parts.append(f"{shown['unit']}, {shown['adjacency']}, δ = {shown['δ']}")
    if source.protects_clients and not source.recorded:
        parts.append(f"noise added by {shown['noise added by']}")
    return "; ".join([*parts, f"{shown['randomness']} randomness"])


def differences(one: Terms, other: Terms) -> list[str]:
    """Return where `one` differs from `other`, a phrase each, ε not among them.

    Where the units differ, adjacency, δ and noise are not compared. Settings of two kinds of
    partition are not compared either, nor settings that one of two data sets does not have.
    """
    mine = {term.name: term for term in one.terms}
    theirs = {term.name: term for term in other.terms}
    units_differ = mine["unit"].value != theirs["unit"].value
    kinds_differ = _value(mine.get(_KIND)) != _value(theirs.get(_KIND))
    data_differ = mine["data set"].shown != theirs["data set"].shown
    found: list[str] = []
    for name in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(name), theirs.get(name)
        if (a or b) is None or (a and b and a.value == b.value):
            continue
        if data_differ and name.startswith("data.") and not (_is_set(a) and _is_set(b)):
            continue
        if units_differ and any(term.of_the_claim for term in (a, b) if term):
            continue
        if name.startswith(f"{_PARTITION}.") and name != _KIND and kinds_differ:
            continue
        found.append(_difference(name, a, b))
    if len(found) > 1:
        # Other settings of the data make other client sizes; that need not be said as well.
        found = [text for text in found if text != _SIZES] or found
    return found


_PARTITION, _KIND = "data.partition", "data.partition.kind"
_SIZES = "the clients hold different numbers of records"


def _difference(name: str, a: Term | None, b: Term | None) -> str:
    left, right = (term.shown if term else "none" for term in (a, b))
    if name == "client sizes":
        return _SIZES
    if name == "unit":
        left, right = (
            guarantee.NO_PRIVACY if text == "none" else f"protection of {text}"
            for text in (left, right)
        )
        return f"{left} vs {right}"
    if left == right:
        return f"different records under the name {left}"
    return f"{name} {left} vs {right}"


def _is_set(term: Term | None) -> bool:
    return _value(term) not in (None, [])


def _value(term: Term | None) -> Any:
    return term.value if term else None


def clusters(values: Sequence[float | None], tolerance: float) -> list[list[int]]:
    """Divide losses into clusters whose largest is at most (1 + tolerance) times the smallest.

    Greedy from the smallest up, so that the result depends on the values alone.

    Args:
        values: ε ≥ 0 each; each None, an unknown loss, is a cluster of its own.
        tolerance: Relative, ≥ 0.

    Returns:
        Indices into `values`, clusters by rising ε, None last.
    """
    known = sorted((value, index) for index, value in enumerate(values) if value is not None)
    found: list[list[int]] = []
    smallest = 0.0
    for value, index in known:
        if found and value <= smallest * (1 + tolerance):
            found[-1].append(index)
        else:
            found.append([index])
            smallest = value
    return [*found, *([index] for index, value in enumerate(values) if value is None)]
