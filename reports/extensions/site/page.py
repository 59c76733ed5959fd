"""Shows a folder of runs as one static web page that fetches nothing and remembers nothing.

The page is whole without its script, which sorts and filters rows that are there. A policy inside
the page allows that one script, by its digest, and no address of any kind.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources

from audit.protection import WORDS
from reports import formatting
from reports.content.assurance import LEVELS, MOST
from reports.content.guarantee import NO_PRIVACY
from reports.extensions.site import SiteData, SiteRun, Spent, figure
from reports.render.html import mark, tone

_COLUMNS = (
    # Key, heading, class of the cells, and whether a rising order is the useful one.
    ("run", "Run", "left"),
    ("data", "Data", "left"),
    ("unit", "Protects", "left"),
    ("epsilon", "ε, third party", "right"),
    ("server", "ε, server", "right"),
    ("accuracy", "Accuracy", "right"),
    ("audit", "Audit", "left"),
    ("signatures", "Signatures", "left"),
    ("created", "Begun", "left"),
)
_SIGNATURES = {
    "hold": ("is-pass", "✓", "hold"),
    "signer unknown": ("is-not-verified", "?", "signer unknown"),
    "broken": ("is-fail", "✗", "do not hold"),
    "unsigned": ("is-not-applicable", "–", "none"),
}
_AUDITORS = {
    "nobody": "",
    "trainer": "self-audited",
    "another key": "independent, as far as keys show",
}
_KINDS = (
    ("report-public.html", "Report"),
    ("report-public.pdf", "PDF"),
    ("report-public.json", "Data"),
    ("VERIFY-public.md", "How to check"),
)
_NOTES = (
    (
        "ε, third party",
        "The limit against anyone who sees the models and does not learn who took part. The next "
        "column is the limit against the server, for a client in every round; – means that there "
        "is none. A smaller ε promises more. Do not compare numbers of different units or "
        "adjacencies: they measure different things.",
    ),
    (
        "Audit",
        "The verdict of the run’s public report. Without a PASS, ε is a claim and no more. A PASS "
        "has a level, which follows from findings and signatures. Level 1: nothing contradicts "
        "what the trainer’s own process wrote. Level 2: some of the training was computed again "
        "from the data, and agrees. Level 3: in addition, neither side could choose the noise. "
        "From level 2 on, a PASS is green. A participation is one client’s part in one round. The "
        "number that was computed again is left out where it is all of them, or would say how "
        "many clients took part.",
    ),
    (
        "Signatures",
        "Their state when this page was written. “Hold” means that they are by keys that its "
        "writer knew. Check them yourself: each run’s “How to check” says how.",
    ),
    (
        "What is not here",
        "Numbers that say who took part, or how often; evidence; trials of a private selection; "
        "audit runs with planted canaries; runs in other folders.",
    ),
)
_SUMS = (
    "Someone who sees the models of several runs on the same records learns from all of them. The "
    "sums bound what these runs reveal together (basic composition). A shared budget bounds it "
    "more tightly. Runs in other folders are not counted. Where runs state no digest of their "
    "data, those of one name count as on the same records. Unfinished runs and runs with planted "
    "canaries are in no sum. Nor are trials of a private selection: the ε of its winner against a "
    "third party covers them all."
)


def compose(data: SiteData) -> bytes:
    """Return the page as bytes; same data, same bytes."""
    style = _template("reports.render", "report.css") + _template(__package__, "site.css")
    script = _template(__package__, "site.js")
    parts = [
        '<!DOCTYPE html>\n<html lang="en-GB">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_policy(script))}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{escape(data.title)}</title>",
        f"<style>\n{style}</style>\n</head>\n<body>",
        '<a class="skip" href="#content">Skip to the content</a>',
        f"<header>\n<h1>{escape(data.title)}</h1>\n<p class=when>{escape(_in_short(data))}</p>\n"
        "</header>",
        '<main id="content">',
        figure.block(data.runs),
        _runs(data.runs),
        _spent(data.spent),
        _notes(),
        "</main>",
        "<footer><p>Written by dpfedadamw site. The same as data: "
        '<a href="site.json">site.json</a>.</p></footer>',
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part).encode("utf-8")


def _template(package: str, name: str) -> str:
    return resources.files(package).joinpath(f"templates/{name}").read_text("utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _in_short(data: SiteData) -> str:
    runs = data.runs
    passed = sum(run.audit == "PASS" and run.signatures == "hold" for run in runs)
    private = sum(run.unit != "none" for run in runs)
    sets = len({run.data for run in runs})
    told = (
        f"{_counted(len(runs), 'run')} on {_counted(sets, 'data set')}: {passed} passed the audit "
        "under signatures that hold"
    )
    rest = len(runs) - private
    return f"{told}; {rest} {'has' if rest == 1 else 'have'} {NO_PRIVACY}." if rest else f"{told}."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _runs(runs: Sequence[SiteRun]) -> str:
    heads = "".join(
        f'<th scope="col" role="columnheader" class="{side}" data-key="{key}">'
        f'<button type="button">{escape(title)}<span aria-hidden="true"></span></button></th>'
        for key, title, side in _COLUMNS
    )
    rows = "\n".join(_row(index, run) for index, run in enumerate(runs))
    return (
        '<section><h2 id="runs-title">Runs</h2>\n'
        f"{_controls(runs)}\n"
        '<div class="scroll" role="region" tabindex="0" aria-labelledby="runs-title">'
        '<table class="runs" role="table"><caption class="hidden">Runs</caption>'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n'
        f'<tbody role="rowgroup">{rows}</tbody></table></div></section>'
    )


def _controls(runs: Sequence[SiteRun]) -> str:
    """Filters, which the script shows: without it they would do nothing."""
    sets = sorted({(len(run.data), run.data, run.dataset) for run in runs})
    units = sorted({run.unit for run in runs})
    choices = (
        ("data", "Data", [(letter, f"{letter}: {name}") for _, letter, name in sets]),
        ("unit", "Protects", [(unit, _unit(unit)) for unit in units]),
        ("audit", "Audit", [(one, one) for one in sorted({run.audit for run in runs})]),
        (
            "signatures",
            "Signatures",
            [(one, _SIGNATURES[one][2]) for one in _SIGNATURES if one in _states(runs)],
        ),
    )
    selects = "".join(
        f'<label>{escape(title)}<select data-filter="{key}"><option value="">all</option>'
        + "".join(
            f'<option value="{escape(value)}">{escape(name)}</option>' for value, name in options
        )
        + "</select></label>"
        for key, title, options in choices
        if len(options) > 1
    )
    orders = "".join(
        f'<option value="{key}">{escape(title)}</option>' for key, title, _ in _COLUMNS
    )
    return (
        '<div class="controls" role="group" aria-label="Filter and sort" hidden>'
        '<label>Search<input type="search" data-search placeholder="name, algorithm, run">'
        f"</label>{selects}"
        f'<label class="order">Sort by<select data-order>{orders}</select></label>'
        '<label class="order tick"><input type="checkbox" data-falling>falling</label>'
        f'<p class="shown" role="status" data-shown>{_counted(len(runs), "run")}</p></div>'
    )


def _states(runs: Sequence[SiteRun]) -> set[str]:
    return {run.signatures for run in runs}


def _unit(unit: str) -> str:
    return "nothing" if unit == "none" else f"one {unit}"


def _row(index: int, run: SiteRun) -> str:
    tone, mark, word = _SIGNATURES[run.signatures]
    auditor = _AUDITORS[run.auditor] if run.unit != "none" else ""
    cells = (
        (run.name.lower(), _what(run)),
        (run.data, f"{escape(run.data)} <small>{escape(run.dataset)}</small>"),
        (run.unit, _protected(run)),
        (_key(run.epsilon), _epsilon(run)),
        (_key(run.epsilon_server), _loss(run.epsilon_server) if run.unit != "none" else "–"),
        (
            _key(run.accuracy),
            "–" if run.accuracy is None else escape(formatting.percent(run.accuracy)),
        ),
        (
            run.audit,
            _verdict(run) + (f" <small>{escape(auditor)}</small>" if auditor else ""),
        ),
        (
            run.signatures,
            f'<span class="state {tone}"><span aria-hidden="true">{mark}</span> {word}</span>',
        ),
        (run.created, f"<small>{escape(run.created[:10])}</small>"),
    )
    shown = "".join(
        f'<td role="cell" class="{side}" data-label="{escape(title)}" '
        f'data-value="{escape(value)}">{cell}</td>'
        for (_, title, side), (value, cell) in zip(_COLUMNS, cells, strict=True)
    )
    words = " ".join((run.name, run.algorithm, run.run, run.dataset)).lower()
    return f'<tr role="row" data-row="{index}" data-words="{escape(words)}">{shown}</tr>'


def _verdict(run: SiteRun) -> str:
    """Return the verdict with its level, in the words and the colour of a report's first page."""
    against = run.unprotected_against
    little = run.audit == "PASS" and (against is not None or run.level in (None, 1))
    shown = f"{mark(run.audit)} {escape(run.audit)}"
    told = "" if against is None else f"<strong>{escape(WORDS[against])}</strong> "
    told += f'<span class="badge {tone("NOT VERIFIED" if little else run.audit)}">{shown}</span>'
    if run.level is None:
        return told
    return (
        f"{told} <small>level {run.level} of {MOST}, {escape(LEVELS[run.level].name)}</small> "
        f"<small>{_again(run)}</small>"
    )


