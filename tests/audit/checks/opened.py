"""A correct run that was opened once, with changes made to what was read and not to its files.

Nothing of a correct run is wrong, so what a check says of a changed one is what it says of the
change. No file is written, so that a check is asked in milliseconds.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from audit.checks import Judgement, checks_of
from audit.errors import AuditError
from audit.reading.bundle import Bundle
from audit.verdict import Verdict


def changed(
    bundle: Bundle,
    *,
    spec: Callable[[dict[str, Any]], object] | None = None,
    header: Mapping[str, Any] | None = None,
    ledger: Mapping[str, Any] | None = None,
    claim: Callable[[dict[str, Any]], object] | None = None,
    evidence: Mapping[int, Mapping[str, Any]] | None = None,
    files: Mapping[str, Any] | None = None,
) -> Bundle:
    """The run with another spec, header, ledger, claim, or evidence of some rounds.

    Args:
        bundle: the run, which stays as it is.
        spec: changes a copy of the spec.
        header: other fields of the ledger's header.
        ledger: other fields of the ledger.
        claim: changes a copy of the claim.
        evidence: other arrays of a round, by its number.
        files: what other files hold, by the bundle's method that reads them.
    """
    read = bundle.readable_ledger
    if claim is not None:
        said = copy.deepcopy(dict(read.claim or {}))
        claim(said)
        read = replace(read, claim=said)
    read = replace(read, header=replace(bundle.header, **(header or {})), **(ledger or {}))
    promised = copy.deepcopy(dict(bundle.readable_spec))
    if spec is not None:
        spec(promised)
    # What was read or changed before stays; all else is read from the files when asked for.
    kept = OrderedDict(bundle._cache)
    for index, arrays in (evidence or {}).items():
        found = bundle.evidence_of_round(index, bundle.header.unit)
        kept[bundle.header.unit.name, index] = replace(found, **arrays), 0
    # A file that a copy cannot read is missing to that copy alone.
    run = replace(bundle, spec=promised, ledger=read, _cache=kept, _refused={})
    for name, content in (files or {}).items():
        assert hasattr(run, name)
        setattr(run, name, lambda content=content: content)
    return run


def judged(bundle: Bundle, name: str) -> Judgement:
    """What a check says of a run; that it cannot say anything is NOT VERIFIED, as in an audit."""
    check = next(one for one in checks_of(bundle.header.unit) if one.name == name)
    try:
        return check.judge(bundle)
    except AuditError as error:
        return Judgement(Verdict.NOT_VERIFIED, str(error))


def says(bundle: Bundle, name: str) -> tuple[str, str]:
    """Verdict and measurement of a check."""
    found = judged(bundle, name)
    return found.verdict.value, found.measurement


def charge(bundle: Bundle, place: int, **changes: Any) -> Bundle:
    """The run with another charge of a round of whole clients, by its place in the ledger."""
    spends = list(bundle.readable_ledger.round_spends)
    spends[place] = replace(spends[place], **changes)
    return changed(bundle, ledger={"round_spends": tuple(spends)})


def ended(bundle: Bundle, place: int, **changes: Any) -> Bundle:
    """The run with another account of a finished round, by its place in the ledger."""
    rounds = list(bundle.readable_ledger.rounds)
    rounds[place] = replace(rounds[place], **changes)
    return changed(bundle, ledger={"rounds": tuple(rounds)})
