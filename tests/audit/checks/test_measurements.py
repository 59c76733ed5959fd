"""What the checks measure: the names under which readers find it, and counts and laws by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from audit.statistics.intervals import FALSE_ALARM
from audit.verdict import Finding, Verdict
from tests.audit.corruptions import audit_attested as audit_run
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import (
    Settings,
    build_run,
    read_entries,
    rewrite_ledger,
    rewrite_round,
    save,
)

_VIEW = "epsilon.pld epsilon.rdp epsilon.rdp-classic"
_QUANTILES = "quantiles." + " quantiles.".join(["levels", "expected", "low", "high", "verdicts"])
_OVER_ROUNDS = "over_rounds[].round over_rounds[].server over_rounds[].third_party"
_PROBE = (
    "probe.pairs probe.largest_difference_over_clipping_norm "
    "probe.largest_difference_of_a_replaced_one probe.tolerance probe.pairs_judged_in_float64"
)
_OUTSIDE = (
    "mean deviation as_printed_constants_would test_records_in_training "
    "share_of_records_with_an_equal"
)
_CLOSED_FORM = (
    *("name", "formula", "value", "towards"),
    *("reading", "compared_with", "compared_at_delta"),
)
_BLOCK = ("name", "size", "predicted", "released", "half_width")
_P_VALUES = "least_client_p_value overlap_p_value"

# Public and private names by check; what stands in a list is named once.
RECORD = {
    "integrity": ("ledger_lines rounds charges attested", ""),
    "promise": ("delta_records largest_client_records charges", ""),
    "partition": (
        "records clients",
        "held_by_two held_twice records_with_an_equal most_equal_records "
        "most_equal_records_of_one_client",
    ),
    "sensitivity": (
        f"{_PROBE} steps clients_tested",
        " ".join(f"batch_rate_p_values.{client}" for client in range(5))
        + " batch_dispersion empty_batches_p_value batch_ends_p_values.small"
        " batch_ends_p_values.large repeats_p_value most_frequent_record_p_value records_used"
        " share_clipped",
    ),
    "noise-scale": (
        f"queries coordinates sampled_coordinates tests half_width_sigma {_QUANTILES}",
        "variance_ratios kolmogorov_p_value largest_pair_correlation",
    ),
    "uploads": (
        "participations replayed tensors rounds_combined coordinates smallest_visible",
        "largest_share_of_a_clean_gradient_that_could_hide",
    ),
    "initial-weights": ("origin made_again", ""),
    "weights": ("tensors trained", ""),
    "reexecution": ("", ""),
    "accounting": (
        "delta epsilon clients[].client clients[].participations "
        + " ".join(f"clients[].{name}" for name in _VIEW.split())
        + f" clients[].claimed {_OVER_ROUNDS}",
        "",
    ),
    "views": (
        " ".join(f"server.{name}" for name in _VIEW.split())
        + " server_worst_case third_party "
        + " ".join(
            f"closed_forms[].{name}"
            for name in [
                "name",
                "formula",
                "value",
                "towards",
                "reading",
                "compared_with",
                "compared_at_delta",
            ]
        )
        + " delta_server",
        "",
    ),
    "participation": ("rounds clients clients_per_round", _P_VALUES),
    "publication": ("", ""),
    "disclosure": ("lines_of_metrics", ""),
    "second-moment": (
        "tau phi " + " ".join(f"blocks[].{n}" for n in _BLOCK),
        "shift_ratio share_of_coordinates_at_the_floor",
    ),
    "randomness": ("mode commitment", ""),
    "outside-budget": ("", _OUTSIDE),
}
CLIENT = {
    "integrity": RECORD["integrity"],
    "promise": ("delta_clients clients charges", ""),
    "partition": RECORD["partition"],
    "sensitivity": (_PROBE, "updates_used share_clipped"),
    "participation": (
        "rounds clients rate fixed_number_from fixed_cohort_from",
        f"total_p_value round_scatter_p_value client_scatter_p_value {_P_VALUES}",
    ),
    "coordinates": ("kind kept parameters", ""),
    "noise-scale": (
        f"rounds coordinates sampled_coordinates tests half_width_sigma {_QUANTILES}",
        RECORD["noise-scale"][1],
    ),
    "uploads": ("rounds replayed coordinates", ""),
    "initial-weights": ("origin made_again", ""),
    "weights": ("tensors trained", ""),
    "reexecution": ("", ""),
    "accounting": (
        "delta epsilon "
        + " ".join(f"third_party.{name}" for name in _VIEW.split())
        + f" third_party.rounds clients {_OVER_ROUNDS}",
        "",
    ),
    "views": ("noise_added_by server third_party closed_forms", ""),
    "publication": ("lines", ""),
    "disclosure": ("lines_of_metrics", ""),
    "second-moment": ("", ""),
    "randomness": ("mode commitment", ""),
    "outside-budget": ("", _OUTSIDE),
}
# What they are named after differs from run to run.
_BY_NAME_OF_THE_RUN = {"variance_ratios", "shift_ratio"}


def paths(value: Any, path: str = "") -> list[str]:
    """Names of all numbers, with those that they stand in."""
    if isinstance(value, dict) and value and path not in _BY_NAME_OF_THE_RUN:
        return [found for key in value for found in paths(value[key], f"{path}.{key}".lstrip("."))]
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        return paths(value[0], f"{path}[]")
    return [path] if path else []


@pytest.fixture(scope="module")
def record_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    return found(build_run(tmp_path_factory.mktemp("record") / "run", Settings()))


@pytest.fixture(scope="module")
def client_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    return found(build_client_run(tmp_path_factory.mktemp("client") / "run", ClientSettings()))


def found(run: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in audit_run(run).findings}


@pytest.mark.parametrize(("kind", "names"), [("record_run", RECORD), ("client_run", CLIENT)])
def test_every_number_stands_under_the_name_that_readers_know(
    kind: str, names: dict[str, tuple[str, str]], request: pytest.FixtureRequest
) -> None:
    findings = request.getfixturevalue(kind)
    assert set(findings) == set(names)
    for name, (public, private) in names.items():
        assert sorted(paths(findings[name].details)) == sorted(public.split()), name
        assert sorted(paths(findings[name].private)) == sorted(private.split()), name


def test_the_counts_of_a_run_of_single_records_are_those_of_its_settings(
    record_run: dict[str, Finding],
) -> None:
    s = Settings()
    charges = s.rounds * s.clients_per_round
    queries, parameters = charges * s.local_steps, sum(s.sizes)
    assert record_run["integrity"].details == {
        # The header, the charges, one line a round, the claim.
        "ledger_lines": 1 + charges + s.rounds + 1,
        "rounds": s.rounds,
        "charges": charges,
        "attested": True,
    }
    assert record_run["promise"].details["charges"] == charges
    assert record_run["partition"].details["clients"] == s.clients
    assert record_run["partition"].private == {
        "held_by_two": 0,
        "held_twice": 0,
        "records_with_an_equal": 0,
        "most_equal_records": 1,
        "most_equal_records_of_one_client": 1,
    }
    assert record_run["sensitivity"].details["steps"] == queries
    assert 1e-3 < record_run["sensitivity"].private["repeats_p_value"] <= 1.0
    noise = record_run["noise-scale"].details
    assert (noise["queries"], noise["coordinates"]) == (queries, parameters)
    assert noise["sampled_coordinates"] == s.sample
    # All queries together, each client, each block.
    assert noise["tests"] == 1 + s.clients + len(s.sizes) + s.rounds + s.local_steps
    uploads = record_run["uploads"].details
    assert (uploads["participations"], uploads["replayed"]) == (charges, charges)
    could_hide = record_run["uploads"].private["largest_share_of_a_clean_gradient_that_could_hide"]
    # Float32 has 24 bits, and a step adds up a few numbers.
    assert 2.0**-24 < could_hide < 1e-3
    assert (uploads["rounds_combined"], uploads["coordinates"]) == (s.rounds, parameters)
    accounting = record_run["accounting"].details
    assert accounting["delta"] == s.delta
    assert [row["client"] for row in accounting["clients"]] == sorted(range(s.clients))
    assert sum(row["participations"] for row in accounting["clients"]) == charges
    assert accounting["epsilon"] == max(row["epsilon"]["pld"] for row in accounting["clients"])
    assert all(row["claimed"] == row["epsilon"]["pld"] for row in accounting["clients"])
    assert record_run["randomness"].details == {"mode": "release", "commitment": "ab" * 32}
    moment = record_run["second-moment"].details
    assert moment["tau"] == s.rounds * s.local_steps
    deviation = s.noise_multiplier * s.clipping_norm / s.expected_batch_size
    assert moment["phi"] == pytest.approx(deviation**2, rel=1e-12)
    assert [(block["name"], block["size"]) for block in moment["blocks"]] == [
        (f"layer-{index}", size) for index, size in enumerate(s.sizes)
    ]
    # The recursion v = β₂v + (1 - β₂)Φ from 0, summed up.
    due = deviation**2 * (1.0 - s.beta2 ** moment["tau"])
    assert all(block["predicted"] == pytest.approx(due, rel=1e-9) for block in moment["blocks"])


def test_the_counts_of_a_run_of_whole_clients_are_those_of_its_settings(
    client_run: dict[str, Finding],
) -> None:
    s = ClientSettings()
    assert client_run["integrity"].details == {
        # The header, one charge and one line a round, the claim.
        "ledger_lines": 1 + 2 * s.rounds + 1,
        "rounds": s.rounds,
        "charges": s.rounds,
        "attested": True,
    }
    assert client_run["promise"].details == {
        "delta_clients": pytest.approx(s.delta * s.clients, rel=1e-12),
        "clients": s.clients,
        "charges": s.rounds,
    }
    assert client_run["noise-scale"].details["rounds"] == s.rounds
    # The sum, and each of its blocks.
    assert client_run["noise-scale"].details["tests"] == 1 + len(s.sizes) + s.rounds
    assert client_run["uploads"].details["replayed"] == s.rounds
    assert client_run["accounting"].details["third_party"]["rounds"] == s.rounds
    assert client_run["disclosure"].details["lines_of_metrics"] == s.rounds + 1
    assert client_run["publication"].details["lines"] == s.rounds


def test_where_clients_add_the_noise_each_clients_uploads_are_counted(tmp_path: Path) -> None:
    run = build_client_run(tmp_path / "run", ClientSettings(noise_added_by="clients"))
    findings = found(run)
    rows = findings["accounting"].details["clients"]
    rounds = cohorts(run)
    assert {row["client"]: row["participations"] for row in rows} == {
        client: sum(client in cohort for cohort in rounds)
        for client in {client for cohort in rounds for client in cohort}
    }
    for row in rows:
        assert set(row) == {"client", "participations", "epsilon", "claimed"}
        # Two accountants, each within 0.1 %.
        assert row["claimed"] == pytest.approx(row["epsilon"]["pld"], rel=2e-3)
    uploads = {f"noise of client {row['client']}" for row in rows}
    assert uploads < set(findings["noise-scale"].private["variance_ratios"])


def test_noise_with_a_part_that_never_changes_is_told_by_all_that_it_runs_along(
    tmp_path: Path,
) -> None:
    s = Settings(rounds=8, clients_per_round=5, local_steps=6)
    run = build_run(tmp_path / "run", s)
    # A tenth of the variance, which leaves the shape as it is.
    lasting = 0.1**0.5 * s.noise_multiplier * np.tile([1.0, -1.0], s.sample // 2)

    def share(arrays: dict[str, Any]) -> None:
        arrays["noise_sample"][:] = 0.9**0.5 * arrays["noise_sample"] + lasting

    for index in range(s.rounds):
        rewrite_round(run, index, share)
    measurement = found(run)["noise-scale"].measurement
    for along in ("clients", "steps", "rounds"):
        assert f"noise is correlated between {along}" in measurement


# Who takes part.


def cohorts(run: Path) -> list[list[int]]:
    rounds = [entry for entry in read_entries(run) if entry["kind"] == "round"]
    return [entry["clients"] for entry in rounds]


def test_a_fixed_number_of_clients_is_judged_by_the_exact_laws(tmp_path: Path) -> None:
    s = Settings(rounds=6)
    run = build_run(tmp_path / "run", s)
    finding = found(run)["participation"]
    chosen = cohorts(run)
    counts = np.bincount(np.concatenate(chosen), minlength=s.clients)
    rate = s.clients_per_round / s.clients
    law = stats.binom(s.rounds, rate)
    p_values = [min(1.0, 2 * min(law.cdf(count), law.sf(count - 1))) for count in counts]
    assert finding.private["least_client_p_value"] == pytest.approx(min(p_values), rel=1e-9)
    # Of S = 3 of N = 5, two rounds in succession are the same with probability 1/10 each.
    least = 1 + math.ceil(math.log(FALSE_ALARM * 0.5 / 2) / math.log(1 / 10))
    assert least == 5
    assert finding.power == ("the same clients every round are found from 5 rounds on (seen here)")


def test_a_run_is_told_when_it_is_too_short_to_show_a_fixed_cohort(tmp_path: Path) -> None:
    for rounds, told in ((4, "not in this run"), (5, "seen here")):
        run = build_run(tmp_path / str(rounds), Settings(rounds=rounds))
        assert found(run)["participation"].power.endswith(f"from 5 rounds on ({told})")


def test_clients_shared_by_independent_rounds_are_counted_in_pairs_of_their_own(
    tmp_path: Path,
) -> None:
    s = ClientSettings(rounds=7)
    run = build_client_run(tmp_path / "run", s)
    rounds = [set(cohort) for cohort in cohorts(run)]
    together = sum(len(rounds[index] & rounds[index + 1]) for index in (0, 2, 4))
    law = stats.binom(3 * s.clients, (s.clients_per_round / s.clients) ** 2)
    due = min(1.0, 2 * min(law.cdf(together), law.sf(together - 1)))
    finding = found(run)["participation"]
    assert finding.private["overlap_p_value"] == pytest.approx(due, rel=1e-9)


def test_every_client_in_every_round_needs_no_law_and_one_left_out_fails(tmp_path: Path) -> None:
    everybody = Settings(clients_per_round=5, client_sampling="poisson")
    run = build_run(tmp_path / "run", everybody)
    finding = found(run)["participation"]
    assert finding.verdict is Verdict.PASS
    assert finding.measurement == "with l = 1 every client is in every round"
    assert finding.details == {"rounds": 4, "clients": 5, "rate": 1.0}

    def leave_out(entries: list[dict[str, Any]]) -> None:
        first = next(entry for entry in entries if entry["kind"] == "round")
        for field in ("clients", "steps", "queries"):
            first[field] = first[field][:-1]

    rewrite_ledger(run, leave_out)
    finding = found(run)["participation"]
    assert finding.verdict is Verdict.FAIL
    assert finding.measurement == "l = 1, but a client was left out of a round"
    assert finding.details == {"rounds": 4, "clients": 5, "rate": 1.0}


@pytest.mark.parametrize("last", [True, False])
def test_a_round_that_is_missing_is_told_wherever_it_was(tmp_path: Path, last: bool) -> None:
    run = build_run(tmp_path / "run", Settings())

    def forget(entries: list[dict[str, Any]]) -> None:
        rounds = [entry for entry in entries if entry["kind"] == "round"]
        entries.remove(rounds[-1 if last else 1])

    rewrite_ledger(run, forget)
    measurement = found(run)["integrity"].measurement
    if last:
        assert "the finished rounds are not 0 to 3, each once" in measurement
    else:
        assert "round 2 ends where 1 should" in measurement


@pytest.mark.parametrize(
    "change", ["second claim", "claim before the last round"], ids=lambda change: change
)
def test_a_claim_that_is_not_the_one_last_line_is_told(tmp_path: Path, change: str) -> None:
    run = build_run(tmp_path / "run", Settings())

    def claim(entries: list[dict[str, Any]]) -> None:
        last = entries.pop()
        entries += [last, last] if change == "second claim" else []
        if change != "second claim":
            entries.insert(-1, last)

    rewrite_ledger(run, claim)
    told = found(run)["integrity"]
    assert told.verdict is Verdict.FAIL
    assert "the claim is not the one last line" in told.measurement


def test_a_round_of_whole_clients_that_was_never_charged_is_not_judged(tmp_path: Path) -> None:
    run = build_client_run(tmp_path / "run", ClientSettings())

    def forget(entries: list[dict[str, Any]]) -> None:
        entries.remove(next(e for e in entries if e["kind"] == "spend" and e["round"] == 2))

    rewrite_ledger(run, forget)
    noise = found(run)["noise-scale"]
    assert noise.verdict is Verdict.NOT_VERIFIED
    assert noise.measurement == "round 2: was never charged"


# Records whose numbers were measured.


def test_clients_without_numbers_beside_others_do_not_make_a_run_unmeasured(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Settings())

    with np.load(run / "evidence" / "inputs.npz") as file:
        arrays = dict(file)
    arrays["numbers"][0] = arrays["varying"][0] = 0
    save(run / "evidence" / "inputs.npz", arrays)
    finding = found(run)["outside-budget"]
    assert finding.verdict is Verdict.PASS
    assert "records scaled by themselves" in finding.measurement


# Metrics.


def test_lines_of_metrics_that_could_not_be_read_are_not_counted(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Settings())
    (run / "metrics.jsonl").write_text("{torn")
    finding = found(run)["disclosure"]
    assert finding.verdict is Verdict.NOT_VERIFIED
    assert finding.details == {"lines_of_metrics": 0}
