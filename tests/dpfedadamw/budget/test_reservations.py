"""No sequence of reserving, settling and dying spends more than the budget."""

from __future__ import annotations

import math
import multiprocessing
import platform
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpfedadamw.budget import database, reservations
from dpfedadamw.budget.charges import charged, composed, epsilon_of
from dpfedadamw.budget.database import (
    RUNNING,
    SETTLED,
    STARTING,
    BudgetError,
    Reservation,
)
from dpfedadamw.budget.reservations import Condition
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.ledger import Ledger
from tests.dpfedadamw.budget.fake_runs import (
    ACCOUNT,
    DELTA,
    ROUNDS,
    begin,
    cost,
    costs_by_ledgers,
    lives,
    request,
    resume,
    spend,
    work,
)

FORK = multiprocessing.get_context("fork")
NOISE = 5.0


def never(where):
    del where


def conditions(budget):
    return [
        str(condition)
        for one in reservations.standings(budget)
        for _, condition in one.reservations
    ]


def reserved(budget):
    return [
        one.cost for standing in reservations.standings(budget) for one, _ in standing.reservations
    ]


def states(budget):
    return [
        one.state for standing in reservations.standings(budget) for one, _ in standing.reservations
    ]


def at_once(target, arguments):
    """Run as many processes as there are arguments, all at once."""
    started = [FORK.Process(target=target, args=each) for each in arguments]
    for one in started:
        one.start()
    for one in started:
        one.join(300)
        assert one.exitcode is not None


def one_reserves(number, budget, folder):
    try:
        wanted = request(folder / f"run-{number}", NOISE, cost(NOISE, ROUNDS))
        made = reservations.reserve(budget, wanted, is_held=lambda _: True)
    except BudgetError as error:
        (folder / f"refused-{number}").write_text(str(error))
    else:
        (folder / f"made-{number}").write_text(made)


def test_ten_that_reserve_at_once_get_as_much_as_there_is_and_not_more(tmp_path):
    budget = tmp_path / "budget.sqlite"
    fitting = max(
        count
        for count in range(1, 10)
        if epsilon_of([cost(NOISE, ROUNDS)] * count, DELTA) <= ACCOUNT.epsilon
    )
    assert 1 < fitting < 9
    at_once(one_reserves, [(number, budget, tmp_path) for number in range(10)])
    assert len(list(tmp_path.glob("made-*"))) == fitting
    refusals = [path.read_text() for path in tmp_path.glob("refused-*")]
    assert len(refusals) == 10 - fitting
    for text in refusals:
        assert "is left" in text
        assert "would fit" in text
        assert len(text.splitlines()) == 1
    (standing,) = reservations.standings(budget, lambda _: True)
    assert standing.epsilon <= ACCOUNT.epsilon
    assert standing.epsilon == epsilon_of([cost(NOISE, ROUNDS)] * fitting, DELTA)
    # Nothing but the budget is left of ten processes that made it at once.
    assert [one.name for one in tmp_path.glob("*budget*")] == ["budget.sqlite"]
    assert budget.stat().st_mode & 0o777 == 0o600


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_processes_that_die_anywhere_never_overspend_by_their_ledgers(seed, tmp_path):
    budget, runs = tmp_path / "budget.sqlite", tmp_path / "runs"
    runs.mkdir()
    at_once(lives, [(1000 * seed + number, budget, runs, 4) for number in range(10)])
    spent = costs_by_ledgers(runs)
    assert len(spent) > 3
    assert epsilon_of(spent, DELTA) <= ACCOUNT.epsilon
    # The budget counts at least what every ledger says, run by run.
    (before,) = reservations.standings(budget)
    # (Each composition is rounded up by itself, by less than a thousandth.)
    assert before.epsilon >= epsilon_of(spent, DELTA) * 0.999
    # Whoever asks next settles the dead, so that nothing is left reserved for them.
    dead = None
    try:
        begin(budget, runs, NOISE)[1].release()
    except BudgetError:
        # Too little is left: who asked has no reservation, and all that there are are the dead's.
        pass
    else:
        dead = -1
        spent = costs_by_ledgers(runs)
    assert set(conditions(budget)[:dead]) <= {"settled"}
    settled = [one for one in reserved(budget)[:dead] if one]
    assert sorted(settled, key=repr) == sorted((one for one in spent if one), key=repr)


