"""What keys of a spec mean to each other, where each alone is in range.

Here is what holds for all specs. What keys of one algorithm, model or data set contradict is found
by the check that it is registered with.
"""

from __future__ import annotations

from typing import Any

from dpfedadamw.spec.algorithm_section import RegisteredAlgorithm, algorithms
from dpfedadamw.spec.data_section import datasets
from dpfedadamw.spec.document import KeyPath
from dpfedadamw.spec.model_section import models
from dpfedadamw.spec.section import Contradictions, Values, keys_of
from dpfedadamw.spec.task_section import CLASSIFICATION, LANGUAGE, REGRESSION

# The adjacency under which each sampler of single records is accounted, why no other, and which
# sampler goes with the other one.
_PAIRINGS = {
    "poisson": ("add-remove", "the size of a Poisson batch varies with who is there", "fixed"),
    "fixed": ("replace-one", "adding a record changes who else is drawn", "poisson"),
    "shuffled": ("replace-one", "adding a record moves all batch boundaries", "poisson"),
}

# Partitions that deal out classes, which no other task has one of a record.
_BY_CLASS = ("dirichlet", "shards")


def contradictions(given: Any, resolved: Any, bad: set[KeyPath]) -> Contradictions:
    """Yield (path, message) for what contradicts itself though each value is in range."""
    get = Values(given, resolved, bad)
    yield from _participation(get)
    yield from _records(get)
    yield from _unit(get)
    yield from _registered(get)
    yield from _task(get)
    yield from _sampling(get)
    yield from _adaptive(get)
    yield from _drop_outs(get)
    yield from _averaging(get)
    yield from _spending(get)
    yield from _tuning(get)
    yield from _people(get)
    if get("privacy", "unit") in ("record", "person", "client"):
        if get("evaluation", "training"):
            message = "training records are private; leave it out, or use privacy.unit none"
            yield ("evaluation", "training"), message
        noise, target = ("privacy", "noise_multiplier"), ("privacy", "target_epsilon")
        if not {noise, target} & bad and get(*noise) is None and get(*target) is None:
            yield (noise, "missing; give noise_multiplier, or target_epsilon to have it solved for")


def _people(get: Values) -> Contradictions:
    """People that are protected are named by the data; what else goes with that."""
    of_people, path = get("privacy", "unit") == "person", ("federation", "clients_per_person")
    at, dataset, clients = get(*path), get("data", "dataset"), get("data", "clients")
    if not of_people:
        if at is not None and at > 1:
            message = f"{get.found(*path)}, which applies with privacy.unit person only"
            yield path, f"{message}; leave it out"
        return
    if get("data", "person") is None and ("data", "person") not in get.bad:
        named = dataset in datasets() and "person" in keys_of(datasets()[dataset].keys)
        instead = "name the column with the person of each record"
        if not named:
            have = [one for one, entry in datasets().items() if "person" in keys_of(entry.keys)]
            instead = f"{dataset} names no people; use dataset {', '.join(have)}"
        yield ("data", "person"), f"missing with privacy.unit person; {instead}"
    if at is not None and clients is not None and at > clients:
        yield path, f"{get.found(*path)}, but {get.shown('data', 'clients')}; use at most {clients}"


def _drop_outs(get: Values) -> Contradictions:
    """Rounds that go on without some of their clients."""
    path, away = ("federation", "drop_outs"), get("federation", "drop_outs")
    drawn = get("federation", "clients_per_round")
    if not away or path in get.bad:
        return
    if drawn is not None and away >= drawn:
        message = f"found {away}, but at least one of a round's {drawn} clients must answer"
        yield path, f"{message}; use at most {drawn - 1}"
    if get("privacy", "unit") == "client" and get("privacy", "noise_added_by") == "clients":
        message = (
            f"found {away}, but each client adds a share of the noise, and a missing client's "
            "share is lost: the round would have less noise than it is charged for"
        )
        yield path, f"{message}; use 0, or privacy.noise_added_by server"


def _averaging(get: Values) -> Contradictions:
    """What is published in place of the last round's model."""
    path = ("algorithm", "server", "averaging")
    if get(*path) is not None and path not in get.bad and get("privacy", "unit") == "client":
        message = "models are averaged at record level only, where the auditor can replay it"
        yield path, f"{message}; leave it out, or use privacy.unit record"