def _again(run: SiteRun) -> str:
    """Say which part of the training was recomputed from the data."""
    if run.level == 1:
        return "nothing computed again"
    if run.recomputed is None:
        return "participations computed again"
    return f"{_counted(run.recomputed, 'participation')} computed again"


def _key(value: float | None) -> str:
    """Return a number to sort by; unknown ones stand last."""
    return "" if value is None else repr(value)


def _what(run: SiteRun) -> str:
    name = f"<strong>{escape(run.name)}</strong>"
    known = {file.rsplit("/", 1)[-1]: file for file in run.files}
    links = " · ".join(
        f'<a href="{escape(known[name])}">{word}'
        f'<span class="hidden"> of {escape(run.run)}</span></a>'
        for name, word in _KINDS
        if name in known
    )
    told = links or "<small>no public report here</small>"
    return (
        f"{name} <small>{escape(run.algorithm)}<br><code>{escape(run.run)}</code></small>"
        f'<span class="files">{told}</span>'
    )


def _protected(run: SiteRun) -> str:
    if run.unit == "none":
        return "nothing"
    return f"one {escape(run.unit)} <small>{_spaced(run.adjacency)}</small>"


def _spaced(adjacency: str) -> str:
    """Return a name of several words with spaces, where a line may be broken."""
    return escape(adjacency.replace("-", " "))


