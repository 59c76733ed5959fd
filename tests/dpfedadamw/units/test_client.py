"""Whole clients: a round is one Gaussian over the clients that take part, and its claim says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.accounting.calibration import PlannedRun
from dpfedadamw.accounting.epsilon_limit import Rounds
from dpfedadamw.accounting.registry import leading
from dpfedadamw.accounting.selection import Trials
from dpfedadamw.accounting.worst_case import SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.sampling import FullBatch, PoissonSampling, ShuffledEpochs
from dpfedadamw.spec.sections import PrivateSelection
from dpfedadamw.units import client
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.registry import make_plan, solve_noise
from dpfedadamw.vectors.sparsification import Sparsification
from tests.runs import small_spec

RECORDS = (120, 80, 200, 100)


def spec_of(*overrides: str) -> specs.Spec:
    text = (
        "data: {dataset: digits, clients: 4}\nmodel: {name: mlp}\nalgorithm: {name: dp-fedavg}\n"
        "federation: {rounds: 6, clients_per_round: 2, local_steps: 3}\n"
        "privacy: {unit: client, clipping_norm: 0.5, noise_multiplier: 3, delta: 1.0e-3, "
        "noise_added_by: server}\n"
    )
    return specs.loads(text, "a.yaml", list(overrides))


def plan_of(*overrides: str, sparse: Sparsification | None = None) -> RunPlan:
    return make_plan(spec_of(*overrides), RECORDS, 1, sparse)


def epsilon(rounds: int, rate: float = 0.5, noise: float = 3.0) -> float:
    kind = "full" if rate == 1.0 else "poisson"
    return leading()[0].epsilon(Composition(noise, rate, rounds, 1, kind), 1e-3)


@pytest.fixture
def asked(monkeypatch):
    """What the claim is asked for, by name."""
    found: list[dict[str, object]] = []

    def claim(spends, clients, delta, times=1, **named):
        found.append({"spends": list(spends), "given": (clients, delta, times), **named})
        return {"claim": len(found)}

    monkeypatch.setattr(client, "client_level_claim", claim)
    return found


def test_updates_are_noised_and_gradients_are_not_and_sixteen_bits_are_written():
    plan = plan_of()
    assert (plan.unit.name, plan.unit.noises_updates, plan.unit.noises_gradients) == (
        "client",
        True,
        False,
    )
    assert plan.unit.grid is not None
    assert (plan.unit.grid.update, plan.unit.grid.vectors) == (16, 16)


def test_a_plan_has_the_specs_batches_noise_and_what_is_kept_of_an_update():
    sparse = Sparsification("random", 9, 3, 0)
    plan = plan_of(sparse=sparse)
    assert (plan.sampling, plan.noise_added_by) == (FullBatch(), "server")
    assert plan.sparsification is sparse
    other = plan_of(
        "privacy.noise_added_by=clients",
        "privacy.sampling.kind=shuffled",
        "privacy.sampling.batch_size=16",
    )
    assert (other.sampling, other.noise_added_by) == (ShuffledEpochs(16), "clients")
    assert other.sparsification is None


def test_a_delta_that_one_client_in_the_clear_would_keep_to_is_refused():
    assert plan_of("privacy.delta=0.2499").delta == 0.2499
    for delta, product in ((0.25, "1"), (0.5, "2")):
        told = rf"{delta} times the 4 clients is {product}; a .* use a delta below 0\.25$"
        with pytest.raises(PrivacyError, match=told):
            plan_of(f"privacy.delta={delta}")


def test_a_limit_must_leave_room_for_one_round():
    least = epsilon(1)
    assert plan_of(f"federation.max_epsilon={least}").max_epsilon == least
    with pytest.raises(PrivacyError, match="a single round already costs more than"):
        plan_of(f"federation.max_epsilon={0.99 * least}")


def test_the_claim_is_asked_for_with_the_ledgers_spends_and_the_most_of_the_run(asked):
    spends = [{"kind": "spend", "round": index} for index in range(2)]
    entries = [{"kind": "round", "round": 0}, *spends, {"kind": "resume", "round": 1}]
    chosen = PrivateSelection(mean_trials=5.0, shape=1.0)
    plan = replace(plan_of("privacy.noise_added_by=clients"), tune=chosen)
    drawn = [{"kind": "header", "tuning": {"trials": 7}}, *entries]
    for ledger in (entries, drawn):
        plan.unit.realised_claim(plan, ledger)
    # With all four clients in a round, an upload has half of the noise.
    most = (Composition(1.5, 1.0, 6, 1, "full"),)
    for one, number in zip(asked, (None, 7), strict=True):
        assert one == {
            "spends": spends,
            "given": (4, 1e-3, 1),
            "most": most,
            "selection": "private",
            "trials": Trials(5.0, 1.0),
            "drawn": number,
        }
    assert plan_of().unit.realised_claim(plan_of(), entries) == {"claim": 3}
    assert (asked[2]["most"], asked[2]["selection"], asked[2]["trials"]) == (None, "none", None)


def test_a_claim_says_that_a_limit_ended_the_run(asked):
    plan = plan_of(f"federation.max_epsilon={0.5 * (epsilon(3) + epsilon(4))}")
    entries = [
        {"kind": kind, "round": index, "attempt": 1}
        for index in range(3)
        for kind in ("spend", "round")
    ]
    stopped = {"rounds": 3, "max_epsilon": plan.max_epsilon}
    assert plan.unit.realised_claim(plan, entries) == {"claim": 1, "stopped": stopped}


@pytest.mark.parametrize(("by", "clients"), [("server", []), ("clients", [0])])
def test_the_forecast_has_every_client_in_every_round(asked, by, clients):
    plan = plan_of(f"privacy.noise_added_by={by}")
    assert plan.expected_claim() == {"claim": 1}
    line = {
        "noise_multiplier": 3.0,
        "sampling_rate": 0.5,
        "noise_added_by": by,
        "clients": clients,
        "upload_noise_multiplier": 1.5,
    }
    assert asked == [{"spends": [line], "given": (4, 1e-3, 6), "selection": "none", "trials": None}]
    limit = 0.5 * (epsilon(4) + epsilon(5))
    chosen = PrivateSelection(mean_trials=5.0, shape=1.0)
    replace(plan, max_epsilon=limit, tune=chosen).expected_claim()
    assert asked[1]["given"] == (4, 1e-3, 4)
    assert (asked[1]["selection"], asked[1]["trials"]) == ("private", Trials(5.0, 1.0))


def test_a_limit_is_watched_by_rounds_that_were_charged():
    limit = 0.5 * (epsilon(4) + epsilon(5))
    watch = plan_of(f"federation.max_epsilon={limit}").watch
    one = Composition(3.0, 0.5, 1, 1, "poisson")
    assert watch == Rounds(SpendingBound(6, 3, 3.0), one, limit, 1e-3, True)
    spends = [{"kind": "spend", "round": index} for index in range(4)]
    assert watch.allows(spends[:3], 3)
    assert not watch.allows(spends, 4)


@pytest.mark.parametrize(("by", "towards"), [("server", 1), ("clients", 2)])
def test_the_cost_towards_both_is_looked_at_where_clients_add_the_noise(by, towards, monkeypatch):
    looked: list[tuple[float, str]] = []
    monkeypatch.setattr(client, "check_epsilon", lambda *given: looked.append(given))
    plan = plan_of(f"privacy.noise_added_by={by}")
    plan.check_cost()
    assert looked == [(epsilon(6), "a third party"), (epsilon(6, 1.0, 1.5), "the server")][:towards]
    looked.clear()
    limit = 0.5 * (epsilon(4) + epsilon(5))
    replace(plan, max_epsilon=limit).check_cost()
    assert looked[0] == (epsilon(4), "a third party")


def test_a_plan_beyond_its_own_target_is_refused_unless_a_limit_keeps_it_below():
    most = epsilon(6)
    replace(plan_of(), target_epsilon=most).check_cost()
    beyond = replace(plan_of(), target_epsilon=0.9 * most)
    with pytest.raises(PrivacyError, match="leave out noise_multiplier to have it solved for"):
        beyond.check_cost()
    replace(beyond, max_epsilon=0.9 * most).check_cost()


def test_the_solvers_take_a_round_for_a_record_s_step():
    plan = plan_of()
    run = PlannedRun(
        sampling=PoissonSampling(2),
        records=(4,),
        noise_multiplier=3.0,
        rounds=6,
        local_steps=1,
        delta=1e-3,
    )
    assert plan.planned_run("third-party") == run
    assert plan.planned_run("server") == run
    assert run.epsilon() == pytest.approx(epsilon(6), rel=1e-9)
    for rounds in (1, 5):
        assert plan.epsilon_after(rounds) == pytest.approx(epsilon(rounds), rel=1e-9)


def test_a_run_is_charged_its_rounds_and_not_its_steps():
    one = Composition(3.0, 0.5, 1, 1, "poisson")
    assert plan_of().unit.charged(plan_of()) == (one, 6, 4, "server")
    whole = plan_of("federation.clients_per_round=4", "privacy.noise_added_by=clients")
    everybody = Composition(3.0, 1.0, 1, 1, "full")
    assert whole.unit.charged(whole) == (everybody, 6, 4, "clients")
    longer = plan_of("federation.local_steps=50")
    assert longer.unit.charged(longer) == plan_of().unit.charged(plan_of())


@pytest.mark.parametrize("view", ["server", "third-party"])
@pytest.mark.parametrize("solve", ["noise", "rounds", "rate", "local-steps"])
def test_only_noise_and_rounds_are_solved_for_and_only_towards_a_third_party(view, solve):
    unit = plan_of().unit
    if view == "server":
        with pytest.raises(PrivacyError, match=r"^--view server: .* use --view third-party$"):
            unit.check_target(view, solve)
    elif solve in ("rate", "local-steps"):
        with pytest.raises(PrivacyError, match=f"^--solve {solve}: .* cost nothing; use --solve"):
            unit.check_target(view, solve)
    else:
        unit.check_target(view, solve)


def test_what_is_spent_is_what_is_claimed_towards_a_third_party():
    plan = plan_of("privacy.noise_added_by=clients")
    claim = plan.expected_claim()
    expected = claim["third_party"]["epsilon"][claim["third_party"]["accountant"]]
    assert plan.unit.spent(claim, "third-party") == plan.unit.spent(claim, "server") == expected
    assert expected == pytest.approx(epsilon(6), rel=1e-9)
    assert expected != claim["server"]["epsilon"]


def test_a_reader_is_told_the_mechanism():
    rows = [
        ("noise on the mean update", "standard deviation σC/S = 0.75"),
        ("participation l", "0.5 per client and round"),
        ("rounds", "6"),
        ("records per client", "80 … 200"),
    ]
    assert plan_of().unit.cost(plan_of()) == rows
    for kind, noised in (("random", 3), ("local-top", 9)):
        sparse = plan_of(sparse=Sparsification(kind, 9, 3, 0))
        assert sparse.unit.cost(sparse) == [
            *rows,
            ("kept of an update", f"3 of 9 coordinates ({kind})"),
            ("noised of a sum", f"{noised} coordinates"),
        ]


def test_a_target_is_solved_towards_a_third_party_and_left_alone_where_nothing_is_asked():
    known = spec_of()
    assert solve_noise(known, RECORDS, 1) is known
    # A rule that adapts to a target has its noise beside it.
    both = small_spec("ali-dpfl")
    assert both.privacy.target_epsilon is not None
    assert solve_noise(both, RECORDS, 1) is both
    asked = spec_of("privacy.target_epsilon=2")
    found = solve_noise(asked, list(RECORDS), 1).privacy.noise_multiplier
    assert 0.995 * 2 <= epsilon(6, noise=found) <= 2


def test_a_limit_is_held_against_the_noise_that_is_solved():
    """One round under a σ of 1 would already cost more than this limit."""
    limit = 0.5
    assert epsilon(1, noise=1.0) > limit
    both = spec_of("privacy.target_epsilon=0.5", f"federation.max_epsilon={limit}")
    solved = solve_noise(both, RECORDS, 1)
    noise = solved.privacy.noise_multiplier
    assert 0.995 * limit <= epsilon(6, noise=noise) <= limit
    assert solved.federation.max_epsilon == limit
    assert make_plan(solved, RECORDS, 1).max_epsilon == limit
    low = spec_of("privacy.target_epsilon=5", "federation.max_epsilon=0.1")
    with pytest.raises(PrivacyError, match="a single round already costs more than"):
        make_plan(solve_noise(low, RECORDS, 1), RECORDS, 1)
