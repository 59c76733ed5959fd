"""What the first two pages say: the promise, who is protected from whom, and on whose word."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports import Auditing, formatting
from reports.content import meaning
from reports.content.assurance import Trust
from reports.content.build import build
from reports.content.coverage import Readers
from reports.content.findings import Verdict
from reports.content.guarantee import Guarantee, as_signed_earlier, attested_claims
from reports.content.meaning import Meaning
from reports.content.parts import INTERNAL, PUBLIC, Report
from reports.render import html, pages
from reports.render.pages import document
from reports.source import RunSource, load
from tests.reports import drawings
from tests.reports.data import data_of, hold_against_schema

MakeRun = Any  # the builder that conftest gives
undrawn = drawings.undrawn
OTHERS = Auditing("SHA256:theirs", "SHA256:ours", one_hand=False)


def with_claim(run: Path, change: Any) -> Path:
    """A run whose ledger claims something else; the audit is taken to have judged that."""
    lines = (run / "ledger.jsonl").read_text("utf-8").strip().split("\n")
    claim = json.loads(lines[-1])
    change(claim)
    lines[-1] = json.dumps(claim)
    (run / "ledger.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return with_audit(run, lambda audit: audit["inputs"].pop("ledger.jsonl"))


def with_audit(run: Path, change: Any) -> Path:
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    change(audit)
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")
    return run


def limit(report: Report, who: str) -> float | None:
    return next(row.epsilon for row in report[Readers].root if row.who.startswith(who))


def protected(report: Report) -> list[bool]:
    return [row.protected for row in report[Readers].root]


def texts(report: Report) -> str:
    rows = [row.model_dump_json() for row in report[Readers].root]
    return " ".join([report[Meaning].promise, report[Trust].model_dump_json(), *rows])


def test_the_promise_says_what_to_whom_and_from_whom_not(make_run: MakeRun) -> None:
    report = build(make_run())
    epsilon = report[Meaning].epsilon
    assert epsilon is not None
    promise = report[Meaning].promise
    assert promise.startswith("Whatever they see, neither the server")
    assert f"more than {meaning.factor_in_words(epsilon)} times surer (in betting odds)" in promise
    assert "fail with a probability of at most 1 in 100,000" in promise
    assert "Nothing is promised against anyone who holds the run’s directory" in promise
    assert report[Meaning].odds == pytest.approx(math.exp(epsilon))
    priors = [(guess.prior, guess.posterior) for guess in report[Meaning].guesses]
    assert priors == [(p, meaning.posterior(p, epsilon)) for p in (0.01, 0.1, 0.5)]


@pytest.mark.parametrize(
    ("verdict", "begin"),
    [("FAIL", "Claimed, but contradicted"), ("NOT VERIFIED", "Claimed, but not verified")],
)
def test_a_promise_that_did_not_pass_is_called_a_claim(
    make_run: MakeRun, verdict: str, begin: str
) -> None:
    report = build(make_run(verdict=verdict))
    assert report[Meaning].promise.startswith(f"{begin} by the audit: whatever they see")
    cells = json.dumps([row.model_dump() for row in report[Readers].root])
    assert "true" in cells
    shown = json.dumps(pages.claim(report).numbers, ensure_ascii=False)
    assert "ε (privacy loss), claimed" in shown


def test_who_knows_the_seed_is_told_of(make_run: MakeRun) -> None:
    report = build(make_run(randomness="reproducible"))
    assert report[Meaning].promise.endswith(
        "It does not hold against anyone who knows the run’s seed."
    )
    assert report[Readers].root[-1].who == "Anyone who has the seed"


def test_at_record_level_all_but_holders_of_files_and_keys_are_held_to_a_limit(
    make_run: MakeRun,
) -> None:
    run = make_run()
    report = build(run)
    assert protected(report) == [True, True, True, False, False]
    claim = json.loads((run / "ledger.jsonl").read_text("utf-8").strip().split("\n")[-1])
    realised, third = claim["server"]["epsilon"]["pld"], claim["third_party"]["epsilon"]["pld"]
    assert limit(report, "The server") == limit(report, "The other part") == realised
    assert limit(report, "Third") == min(realised, third)
    worst = claim["server_worst_case"]["epsilon"]["pld"]
    assert limit(build(run, PUBLIC), "The server") == worst


@pytest.mark.parametrize(
    ("audience", "view", "read_by"),
    [
        (INTERNAL, "server", ["The server", "The other participants"]),
        (PUBLIC, "server_worst_case", ["The server", "The other participants"]),
        (INTERNAL, "third_party", ["Third parties"]),
        (PUBLIC, "third_party", ["Third parties"]),
    ],
)
def test_the_limit_of_each_reader_is_the_claims_for_what_the_reader_sees(
    make_run: MakeRun, audience: Any, view: str, read_by: list[str]
) -> None:
    readers = ["The server", "The other participants", "Third parties"]
    before = build(make_run("a"), audience)
    claimed = 0.4375  # Below every other view's, so that no reader is held to less.

    def change(claim: dict[str, Any]) -> None:
        claim[view]["epsilon"]["pld"] = claimed

    after = build(with_claim(make_run("b"), change), audience)
    # Third parties see less than the server, and are held to its limit where that is smaller.
    expected = {*read_by, "Third parties"}
    changed = {who for who in readers if limit(before, who) != limit(after, who)}
    assert changed == expected
    assert {limit(after, who) for who in changed} == {claimed}


def test_who_sees_less_than_the_server_is_held_to_the_servers_limit(make_run: MakeRun) -> None:
    """Luck of the draw may leave the server, as it happened, with less than a third party's ε."""

    def lucky(claim: dict[str, Any]) -> None:
        claim["server"]["epsilon"]["pld"] = 3.0401
        claim["third_party"]["epsilon"]["pld"] = 3.0441

    lower = {"epsilon": {"pld": 1.0}}
    report = build(with_claim(make_run(), lucky))
    assert limit(report, "Third") == 3.0401
    assert "Here the first is smaller" in (report[Guarantee].explanation or "")
    usual = build(with_claim(make_run("b"), lambda claim: claim["third_party"].update(lower)))
    assert "Here the first is smaller" not in (usual[Guarantee].explanation or "")
    # One number is left, and it stands once.
    numbers = dict(pages.claim(report).numbers)
    assert numbers["ε (privacy loss), against every protected reader"] == "3.05"


