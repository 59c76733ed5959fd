"""What must agree before runs are ranked, and what is said where it does not."""

from __future__ import annotations

import pytest

from reports.extensions.comparison.terms import TOLERANCE, Towards, clusters, differences, terms_of
from tests.reports.extensions.comparison.test_comparison import run_of


def terms(towards=Towards.server, **options):
    return terms_of(run_of(**options), towards)


def test_epsilon_agrees_within_one_percent_unless_another_tolerance_is_asked_for():
    assert TOLERANCE == 0.01


def values(found):
    return {term.name: term.value for term in found.terms}


def test_the_terms_of_a_run_are_what_its_spec_and_its_data_fix():
    found = terms(data_settings={"partition": {"kind": "dirichlet", "alpha": 0.6}})
    told = values(found)
    # Where the data lies is nothing to them.
    assert "data.path" not in told
    assert told == {
        "unit": "record", "adjacency": "add-remove", "δ": 1e-5, "noise added by": None,
        "against": "server_worst_case",
        "data set": ("digits", "ab" * 32), "data.clients": 10,
        "data.partition.kind": "dirichlet", "data.partition.alpha": 0.6,
        "data.test_fraction": 0.2, "data.seed": 0, "client sizes": [100, 200],
        "randomness": "release",
    }  # fmt: skip
    assert found.view == "server_worst_case"
    assert found.private
    assert found.heading == (
        "digits, 10 clients; dirichlet (alpha 0.6); one record, add-or-remove-one-record, "
        "δ = 10⁻⁵; release randomness"
    )
    names = [name for name, _ in found.claim[1:]]
    assert (found.claim[0], names) == (
        "server_worst_case", ["unit", "adjacency", "δ", "against", "noise added by"]
    )  # fmt: skip


def test_what_a_header_does_not_say_is_unstated():
    told = values(terms(header={"randomness": None}, data_settings={"dataset": None}))
    assert told["randomness"] == "unstated"
    assert told["data set"][0] == "unknown"


@pytest.mark.parametrize(
    ("unit", "towards", "view", "whom"),
    [
        ("record", Towards.server, "server_worst_case", "the server (worst case)"),
        ("record", Towards.third_party, "third_party", "a third party"),
        ("client", Towards.server, "third_party", "a third party"),
        ("none", Towards.server, "", ""),
    ],
)
def test_epsilon_has_to_agree_in_one_view(unit, towards, view, whom):
    found = terms(towards, unit=unit)
    assert (found.view, found.towards, found.private) == (view, whom, unit != "none")
    assert ("δ" in values(found)) == (unit != "none")
    assert ("noise added by the server" in found.heading) == (unit == "client")


def test_partitions_of_two_kinds_differ_in_their_kind_and_client_sizes_are_not_said_as_well():
    iid = terms(data_settings={"partition": {"kind": "iid"}}, header={"records": [150, 150]})
    assert differences(iid, terms()) == ["data.partition.kind iid vs dirichlet"]
    sharper = terms(data_settings={"partition": {"kind": "dirichlet", "alpha": 0.1}})
    assert differences(sharper, terms()) == ["data.partition.alpha 0.1 vs 0.6"]
    assert differences(terms(), sharper) == ["data.partition.alpha 0.6 vs 0.1"]
    assert differences(terms(), terms()) == []
    sizes = terms(header={"records": [150, 150]})
    assert differences(sizes, terms()) == ["the clients hold different numbers of records"]
    both = differences(terms(header={"records": [1]}, data_settings={"seed": 3}), terms())
    assert both == ["data.seed 3 vs 0"]


def test_settings_that_one_run_lacks_are_none_unless_its_data_set_has_no_such_setting():
    more = terms(data_settings={"columns": 3})
    assert differences(more, terms()) == ["data.columns 3 vs none"]
    assert differences(terms(), more) == ["data.columns none vs 3"]
    other = terms(data_settings={"dataset": "table", "columns": 3, "seed": 5})
    assert differences(other, terms()) == ["data set table vs digits", "data.seed 5 vs 0"]


def test_where_units_differ_what_belongs_to_the_claim_is_not_compared():
    client = terms(unit="client", header={"adjacency": "other"})
    (said,) = differences(client, terms())
    assert said == "protection of one client with all its records vs protection of one record"
    assert differences(terms(unit="none"), terms()) == [
        "no differential privacy vs protection of one record"
    ]


def test_what_is_passed_over_hides_nothing_behind_it():
    client = terms(unit="client", seed=3, data_settings={"seed": 5})
    assert differences(client, terms()) == [
        "protection of one client with all its records vs protection of one record",
        "data.seed 5 vs 0", "randomness reproducible vs release",
    ]  # fmt: skip
    iid = terms(data_settings={"partition": {"kind": "iid"}, "test_fraction": 0.3})
    said = ["data.partition.kind iid vs dirichlet", "data.test_fraction 0.3 vs 0.2"]
    assert sorted(differences(iid, terms())) == said
    table = {"dataset": "table", "augmentation": [], "columns": 3, "test_fraction": 0.3}
    assert differences(terms(data_settings=table), terms()) == [
        "data set table vs digits", "data.test_fraction 0.3 vs 0.2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "tolerance", "found"),
    [
        ([], 0.1, []),
        ([3.0, 1.0, 2.0], 0.0, [[1], [2], [0]]),
        ([1.0, 1.1, 1.2, 1.21], 0.1, [[0, 1], [2, 3]]),
        # Of the smallest, not of the neighbour.
        ([1.0, 1.09, 1.18], 0.1, [[0, 1], [2]]),
        ([2.0, None, 2.0, None], 0.0, [[0, 2], [1], [3]]),
        ([0.0, 0.0, 1.0], 0.5, [[0, 1], [2]]),
        ([None], 0.5, [[0]]),
    ],
)
def test_losses_are_divided_from_the_smallest_up(losses, tolerance, found):
    assert clusters(losses, tolerance) == found
