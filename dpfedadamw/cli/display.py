"""How results look in a terminal: tables and panels, built here, printed by the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from audit.protection import WHY, WORDS, against, protects_nothing, unprotected_by
from dpfedadamw.rundir import LATEST

if TYPE_CHECKING:
    from audit.protection import Against
    from dpfedadamw.run.block_table import BlockTable
    from dpfedadamw.run.model_check import LayerRow, ModelCheck

VERDICT_STYLES = {
    "PASS": "bold green",
    "FAIL": "bold white on red",
    "NOT VERIFIED": "bold black on yellow",
    "NOT APPLICABLE": "dim",
    "NO CLAIM": "bold cyan",
    "CONSERVATIVE": "bold green",
    "CONSISTENT": "bold cyan",
    "UNDERSTATED": "bold black on yellow",
    "NOT DETERMINABLE": "bold",
}

_UNPROTECTED = "bold white on red"

# A cell of a table of labels that is no longer than this is kept on one line.
_NOT_BROKEN = 12
# A word that is no longer than this is not broken either.
_LONGEST_WORD = 16


def verdict_text(verdict: str) -> Text:
    """A verdict in its colour; the word itself carries the meaning."""
    warned = verdict.startswith(WORDS["anyone"].upper())
    return Text(verdict, style=_UNPROTECTED if warned else VERDICT_STYLES.get(verdict, "bold"))


def level_text(level: int) -> Text:
    """The level of assurance of a PASS, in the level's colour."""
    from reports.content.assurance import LEVELS, MOST

    style = "bold yellow" if level == 1 else "bold green"
    return Text(f"level {level} of {MOST}, {LEVELS[level].name}", style=style)


def verdict_at_level(verdict: str, level: int | None, found: Against | None = None) -> Text:
    """A verdict and its level of assurance; a PASS is green from level 2 on.

    Args:
        verdict: The verdict.
        level: Its level; None where it has none.
        found: Against whom the claim gives no meaningful protection, which is said first, and then
            nothing is green.
    """
    if found is not None:
        said = "" if level is None else f" · {level_text(level).plain}"
        warning = Text(WORDS[found].upper(), style=_UNPROTECTED)
        return Text.assemble(warning, " · ", verdict, said)
    if level is None:
        return verdict_text(verdict)
    shown = level_text(level)
    return Text.assemble(Text(verdict, style=shown.style), " · ", shown)


