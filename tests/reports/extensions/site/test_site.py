"""A site over a folder of runs: what it shows, what it hands on, and what never reaches it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from reports import ReportError, build_report
from reports.extensions.site import SiteData, SiteRun, figure, folder, page, reading
from reports.extensions.site.reading import Keys, SeenRun, read_all, run_folders
from reports.extensions.site.spending import spent
from reports.signatures import keyring, keys, signing
from reports.source import load
from tests.reports import drawings
from tests.reports.changed_runs import change_participation, rewrite_header
from tests.reports.content import origins
from tests.reports.signing_keys import create

MakeRun = Callable[..., Path]
undrawn = drawings.undrawn
WHERE = Path("study") / "hospital-floor"


@pytest.fixture(scope="module")
def original(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs: signed with a public report, without privacy, failed, and signed by nobody."""
    place = tmp_path_factory.mktemp("site")
    trainer, auditor = (
        keyring.load_signing_key(role, create(role, place / "keys").private) for role in keys.ROLES
    )
    runs = place / "runs"
    kinds: dict[str, dict[str, Any]] = {
        "signed": {},
        "plain": {"private": False},
        "failed": {"verdict": "FAIL"},
        "unsigned": {"rounds": 30},
    }
    for index, (name, options) in enumerate(kinds.items()):
        run = run_builder(
            runs / WHERE / name, clients=4, name=name, identifier=f"{index:08x}",
            **{"rounds": 3, **options},
        )  # fmt: skip
        if name == "unsigned":
            continue
        build_report(run)
        if name == "signed":
            build_report(run, "public")
        signing.sign(run, trainer, auditor)
    return place


@pytest.fixture
def runs(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the runs, whose keys are the reader's own."""
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(original / "keys"))
    return Path(shutil.copytree(original / "runs", tmp_path / "runs"))


def restricted_values(run: Path) -> set[str]:
    """The realised losses of server and clients, and digests that would confirm a guess."""
    claim = json.loads((run / "ledger.jsonl").read_text("utf-8").splitlines()[-1])
    public = {claim[view]["epsilon"]["pld"] for view in ("third_party", "server_worst_case")}
    losses = {claim["server"]["epsilon"]["pld"]}
    losses |= {row["epsilon"]["pld"] for row in claim["server"]["clients"]}
    digests = {
        hashlib.sha256((run / name).read_bytes()).hexdigest()
        for name in ("ledger.jsonl", "audit.json")
    }
    return {repr(loss)[:9] for loss in losses - public - {0.0}} | digests


def row(data: SiteData, name: str) -> SiteRun:
    return next(run for run in data.runs if run.name == name)


def files_of(out: Path) -> Iterator[Path]:
    return (path for path in out.rglob("*") if path.is_file())


def test_every_run_has_its_numbers_its_audit_and_the_state_of_its_signatures(
    runs: Path, tmp_path: Path
) -> None:
    data = folder.write(runs, tmp_path / "out")
    states = {run.name: (run.audit, run.level, run.signatures, run.auditor) for run in data.runs}
    assert states == {
        "signed": ("PASS", 1, "hold", "trainer"),
        "plain": ("NO CLAIM", None, "hold", "trainer"),
        "failed": ("FAIL", None, "hold", "trainer"),
        "unsigned": ("PASS", None, "unsigned", "trainer"),
    }
    report = json.loads((runs / WHERE / "signed" / "report-public.json").read_text("utf-8"))
    assert row(data, "signed").epsilon == report["guarantee"]["epsilon"]
    assert row(data, "signed").accuracy == report["utility"]["final_accuracy"]
    assert row(data, "plain").epsilon is None
    assert json.loads((tmp_path / "out" / "site.json").read_text("utf-8"))["runs"][0]["name"]


def test_a_row_has_the_settings_and_the_losses_of_its_run(runs: Path, tmp_path: Path) -> None:
    data = folder.write(runs, tmp_path / "out")
    claim = json.loads((runs / WHERE / "signed" / "ledger.jsonl").read_text().splitlines()[-1])
    told = row(data, "signed").model_dump()
    shared = {
        "created": "2026-11-21T09:21:27Z", "dataset": "digits", "recomputed": None,
        "reservations": (), "unprotected_against": None,
    }  # fmt: skip
    assert told == told | shared | {
        "run": "quickstart-20261121T092127Z-00000000", "algorithm": "dp-fedadamw",
        "unit": "record", "adjacency": "add-or-remove-one-record", "delta": 1e-5,
        "epsilon": claim["third_party"]["epsilon"]["pld"],
        "epsilon_server": claim["server_worst_case"]["epsilon"]["pld"],
    }  # fmt: skip
    plain = row(data, "plain").model_dump()
    assert plain == plain | shared | {
        "run": "quickstart-20261121T092127Z-00000001", "algorithm": "fedadamw", "unit": "none",
        "adjacency": "", "delta": None, "epsilon": None, "epsilon_server": None, "level": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("records", ()),
        ("no privacy", ()),
        ("not finished", ()),
        ("a public search", ()),
        ("a seed", ("knows the seed",)),
        ("a private selection", ("random number of trials",)),
        ("an unaccounted search", ("no ε covers",)),
        ("clients", ()),
        ("a loop", ()),
        ("unbounded", ("no ε against a third party",)),
    ],
)
def test_what_limits_a_claim_stands_in_its_row_and_nothing_else_does(
    runs: Path, kind: str, words: tuple[str, ...]
) -> None:
    said = list(reading._reservations(origins.made(kind, load(runs / WHERE / "unsigned"))))
    assert len(said) == len(words)
    assert all(word in text for word, text in zip(words, said, strict=True))


