"""What the ledger declares of a rule that adapts is what the spec allows, number by number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from audit.checks.shared.adaptive import declared
from audit.reading.adaptation import Adaptation, Decay
from audit.untrusted.fields import FieldError

DECAYING = {
    "algorithm": {"noise_decay": {"factor": 0.8, "patience": 2, "floor": 0.5}},
    "federation": {"local_steps": 3},
}
DECAY = Decay(0.8, 2, 0.5)
ITERATING = {"algorithm": {"local_iterations": {"maximum": 7, "estimate": True}}}


def faults(spec, adaptation) -> list[str]:
    reasons: list[str] = []
    declared(spec, SimpleNamespace(adaptation=adaptation), reasons)
    return reasons


def test_what_the_spec_allows_is_no_fault():
    assert faults(DECAYING, Adaptation(3, None, True, DECAY)) == []
    assert faults(ITERATING, Adaptation(7, 40, True, None)) == []
    assert faults({"algorithm": {}}, None) == []


@pytest.mark.parametrize(
    "found",
    [
        None,
        Adaptation(4, None, True, DECAY),
        Adaptation(3, 40, True, DECAY),
        Adaptation(3, None, False, DECAY),
        Adaptation(3, None, True, None),
        Adaptation(3, None, True, Decay(0.9, 2, 0.5)),
        Adaptation(3, None, True, Decay(0.8, 1, 0.5)),
        Adaptation(3, None, True, Decay(0.8, 2, 0.4)),
    ],
)
def test_another_decay_than_the_specs_is_a_fault(found):
    assert faults(DECAYING, found) == [
        "adaptation: the ledger's header does not declare the spec's decay"
    ]


@pytest.mark.parametrize(
    "found",
    [
        None,
        Adaptation(8, 40, True, None),
        Adaptation(7, None, True, None),
        Adaptation(7, 40, False, None),
        Adaptation(7, 40, True, DECAY),
    ],
)
def test_other_iterations_than_the_specs_are_a_fault(found):
    assert faults(ITERATING, found) == [
        "adaptation: the ledger's header does not declare the spec's iterations"
    ]


def test_a_rule_that_does_not_adapt_may_declare_nothing():
    assert faults({"algorithm": {}}, Adaptation(3, None, True, DECAY)) == [
        "adaptation: the ledger declares one, but the spec's rule does not adapt"
    ]


@pytest.mark.parametrize(
    "section",
    [
        {"local_iterations": {"maximum": 0, "estimate": True}},
        {"local_iterations": {"maximum": 7, "estimate": 1}},
        {"noise_decay": {"factor": 0.0, "patience": 2, "floor": 0.5}},
        {"noise_decay": {"factor": 0.8, "patience": 0, "floor": 0.5}},
        {"noise_decay": {"factor": 0.8, "patience": 2, "floor": 0.0}},
        {"noise_decay": {"factor": 0.8, "patience": 2}},
    ],
)
def test_a_spec_without_a_usable_bound_is_refused(section):
    found = Adaptation(0, 40, True, None)
    with pytest.raises(FieldError):
        faults({"algorithm": section, "federation": {"local_steps": 3}}, found)