def test_a_public_reader_is_not_told_what_tells_who_took_part(make_client_run: MakeRun) -> None:
    run = make_client_run(noise_added_by="clients")
    assert limit(build(run, PUBLIC), "The server") is None
    assert protected(build(run, PUBLIC)) == [True, True, True, False, False]
    assert limit(build(run), "The server") == limit(build(run), "The other participants")
    assert limit(build(run), "The server") != limit(build(run), "Third")
    hold_against_schema(data_of(run, PUBLIC))


def test_a_server_that_adds_the_noise_is_no_reader_that_a_client_is_protected_from(
    make_client_run: MakeRun,
) -> None:
    report = build(make_client_run())
    assert protected(report) == [False, True, True, False, False]
    assert "must be trusted" in report[Meaning].promise
    assert report[Meaning].of == "client"


def test_without_privacy_nobody_is_held_to_anything(make_run: MakeRun) -> None:
    report = build(make_run(private=False))
    assert not any(protected(report))
    assert report[Meaning].promise.startswith("Nothing is promised to anyone")
    assert report[Meaning].scale is None
    assert report[Meaning].guesses == ()


def test_without_a_finite_epsilon_nothing_is_promised(make_run: MakeRun) -> None:
    def endless(claim: dict[str, Any]) -> None:
        for view in ("server", "server_worst_case", "third_party"):
            claim[view]["epsilon"]["pld"] = None

    report = build(with_claim(make_run(), endless))
    assert report[Meaning].promise.startswith("Nothing is promised: no finite ε")
    assert not any(protected(report))


@pytest.mark.parametrize(
    ("endless", "held"),
    [
        # Who sees less than the server is held to its limit, and not the other way round.
        (("server", "server_worst_case"), [False, False, True, False, False]),
        (("third_party",), [True, True, True, False, False]),
    ],
)
@pytest.mark.parametrize("audience", [INTERNAL, PUBLIC])
def test_who_sees_less_may_be_the_only_one_held_to_a_limit(
    make_run: MakeRun, endless: tuple[str, ...], held: list[bool], audience: str
) -> None:
    def claimed(claim: dict[str, Any]) -> None:
        for view in endless:
            claim[view]["epsilon"]["pld"] = None

    report = build(with_claim(make_run(), claimed), audience)
    assert protected(report) == held
    told = [row.epsilon is not None for row in report[Readers].root]
    assert told == held


