"""What a run found in addition to the model: accuracy, also by class, traffic, and computation.

Used by the report and by comparisons. Everything is read from the public metrics; what would show
how many clients took part is dropped here for the public audience.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from reports import formatting
from reports.content import wording
from reports.content.parts import INTERNAL, Count, Loss, Part, Report, Share, part, shown
from reports.content.units import unit_of
from reports.document import LEFT, RIGHT, Block, Text, paragraph, strong, table
from reports.files import clean, integer, mapping, number, sequence
from reports.source import RunSource

_MOST_CLASSES = 1_000
# Fewer test records of a class than this say little about its accuracy.
FEWEST_OF_A_CLASS = 10
_NORMAL = 1.959963984540054
# Measures of tasks other than a classification, as metrics.jsonl and as the pages call them.
OF_ROUNDS = {
    "test_rmse": "RMSE",
    "test_mae": "MAE",
    "test_r2": "R²",
    "test_micro_f1": "micro-F1",
    "test_perplexity": "perplexity",
}
# Those of a finished classification, with what they mean.
OF_THE_END = {
    "test_auc": (
        "AUC",
        "chance that a record of a class is ranked above one of another; 0.5 is guessing",
    ),
    "test_average_precision": (
        "average precision",
        "mean precision over all recalls; guessing has the share of the class",
    ),
    "test_f1": ("F1", "harmonic mean of precision and recall; 0 where a class is never found"),
    "test_balanced_accuracy": (
        "balanced accuracy",
        "mean recall of the classes; of always giving one answer it is 1 / classes",
    ),
    "test_log_loss": ("log loss", "mean cross-entropy, in nats; 0 is perfect"),
    "test_calibration_error": (
        "calibration error",
        "how far confidence is from accuracy on average (15 bins); 0 is perfect",
    ),
}
MEASURES = {**OF_ROUNDS, **{name: label for name, (label, _) in OF_THE_END.items()}}
# A matrix of more classes is not read, and beyond so many classes names are too long for a page.
MOST_CONFUSED, MOST_NAMED = 100, 12
_MOST_METRICS = 50
_CLASSES = "classification"
# What an accuracy is the share of, by other tasks.
_SHARES = {
    "multi_label": "Accuracy is the share of test records all of whose labels are right (exact "
    "match).",
    "token_classification": "Accuracy is the share of tokens with the right class. Tokens that the "
    "task ignores are left out.",
    "causal_lm": "Accuracy is the share of tokens that the model foresees from those before them. "
    "Perplexity is the exponential of the mean cross-entropy per token; lower is better.",
    "regression": "The model predicts numbers, so there is no accuracy. RMSE and MAE are in the "
    "targets’ unit; R² is the share of their variance that the model explains.",
}


class Measure(Part):
    """A measure of a task other than a classification.

    Attributes:
        name: Its key in metrics.jsonl.
        value: Measured on the test records.
    """

    name: str
    value: float


class RoundMetrics(Part):
    """One round.

    Attributes:
        round: Rounds completed; 0 is the untrained model.
        test_accuracy: Fraction correct.
        test_loss: Mean loss.
        measures: Further measures of its task.
    """

    round: int
    test_accuracy: float | None
    test_loss: float | None
    measures: tuple[Measure, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether the model was tested after this round."""
        return self.test_accuracy is not None or self.test_loss is not None or bool(self.measures)


class ClassAccuracy(Part):
    """One class.

    Attributes:
        class: Its number.
        records: Test records of it.
        accuracy: Share of them classified rightly; null where there are too few.
        low: Lower end of Wilson's 95 % interval.
        high: Its upper end.
    """

    class_: Count
    records: Count
    accuracy: Share | None
    low: Share | None
    high: Share | None


