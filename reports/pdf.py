"""Sets the report as a PDF: tagged, archivable (PDF/A-3a, PDF/UA-1), with report.json inside.

The page is composed by typst from reports/templates/report.typ in a folder that holds nothing but
the report, its figures and the typefaces. Every text reaches typst as a JSON string, and the
template shows strings without ever evaluating them. Dates come from the run, so the same report
gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib
import typst

from reports import content, figures, formatting
from reports.errors import ReportError
from reports.runfiles import clean, write_atomic

_STANDARDS: list[typst.PDFStandard] = ["a-3a", "ua-1"]
_FACES = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSans-BoldOblique.ttf",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACEHOLDER_FACE = "LastResortHE-Regular.ttf"
_CLIENTS_HEAD = (
    "Client", "Records", "Rate q", "Rounds", "Steps", "ε (PLD)", "ε (RDP)", "δ·records",
)  # fmt: skip
_CLIENT_LEVEL_HEAD = ("Client", "Records", "Rounds", "ε (PLD)", "ε (RDP)")
_SHOWN_CLIENTS = 40
_SHOWN_BLOCKS = 24
_SHOWN_ROUNDS = 12


def render(report: dict[str, Any], output: Path) -> None:
    """Write a report as PDF.

    Args:
        report: What `content.build` returned. Nothing else is read, so nothing else can be shown.
        output: The PDF's path; replaced as a whole.

    Raises:
        ReportError: The page cannot be composed or written.
    """
    write_atomic(output, compose(report))


def compose(report: dict[str, Any]) -> bytes:
    """Return the report's PDF as bytes; same report, same bytes."""
    moment = _moment(report["identity"]["created"])
    with tempfile.TemporaryDirectory(prefix="dpfedadamw-report-") as name:
        folder = Path(name)
        template = resources.files("reports").joinpath("templates/report.typ")
        (folder / "report.typ").write_bytes(template.read_bytes())
        (folder / "report.json").write_bytes(content.serialise(report))
        page = json.dumps(page_data(report, moment), ensure_ascii=False)
        (folder / "page.json").write_text(page, encoding="utf-8")
        for figure in report["figures"]:
            try:
                drawing = figures.draw(report, figure["identifier"])
            except (ArithmeticError, ValueError) as error:
                raise ReportError(
                    f"{figure['identifier']}: cannot be drawn ({clean(str(error), 120)})"
                ) from error
            (folder / f"{figure['identifier']}.svg").write_bytes(drawing)
        return _compile(folder, moment)


def _compile(folder: Path, moment: datetime) -> bytes:
    """Compile, widening the choice of typefaces only as far as the text needs.

    First the typefaces that travel with typst and matplotlib, so that the page is the same
    everywhere; then the system's, for scripts that those lack; last, labelled placeholder glyphs
    under which the text itself stays whole for search and screen readers.
    """
    faces = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    shipped, placeholder = folder / "faces", folder / "placeholder"
    for target, names in ((shipped, _FACES), (placeholder, (_PLACEHOLDER_FACE,))):
        target.mkdir()
        for name in names:
            if (faces / name).is_file():
                shutil.copyfile(faces / name, target / name)
    attempts = (([shipped], True), ([shipped], False), ([shipped, placeholder], True))
    for index, (paths, ignore_system) in enumerate(attempts):
        try:
            return typst.compile(
                str(folder / "report.typ"),
                root=str(folder),
                font_paths=[str(path) for path in paths],
                ignore_system_fonts=ignore_system,
                format="pdf",
                timestamp=moment,
                pdf_standards=_STANDARDS,
            )
        except typst.TypstError as error:
            missing_glyph = "could not be displayed" in str(error)
            if not missing_glyph or index == len(attempts) - 1:
                raise ReportError(f"report.pdf: {clean(str(error), 200)}") from error
    raise AssertionError("unreachable")


def _moment(created: str) -> datetime:
    """Return the run's own time; the epoch if the ledger has none that can be read."""
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return _EPOCH
    return max(moment.replace(microsecond=0), _EPOCH)


