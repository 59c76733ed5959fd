"""Where each number of a report comes from, for many kinds of runs.

The runs have numbers that differ from each other. So a number in a report, on its pages or in its
figures shows which value of the run's files it is. `origins.txt` has the place and the origin of
each; what is computed stands there as a number. No wording is in the table: it says only where a
kind of run is told in other words. This writes it, and `git diff` shows what moved:

    python -m tests.reports.content.origins
"""

from __future__ import annotations

import copy
import functools
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.collections import PathCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from reports import formatting
from reports.content.build import build
from reports.content.parts import INTERNAL, PUBLIC, Report, figures, sections
from reports.source import Auditing, RunSource, load

TABLE = Path(__file__).with_name("origins.txt")
Change = Callable[[RunSource], RunSource]

_HEADER = {
    "rounds": 31, "local_steps": 7, "clients_per_round": 6, "parameters": 2411, "delta": 1.25e-5,
    "expected_batch_size": 29.5, "clipping_norm": 1.375, "noise_multiplier": 2.625,
    "accountant": {"library": "a-library", "version": "3.2.1"}, "package": "0.9.8",
    "data_sha256": "ab" * 32,
}  # fmt: skip
_CLAIM = {
    "delta": 1.25e-5,
    "dp_accounting": {"version": "0.7.9", "view": "third_party", "epsilon": 3.3125},
    "person": {"records": 37, "epsilon": 88.125},
}
_PRODUCER = {
    "name": "a-loop", "version": "7.8.9", "mode": "per-sample", "optimizer": "an-optimizer",
    "generator": "a-generator", "secure": False,
}  # fmt: skip
_SCORES = {
    "test_majority_rate": 0.8875, "test_auc": 0.71875, "test_average_precision": 0.40625,
    "test_f1": 0.34375, "test_balanced_accuracy": 0.65625, "test_log_loss": 0.5078125,
    "test_calibration_error": 0.0703125, "test_own": {"a-metric": 0.1640625},
    "test_confusion": [[211, 34, 23], [46, 327, 57], [61, 73, 429]],
}  # fmt: skip
_ADAPTATION = {
    "step_limit": 1234, "most_local_steps": 53, "follows_releases": True,
    "decay": {"floor": 0.8125, "factor": 0.96875, "patience": 43},
}  # fmt: skip
_COIN = {
    "challenger": "a-challenger", "own": False,
    "intents": {"for_data": 47, "of_trainer": 83, "dropped": 29, "dropped_of_trainer": 67},
}  # fmt: skip
_TRIALS = {"selection": "private", "mean_trials": 11.5, "shape": 1.5, "score": "test_accuracy"}


def _with(part: str, **values: Any) -> Change:
    """The same run with other values in its header, claim, spec or model."""
    return lambda run: replace(run, **{part: {**getattr(run, part), **values}})


def _all(*changes: Change) -> Change:
    return lambda run: functools.reduce(lambda made, change: change(made), changes, run)


def _last_metrics(**values: Any) -> Change:
    return lambda run: replace(run, metrics=[*run.metrics[:-1], {**run.metrics[-1], **values}])


def _details(name: str, verdict: str = "PASS", **details: Any) -> Change:
    """The same run with another check, or with other details of one that it has."""

    def change(run: RunSource) -> RunSource:
        audit: Any = copy.deepcopy(run.audit)
        known = [one for one in audit["checks"] if one["name"] == name]
        if not known:
            known = [{**audit["checks"][0], "name": name}]
            audit["checks"] += known
        known[0].update(verdict=verdict, details={**known[0]["details"], **details})
        return replace(run, audit=audit)

    return change


def _spends(**values: Any) -> Change:
    return lambda run: replace(run, spends=[{**line, **values} for line in run.spends])