def _spending(get: Values) -> Contradictions:
    """What limits a run's ε, or that of all runs on its data."""
    keys = ("file", "epsilon", "delta")
    given = [name for name in keys if get("budget", name) is not None]
    for name in keys if given else ():
        path = ("budget", name)
        if name not in given and path not in get.bad:
            yield (
                path,
                f"missing, but budget.{given[0]} is given; give file, epsilon and delta, or none "
                "of them",
            )
    if get("privacy", "unit") != "none":
        return
    if given:
        message = "a run without privacy would spend without limit on data that a budget protects"
        yield ("budget", given[0]), f"{message}; use privacy.unit record or client"
    if get("federation", "max_epsilon") is not None:
        message = "with privacy.unit none there is no epsilon to limit; leave it out"
        yield ("federation", "max_epsilon"), message


def _tuning(get: Values) -> Contradictions:
    """What a search for hyper-parameters needs so that what is said of it holds."""
    selection, score = get("tune", "selection"), get("tune", "score")
    if selection == "private" and get("privacy", "unit") == "none":
        message = (
            "found private, but a run without privacy has no ε for a selection to build on; use "
            "privacy.unit record or client, or selection public or unaccounted"
        )
        yield ("tune", "selection"), message
    for path in (("privacy", "target_epsilon"), ("federation", "max_epsilon")):
        if selection == "private" and path not in get.bad and get(*path) is not None:
            message = (
                "is the ε of one run, but a private selection of several costs more; give only "
                "noise_multiplier, and see its cost with `dpfedadamw epsilon`"
            )
            yield path, message
    if selection == "private" and get("budget", "file") is not None:
        message = (
            "a private selection runs all trials that are drawn, and its ε does not cover one that "
            "stops for a budget; remove it"
        )
        yield ("budget", "file"), message
    fraction = ("data", "validation", "fraction")
    by_validation = selection == "private" or score in ("validation_accuracy", "validation_loss")
    if by_validation and fraction not in get.bad and not get(*fraction):
        message = (
            "0, and candidates are scored on public validation records; give "
            "data.validation: {fraction: 0.5, public: true}"
        )
        other = ""
        if selection != "private":
            other = f", or tune.score: {str(score).replace('validation', 'test')}"
        yield fraction, f"{message}{other}"


def _participation(get: Values) -> Contradictions:
    clients, drawn = get("data", "clients"), get("federation", "clients_per_round")
    if clients is not None and drawn is not None and drawn > clients >= 1:
        path = ("federation", "clients_per_round")
        message = f"{get.found(*path)}, but {get.shown('data', 'clients')}"
        yield path, f"{message}; must be at most {clients}"


def _records(get: Values) -> Contradictions:
    if get("data", "partition", "kind") == "column":
        dataset = get("data", "dataset")
        section = ("data", "partition")
        column, file = get(*section, "column"), get(*section, "file")
        unknown = {(*section, "column"), (*section, "file")} & get.bad
        if not unknown and (column is None) == (file is None):
            yield (*section, "column"), "give either a column of the table or a file"
        elif column is not None and dataset in datasets() and not datasets()[dataset].has_columns:
            yield (*section, "column"), f"{dataset} has no columns; give file instead"
    told = get("data", "targets") or (get("data", "label"),)
    for path in (("data", "text"), ("data", "numbers")):
        both = [name for name in get(*path) or () if name in told]
        if both:
            yield path, f"holds {both[0]}, which the model predicts; remove it"
    prepared = []
    for number, column in enumerate(get("data", "columns") or ()):
        name = column.get("name") if isinstance(column, dict) else None
        prepared.append(name)
        if name is not None and name in told:
            yield (
                ("data", "columns", number),
                f"is {name}, which the model predicts; remove it",
            )
    owner = ("data", "partition", "column")
    if get(*owner) is not None and get(*owner) in told:
        yield owner, f"found {get(*owner)}, which the model predicts; give another"
    person, read = get("data", "person"), (*(get("data", "text") or ()), *prepared)
    if person is not None and person in (*told, *read, *(get("data", "numbers") or ())):
        message = (
            f"found {person}, which the model reads or predicts; this column may only name people"
        )
        yield ("data", "person"), f"{message}: remove it there"
    most = ("data", "most_records_per_person")
    if get(*most) is not None and person is None and ("data", "person") not in get.bad:
        yield most, "given without data.person; name the column of the person, or leave it out"
    if get("data", "validation", "fraction") and get("data", "validation", "public") is False:
        message = (
            "validation records are evaluated without noise and must be public; set public: true, "
            "or leave the fraction at 0"
        )
        yield ("data", "validation", "public"), message