class Utility(Part):
    """How well the model works on test records.

    Attributes:
        rounds: Per evaluated round.
        final_accuracy: Last measured accuracy.
        final_loss: Last measured loss.
        final_round: Round of the last measurement.
        untrained_accuracy: Accuracy before training.
        classes: The final model on each class; empty if not recorded.
        classes_statement: Accuracy by class in words.
        measures: Further measures of the last measurement.
        scored: What the task's measures mean; empty of a classification.
        majority_rate: Accuracy of always giving the most frequent answer; null if not recorded.
        majority_statement: That the model is no better than that, in words; empty where it is.
        confusion: Public test records by their class (row) and the model's answer (column); empty
            where they are not public.
        labels: Names of the classes; empty where they have none.
        own: Metrics of the user's own, of public test records.
    """

    rounds: tuple[RoundMetrics, ...]
    final_accuracy: float | None
    final_loss: float | None
    final_round: int | None
    untrained_accuracy: float | None
    classes: tuple[ClassAccuracy, ...]
    classes_statement: str
    measures: tuple[Measure, ...] = ()
    scored: str = ""
    majority_rate: Share | None = None
    majority_statement: str = ""
    confusion: tuple[tuple[Count, ...], ...] = ()
    labels: tuple[str, ...] = ()
    own: tuple[Measure, ...] = ()

    @property
    def positive(self) -> str:
        """What measures of two classes are of, and of more, in words."""
        if len(self.classes) > 2:
            return "AUC, average precision and F1 are means over each class against the rest."
        name = f"{self.labels[1]!r}" if len(self.labels) == 2 else "1"
        return f"AUC, average precision and F1 are of class {name}."

    @property
    def task(self) -> str:
        """The kind of task, as a spec calls it."""
        return next((kind for kind, said in _SHARES.items() if said == self.scored), _CLASSES)

    def measure(self, name: str) -> float | None:
        """The last value of a measure, by its key in metrics.jsonl."""
        return next((one.value for one in self.measures if one.name == name), None)


class Communication(Part):
    """Traffic and computation.

    Attributes:
        bytes_up: Bytes uploaded by all clients; internal only where clients are drawn by chance.
        bytes_down: Bytes downloaded by all clients; internal only where clients are drawn by
            chance.
        rounds: Rounds measured.
        seconds: Whole seconds that the rounds took in all, as measured, rounded up; null where not
            published.
        expected_gradients: Gradients of single records that the spec lets one expect: rounds x
            clients a round x local steps x expected batch.
    """

    bytes_up: float | None
    bytes_down: float | None
    rounds: Count
    seconds: Loss | None
    expected_gradients: Loss | None


@part("utility", Utility)
def utility(source: RunSource, _audience: str) -> Utility:
    """Return test accuracy and loss over the rounds, of the last round measured, and by class."""
    rows = []
    for raw in source.metrics:
        index = integer(raw.get("round"))
        if index is not None:
            accuracy, loss = number(raw.get("test_accuracy")), number(raw.get("test_loss"))
            rows.append(
                RoundMetrics(
                    round=index, test_accuracy=accuracy, test_loss=loss, measures=_measures(raw)
                )
            )
    measured = [row for row in rows if row.is_measured]
    first, last = (measured[0], measured[-1]) if measured else (None, None)
    classes, end = by_class(source), source.metrics[-1] if source.metrics else {}
    if mapping(source.claim.get("diverged")):
        # Weights that are no numbers score as a class by chance does: there is no model to measure.
        last, classes, end = None, [], {}
    task = clean(mapping(source.spec.get("task")).get("kind"), 40)
    accuracy, rate = last.test_accuracy if last else None, number(end.get("test_majority_rate"))
    return Utility(
        rounds=tuple(rows),
        final_accuracy=accuracy,
        final_loss=last.test_loss if last else None,
        final_round=last.round if last else None,
        untrained_accuracy=first.test_accuracy if first and first.round == 0 else None,
        classes=tuple(classes),
        classes_statement=_classes_statement(classes) if task not in _SHARES else "",
        measures=last.measures if last else (),
        scored=_SHARES.get(task, ""),
        majority_rate=rate,
        majority_statement=against_majority(accuracy, rate, number(end.get("test_auc"))),
        confusion=_confusion(end.get("test_confusion")),
        labels=labels_of(source),
        own=_own(end.get("test_own")),
    )


def against_majority(accuracy: float | None, rate: float | None, auc: float | None) -> str:
    """That a model is no better than always giving the most frequent answer, if it is not.

    Args:
        accuracy: The model's.
        rate: That of the most frequent answer.
        auc: The model's. A model that was made to find a rare class gives up accuracy for it.
    """
    if accuracy is None or rate is None or accuracy > rate:
        return ""
    found = (
        "By accuracy, the model is no better than always giving the most frequent answer, which "
        f"has {formatting.percent(rate)}."
    )
    if auc is not None:
        found += f" Its AUC is {auc:.2f}, and that of one answer 0.50."
    return found


def labels_of(source: RunSource) -> tuple[str, ...]:
    """Names of the classes or targets, as model.json has them."""
    names = sequence(source.model.get("labels"))[:_MOST_CLASSES]
    return tuple(clean(name, 60) for name in names)


def _confusion(found: object) -> tuple[tuple[int, ...], ...]:
    """A square of counts; empty where there is none."""
    rows = [[integer(one) for one in sequence(row)] for row in sequence(found)[:MOST_CONFUSED]]
    whole = [[one for one in row if one is not None and one >= 0] for row in rows]
    return tuple(map(tuple, whole)) if all(len(row) == len(rows) for row in whole) else ()


