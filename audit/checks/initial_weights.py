"""Check "initial-weights": did training begin with the weights that were committed to?

What the first round sends is covered by no ε. Weights that were trained on clients' records
beforehand carry them into every model after, so that the header names the digest of the first
broadcast, and where its weights come from. Whether they do come from there is seen by making them
once more, which needs torch: the engine does it where an audit replays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.weights import metrics_of
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.exchanges import extent
from audit.reading.ledger import Initial, Round
from audit.replay.participation import finished_rounds, read_message, recorded_coordinates
from audit.untrusted import fields
from audit.untrusted.archives import Floats, Integers, MessageError
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict

# How often random weights may fail by their test accuracy, at most.
FALSE_ALARMS = 1e-5
# The bound takes time that grows with their square: half a second for so many.
_MOST_CLASSES = 300
# Rounding of another machine moves random weights by less than a ten-thousandth of this.
_FAR = 1e-3
# A repository on the hub, whose publisher is known; all else is somebody's file.
_PUBLISHED = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_SAID = {
    "seed": "the spec's public seed",
    "file": "published weights of a named digest, and the spec's public seed for what is new",
    "code": "code from outside this package",
    "given": "a module passed from Python",
}
# What else a spec of such a model cannot have begun with.
_DUE = {"module": "given", "python": "code"}
# Models of this package, which are no code from outside of it; the test compares its registry.
OWN_MODELS = frozenset(
    {
        "mlp", "cnn", "simple-cnn", "resnet18", "vit", "vit-tiny", "vit-base", "swin-tiny",
        "swin-base", "roberta-base", "transformers",
    }
)  # fmt: skip

NOT_NOTED = (
    "the version that made this run did not commit to the starting weights: the claim holds only "
    "if these were made without the clients' records"
)
GIVEN = (
    "nobody can derive the starting weights, because they were passed as a module: the claim holds "
    "only if they were made without the clients' records"
)
CODE = (
    "the starting weights were made by code from outside this package: the claim holds only if "
    "that "
    "code uses nothing that was made from the clients' records"
)
LOCAL = (
    "the starting weights come from a file without a named publisher: the claim holds only if it "
    "was made without the clients' records"
)


def _beside(initial: Initial) -> tuple[str, ...]:
    """What must qualify the verdict, for weights that no seed and no publisher vouch for."""
    if initial.origin == "file":
        return () if re.fullmatch(_PUBLISHED, initial.file or "") else (LOCAL,)
    return {"given": (GIVEN,), "code": (CODE,)}.get(initial.origin, ())


def _origin_faults(bundle: Bundle, initial: Initial) -> Iterator[str]:
    """Where a spec's model cannot have begun with weights of the origin that is said."""
    model = fields.mapping(bundle.readable_spec, "model")
    name = fields.text(model, "name")
    due = _DUE.get(name)
    if due is None:
        # An origin that nobody can derive needs a model that has it, or any run could claim it.
        weights = "file" if model.get("weights") == "pretrained" else "seed"
        # Another package's model may be code, whatever its keys are.
        due = "code" if initial.origin == "code" and name not in OWN_MODELS else weights
    if due != initial.origin:
        yield (
            "the ledger's header says that the starting weights come from "
            f"{_SAID[initial.origin]}, but the spec's model starts from {_SAID[due]}"
        )


def chance_of(accuracy: float, records: Sequence[int]) -> float:
    """How likely random weights are at most to have a test accuracy, or a higher one.

    The outputs of an untrained classifier are exchangeable: which of them stands for which class is
    a uniformly random permutation π of k, whatever the network makes of the records and however
    well they lie apart. With c(i) the share of class i, and x(i, j) that part of it which output j
    wins, the accuracy is A = sum of c(i) x(i, π(i)). Because e^(λcx) <= 1 + (e^(λc) - 1) x on
    [0, 1], and each class's parts add up to 1, E e^(λA) is at most the sum over m = 0 … k of
    (k - m)! / k! times the m-th elementary symmetric polynomial of e^(λc(i)) - 1. Chernoff's bound
    follows for each λ.

    Args:
        accuracy: On the test records.
        records: How many of them each class has.
    """
    shares = np.asarray(records, dtype=np.float64) / sum(records)
    rates = np.linspace(0.1, 20.0, 200) / shares.max()
    polynomials = np.full((len(shares) + 1, len(rates)), -np.inf)
    polynomials[0] = 0.0
    for share in shares[shares > 0.0]:
        factor = np.log(np.expm1(rates * share))
        polynomials[1:] = np.logaddexp(polynomials[1:], polynomials[:-1] + factor)
    left = np.array([math.lgamma(len(shares) - m + 1.0) for m in range(len(shares) + 1)])
    logarithms = np.logaddexp.reduce(polynomials + (left - left[0])[:, None], axis=0)
    return math.exp(min(0.0, float((logarithms - rates * accuracy).min())))