def _of_clients(added_by: str) -> Change:
    def change(run: RunSource) -> RunSource:
        claim: Any = copy.deepcopy(run.claim)
        claim["view_headline"] = "third-party"
        claim["third_party"]["participation"] = 0.5625
        header = {**run.header, "unit": "client", "noise_added_by": added_by}
        header |= {"participation": 0.5625, "client_sampling": "poisson", "sampling": "shuffled"}
        spends = [
            {"noise_multiplier": 1.8125, "sampling_rate": 0.5625, "clients": [1, 3],
             "upload_noise_multiplier": 0.9375},
        ] * 13  # fmt: skip
        if added_by == "server":
            claim["server"] = {"epsilon": None, "clients": []}
        return replace(run, header=header, claim=claim, spends=spends)

    return change


def _of_people(count: int) -> Change:
    return _with("header", unit="person", clients_per_person=count, records_per_person=17,
                 rows=[191.0 + number for number in range(10)])  # fmt: skip


def _recorded(**header: Any) -> Change:
    return _all(_with("header", producer=_PRODUCER, sampling_rate=0.109375, **header),
                _with("claim", profile=[]),
                _spends(sampling_rate=0.109375, steps=1))  # fmt: skip


def _regression(run: RunSource) -> RunSource:
    rows = [
        {"round": row["round"], "test_loss": row["test_loss"], "test_rmse": 3 + row["test_loss"],
         "test_mae": 2 + row["test_loss"]}
        for row in run.metrics
    ]  # fmt: skip
    return replace(run, metrics=rows, spec={**run.spec, "task": {"kind": "regression"}})


def _audited(verdict: str) -> Change:
    return lambda run: replace(run, audit={**(run.audit or {}), "verdict": verdict})


def _quantiles(side: str) -> Change:
    """The same run with one quantile of the noise outside of its interval."""

    def change(run: RunSource) -> RunSource:
        audit: Any = copy.deepcopy(run.audit)
        (found,) = (one for one in audit["checks"] if one["name"] == "noise-scale")
        found["details"]["quantiles"]["verdicts"][3] = side
        (shift,) = (one for one in audit["checks"] if one["name"] == "second-moment")
        block = shift["details"]["blocks"][0]
        block["released"] = block["predicted"] - 2 * block["half_width"]
        return replace(run, audit=audit)

    return change


def _bare(run: RunSource) -> RunSource:
    """A run whose files state next to nothing."""
    kept = {key: run.header.get(key) for key in ("run", "unit", "producer", "noise_added_by")}
    audit: Any = {"run": run.run, "verdict": "PASS", "checks": [{"verdict": "PASS"}]}
    claim = {"kind": "claim", "server": {"epsilon": {"a": None}}, "closed_forms": {"x": 1.5}}
    return replace(run, header=kept, claim=claim, audit=audit, spec={}, model={}, metrics=[],
                   spends=[], participations=())  # fmt: skip


def _less_private(run: RunSource) -> RunSource:
    """The same run with an ε that is fifty times as large, and with a larger δ."""
    claim: Any = copy.deepcopy(run.claim)
    for view in ("server", "server_worst_case", "third_party"):
        for part in (claim[view], *claim[view].get("clients", [])):
            part["epsilon"] = {name: 50 * one for name, one in part["epsilon"].items()}
    return replace(run, claim={**claim, "delta": 0.6015625, "person": {"records": 37}})


def _unbounded(run: RunSource) -> RunSource:
    """The same run with no finite ε against anyone."""
    none = {"epsilon": {"pld": None}, "accountant": "pld"}
    views = dict.fromkeys(("server", "server_worst_case", "third_party"), none)
    return replace(run, claim={**run.claim, **views})