def test_a_run_whose_last_round_was_not_measured_has_no_accuracy(runs: Path) -> None:
    run = runs / WHERE / "unsigned"
    found = reading.read(run, Keys())
    assert found is not None
    assert found.row.accuracy is not None
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n", "utf-8")
    found = reading.read(run, Keys())
    assert found is not None
    assert found.row.accuracy is None


@pytest.mark.parametrize(
    ("public", "internal", "state", "auditor"),
    [
        ("another key", "trainer", "hold", "another key"),
        ("trainer", "another key", "hold", "trainer"),
        (None, "another key", "hold", "another key"),
        (None, "another key", "signer unknown", "another key"),
        (None, "nonsense", "hold", "trainer"),
        (None, None, "hold", "trainer"),
        # What nobody signed, or somebody changed, says nothing.
        ("another key", None, "broken", "trainer"),
        ("another key", None, "unsigned", "trainer"),
    ],
)
def test_who_audited_is_what_a_report_that_was_signed_says(
    runs: Path, public: str | None, internal: str | None, state: Any, auditor: str
) -> None:
    run = runs / WHERE / "unsigned"
    for name, stated in (("report-public.json", public), ("report.json", internal)):
        if stated is not None:
            (run / name).write_text(json.dumps({"trust": {"auditor": stated}}), "utf-8")
    source = load(run)
    assert reading._auditor(run, source, state) == auditor
    assert reading._auditor(run, origins.made("not audited", source), state) == "nobody"


def test_runs_are_found_below_a_folder_but_not_in_hidden_ones_nor_behind_links(
    tmp_path: Path,
) -> None:
    shown = tmp_path / "shown"
    deep = Path("a/b/c/d/e/f/g")
    for place in ("b", "a/run", deep, deep / "too-deep", ".hidden/run", "trials/run", "b/inner"):
        (shown / place).mkdir(parents=True, exist_ok=True)
    for place in ("b", "a/run", deep / "too-deep", ".hidden/run", "trials/run", "b/inner"):
        (shown / place / "ledger.jsonl").touch()
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "ledger.jsonl").touch()
    (shown / "link").symlink_to(other)
    # What lies in a run is the run's.
    assert run_folders(shown) == [shown / "a" / "run", shown / "b"]
    (shown / deep / "ledger.jsonl").touch()
    assert run_folders(shown) == [shown / deep, shown / "a" / "run", shown / "b"]
    assert run_folders(shown / "link") == [other]


