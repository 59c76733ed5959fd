"""Privacy claims judged without a run: readings, verdicts, shipped claims, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from audit.__main__ import main
from audit.extensions.claims import (
    Claim,
    ClaimError,
    ClaimVerdict,
    Reading,
    judge_claim,
    judgement,
    load_claim,
    overview,
    parse_claim,
    readings,
    rendering,
)
from audit.extensions.claims.claim import schema_text, shipped
from audit.extensions.claims.overview import BEGIN, END, table
from audit.extensions.claims.readings import value_of

DOCS = Path(__file__).resolve().parents[4] / "docs" / "claims.md"


def content(**changes: Any) -> dict[str, Any]:
    """The setting of DP-FedAdamW, Table 15, as a claim with every field stated."""
    claim: dict[str, Any] = {
        "version": 1,
        "source": {"paper": "A paper", "where": "Table 1", "says": "It is private."},
        "privacy": {"unit": "record", "adjacency": "add-remove", "delta": 1e-5},
        "federation": {"clients": 50, "participation": 0.1, "local_steps": 20, "rounds": 100},
        "sampling": {"kind": "poisson", "batch_size": 16, "records_per_client": 1000},
        "mechanism": {"clipping": "per-record", "clipping_norm": 0.1, "noise_multiplier": 1.0},
        "claimed": {"epsilon": 2.0, "towards": "server"},
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if value is None:
            claim[section].pop(key)
        elif key:
            claim.setdefault(section, {})[key] = value
        else:
            claim[section] = value
    return claim


def claim(**changes: Any) -> Any:
    return parse_claim(yaml.safe_dump(content(**changes)).encode(), "claim.yaml")


def values(**changes: Any) -> dict[str, float]:
    return {one.key: one.value for one in readings(claim(**changes))}


def test_readings_meet_the_reference_points() -> None:
    found = values()
    assert found["every-round"] == pytest.approx(4.363, abs=1e-3)
    assert found["expected-rounds"] == pytest.approx(1.476, abs=1e-3)
    literal = {"printed": "(C/sR) N(0, sigma^2 C^2 I)", "standard_deviation": "sigma*C^2"}
    once = values(mechanism__noise=literal, federation__rounds=1)
    # Twenty steps at a true multiplier of C = 0.1.
    assert once["every-round/noise-as-printed"] == pytest.approx(227.4, abs=0.5)


def test_the_accountants_agree_with_dp_accounting() -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    pld = dp_accounting.pld.privacy_loss_distribution
    found = values(sampling__kind="unstated")

    def composed(sigma: float, rate: float, steps: int, replace_one: bool = False) -> float:
        # A record that is replaced moves the sum twice as far.
        scale = sigma / 2.0 if replace_one else sigma
        single = pld.from_gaussian_mechanism(
            scale, sampling_prob=rate, value_discretization_interval=1e-3
        )
        return float(single.self_compose(steps).get_epsilon_for_delta(1e-5))

    # Both round upwards on grids of their own; 1 % is ten times what they differ by.
    assert found["every-round"] == pytest.approx(composed(1.0, 0.016, 2000), rel=1e-2)
    # The worst pair for fixed sizes costs no less than one pair of data sets whose cost the library
    # can compose, a Poisson draw at half the noise. How much more is judged beside the engine.
    least = composed(1.0, 0.016, 2000, replace_one=True)
    assert least * 0.99 <= found["every-round/fixed-size"] <= 1.3 * least
    accountant = dp_accounting.rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.016, dp_accounting.GaussianDpEvent(1.0))
    accountant.compose(event, 2000)
    # Their grid of orders is coarser, so theirs is the larger one, by under 1 %.
    theirs = accountant.get_epsilon(1e-5)
    assert theirs * 0.99 <= found["every-round/rdp"] <= theirs * 1.0001
    # Shuffled epochs: each of the 100 participations uses the record once, unamplified.
    gaussian = pld.from_gaussian_mechanism(0.5, value_discretization_interval=1e-2)
    shuffled = float(gaussian.self_compose(100).get_epsilon_for_delta(1e-5))
    assert found["every-round/shuffled"] == pytest.approx(shuffled, rel=1e-2)


def test_the_third_party_lies_between_nobody_and_everybody() -> None:
    found = values()
    assert found["expected-rounds"] < found["mixture"] < found["every-round"]
    assert found["client-amplified"] < found["mixture"] / 4
    assert not next(one for one in readings(claim()) if one.key == "client-amplified").bounds


def test_where_every_client_is_in_every_round_a_third_party_knows_as_much_as_the_server() -> None:
    found = values(federation__participation=1.0)
    assert "every-round" in found
    assert not {"expected-rounds", "mixture"} & set(found)


def test_closed_forms_are_evaluated_as_printed() -> None:
    found = values()
    logs = math.log(2 / 1e-5) * math.log(200 / 1e-5)
    server = 0.016 * math.sqrt(100 * 20 * logs)
    assert found["equation-13"] == found["server-noble"] == pytest.approx(server)
    assert found["equation-14"] == pytest.approx(server * math.sqrt(500))
    assert found["third-party-noble"] == pytest.approx(server / math.sqrt(500))


def test_a_clipped_batch_mean_has_no_finite_epsilon() -> None:
    judged = judge_claim(claim(mechanism__clipping="batch-mean", claimed__epsilon=1e6))
    assert judged.verdict is ClaimVerdict.UNDERSTATED
    assert "no finite epsilon" in judged.reason
    assert json.dumps(judged.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("epsilon", "verdict"),
    [
        (5.42, ClaimVerdict.CONSERVATIVE),
        (4.7, ClaimVerdict.CONSISTENT),
        (1.5, ClaimVerdict.CONSISTENT),
        (1.4, ClaimVerdict.UNDERSTATED),
    ],
)
def test_each_verdict_has_its_range(epsilon: float, verdict: ClaimVerdict) -> None:
    assert judge_claim(claim(claimed__epsilon=epsilon)).verdict is verdict


def test_a_claim_that_covers_fixed_sizes_covers_everything_here() -> None:
    epsilon = values(sampling__kind="fixed")["every-round/fixed-size"]
    above = judge_claim(claim(sampling__kind="fixed", claimed__epsilon=1.01 * epsilon))
    assert above.verdict is ClaimVerdict.CONSERVATIVE
    below = judge_claim(claim(sampling__kind="fixed", claimed__epsilon=0.98 * epsilon))
    assert below.verdict is ClaimVerdict.CONSISTENT
    assert "it is below every-round/fixed-size" in below.reason


def test_a_claim_equals_a_reading_to_its_digits_and_covers_one_that_is_smaller() -> None:
    found = values()
    equal = judge_claim(claim(claimed__epsilon=round(found["expected-rounds"], 3)))
    assert " equals expected-rounds = " in equal.reason
    assert " covers " not in equal.reason
    between = (found["expected-rounds"] + found["mixture"]) / 2.0
    covering = judge_claim(claim(claimed__epsilon=between))
    assert " covers expected-rounds = " in covering.reason
    assert " equals " not in covering.reason
    for judged in (equal, covering):
        assert judged.verdict is ClaimVerdict.CONSISTENT


@pytest.mark.parametrize(
    ("records", "batch", "local", "uses"),
    # 3/10 times 10 in floating point is 3, and 7/25 times 25 a little more than 7.
    [(10, 3, 10, 3), (25, 7, 25, 7), (1000, 16, 20, 1), (1000, 16, 63, 2), (49, 1, 49, 1)],
)
def test_an_epoch_of_shuffled_records_uses_each_once_whatever_rounding_says(
    records: int, batch: int, local: int, uses: int
) -> None:
    sampling = {"kind": "shuffled", "batch_size": batch, "records_per_client": records}
    found = values(sampling=sampling, federation__local_steps=local, federation__rounds=1)
    # So many Gaussian answers at σ/2 are one at σ/(2·√uses): the exact curve of Balle & Wang.
    mu = 2.0 * math.sqrt(uses)
    epsilon = found["every-round/shuffled"]

    def above(deviations: float) -> float:
        return 0.5 * math.erfc(deviations / math.sqrt(2.0))

    def delta(at: float) -> float:
        return above(at / mu - mu / 2) - math.exp(at) * above(at / mu + mu / 2)

    # What is found is at most 0.1 % more than the exact ε.
    assert delta(epsilon) <= 1e-5 * (1 + 1e-6)
    assert delta(0.999 * epsilon) > 1e-5


def test_only_readings_towards_the_stated_view_decide() -> None:
    judged = judge_claim(claim(claimed={"epsilon": 1.6, "towards": "third-party"}))
    assert judged.relevant == {"mixture"}
    assert judged.verdict is ClaimVerdict.CONSERVATIVE


def test_what_is_not_stated_is_named_and_never_guessed() -> None:
    judged = judge_claim(claim(privacy__delta=None, sampling={"batch_size": 16}))
    assert judged.verdict is ClaimVerdict.NOT_DETERMINABLE
    assert judged.reason == "not stated: delta, sampling rate"
    assert judged.readings == ()
    supposed = content(privacy__delta=None)
    supposed["suppose"] = {"delta": 1e-5}
    judged = judge_claim(parse_claim(yaml.safe_dump(supposed).encode(), "x"))
    assert judged.verdict is ClaimVerdict.NOT_DETERMINABLE
    assert "supposing delta = 1e-05 it would be CONSISTENT" in judged.reason


def test_the_implied_noise_multiplier_gives_the_claimed_epsilon() -> None:
    stated = claim(mechanism__noise_multiplier=None)
    judged = judge_claim(stated)
    assert set(judged.implied) == {"every-round", "expected-rounds"}
    for key, sigma in judged.implied.items():
        epsilon = value_of(replace(stated, noise_multiplier=sigma), key)
        # σ is found to 0.1 %, and ε moves about twice as fast.
        assert 2.0 * 0.995 <= epsilon <= 2.0


def test_two_queries_on_one_batch_cost_more_than_twice_here() -> None:
    judged = judge_claim(
        claim(
            mechanism__queries_per_step=2,
            claimed={"times_one_query": 2.0, "towards": "server"},
        )
    )
    times = {one.key: one.value for one in judged.readings}
    plain = {one.key: one.value for one in readings(claim())}
    joint = {one.key: one.value for one in readings(claim(mechanism__noise_multiplier=2.0**-0.5))}
    assert times["every-round"] == pytest.approx(joint["every-round"] / plain["every-round"])
    assert times["every-round/apart"] < 2.0 < times["every-round"]
    # Queries on one batch cost more than on two, so the cheaper reading bounds nothing.
    assert judged.verdict is ClaimVerdict.UNDERSTATED


def test_a_server_that_sees_single_uploads_is_told_apart_at_client_level() -> None:
    noise = {"printed": "N(0, sigma^2 C^2 I/m)", "standard_deviation": "sigma*C/sqrt(m)"}
    found = values(
        privacy={"unit": "client", "delta": 0.002},
        federation={"clients": 500, "participation": 0.1, "rounds": 300},
        mechanism={"noise_multiplier": 0.95, "noise": noise},
        accounting={"rate_printed_twice": True},
    )
    assert found["rate-as-printed"] < found["poisson"] < found["poisson/rdp"] < found["fixed-size"]
    assert found["single-uploads/every-round"] > 100 * found["poisson"]


def test_every_shipped_claim_can_be_read_and_stands_in_the_docs() -> None:
    text = DOCS.read_text(encoding="utf-8")
    papers = set()
    for name in shipped():
        stated = load_claim(name)
        papers.add(stated.paper)
        assert f"`{name}`" in text
        assert not stated.filled().missing or stated.missing == ("noise_multiplier",)
    assert {"DP-FedAdamW", "DP-FedSAM", "ALI-DPFL", "A review of DP-FedAdamW"} == papers


def test_the_command_rewrites_the_table_of_a_page_and_nothing_else_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "table", lambda: "| ε |\n|---|\n| 1 |")
    page = tmp_path / "claims.md"
    page.write_text(f"# Before\n\n{BEGIN}\n\nold\nlines\n{END}\n\nAfter.\n", encoding="utf-8")
    for _ in range(2):
        assert overview.main([str(page)]) == 0
        assert page.read_text(encoding="utf-8") == (
            f"# Before\n\n{BEGIN}\n\n| ε |\n|---|\n| 1 |\n\n{END}\n\nAfter.\n"
        )


@pytest.mark.slow
def test_the_docs_say_what_the_command_says() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table()


def test_the_budgets_of_ali_dpfl_all_fit_one_noise_multiplier() -> None:
    for name in (name for name in shipped() if name.startswith("ali-dpfl")):
        stated = load_claim(name)
        found = value_of(stated.filled(), "every-round/rdp-classic")
        # Iterations are counts that "approximately" meet budgets of three digits.
        assert found == pytest.approx(stated.epsilon, rel=0.025), name


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"federation__rounds": 0}, "federation.rounds (T): 0 is less than"),
        ({"privacy__delta": 1.0}, "privacy.delta"),
        ({"privacy__unit": "user"}, "privacy.unit"),
        ({"claimed__epsilom": 1}, "epsilom"),
        ({"suppose": {"delta": 1e-6}}, "suppose.delta: is already stated"),
        ({"claimed__times_one_query": 2.0}, "not both"),
        ({"sampling__batch_size": 2000}, "sampling.batch_size"),
        ({"sampling__rate": 0.5}, "sampling.rate"),
        ({"federation__clients_per_round": 5}, "not both"),
        ({"federation__local_steps": 1_000_000}, "more than 10,000,000"),
        ({"version": 2}, "version"),
    ],
)
def test_a_bad_claim_is_one_clear_line(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ClaimError) as refusal:
        claim(**changes)
    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith("claim.yaml: ")


@pytest.mark.parametrize("raw", [b"", b"[", b"\xff", b"a: &x 1", b"- 1\n", b"a: .inf"])
def test_what_is_no_claim_is_refused(raw: bytes) -> None:
    with pytest.raises(ClaimError):
        parse_claim(raw, "x")


def test_the_command_judges_a_claim(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content()))
    assert main(["--paper-claim", str(path)]) == 0
    printed = capfdbinary.readouterr().out.decode()
    assert "4.363  every-round" in printed
    assert all(len(line) <= 96 for line in printed.splitlines())
    assert main(["--paper-claim", str(path), "--json"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    assert found["verdict"] == "CONSISTENT"
    path.write_text(yaml.safe_dump(content(claimed__epsilon=0.1)))
    assert main(["--paper-claim", str(path)]) == 1
    assert main(["--paper-claim", str(tmp_path / "none")]) == 2
    error = capfdbinary.readouterr().err.decode()
    assert error.count("\n") == 1
    assert "such as" in error


def test_the_schema_explains_every_field() -> None:
    def leaves(node: dict[str, Any]) -> list[dict[str, Any]]:
        if "properties" not in node:
            return [node]
        return [leaf for item in node["properties"].values() for leaf in leaves(item)]

    schema = json.loads(schema_text())
    schema["properties"].pop("suppose")
    assert all("description" in leaf for leaf in leaves(schema))


def test_every_stated_field_is_read_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
version: 1
source: {paper: P, where: Table 3, says: It is said.}
privacy: {unit: client, adjacency: replace-one, delta: 1.0e-6}
federation:
  {clients: 40, clients_per_round: 10, client_sampling: fixed, local_steps: 5.0, rounds: 7}
sampling: {kind: shuffled, rate: 0.25}
mechanism:
  clipping: update
  clipping_norm: 0.5
  noise_multiplier: 2
  noise: {printed: "N(0, s)", standard_deviation: sigma*C/sqrt(m)}
  divisor: realised
  queries_per_step: 2
accounting: {accountant: closed-form, conversion: classic, rate_printed_twice: true}
claimed: {times_one_query: 3, towards: third-party}
remarks: [One., Two.]
""",
        encoding="utf-8",
    )  # fmt: skip
    found = load_claim(path)
    assert found == Claim(
        name="mine", paper="P", where="Table 3", says="It is said.", unit="client",
        adjacency="replace-one", delta=1e-6, clients=40, participation=0.25,
        client_sampling="fixed", local_steps=5, rounds=7, sampling="shuffled", sampling_rate=0.25,
        clipping="update", clipping_norm=0.5, noise_multiplier=2, noise_printed="N(0, s)",
        noise_standard_deviation="sigma*C/sqrt(m)", divisor="realised", queries_per_step=2,
        accountant="closed-form", conversion="classic", rate_printed_twice=True, epsilon=None,
        times_one_query=3, towards="third-party", supposed={}, remarks=("One.", "Two."),
    )  # fmt: skip
    assert isinstance(found.local_steps, int)