def _registered(get: Values) -> Contradictions:
    """What the data set, the model and the algorithm know of their own keys."""
    for entries, path in (
        (datasets(), ("data", "dataset")),
        (models(), ("model", "name")),
        (algorithms(), ("algorithm", "name")),
    ):
        name = get(*path)
        if isinstance(name, str) and name in entries:
            yield from entries[name].check(get)


def _task(get: Values) -> Contradictions:
    """Settings of data, model and search that do not go with the task."""
    kind = get("task", "kind")
    if kind is None:
        return
    dataset, model = get("data", "dataset"), get("model", "name")
    known = isinstance(dataset, str) and dataset in datasets()
    if kind != LANGUAGE and get("model", "gradient_checkpointing"):
        message = "found true, but only language models (task.kind: causal_lm) have it; leave it"
        yield ("model", "gradient_checkpointing"), f"{message} out"
    if kind != CLASSIFICATION:
        if kind == LANGUAGE:
            yield from _language(get, known and not datasets()[dataset].has_texts)
        elif known and not datasets()[dataset].has_targets:
            free = [name for name, entry in datasets().items() if entry.has_targets]
            message = f"found {dataset}, whose records have one class each, but task.kind is {kind}"
            yield ("data", "dataset"), f"{message}; use {', '.join(free)}"
        partition = ("data", "partition", "kind")
        if get(*partition) in _BY_CLASS:
            message = (
                f"{get.found(*partition)}, which divides by class, but task.kind is {kind}; use "
                "iid or column"
            )
            yield partition, message
    entry = models().get(model) if isinstance(model, str) else None
    if entry is not None and kind not in entry.tasks:
        able = [name for name, one in models().items() if kind in one.tasks]
        gives = "no answer for each token" if kind == LANGUAGE else "one answer per record"
        message = f"found {model}, which gives {gives}, but task.kind is {kind}"
        yield ("model", "name"), f"{message}; use {' or '.join(able)}"
    yield from _scores(get, kind)
    yield from _own_metrics(get, known and datasets()[dataset].published)


def _language(get: Values, textless: bool) -> Contradictions:
    """Texts that a language model learns, and what goes with its answers."""
    dataset = get("data", "dataset")
    if textless:
        have = [name for name, entry in datasets().items() if entry.has_texts]
        message = f"found {dataset}, but task.kind is causal_lm, whose texts are read from"
        yield ("data", "dataset"), f"{message} {' or '.join(have)} only; use that"
    text, loss_on = get("data", "text"), get("task", "loss_on")
    if loss_on == "answer" and get("task", "format") == "plain" and text and len(text) != 2:
        message = "found answer, but data.text is one column, which has no answer of its own; name"
        yield (
            ("task", "loss_on"),
            f"{message} two columns (question, answer), or set task.format: chat",
        )
    tuning = ("model", "fine_tuning", "kind")
    if get(*tuning) == "head":
        message = "found head, but a language model has no fresh head to train; use lora or all"
        yield tuning, message
    if get("model", "pooling") == "mean":
        message = "found mean, but task.kind is causal_lm, which answers each token; leave it out"
        yield ("model", "pooling"), message
    if get("model", "gradient_checkpointing") and get("model", "fine_tuning", "dropout"):
        message = (
            "found true, but a layer that is computed a second time would need its dropout masks "
            "again; set model.fine_tuning.dropout: 0.0, or leave it out"
        )
        yield ("model", "gradient_checkpointing"), message
    if get("evaluation", "metrics"):
        message = (
            "your own metrics are given every answer, which a language model's are too many for"
        )
        yield ("evaluation", "metrics"), f"{message}; leave them out"


def _own_metrics(get: Values, published: bool) -> Contradictions:
    """Metrics of the user's own are told of public test records alone."""
    public = get("evaluation", "public_test")
    if get("evaluation", "metrics") and not (published if public is None else public):
        message = (
            "your own metrics are published without noise, so they need public test records; if "
            "yours "
        )
        message += "are public, set evaluation.public_test: true, else leave metrics out"
        yield ("evaluation", "metrics"), message


def _scores(get: Values, kind: str) -> Contradictions:
    """By what a search chooses: of a regression there is no accuracy."""
    path, score = ("tune", "score"), get("tune", "score")
    if kind == REGRESSION and isinstance(score, str) and score.endswith("_accuracy"):
        message = f"{get.found(*path)}, but task.kind is regression, which has none"
        yield path, f"{message}; use {score.replace('accuracy', 'loss')}"


def _algorithm(get: Values) -> RegisteredAlgorithm[Any] | None:
    name = get("algorithm", "name")
    return algorithms().get(name) if isinstance(name, str) else None