def _loss(value: float | None) -> str:
    return "–" if value is None else escape(formatting.epsilon(value))


def _epsilon(run: SiteRun) -> str:
    if run.unit == "none":
        return "<small>no limit</small>"
    shown = f"<strong>{escape(formatting.epsilon(run.epsilon))}</strong>"
    if run.delta is not None:
        shown += f" <small>δ {escape(formatting.power(run.delta))}</small>"
    if run.reservations:
        said = "; ".join(run.reservations)
        shown += f' <small class="reserved">{escape(said)}</small>'
    return shown


def _spent(spent: Sequence[Spent]) -> str:
    if not spent:
        return ""
    head = ("Data", "Protects", "Runs", "ε, third party", "ε, server", "δ", "Note")
    sides = ("left", "left", "right", "right", "right", "right", "left")
    cells = "".join(
        f'<th scope="col" class="{side}">{title}</th>'
        for title, side in zip(head, sides, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{side}" data-label="{escape(title)}">{cell}</td>'
            for title, side, cell in zip(head, sides, _spent_cells(one), strict=True)
        )
        + "</tr>"
        for one in spent
    )
    return (
        f'<section><h2 id="spent-title">What was spent of each data set</h2>\n<p>{_SUMS}</p>'
        '<div class="scroll" role="region" tabindex="0" aria-labelledby="spent-title">'
        f'<table class="wide spent"><caption class="hidden">What was spent of each data set'
        f"</caption><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _spent_cells(one: Spent) -> Iterator[str]:
    yield f"{escape(one.data)} <small>{escape(one.dataset)}</small>"
    yield f"one {escape(one.unit)} <small>{_spaced(one.adjacency)}</small>"
    yield str(one.runs)
    unbounded = one.without_privacy > 0
    yield "no limit" if unbounded else f"<strong>{_loss(one.epsilon)}</strong>"
    yield "no limit" if unbounded else _loss(one.epsilon_server)
    yield "–" if unbounded or one.delta is None else escape(formatting.power(one.delta))
    said = []
    if one.without_privacy:
        runs = _counted(one.without_privacy, "run")
        said.append(
            f"{runs} on the same data had no privacy, so nothing bounds all of them together; the "
            f"others add up to {_loss(one.epsilon)}"
        )
    if one.without_pass:
        said.append(
            f"{_counted(one.without_pass, 'run')} without a PASS, whose ε is a claim and no more"
        )
    if one.unfinished:
        said.append(f"{_counted(one.unfinished, 'run')} that did not finish, not in the sum")
    if one.canaries:
        said.append(f"{_counted(one.canaries, 'run')} with planted canaries, not in the sum")
    yield escape("; ".join(said)) or "–"


def _notes() -> str:
    rows = "".join(
        f"<div><dt>{escape(title)}</dt><dd>{escape(text)}</dd></div>" for title, text in _NOTES
    )
    return (
        '<section><h2 id="notes-title">How to read it</h2>'
        f'<dl class="settings">{rows}</dl></section>'
    )