def test_what_a_claim_does_not_state_is_unstated_and_what_it_needs_depends_on_its_unit() -> None:
    bare = {
        "version": 1,
        "source": {"paper": "P", "where": "W", "says": "S."},
        "privacy": {"unit": "record"},
        "claimed": {"towards": "unstated"},
    }
    found = parse_claim(yaml.safe_dump(bare).encode(), "folder/bare.yaml")
    assert found == Claim(
        name="bare", paper="P", where="W", says="S.", unit="record", adjacency="unstated",
        delta=None, clients=None, participation=None, client_sampling="unstated", local_steps=None,
        rounds=None, sampling="unstated", sampling_rate=None, clipping="unstated",
        clipping_norm=None, noise_multiplier=None, noise_printed=None,
        noise_standard_deviation="sigma*C", divisor="unstated", queries_per_step=1,
        accountant="unstated", conversion="unstated", rate_printed_twice=False, epsilon=None,
        times_one_query=None, towards="unstated", supposed={}, remarks=(),
    )  # fmt: skip
    assert found.missing == ("rounds", "noise_multiplier", "delta", "local_steps", "sampling_rate")
    client = replace(found, unit="client", rounds=1, delta=0.1)
    assert client.missing == ("noise_multiplier", "participation")
    supposing = replace(client, supposed={"noise_multiplier": 2.0, "participation": 0.5})
    assert supposing.filled() == replace(supposing, noise_multiplier=2.0, participation=0.5)
    assert supposing.filled().missing == ()