def _unit(get: Values) -> Contradictions:
    """What an algorithm runs under, and what would do the same under the unit that is asked for."""
    name, unit, entry = get("algorithm", "name"), _unit_of_rules(get), _algorithm(get)
    if entry is None or unit is None or unit in entry.units:
        return
    made_for = entry.units[0]
    nearest = [entry.relatives[unit]] if unit in entry.relatives else []
    if made_for == "none":
        found = f"{name} adds no noise, but privacy.unit is {unit}"
        choices = [*nearest, "privacy.unit none"]
    elif made_for == "client":
        found = f"{name} works on whole clients' updates, but privacy.unit is {unit}"
        choices = ["privacy.unit client", *nearest]
    elif unit == "none":
        found = f"{name} needs privacy.unit record, but it is none"
        choices = [*nearest, "privacy.unit record"]
    else:
        found = (
            f"{name} needs noised gradients or uploads more than an update, which clipping whole "
            "updates does not cover"
        )
        fitting = [other for other, its in algorithms().items() if "client" in its.units]
        # What runs under both units comes first: it needs the least change.
        fitting.sort(key=lambda other: "record" not in algorithms()[other].units)
        yield (
            ("algorithm", "name"),
            f"{found}; with privacy.unit client use {' or '.join(fitting)}",
        )
        return
    yield ("algorithm", "name"), f"{found}; use {', or '.join(choices)}"


def _unit_of_rules(get: Values) -> Any:
    """The unit as algorithms and samplers see it: people are to them what records are."""
    unit = get("privacy", "unit")
    return "record" if unit == "person" else unit


def _sampling(get: Values) -> Contradictions:
    unit = _unit_of_rules(get)
    if unit == "record":
        path = ("privacy", "adjacency")
        kind, adjacency = get("privacy", "sampling", "kind"), get(*path)
        right, why, other = _PAIRINGS.get(kind, (None, "", ""))
        if right and adjacency and adjacency != right:
            message = (
                f"{get.found(*path)}, but privacy.sampling.kind is {kind}, which is accounted "
                f"under {right} alone: {why}; use adjacency {right}, or sampling.kind {other}"
            )
            yield path, message
    if unit == "record" and get("privacy", "sampling", "kind") == "poisson":
        yield from _rate(get)
    if unit == "client" and get("federation", "client_sampling") == "fixed":
        message = (
            "found fixed, but privacy.unit is client, whose accounting needs independent draws; "
            "use poisson, or leave it out"
        )
        yield ("federation", "client_sampling"), message


def _rate(get: Values) -> Contradictions:
    """A sampling rate is stated once, and is none."""
    section = ("privacy", "sampling")
    rate, reference = (*section, "rate"), (*section, "reference_size")
    if {rate, reference} & get.bad or get(*reference) is None:
        return
    batch, size = get(*section, "expected_batch_size"), get(*reference)
    if get(*rate) is not None:
        yield (
            rate,
            "given together with reference_size, which also states the rate; give one of them",
        )
    elif batch is not None and batch > size:
        message = f"{get.found(*reference)}, but {get.shown(*section, 'expected_batch_size')}"
        yield reference, f"{message}: the rate would exceed 1; must be at least {batch:g}"


def _adaptive(get: Values) -> Contradictions:
    """Settings that no adaptive rule is accounted with, from any package."""
    name, entry = get("algorithm", "name"), _algorithm(get)
    if _unit_of_rules(get) != "record" or entry is None or not entry.adaptive:
        return
    path: KeyPath = ("privacy", "sampling", "kind")
    if entry.budgeted and get(*path) == "shuffled":
        message = (
            f"found shuffled, but {name} limits the steps of all rounds together, while shuffled "
            "epochs restart in each participation; use fixed, or poisson with adjacency add-remove"
        )
        yield path, message
    path = ("federation", "client_sampling")
    if get(*path) == "poisson":
        message = (
            f"found poisson, but {name} uses what the previous round released, and with "
            "independent draws a round may have no clients; use fixed"
        )
        yield path, message
    both = ("noise_multiplier", "target_epsilon")
    for key, other in (both, reversed(both)) if entry.budgeted else ():
        path = ("privacy", key)
        # Where both are missing, that is said for every algorithm.
        if path not in get.bad and get(*path) is None and get("privacy", other) is not None:
            message = (
                f"missing; {name} fits its local steps to target_epsilon at noise_multiplier, so "
                "it needs both"
            )
            yield path, message