def test_a_run_is_settled_at_what_its_ledger_says(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder, lock, ledger, made = begin(budget, tmp_path, NOISE)
    with lock:
        ledger.append("spend", spend(0, NOISE))
        assert reserved(budget) == [cost(NOISE, ROUNDS)]
        standing = reservations.settle(budget, made, ledger.entries)
    assert reserved(budget) == [cost(NOISE, 1)] == [charged(ledger.entries)]
    assert standing.epsilon == epsilon_of([cost(NOISE, 1)], DELTA)
    assert standing.left == ACCOUNT.epsilon - standing.epsilon
    assert folder.is_dir()


def dead(budget, folder, rounds=2):
    """A run that died after some rounds."""
    made = begin(budget, folder, NOISE)
    for index in range(rounds):
        made[2].append("spend", spend(index, NOISE))
    made[1].release()
    return made[0]


def test_a_dead_run_counts_at_its_ledger_once_somebody_else_reserves(tmp_path):
    budget = tmp_path / "budget.sqlite"
    dead(budget, tmp_path)
    assert conditions(budget) == ["stopped"]
    assert reserved(budget) == [cost(NOISE, ROUNDS)]
    begin(budget, tmp_path, NOISE)[1].release()
    assert reserved(budget)[0] == cost(NOISE, 2)


def damaged(folder):
    path = folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"steps":1', b'"steps":0'))


def another(folder):
    path = folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0].replace(b"a", b"b"))


@pytest.mark.parametrize("harm", [shutil.rmtree, damaged, another])
def test_a_dead_run_that_cannot_be_read_stays_charged_in_full(harm, tmp_path):
    budget = tmp_path / "budget.sqlite"
    harm(dead(budget, tmp_path))
    assert conditions(budget)[0] in ("directory gone", "ledger unreadable")
    begin(budget, tmp_path, NOISE)[1].release()
    assert reserved(budget)[0] == cost(NOISE, ROUNDS)


def test_what_runs_on_another_machine_is_never_taken_for_dead(tmp_path, monkeypatch):
    budget = tmp_path / "budget.sqlite"
    dead(budget, tmp_path)
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert conditions(budget) == ["on another machine"]
    begin(budget, tmp_path, NOISE)[1].release()
    assert reserved(budget)[0] == cost(NOISE, ROUNDS)


def test_a_run_that_lives_keeps_what_it_reserved(tmp_path):
    budget = tmp_path / "budget.sqlite"
    with begin(budget, tmp_path, NOISE)[1]:
        assert conditions(budget) == ["running"]
        begin(budget, tmp_path, NOISE)[1].release()
        assert reserved(budget)[0] == cost(NOISE, ROUNDS)


class _Killed(BaseException):
    pass


def test_a_start_that_was_killed_before_it_appeared_costs_nothing(tmp_path, monkeypatch):
    budget = tmp_path / "budget.sqlite"

    def kill(where):
        if where == "reserved":
            raise _Killed

    with pytest.raises(_Killed):
        begin(budget, tmp_path, NOISE, kill)
    assert conditions(budget) == ["never began"]
    begin(budget, tmp_path, NOISE)[1].release()
    assert reserved(budget)[0] == ()


def test_a_start_that_was_given_up_is_not_confirmed(tmp_path):
    budget = tmp_path / "budget.sqlite"

    def given_up(where):
        if where == "appeared":
            # As if its folder could not be seen for a moment, and somebody else reserved then.
            for one in tmp_path.glob("fake-*"):
                shutil.rmtree(one)
            begin(budget, tmp_path, NOISE)[1].release()

    with pytest.raises(BudgetError, match="settled before the run began"):
        begin(budget, tmp_path, NOISE, given_up)