@pytest.mark.parametrize(
    ("changes", "rate", "participation"),
    [
        ({}, 0.016, 0.1),
        ({"sampling": {"rate": 0.5}}, 0.5, 0.1),
        ({"sampling": {"rate": 0.016, "batch_size": 16, "records_per_client": 1001}}, 0.016, 0.1),
        ({"sampling": {"rate": 0.5, "batch_size": 16}}, 0.5, 0.1),
        ({"sampling": {"batch_size": 8, "records_per_client": 8}}, 1.0, 0.1),
        ({"sampling": {"batch_size": 8}}, None, 0.1),
        ({"sampling": {"records_per_client": 8}}, None, 0.1),
        ({"federation": {"clients": 50, "clients_per_round": 50}}, 0.016, 1.0),
        ({"federation": {"clients": 50}}, 0.016, None),
    ],
)
def test_shares_are_read_as_stated_or_from_what_they_are_shares_of(
    changes: dict[str, Any], rate: float | None, participation: float | None
) -> None:
    found = claim(**changes)
    assert (found.sampling_rate, found.participation) == (rate, participation)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"sampling": {"rate": 0.016, "batch_size": 16, "records_per_client": 1002}},
            "sampling.rate: is not batch_size / records_per_client",
        ),
        (
            {"sampling": {"batch_size": 9, "records_per_client": 8}},
            "sampling.batch_size: is more than records_per_client",
        ),
        (
            {"federation": {"clients": 50, "clients_per_round": 51}},
            "federation.clients_per_round: needs at least as many clients",
        ),
        (
            {"federation": {"clients_per_round": 5}},
            "federation.clients_per_round: needs at least as many clients",
        ),
        (
            {"federation": {"rounds": 10_000, "local_steps": 1_001}},
            "federation: 10010000 steps are more than 10,000,000",
        ),
        # What is supposed is computed, too.
        (
            {"federation": {"rounds": 10_001}, "suppose": {"local_steps": 1_000}},
            "federation: 10001000 steps are more than 10,000,000",
        ),
        (
            {"federation": {"local_steps": 1_000}, "suppose": {"rounds": 10_001}},
            "federation: 10001000 steps are more than 10,000,000",
        ),
    ],
)
def test_numbers_that_contradict_each_other_or_are_too_many_are_refused(
    changes: dict[str, Any], line: str
) -> None:
    with pytest.raises(ClaimError) as refusal:
        claim(**changes)
    assert str(refusal.value) == f"claim.yaml: {line}"


