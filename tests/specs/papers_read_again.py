"""The papers' leads next to those measured here: `python -m tests.specs.papers_read_again`.

Writes a table of docs/results.md, of agreement by paper, and four of docs/method.md: those leads,
what plain DP-FedAvg at one step a round has over every method at 20 rounds of five, what two
candidates have over three methods, and whether a bound on the second moment's signal foretells
where DP-FedAdamW leads. They are made of what the shipped sweeps of the papers' tables hold as
printed, and of the committed data. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from scipy import stats

import specs
from dpfedadamw.extensions.sweeps import cross_table, differences
from reports import run_rows
from tests.specs.results_page import ROOT, head

PAGE, RESULTS = ROOT / "docs" / "method.md", ROOT / "docs" / "results.md"
# The end of a mark names its table.
BEGIN, END = "<!-- python -m tests.specs.papers_read_again: {} -->", "<!-- end -->"
OURS, ONE_STEP = "DP-FedAdamW", "DP-FedAvg, 100 rounds of one step,"
# As the tables here name a method, the names that the paper's tables have for it.
PRINTED = {
    "DP-FedAvg": "DP-FedAvg",
    "DP-SCAFFOLD": "DP-SCAFFOLD",
    "DP-FedAvg-LS": "DP-FedAvg-LS",
    "DP-FedSAM": "DP-FedSAM",
    "DP-LocalAdamW": "DP-LocalAdamW",
    "DP-FedOpt (Adam)": "DP-FedOpt(Adam)",
    "DP-FAFED": "DP-FAFED",
    "DP-FedLADA": "DP-FedLADA",
}
TABLES = (2, 3, 4, 9)
# Heading, data, the column of the data and its value.
HERE = (
    ("server's rate 1", "fashion-mnist-server-rate", None, ""),
    ("Fashion-MNIST 0.1", "fashion-mnist", "data.partition.alpha", "0.1"),
    ("0.6", "fashion-mnist", "data.partition.alpha", "0.6"),
    ("MNIST 0.1", "mnist", "data.partition.alpha", "0.1"),
    ("0.6", "mnist", "data.partition.alpha", "0.6"),
    ("Fashion-MNIST 0.1, one step", "frontier", "shape", "100 rounds of 1"),
    ("MNIST 0.1, one step", "confirmation-mnist", "privacy.target_epsilon", "4"),
)
# The candidates of the confirmation and their control, as the page names them; what they are held
# against; and its tasks, by the column's heading.
CANDIDATES = {
    "γ = 0.9": "DP-FedAdamW, γ = 0.9",
    "block, averaged, γ = 0.5": "DP-FedAdamW, block, averaged",
    "block, averaged, γ = 0.9": "DP-FedAdamW, block, averaged, γ = 0.9",
    "*DP-FedAvg, averaged* (control)": "DP-FedAvg, averaged",
}
# Cells that have DP-FedAdamW and DP-FedAvg: the task, its data, and the column that the task lacks.
CELLS = (
    ("Fashion-MNIST, 20 rounds of 5, Dirichlet", "fashion-mnist", "data.partition.alpha"),
    ("MNIST, 20 rounds of 5, Dirichlet", "mnist", "data.partition.alpha"),
    ("Fashion-MNIST, the papers' server", "fashion-mnist-server-rate", None),
    ("Fashion-MNIST,", "frontier", "shape"),
    ("MNIST, one step, ε =", "confirmation-mnist", "privacy.target_epsilon"),
    (
        "MNIST, five of twenty, ε =",
        "confirmation-mnist-participation",
        "privacy.target_epsilon",
    ),
    (
        "Fashion-MNIST, five of twenty, ε =",
        "confirmation-fashion-mnist-participation",
        "privacy.target_epsilon",
    ),
    ("transformer, ε =", "confirmation-fashion-mnist-vit", "privacy.target_epsilon"),
    ("SST-2, ε =", "confirmation-sst2", "privacy.target_epsilon"),
)
# Methods that DP-FedAdamW leads in every cell of these tables.
PAPERS = (
    (
        "DP-FedAdamW",
        "2, 3, 4",
        ("DP-FedAvg", "DP-SCAFFOLD", "DP-FedAvg-LS", "DP-FedSAM", "DP-LocalAdamW"),
    ),
    ("DP-FedAdamW", "9", ("DP-FedOpt (Adam)", "DP-FAFED", "DP-FedLADA")),
)
# Methods that lead DP-FedAvg in every cell of DP-FedSAM's Table 1.
CLIENT_LEVEL = {
    "BLURS": "DP-FedAvg-blurs",
    "DP-FedSAM": "DP-FedSAM",
    "DP-FedSAM-topk": "DP-FedSAM-top_k",
}
NOT_COMPARED = (
    ("DP-FedAdamW", "5 to 8, 10, 11"),
    ("FedAdamW", "1 to 7, 11"),
    ("DP-FedSAM", "2, 3"),
    ("ALI-DPFL", "II to V"),
)
# Looked at before or while the bound was written down, so they do not test it.
SEEN = ("fashion-mnist", "fashion-mnist-server-rate", "mnist")
FIRST_STAGE = ("DP-FedAvg", "DP-FedOpt (Adam)", "DP-FedAdamW")
TASKS = {
    "MNIST 0.1, all clients: ε = 1 / 4 / 8": "mnist",
    "MNIST 0.6, five of twenty": "mnist-participation",
    "Fashion-MNIST 0.6, five of twenty, convolutional": "fashion-mnist-participation",
    "Fashion-MNIST 0.1, transformer: ε = 4": "fashion-mnist-vit",
}


def printed_leads(method: str) -> list[float]:
    """What DP-FedAdamW has more than a method in each cell of the paper's tables, in points."""
    found = []
    for number in TABLES:
        text = specs.find(f"paper-dp-fedadamw-table-{number}").read_text(encoding="utf-8")
        values = yaml.safe_load(text)["expected"]["test_accuracy"]["values"]
        if PRINTED[method] in values:
            pairs = zip(values[OURS], values[PRINTED[method]], strict=True)
            found += [_number(ours) - _number(other) for ours, other in pairs]
    return found


