"""What changes in a report with the unit of protection: its nouns, and sentences that name it.

Plain data for `guarantee`, `content`, `budget` and `findings`, which ask `words_of` once and are
written for both units. What the client level alone has is in `client_level`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from reports.content import wording
from reports.reading.source import RunSource

Titled = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class UnitWords:
    """The words of one unit of protection.

    Attributes:
        protected: What one neighbour more has, in the guarantee's sentence.
        counted: What δ is multiplied by, in the plural.
        symbol: The symbol of that count.
        adjacencies: Neighbouring relations in words, by their name in the ledger.
        queries: What is composed.
        public: What the sentence assumes to be public.
        explanation: How to read the views.
        meanings: What each check's failure would mean.
        outside_budget: What no number covers.
        hazards: What the guarantee does not mean.
    """

    protected: str
    counted: str
    symbol: str
    adjacencies: Mapping[str, str]
    queries: str
    public: str
    explanation: str
    meanings: Mapping[str, str]
    outside_budget: Titled
    hazards: Titled


RECORD = UnitWords(
    protected="one record",
    counted="records",
    symbol="n",
    adjacencies={
        "add-remove": "add-or-remove-one-record",
        "replace-one": "replace-one-record",
    },
    queries="every Poisson-subsampled Gaussian query in the ledger",
    public="client sizes are public",
    explanation=(
        "Towards a third party the loss is a mixture over the participation patterns, which do not "
        "depend on the data. Whoever learns who took part, or reads the uploads, is the server for "
        "this purpose. Losses are printed rounded up."
    ),
    meanings=wording.CHECK_MEANINGS,
    outside_budget=tuple(wording.OUTSIDE_BUDGET),
    hazards=tuple(wording.HAZARDS),
)
CLIENT = UnitWords(
    protected="one client with all its records",
    counted="clients",
    symbol="N",
    adjacencies={
        "add-remove": "add-or-remove-one-client",
        "replace-one": "replace-one-client",
    },
    queries="every charged round as one Poisson-subsampled Gaussian query on the clients",
    public="the number of clients and their sizes are public",
    explanation=(
        "A client joins or leaves with all its records. Towards a third party the chance draw of "
        "each round’s clients is part of the mechanism and amplifies privacy; whoever learns who "
        "took part in a round is no third party, and has nothing of that amplification. Losses are "
        "printed rounded up."
    ),
    meanings={**wording.CHECK_MEANINGS, **wording.CLIENT_CHECK_MEANINGS},
    outside_budget=tuple(wording.CLIENT_OUTSIDE_BUDGET),
    hazards=tuple(wording.CLIENT_HAZARDS),
)


_REPLACED = replace(
    RECORD,
    protected="the content of one record",
    hazards=(wording.PRESENCE_NOT_HIDDEN, *RECORD.hazards),
)
_BY_SAMPLER = {
    "fixed-size": replace(
        _REPLACED, queries="every Gaussian query in the ledger, on batches of fixed size,"
    ),
    "shuffled": replace(
        _REPLACED,
        queries="every batch that one record can be in, as a Gaussian query without amplification,",
    ),
}


def words_of(source: RunSource) -> UnitWords:
    """Return the words of the unit that the run protects, and of how its records are drawn."""
    if source.protects_clients:
        return CLIENT
    return _BY_SAMPLER.get(str(source.header.get("sampling")), RECORD)