@pytest.mark.parametrize(
    ("epsilon", "band", "weak"),
    [(0.9, "strong", False), (4.25, "reasonable", False), (7.09, "reasonable", True),
     (19.0, "weak", True)],
)  # fmt: skip
def test_a_weak_epsilon_is_called_weak(
    make_run: MakeRun, epsilon: float, band: str, weak: bool
) -> None:
    def claimed(claim: dict[str, Any]) -> None:
        claim["server"]["epsilon"]["pld"] = epsilon

    found = build(with_claim(make_run(), claimed))[Meaning].scale
    assert found is not None
    assert (found.band, found.weak) == (band, weak)
    assert ("weak" in found.statement) == weak
    assert f"ε = {formatting.epsilon(epsilon)}" in found.statement


@pytest.mark.parametrize(
    ("epsilon", "weak", "nothing"),
    [(4.5, False, False), (7.09, True, False), (75.02, True, True)],
)
def test_a_limit_is_weak_from_99_percent_on(epsilon: float, weak: bool, nothing: bool) -> None:
    assert meaning.is_weak(epsilon) == weak == (meaning.posterior(0.5, epsilon) > 0.99)
    assert meaning.excludes_nothing(epsilon) == nothing
    assert nothing == (meaning.posterior(0.01, epsilon) > 0.999)


@pytest.mark.parametrize("verdict", ["PASS", "FAIL"])
def test_each_reader_is_told_what_somebody_50_percent_sure_could_become(
    make_run: MakeRun, verdict: str
) -> None:
    report = build(make_run(verdict=verdict))
    shown = next(one for one in document(report).front if one.identifier == "readers")
    cells = [row[1] for row in shown.blocks[0]["rows"]]
    for row, cell in zip(report[Readers].root, cells, strict=True):
        said = "".join(span if isinstance(span, str) else span["strong"] for span in cell)
        if row.epsilon is None:
            assert said == "No limit"
        else:
            assert said.startswith(meaning.guess_in_words(0.5, row.epsilon))
            assert ("claimed" in said) == (verdict == "FAIL")


def test_a_delta_that_is_high_for_so_many_is_called_so(make_client_run: MakeRun) -> None:
    few, many = make_client_run("few"), make_client_run("many", clients=200)
    said = "1 in 100 that it fails for at least one of all 10 clients"
    assert build(few)[Meaning].chance_of_any == said
    high = [
        "That is high." in json.dumps([one.blocks for one in document(build(run)).front])
        for run in (few, many)
    ]
    assert high == [False, True]


def test_an_audit_is_independent_only_by_a_key_that_is_known_not_to_be_the_trainers(
    make_run: MakeRun,
) -> None:
    run = make_run()
    same = Auditing("SHA256:ours", "SHA256:ours", one_hand=False)
    both = Auditing("SHA256:theirs", "SHA256:ours", one_hand=True)
    unknown = Auditing("SHA256:theirs", None, one_hand=False)
    for signed in (None, same, both, unknown):
        for audience in (INTERNAL, PUBLIC):
            report = build(run, audience, signed)
            assert report[Trust].auditor == "trainer"
            assert "self-audited" in report[Trust].checked
            one_hand = signed in (same, both)
            assert ("The same person holds" in report[Trust].checked) == one_hand
            assert ("The auditor’s key is unknown" in report[Trust].checked) != one_hand
            assert report[Trust].signer == (signed.auditor if signed else "")
            assert "The trainer’s own audit passed" in pages.band(report).statement
            assert "independent" not in texts(report)
    report = build(run, INTERNAL, OTHERS)
    assert report[Trust].keys == ("SHA256:theirs", "SHA256:ours")
    assert "independent auditor" in report[Trust].checked
    assert "The independent audit passed" in pages.band(report).statement


def test_nobody_checked_a_run_without_an_audit(make_run: MakeRun) -> None:
    report = build(make_run(audit=False), INTERNAL, OTHERS)
    assert report[Trust].auditor == "nobody"
    assert report[Trust].checked.startswith("Nobody")


@pytest.mark.parametrize(
    ("verdict", "details", "internal", "public", "recomputed"),
    [
        ("NOT VERIFIED", {}, "Nobody has recomputed", "Nobody has recomputed", None),
        ("FAIL", {"drawn": 3}, "not give the same result", "not give the same result", None),
        ("PASS", {"drawn": 4, "participations": 100}, "4 of 100 part", "report says how many", 4),
        ("PASS", {"drawn": 4}, "4 participations", "report says how many", 4),
        ("PASS", {"drawn": 100, "participations": 100}, "Every part", "Every part", 100),
    ],
)
def test_it_is_said_how_much_was_recomputed(
    make_run: MakeRun, verdict: str, details: Any, internal: str, public: str, recomputed: Any
) -> None:
    check = {"name": "reexecution", "title": "Again?", "verdict": verdict, "details": details}
    run = with_audit(make_run(), lambda audit: audit["checks"].append(check))
    assert internal in build(run)[Trust].again
    assert build(run)[Trust].recomputed == recomputed
    assert public in build(run, PUBLIC)[Trust].again
    assert build(run, PUBLIC)[Trust].recomputed is None