def test_ten_million_steps_are_read_and_whole_numbers_are_whole_however_they_are_written() -> None:
    found = claim(federation={"rounds": 10_000}, suppose={"local_steps": 1_000.0})
    assert found.filled().local_steps == 1_000
    assert isinstance(found.filled().local_steps, int)
    assert isinstance(claim(federation={}, suppose={"rounds": 5.0}).filled().rounds, int)


def test_a_claim_is_a_file_before_it_is_one_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = next(iter(shipped()))
    assert load_claim(name).paper != "A paper"
    assert list(shipped()) == sorted(shipped())
    Path(name).write_text(yaml.safe_dump(content()), encoding="utf-8")
    assert load_claim(name).paper == "A paper"
    Path("long.yaml").write_bytes(b"#" * (1 << 16) + b"\n")
    with pytest.raises(ClaimError, match=r"^long\.yaml: is larger than 65536 bytes"):
        load_claim("long.yaml")
    with pytest.raises(ClaimError, match=rf"such as {name}, ") as refusal:
        load_claim(f"{name}x")
    assert str(refusal.value).startswith(f"{name}x: cannot be read (")
    # Of all names that are nearly this one, the three nearest are told.
    near = str(refusal.value).rpartition(" such as ")[2].split(", ")
    assert len(set(near)) == 3
    assert set(near) < set(shipped())
    with pytest.raises(ClaimError) as refusal:
        load_claim("~")
    assert str(refusal.value).endswith(f"such as {', '.join(list(shipped())[:3])}")