def _own(found: object) -> tuple[Measure, ...]:
    pairs = ((clean(name, 60), number(value)) for name, value in mapping(found).items())
    known = [Measure(name=name, value=value) for name, value in pairs if value is not None]
    return tuple(known[:_MOST_METRICS])


def _measures(raw: Mapping[str, object]) -> tuple[Measure, ...]:
    found = ((name, number(raw.get(name))) for name in MEASURES)
    return tuple(Measure(name=name, value=value) for name, value in found if value is not None)


def by_class(source: RunSource) -> list[ClassAccuracy]:
    """Return the final model's accuracy on each class, with Wilson's 95 % interval.

    A class with fewer than `FEWEST_OF_A_CLASS` test records has neither accuracy nor interval.
    """
    pairs = sequence(source.metrics[-1].get("test_classes")) if source.metrics else []
    rows = []
    for index, pair in enumerate(pairs[:_MOST_CLASSES]):
        values = [integer(value) for value in sequence(pair)]
        if len(values) != 2 or values[0] is None or values[1] is None:
            return []
        records, right = values[0], values[1]
        if not 0 <= right <= records:
            return []
        enough = records >= FEWEST_OF_A_CLASS
        low, high = _wilson(right, records) if enough else (None, None)
        accuracy = right / records if enough else None
        rows.append(
            ClassAccuracy(class_=index, records=records, accuracy=accuracy, low=low, high=high)
        )
    return rows


