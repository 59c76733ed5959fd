"""The reading test: the first two pages answer what a privacy officer asks. They are full, too."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reports import build_report
from reports.content.build import build
from reports.content.parts import PUBLIC
from reports.document import Document
from reports.render.pages import document

MakeRun = Any  # the builder that conftest gives
POPPLER = pytest.mark.skipif(shutil.which("pdftoppm") is None, reason="poppler is not installed")

# Each question with the part of the first two pages that answers it, and what it says there, for a
# run that protects records, one that protects clients, and one without privacy.
QUESTIONS: list[tuple[str, str, str, str, str]] = [
    (
        "Against whom am I protected?",
        "readers",
        r"whoever breaks into it or reads the uploads Weakly.*The other participants "
        r"Weakly.*Third parties.* Weakly",
        r"The other participants Weakly.*Third parties.* Weakly",
        r"The server.* No .*The other participants No .*Third parties.* No ",
    ),
    (
        "Against whom not?",
        "readers",
        r"Whoever holds the run’s directory.* No evidence/.*key of the noise No",
        r"The server, and whoever breaks into it during training No.*key of the noise No",
        r"Whoever holds the run’s directory.* No ",
    ),
    (
        "What if the server is hacked?",
        "readers",
        r"breaks into it or reads the uploads Weakly.*Each client clips and adds noise before",
        r"whoever breaks into it during training No It sees every clipped update",
        r"whoever breaks into it or reads the uploads No It sees every update as made",
    ),
    (
        "May I publish the model?",
        "readers",
        r"queries the published model Weakly.* They see no more than models.* learn who took part",
        r"queries the published model Weakly.* They see no more than models.* learn who took part",
        r"queries the published model No .*Publish it only if its records could be published",
    ),
    (
        "What is promised at all, in plain words?",
        "claim",
        r"For each single record, neither the server.* can shift the odds .*nothing is promised",
        r"For each client with all its records, nobody .* can shift the odds .*must be trusted",
        r"Nothing is promised to anybody",
    ),
    (
        "What can somebody find out about me?",
        "meaning",
        r"was used for training a hunch a suspicion an even guess beforehand 1 % 10 % 50 % "
        r"afterwards, at most: the odds times \d",
        r"was among those who trained a hunch .* afterwards, at most: the odds times \d",
        r"claim:nothing limits what it, or any update that led to it, tells about a record",
    ),
    (
        "What is δ?",
        "meaning",
        r"δ is the chance that this fails: 1 in 100,000 for one; 1 in \d+ for any of",
        r"δ is the chance that this fails: 1 in 1,000 for one; 1 in \d+ for any of all 10 clients",
        r"claim:no differential privacy",
    ),
    (
        "Is this ε weak?",
        "meaning",
        r"ε = 4\.\d+ lies in the band that is called reasonable",
        r"ε = 4\.97 lies in the band that is called reasonable.* Read as a limit it is weak",
        r"claim:No differential privacy",
    ),
    (
        "Who checked this?",
        "trust",
        r"Who checked The trainer: self-audited",
        r"Who checked The trainer: self-audited",
        r"Who checked The trainer: self-audited",
    ),
    (
        "What do I have to take on trust?",
        "trust",
        r"On the trainer’s word alone That the records are the people’s own",
        r"On the trainer’s word alone That the records are the people’s own",
        r"On nobody’s word .* the files are complete",
    ),
    (
        "I gave several records: am I protected as well?",
        "hazards",
        r"A person with k records is protected less: at the same δ, ε can exceed k·ε",
        r"whose records lie with k clients is protected less: at the same δ, ε can exceed k·ε",
        r"reveal who was in the training data",
    ),
    (
        "Is the model anonymous now, in the law’s sense?",
        "hazards",
        r"does not decide whether the model is anonymous",
        r"does not decide whether the model is anonymous",
        r"does not decide whether the model is anonymous",
    ),
    (
        "What was left open?",
        "summary",
        r"What was not verified No check that applies was left open.* does not apply.*Outside the "
        r"guarantee, whatever the verdict: choosing hyper-parameters",
        r"What was not verified No check that applies was left open.*Outside the guarantee",
        r"What was not verified No check that applies was left open.*Outside the guarantee",
    ),
]


def said(value: Any) -> str:
    """Every text of blocks, in reading order."""
    if isinstance(value, dict):
        left = ("kind", "identifier", "style", "tone", "align", "caption", "bands", "marks", "here")
        return " ".join(said(inner) for key, inner in value.items() if key not in left)
    if isinstance(value, list | tuple):
        return " ".join(said(inner) for inner in value)
    return value if isinstance(value, str) else ""


def places(shown: Document) -> dict[str, str]:
    """What stands where on the first two pages."""
    found = {section.identifier: said(section.blocks) for section in shown.front}
    found["summary"] = said(shown.summary)
    assert shown.claim is not None
    found["claim"] = f"{shown.claim.headline} {shown.claim.statement}"
    return {place: " ".join(text.split()) for place, text in found.items()}


def run_of(kind: str, make_run: MakeRun, make_client_run: MakeRun) -> Path:
    if kind == "client":
        return Path(make_client_run())
    paper = {"paper": "letter"} if kind == "letter" else {}
    return Path(make_run(private=kind != "none", spec_extra={"report": paper}))


@pytest.mark.parametrize("kind", ["record", "client", "none"])
def test_what_a_privacy_officer_asks_is_answered(
    kind: str, make_run: MakeRun, make_client_run: MakeRun
) -> None:
    found = places(document(build(run_of(kind, make_run, make_client_run))))
    for question, place, *answers in QUESTIONS:
        answer = answers[("record", "client", "none").index(kind)]
        where, _, pattern = answer.rpartition(":") if answer.startswith("claim:") else ("", "", "")
        text = found[where or place]
        assert re.search(pattern or answer, text), f"{question}\n{text}"


@POPPLER
@pytest.mark.parametrize("kind", ["record", "client", "none", "letter"])
def test_the_answers_stand_on_pages_one_and_two(
    kind: str, make_run: MakeRun, make_client_run: MakeRun
) -> None:
    path = build_report(run_of(kind, make_run, make_client_run)).pdf
    first, second = (page_text(path, page) for page in (1, 2))
    assert "Protected from whom" in first
    for text in ("What rests on whose word", "What this does not mean", "What was not verified"):
        assert text in first + second
    assert "The audit at a glance" in first + second


@POPPLER
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
    """No page but the last is a quarter empty, and each has its own number."""
    path = build_report(run_of(kind, make_run, make_client_run), audience).pdf
    command = ["pdftoppm", "-r", "20", "-gray", "-png", str(path), str(tmp_path / "page")]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    pages = sorted(tmp_path.glob("page-*.png"))
    for number, page in enumerate(pages, 1):
        shown = page_text(path, number).replace(" / ", "/")
        assert shown.endswith(f" {number}/{len(pages)}")
        if number < len(pages):
            assert empty_share(page) < 0.25, f"page {number} of {len(pages)}"


def page_text(path: Path, page: int) -> str:
    command = ["pdftotext", "-f", str(page), "-l", str(page), str(path), "-"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return " ".join(done.stdout.decode("utf-8").split())


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