FOUND: dict[str, Any] = {
    "claim": "mine",
    "source": {"paper": "P", "where": "Table 3", "says": "It is\x1b said."},
    "unit": "record",
    "delta": 1e-5,
    "claimed": {"epsilon": 2.0, "times_one_query": None, "towards": "server"},
    "verdict": "CONSISTENT",
    "reason": "it does",
    "missing": ["sampling_rate", "delta"],
    "supposed": {"sampling_rate": 0.5, "rounds": 10},
    "readings": [
        {"name": "one", "means": "m", "accountant": "PLD", "towards": "third-party",
         "value": 1.23456, "relation": "covers", "bounds": True},
        {"name": "longest", "means": "n", "accountant": "RDP", "towards": "server",
         "value": None, "relation": "below", "bounds": False},
        {"name": "3", "means": "o", "accountant": "RDP", "towards": "server",
         "value": 2.0, "relation": "-", "bounds": False},
        {"name": "4", "means": "p", "accountant": "RDP", "towards": "server",
         "value": 2.0, "relation": "equal", "bounds": True},
    ],
    "implied_noise_multiplier": {"one": 0.98765},
    "remarks": ["A remark " + "of words " * 12],
}  # fmt: skip


def test_a_judged_claim_is_printed_with_what_it_states_and_every_reading() -> None:
    assert rendering.render_claim(FOUND).split("\n") == [
        "claim       mine",
        "paper       P: Table 3",
        "states      It is? said.",
        "claimed     epsilon = 2 at delta = 1e-05, one record, against the server",
        "not stated  sampling rate, delta",
        "supposed    sampling rate = 0.5, rounds = 10",
        "verdict     CONSISTENT: it does",
        "remark      A remark " + "of words " * 8 + "of",
        " " * 12 + "words " + "of words " * 2 + "of words",
        "",
        "   epsilon  reading  against      the claim",
        "     1.235  one      third party  covers it",
        " " * 14 + "m [PLD]",
        "      none  longest  server       is below it (no bound)",
        " " * 14 + "n [RDP]",
        "         2  3        server       (no bound)",
        " " * 14 + "o [RDP]",
        "         2  4        server       equals it",
        " " * 14 + "p [RDP]",
        "",
        "noise multiplier needed for the claimed epsilon",
        "    0.9877  one",
    ]


