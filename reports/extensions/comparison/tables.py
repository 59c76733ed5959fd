"""A comparison as a table: for the terminal, for a spreadsheet, for a page, for a paper.

`rows_of` is what each of them prints. Losses are rounded up; a run that is not ranked keeps its row
and says why; every table ends with what may not be read out of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from audit.protection import in_front
from reports import formatting
from reports.content.guarantee import NO_PRIVACY
from reports.content.parts import INTERNAL
from reports.extensions.comparison import METRIC, Comparison, Group, RankedSpec

_VIEWS = {
    "server": "ε server",
    "server_worst_case": "ε worst case",
    "third_party": "ε third party",
    "trusted_server": "ε server",
}
_NOT_APART = "≈"


@dataclass(frozen=True)
class Row:
    """One entry of a group as text.

    Attributes:
        rank: "1", "2≈" where it is not told apart from the first, "only" where there is nothing
            to be ranked with, "–" without a rank.
        label: What it is.
        accuracy: Mean and standard deviation in percent.
        repetitions: How many runs count.
        losses: ε in each of the group's views.
        up: Bytes from clients to server, mean over the repetitions.
        down: Bytes from server to clients.
        audit: The verdict on its runs, behind the warning that ε protects nobody.
        signature: The state of its signatures.
    """

    rank: str
    label: str
    accuracy: str
    repetitions: str
    losses: tuple[str, ...]
    up: str
    down: str
    audit: str
    signature: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row, in the order of `columns_of`."""
        return (
            self.rank, self.label, self.accuracy, self.repetitions, *self.losses,
            self.up, self.down, self.audit, self.signature,
        )  # fmt: skip


def sorted_by(comparison: Comparison, key: str) -> Comparison:
    """Return the comparison with each group's rows in another order; ranks stay.

    Args:
        comparison: What `compare` found.
        key: "rank", "epsilon" (largest of the group's view, smallest first), "bytes" (up, fewest
            first) or "name". Rows without a rank stay last.
    """

    def place(group: Group, entry: RankedSpec) -> tuple[object, ...]:
        loss = max(entry.epsilons(group.terms.view), default=0.0)
        by = {
            "rank": entry.rank or 0,
            "epsilon": loss,
            "bytes": entry.mean_bytes("up") or 0.0,
            "name": entry.label,
        }[key]
        return entry.rank is None, by, entry.rank or 0, entry.label

    return replace(
        comparison,
        groups=tuple(
            replace(
                group,
                entries=tuple(sorted(group.entries, key=lambda entry: place(group, entry))),
            )
            for group in comparison.groups
        ),
    )


def views_of(group: Group) -> list[str]:
    """Return the keys of the views that any run of the group states, as the audience sees them."""
    keys = [view.key for entry in group.entries for run in entry.runs for view in run.views]
    return list(dict.fromkeys(keys))


def columns_of(group: Group) -> tuple[str, ...]:
    """Return a group's column names."""
    views = [_VIEWS.get(key, key) for key in views_of(group)]
    shown = views if group.terms.private else ["privacy"]
    return (
        "rank", "what", "accuracy, %", "runs", *shown, "bytes up", "bytes down", "audit", "signed",
    )  # fmt: skip


def rows_of(group: Group) -> list[Row]:
    """Return a group's rows as text, in the comparison's order."""
    keys = views_of(group)
    alone = sum(entry.rank is not None for entry in group.entries) == 1
    return [_row(entry, keys, group.terms.private, alone) for entry in group.entries]


def _row(entry: RankedSpec, keys: list[str], private: bool, alone: bool) -> Row:
    first = entry.runs[0]
    mark = _NOT_APART if entry.behind is not None and not entry.behind.apart else ""
    rank = "–" if entry.rank is None else "only" if alone else f"{entry.rank}{mark}"
    return Row(
        rank=rank,
        label=entry.label,
        accuracy=accuracy_text(entry),
        repetitions=str(len(entry.runs)),
        losses=tuple(_loss(entry, key) for key in keys) if private else (NO_PRIVACY,),
        up=_bytes(entry.mean_bytes("up")),
        down=_bytes(entry.mean_bytes("down")),
        audit=in_front(first.verdict, first.unprotected),
        signature=first.signature.state,
    )


def accuracy_text(entry: RankedSpec) -> str:
    """Return "87.1 ± 0.4", or the one run's accuracy without a spread."""
    if entry.mean is None:
        return "not measured"
    mean = f"{100 * entry.mean:.1f}"
    return mean if entry.deviation is None else f"{mean} ± {100 * entry.deviation:.1f}"


def _loss(entry: RankedSpec, key: str) -> str:
    if key == "trusted_server":
        return "trusted"
    found = entry.epsilons(key)
    if not found:
        return "none"
    low, high = formatting.epsilon(min(found)), formatting.epsilon(max(found))
    return low if low == high else f"{low}…{high}"


def _bytes(value: float | None) -> str:
    return "not shown" if value is None else formatting.size(value)


