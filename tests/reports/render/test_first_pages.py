"""The reading test: the first two pages alone answer thirteen questions of a privacy officer.

It reads what such a reader sees: the text of the PDF's first two pages, and that of the web page
above its first numbered section. No data structure answers.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reports import Auditing, build_report
from reports.content.build import build
from reports.content.parts import INTERNAL, PUBLIC
from reports.render import html as page
from reports.render import pdf
from reports.render.pages import band, document
from tests.reports import drawings
from tests.reports.changed_runs import rewrite_header
from tests.reports.data import data_of, report_of

MakeRun = Any  # the builder that conftest gives
undrawn = drawings.undrawn
POPPLER = pytest.mark.skipif(shutil.which("pdftoppm") is None, reason="poppler is not installed")

KEY = "SHA256:4CGGQ5QhRiKNbDnCc7H/Db0ZMqhegi7Ioa8hVBNThmk"
ONE_HAND = Auditing(KEY, "SHA256:ksxj5IBt9as33Alp1EQjgNjdavtfjEHzyLReeQ4tswk", one_hand=True)
KINDS = ("record", "not verified", "person", "fail", "client", "none", "loop")
STATED = {
    "purpose": "Planning of beds.",
    "responsible": "The data protection officer, dpo@hospital.example.",
    "governance": {
        "controller": "Example Hospital.",
        "data_categories": "Visits of adult patients.",
        "other_releases": "Two further runs in 2027.",
        "retention": "31 December 2028.",
    },
}
LOOP = {
    "name": "opacus", "version": "1.6.0", "mode": "per-sample", "optimizer": "sgd",
    "generator": "torch's default generator", "secure": False,
}  # fmt: skip

# Each question with what answers it in every report, or in reports of one kind.
QUESTIONS: list[tuple[str, str, Mapping[str, str]]] = [
    (
        "What is the verdict, and who gave it?",
        r"PASS.*The trainer’s own audit passed \d+ of \d+ applicable checks",
        {
            "fail": "FAIL.*The trainer’s own audit contradicts the claim",
            "not verified": "NOT VERIFIED.*The trainer’s own audit could not verify",
            "none": r"NO CLAIM.*This run claims no differential privacy\. The trainer’s own audit",
        },
    ),
    (
        "What was trained, and for which purpose?",
        r"Trained mlp, 2,410 trainable parameters.*Purpose Planning of beds\..*dp-fedadamw: 20 "
        "of 20 r",
        {
            "client": r"Trained mlp, .*Purpose Planning of beds\..*dp-fedavg: 20 of 20 rounds",
            "none": r"Trained mlp, .*Purpose Planning of beds\..*fedadamw: 20 of 20 rounds",
            "loop": r"Trained mlp, .*Purpose Planning of beds\..*dp-fedadamw: \d+ recorded steps",
        },
    ),
    (
        "On whose data?",
        r"People concerned Visits of adult patients\..*digits, 1,898 training records at 10 "
        "clients",
        {
            "loop": r"People concerned Visits of adult patients\..*digits, 1,898 training records",
        },
    ),
    (
        "Who is the controller, and whom can I contact?",
        r"Controller Example Hospital\..*Contact The data protection officer, "
        r"dpo@hospital\.example",
        {},
    ),
    (
        "What is protected, against whom, and until when?",
        "neither the server, which sees every upload, nor anyone who sees less .* that a given "
        "record was used for training.*protects one record.*Third parties: anyone .*Anyone who "
        "holds the run’s directory.*No limit.*no expiry date",
        {
            "client": "Nobody who sees only models .* a given client, with all its records, took "
            "part.*The server adds the noise and must be trusted.*protects one client.*no "
            "expiry date",
            "person": "nor anyone who sees less .* a given person’s records were used for "
            "training.*with all of their records, at up to 3 clients.*protects one "
            "person.*no expiry date",
            "none": "Nothing is promised to anyone.*Third parties.*No limit",
            "loop": "Nobody who sees the model, or all models on the way to it.* a given record "
            "was used.*protects one record.*Anyone who gets or queries the model.*no "
            "expiry date",
        },
    ),
    (
        "How strong is that, and what does it mean?",
        "more than 122 times surer.*fail with a probability of at most 1 in "
        r"100,000.*4\.80.*99\.2 %.*their odds become 122 times as large \(= e\^ε\).*"
        "1 in 52 that it fails for at "
        r"least one of all 1,898.*ε = 4\.80 is in the band called reasonable.*50 % sure could "
        r"become 99\.2 % sure",
        {
            "client": r"more than 144 times surer.*1 in 1,000.*4\.97.*99\.31 %.*"
            r"their odds become 144 times.*ε = 4\.97 is in the band called reasonable.*50 "
            r"% sure could become 99\.31 % sure",
            "none": "nothing limits what it, or any update that led to it, reveals",
        },
    ),
    (
        "Compared with what others deploy?",
        r"Others deploy ε = 2 to 16 for one user’s day \(Apple’s telemetry\) and ε = 8\.9 for "
        "one device.*This run’s ε is for one .*equal numbers do not mean equal protection",
        {
            "none": "No differential privacy",
        },
    ),
    (
        "Who vouches for what?",
        r"Who vouches for what.*The same person holds the trainer’s and the auditor’s key\. The "
        "audit can therefore reveal mistakes, but not fraud.*Only the trainer vouches for "
        "this.*No further training used these records.*Anyone can check this from the files",
        {
            "none": "The same person holds the trainer’s and the auditor’s key.*Anyone can check "
            "this",
        },
    ),
    (
        "What was not verified?",
        r"What was not verified\. Every check that applies was made.*Outside the guarantee, "
        r"whatever the verdict\. Choosing hyper-parameters, test metrics",
        {
            "fail": r"Contradicted.*Noise has the claimed scale\. Outside the "
            "accepted.*Outside the guarant",
            "not verified": r"Not verified.*Noise has the claimed scale\. The evidence "
            "of some rounds is missing.*Outside the guarantee",
            "none": r"What was not verified\. Every check .*Outside the guarantee.*Everything",
        },
    ),
    (
        "What does it not mean?",
        "What this does not mean.*A person with k records is protected less: at the same δ, ε "
        "can exceed k·ε.*does not decide whether the model is anonymous",
        {
            "client": "are at k clients is protected less: at the same δ, ε can exceed "
            "k·ε.*does not decide whether the model is anonymous",
            "person": r"The unit is one person\..*Someone at more clients is protected "
            "less.*does not decide whether the model is anonymous",
            "none": "can reveal who was in the training data.*does not decide whether "
            "the model is anonym",
        },
    ),
    (
        "How do I check it myself?",
        r"Check: run dpfedadamw verify RUN_DIR\. It must not say NOT VALID, and must name this "
        rf"key of the auditor: {KEY}",
        {},
    ),
    (
        "What do I have to decide, and where do I sign?",
        r"For you to do.*Decide: whether this ε suits the purpose.*Complete: \d+ statements "
        r".*\(section \d+\).*Sign: dpfedadamw sign-off RUN_DIR --audience internal writes a PDF",
        {
            "fail": "Decide: Do not rely on the claim: the audit contradicts it.*Sign: "
            "dpfedadamw sign-off",
            "not verified": "Decide: Do not rely on the claim until what is missing "
            "was.*Sign: dpfedadamw s",
            "none": "Decide: whether the training records themselves could be published.*Sign: "
            "dpfedadamw s",
        },
    ),
    (
        "What was spent, and may still be spent?",
        r"This run ε = \d\.\d\d at δ = .*Releases the model after each of 20 rounds.*Budget No "
        r"budget set.*Two further runs in 2027\..*Kept until 31 December 2028",
        {
            "none": r"This run No limit.*Budget No budget set.*Two further runs in 2027\..*Kept "
            "until 31 Dec",
            "loop": r"Releases the model after each of \d+ recorded steps.*Budget No budget "
            "set.*Two further",
        },
    ),
]


def run_of(kind: str, make_run: MakeRun, make_client_run: MakeRun, stated: Any = STATED) -> Path:
    """A run of each kind; the audit is taken to have judged the ledger as it is."""
    if kind == "client":
        return Path(make_client_run(spec_extra={"report": stated}))
    verdict = {"fail": "FAIL", "not verified": "NOT VERIFIED"}.get(kind)
    run = Path(make_run(private=kind != "none", verdict=verdict, spec_extra={"report": stated}))
    if kind == "person":
        rewrite_header(run, unit="person", clients_per_person=3, rows=[190] * 9 + [188])
    elif kind == "loop":
        rewrite_header(run, producer=LOOP, sampling_rate=0.1)
    if kind in ("person", "loop"):
        audit = json.loads((run / "audit.json").read_text("utf-8"))
        audit["inputs"].pop("ledger.jsonl")
        (run / "audit.json").write_text(json.dumps(audit), "utf-8")
    return run


def words_of(text: str) -> str:
    return " ".join(text.replace("​", "").split())


def answered(text: str, kind: str) -> None:
    """Hold a text against every question."""
    for question, usual, others in QUESTIONS:
        pattern = others.get(kind, usual)
        # The parts of an answer may come in any order: columns are read one after the other.
        for part in pattern.split(".*"):
            assert re.search(part, text), f"{question}\n{part}\n{text}"


@POPPLER
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_thirteen_questions_are_answered_by_the_first_two_pages_of_the_pdf(
    kind: str, make_run: MakeRun, make_client_run: MakeRun
) -> None:
    assert len(QUESTIONS) == 13
    path = build_report(run_of(kind, make_run, make_client_run), INTERNAL, ONE_HAND).pdf
    answered(f"{page_text(path, 1)} {page_text(path, 2)}", kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_thirteen_questions_are_answered_by_the_top_of_the_web_page(
    kind: str, make_run: MakeRun, make_client_run: MakeRun
) -> None:
    report = build(run_of(kind, make_run, make_client_run), INTERNAL, ONE_HAND)
    whole = page.typeset(document(report)).decode("utf-8")
    top = whole[whole.index("<body") : whole.index('<section id="guarantee"')]
    plain = html.unescape(re.sub(r"</?(code|strong|b|span)\b[^>]*>", "", top))
    answered(words_of(re.sub(r"<[^>]*>", " ", plain)), kind)


def test_what_nobody_stated_is_said_not_to_be(make_run: MakeRun, make_client_run: MakeRun) -> None:
    shown = document(build(run_of("record", make_run, make_client_run, {})))
    stated = dict(shown.subject) | dict(shown.summary[0][1][0]["rows"])
    for name in ("Purpose", "People concerned", "Controller", "Contact", "Kept until"):
        assert stated[name] == "Not stated", name


def test_a_long_statement_is_cut_and_names_where_the_rest_is(
    make_run: MakeRun, make_client_run: MakeRun
) -> None:
    stated = {"purpose": "Planning of beds in all hospitals of the country. " * 40}
    shown = document(build(run_of("record", make_run, make_client_run, stated)))
    assert re.fullmatch(r".{,160} … \(section \d+\)", str(dict(shown.subject)["Purpose"]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["failed", "not_verified"])
@pytest.mark.parametrize(
    ("audience", "most"), [(INTERNAL, 6), (PUBLIC, 30)], ids=["internal", "public"]
)
def test_what_is_wrong_is_listed_and_the_rest_is_counted(
    make_run: MakeRun, audience: str, most: int, kind: str
) -> None:
    data = data_of(make_run(), audience)
    for count in (0, 1, 5, 6, 7, 30):
        names = [f"Reason number {number}." for number in range(count)]
        data["verdict"][kind] = [{"title": name, "why": "It differs."} for name in names]
        shown = str(document(report_of(data)))
        assert [name in shown for name in names] == [at < most for at in range(count)]
        rest = re.findall(r"And (\d+) more", shown)
        assert rest == ([str(count - most)] if count > most else []), count


@pytest.mark.parametrize(
    ("audience", "left"), [(INTERNAL, "ε = 4.9, after 7.10 spent"), (PUBLIC, "see")]
)
def test_a_budget_is_shown_with_what_is_left_of_it(
    audience: str, left: str, make_run: MakeRun
) -> None:
    """What other runs spent is for the internal report alone."""
    run = Path(make_run())
    rewrite_header(run, budget={"epsilon": 12.0, "delta": 1e-5})
    lines = (run / "ledger.jsonl").read_text("utf-8").splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "budget": {"charged": 7.0917}})
    (run / "ledger.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    rows = dict(document(build(run, audience)).summary[0][1][0]["rows"])
    assert rows["Budget"] == "ε = 12 at δ = 10⁻⁵ for all runs on these data"
    assert rows["Budget left"].startswith(left)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("randomness", "again", "green"),
    [
        ("release", "PASS", True),
        ("release", "NOT VERIFIED", False),
        ("reproducible", "PASS", False),
    ],
)
def test_nothing_is_green_where_nothing_was_recomputed_or_the_noise_is_known(
    randomness: str, again: str, green: bool, make_run: MakeRun
) -> None:
    run = Path(make_run(randomness=randomness))
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    check = {"name": "reexecution", "title": "Again?", "verdict": again, "severity": "theoretical"}
    audit["checks"].append(check)
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")
    shown = document(build(run))
    assert shown.band is not None
    assert shown.band.value == "PASS"
    assert shown.band.reserved != green
    assert ("Not shown in green: " in shown.band.statement) != green
    assert ('<body class="reserved">' in page.typeset(shown).decode("utf-8")) != green
    drawn = colours(pdf.typeset(shown), run.parent / "page")
    assert any(g > r + 40 and g > b + 20 for r, g, b in drawn) == green


WARNINGS = {
    None: "",
    "anyone": "No meaningful protection",
    "the server": "No meaningful protection against the server",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("value", "level", "randomness", "against", "alarming", "reserved"),
    [
        ("PASS", 2, "release", None, False, False),
        ("PASS", 1, "release", None, False, True),
        ("PASS", 3, "reproducible", None, False, True),
        ("PASS", 3, "release", "the server", True, True),
        ("PASS", 3, "release", "anyone", True, True),
        ("FAIL", None, "release", None, True, False),
        ("FAIL", None, "release", "anyone", True, True),
        ("FAIL", None, "reproducible", None, True, True),
        ("NOT VERIFIED", None, "release", None, True, False),
        ("NOT AUDITED", None, "release", None, True, False),
        ("NO CLAIM", None, "release", None, False, True),
    ],
)
def test_a_verdict_is_an_alarm_or_green_only_where_it_is_due(
    make_run: MakeRun,
    value: str,
    level: int | None,
    randomness: str,
    against: str | None,
    alarming: bool,
    reserved: bool,
) -> None:
    report = data_of(make_run(randomness=randomness))
    report["verdict"].update(value=value, unprotected_against=against)
    report["assurance"]["level"] = level
    shown = band(report_of(report))
    assert (shown.value, shown.alarming, shown.reserved) == (value, alarming, reserved)
    assert shown.level == ("" if level is None else f"level {level} of 4")
    assert shown.warning == WARNINGS[against]
    assert ("nothing was recomputed" in shown.statement) == (level == 1)
    seeded = value == "PASS" and randomness == "reproducible"
    assert ("knows the seed can draw" in shown.statement) == seeded


def colours(pages: bytes, stem: Path) -> set[tuple[int, int, int]]:
    """The colours of the first two pages."""
    if shutil.which("pdftoppm") is None:
        pytest.skip("poppler is not installed")
    stem.with_suffix(".pdf").write_bytes(pages)
    command = ["pdftoppm", "-r", "60", "-l", "2", "-png", str(stem.with_suffix(".pdf")), str(stem)]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    found: set[tuple[int, int, int]] = set()
    for made in stem.parent.glob("page-*.png"):
        with Image.open(made) as image:
            found |= {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or ()}  # type: ignore[misc]
    return found


def long_run(make_client_run: MakeRun, language: str) -> Path:
    """The longest client-level run: every check fails, for a long reason, and all is stated."""
    said = "A long statement on the processing, as lawyers write it. " * 9
    stated: dict[str, Any] = {"language": language, "purpose": said, "responsible": said}
    stated["governance"] = dict.fromkeys(STATED["governance"], said)
    run = Path(
        make_client_run(clients=200, noise_added_by="clients", spec_extra={"report": stated})
    )
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    reason = "The value that was found differs from the value that the ledger states. " * 4
    names = [f"check-{number}" for number in range(18)]
    audit["verdict"] = "FAIL"
    audit["checks"] = [
        {
            "name": name, "title": "Is the noise as large as the ledger says, every time?",
            "verdict": "FAIL", "severity": "critical", "measurement": reason,
        }
        for name in names
    ]  # fmt: skip
    audit["qualifications"] = [reason[:140], reason[:150], reason[:160]]
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")
    return run


@POPPLER
@pytest.mark.usefixtures("drawn_anew")
@pytest.mark.parametrize(
    ("audience", "language"),
    [
        (INTERNAL, "en"),
        (PUBLIC, "de"),
        (INTERNAL, "fr"),
        pytest.param(PUBLIC, "en", marks=pytest.mark.slow),
        pytest.param(INTERNAL, "de", marks=pytest.mark.slow),
        pytest.param(PUBLIC, "fr", marks=pytest.mark.slow),
    ],
)
def test_section_1_begins_on_page_3_whatever_is_said_before(
    audience: str, language: str, make_client_run: MakeRun
) -> None:
    path = build_report(long_run(make_client_run, language), audience, ONE_HAND).pdf
    first = {"en": "1 The guarantee", "de": "1 Die Garantie", "fr": "1 La garantie"}[language]
    assert page_text(path, 3).startswith(first)
    glance = {"en": "The audit at a glance", "de": "Das Audit auf", "fr": "L’audit en un coup"}
    assert glance[language] in page_text(path, 2)
    assert "RUN_DIR" in page_text(path, 2)


@POPPLER
@pytest.mark.usefixtures("drawn_anew")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "audience"),
    [
        ("record", "internal"),
        ("record", PUBLIC),
        ("client", "internal"),
        ("none", "internal"),
        ("letter", "internal"),
    ],
)
def test_pages_are_full_and_numbered(
    kind: str, audience: str, make_run: MakeRun, make_client_run: MakeRun, tmp_path: Path
) -> None:
    """No page is a quarter empty, but the last and the second, which ends the first part."""
    paper = {"paper": "letter"} if kind == "letter" else {}
    path = build_report(run_of(kind, make_run, make_client_run, paper), audience).pdf
    command = ["pdftoppm", "-r", "20", "-gray", "-png", str(path), str(tmp_path / "page")]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    pages = sorted(tmp_path.glob("page-*.png"))
    for number, made in enumerate(pages, 1):
        shown = page_text(path, number).replace(" / ", "/")
        assert shown.endswith(f" {number}/{len(pages)}")
        if number not in (2, len(pages)):
            assert empty_share(made) < 0.25, f"page {number} of {len(pages)}"


def page_text(path: Path, number: int) -> str:
    # In the order in which it is drawn, which is that of the tags: row by row where facts stand so.
    command = ["pdftotext", "-raw", "-f", str(number), "-l", str(number), str(path), "-"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return words_of(done.stdout.decode("utf-8"))


def empty_share(page: Path) -> float:
    """The largest stretch without ink, as a share of the room above the footer."""
    with Image.open(page) as image:
        rows = [min(image.crop((0, y, image.width, y + 1)).tobytes()) for y in range(image.height)]
    room = rows[: int(0.92 * len(rows))]
    longest = run = 0
    for darkest in room:
        run = run + 1 if darkest > 250 else 0
        longest = max(longest, run)
    return longest / len(room)
