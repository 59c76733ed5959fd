"""How a run's hyper-parameters were chosen, as its spec says, and what that means for its ε."""

from __future__ import annotations

from typing import Any, Final

from reports import formatting
from reports.files import clean, mapping, number
from reports.source import RunSource

TITLE: Final = "Choosing hyper-parameters"
# The choice itself is inside: the claim is that of the selection.
_OF_A_SELECTION: Final = "Trials outside the private selection"
_NONE = (
    "Every further training run on the same private records spends privacy of its own. Trials "
    "before this run are not in the budget unless they were made on public data."
)
_PRIVATE = (
    "The hyper-parameters were chosen by private selection, which the loss towards a third party "
    "covers: a random number of trials, {mean} on average, each with settings drawn by chance, of "
    "which the best by accuracy on public validation records is published. It rests on nobody but "
    "the server and the clients learning anything of the other trials, or how many there were; the "
    "time that all took together, the trainer's other signatures and its logs could tell. Files "
    "of one run do not show that there were no further trials."
)
_PUBLIC = (
    "The spec says that they were chosen by a search on the public data set {dataset}, by its "
    "{score}. That costs nothing where no private record is among those."
)
_UNACCOUNTED = (
    "They were chosen by the {score} of several runs on the private records. No number of this "
    "report covers that choice, or what those runs released."
)
_OWN_SEEDS = " Those runs had seeds of their own ({seeds}), and this run is none of them."
_SCORES = {
    "test_accuracy": "test accuracy",
    "validation_accuracy": "validation accuracy",
    "test_loss": "test loss",
    "validation_loss": "validation loss",
}


def selection(source: RunSource) -> str:
    """Return the spec's word: none, private, public or unaccounted."""
    return clean(mapping(source.spec.get("tune")).get("selection"), 40) or "none"


def is_selected(source: RunSource) -> bool:
    """Return whether the claim is that of the best of several trials, or would have to be."""
    return selection(source) == "private" or "tuning" in source.claim


def picked_by_test_accuracy(source: RunSource) -> bool:
    """Return whether the settings were picked by what the run is then reported with."""
    tune = mapping(source.spec.get("tune"))
    return selection(source) == "unaccounted" and tune.get("score") in (
        "test_accuracy",
        "test_loss",
    )


def statement(source: RunSource) -> str:
    """Return a sentence for the first page, with a space before it; empty where there is none."""
    found = selection(source)
    if found == "unaccounted" and source.private:
        return (
            " The run’s hyper-parameters were chosen by looking at the private records: no ε "
            "covers that choice, and this one is that of settings which were chosen without "
            "looking."
        )
    if is_selected(source):
        server = "; towards the server, which saw them all, it is larger"
        return (
            " The run is the best of a random number of trials, and the loss is that of publishing "
            f"it and nothing of the others{'' if _server_is_trusted(source) else server}."
        )
    return ""


def _server_is_trusted(source: RunSource) -> bool:
    """Return whether nothing holds towards the server, which adds the noise."""
    return clean(source.header.get("noise_added_by"), 40) == "server"


def outside(source: RunSource) -> tuple[str, str]:
    """Return title and text of what the budget covers of the choice."""
    tune = mapping(source.spec.get("tune"))
    score = _SCORES.get(clean(tune.get("score"), 40), "score")
    match selection(source):
        case "private":
            mean = formatting.plain(number(tune.get("mean_trials")))
            return _OF_A_SELECTION, _PRIVATE.format(mean=mean)
        case "public":
            dataset = clean(tune.get("dataset"), 200) or "that it does not name"
            return TITLE, _PUBLIC.format(dataset=dataset, score=score) + _own_seeds(tune)
        case "unaccounted":
            return TITLE, _UNACCOUNTED.format(score=score) + _own_seeds(tune)
    return TITLE, _NONE


def _own_seeds(tune: dict[str, Any]) -> str:
    """Say where a search's runs are none that are reported, as the spec has it."""
    seeds = tune.get("search_seeds")
    if not isinstance(seeds, list) or not seeds:
        return ""
    return _OWN_SEEDS.format(seeds=clean(", ".join(map(str, seeds)), 200))


def remarks(source: RunSource, label: str) -> list[str]:
    """Return what a comparison says of a run's settings, a sentence each."""
    found = []
    if is_selected(source):
        server = ", and towards the server that of all trials"
        found.append(
            f"{label} is the best of a random number of trials: its ε towards a third party is "
            f"that of the selection{'' if _server_is_trusted(source) else server}."
        )
    if picked_by_test_accuracy(source):
        found.append(
            f"{label} is of a search whose best was picked by test accuracy, on the records that "
            "it is ranked by: the best of several is better there than on new records."
        )
    if selection(source) == "unaccounted" and source.private:
        found.append(
            f"{label} is of a search whose best was chosen by looking at the private records, and "
            "no ε covers that choice."
        )
    return found