def facts(rows: Iterable[tuple[str, RenderableType]], title: str | None = None) -> Table:
    """A quiet two-column table of names and values."""
    table = Table(
        box=box.SIMPLE, show_header=False, title=title, title_justify="left", pad_edge=False
    )
    rows = list(rows)
    widest = max((len(name) for name, _ in rows), default=0)
    table.add_column(style="dim", no_wrap=True, min_width=widest)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table with a header; the names in the first column are not broken."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def labelled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    """A table of rows that several labels distinguish.

    What all rows have in common is printed once, under the table. A path in the header is broken
    after its dots and underscores; cells with long texts are wrapped between words.
    """
    varied, common = [], []
    for number, column in enumerate(columns):
        cells = {row[number] for row in rows}
        if len(cells) > 1 or len(rows) == 1:
            varied.append(number)
        else:
            common += [(column, cell) for cell in cells if cell]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number in varied:
        widest = max(len(row[number]) for row in rows)
        word = max((len(word) for row in rows for word in row[number].split()), default=0)
        table.add_column(
            re.sub(r"([._]|,(?= )) ?", r"\1\n", columns[number]),
            overflow="fold",
            no_wrap=widest <= _NOT_BROKEN,
            min_width=min(word, _LONGEST_WORD),
        )
    for row in rows:
        table.add_row(*(escape(row[number]) for number in varied))
    if not common:
        return table
    said = "; ".join(f"{name}: {cell}" for name, cell in common)
    return Group(table, Text(f"in every row: {said}"))


def sourced(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose last column, a source or a note, is printed dimmed under the one before.

    In a narrow terminal a separate column would leave too little room for either text.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns[:-1]):
        table.add_column(column, overflow="fold", no_wrap=number < len(columns) - 2)
    for *cells, what, source in rows:
        about = Text.assemble(what, "\n", (source, "dim"))
        table.add_row(*(escape(cell) for cell in cells), about)
    return table


def run_summary(
    outcome: Mapping[str, Any], verdict: str, qualifications: Sequence[str], folder: Path
) -> RenderableType:
    """The table at the end of a run: accuracy, ε and against whom, δ, verdict, where the files are.

    Args:
        outcome: The object that ``run --json`` prints.
        verdict: The auditor's.
        qualifications: What limits the verdict.
        folder: The run directory.
    """
    from dpfedadamw.tasks import MEASURES

    accuracy = outcome["test_accuracy"]
    measures = {name: outcome[name] for name in MEASURES if name in outcome}
    rows: list[tuple[str, RenderableType]] = []
    if "diverged" in outcome["privacy"]:
        after = f"diverged after round {outcome['privacy']['diverged']['rounds']}: there is none"
        rows.append(("model", Text(after, style="bold red")))
    elif accuracy is not None or not measures:
        rows.append(("test accuracy", "not evaluated" if accuracy is None else f"{accuracy:.1%}"))
    rows += _measures(accuracy, measures, outcome.get("test_own", {}))
    rows += privacy_rows(outcome["privacy"])
    rows += [
        *([("clipping", outcome["engine"])] if outcome["engine"] else []),
        ("audit", verdict_at_level(verdict, outcome["level"], unprotected_by(outcome["privacy"]))),
        *(("", Text(text, style="yellow")) for text in qualifications),
        ("run", str(folder)),
        ("report", "report.pdf, report.html, in that folder"),
        ("check it", f"dpfedadamw verify {_shortest(folder)}"),
    ]
    return Panel(facts(rows), title=f"[bold]{escape(str(outcome['run']))}", title_align="left")


def _measures(
    accuracy: float | None, measures: Mapping[str, float], own: Mapping[str, float]
) -> Iterator[tuple[str, RenderableType]]:
    """The majority rate where there is an accuracy, and further measures in one row."""
    from reports.content.outcomes import OF_THE_END, against_majority

    rate = measures.get("test_majority_rate")
    if accuracy is not None and rate is not None:
        yield "  majority rate", f"{rate:.1%}"
        if said := against_majority(accuracy, rate, measures.get("test_auc")):
            yield "", Text(said, style="bold red")
    for name, value in measures.items():
        if name not in ("test_majority_rate", *OF_THE_END):
            yield name.replace("_", " "), f"{value:.4g}"
    shown = [f"{OF_THE_END[one][0]} {measures[one]:.4g}" for one in OF_THE_END if one in measures]
    shown += [f"{name} {value:.4g}" for name, value in own.items()]
    if shown:
        yield "  also", ", ".join(shown)


def profile(spent: Mapping[str, Any]) -> Table:
    """Where a run's time went, one row per part.

    Args:
        spent: As `profiling.Profile.to_json` has it.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.add_column("part", footer="together")
    table.add_column("seconds", footer=f"{spent['seconds']:.2f}", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in spent["parts"].items():
        table.add_row(name, f"{seconds:.2f}", f"{seconds / spent['seconds']:.1%}")
    return table


def _shortest(folder: Path) -> Path:
    """The link `latest` if it points to the run: long names break in a narrow terminal."""
    latest = folder.parent / LATEST
    return latest if latest.resolve() == folder.resolve() else folder


def epsilon_text(value: float) -> str:
    """ε as reports print it, rounded up: a claim is never shown smaller than it is."""
    from reports.formatting import epsilon

    return epsilon(value)


def privacy_rows(claim: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    """The privacy claim as rows: one per view, with δ and what it assumes.

    That an ε is too large to protect anybody comes first.
    """
    if (found := unprotected_by(claim)) is None:
        return _claim_rows(claim)
    return [unprotected_row(found), *_claim_rows(claim)]


def unprotected_row(found: Against) -> tuple[str, RenderableType]:
    """That an ε is too large to protect anybody, as a first row."""
    return WORDS[found].upper(), Text(WHY, style=_UNPROTECTED)


def _claim_rows(claim: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    from dpfedadamw.accounting.registry import claimed

    if claim.get("view_headline") == "none":
        return [("privacy", Text("no differential privacy", style="bold red"))]
    if "tuning" in claim:
        return _selection_rows(claim)
    if claim.get("view_headline") == "third-party":
        return _client_level_rows(claim)
    server, worst = claim["server"], claim["server_worst_case"]
    third = claim["third_party"]
    return [
        ("ε against the server", Text(epsilon_text(claimed(server)), style="bold")),
        ("  if in every round", epsilon_text(claimed(worst))),
        (
            "ε against a third party",
            f"{epsilon_text(claimed(third))}  (sees models, not who took part)",
        ),
        ("δ", f"{claim['delta']:g}"),
        ("protects", f"{_neighbours(claim)}; {_composed_by(server)}"),
        *_of_a_person(claim),
        *_dp_accounting(claim),
        *_early_end(claim),
    ]


def _of_a_person(claim: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    """What a claim on single records means for the person with most of them."""
    if (person := claim.get("person")) is None or person["records"] == 1:
        return []
    epsilon = person.get("epsilon")
    text = "not computed" if epsilon is None else f"ε = {epsilon_text(epsilon)} if in every round"
    if protects_nothing(epsilon):
        text = f"{WORDS['anyone'].upper()}: {text}"
    return [(f"a person with {person['records']:,}", f"{text}; no person has more records")]


def _neighbours(claim: Mapping[str, Any]) -> str:
    """What neighbouring data sets differ by."""
    if claim.get("unit") != "person":
        return _NEIGHBOURS[claim["adjacency"]]
    clients = claim["clients_per_person"]
    at = "one client" if clients == 1 else f"up to {clients} clients"
    changed = {"add-remove": "added or removed", "replace-one": "replaced by any others"}
    return f"one person, with all of their records, at {at}, {changed[claim['adjacency']]}"


_NEIGHBOURS = {
    "add-remove": "one record of one client, added or removed",
    "replace-one": "what one record of one client holds, replaced by anything",
}
_ONE_CLIENT = "one client with all its records, added or removed"


def _selection_rows(claim: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    from dpfedadamw.accounting.registry import claimed

    third, alone = claim["third_party"], claim["tuning"]["one_trial"]
    if "server_worst_case" in claim:
        server = Text(
            f"{epsilon_text(claimed(claim['server_worst_case']))} for each trial, all of which it "
            "sees"
        )
        protected = _neighbours(claim)
    else:
        server = _towards_server_of_clients(claim, "each trial")
        protected = _ONE_CLIENT
    return [
        (
            "ε of the selection",
            Text.assemble(
                (epsilon_text(claimed(third)), "bold"),
                "  (against a third party, who sees only the best trial)",
            ),
        ),
        ("  of one trial alone", epsilon_text(claimed(alone))),
        ("ε against the server", server),
        ("δ", f"{claim['delta']:g}"),
        ("protects", f"{protected}; {_composed_by(third)}"),
        *_dp_accounting(claim),
        *_early_end(claim),
    ]


def _client_level_rows(claim: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    from dpfedadamw.accounting.registry import claimed

    third = claim["third_party"]
    return [
        ("ε against a third party", Text(epsilon_text(claimed(third)), style="bold")),
        ("ε against the server", _towards_server_of_clients(claim)),
        ("δ", f"{claim['delta']:g}"),
        ("protects", f"{_ONE_CLIENT}; {_composed_by(third)}"),
        *_dp_accounting(claim),
        *_early_end(claim),
    ]


def _towards_server_of_clients(claim: Mapping[str, Any], of: str = "") -> Text:
    """The guarantee against the server at client level, of a run or of each trial."""
    from dpfedadamw.accounting.registry import claimed

    server = claim["server"]
    if server["epsilon"] is None:
        return Text("no guarantee: it adds the noise and is trusted", style="yellow")
    spent = epsilon_text(claimed(server)) + (f" for {of}" if of else "")
    return Text(f"{spent}  (sees every noised upload and who took part)")


def _dp_accounting(claim: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    """What Google's library computes for the claim's headline, if it was asked."""
    from dpfedadamw.accounting import dp_accounting_check as check
    from dpfedadamw.accounting.registry import claimed

    if (found := claim.get("dp_accounting")) is None:
        return []
    if found["epsilon"] is None:
        return [("dp-accounting", _NO_NUMBER[found["reason"]])]
    ours, theirs = claimed(claim[found["view"]]), float(found["epsilon"])
    by = f"ε = {epsilon_text(theirs)}{_SAID_OF[found['view']]}"
    if check.disagrees(claim):
        return [("dp-accounting", Text(f"DISAGREES: {by}, above the claim", style="bold red"))]
    if "bound" in found:
        text = f"no accountant can say less than {by}; the claim is {epsilon_text(ours)}"
    elif ours > 1.01 * theirs:
        text = f"{by}, below the claim"
    else:
        text = f"agrees to {check.difference(ours, theirs):.0e}: {by}"
    return [("dp-accounting", text)]


_SAID_OF = {"server_worst_case": " if in every round", "third_party": ""}
_NO_NUMBER = {
    "no event": "no number: it has no event for this mechanism",
    "too fine": "no number: it cannot compose so many steps",
    "too large": "no number: its double precision does not hold e^ε",
}


def _early_end(claim: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    if (ended := claim.get("stopped")) is None:
        return []
    name = "max_epsilon" if "max_epsilon" in ended else "target_epsilon"
    why = f"a further one could exceed {name} {ended[name]:g}"
    if name == "target_epsilon":
        why = f"{why}, as the run was cut off and a round charged again"
    return [("ended early", f"after {ended['rounds']} rounds: {why}")]


def _composed_by(view: Mapping[str, Any]) -> str:
    from dpfedadamw.accounting.registry import label_of

    return f"composed by {label_of(view['accountant'])}"


def cost(
    name: str,
    plan: Any,
    claim: Mapping[str, Any],
    people: Mapping[int, float] | None = None,
    curve: Mapping[str, Any] | None = None,
) -> tuple[RenderableType, RenderableType | None]:
    """What a spec will cost: its views and mechanism, and a table of clients at record level.

    Args:
        name: The spec's.
        plan: Its privacy plan.
        claim: The claim if every client is in every round, with the clients that spend most.
        people: ε of a person by the number of their records.
        curve: μ and trade-off curve of the headline's mechanism (`headline.f_dp_of`).
    """
    rows: list[tuple[str, RenderableType]] = [("spec", name), *privacy_rows(claim)]
    rows += [
        (f"ε of a person with {count:,} record{'s' * (count > 1)}", epsilon_text(epsilon))
        for count, epsilon in (people or {}).items()
    ]
    if curve is not None:
        rows.append(("f-DP", _f_dp(curve)))
    noise, least = f"{plan.noise_multiplier:.6g}", plan.spending_bound.least_noise_multiplier
    if least < plan.noise_multiplier:
        noise += f" in the first round, {least:.6g} in the last at the least"
    rows.append(("noise multiplier σ", noise))
    rows += plan.unit.cost(plan)
    clients = claim["server"]["clients"] if plan.unit.noises_gradients else ()
    return facts(rows), _cost_by_client(clients, len(plan.records)) if clients else None


def _f_dp(curve: Mapping[str, Any]) -> str:
    """μ and what a test with few false alarms can detect at most, all rounded up."""
    misses = dict(curve["trade_off"])
    few, more = (f"{math.ceil(1000 * (1 - misses[rate])) / 10:.1f} %" for rate in (0.01, 0.1))
    mu = f"{math.ceil(1000 * curve['mu'] - 1e-9) / 1000:.3f}"
    return (
        f"{'' if curve['exact'] else 'at most '}{mu}-GDP. A test for membership that raises 1 % "
        f"false alarms detects at most {few}, and with 10 % at most {more}"
    )


def block_table(found: BlockTable) -> Table:
    """The blocks of a model, one row per layer, and their sums."""
    names = [group.name for group in found.groups]
    shared = _shared_module(names)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"blocks: {found.kind}" + (f", of {shared}" if shared else ""),
        title_justify="left",
        pad_edge=False,
        show_footer=True,
    )
    frozen = f"; {found.frozen:,} more are frozen" if found.frozen else ""
    table.add_column("block", footer=f"trained{frozen}", overflow="fold")
    tensors = {name for group in found.groups for name in group.tensors}
    for title, total in (
        ("blocks", found.blocks),
        ("tensors", len(tensors)),
        ("coordinates", found.trained),
    ):
        table.add_column(title, justify="right", footer=f"{total:,}", no_wrap=True)
    for name, group in zip(names, found.groups, strict=True):
        numbers = (group.blocks, len(group.tensors), group.coordinates)
        short = name[len(shared) + 1 :] if shared else name
        table.add_row(escape(short), *(f"{number:,}" for number in numbers))
    return table


# Up to this many layers are shown one by one; of more, similar ones share a row.
_MOST_LAYERS = 24


def model_check(found: ModelCheck) -> RenderableType:
    """The layers of a model, which are changed or refused, and what a clipped sum costs."""
    frozen = f"; {found.frozen:,} more are frozen" if found.frozen else ""
    rows = [("parameters", f"{found.trained:,} are trained{frozen}"), ("engine", found.explanation)]
    if found.ratio is not None:
        cost = (
            f"{found.milliseconds:.1f} ms for {found.records} made-up records, "
            f"{found.ratio:.1f} times a plain gradient ({found.plain_milliseconds:.1f} ms)"
        )
        rows.append(("a clipped sum", cost))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", overflow="fold")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("by record", overflow="fold")
    table.add_column("note", overflow="fold")
    for names, kind, parameters, how, note in _alike(found.layers):
        style = "bold" if how == "refused" else ""
        layer = Text.assemble(names, "\n", (kind, "dim"))
        table.add_row(layer, f"{parameters:,}" if parameters else "", Text(how, style), note)
    return Group(facts(rows, title=f"model: {found.model}"), table)


def _alike(layers: Sequence[LayerRow]) -> list[tuple[str, str, int, str, str]]:
    """Layers one by one; if there are many, those of one class and treatment share a row."""
    if len(layers) <= _MOST_LAYERS:
        return [(one.name, one.kind, one.parameters, one.how, one.note) for one in layers]
    groups: dict[tuple[str, str, str], list[LayerRow]] = {}
    for one in layers:
        kind = one.kind.partition("(")[0]
        note = re.sub(r"\(\d+ groups\)", "", one.note)
        groups.setdefault((kind, one.how, note), []).append(one)
    return [
        (
            same[0].name if len(same) == 1 else f"{same[0].name} and {len(same) - 1} more",
            kind,
            sum(one.parameters for one in same),
            how,
            note,
        )
        for (kind, how, note), same in groups.items()
    ]


def _shared_module(names: Sequence[str]) -> str:
    """The module that all names lie in, dotted; "" for none."""
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))


# Most clients whose own cost is shown.
MOST_CLIENTS = 20


def _cost_by_client(clients: Sequence[Mapping[str, Any]], of: int = 0) -> Table:
    from dpfedadamw.accounting.registry import accountants, label_of

    title = None
    names = [one.name for one in accountants()]
    if max(of, len(clients)) > MOST_CLIENTS:
        clients = sorted(clients, key=lambda one: -one["epsilon"][names[0]])[:MOST_CLIENTS]
        title = f"the {MOST_CLIENTS} clients that spend most"
    names = [name for name in names if any(name in one["epsilon"] for one in clients)]
    columns = ("client", "records", "q", *(f"ε ({label_of(name)})" for name in names))
    rows = [
        (
            str(one["client"]),
            str(one["records"]),
            f"{one['sampling_rate']:.4f}",
            *(epsilon_text(one["epsilon"][name]) for name in names),
        )
        for one in clients
    ]
    return grid(columns, rows, title)


def findings_table(findings: Mapping[str, Any], level: int | None = None) -> RenderableType:
    """The auditor's findings, one row per check, and the overall verdict with its level."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was found", overflow="fold")
    for check in findings["checks"]:
        table.add_row(
            Text(check["name"]), verdict_text(check["verdict"]), Text(check["measurement"])
        )
    found = against(findings.get("unprotected_against"))
    overall = Text.assemble("overall: ", verdict_at_level(findings["verdict"], level, found))
    said = ([] if found is None else [WHY]) + findings["qualifications"]
    notes = [Text(f"  {text}", style="yellow") for text in said]
    return Group(table, overall, *notes)
