"""Whether the ledger charges the histograms of columns that the spec has learnt, and no others.

A part of the check "promise", loaded where spec or ledger know of any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.checks.shared.agreement import differs
from audit.reading.columns import promised
from audit.reading.ledger import Header, Ledger
from audit.untrusted import fields


def concern(spec: Mapping[str, Any], ledger: Ledger, header: Header) -> bool:
    """Whether there is anything to compare.

    Raises:
        FieldError: the spec is damaged.
    """
    noted = header.column_queries is not None or ledger.queries or ledger.answers
    return bool(noted or promised(spec))


def query_faults(
    spec: Mapping[str, Any], ledger: Ledger, header: Header, reasons: list[str]
) -> None:
    """Note where spec, header and charges do not name the same histograms, noise and clients.

    Raises:
        FieldError: the spec is damaged.
    """
    columns, noted = promised(spec), header.column_queries
    if not columns:
        reasons.append("the ledger has learnt bounds, but the spec has none")
        return
    sigma = fields.positive(fields.mapping(spec, "data"), "column_noise_multiplier")
    names, bins = tuple(one.name for one in columns), tuple(one.bins for one in columns)
    if noted is None:
        reasons.append("the spec has learnt bounds of columns, but the ledger's header has none")
    elif (noted.columns, noted.bins) != (names, bins):
        reasons.append("column_queries: the header's columns and cells are not the spec's")
    elif differs(noted.noise_multiplier, sigma):
        reasons.append("column_queries: the header's noise_multiplier is not the spec's")
    if header.adjacency != "add-remove":
        reasons.append(f"histograms of columns have no accounting under {header.adjacency}")
    for query in ledger.queries:
        where = f"ledger.jsonl:{query.line}"
        if (query.columns, query.bins) != (names, bins):
            reasons.append(f"{where}: charges columns or cells that are not the spec's")
        if differs(query.noise_multiplier, sigma):
            reasons.append(f"{where}: noise_multiplier is not the spec's column_noise_multiplier")
        if query.sensitivity != 1.0:
            reasons.append(f"{where}: a record moves a histogram by 1, but another number is named")
        if query.client < header.clients and query.records != header.records[query.client]:
            reasons.append(f"{where}: records of client {query.client} differ from the header's")
    charged = [query.client for query in ledger.queries]
    if sorted(charged) != list(range(header.clients)):
        reasons.append(
            "not every client is charged once for its histograms of columns, by which bounds were "
            "learnt"
        )
    _order(ledger, reasons)


def _order(ledger: Ledger, reasons: list[str]) -> None:
    """Charges, then the one answer, then whatever is drawn for rounds."""
    if len(ledger.answers) != 1:
        reasons.append("the ledger does not state exactly once which bounds were learnt")
        return
    (answer,) = ledger.answers
    if any(query.line > answer.line for query in ledger.queries):
        reasons.append("histograms of columns are charged after their bounds were learnt")
    later = [one.line for one in ledger.spends] + [one.line for one in ledger.rounds]
    if any(line < answer.line for line in later):
        reasons.append("bounds of columns are learnt after a round had begun")
