"""Records, their scaling, batches and keys: what is held against what, and what each fault says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from audit.checks import unaccounted_processing
from audit.checks.disclosure import _public, shown
from audit.checks.randomness import _obvious_keys, intents_in_words, obvious_commitments
from audit.checks.unaccounted_processing import between_its_extremes, scaled_by_themselves
from audit.probe.updates import ROUND_KINDS, UPDATE_KINDS
from audit.reading.bundle import Bundle
from audit.reading.evidence import Moments, Reach
from audit.reading.ledger import Resume
from audit.statistics.intervals import FALSE_ALARM
from tests.audit.checks.opened import changed, judged, says

KINDS = ("of_records", "of_clients")


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest) -> Bundle:
    """A correct run of either unit."""
    bundle: Bundle = request.getfixturevalue(request.param)
    return bundle


# Whose record is whose.


def test_a_record_of_a_client_that_there_is_not_is_found(run: Bundle) -> None:
    holdings, clients = run.holdings(), run.header.clients
    for client, said in (
        (clients, "evidence/partition.npz: a record belongs to a client that does not exist"),
        (clients - 1, "was not given the declared number of records"),
    ):
        owners = holdings.client_of_record.copy()
        owners[np.flatnonzero(owners == 0)[0]] = client
        other = replace(holdings, client_of_record=owners)
        verdict, text = says(changed(run, files={"holdings": other}), "partition")
        assert verdict == "FAIL"
        assert said in text


def test_each_client_is_given_and_works_on_as_many_records_as_declared(run: Bundle) -> None:
    records = list(run.header.records)
    records[1] += 1
    text = says(changed(run, header={"records": tuple(records)}), "partition")[1]
    assert text == (
        "evidence/partition.npz: client 1 was not given the declared number of records; "
        "evidence/partition.npz: client 1 does not work on the declared number of records"
    )


def test_a_partition_of_other_clients_or_records_is_found(run: Bundle) -> None:
    holdings, records = run.holdings(), run.records()
    fewer = replace(holdings, offsets=holdings.offsets[:-1])
    verdict, text = says(changed(run, files={"holdings": fewer}), "partition")
    many = run.header.clients
    assert (verdict, text) == (
        "FAIL",
        f"evidence/partition.npz: it does not say what {many} clients hold",
    )
    cut = replace(records, rows=records.rows[:-1])
    assert (
        "it does not cover the training records"
        in says(changed(run, files={"records": cut}), "partition")[1]
    )


def test_records_held_by_two_and_held_twice_are_counted_apart(run: Bundle) -> None:
    holdings = run.holdings()
    cut = int(holdings.offsets[1])
    held = holdings.held.copy()
    held[1] = held[0]
    held[cut] = held[2]
    held[cut + 1] = held[3]
    found = judged(changed(run, files={"holdings": replace(holdings, held=held)}), "partition")
    assert found.private["held_by_two"] == 2
    assert found.private["held_twice"] == 1
    assert "a record is held by two clients" in found.measurement
    assert "a client holds a record twice" in found.measurement


def test_equal_records_are_counted_over_all_and_in_one_client(run: Bundle) -> None:
    holdings, records = run.holdings(), run.records()
    assert records.contents is not None
    contents = records.contents.copy()
    own = np.flatnonzero(holdings.client_of_record == 0)
    other = np.flatnonzero(holdings.client_of_record == 1)
    # Five alike, three of them in one client; and another pair.
    contents[[*own[:3], *other[:2]]] = contents[own[0]]
    contents[other[5]] = contents[other[4]]
    private = judged(
        changed(run, files={"records": replace(records, contents=contents)}), "partition"
    ).private
    assert private["records_with_an_equal"] == 7
    assert private["most_equal_records"] == 5
    assert private["most_equal_records_of_one_client"] == 3
    assert "with 5 equal records is protected less" in str(private["group_privacy"])
    # Of records that are not told apart nothing is said.
    untold = judged(changed(run, files={"records": replace(records, contents=None)}), "partition")
    assert untold.verdict.value == "PASS"
    assert set(untold.private) == {"held_by_two", "held_twice"}


def test_the_rows_held_out_for_testing_are_those_that_the_seed_draws(run: Bundle) -> None:
    records = run.records()
    many, seed = len(records.rows), 9
    read = round(many / 0.8)

    def divided(rows: np.ndarray) -> str:
        spec = changed(
            run,
            spec=lambda s: s["data"].update(test_fraction=0.2, seed=seed),
            files={"records": replace(records, records=read, rows=rows)},
        )
        return says(spec, "partition")[1]

    said = "the records held out for testing are not those that the spec's seed draws"
    drawn = np.random.default_rng(seed).permutation(read)[round(read * 0.2) :]
    assert said in divided(records.rows)
    assert said not in divided(drawn[:many])
    broken = changed(run, spec=lambda s: s["data"].update(test_fraction=2.0))
    assert says(broken, "partition") == (
        "FAIL",
        "spec.yaml: test_fraction is not a number from 0 to 1",
    )


def test_a_division_that_the_seed_does_not_draw_is_found(run: Bundle) -> None:
    def divided(seed: int) -> str:
        def spec(promised: dict[str, Any]) -> None:
            promised["data"].update(
                seed=seed, partition={"kind": "iid", "minimum_records": 1, "seed": None}
            )

        return says(changed(run, spec=spec), "partition")[1]

    assert "the partition is not the one that the spec's seed draws" in divided(3)


def test_rounds_whose_rows_are_not_recorded_are_not_verified(run: Bundle) -> None:
    silent = changed(run, evidence={1: {"rows_sha256": None}})
    assert says(silent, "partition") == (
        "NOT VERIFIED",
        "round 1: the rows that it used are not recorded",
    )


def test_a_pass_says_how_many_participations_were_looked_at(run: Bundle) -> None:
    rounds = run.readable_ledger.rounds
    many = sum(len(item.clients) for item in rounds)
    found = judged(run, "partition")
    assert f"In {many} participations the rows used are the client's own" in found.measurement
    assert "the data name each record's client" in found.measurement
    assert found.details == {"records": sum(run.header.records), "clients": run.header.clients}


# Scaling.


def moments(mean: float, deviation: float, numbers: int = 64, varying: int = 64) -> Moments:
    return Moments(
        np.array([numbers]), np.array([mean]), np.array([deviation]), np.array([varying])
    )


@pytest.mark.parametrize(
    ("found", "scaled"),
    [
        (moments(0.0, 1.0), True),
        (moments(4.9e-6, 1.0), True),
        (moments(-5.1e-6, 1.0), False),
        (moments(5.1e-6, 1.0), False),
        (moments(0.0, 1.0 + 4.9e-6), True),
        (moments(0.0, 1.0 + 5.1e-6), False),
        (moments(0.0, 1.0 - 5.1e-6), False),
        # Where only 48 of 64 columns vary, their variance alone is 1.
        (moments(0.0, 0.75**0.5, varying=48), True),
        (moments(0.0, 0.75**0.5), False),
        (moments(0.0, 1.0, varying=0), False),
        (moments(0.0, 1.0, numbers=1, varying=1), False),
        (moments(0.0, 1.0, numbers=2, varying=2), True),
    ],
)
def test_only_numbers_scaled_by_themselves_have_mean_0_and_deviation_1(
    found: Moments, scaled: bool
) -> None:
    assert scaled_by_themselves(found, 0, 5e-6) is scaled


def reach(**changes: Any) -> Reach:
    given = {
        "least": 0.0, "greatest": 1.0, "lowest": 2, "highest": 2, "continuous": 4, "spanning": 0,
    }  # fmt: skip
    return Reach(**{name: np.array([value]) for name, value in {**given, **changes}.items()})


@pytest.mark.parametrize(
    ("found", "scaled"),
    [
        (reach(), True),
        (reach(least=-1.0), True),
        (reach(least=-0.5), False),
        (reach(greatest=0.5), False),
        (reach(lowest=3), False),
        (reach(highest=3), False),
        (reach(continuous=0), False),
        (reach(continuous=0, spanning=0, lowest=9), False),
        (reach(greatest=0.5, spanning=4), True),
        (reach(greatest=0.5, spanning=3), False),
        (reach(greatest=0.5, continuous=1, spanning=1), True),
    ],
)
def test_only_continuous_numbers_scaled_by_their_ends_reach_from_0_to_1(
    found: Reach, scaled: bool
) -> None:
    assert between_its_extremes(found, 0) is scaled


def test_one_client_by_itself_is_not_each_client(run: Bundle) -> None:
    many = run.header.clients

    def said(clients: int, own: int) -> str:
        values = {"least": -2.5, "greatest": 3.1, "lowest": 1, "highest": 1}
        values |= {"continuous": 10, "spanning": 0}
        arrays = {name: np.array([value] * (clients + 1)) for name, value in values.items()}
        arrays["spanning"][:own] = 10
        found = replace(run.moments(), reach=Reach(**arrays))
        return says(changed(run, files={"moments": found}), "outside-budget")[1]

    each = "each client's records range from exactly 0"
    assert said(many, many).startswith(each)
    assert each not in said(many, many - 1)
    # Of a run with one client nothing is said twice.
    assert each not in said(1, 1)


def test_one_client_that_is_scaled_by_itself_is_not_each_client(run: Bundle) -> None:
    many = run.header.clients

    def said(own: int, numbers: int = 64) -> str:
        means = np.where(np.arange(many + 1) < own, 0.0, 0.25)
        found = replace(
            run.moments(), reach=None, mean=means, deviation=np.ones(many + 1),
            numbers=np.full(many + 1, numbers), varying=np.full(many + 1, numbers),
        )  # fmt: skip
        return says(changed(run, files={"moments": found}), "outside-budget")[1]

    each = "each client's records have mean 0 and deviation 1 to the last digit"
    assert said(many).startswith(each)
    assert each not in said(many - 1)
    assert each not in said(1)
    # Clients with one number each have no deviation to be scaled by.
    assert each not in said(many, numbers=1)
    assert said(many, numbers=2).startswith(each)


def test_moments_of_other_clients_than_the_runs_are_found(run: Bundle) -> None:
    found = run.moments()
    fewer = replace(
        found, numbers=found.numbers[1:], mean=found.mean[1:], deviation=found.deviation[1:],
        varying=found.varying[1:],
    )  # fmt: skip
    assert says(changed(run, files={"moments": fewer}), "outside-budget") == (
        "FAIL",
        "evidence/inputs.npz: it does not cover every client",
    )


def test_test_records_may_have_equals_as_often_as_chance_and_one_in_a_hundred_make_it(
    run: Bundle,
) -> None:
    records = run.records()
    assert records.contents is not None
    assert records.test_contents is not None
    many = len(records.test_contents)
    # The largest number that one in a hundred makes with a chance of 1/1000 at least.
    allowed = max(k for k in range(many) if binom.sf(k - 1, many, 0.01) >= FALSE_ALARM)
    for seen, verdict in ((0, "PASS"), (allowed, "PASS"), (allowed + 1, "FAIL")):
        tested = records.test_contents.copy()
        tested[:seen] = records.contents[:seen]
        found = judged(
            changed(run, files={"records": replace(records, test_contents=tested)}),
            "outside-budget",
        )
        assert found.verdict.value == verdict
        assert found.private["test_records_in_training"] == seen
        assert found.private["share_of_records_with_an_equal"] == 0.0


def test_the_share_of_records_with_an_equal_is_of_all_training_records(run: Bundle) -> None:
    records = run.records()
    assert records.contents is not None
    contents = records.contents.copy()
    contents[:30] = contents[0]
    private = judged(
        changed(run, files={"records": replace(records, contents=contents)}), "outside-budget"
    ).private
    assert private["share_of_records_with_an_equal"] == pytest.approx(30 / len(contents))


@pytest.mark.parametrize("name", ["contents", "test_contents"])
def test_records_that_are_not_told_apart_are_not_compared(run: Bundle, name: str) -> None:
    untold = replace(run.records(), **{name: None})
    found = judged(changed(run, files={"records": untold}), "outside-budget")
    assert found.verdict.value == "PASS"
    assert "test_records_in_training" not in found.private


def test_what_a_claim_must_say_is_asked_for_by_its_words(of_records: Bundle) -> None:
    said = (of_records.readable_ledger.claim or {})["assumptions"]

    def left_out(word: str) -> str:
        kept = [one for one in said if word not in one]
        assert len(kept) == len(said) - 1
        run = changed(of_records, claim=lambda c: c.update(assumptions=kept))
        return says(run, "outside-budget")[1]

    assert left_out("tuned").startswith("the claim does not say that hyper-parameters")
    assert left_out("belongs to one").startswith(
        "the claim does not say what neighbouring data sets"
    )
    assert left_out("sampling rate").startswith("the claim does not say that the sampling rate")
    run = changed(of_records, claim=lambda c: c.pop("assumptions"))
    assert "claim: assumptions is missing" in says(run, "outside-budget")[1]
    nothing = changed(of_records, ledger={"claim": None})
    assert says(nothing, "outside-budget")[1].startswith(
        "there is no claim that could state its assumptions"
    )
    header = {"rate_assumption": "the rate is 3"}
    rests = changed(of_records, header=header)
    assert says(rests, "outside-budget")[1] == (
        "the claim does not state what the ledger's header says about sampling rates"
    )
    noted = changed(
        of_records, header=header, claim=lambda c: c["assumptions"].append("the rate is 3")
    )
    assert says(noted, "outside-budget")[0] == "PASS"


def test_sizes_are_public_where_poisson_draws_of_records_are_made_alone(
    of_records: Bundle, of_clients: Bundle
) -> None:
    kept = (of_records.readable_ledger.claim or {})["assumptions"][:-1]
    fixed = changed(
        of_records,
        header={"sampling": "fixed-size"},
        claim=lambda c: c.update(assumptions=kept),
    )
    assert says(fixed, "outside-budget")[0] == "PASS"
    assert says(of_clients, "outside-budget")[0] == "PASS"
    assert unaccounted_processing._sizes(of_records.header)
    assert not unaccounted_processing._sizes(fixed.header)


# Keys and seeds.


def test_the_keys_that_anybody_would_try_are_those_of_bytes_and_small_seeds() -> None:
    keys = list(_obvious_keys())
    assert {len(key) for key in keys} == {32}
    # 256 bytes repeated; for seeds 0 to 4095 three digests and three numbers written out.
    assert len(keys) == 256 + 4096 * 6
    for key in (
        bytes(32),
        b"\xff" * 32,
        hashlib.sha256((4095).to_bytes(8, "big")).digest(),
        hashlib.sha256((4095).to_bytes(8, "little")).digest(),
        hashlib.sha256(b"4095").digest(),
        (4095).to_bytes(32, "big"),
        (4095).to_bytes(32, "little"),
        b"4095" + bytes(28),
    ):
        assert key in keys
    assert (4096).to_bytes(32, "big") not in keys
    commitment = hashlib.sha256(b"dpfedadamw release key commitment 1\x00" + bytes(32))
    assert commitment.hexdigest() in obvious_commitments()


@pytest.mark.parametrize(
    ("header", "resumes", "said"),
    [
        ({"commitment": None}, (), "release mode without a commitment to the key"),
        ({"commitment": "AB" * 32}, (), "release mode without a commitment to the key"),
        ({"commitment": "ab" * 33}, (), "release mode without a commitment to the key"),
        ({"seed": 3}, (), "release mode, but a seed is stored"),
        ({}, (None,), "release mode, but the run continued without a commitment to its new key"),
        ({}, ("cd" * 31,), "release mode, but the run continued without a commitment"),
        ({}, ("ab" * 32,), "the run continued with a key that was used before: noise may repeat"),
        ({}, ("cd" * 32, "cd" * 32), "the run continued with a key that was used before"),
        ({}, ("cd" * 32, "ef" * 32), None),
    ],
)
def test_a_released_run_is_committed_to_a_new_key_whenever_it_goes_on(
    run: Bundle, header: dict[str, Any], resumes: tuple[str | None, ...], said: str | None
) -> None:
    went_on = tuple(Resume(50 + at, 1, one) for at, one in enumerate(resumes))
    verdict, text = says(changed(run, header=header, ledger={"resumes": went_on}), "randomness")
    assert (verdict == "PASS") == (said is None)
    assert said is None or text.startswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(seed=7), "release mode, but a seed is stored"),
        (lambda r: r.update(mode="reproducible"), "the spec says reproducible, the ledger release"),
        (lambda r: r.update(mode="secret"), "spec.yaml: mode is not one of release, reproducible"),
    ],
)
def test_the_specs_mode_is_the_ledgers(
    run: Bundle, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    verdict, text = says(changed(run, spec=lambda s: change(s["randomness"])), "randomness")
    assert verdict == "FAIL"
    assert text.startswith(said)


@pytest.mark.parametrize(
    ("spec", "ledger", "right"), [(7, 7, True), (7, 8, False), (None, None, False)]
)
def test_a_reproducible_run_names_one_seed_in_both(
    run: Bundle, spec: int | None, ledger: int | None, right: bool
) -> None:
    other = changed(
        run,
        spec=lambda s: s["randomness"].update(mode="reproducible", seed=spec),
        header={"randomness": "reproducible", "seed": ledger, "commitment": None},
    )
    verdict, text = says(other, "randomness")
    assert (verdict == "PASS") is right
    assert right or text.startswith("reproducible mode, but spec and ledger do not name the same")
    found = judged(other, "randomness")
    assert found.qualifications == (
        "reproducible mode: not a privacy guarantee to anyone who knows the seed",
    )
    assert found.details == {"mode": "reproducible", "commitment": None}


def test_runs_that_came_to_nothing_are_told_in_numbers() -> None:
    assert intents_in_words(5, 2) == (
        "the trainer had announced 5 runs to the auditor, including this one; 2 of the earlier "
        "ones led to no run that was opened, recomputed and found to pass"
    )


# Words and numbers outside the evidence.


def test_names_are_shown_up_to_64_characters_and_never_raw() -> None:
    assert shown("a" * 64) == repr("a" * 64)
    assert shown("a" * 65) == repr("a" * 64 + "…")
    assert shown("a\x1b[31m") == repr("'a\\x1b[31m'")


@pytest.mark.parametrize(
    ("key", "value", "public"),
    [
        ("test_loss", 0.5, True),
        ("test_loss", None, True),
        ("test_loss", "0.5", False),
        ("test_loss", [0.5], False),
        ("test_loss", {"a": 1}, False),
        ("test_classes", [[1, 2], [3, 4]], True),
        ("test_classes", [], True),
        ("test_classes", [[1, 2.0]], False),
        ("test_classes", [[1, True]], False),
        ("test_classes", [[1]], False),
        ("test_classes", [1, 2], False),
        ("test_classes", 5, False),
        ("test_classes", [[1, 2], "private"], False),
    ],
)
def test_a_public_metric_is_a_number_or_pairs_of_counts(key: str, value: Any, public: bool) -> None:
    assert _public(key, value) is public


# Norms and batches.


def sensitivity(bundle: Bundle, **changes: Any) -> tuple[str, str]:
    return says(changed(bundle, evidence={1: changes}), "sensitivity")


def test_norms_are_counted_with_the_batches_that_they_are_of(of_records: Bundle) -> None:
    evidence = of_records.round_evidence(1)
    sizes = evidence.batch_size.copy()
    sizes[2, 1] += 1
    assert (
        "round 1: as many norms as records are not recorded"
        in sensitivity(of_records, batch_size=sizes)[1]
    )
    counted = evidence.nonfinite.copy()
    counted[0, 0] += 1
    assert sensitivity(of_records, nonfinite=counted) == (
        "FAIL",
        "round 1: the count of non-finite gradients is not that of the norms",
    )


def test_every_use_of_a_record_is_counted(of_records: Bundle) -> None:
    used = of_records.round_evidence(1).inclusions
    for other in (used[:-1], np.append(used, 0)):
        assert (
            "round 1: not every record's use is counted"
            in sensitivity(of_records, inclusions=other)[1]
        )


def test_a_participation_that_was_never_charged_has_no_batches_to_judge(
    of_records: Bundle,
) -> None:
    read = of_records.readable_ledger
    first = read.spends[0]
    run = changed(of_records, ledger={"spends": read.spends[1:]})
    assert says(run, "sensitivity") == (
        "NOT VERIFIED",
        f"round 0: client {first.client} was never charged",
    )


@pytest.mark.parametrize("sampling", [None, "by hand"])
def test_of_a_sampler_that_is_not_known_nothing_is_verified(
    of_records: Bundle, sampling: str | None
) -> None:
    verdict, text = says(changed(of_records, header={"sampling": sampling}), "sensitivity")
    assert (verdict, text) == (
        "NOT VERIFIED",
        f"the sampler {(sampling or '')!r} is unknown",
    )


def test_norms_cannot_be_judged_without_a_clipping_norm(run: Bundle) -> None:
    assert says(changed(run, header={"clipping_norm": None}), "sensitivity") == (
        "NOT VERIFIED",
        "the ledger's header lacks C",
    )


def test_the_share_that_was_clipped_is_of_all_and_counts_what_is_not_finite(run: Bundle) -> None:
    kind = "records" if run.header.unit.name == "record" else "updates"
    raw = np.concatenate(
        [
            run.evidence_of_round(index, run.header.unit).raw_norms
            for index in range(run.header.rounds)
        ]
    )
    private = judged(run, "sensitivity").private
    clipped = np.count_nonzero((raw > 0.5) | ~np.isfinite(raw))
    assert private[f"{kind}_used"] == len(raw)
    assert private["share_clipped"] == pytest.approx(clipped / len(raw))


def test_updates_that_are_not_finite_are_counted(of_clients: Bundle) -> None:
    evidence = of_clients.update_round(1)
    assert sensitivity(of_clients, nonfinite=evidence.nonfinite + 1) == (
        "FAIL",
        "round 1: the count of non-finite updates is not the norms'",
    )


def test_the_probe_pokes_with_every_kind_of_update_and_round(of_clients: Bundle) -> None:
    probe = of_clients.probe_results()

    def without(kind: str) -> tuple[str, str]:
        kept = [at for at, one in enumerate(probe.kinds) if one != kind]
        cut = replace(
            probe,
            names=tuple(probe.names[at] for at in kept),
            kinds=tuple(probe.kinds[at] for at in kept),
            batch_size=probe.batch_size[kept],
            difference_norm=probe.difference_norm[kept],
            norm_with=probe.norm_with[kept],
            norm_without=probe.norm_without[kept],
        )
        return says(changed(of_clients, files={"probe_results": cut}), "sensitivity")

    told = {kind: without(kind) for kind in (*UPDATE_KINDS, *ROUND_KINDS)}
    assert {verdict for verdict, _ in told.values()} == {"NOT VERIFIED"}
    assert {text for _, text in told.values()} == {
        "the probe was not one of whole updates, or not of all their kinds",
        "the probe summed made-up updates: the clients' local training was not exercised",
    }