def closing(comparison: Comparison) -> list[str]:
    """Return what is said under the groups."""
    texts = [one.sentence() for one in comparison.refusals]
    texts += comparison.notes
    texts.append(
        f"Ranked by {METRIC}: the mean over repetitions of one spec, ± their sample standard "
        f"deviation. {_NOT_APART} marks specs that the seeds do not tell apart from the first. The "
        "test is a paired t-test over common seeds, or Welch’s where seeds do not pair, at 5 % for "
        "all comparisons of a group together (Holm). ε agrees within "
        f"{100 * comparison.tolerance:g} % in a group and is rounded up."
    )
    if comparison.audience == INTERNAL and any(
        run.epsilon("server") is not None
        for group in comparison.groups
        for entry in group.entries
        for run in entry.runs
    ):
        texts.append(
            "Restricted: ε against the server as it happened shows how often clients took part. "
            "--audience public leaves it out."
        )
    return texts


def as_csv(comparison: Comparison) -> str:
    """Return one line an entry, numbers unrounded, for a spreadsheet."""
    keys = [key for key in _VIEWS if key != "trusted_server"]
    if comparison.audience != INTERNAL:
        keys.remove("server")
    rows: list[tuple[object, ...]] = [
        (
            "group", "rank", "what", "accuracy_mean", "accuracy_standard_deviation", "repetitions",
            "told_apart_from_first", "privacy", *(f"epsilon_{key}" for key in keys),
            "bytes_up", "bytes_down", "audit", "signature", "no_rank_because", "comparable", "runs",
        )
    ]  # fmt: skip
    for group in comparison.groups:
        for entry in group.entries:
            first = entry.runs[0]
            rows.append(
                (
                    group.name, entry.rank, entry.label, entry.mean, entry.deviation,
                    len(entry.accuracies), entry.behind.apart if entry.behind else None,
                    group.privacy, *(max(entry.epsilons(key), default=None) for key in keys),
                    entry.mean_bytes("up"), entry.mean_bytes("down"), first.verdict,
                    first.signature.state, entry.objection, group.terms.heading,
                    " ".join(run.run for run in entry.runs),
                )
            )  # fmt: skip
    return formatting.as_csv(rows)


def as_markdown(comparison: Comparison) -> str:
    """Return a table a group, with everything that is said of it."""
    lines: list[str] = []
    for group in comparison.groups:
        columns = columns_of(group)
        lines += [f"**{group.name}: {group.privacy}** — {_escape(group.terms.heading)}", ""]
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        for row in rows_of(group):
            lines.append(f"| {' | '.join(_escape(cell) for cell in row.cells)} |")
        lines.append("")
        lines += [f"* {_escape(text)}" for text in said_of(group)]
        lines += [""] if said_of(group) else []
    lines += [f"{_escape(text)}\n" for text in closing(comparison)]
    return "\n".join(lines)


def said_of(group: Group) -> list[str]:
    """Return what is said under one group."""
    if not group.also_differ:
        return list(group.remarks)
    return [f"Ranked specs also differ in {', '.join(group.also_differ)}.", *group.remarks]


def _escape(text: str) -> str:
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "±": r"$\pm$", "≈": r"$^{\approx}$", "−": "$-$",
    "–": "--", "…": r"\ldots{}", "·": r"$\cdot$",
    "|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def as_latex(comparison: Comparison) -> str:
    r"""Return one tabular (booktabs) a group; the first, and what equals it by the seeds, in bold.

    What is said of a group stands under it as text: a table that is copied without it would claim
    more than the runs show.
    """
    parts = [r"% needs \usepackage{booktabs}"]
    for group in comparison.groups:
        columns = columns_of(group)
        numbers = len(columns) - 4
        parts.append(
            rf"\noindent {_tex(f'{group.name}: {group.privacy}; {group.terms.heading}')}\par"
        )
        parts.append(rf"\begin{{tabular}}{{ll{'r' * numbers}ll}}")
        parts += [r"\toprule", f"{' & '.join(_tex(name) for name in columns)} \\\\", r"\midrule"]
        for row, entry in zip(rows_of(group), group.entries, strict=True):
            cells = [_tex(cell) for cell in row.cells]
            best = entry.behind is None or not entry.behind.apart
            if entry.rank is not None and best and row.rank != "only":
                cells[2] = rf"\textbf{{{cells[2]}}}"
            parts.append(f"{' & '.join(cells)} \\\\")
        parts += [r"\bottomrule", r"\end{tabular}", ""]
        parts += [f"{_tex(text)}\\par" for text in said_of(group)] + [""]
    parts += [f"{_tex(text)}\\par" for text in closing(comparison)]
    return "\n".join(parts) + "\n"


_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def _tex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    # Two hyphens would become a dash, and an option another word.
    escaped = escaped.replace("--audience", "-{}-audience")
    return re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda run: f"$^{{{run[0].translate(_RAISED)}}}$", escaped)
