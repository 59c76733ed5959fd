"""What lies outside the budget of one run: tuning, preparation, pre-training and public data.

Used by `content`; the standing sentences are in `wording`, which no run changes.
"""

from __future__ import annotations

from reports.content import outcomes, wording
from reports.content.units import words_of
from reports.reading.files import clean, mapping
from reports.reading.source import RunSource

_PRETRAINED = (
    "Training began from the published weights {source}{revision}. The records that those were "
    "trained on are not covered by this guarantee. A record that is among both was known to the "
    "published weights already, and this run does not hide it from whoever has them."
)
_FROM_NOTHING = (
    "None: training began from random weights, so no other records entered the model that way."
)
_UNSTATED = "The run does not state whether training began from weights that others had trained."


def pretrained(source: RunSource) -> dict[str, str] | None:
    """Return source, revision and digest of the published weights that training began with."""
    base = mapping(source.model.get("base"))
    found = {key: clean(base.get(key), 300) for key in ("source", "revision", "weights_sha256")}
    return found if found["source"] else None


def outside_budget(source: RunSource) -> list[tuple[str, str]]:
    """Return title and text of everything that no number of the report covers."""
    if not source.private:
        return list(wording.OUTSIDE_NOTHING)
    return [*words_of(source).outside_budget, _pretraining(source), *outcomes.validation(source)]


def _pretraining(source: RunSource) -> tuple[str, str]:
    base = pretrained(source)
    if base is None:
        return wording.PRETRAINING_TITLE, _FROM_NOTHING if "base" in source.model else _UNSTATED
    revision = f" at revision {base['revision']}" if base["revision"] else ""
    text = _PRETRAINED.format(source=base["source"], revision=revision)
    return wording.PRETRAINING_TITLE, text