def test_a_run_that_goes_on_reserves_what_is_left_of_it_with_the_round_that_is_repeated(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder = dead(budget, tmp_path)
    seen = []

    def look(where):
        if where == "reserved again":
            seen.extend(reserved(budget))
            # Whatever it was settled at before, it spends again from here on.
            assert states(budget) == [RUNNING]

    # No round of the two that were charged was finished: both are charged again.
    resume(budget, folder, look)
    assert seen == [cost(NOISE, 2 + ROUNDS)]
    assert reserved(budget) == [cost(NOISE, 2 + ROUNDS)]
    assert conditions(budget) == ["settled"]


def test_a_dead_run_that_was_settled_and_goes_on_is_no_longer_settled(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder = dead(budget, tmp_path)
    # Somebody else reserves, who settles it at what its ledger says.
    begin(budget, tmp_path, 20.0)[1].release()
    assert sorted(states(budget)) == [RUNNING, SETTLED]
    seen = []

    def look(where):
        if where == "reserved again":
            seen.extend(states(budget))

    resume(budget, folder, look)
    assert seen.count(RUNNING) + seen.count(SETTLED) == 2
    assert RUNNING in seen
    with database.read(budget) as known:
        made = Ledger(folder / "ledger.jsonl").entries[0]["budget"]["reservation"]
        assert known.find(made).state == SETTLED


def use_up(budget, folder):
    while True:
        _, lock, ledger, made = begin(budget, folder, NOISE)
        with lock:
            work(budget, ledger, made, NOISE, 0, never)


def test_a_run_that_goes_on_is_refused_where_others_have_taken_what_it_left(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder = dead(budget, tmp_path)
    with pytest.raises(BudgetError, match="is left"):
        use_up(budget, tmp_path)
    with pytest.raises(BudgetError, match="is left"):
        resume(budget, folder, never)
    (standing,) = reservations.standings(budget)
    assert standing.epsilon <= ACCOUNT.epsilon
    assert reserved(budget)[0] == cost(NOISE, 2)


def copied(folder, name):
    """A backup of a run's folder, as it is now."""
    copy = folder.parent / name / folder.name
    shutil.copytree(folder, copy)
    return copy


def test_an_older_copy_of_a_run_is_refused_and_what_the_run_spent_stays_charged(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder = dead(budget, tmp_path)
    copy = copied(folder, "backup")
    resume(budget, folder, never)
    before = reserved(budget)
    with pytest.raises(BudgetError, match="spent more than its ledger says") as refused:
        resume(budget, copy, never)
    assert str(refused.value).startswith(f"{copy}: ")
    assert (reserved(budget), states(budget)) == (before, [SETTLED])


def test_a_copy_of_before_the_run_died_is_refused_too(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder = dead(budget, tmp_path)
    copy = copied(folder, "backup")

    def die(where):
        if where == "charged":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume(budget, folder, die)
    with pytest.raises(BudgetError, match="spent more than its ledger says"):
        resume(budget, copy, never)
    resume(budget, folder, never)
    assert conditions(budget) == ["settled"]


def test_of_two_equal_copies_one_may_go_on_wherever_it_lies(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder = dead(budget, tmp_path)
    copy = copied(folder, "moved")
    resume(budget, copy, never)
    assert conditions(budget) == ["settled"]
    with pytest.raises(BudgetError, match="spent more than its ledger says"):
        resume(budget, folder, never)
    (tmp_path / "link").symlink_to(copy.parent)
    resume(budget, tmp_path / "link" / copy.name, never)


def test_while_one_copy_of_a_run_is_trained_no_other_is(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder = dead(budget, tmp_path)
    copy = copied(folder, "copy")

    def look(where):
        if where == "reserved again":
            with pytest.raises(BudgetError, match="another copy of this run is being trained in"):
                resume(budget, copy, never)

    resume(budget, folder, look)
    assert conditions(budget) == ["settled"]


@pytest.mark.parametrize(
    ("ledger", "contained"),
    [
        ((Composition(5.0, 0.2, 4), Composition(4.0, 0.3, 2)), True),
        ((Composition(5.0, 0.3, 5), Composition(4.0, 0.3, 2), Composition(3.0, 0.1, 1)), True),
        ((Composition(5.0, 0.2, 3), Composition(4.0, 0.3, 2)), False),
        ((Composition(5.0, 0.1, 4), Composition(4.0, 0.3, 2)), False),
        ((Composition(5.0, 0.2, 4),), False),
        ((), False),
    ],
)
def test_a_ledger_goes_on_from_what_was_settled_where_it_has_all_of_its_steps(ledger, contained):
    settled = (Composition(5.0, 0.2, 4), Composition(4.0, 0.3, 2))
    assert reservations._contains(ledger, settled) is contained
    assert reservations._contains(ledger, ())


def test_a_run_that_goes_on_needs_the_budget_that_it_began_with(tmp_path):
    budget = tmp_path / "budget.sqlite"
    folder = dead(budget, tmp_path)
    with pytest.raises(BudgetError, match="is missing, and the run has spent from it"):
        resume(tmp_path / "other.sqlite", folder, never)
    assert not (tmp_path / "other.sqlite").exists()
    dead(tmp_path / "other.sqlite", tmp_path)
    with pytest.raises(BudgetError, match="has no entry for this run"):
        resume(tmp_path / "other.sqlite", folder, never)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unit": "client"}, "privacy.unit: is client"),
        ({"adjacency": "replace-one"}, "replacing a record is not the same as adding"),
        ({"partition_sha256": "b" * 64}, "data.partition: divides the records differently"),
        ({"epsilon": 8.0}, "budget.epsilon: is 8, but the budget"),
        ({"delta": 1e-6}, "budget.delta: is 1e-06, but the budget"),
    ],
)
def test_what_does_not_compose_is_refused_with_the_reason(change, words, tmp_path):
    budget = tmp_path / "budget.sqlite"
    first = request(tmp_path / "run", NOISE, cost(NOISE, ROUNDS))
    reservations.reserve(budget, first)
    with pytest.raises(BudgetError, match=words):
        reservations.reserve(budget, replace(first, account=replace(ACCOUNT, **change)))


def test_a_refused_first_run_fixes_no_budget(tmp_path):
    budget = tmp_path / "budget.sqlite"
    small = replace(ACCOUNT, epsilon=0.01)
    wanted = request(tmp_path / "run", NOISE, cost(NOISE, ROUNDS))
    with pytest.raises(BudgetError, match="not even one round would fit"):
        reservations.reserve(budget, replace(wanted, account=small))
    assert reservations.standings(budget) == []
    reservations.reserve(budget, wanted)


def test_another_data_set_has_a_budget_of_its_own(tmp_path):
    budget = tmp_path / "budget.sqlite"
    wanted = request(tmp_path / "run", NOISE, cost(NOISE, ROUNDS))
    reservations.reserve(budget, wanted)
    other = replace(ACCOUNT, data_sha256="b" * 64, epsilon=1.8)
    reservations.reserve(budget, replace(wanted, account=other))
    found = reservations.standings(budget)
    assert [one.account.epsilon for one in found] == [4.0, 1.8]
    assert found[0].by_accountant == composed([cost(NOISE, ROUNDS)], DELTA)


def epsilon(*steps):
    return epsilon_of([cost(NOISE, count) for count in steps], DELTA)


def test_a_run_that_comes_to_the_budget_itself_fits_and_no_more():
    both = [cost(NOISE, 2), cost(NOISE, 3)]
    whole = epsilon(5)
    assert reservations._fits(both, replace(ACCOUNT, epsilon=whole))
    assert not reservations._fits(both, replace(ACCOUNT, epsilon=math.nextafter(whole, 0.0)))
    assert reservations._fits([], replace(ACCOUNT, epsilon=1e-9))


@pytest.mark.parametrize(
    ("fitting", "changes", "advice"),
    [
        (0, {}, "not even one round would fit"),
        (1, {}, "1 round would fit instead of 5"),
        (2, {}, "2 rounds would fit instead of 5"),
        (2, {"most_rounds": 2}, "2 rounds would fit instead of 2"),
        (2, {"most_rounds": 1}, "wait until other runs have ended, or spend less"),
        (2, {"cost_of_rounds": None}, "wait until other runs have ended, or spend less"),
    ],
)
def test_a_refusal_says_what_it_would_cost_what_is_left_and_what_would_fit(
    fitting, changes, advice, tmp_path
):
    others = [cost(NOISE, 3)]
    account = replace(ACCOUNT, epsilon=(epsilon(3 + fitting) + epsilon(4 + fitting)) / 2)
    wanted = replace(request(tmp_path, NOISE, cost(NOISE, 5)), **changes)
    told = str(reservations._exceeded(Path("b.sqlite"), account, others, wanted))
    assert told == (
        f"budget: this run could cost ε = {epsilon(5):.4g}, and together with the {epsilon(3):.4g} "
        f"already charged to b.sqlite that makes {epsilon(8):.4g} of {account.epsilon:g} at δ = "
        f"1e-05; {account.epsilon - epsilon(3):.4g} is left, and {advice}"
    )
    less = replace(account, epsilon=epsilon(3) / 2)
    told = str(reservations._exceeded(Path("b.sqlite"), less, others, wanted))
    assert "; 0 is left, and " in told


def held(state, steps, number):
    return Reservation(
        identifier=number * 32,
        data_sha256=ACCOUNT.data_sha256,
        run="run",
        directory="/run",
        machine="here",
        state=state,
        cost=cost(NOISE, steps),
    )


def test_a_standing_tells_apart_what_is_spent_and_what_is_held():
    found = [
        (held(SETTLED, 2, "0"), Condition.settled),
        (held(RUNNING, 3, "1"), Condition.running),
        (held(STARTING, 4, "2"), Condition.starting),
        (held(SETTLED, 1, "3"), Condition.settled),
    ]
    standing = reservations._standing(ACCOUNT, found)
    assert standing.reservations == tuple(found)
    assert standing.spent == epsilon(3)
    assert standing.epsilon == epsilon(10)
    assert standing.by_accountant == composed([cost(NOISE, 10)], DELTA)
    assert standing.left == ACCOUNT.epsilon - epsilon(10)
    over = replace(standing, epsilon=ACCOUNT.epsilon + 1.0)
    assert over.left == 0.0


def only(budget):
    ((one, _),) = reservations.standings(budget)[0].reservations
    return one


def test_what_is_written_of_a_run_names_it_its_machine_and_its_state(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    budget = tmp_path / "budget.sqlite"
    wanted = replace(request(Path("run-1"), NOISE, cost(NOISE, 2)))
    made = reservations.reserve(budget, wanted)
    assert re.fullmatch("[0-9a-f]{32}", made)
    one = only(budget)
    assert one == Reservation(
        identifier=made,
        data_sha256=ACCOUNT.data_sha256,
        run="run-1",
        directory=str(tmp_path / "run-1"),
        machine=platform.node(),
        state=STARTING,
        cost=cost(NOISE, 2),
    )
    reservations.confirm(budget, made)
    assert only(budget) == replace(one, state=RUNNING)
    # What was given away, or never made, is not confirmed.
    for unknown in (made, "0" * 32):
        with pytest.raises(BudgetError, match="was settled before the run began"):
            reservations.confirm(budget, unknown)
    again = replace(wanted, directory=Path("moved"), cost=cost(NOISE, 4))
    reservations.reserve_again(budget, made, again)
    moved = str(tmp_path / "moved")
    assert only(budget) == replace(one, state=RUNNING, directory=moved, cost=cost(NOISE, 4))
    standing = reservations.settle(budget, made, ())
    assert only(budget) == replace(one, state=SETTLED, directory=moved, cost=())
    assert (standing.spent, standing.epsilon, standing.left) == (0.0, 0.0, ACCOUNT.epsilon)
    with pytest.raises(BudgetError, match=f"has no reservation {'0' * 32}"):
        reservations.settle(budget, "0" * 32, ())


def test_a_run_that_goes_on_is_not_counted_beside_itself(tmp_path):
    budget = tmp_path / "budget.sqlite"
    account = replace(ACCOUNT, epsilon=epsilon(5))
    wanted = replace(request(tmp_path / "run", NOISE, cost(NOISE, 5)), account=account)
    made = reservations.reserve(budget, wanted)
    reservations.reserve_again(budget, made, wanted)
    assert only(budget).cost == cost(NOISE, 5)
    # One more step does not fit, and leaves what was reserved as it was.
    with pytest.raises(BudgetError, match="is left"):
        reservations.reserve_again(budget, made, replace(wanted, cost=cost(NOISE, 6)))
    assert only(budget).cost == cost(NOISE, 5)