def test_a_run_without_a_claim_promises_nothing(make_run: MakeRun) -> None:
    run = make_run()
    lines = (run / "ledger.jsonl").read_text("utf-8").strip().split("\n")
    (run / "ledger.jsonl").write_text("\n".join(lines[:-1]) + "\n", "utf-8")
    report = build(run)
    assert report[Meaning].promise.startswith("Nothing is promised: the run did not finish")
    assert report[Readers].root == ()
    assert report[Meaning].scale is None
    assert "states no limit" in json.dumps([one.blocks for one in document(report).front])


def test_a_choice_that_no_number_covers_is_told_with_the_promise(make_run: MakeRun) -> None:
    tune = {"selection": "unaccounted", "score": "test_accuracy"}
    promise = build(make_run(spec_extra={"tune": tune}))[Meaning].promise
    assert "chosen by looking at the private records. No ε covers that choice" in promise
    assert "no ε covers" not in build(make_run("without"))[Meaning].promise


def signed_earlier(run: Path) -> str:
    statement = as_signed_earlier(attested_claims(load(run)))["statement"]
    assert isinstance(statement, str)
    return statement


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "Claimed: Towards a third party who sees only broadcast or final models and does not "
            "learn who took part, training is (ε = 5.34, δ = 10⁻⁵)-differentially private at the "
            "level of one record, for add-or-remove-one-record neighbours, by composition of "
            "every Poisson-subsampled Gaussian query in the ledger with a privacy loss "
            "distribution (dp-accounting 0.6.0), assuming that client sizes are public and that "
            "sampling and noise were drawn as described from randomness the adversary does not "
            "know.",
        ),
        (
            {"tune": {"selection": "unaccounted", "score": "test_accuracy"}},
            " The run’s hyper-parameters were chosen by looking at the private records: no ε "
            "covers that choice, and this one is that of settings which were chosen without "
            "looking.",
        ),
    ],
)
def test_the_words_that_earlier_runs_signed_are_known(
    make_run: MakeRun, changes: dict[str, Any], said: str
) -> None:
    """`verify` accepts them too: another word, and earlier runs would not hold."""
    statement = signed_earlier(make_run(spec_extra=changes))
    assert statement.endswith(said)
    assert changes or statement == said


def test_so_are_those_on_the_server_of_clients_and_on_a_seed(
    make_run: MakeRun, make_client_run: MakeRun
) -> None:
    seeded = signed_earlier(make_run("seeded", randomness="reproducible"))
    assert seeded.endswith(
        "; because the run is reproducible from a seed, this holds towards nobody who knows the "
        "seed."
    )
    said = {
        "server": " There is no guarantee towards the server: it adds the noise and sees the "
        "clipped updates, so it must be trusted.",
        "clients": " Towards the server, which sees every noised upload and who made it, the loss "
        "is larger and stated apart, in the internal report; there a client's records are hidden, "
        "that it took part is not.",
    }
    for noise, words in said.items():
        run = make_client_run(noise, noise_added_by=noise)
        assert signed_earlier(run).endswith(words)


def promise_of(run: RunSource, epsilon: float, **claim: Any) -> str:
    """What is promised against the server where the claim says otherwise than the run's."""
    server = {**run.claim["server"], "epsilon": {"pld": epsilon}}
    changed = replace(run, claim={**run.claim, "server": server, **claim})
    return build(Path(), source=changed)[Meaning].promise


def test_a_promise_says_all_that_limits_it_one_after_the_other(make_run: MakeRun) -> None:
    run = load(make_run(randomness="reproducible"))
    promise = promise_of(run, 15.0, delta=0.5, person={"records": 37, "epsilon": 88.125})
    said = (
        "neither the server",
        "3.27 million times surer",
        "may fail with a probability of at most 1 in 2.",
        "So wide a limit excludes almost nothing.",
        "No person has more than 37 records; for so many together, ε is 88.13.",
        "For such a person that is no meaningful protection.",
        "does not hold against anyone who knows the run’s seed.",
    )
    places = [promise.index(text) for text in said]
    assert places == sorted(places)