def _accuracy_faults(bundle: Bundle) -> Iterator[str]:
    """A test accuracy that random weights do not have; nothing where none is published."""
    try:
        lines = metrics_of(bundle)
    except UnverifiedError:
        return  # that the metrics cannot be read, the check disclosure says
    told: list[Any] = [line["test_classes"] for line in lines if "test_classes" in line]
    found = [line.get("test_accuracy") for line in lines if line["round"] == 0]
    try:
        counts = [fields.as_integer(pair[0], "test_classes") for pair in told[-1]]
        accuracy = fields.as_number(found[0], "test_accuracy")
    except (FieldError, IndexError, TypeError, KeyError):
        return
    if not sum(counts) or len(counts) > _MOST_CLASSES:
        return
    chance = chance_of(accuracy, counts)
    if chance <= FALSE_ALARMS:
        yield (
            f"before the first round {100.0 * accuracy:.1f} % of the test records were classified "
            f"correctly: random weights do so with a probability of at most {chance:.0e}"
        )


def _recorded(bundle: Bundle, first: Round) -> tuple[Floats, Integers | None] | None:
    """The first broadcast's weights as the evidence has them, and at which coordinates."""
    header = bundle.header
    try:
        if header.unit.whole_clients:
            kept = extent(header.parameters, 0, header.rounds)
            many = kept.coordinates or header.parameters
            raw = bundle.release(first.round, many).broadcast
        else:
            queries = first.queries[0]
            kept = extent(header.parameters, queries, header.rounds * header.clients_per_round)
            many = kept.coordinates or header.parameters
            raw = bundle.exchange(first.round, first.clients[0], many).broadcast
        found = read_message(raw).principal
        return found, recorded_coordinates(bundle, kept)
    except (UntrustedFileError, MessageError, IndexError):
        return None


def _made_again(
    bundle: Bundle, initial: Initial, first: Round, reasons: list[str], unseen: list[str]
) -> bool:
    """Whether the engine made the same weights again from where the header says they are from."""
    if bundle.replay is None or bundle.replay.start is None or initial.origin == "given":
        return False
    again = bundle.replay.start()
    if again.file_sha256 != initial.file_sha256:
        reasons.append("the published weights are not those of the digest that the header names")
    no_proof = f"; on this machine that proves nothing ({'; '.join(again.differences)})"
    if again.tensors_sha256 != bundle.header.tensors:
        text = (
            "the model, rebuilt, differs from the ledger's header in its tensors, or in the "
            "numbers of one that is not trained"
        )
        if again.differences:
            unseen.append(text + no_proof)
        else:
            reasons.append(text)
    if again.broadcast_sha256 == initial.broadcast:
        return not (reasons or unseen)
    text = f"rebuilt from {_SAID[initial.origin]}, the starting weights are different"
    if not again.differences:
        reasons.append(f"{text}, on the same processor with the same versions")
        return False
    recorded = _recorded(bundle, first)
    if recorded is not None:
        values, places = recorded
        own = again.parameters.astype(np.float64)
        own = own if places is None else own[places]
        off = np.linalg.norm(values - own) if len(values) == len(own) else math.inf
        if not off <= _FAR * np.linalg.norm(own):
            reasons.append(f"{text}, by more than any machine's rounding")
            return False
    unseen.append(text + no_proof)
    return False


def _judge(bundle: Bundle) -> Judgement:
    initial = bundle.header.initial
    if initial is None:
        return Judgement(
            Verdict.NOT_VERIFIED,
            NOT_NOTED,
            qualifications=(NOT_NOTED,),
            power="none",
        )
    first = finished_rounds(bundle.readable_ledger)[0]
    unseen: list[str] = []
    try:
        reasons = list(_origin_faults(bundle, initial))
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    if first.broadcast != initial.broadcast:
        reasons.append("the first round did not send the weights that the header commits to")
    if initial.origin == "seed":
        reasons.extend(_accuracy_faults(bundle))
    again = _made_again(bundle, initial, first, reasons, unseen)
    how = (
        "rebuilt from there, they are the same bit for bit"
        if again
        else "this was not checked: dpfedadamw audit --replay N rebuilds them"
        if initial.origin != "given"
        else "nobody can rebuild them"
    )
    return conclude(
        "the first round sent the weights that the header commits to; they are said to come from "
        f"{_SAID[initial.origin]}, and {how}",
        reasons,
        unseen,
        details={"origin": initial.origin, "made_again": again},
        qualifications=_beside(initial),
    )


INITIAL_WEIGHTS = Check(
    name="initial-weights",
    title="Did training start from the committed weights?",
    place=55,
    meaning="If it fails, training started from weights that may have been made from private "
    "records, and no noise hides those.",
    claim="The first round sends the weights whose digest the ledger's header names. They "
    "come from where it says: a public seed, a published file, code, or a module passed from "
    "Python.",
    tolerance="none for digests; on a machine other than the trainer's, a thousandth of the "
    "weights' length separates FAIL from NOT VERIFIED. A test accuracy before the first round "
    "that random weights reach with a probability of at most 1e-5, for any records, fails.",
    power="with --replay: any weights other than those of the seed or the file, also in a part "
    "that is not trained. Without: a first broadcast that is not the committed one, and, with ten "
    "equal classes, a test accuracy of 88 % or more before the first round",
    limits="The check does not show that a published file, or code, was made without the clients' "
    "records. Without --replay the weights are not rebuilt. Weights trained beforehand then pass "
    "unless their test accuracy gives them away. It cannot do so with fewer than nine classes "
    "or more than 300.",
    rule=_judge,
)
register(INITIAL_WEIGHTS)