def _many(run: RunSource) -> RunSource:
    """The same run with many clients, blocks and classes."""
    claim: Any = copy.deepcopy(run.claim)
    row = claim["server"]["clients"][0]
    claim["server"]["clients"] = [
        {**row, "client": one, "records": 40 + 30 * one, "epsilon": {"pld": 4.5 - one / 64}}
        for one in range(70)
    ]
    pairs = [[40 + one, 20 + one // 2] for one in range(70)]
    last = {**run.metrics[-1], "test_classes": pairs, "test_confusion": [[3] * 20] * 20}
    found = replace(run, claim=claim, metrics=[*run.metrics[:-1], last])
    blocks = [
        {"name": f"block {one}", "size": 100 + one, "predicted": 0.5, "released": 0.5 + one / 512,
         "half_width": 0.03125}
        for one in range(70)
    ]  # fmt: skip
    return _details("second-moment", blocks=blocks)(found)


_ALL_TRIALS = {"epsilon": {"pld": 41.375}, "accountant": "pld"}
_CHOSEN = _all(
    _with("spec", tune=_TRIALS), _with("claim", tuning={"server_all_trials": _ALL_TRIALS})
)
# Each kind with the kind that it is told apart from, and what it has otherwise.
KINDS: Mapping[str, tuple[str, Change]] = {
    "records": ("", lambda run: run),
    "records, replaced": (
        "records", _with("header", sampling="fixed-size", adjacency="replace-one")
    ),
    "records, shuffled": (
        "records",
        _all(_with("header", sampling="shuffled", adjacency="replace-one"),
             _spends(sampling="shuffled", queries_per_step=2)),
    ),
    "a stated rate": ("records", _with("header", sampling_rate=0.078125)),
    "clients by chance": (
        "records", _with("header", client_sampling="poisson", precision="bfloat16")
    ),
    "a seed": ("records", _with("header", randomness="reproducible", seed=977, commitment=None)),
    "an end by a limit": (
        "records",
        _all(_with("header", max_epsilon=6.03125), _with("claim", stopped={"rounds": 19})),
    ),
    "an end at the target": (
        "records", _with("claim", stopped={"rounds": 19, "target_epsilon": 6.03125})
    ),
    "a limit that ended nothing": ("records", _with("header", max_epsilon=6.03125)),
    "adapted": ("records", _with("header", adaptation=_ADAPTATION)),
    "learnt columns": (
        "records",
        _all(_with("header", column_queries={"columns": list("abcdefgh"),
                   "noise_multiplier": 5.34375}),
             _with("claim", columns={"epsilon": 0.4453125})),
    ),
    "a budget, sites and a coin": (
        "records",
        _all(_with("header", public_coin=_COIN, sites={"keys": ["a"] * 23},
                   budget={"epsilon": 14.21875, "delta": 3e-5}),
             _with("claim", budget={"charged": 9.15625}),
             _details("reexecution", drawn=21, participations=97)),
    ),
    "another auditor": (
        "records", lambda run: replace(run, auditing=Auditing("auditor-key", "trainer-key", False))
    ),
    "scores": (
        "records",
        _all(_last_metrics(**_SCORES), _with("model", labels=["ant", "bee", "cow"]),
             _with("spec", report={"paper": "letter", "language": "de", "purpose": "a-purpose"})),
    ),
    "a regression": ("records", _regression),
    "published weights, validated": (
        "records",
        _all(_with("model", base={"source": "a-source", "revision": "a-revision",
                   "weights_sha256": "cd" * 32}),
             lambda run: _with("spec", data={**run.spec["data"],
                               "validation": {"fraction": 0.15625}})(run),
             _last_metrics(validation_accuracy=0.84375)),
    ),
    "a private selection": ("records", _CHOSEN),
    "a public search": (
        "records",
        _with("spec", tune={"selection": "public", "dataset": "a-dataset",
              "score": "validation_loss", "search_seeds": [311, 313]}),
    ),
    "an unaccounted search": (
        "records", _with("spec", tune={"selection": "unaccounted", "score": "test_loss"})
    ),
    "clients": ("records", _of_clients("server")),
    "clients, own noise": ("records", _of_clients("clients")),
    "clients, cut": (
        "clients",
        _with("header", sparsification={"kind": "random", "kept": 241, "size": 2411}),
    ),
    "clients, chosen": ("clients, own noise", _CHOSEN),
    "people": ("records", _of_people(3)),
    "people at one client": ("people", _with("header", clients_per_person=1)),
    "a loop": ("records", _recorded()),
    "rounds of others": (
        "a loop", _with("header", unit="client", records=[139.0], sampling="fixed-size")
    ),
    "a secure loop of other noise": (
        "a loop",
        _with("header", sampling="shuffled", sampling_rate=None,
              producer={**_PRODUCER, "mechanism": "laplace", "secure": True}),
    ),
    "rounds of others, by chance": (
        "rounds of others",
        _with("header", adjacency="replace-one", sampling_rate=1.0,
              producer={**_PRODUCER, "mechanism": "a-mechanism", "generator": None}),
    ),
    "failed": (
        "records", _all(_audited("FAIL"), _details("noise-scale", "FAIL"), _quantiles("below"))
    ),
    "not verified": (
        "records",
        _all(_audited("NOT VERIFIED"), _details("reexecution", "FAIL"), _details("views", "?")),
    ),
    "not audited": ("records", lambda run: replace(run, audit=None, notes=("a-note",))),
    "not finished": ("records", lambda run: replace(run, claim={})),
    "diverged": ("scores", _with("claim", diverged={"round": 9})),
    "bare": ("records", _bare),
    "bare clients": ("clients", _bare),
    "bare people": ("people", _bare),
    "bare loop": ("a loop", _bare),
    "hardly private": ("records", _less_private),
    "hardly private clients": ("clients, own noise", _less_private),
    "many": ("records", _many),
    "unbounded": ("records", _unbounded),
    "adapted steps": (
        "records", _with("header", adaptation={"step_limit": 1234, "most_local_steps": 53})
    ),
    "an own coin": (
        "records",
        _with("header", public_coin={"challenger": "", "own": True,
              "intents": {"for_data": 1, "of_trainer": 1}}),
    ),
    "all recomputed": ("records", _details("reexecution", drawn=21, participations=21)),
    "clients, cut by themselves": (
        "clients",
        _with("header", sparsification={"kind": "local-top", "kept": 241, "size": 2411},
              sampling="full"),
    ),
    "no privacy": (
        "records", lambda run: replace(_with("header", unit="none")(run), claim={"kind": "claim"})
    ),
}  # fmt: skip


DRAWN = {
    "records",
    "scores",
    "a regression",
    "clients, own noise",
    "people",
    "failed",
    "many",
    "unbounded",
}
TOLD_TO_THE_PUBLIC = {
    "records", "clients by chance", "a budget, sites and a coin", "a private selection", "clients",
    "clients, own noise", "people", "a loop", "no privacy",
}  # fmt: skip


def base(builder: Callable[..., Path], folder: Path) -> RunSource:
    """The run that the others are made from."""
    run = load(builder(folder / "run"))
    claim: Any = copy.deepcopy({**run.claim, **_CLAIM})
    for place, client in enumerate(claim["server"]["clients"]):
        client |= {"participations": 101 + 3 * place, "steps": 1001 + 7 * place}
    claim["profile"] = [[0.53125 * one, 0.28125 / (1 + one) ** 3] for one in range(1, 6)]
    claim["gaussian_dp"] = {"mu": 1.90625, "exact": False, "misses_smaller_by": 1e-10}
    took_part = tuple(301 + 3 * place for place in range(10))
    run = replace(run, claim=claim, participations=took_part)
    return _all(_with("header", **_HEADER))(run)


def made(kind: str, run: RunSource) -> RunSource:
    """The run of a kind."""
    parent, change = KINDS[kind]
    return change(made(parent, run) if parent else run)


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{where}[{number}]")
    else:
        yield where, value


_PARTS = ("header", "claim", "participations", "metrics", "audit", "spec", "model", "spends")


def _names(run: RunSource) -> dict[Any, str]:
    """The place in the run's files of each number that is no round one, and of its prints."""
    found: dict[Any, str] = {}
    printed: dict[Any, str] = {}
    shows = (formatting.epsilon, formatting.plain, formatting.power, formatting.percent)
    for part in (
        "header",
        "claim",
        "participations",
        "metrics",
        "audit",
        "spec",
        "model",
        "spends",
    ):
        for where, value in _leaves(getattr(run, part), part):
            if isinstance(value, int | float) and len(f"{abs(value):g}".strip("0.")) > 2:
                found.setdefault(float(value), where)
                found.setdefault(100.0 * value, f"100·{where}")
                for show in (*shows, formatting.count, formatting.size) if value > 0 else ():
                    if len(re.sub(r"\D", "", show(value))) > 2:
                        printed.setdefault(show(value), where)
    return {**printed, **found}


_FIGURE = re.compile(
    r"(?<![0-9a-f])\d[\d.,]*(?:·10[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)?(?: %| [kMG]?B\b)?(?![0-9a-f])"
    r"|10[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|\ba-[a-z]+\b|\w+-key|[0-9a-f]{64}"
)


def _told(value: Any, names: Mapping[Any, str]) -> str:
    """A value by its origin; of a text, the origins of what it has of the run."""
    if isinstance(value, str):
        found = [one.rstrip(".,") for one in _FIGURE.findall(value)]
        if found:
            return " ".join(names.get(one, one[:9]) for one in found)
        return value if re.fullmatch(r"[\w.-]{1,24}", value) else "text" if value else "nothing"
    if isinstance(value, bool) or value is None:
        return str(value)
    return names.get(float(value), f"{value:.5g}")


def _everything(report: Report, with_drawings: bool) -> dict[str, Any]:
    """The report's data, its pages and the tables of its figures."""
    data = report.data()
    for name in ("identity", "hazards", "verification"):
        data[name] = data[name] if name == "identity" else len(data[name])
    data["identity"].pop("hashes")
    shown = {one.identifier: list(one.blocks(report)) for one in sections()}
    drawn = {text.identifier: figures()[text.identifier].data(report) for text in report.figures}
    tables = {
        name: [dict(zip(found.head, row, strict=True)) for row in found.rows]
        for name, found in drawn.items()
    }
    drawings = {name: _drawing(report, name) for name in drawn} if with_drawings else {}
    return {"": data, "page": shown, "figure": tables, "drawn": drawings}


def _drawing(report: Report, name: str) -> dict[str, Any]:
    """What a figure shows: its points, bars, bands and texts, and the ends of its axes."""
    axes = Canvas().add_subplot()
    figures()[name].draw(axes, report)
    legend = axes.get_legend()
    return {
        "line": [[*map(list, one.get_data())] for one in axes.lines],
        "bar": [[one.get_x() + one.get_width() / 2, one.get_height()] for one in axes.patches],
        "cloud": [one.get_offsets().tolist() for one in axes.collections],
        "band": [
            [path.vertices.tolist() for path in one.get_paths()]
            for one in axes.collections
            if not isinstance(one, PathCollection)
        ],
        "image": [one.get_array().tolist() for one in axes.images],
        "label": [axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale()],
        "end": [*axes.get_xlim(), *axes.get_ylim()],
        "tick": [
            [[float(one) for one in axis.get_majorticklocs()],
             [one.get_text() for one in axis.get_ticklabels()]]
            for axis in (axes.xaxis, axes.yaxis)
            if isinstance(axis.get_major_locator(), FixedLocator)
        ],
        "text": [[*one.get_position(), one.get_text()] for one in axes.texts],
        "legend": [one.get_text() for one in legend.get_texts()] if legend else [],
    }  # fmt: skip


# How a page looks, and not what it says.
_LOOKS = re.compile(
    r"page\..*\.(kind|style|align\[\d*\]|widths\[\d*\]|small|ordered|caption|title|code)$"
)


@dataclass(frozen=True)
class Place:
    """What stands at a place of a report, or at all places of a list.

    Attributes:
        origins: Where it comes from.
        words: Texts without what they have of the run; never printed.
    """

    origins: str
    words: frozenset[str]


def places(run: RunSource, audience: str, with_drawings: bool) -> dict[str, Place]:
    """What stands at each place of a report."""
    names = _names(run)
    report = build(Path(), audience, run.auditing, run)
    found: dict[str, dict[str, None]] = {}
    words: dict[str, set[str]] = {}
    for where, value in _leaves(_everything(report, with_drawings), ""):
        if _LOOKS.search(where := where.lstrip(".")):
            continue
        origin, place = _told(value, names), re.sub(r"\[\d+\]", "[]", where)
        for index in re.findall(r"\[(\d+)\]", where):
            origin = origin.replace(f"[{index}]", "[=]")
        found.setdefault(place, {})[origin] = None
        if isinstance(value, str) and " " in value:
            words.setdefault(place, set()).add(_FIGURE.sub("", value))
    return {
        place: Place(_short(list(known)), frozenset(words.get(place, ())))
        for place, known in found.items()
    }


def _short(origins: list[str]) -> str:
    """Origins, of which many numbers of no name are told by the first and the last."""
    bare = [one for one in origins if re.fullmatch(r"-?\d[\d.e+-]*", one)]
    if len(bare) > 4:
        told = f"{bare[0]} to {bare[-1]}, {round(math.fsum(map(float, bare)), 9):.5g} in all"
        origins = [told, *(one for one in origins if one not in bare)]
    return " | ".join(origins)


SECTIONS = tuple(
    (kind, audience)
    for kind in KINDS
    for audience in (INTERNAL, PUBLIC)
    if audience == INTERNAL or kind in TOLD_TO_THE_PUBLIC
)
Known = dict[tuple[str, str], dict[str, Place]]


def section(kind: str, audience: str, run: RunSource, known: Known) -> list[str]:
    """The places that differ from those of the kind that this one is told from.

    A report for the public is told from the internal one. Where words differ, that they do is
    said, and not which they are.

    Args:
        kind: One of `KINDS`.
        audience: "internal" or "public".
        run: What `base` gave.
        known: The places of other reports, which are made once.
    """

    def of(name: str, reader: str) -> dict[str, Place]:
        if (name, reader) not in known:
            drawn = name in DRAWN and reader == INTERNAL
            known[name, reader] = places(made(name, run), reader, drawn)
        return known[name, reader]

    parent = kind if audience == PUBLIC else KINDS[kind][0]
    own, above = of(kind, audience), of(parent, INTERNAL) if parent else {}
    text = []
    for place, one in own.items():
        unsaid = "nothing" if place.startswith("drawn.") else "text"
        before = above.get(place, Place(unsaid, one.words))
        told = [one.origins] if one.origins != before.origins else []
        told += ["(other words)"] if one.words != before.words else []
        text += [f"{place}: {' '.join(told)}"] if told else []
    drawn = any(place.startswith("drawn.") for place in own)
    gone = Counter(
        place.rpartition(".")[0]
        for place in above
        if place not in own and (drawn or not place.startswith("drawn."))
    )
    return [*text, *(f"{place}: {count} gone" for place, count in gone.items())]


def table() -> dict[str, list[str]]:
    """The lines of each section of `origins.txt`."""
    parts = TABLE.read_text("utf-8").split("== ")[1:]
    return {head: rest.splitlines() for head, _, rest in (one.partition("\n") for one in parts)}


def main() -> None:
    """Write the table."""
    from tests.reports.conftest import build_run

    known: Known = {}
    with tempfile.TemporaryDirectory() as scratch:
        run = base(build_run, Path(scratch))
    parts = (
        f"== {kind}, {audience}\n"
        + "".join(f"{line}\n" for line in section(kind, audience, run, known))
        for kind, audience in SECTIONS
    )
    TABLE.write_text("".join(parts), "utf-8")


if __name__ == "__main__":
    main()