def printed_leads_of_clients(method: str) -> list[float]:
    """What a method has more than DP-FedAvg in each cell of DP-FedSAM's Table 1, in points."""
    text = specs.find("paper-dp-fedsam-table-1").read_text(encoding="utf-8")
    values = yaml.safe_load(text)["expected"]["test_accuracy"]["values"]
    pairs = zip(values[method], values["DP-FedAvg"], strict=True)
    return [_number(one) - _number(other) for one, other in pairs if one is not None]


def _number(cell: str | float) -> float:
    return float(str(cell).partition("±")[0])


@cache
def measured(stem: str, column: str | None) -> differences.DifferenceTable:
    """The methods of a sweep, judged as on the page of results."""
    rows = [row for row in _rows(stem) if row.get("shape") != "20 rounds of 5"]
    return differences.against(cross_table.tabulate(rows, "method", column), head(stem))


def lead_over(method: str, stem: str, column: str | None, value: str) -> str:
    """What DP-FedAdamW has more than a method here, with the verdict of the page of results."""
    table = measured(stem, column)
    turned = table.row != OURS
    if turned and table.row != method:
        return "–"
    one = table.differences.get((OURS if turned else method, value))
    if one is None or one.verdict == "other ε":
        return "–"
    if not turned:
        return f"{100 * one.mean:+.1f} {one.verdict}"
    verdict = {"wins": "loses", "loses": "wins"}.get(one.verdict, one.verdict)
    return f"{-100 * one.mean:+.1f} {verdict}"