@pytest.mark.parametrize(
    ("changes", "claimed", "heading"),
    [
        ({}, "epsilon = 2 at delta = 1e-05, one record, against the server", "epsilon"),
        (
            {"epsilon": None, "times_one_query": 2.5, "towards": "third-party"},
            "2.5 times the epsilon of one query a step at delta = 1e-05, one record, against a "
            "third party",
            "times",
        ),
        (
            {"epsilon": None, "towards": "unstated"},
            "no number for epsilon at delta = 1e-05, one record, against whom is not stated",
            "epsilon",
        ),
        (
            {"epsilon": 20.5},
            "NO MEANINGFUL PROTECTION · epsilon = 20.5 at delta = 1e-05, one record, against the "
            "server",
            "epsilon",
        ),
    ],
)
def test_the_claimed_number_is_told_with_what_it_is_of(
    changes: dict[str, Any], claimed: str, heading: str
) -> None:
    found = {**FOUND, "claimed": {**FOUND["claimed"], **changes}, "missing": [], "supposed": {}}
    assert rendering.facts(found) == [
        ("claim", "mine"),
        ("paper", "P: Table 3"),
        ("states", "It is\x1b said."),
        ("claimed", claimed),
    ]
    assert rendering.heading(found) == heading
    bare = rendering.facts({**found, "delta": None})[-1][1]
    assert bare == claimed.replace(" at delta = 1e-05", "")
    empty = {**found, "readings": [], "implied_noise_multiplier": {}, "remarks": []}
    assert len([line for line in rendering.render_claim(empty).split("\n") if line]) in (5, 6)