def test_public_reports_are_handed_on_as_they_were_attested_and_nothing_else(
    runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    data = folder.write(runs, out)
    signed = row(data, "signed")
    assert {name for run in data.runs for name in run.files} == set(signed.files)
    found = {str(path.relative_to(out)) for path in files_of(out)}
    assert found == {"index.html", "site.json", *signed.files}
    for name in signed.files:
        assert (out / name).read_bytes() == (runs / WHERE / "signed" / Path(name).name).read_bytes()
        assert (out / name).stat().st_mode & 0o777 == 0o644
    assert not any("model.safetensors" in name for name in signed.files)
    whole = folder.write(runs, out, models=True)
    assert any("model.safetensors" in name for name in row(whole, "signed").files)


def test_whoever_holds_the_site_learns_nothing_restricted_or_private(
    runs: Path, tmp_path: Path
) -> None:
    """Digests of data and ledger, losses that tell participation, and where runs lie here."""
    run = runs / WHERE / "signed"
    (run / "evidence" / "note.json").write_text('"PLANTED-8675309"')
    rewrite_header(runs / WHERE / "unsigned", data_sha256="d" * 64)
    secrets = {*restricted_values(run), *restricted_values(runs / WHERE / "unsigned")}
    assert len(secrets) > 8
    secrets |= {"d" * 64, "PLANTED-8675309", str(runs), "hospital-floor"}
    folder.write(runs, tmp_path / "out")
    for path in files_of(tmp_path / "out"):
        text = path.read_bytes()
        assert [secret for secret in secrets if secret.encode() in text] == [], path.name


def test_other_participation_leaves_the_same_site(runs: Path, tmp_path: Path) -> None:
    run = runs / WHERE / "unsigned"
    kept = folder.write(runs, tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_bytes()
    change_participation(run)
    assert folder.write(runs, tmp_path / "out") == kept
    assert (tmp_path / "out" / "index.html").read_bytes() == page


def test_files_of_a_stranger_are_not_handed_on(
    runs: Path, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody else signed could hold anything, a script among it, under our name."""
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "others"))
    data = folder.write(runs, tmp_path / "out")
    assert row(data, "signed").signatures == "signer unknown"
    assert {path.name for path in files_of(tmp_path / "out")} == {"index.html", "site.json"}
    public = Keys(original / "keys" / "trainer.pub", original / "keys" / "auditor.pub")
    assert row(folder.write(runs, tmp_path / "out", keys=public), "signed").files


def test_a_report_that_was_changed_is_not_handed_on(runs: Path, tmp_path: Path) -> None:
    page = runs / WHERE / "signed" / "report-public.html"
    page.write_text(page.read_text("utf-8").replace("<main", "<script>1</script><main"), "utf-8")
    data = folder.write(runs, tmp_path / "out")
    assert row(data, "signed").signatures == "broken"
    assert {path.name for path in files_of(tmp_path / "out")} == {"index.html", "site.json"}


def test_trials_of_a_private_selection_and_audit_runs_are_not_shown(
    runs: Path, run_builder: MakeRun, tmp_path: Path
) -> None:
    """The ε of a selection counts on nobody seeing another trial, or how many there were."""
    before = [run.name for run in folder.write(runs, tmp_path / "out").runs]
    tuned = {"tune": {"selection": "private"}}
    for index in range(2):
        trial = runs / "search" / "trials" / f"t{index}"
        run_builder(trial, name="secret", identifier=f"9{index:07x}", spec_extra=tuned)
    planted = run_builder(runs / "planted", name="secret", identifier="8" * 8)
    rewrite_header(planted, canaries={"count": 3})
    found = folder.write(runs, tmp_path / "out")
    assert [run.name for run in found.runs] == before
    assert [(one.runs, one.unfinished, one.canaries) for one in found.spent] == [(3, 0, 1)]
    rewrite_header(runs / "planted", data_sha256="f" * 64)
    assert [one.canaries for one in folder.write(runs, tmp_path / "out").spent] == [0]
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "secret" not in page
    with pytest.raises(ReportError, match="holds no finished run that may be shown"):
        folder.write(runs / "planted", tmp_path / "alone")
    inside = read_all(run_folders(runs / "search" / "trials" / "t0"), Keys())
    assert inside == []


def test_what_cannot_be_read_is_a_line_each_and_nothing_is_written(
    runs: Path, tmp_path: Path
) -> None:
    for name in ("plain", "failed"):
        (runs / WHERE / name / "spec.yaml").write_text("{")
    with pytest.raises(ReportError) as caught:
        folder.write(runs, tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 2
    assert all("spec.yaml" in line for line in str(caught.value).splitlines())
    assert not (tmp_path / "out").exists()


def test_an_earlier_site_is_replaced_as_a_whole_and_nothing_else_is(
    runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    folder.write(runs, out)
    gone = next(path for path in (out / "runs").iterdir())
    shutil.rmtree(runs / WHERE / "signed")
    folder.write(runs, out)
    assert not gone.exists()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ReportError, match="is no site"):
        folder.write(runs, out)
    assert (out / "mine.txt").read_text() == "mine"
    for place in (runs, runs / WHERE / "failed" / "site"):
        with pytest.raises(ReportError, match="choose a"):
            folder.write(runs, place)


def test_a_copy_of_a_run_counts_once(runs: Path) -> None:
    shutil.copytree(runs / WHERE / "signed", runs / "copy")
    assert len(read_all(run_folders(runs), Keys())) == 4


def seen(letter: str, epsilon: float | None, **changes: Any) -> SeenRun:
    known: dict[str, Any] = {
        "run": "r", "name": "n", "algorithm": "a", "created": "", "data": letter, "dataset": "d",
        "unit": "record", "adjacency": "add", "epsilon": epsilon, "delta": 1e-5,
        "epsilon_server": 2.0, "accuracy": 0.5, "audit": "PASS", "level": 1, "recomputed": None,
        "auditor": "trainer", "signatures": "hold", "reservations": (), "files": (),
    }  # fmt: skip
    finished, planted = changes.pop("finished", True), changes.pop("planted", False)
    return SeenRun(Path("x"), SiteRun.model_validate(known | changes), finished, "", (), planted)


@pytest.mark.parametrize(
    ("level", "colour", "word"),
    [
        (None, "is-not-verified", None),
        (1, "is-not-verified", "level 1 of 4, consistent"),
        (2, "is-pass", "level 2 of 4, re-executed"),
        (3, "is-pass", "level 3 of 4, challenged"),
    ],
)
def test_a_pass_has_the_word_and_the_colour_that_the_first_page_gives_its_level(
    level: int | None, colour: str, word: str | None
) -> None:
    shown = page._verdict(seen("A", 1.0, level=level).row)
    assert f'class="badge {colour}"' in shown
    assert ">✓</span> PASS<" in shown
    assert word in shown if word is not None else "level" not in shown
    assert 'class="badge is-fail"' in page._verdict(seen("A", 1.0, level=None, audit="FAIL").row)


@pytest.mark.parametrize(
    ("level", "recomputed", "said"),
    [
        (1, None, "nothing computed again"),
        (2, 20, "20 participations computed again"),
        (2, 1, "1 participation computed again"),
        (2, None, "participations computed again"),
    ],
)
def test_it_is_said_what_was_computed_again(level: int, recomputed: int | None, said: str) -> None:
    shown = page._verdict(seen("A", 1.0, level=level, recomputed=recomputed).row)
    assert f"<small>{said}</small>" in shown


class Text(HTMLParser):
    """The words of a page, and whether each element that is opened is closed in its order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data.strip())


def test_the_page_closes_what_it_opens_and_its_filters_have_these_words() -> None:
    rows = (
        seen("A", 1.0, reservations=("one",), recomputed=3, level=2).row,
        seen("B", None, unit="none", audit="NO CLAIM", signatures="unsigned").row,
    )
    total = tuple(spent([seen("A", 1.0), seen("A", 2.0, audit="FAIL")]))
    data = SiteData(format=1, title="Runs of a ward", runs=rows, spent=total)
    whole = Text(page.compose(data).decode("utf-8"))
    assert whole.words[:2] == ["Runs of a ward", "Skip to the content"]
    assert Text(page._controls(rows)).words == [
        "Search",
        "Data", "all", "A: d", "B: d",
        "Protects", "all", "nothing", "one record",
        "Audit", "all", "NO CLAIM", "PASS",
        "Signatures", "all", "hold", "none",
        "Sort by", "Run", "Data", "Protects", "ε, third party", "ε, server", "Accuracy", "Audit",
        "Signatures", "Begun",
        "falling", "2 runs",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ([("A", "record", "PASS", "hold")], "1 run on 1 data set: 1 passed {}."),
        (
            [
                ("A", "record", "PASS", "hold"),
                ("A", "record", "PASS", "unsigned"),
                ("B", "client", "FAIL", "hold"),
                ("C", "none", "NO CLAIM", "hold"),
            ],
            "4 runs on 3 data sets: 1 passed {}; 1 has {}.",
        ),
        ([("A", "none", "NO CLAIM", "hold")] * 2, "2 runs on 1 data set: 0 passed {}; 2 have {}."),
    ],
)
def test_the_page_says_in_short_how_many_passed_and_how_many_had_no_privacy(
    kinds: list[tuple[str, str, str, str]], words: str
) -> None:
    runs = tuple(
        seen(data, None, unit=unit, audit=audit, signatures=signatures).row
        for data, unit, audit, signatures in kinds
    )
    said = page._in_short(SiteData(format=1, title="", runs=runs, spent=()))
    assert re.fullmatch(re.escape(words).replace(r"\{\}", "[^0-9;:]+"), said)


def test_a_run_links_to_each_of_its_files_that_were_handed_on() -> None:
    known = {
        "report-public.html": "Report",
        "report-public.pdf": "PDF",
        "report-public.json": "Data",
        "VERIFY-public.md": "How to check",
    }

    def links(*names: str) -> list[tuple[str, str]]:
        files = tuple(f"runs/one/{name}" for name in names)
        shown = page._what(seen("A", 1.0, files=files).row)
        assert ("no public report here" in shown) == (not files)
        return re.findall('<a href="runs/one/([^"]+)">([^<]+)<', shown)

    assert links(*reversed(known)) == list(known.items())
    assert links() == []
    for name, word in known.items():
        assert links(name) == [(name, word)]


# In the order in which they are offered: by letter, by name, and the best signatures first.
CHOICES = {
    "data": ["A", "B", "AA"],
    "unit": ["client", "none", "record"],
    "audit": ["FAIL", "NO CLAIM", "PASS"],
    "signatures": ["hold", "signer unknown", "broken", "unsigned"],
}


def test_each_filter_and_order_asks_for_a_column_and_each_choice_finds_its_rows() -> None:
    """The script compares what is chosen with a row's value in the column of the same key."""
    kinds: tuple[tuple[str, float | None, dict[str, Any]], ...] = (
        ("A", 1.0, {}),
        ("A", 2.0, {"audit": "FAIL", "signatures": "broken"}),
        ("AA", 3.0, {"unit": "client", "signatures": "signer unknown"}),
        ("B", None, {"unit": "none", "audit": "NO CLAIM", "signatures": "unsigned"}),
    )
    rows = [seen(data, loss, **changes).row for data, loss, changes in kinds]
    shown = page._runs(rows)
    columns = dict(re.findall(r'data-key="(\w+)"><button type="button">([^<]+)<', shown))
    assert len(columns) == len(set(columns.values())) == shown.count("<th ")
    values = [
        dict(zip(columns, re.findall('data-value="([^"]*)"', line), strict=True))
        for line in re.findall('<tr role="row" data-row=.*', shown)
    ]
    filters = re.findall(r'<label>([^<]+)<select data-filter="([^"]+)">(.*?)</select>', shown)
    assert {key: title for title, key, _ in filters} == {
        "data": "Data", "unit": "Protects", "audit": "Audit", "signatures": "Signatures",
    }  # fmt: skip
    for title, key, choices in filters:
        assert columns[key] == title
        every, *others = re.findall('<option value="([^"]*)">', choices)
        assert every == ""
        assert others == CHOICES[key]
        assert set(others) == {one[key] for one in values}
    orders = re.findall('<option value="([^"]*)">([^<]*)<', shown.partition("data-order")[2])
    assert dict(orders) == columns
    # Those that the script sorts as numbers, and the one that it begins with.
    assert columns.keys() >= {"epsilon", "server", "accuracy", "created"}
    # Where all rows are alike, there is nothing to choose.
    assert "data-filter" not in page._runs(rows[:1] * 2)


def test_points_have_names_that_cover_neither_each_other_nor_a_point() -> None:
    kinds = [("one", 1.0), ("two", 1.01), ("one", 1.02), ("far", 9.0)]
    runs = [
        seen("A", loss, run=f"{name}-{index:04x}0000", name=name).row
        for index, (name, loss) in enumerate(kinds)
    ]
    points = list(enumerate(runs))
    for width in (720, 340):
        _, across = figure._horizontal([loss for _, loss in kinds], width)
        found = figure._names(points, across, lambda _: 150.0, width)
        # Runs of one name have the end of their identifiers.
        assert [re.sub("<[^>]*>", "", text) for text in found.values()] == [
            "one 0000", "two", "one 0002", "far"
        ]  # fmt: skip
        heights = [
            re.findall(r'<text x="[-0-9.]+" y="([0-9.]+)"', text)[0] for text in found.values()
        ]
        assert len(set(heights[:3])) == 3


def drawn_at(drawing: str, shape: str, names: tuple[str, str]) -> list[tuple[float, float]]:
    found = []
    for element in re.findall(f"<{shape} [^>]*>", drawing):
        x, y = (re.search(rf'\b{name}="([-0-9.]+)"', element) for name in names)
        assert x is not None
        assert y is not None
        found.append((float(x[1]), float(y[1])))
    return found


@pytest.mark.parametrize("width", [720, 340])
@pytest.mark.parametrize(
    ("losses", "logarithmic"),
    [([0.5, 2.0, 5.9], False), ([0.0, 8.0, 40.0], False), ([0.3, 2.0, 45.0], True)],
)
def test_a_point_stands_where_the_axes_say_that_its_numbers_are(
    losses: list[float], logarithmic: bool, width: int
) -> None:
    rates = [0.31, 0.505, 0.97]
    runs = [
        seen("A", loss, run=f"r-{place}", name="", accuracy=rate).row
        for place, (loss, rate) in enumerate(zip(losses, rates, strict=True))
    ]
    plain = seen("A", None, unit="none", accuracy=0.99).row
    drawing = figure._drawing(list(enumerate(runs)), [plain], {"A": "#000000"}, width)
    texts = re.findall(
        r'<text x="([0-9.]+)" y="([0-9.]+)" text-anchor="(\w+)">([0-9.e+-]+)</text>', drawing
    )
    across = [(float(x), float(text)) for x, _, anchor, text in texts if anchor == "middle"]
    # A number stands next to its line, four pixels below as letters do.
    up = [(float(y) - 4, float(text) / 100) for _, y, anchor, text in texts if anchor == "end"]
    assert len(across) >= 3
    assert len(up) >= 3
    scale = math.log if logarithmic else float
    steps = np.diff([value for _, value in across])
    assert (max(steps) > 1.5 * min(steps)) == logarithmic
    points = drawn_at(drawing, "circle", ("cx", "cy"))
    for (x, y), loss, rate in zip(points, losses, rates, strict=True):
        line = np.polyfit([at for at, _ in across], [scale(value) for _, value in across], 1)
        assert (math.exp if logarithmic else float)(np.polyval(line, x)) == pytest.approx(
            loss, rel=0.02, abs=0.05
        )
        assert np.interp(y, *zip(*sorted(up), strict=True)) == pytest.approx(rate, abs=0.004)
        assert across[0][0] - 0.1 <= x <= across[-1][0] + 0.1
        assert up[-1][0] - 0.1 <= y <= up[0][0] + 0.1
    # The best without privacy is a line across the drawing, at its own accuracy.
    ((_, best),) = drawn_at(drawing, "line", ("x1", "y1"))
    assert np.interp(best, *zip(*sorted(up), strict=True)) == pytest.approx(0.99, abs=0.004)


def test_the_best_run_without_privacy_on_the_same_data_is_a_line() -> None:
    private = [seen("A", loss, accuracy=rate).row for loss, rate in ((1.0, 0.9), (2.0, 0.5))]
    rates = (("A", 0.7), ("A", 0.6), ("A", None), ("B", 0.99))
    plain = [seen(data, None, unit="none", accuracy=rate).row for data, rate in rates]
    wide, narrow, key = figure.block([*private, *plain]).split("</svg>")
    for drawing, name in ((wide, "wide"), (narrow, "narrow")):
        assert f'<svg class="{name}"' in drawing
        (_, best), (_, worst) = drawn_at(drawing, "circle", ("cx", "cy"))
        ((_, line),) = drawn_at(drawing, "line", ("x1", "y1"))
        assert line == pytest.approx((best + worst) / 2, abs=0.2)
    assert "best without privacy" in key
    alone = figure.block(private)
    assert "<line" not in alone
    assert "best without privacy" not in alone
    assert figure.block(plain) == ""


def test_a_loss_that_no_axis_reaches_is_in_the_table_alone() -> None:
    endless = seen("A", 1.79e308).row
    assert figure.block([endless]) == ""
    drawing = figure.block([seen("A", 1e299).row, seen("A", 2.0).row, endless])
    assert drawing.count("<circle") == 4


@pytest.mark.parametrize(
    ("unit", "shape"), [("record", "circle"), ("person", "path"), ("client", "rect")]
)
@pytest.mark.parametrize(
    ("audit", "signatures", "solid"),
    [
        ("PASS", "hold", True),
        ("PASS", "signer unknown", False),
        ("PASS", "broken", False),
        ("PASS", "unsigned", False),
        ("FAIL", "hold", False),
        ("NOT VERIFIED", "hold", False),
    ],
)
def test_a_point_has_the_shape_of_its_unit_and_is_full_only_where_all_holds(
    unit: str, shape: str, audit: str, signatures: str, solid: bool
) -> None:
    run = seen("A", 1.5, unit=unit, audit=audit, signatures=signatures, accuracy=0.875).row
    point = figure._point(3, run, lambda _: 100.0, lambda _: 50.0, "#0072b2", "")
    ((drawn, fill),) = re.findall(r'<(circle|path|rect) [^>]*fill="([^"]*)"', point)
    assert (drawn, fill) == (shape, "#0072b2" if solid else "#ffffff")
    assert 'data-point="3"' in point
    assert f"n: ε 1.50, 87.5 %, {audit}" in point


@pytest.mark.parametrize("width", [720, 340])
def test_no_name_leaves_the_drawing_or_stands_on_its_axes(width: int) -> None:
    """Three points stand at each edge and corner; a name has 32 letters."""
    left, right, bottom, room = 56.0, width - 16.0, 340 - 46.0, 32 * 6.6
    runs = [seen("A", 1.0, run=f"r-{one}", name=one * 40).row for one in "abc"]
    place = r'<text x="(.+?)" y="(.+?)" .*text-anchor="(\w+)"'
    named = []
    for x, y in product((left, 200.0, right), (14.0, 150.0, bottom - 1)):
        points = list(enumerate(runs))
        found = figure._names(points, lambda _, x=x: x, lambda _, y=y: y, width)
        named.append(len(found))
        for text in found.values():
            ((at, base, anchor),) = re.findall(place, text)
            start = float(at) - (room if anchor == "end" else 0.0)
            assert left <= start
            assert start + room <= width
            # Letters reach from ten pixels above their line to two below.
            assert float(base) - 10 >= 0
            assert float(base) + 2 <= bottom
    # In the narrow drawing the middle has no room for so long a name.
    assert [many > 0 for many in named] == [True] * 3 + [width == 720] * 3 + [True] * 3


def test_a_name_that_has_no_room_is_left_out() -> None:
    runs = [seen("A", 1.0, run=f"r-{index:08x}", name=f"run {index}").row for index in range(40)]
    found = figure._names(list(enumerate(runs)), lambda _: 200.0, lambda _: 150.0, 720)
    assert 5 < len(found) < 20


def test_a_run_that_a_stranger_signed_has_no_level(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "mine"))
    found = row(folder.write(runs, tmp_path / "out"), "signed")
    assert (found.audit, found.signatures, found.level) == ("PASS", "signer unknown", None)