def test_a_promise_says_nothing_that_does_not_limit_it(make_run: MakeRun) -> None:
    run = load(make_run())
    usual = promise_of(run, 4.25)
    assert "1 in 100,000" in usual
    for text in ("So wide", "No person has", "likely than not", "seed"):
        assert text not in usual
    assert "So wide" not in promise_of(run, 11.5)
    assert "So wide" in promise_of(run, 11.51)
    assert "more likely than not to fail" in promise_of(run, 4.25, delta=0.51)
    assert "may fail" not in promise_of(run, 4.25, delta=0.51)
    assert promise_of(run, 4.25, person={"records": 1, "epsilon": 88.0}) == usual
    unknown = promise_of(run, 4.25, person={"records": 2, "epsilon": None})
    assert "No person has more than 2 records; for so many together, no ε is known." in unknown


@pytest.mark.parametrize(
    ("delta", "records", "said"),
    [
        (1e-5, [100, 200], "1 in 333 that it fails for at least one of all 300 records"),
        (0.1, [6], "more likely than not that it fails for at least one of all 6 records"),
        (1e-5, [], ""),
        (0.0, [100], ""),
        # No run has such numbers, but a file may.
        (1e-5, [5e-324], ""),
    ],
)
def test_the_chance_that_it_fails_for_anyone_is_of_all_records(
    make_run: MakeRun, delta: float, records: list[float], said: str
) -> None:
    run = load(make_run())
    header = {**run.header, "records": records, "delta": delta}
    changed = replace(run, header=header, claim={**run.claim, "delta": delta})
    assert build(Path(), source=changed)[Meaning].chance_of_any == said


def huge(claim: dict[str, Any], *views: str, epsilon: float = 2.58e9) -> None:
    for view in views:
        claim[view]["epsilon"]["pld"] = epsilon


@pytest.mark.parametrize("audience", [INTERNAL, PUBLIC])
def test_an_epsilon_that_protects_nobody_is_the_first_thing_that_a_pass_says(
    make_run: MakeRun, audience: str
) -> None:
    views = ("server", "server_worst_case", "third_party")
    report = build(with_claim(make_run(), lambda claim: huge(claim, *views)), audience)
    verdict, shown = report[Verdict], document(report)
    assert verdict.value == "PASS"
    assert verdict.unprotected_against == "anyone"
    assert verdict.statement.startswith("No meaningful protection. An ε above 20 ")
    assert "passed" in verdict.statement
    assert report[Guarantee].statement.startswith("No meaningful protection. ")
    assert shown.band is not None
    assert shown.band.warning == "No meaningful protection"
    assert shown.band.statement.startswith("An ε above 20 ")
    assert shown.band.alarming
    assert shown.band.reserved
    page = html.typeset(shown).decode()
    band = page[page.index('<div class="band') :]
    assert band.index("No meaningful protection") < band.index("PASS")
    hold_against_schema(report.data())


def test_what_is_signed_stays_the_bare_claim(make_run: MakeRun) -> None:
    run = with_claim(make_run(), lambda claim: huge(claim, "third_party"))
    assert not attested_claims(load(run))["statement"].startswith("No meaningful")


def test_an_epsilon_too_large_against_the_server_alone_names_the_server(make_run: MakeRun) -> None:
    run = with_claim(make_run(), lambda claim: huge(claim, "server_worst_case", epsilon=20.01))
    for audience in (INTERNAL, PUBLIC):
        report = build(run, audience)
        assert report[Verdict].unprotected_against == "the server"
        assert report[Verdict].statement.startswith("No meaningful protection against the server.")


def test_an_epsilon_of_twenty_carries_no_warning(make_run: MakeRun) -> None:
    views = ("server", "server_worst_case", "third_party")
    run = with_claim(make_run(), lambda claim: huge(claim, *views, epsilon=20.0))
    report = build(run)
    band = document(report).band
    assert report[Verdict].unprotected_against is None
    assert band is not None
    assert band.warning == ""
    assert "meaningful" not in json.dumps(data_of(run), ensure_ascii=False)


@pytest.mark.parametrize(("epsilon", "warned"), [(20.0, False), (20.01, True), (None, False)])
def test_a_person_whose_records_together_are_not_protected_is_told_of(
    make_run: MakeRun, epsilon: float | None, warned: bool
) -> None:
    def of_person(claim: dict[str, Any]) -> None:
        claim["person"] = {"records": 3, "epsilon": epsilon}

    report = build(with_claim(make_run(), of_person))
    told = "For such a person that is no meaningful protection." in report[Meaning].promise
    assert told == warned
    assert report[Verdict].unprotected_against is None