def reading(key: str, value: float, towards: str = "server", bounds: bool = True) -> Reading:
    return Reading(key, f"means {key}", towards, "PLD", value, bounds)


JUDGED = [
    # Claimed against whom, ε, the readings, the verdict, its reason, and which readings count.
    ("server", 1.0, [("a", 2.0), ("b", 3.0)], "UNDERSTATED",
     "1 is below every reading; the smallest is a = 2", {"a", "b"}),
    ("server", 2.5, [("b", 3.0), ("a", 2.0)], "CONSISTENT",
     "2.5 covers a = 2 (1 of 2 readings); it is below b = 3 and those that cost more", {"a", "b"}),
    ("server", 2.04, [("a", 2.0), ("b", 3.0)], "CONSISTENT",
     "2.04 equals a = 2 (1 of 2 readings); it is below b = 3 and those that cost more",
     {"a", "b"}),
    ("server", 5.0, [("a", 2.0), ("b", 3.0)], "CONSERVATIVE",
     "5 covers all 2 readings; the largest is b = 3", {"a", "b"}),
    ("server", 5.0, [("a", 2.0), ("b", math.inf)], "CONSISTENT",
     "5 covers a = 2 (1 of 2 readings); it is below b = no finite epsilon and those that cost "
     "more", {"a", "b"}),
    ("server", None, [("a", 2.0), ("b", 3.0)], "NOT DETERMINABLE",
     "not stated: epsilon; readings range from a = 2 to b = 3", {"a", "b"}),
    ("third-party", 1.0, [("a", 2.0)], "UNDERSTATED",
     "1 is below every reading; the smallest is a = 2", {"a"}),
    ("server", 1.0, [], "NOT DETERMINABLE",
     "no reading of the stated settings bounds this view", set()),
]  # fmt: skip