def leads_table() -> str:
    """What DP-FedAdamW has over each method, printed and here."""
    head = [f"{OURS} over", "printed", *(name for name, *_ in HERE)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for method in PRINTED:
        leads = printed_leads(method)
        cells = [f"{min(leads):+.1f} to {max(leads):+.1f}"]
        cells += [lead_over(method, stem, column, value) for _, stem, column, value in HERE]
        lines.append("| " + " | ".join([method, *cells]) + " |")
    return "\n".join(lines)


def papers_table() -> str:
    """By paper and table: how many printed leads have their sign here, told apart or not."""
    lines = [
        "| paper | table | comparisons here | agree | disagree | cannot be told |",
        "|---|---|---|---|---|---|",
    ]
    for paper, number, methods in PAPERS:
        verdicts = [
            lead_over(method, stem, column, value).split()[-1]
            for method in methods
            for _, stem, column in CELLS
            for value in measured(stem, column).table.columns
        ]
        lines.append(_counted(paper, number, verdicts))
    clients = measured("fashion-mnist-clients", "data.partition.alpha").differences
    # Held against DP-FedAvg, so that a method that leads it makes it lose.
    turned = {"wins": "loses", "loses": "wins"}
    found = [one.verdict for (row, _), one in clients.items() if row in CLIENT_LEVEL]
    lines.append(_counted("DP-FedSAM", "1", [turned.get(one, one) for one in found]))
    for paper, number in NOT_COMPARED:
        lines.append(_counted(paper, number, []))
    return "\n".join(lines)


def _counted(paper: str, number: str, verdicts: list[str]) -> str:
    many = [verdicts.count(verdict) for verdict in ("wins", "loses", "ties")]
    return f"| {paper} | {number} | " + " | ".join(map(str, [sum(many), *many])) + " |"


def one_step_tables() -> dict[str, differences.DifferenceTable]:
    """DP-FedAvg at 100 rounds of one step against each method at 20 of five, by task."""
    return {
        "Fashion-MNIST 0.1": _over("frontier", "shape", "100 rounds of 1", "fashion-mnist"),
        "MNIST 0.1": _over("confirmation-mnist", "privacy.target_epsilon", "4", "mnist"),
    }


def one_step_table() -> str:
    """What DP-FedAvg at 100 rounds of one step has over each method at 20 of five, by task."""
    found = one_step_tables()
    head = [f"{ONE_STEP} over", *found]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for method in dict.fromkeys(row for each in found.values() for row, _ in each.differences):
        cells = []
        for each in found.values():
            one = each.differences.get((method, ""))
            if one is None or one.low is None or one.high is None:
                cells.append("–")
                continue
            low, high = 100 * one.low, 100 * one.high
            cells.append(f"{100 * one.mean:+.1f} [{low:+.1f}, {high:+.1f}] {one.verdict}")
        lines.append("| " + " | ".join([method, *cells]) + " |")
    return "\n".join(lines)


def candidates_table() -> str:
    """The least and the largest mean lead of each candidate over the first stage, by task and ε."""
    lines = ["| | " + " | ".join(TASKS) + " |", "|---" * (len(TASKS) + 1) + "|"]
    for shown, candidate in CANDIDATES.items():
        cells = []
        for stem in TASKS.values():
            table = cross_table.tabulate(
                _rows(f"confirmation-{stem}"), "method", "privacy.target_epsilon"
            )
            found = differences.against(table, candidate).differences
            each = [
                [100 * found[method, epsilon].mean for method in FIRST_STAGE]
                for epsilon in ("1", "4", "8")
                if (FIRST_STAGE[0], epsilon) in found
            ]
            spans = [f"{min(leads):.1f} to {max(leads):.1f}" for leads in each]
            cells.append(" / ".join(spans).replace("-", "−"))
        lines.append("| " + " | ".join([shown, *cells]) + " |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Foretold:
    """One cell in which both methods were run.

    Attributes:
        task: The data and the division of the steps.
        held_out: Whether it was looked at only after the bound was written down.
        bound: Largest share of the noise that the second moment's signal can have.
        lead: What DP-FedAdamW has more than DP-FedAvg.
    """

    task: str
    held_out: bool
    bound: float
    lead: float

    @property
    def hit(self) -> bool:
        """Whether more signal than noise went with a lead, and less with none."""
        return (self.bound >= 1.0) == (self.lead > 0.0)


def foretold() -> list[Foretold]:
    """Every committed cell that has DP-FedAdamW and DP-FedAvg, once."""
    found = []
    for task, stem, column in CELLS:
        spec = yaml.safe_load(specs.find(f"replication-{stem}").read_text(encoding="utf-8"))
        batch = spec["privacy"]["sampling"]["expected_batch_size"]
        rows = [row for row in _rows(stem) if row.get("shape") != "20 rounds of 5"]
        table = cross_table.tabulate(rows, "method", column)
        for value in table.columns:
            # Its runs have the noise, and uploads that have 4 bytes a parameter, to about 1 %.
            of = next(
                row
                for row in rows
                if row["method"] == "DP-FedAvg" and (column is None or str(row[column]) == value)
            )
            uploads = of["rounds"] * of["clients_per_round"]
            parameters = of["bytes_up"] / 4 / uploads
            bound = (batch / of["noise_multiplier"]) ** 2 * (1 + 1 / batch) / parameters
            lead = table.entries[OURS, value].mean - table.entries["DP-FedAvg", value].mean
            name = f"{task} {value}".strip()
            found.append(Foretold(name, stem not in SEEN, bound, 100 * lead))
    return found


def forecast_table() -> str:
    """The cells, and how often the bound foretold the sign of the lead."""
    cells = foretold()
    lines = [
        "| cell | signal over noise, at most | DP-FedAdamW − DP-FedAvg | foretold |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {one.task}{'' if one.held_out else ' *'} | {one.bound:.2f} | {one.lead:+.1f} "
        f"| {'yes' if one.hit else 'no'} |"
        for one in cells
    ]
    lines.append("")
    for name, some in (("All", cells), ("Held out", [one for one in cells if one.held_out])):
        hits, leads = sum(one.hit for one in some), sum(one.lead > 0 for one in some)
        low, high = stats.binomtest(hits, len(some)).proportion_ci(0.95, method="exact")
        lines.append(
            f"* {name}: {hits} of {len(some)} ({100 * hits / len(some):.0f} %, exact 95 % interval "
            f"{100 * low:.0f} to {100 * high:.0f} %). Always saying that DP-FedAdamW leads is "
            f"right in {leads}."
        )
    return "\n".join(lines)


def _over(stem: str, column: str, value: str, other: str) -> differences.DifferenceTable:
    """DP-FedAvg of one sweep against all methods of another, at Dirichlet 0.1 and ε = 4."""
    own = [row for row in _rows(stem) if row["method"] == "DP-FedAvg" and row[column] == value]
    rows = [{**row, "method": ONE_STEP} for row in own]
    rows += [row for row in _rows(other) if row["data.partition.alpha"] == "0.1"]
    return differences.against(cross_table.tabulate(rows, "method", None), ONE_STEP)


def _rows(stem: str) -> list[dict[str, run_rows.Value]]:
    return run_rows.read_csv(ROOT / "docs" / "results" / f"{stem}.csv")


def written(path: Path) -> str:
    """A page with its tables."""
    page = path.read_text(encoding="utf-8")
    tables: dict[str, Callable[[], str]] = {"papers": papers_table}
    if path == PAGE:
        tables = {
            "leads": leads_table, "one step": one_step_table, "candidates": candidates_table,
            "forecast": forecast_table,
        }  # fmt: skip
    for name, table in tables.items():
        before, begin, rest = page.partition(BEGIN.format(name))
        _, end, after = rest.partition(END)
        for mark, found in ((BEGIN.format(name), begin), (END, end)):
            assert found, f"the page lacks {mark}"
        page = f"{before}{begin}\n\n{table()}\n\n{END}{after}"
    return page


if __name__ == "__main__":
    for each in (PAGE, RESULTS):
        each.write_text(written(each), encoding="utf-8")