def page_data(report: dict[str, Any], moment: datetime) -> dict[str, Any]:
    """Return what the template shows beside the report itself: numbers as printed text.

    Args:
        report: The report.
        moment: The run's time, UTC.
    """
    guarantee, utility, traffic = report["guarantee"], report["utility"], report["communication"]
    clients = report["clients"]
    by_client = guarantee["unit"] == "client"
    return {
        "date": [moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second],
        "dated": moment > _EPOCH,
        "epsilon": formatting.epsilon(guarantee["epsilon"]) if guarantee["private"] else "none",
        "delta": formatting.power(guarantee["delta"]),
        "delta_times": _delta_times(guarantee),
        "headline": next(
            (v["label"] for v in report["accounting"]["views"] if v["key"] == guarantee["view"]), ""
        ),
        "views": [
            [
                view["label"],
                view["towards"],
                formatting.epsilon(view["epsilon"]),
                "–" if view["key"] == "trusted_server" else formatting.power(view["delta"]),
                view["method"],
            ]
            for view in report["accounting"]["views"]
        ],
        # Where there is no guarantee, the sentence and the qualification on the first page say so.
        "beside": [
            [
                view["label"],
                f"ε = {formatting.epsilon(view['epsilon'])}",
                f" at δ = {formatting.power(view['delta'])}",
            ]
            for view in report["accounting"]["views"]
            if view["key"] != "trusted_server"
        ],
        "closed_forms": [
            [
                row["name"],
                row["formula"],
                row["towards"],
                formatting.epsilon(row["epsilon"]),
                row["reading"],
                row["compared_with"] or "–",
            ]
            for row in report["accounting"]["closed_forms"]
        ],
        "facts": _facts(report),
        "clients_head": _CLIENT_LEVEL_HEAD if by_client else _CLIENTS_HEAD,
        "clients": [
            _client_level_row(row) if by_client else _client_row(row)
            for row in _shown_clients(clients["rows"])
        ],
        "clients_total": len(clients["rows"]),
        "records": [
            formatting.count(clients[f"records_{key}"])
            for key in ("total", "smallest", "median", "largest")
        ],
        "blocks": _blocks(report),
        "utility": [
            [
                str(row["round"]),
                formatting.percent(row["test_accuracy"]),
                formatting.plain(row["test_loss"]) if row["test_loss"] is not None else "–",
            ]
            for row in _thinned(utility["rounds"])
        ],
        "final_accuracy": formatting.percent(utility["final_accuracy"]),
        "traffic": [
            ["Uploaded by all clients", formatting.size(traffic["bytes_up"])],
            ["Downloaded by all clients", formatting.size(traffic["bytes_down"])],
            ["Rounds measured", formatting.count(traffic["rounds"])],
        ]
        if traffic["bytes_up"] is not None or not by_client
        else [],
    }


def _delta_times(guarantee: dict[str, Any]) -> list[str]:
    """Return the name and value of δ times the number of what is protected."""
    if guarantee["delta_times_clients"] is not None:
        return ["δ·N", formatting.power(guarantee["delta_times_clients"])]
    return ["δ·n", formatting.power(guarantee["delta_times_records"])]


def _client_row(row: dict[str, Any]) -> list[str]:
    return [
        str(row["client"]),
        formatting.count(row["records"]),
        formatting.plain(row["sampling_rate"]),
        formatting.count(row["participations"]),
        formatting.count(row["steps"]),
        formatting.epsilon(row["epsilon_pld"]),
        formatting.epsilon(row["epsilon_rdp"]),
        formatting.power(row["delta_records"]),
    ]


def _client_level_row(row: dict[str, Any]) -> list[str]:
    return [
        str(row["client"]),
        formatting.count(row["records"]),
        formatting.count(row["participations"]),
        formatting.epsilon(row["epsilon_pld"]),
        formatting.epsilon(row["epsilon_rdp"]),
    ]


def _facts(report: dict[str, Any]) -> list[list[str]]:
    identity, mechanism = report["identity"], report["mechanism"]
    sampling, utility = report["sampling"], report["utility"]
    model = next((row["value"] for row in identity["model"] if row["name"] == "name"), "unknown")
    digest = next((h["sha256"] for h in identity["hashes"] if h["file"] == "model.safetensors"), "")
    return [
        ["Algorithm", mechanism["algorithm"]],
        ["Model", f"{model}, {formatting.count(identity['parameters'])} trainable parameters"],
        ["Data", f"{identity['dataset']}, {formatting.count(report['clients']['records_total'])} "
                 f"training records at {formatting.count(sampling['clients'])} clients"],
        ["Training", f"{formatting.count(mechanism['rounds_completed'])} of "
                     f"{formatting.count(mechanism['rounds'])} rounds, "
                     f"{formatting.count(sampling['clients_per_round'])} clients a round"
                     f"{' on average' if sampling['participation'] is not None else ''}, "
                     f"{mechanism['local_steps_in_words']} local steps"],
        ["Test accuracy", formatting.percent(utility["final_accuracy"])],
        ["Randomness", report["randomness"]["mode"]],
        ["Model file", digest or "missing"],
    ]  # fmt: skip


def _shown_clients(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all rows, or the clients with the largest loss if a page cannot hold them all."""
    if len(rows) <= _SHOWN_CLIENTS:
        return rows
    ordered = sorted(rows, key=lambda row: -(row["epsilon_pld"] or 0.0))
    return ordered[: _SHOWN_CLIENTS // 2]


def _blocks(report: dict[str, Any]) -> list[list[str]]:
    found = report["audit"]["second_moment"]
    if found is None:
        return []
    blocks = sorted(found["blocks"], key=lambda block: -(block["size"] or 0))
    chosen = found["blocks"] if len(blocks) <= _SHOWN_BLOCKS else blocks[:_SHOWN_BLOCKS]
    return [
        [
            block["name"],
            formatting.count(block["size"]),
            formatting.plain(block["predicted"], 5),
            formatting.plain(block["half_width"], 3),
            formatting.plain(block["released"], 5),
        ]
        for block in chosen
    ]


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most a page's worth of measured rounds, first and last included."""
    measured = [row for row in rows if row["test_accuracy"] is not None]
    if len(measured) <= _SHOWN_ROUNDS:
        return measured
    last = len(measured) - 1
    return [measured[round(i * last / (_SHOWN_ROUNDS - 1))] for i in range(_SHOWN_ROUNDS)]
