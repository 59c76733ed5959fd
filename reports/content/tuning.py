"""What a spec leaves open: steps and noise that adapt during a run, and how settings were chosen.

What a run may change is public before it begins; what it did change is not stated here. How
hyper-parameters were chosen is stated as the spec says it, with what that means for the run's ε.
"""

from __future__ import annotations

from typing import Any, Final

from reports import formatting
from reports.files import clean, integer, mapping, number
from reports.source import RunSource


def follows_releases(header: dict[str, Any]) -> bool:
    """Whether steps or noise heeded what was released earlier in the run."""
    return mapping(header.get("adaptation")).get("follows_releases") is True


def local_steps(header: dict[str, Any]) -> str:
    """Local steps of a round in words, such as "5" or "at most 10"."""
    section = mapping(header.get("adaptation"))
    if integer(section.get("step_limit")) is None:
        return formatting.count(integer(header.get("local_steps")))
    return f"at most {formatting.count(integer(section.get('most_local_steps')))}"


def early_end(claim: dict[str, Any], header: dict[str, Any]) -> str:
    """A sentence on a limit on ε, and on the rounds it left out, with a space before it."""
    ended = mapping(claim.get("stopped"))
    limit, name = number(ended.get("target_epsilon")), "target_epsilon"
    if limit is None:
        limit, name = number(header.get("max_epsilon")), "max_epsilon"
    if limit is None:
        return ""
    kept = f" No round begins that could take ε beyond {formatting.plain(limit)} ({name})"
    rounds = integer(ended.get("rounds"))
    if rounds is None:
        return f"{kept}. That did not end this run early."
    planned = formatting.count(integer(header.get("rounds")))
    run = "The run"
    if name == "target_epsilon":
        run = "The run was cut off, and a round was charged again. It"
    return f"{kept}. {run} therefore ended after {formatting.count(rounds)} of {planned} rounds."


def held(header: dict[str, Any], epsilon: float | None) -> str:
    """What follows the method of a view whose ε is the limit at which a run ends."""
    limit = number(header.get("max_epsilon"))
    return ", held to max_epsilon" if limit is not None and epsilon == limit else ""


def adaptation_in_words(header: dict[str, Any]) -> str:
    """Sentences on what adapts, with a space before them; empty for most runs."""
    section = mapping(header.get("adaptation"))
    if not section:
        return ""
    sentences = []
    limit, decay = integer(section.get("step_limit")), mapping(section.get("decay"))
    if limit is not None:
        sentences.append(
            f"The number of local steps changes from round to round; all rounds together take at "
            f"most {formatting.count(limit)}, the most that the budget affords a client in every "
            "round."
        )
    if decay:
        first, floor = number(header.get("noise_multiplier")), number(decay.get("floor"))
        least = first * floor if first is not None and floor is not None else None
        sentences.append(
            f"σ is that of the first round; it may fall by the factor "
            f"{formatting.plain(number(decay.get('factor')))} once every "
            f"{formatting.count(integer(decay.get('patience')))} rounds, and never below "
            f"{formatting.plain(least)}."
        )
    if follows_releases(header):
        sentences.append(
            "The choice depends on values that were released earlier, so every ε here is that of "
            "the most that could have been spent."
        )
    return "".join(f" {sentence}" for sentence in sentences)


TITLE: Final = "Choosing hyper-parameters"
# The choice itself is inside: the claim is that of the selection.
_OF_A_SELECTION: Final = "Trials outside the private selection"
_NONE = (
    "Every further training run on the same private records spends privacy of its own. Trials "
    "before this run are not in the budget; trials on public data cost nothing."
)
_PRIVATE = (
    "The hyper-parameters were chosen by private selection, and the loss against a third party "
    "covers that choice. A random number of trials was run, {mean} on average, each with settings "
    "drawn at random. The trial with the best accuracy on public validation records is published. "
    "This holds only if no one but the server and the clients learns anything about the other "
    "trials, or how many there were. The total time, the trainer’s other signatures and its logs "
    "could reveal that. The files of one run do not show that there were no further trials."
)
_PUBLIC = (
    "The spec says that the hyper-parameters were chosen by a search on the public data set "
    "{dataset}, by its {score}. That costs nothing if no private record is in that data set."
)
_UNACCOUNTED = (
    "The hyper-parameters were chosen by the {score} of several runs on the private records. No "
    "number in this report covers that choice, or what those runs released."
)
_OWN_SEEDS = " Those runs used seeds of their own ({seeds}); this run is not one of them."
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


def choice_in_words(source: RunSource) -> str:
    """Return a sentence for the first page, with a space before it; empty where there is none."""
    found = selection(source)
    if found == "unaccounted" and source.private:
        return (
            " The run’s hyper-parameters were chosen by looking at the private records. No ε "
            "covers that choice: the ε here is that of settings chosen without looking."
        )
    if is_selected(source):
        server = " Against the server, which saw all trials, it is larger."
        return (
            " The run is the best of a random number of trials, and the loss is that of publishing "
            f"this run alone.{'' if _server_is_trusted(source) else server}"
        )
    return ""


def _server_is_trusted(source: RunSource) -> bool:
    """Return whether nothing holds against the server, which adds the noise."""
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
        server = ", and against the server that of all trials"
        found.append(
            f"{label} is the best of a random number of trials: its ε against a third party is "
            f"that of the selection{'' if _server_is_trusted(source) else server}."
        )
    if picked_by_test_accuracy(source):
        found.append(
            f"{label} comes from a search whose best was picked by test accuracy, on the records "
            "that it is ranked by. The best of several does better there than on new records."
        )
    if selection(source) == "unaccounted" and source.private:
        found.append(
            f"{label} comes from a search whose best was chosen by looking at the private records. "
            "No ε covers that choice."
        )
    return found