def test_what_runs_on_the_same_data_spent_adds_up() -> None:
    """Basic composition, by hand: 1 + 2 = 3 and two times 10⁻⁵; other units stand apart."""
    found = spent(
        [
            seen("A", 1.0),
            seen("A", 2.0, audit="FAIL"),
            seen("A", 9.0, finished=False),
            seen("A", 4.0, unit="client"),
            seen("B", 8.0),
            seen("B", None, unit="none"),
        ]
    )
    by_kind = {(one.data, one.unit): one for one in found}
    first = by_kind["A", "record"]
    assert (first.runs, first.epsilon, first.epsilon_server) == (2, 3.0, 4.0)
    assert first.delta == pytest.approx(2e-5, rel=1e-12)
    assert (first.without_pass, first.unfinished, first.without_privacy) == (1, 1, 0)
    assert by_kind["A", "client"].epsilon == 4.0
    assert by_kind["B", "record"].without_privacy == 1
    assert spent([seen("A", 1.0), seen("A", None)])[0].epsilon is None


def test_claims_for_people_at_other_numbers_of_clients_are_not_added_up(runs: Path) -> None:
    for at, name in enumerate(("signed", "failed", "unsigned"), start=1):
        changes = {"unit": "person", **({} if at == 1 else {"clients_per_person": at // 2 * 2 - 1})}
        rewrite_header(runs / WHERE / name, **changes)
    found = spent(read_all(run_folders(runs), Keys()))
    assert {(one.adjacency, one.runs) for one in found} == {("add-or-remove-one-person", 3)}
    rewrite_header(runs / WHERE / "unsigned", clients_per_person=4)
    found = spent(read_all(run_folders(runs), Keys()))
    kinds = {"add-or-remove-one-person": 2, "add-or-remove-one-person, at up to 4 clients": 1}
    assert {one.adjacency: one.runs for one in found} == kinds


def test_one_run_without_privacy_leaves_no_limit_on_the_page(runs: Path, tmp_path: Path) -> None:
    folder.write(runs, tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    table = page[page.index('id="spent-title"') :]
    assert table.count("no limit") == 2
    assert "had no privacy, so nothing bounds all of them together" in table


def test_runs_on_the_same_records_have_the_same_letter(runs: Path) -> None:
    names = ("signed", "plain", "failed", "unsigned")
    for name, digest in zip(names, ("1", "2", "1", "3"), strict=True):
        rewrite_header(runs / WHERE / name, data_sha256=digest * 64)
    letters = {one.row.name: one.row.data for one in read_all(run_folders(runs), Keys())}
    assert letters["signed"] == letters["failed"]
    assert len(set(letters.values())) == 3


def test_the_page_shows_texts_as_texts_and_asks_nobody_for_anything(
    runs: Path, tmp_path: Path
) -> None:
    run = runs / WHERE / "unsigned"
    spec = yaml.safe_load((run / "spec.yaml").read_text("utf-8"))
    spec["name"] = '<img src="https://example.org/x" onerror="1">'
    (run / "spec.yaml").write_text(yaml.safe_dump(spec), "utf-8")
    folder.write(runs, tmp_path / "out", title="<b>Title</b>")
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "<img" not in page
    assert "&lt;b&gt;Title" in page
    # Every address in the page is one inside the folder, or of a place on the page.
    for address in re.findall(r'(?:href|src)="([^"]*)"', page):
        assert address.startswith("#") or (tmp_path / "out" / address).is_file()
    assert "://" not in page.replace("https://example.org/x", "")
    assert "default-src 'none'" in page.replace("&#x27;", "'")


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    for place, words in ((tmp_path / "none", "no such folder"), (tmp_path, "holds no run")):
        with pytest.raises(ReportError, match=words):
            folder.write(place, tmp_path / "out")


def cells_of(run: SiteRun) -> dict[str, tuple[str, str]]:
    """What each cell of a row is sorted by, and its words."""
    shown = page._row(7, run)
    assert shown.startswith('<tr role="row" data-row="7" ')
    found = re.findall(
        r'<td role="cell" class="\w+" data-label="([^"]*)" data-value="([^"]*)">(.*?)</td>', shown
    )
    return {label: (value, " ".join(Text(cell).words)) for label, value, cell in found}


def test_a_row_has_each_number_of_its_run_and_what_it_is_sorted_by() -> None:
    run = seen(
        "B", 1.001, run="r-1", name="One & Two", algorithm="dp-x", dataset="digits",
        created="2026-11-21T09:21:27Z", unit="person", adjacency="add-or-remove", delta=2.5e-6,
        epsilon_server=30.0, accuracy=0.875, level=2, recomputed=3, auditor="another key",
        unprotected_against="the server", reservations=("one", "two"),
    ).row  # fmt: skip
    assert cells_of(run) == {
        "Run": ("one &amp; two", "One & Two dp-x r-1 no public report here"),
        "Data": ("B", "B digits"),
        "Protects": ("person", "one person add or remove"),
        "ε, third party": ("1.001", "1.01 δ 2.5·10⁻⁶ one; two"),
        "ε, server": ("30.0", "30.00"),
        "Accuracy": ("0.875", "87.5 %"),
        "Audit": (
            "PASS",
            "No meaningful protection against the server ✓ PASS level 2 of 4, re-executed 3 "
            "participations computed again independent, as far as keys show",
        ),
        "Signatures": ("hold", "✓ hold"),
        "Begun": ("2026-11-21T09:21:27Z", "2026-11-21"),
    }
    assert 'data-words="one &amp; two dp-x r-1 digits"' in page._row(0, run)
    # A PASS of a claim that protects nobody is not green.
    assert "is-not-verified" in page._verdict(run)


def test_a_row_of_a_run_without_privacy_promises_nothing() -> None:
    run = seen(
        "A", None, unit="none", adjacency="", delta=None, epsilon_server=None, accuracy=None,
        audit="NO CLAIM", level=None, signatures="broken", auditor="another key",
    ).row  # fmt: skip
    found = cells_of(run)
    assert found["Protects"] == ("none", "nothing")
    assert found["ε, third party"] == ("", "no limit")
    assert found["ε, server"] == found["Accuracy"] == ("", "–")
    assert found["Audit"] == ("NO CLAIM", "– NO CLAIM")
    assert found["Signatures"] == ("broken", "✗ do not hold")


@pytest.mark.parametrize(
    ("auditor", "told"),
    [("nobody", ""), ("trainer", "self-audited"),
     ("another key", "independent, as far as keys show")],
)  # fmt: skip
def test_a_row_says_who_audited_it(auditor: str, told: str) -> None:
    words = cells_of(seen("A", 1.0, level=None, auditor=auditor).row)["Audit"][1]
    assert words == f"✓ PASS {told}".strip()


def test_the_sums_of_each_data_set_say_what_is_not_in_them() -> None:
    kinds = [
        seen("A", 1.0),
        seen("A", 2.0, audit="FAIL"),
        seen("A", 2.5, finished=False),
        seen("A", 2.5, planted=True),
        seen("A", 2.5, planted=True, finished=False),
        seen("B", 4.0, unit="client", epsilon_server=None, delta=None),
        seen("B", 1.0, unit="client", audit="NOT AUDITED"),
        seen("B", 1.0, unit="client", audit="FAIL"),
        seen("B", None, unit="none", audit="NO CLAIM"),
        seen("B", None, unit="none", audit="NO CLAIM"),
        seen("C", None, epsilon_server=None),
    ]
    shown = page._spent(spent(kinds))
    rows = [
        [" ".join(Text(cell).words) for cell in re.findall("<td [^>]*>(.*?)</td>", row)]
        for row in re.findall("<tr>(<td.*?)</tr>", shown)
    ]
    assert rows == [
        [
            "A d", "one record add", "2", "3.00", "4.00", "2·10⁻⁵",
            "1 run without a PASS, whose ε is a claim and no more; 1 run that did not finish, not "
            "in the sum; 2 runs with planted canaries, not in the sum",
        ],
        [
            "B d", "one client add", "3", "no limit", "no limit", "–",
            "2 runs on the same data had no privacy, so nothing bounds all of them together; the "
            "others add up to 6.00; 2 runs without a PASS, whose ε is a claim and no more",
        ],
        ["C d", "one record add", "1", "–", "–", "10⁻⁵", "–"],
    ]  # fmt: skip
    assert page._spent(()) == ""


def test_a_runs_folder_is_called_as_the_run_where_that_is_a_name_and_each_once() -> None:
    names = ["a", "../b", "a", ".c", "x" * 121, "x" * 122, "a"]
    shown = [seen("A", 1.0, run=name) for name in names]
    assert folder._places(shown) == ["a", "run-2", "a-3", "run-4", "x" * 121, "run-6", "a-7"]


def test_only_an_empty_folder_or_an_earlier_site_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "site"
    target.mkdir()
    assert folder._is_ours(target)
    (target / "index.html").write_text("")
    # Without its data nobody knows whose page it is.
    assert not folder._is_ours(target)
    whole = {"format": 1, "title": "", "runs": [], "spent": []}
    for content, ours in ((whole, True), ({**whole, "more": 1}, False), ([], False)):
        (target / "site.json").write_text(json.dumps(content))
        assert folder._is_ours(target) == ours
    (target / "site.json").write_text(json.dumps(whole))
    (target / "notes.txt").write_text("mine")
    assert not folder._is_ours(target)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ReportError, match="holds something that is no site"):
        folder._check_target(link, tmp_path / "runs")
    folder._check_target(tmp_path / "new", tmp_path / "runs")
    for inside in (tmp_path / "runs", tmp_path):
        with pytest.raises(ReportError, match="holds the runs"):
            folder._check_target(inside, tmp_path / "runs")


def test_a_file_that_changes_while_it_is_copied_is_not_handed_on(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = folder.copies.copy_file
    for name in ("report-public.json", signing.PUBLIC_ENVELOPE):

        def changed(source: Path, file: str, to: Path, mode: int, name: str = name) -> None:
            whole(source, file, to, mode)
            if file == name:
                to.chmod(0o600)
                to.write_bytes(to.read_bytes() + b" ")

        monkeypatch.setattr(folder.copies, "copy_file", changed)
        with pytest.raises(ReportError, match=f"{name} was changed while it was copied"):
            folder.write(runs, tmp_path / "out")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