@pytest.mark.parametrize(("towards", "epsilon", "values", "verdict", "reason", "counts"), JUDGED)
def test_a_claim_is_held_against_the_readings_of_its_view_from_the_least_to_the_largest(
    towards: str, epsilon: float | None, values: Any, verdict: str, reason: str, counts: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = tuple(reading(key, value) for key, value in values)
    monkeypatch.setattr(judgement, "readings", lambda _: found)
    stated = replace(claim(), towards=towards, epsilon=epsilon)
    judged = judge_claim(stated)
    assert (judged.verdict.value, judged.reason) == (verdict, reason)
    assert judged.relevant == counts
    assert judged.holds == (verdict in ("CONSERVATIVE", "CONSISTENT"))


def test_readings_of_another_view_or_that_bound_nothing_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = (
        reading("a", 2.0),
        reading("b", 9.0, "third-party"),
        reading("c", 0.99, bounds=False),
        reading("d", 0.5, bounds=False),
    )
    monkeypatch.setattr(judgement, "readings", lambda _: found)
    judged = judge_claim(claim(claimed__epsilon=1.0))
    assert judged.relevant == {"a"}
    assert judged.reason == (
        "1 is below every reading; the smallest is a = 2; equals c = 0.99, which is not a bound"
    )
    assert [
        (one["name"], one["relation"], one["counts"]) for one in judged.to_json()["readings"]
    ] == [
        ("a", "below", True), ("b", "below", False), ("c", "equal", False), ("d", "covers", False),
    ]  # fmt: skip
    # What nothing bounds is said only of a claim that is below its readings.
    assert "no" not in judge_claim(claim(claimed__epsilon=3.0)).reason.split()
    either = judge_claim(claim(claimed={"epsilon": 3.0, "towards": "unstated"}))
    assert either.relevant == {"a", "b"}
    supposing = content(privacy__delta=None, claimed__epsilon=3.0)
    supposing["suppose"] = {"delta": 1e-5}
    judged = judge_claim(parse_claim(yaml.safe_dump(supposing).encode(), "x"))
    assert judged.verdict is ClaimVerdict.NOT_DETERMINABLE
    assert judged.reason == (
        "not stated: delta; supposing delta = 1e-05 it would be CONSERVATIVE: 3 covers all 1 "
        "readings; the largest is a = 2"
    )


def test_what_is_printed_as_json_has_every_part_of_the_judgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judgement, "readings", lambda _: (reading("a", math.inf),))
    stated = replace(
        claim(), accountant="rdp", conversion="classic", remarks=("R.",), adjacency="replace-one"
    )
    assert judge_claim(stated).to_json() == {
        "format": 1,
        "claim": "claim",
        "source": {"paper": "A paper", "where": "Table 1", "says": "It is private."},
        "unit": "record",
        "adjacency": "replace-one",
        "delta": 1e-5,
        "claimed": {
            "epsilon": 2.0, "times_one_query": None, "towards": "server", "accountant": "rdp",
            "conversion": "classic",
        },
        "verdict": "UNDERSTATED",
        "reason": "2 is below every reading; the smallest is a = no finite epsilon",
        "missing": [],
        "supposed": {},
        "readings": [
            {
                "name": "a", "means": "means a", "towards": "server", "accountant": "PLD",
                "value": None, "bounds": True, "counts": True, "relation": "below",
            }
        ],
        "implied_noise_multiplier": {},
        "remarks": ["R."],
    }  # fmt: skip


def test_the_table_of_claims_puts_those_of_equal_readings_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stated = replace(claim(), where="Table 2; section 3")
    found = (reading("a", 2.0), reading("a/rdp", 2.5), reading("b", 3.0, bounds=False))
    monkeypatch.setattr(judgement, "readings", lambda _: found)
    claims = {
        "one": replace(stated, name="one", epsilon=5.0),
        "two": replace(stated, name="two", epsilon=None, delta=None, supposed={"delta": 0.1}),
        "three": replace(stated, name="three", epsilon=6.0),
        "four": replace(stated, name="four", epsilon=None, times_one_query=2.5, delta=None),
        "five": replace(stated, name="five", epsilon=1.0, delta=None, supposed={"delta": 0.1}),
    }
    monkeypatch.setattr(overview, "shipped", lambda: claims)
    monkeypatch.setattr(overview, "load_claim", claims.__getitem__)
    assert table().split("\n") == [
        "CONSERVATIVE:",
        "",
        "| claim | states | verdict | a |",
        "|---|---|---|---|",
        "| `one` | Table 2: ε = 5 | 5 covers all 2 readings; the largest is a/rdp = 2.5 | 2 |",
        "| `three` | Table 2: ε = 6 | 6 covers all 2 readings; the largest is a/rdp = 2.5 | 2 |",
        "",
        "NOT DETERMINABLE, not stated: delta. Supposing delta = 0.1:",
        "",
        "| claim | states | verdict | a |",
        "|---|---|---|---|",
        "| `two` | Table 2 | NOT DETERMINABLE: not stated: epsilon; readings range from a = 2 to "
        "a/rdp = 2.5 | 2 |",
        "| `five` | Table 2: ε = 1 | UNDERSTATED: 1 is below every reading; the smallest is a = 2 "
        "| 2 |",
        "",
        "NOT DETERMINABLE, not stated: delta:",
        "",
        "| claim | states |",
        "|---|---|",
        "| `four` | Table 2: 2.5 × one query |",
    ]