def _wilson(right: int, records: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share (Wilson 1927)."""
    share, z = right / records, _NORMAL**2 / records
    middle = (share + z / 2) / (1 + z)
    half = _NORMAL * math.sqrt(share * (1 - share) / records + z / (4 * records)) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)


def accuracy_span(
    classes: Sequence[ClassAccuracy],
) -> tuple[tuple[float, int], tuple[float, int]] | None:
    """Return lowest and highest known accuracy, each with its class; None where none is known."""
    known = [(row.accuracy, row.class_) for row in classes if row.accuracy is not None]
    if not known:
        return None
    worst, best = (pick(known, key=lambda pair: pair[0]) for pick in (min, max))
    return worst, best


def _classes_statement(rows: list[ClassAccuracy]) -> str:
    if not rows:
        return "Accuracy by class was not recorded."
    few = sum(row.accuracy is None for row in rows)
    text, span = "", accuracy_span(rows)
    if span is not None:
        (worst, lowest), (best, highest) = span
        text = (
            f"By class, accuracy runs from {formatting.percent(worst)} (class {lowest}) to "
            f"{formatting.percent(best)} (class {highest}). "
        )
    if few:
        noun = "class has" if few == 1 else "classes have"
        text += (
            f"{few} of {len(rows)} {noun} fewer than {FEWEST_OF_A_CLASS} test records, too few to "
            "state an accuracy. "
        )
    return text + "Intervals are Wilson's, 95 % for each class by itself."


def validation(source: RunSource) -> list[tuple[str, str]]:
    """Return what is to be said of a validation set that the spec declares public."""
    declared = mapping(mapping(source.spec.get("data")).get("validation"))
    fraction = number(declared.get("fraction"))
    if not fraction:
        return []
    measured = [number(row.get("validation_accuracy")) for row in source.metrics]
    known = [value for value in measured if value is not None]
    losses = [number(row.get("validation_loss")) for row in source.metrics]
    lost = [value for value in losses if value is not None]
    result = formatting.percent(known[-1]) if known else "not measured"
    if lost and not known:
        result = f"loss {formatting.plain(lost[-1])}"
    return [(wording.VALIDATION_TITLE, wording.VALIDATION.format(fraction=fraction, result=result))]


@part("communication", Communication)
def communication(source: RunSource, audience: str) -> Communication:
    """Return bytes up and down and what was computed.

    Bytes and seconds are None where they would show how many took part: where clients are drawn by
    chance, traffic is a multiple of how many did.
    """
    by_chance = source.protects_clients or source.header.get("client_sampling") == "poisson"
    shown = audience == INTERNAL or not by_chance
    rows = [row for row in source.metrics if integer(row.get("round")) != 0]

    def total(key: str) -> float | None:
        values = [number(row.get(key)) for row in rows]
        known = [value for value in values if value is not None]
        return number(sum(known)) if known and shown else None

    seconds = total("seconds")
    return Communication(
        bytes_up=total("bytes_up"),
        bytes_down=total("bytes_down"),
        rounds=len(rows),
        # Earlier runs have fractions of a second, which stay here.
        seconds=None if seconds is None else math.ceil(seconds),
        expected_gradients=unit_of(source).expected_gradients(source),
    )


_SHOWN_ROUNDS = 12


def blocks(report: Report) -> Iterator[Block]:
    """Yield what the section shows."""
    yield from shown(
        report, "accuracy-over-rounds", "error-over-rounds", "accuracy-against-epsilon"
    )
    rows = _thinned(measured_rounds(report))
    others = _names(report)
    if rows and others:
        yield table(
            "Test measures over the rounds",
            ("Round", *(MEASURES.get(name, "Accuracy") for name in others), "Test loss"),
            [[str(row.round), *_told(row, others)] for row in rows],
            (RIGHT,) * (2 + len(others)),
            (0, *((1,) * (1 + len(others)))),
            small=True,
        )
    elif rows:
        yield table(
            "Test accuracy and loss over the rounds",
            ("Round", "Test accuracy", "Test loss"),
            [
                [
                    str(row.round),
                    formatting.percent(row.test_accuracy),
                    formatting.plain(row.test_loss) if row.test_loss is not None else "–",
                ]
                for row in rows
            ],
            (RIGHT, RIGHT, RIGHT),
            (0, 1, 1),
            small=True,
        )
    else:
        yield paragraph("No test metrics were recorded.")
    yield from _of_the_end(report[Utility])
    yield from shown(report, "accuracy-by-class", "confusion")
    for text in (report[Utility].scored, report[Utility].classes_statement):
        if text:
            yield paragraph(text)
    yield from _costs(report[Communication])


def _of_the_end(utility: Utility) -> Iterator[Block]:
    """Measures of the finished model, and what they mean."""
    rate, own = utility.majority_rate, utility.own
    rows: list[list[Text]] = []
    if rate is not None:
        meaning = "accuracy of always giving the most frequent answer"
        rows.append(["majority rate", formatting.percent(rate), meaning])
    rows += [
        [OF_THE_END[one.name][0], formatting.plain(one.value), OF_THE_END[one.name][1]]
        for one in utility.measures
        if one.name in OF_THE_END
    ]
    rows += [[one.name, formatting.plain(one.value), "a metric of the user’s own"] for one in own]
    if not rows:
        return
    head = ("Measure", "Finished model", "Meaning")
    yield table(
        "Measures of the finished model", head, rows, (LEFT, RIGHT, LEFT), (0, 0, 1), small=True
    )
    if utility.majority_statement:
        yield paragraph([strong(utility.majority_statement)])
    if any(one.name in OF_THE_END for one in utility.measures):
        yield paragraph(utility.positive, "small")


def _costs(costs: Communication) -> Iterator[Block]:
    title, gradients = "Communication and computation", costs.expected_gradients
    rows = (
        ("Uploaded by all clients", costs.bytes_up, formatting.size(costs.bytes_up)),
        ("Downloaded by all clients", costs.bytes_down, formatting.size(costs.bytes_down)),
        ("Rounds measured", costs.rounds, formatting.count(costs.rounds)),
        ("Time of the rounds, measured", costs.seconds, f"{costs.seconds or 0:,.0f} s"),
        ("Gradients of single records, expected", gradients, formatting.count(gradients)),
    )
    told = [[name, text] for name, value, text in rows if value is not None]
    yield table(title, (title, "Amount"), told, (LEFT, RIGHT), (1, 0), small=True)
    if costs.bytes_up is None:
        yield paragraph(
            "Traffic is not stated: it would show how many clients took part, or is unknown."
        )


def _thinned(measured: Sequence[RoundMetrics]) -> Sequence[RoundMetrics]:
    """Return at most a page's worth of rounds, first and last included."""
    if len(measured) <= _SHOWN_ROUNDS:
        return measured
    last = len(measured) - 1
    return [measured[round(i * last / (_SHOWN_ROUNDS - 1))] for i in range(_SHOWN_ROUNDS)]


def measured_rounds(report: Report) -> list[RoundMetrics]:
    """Return the rounds after which the model was tested."""
    return [row for row in report[Utility].rounds if row.is_measured]


def _names(report: Report) -> list[str]:
    """What the table shows next to the loss where the task is no classification."""
    measures = [one.name for one in report[Utility].measures if one.name in OF_ROUNDS]
    if measures and report[Utility].final_accuracy is not None:
        return ["test_accuracy", *measures]
    return measures


def _told(row: RoundMetrics, names: Sequence[str]) -> Iterator[str]:
    """A round's measures and its loss, as they are printed."""
    values = {one.name: one.value for one in row.measures}
    for name in names:
        if name == "test_accuracy":
            yield formatting.percent(row.test_accuracy)
        else:
            yield formatting.plain(values[name]) if name in values else "–"
    yield formatting.plain(row.test_loss) if row.test_loss is not None else "–"
