"""``epsilon`` and ``calibrate``: what a spec costs, and which settings meet a target."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.frontier import display_frontier
from dpfedadamw.cli.options import (
    JsonOption,
    SetOption,
    SolveName,
    SpecArgument,
    ViewName,
)
from dpfedadamw.cli.terminal import (
    EXIT_NOT_PASSED,
    out,
    print_json,
    refuse,
    status,
    stop,
)
from dpfedadamw.registration import extension

if TYPE_CHECKING:
    from dpfedadamw.spec import Spec
    from dpfedadamw.units.plan import RunPlan


def epsilon(
    spec: SpecArgument,
    changes: SetOption = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also compute the headline ε with Google's dp-accounting, as every run does at "
            "its end. Exit code 1 if its number is above the one shown here.",
        ),
    ] = False,
    records_per_person: Annotated[
        str | None,
        typer.Option(
            metavar="K[,K...]",
            help="Also show the ε of a person with K records, all added or removed at once: 1,2,5.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a spec will cost in privacy, before anything is trained.

    Every client is assumed to take part in every round; a run can only cost less.
    """
    from dpfedadamw import spec as specs
    from dpfedadamw.experiment import foresee
    from dpfedadamw.run.headline import f_dp_of
    from dpfedadamw.spec.matrix import load_private_selection

    counts = _counts(records_per_person)
    if (selected := load_private_selection(spec, changes or ())) is not None:
        if counts:
            refuse("--records-per-person: not for a search whose best trial is published")
        sweeps = extension("dpfedadamw.extensions.sweeps.commands.selection", str(spec))
        _end_if_refuted(
            sweeps.foretell_alone(selected, lambda plan: _expected(plan, 1, check), as_json)
        )
        return
    with status("accounting", quiet=as_json):
        loaded = specs.load(spec, changes or ())
        plan = foresee(loaded)
        claim = _expected(plan, None if as_json else display.MOST_CLIENTS, check)
        people: dict[int, float] = {}
        if counts:
            from dpfedadamw.run.headline import epsilon_by_records

            people = epsilon_by_records(plan, claim, counts)
        elif plan.most_records is not None:
            from dpfedadamw.run.headline import with_people

            claim = with_people(plan, claim)
        curve = f_dp_of(plan, claim)
    if as_json:
        more: dict[str, Any] = {} if curve is None else {"f_dp": curve}
        if people:
            more["epsilon_by_records_of_a_person"] = {str(k): value for k, value in people.items()}
        print_json({**claim, "noise_multiplier": plan.noise_multiplier, **more})
    else:
        summary, by_client = display.cost(loaded.name, plan, claim, people, curve)
        out.print(summary)
        if by_client is not None:
            out.print(by_client)
    _end_if_refuted(claim)


def _counts(given: str | None) -> list[int]:
    """The numbers of records that an option lists."""
    if given is None:
        return []
    from dpfedadamw.accounting.several import MOST_RECORDS

    words = [word.strip() for word in given.split(",")]
    whole = all(re.fullmatch("[0-9]{1,6}", word) for word in words)
    if not whole or not all(1 <= int(word) <= MOST_RECORDS for word in words):
        refuse(
            f"--records-per-person {given}: give whole numbers from 1 to {MOST_RECORDS:,} with "
            "commas between them, such as 1,2,5"
        )
    return [int(word) for word in words]


def _expected(plan: RunPlan, dearest: int | None, check: bool) -> dict[str, Any]:
    """The expected claim; on request, with dp-accounting's number for its headline."""
    claim = plan.expected_claim(dearest)
    if check:
        from dpfedadamw.run.headline import with_dp_accounting

        claim = with_dp_accounting(plan, claim)
    return claim


def _end_if_refuted(claim: Mapping[str, Any]) -> None:
    """End with exit code 1 where dp-accounting's number is above the claim's."""
    if "dp_accounting" not in claim:
        return
    from dpfedadamw.accounting.dp_accounting_check import disagrees

    if disagrees(claim):
        stop(
            "error: dp-accounting computes a larger epsilon than this package does, so one of them "
            "is wrong; do not rely on this number, and please report it",
            EXIT_NOT_PASSED,
        )


def calibrate(
    spec: SpecArgument,
    target_epsilon: Annotated[
        float, typer.Option("--target-epsilon", metavar="E", help="ε to meet, at the spec's δ.")
    ],
    view: Annotated[
        ViewName, typer.Option(help="Whom it must hold against: server, or third-party.")
    ] = ViewName.server,
    solve: Annotated[
        SolveName, typer.Option(help="What may change: noise, rounds, rate or local-steps.")
    ] = SolveName.noise,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the spec."),
    ] = None,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier",
            help="Show rounds, local steps and batches against each other at the same ε, and write "
            "no spec.",
        ),
    ] = False,
    compare_person: Annotated[
        bool,
        typer.Option(
            "--compare-person",
            help="For a spec that protects people: show the noise that meets the target ε for a "
            "person when sampling people and when sampling records, and write no spec.",
        ),
    ] = False,
    per_person: Annotated[
        bool,
        typer.Option(
            "--per-person",
            help="Of a spec that protects records and keeps data.most_records_per_person: the "
            "target is the ε of a person with that many.",
        ),
    ] = False,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,…",
            help="With --frontier, values of a field: --vary federation.local_steps=1,5,20. "
            "Repeatable; every value with every other.",
        ),
    ] = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the noise, rounds, rate or local steps that meet a target ε, and write the spec.

    The accountant is inverted and then checked on the written spec. Noise and rate give an ε at
    most 0.5 % below the target and never above it. An existing file is never overwritten.
    """
    from dpfedadamw import spec as specs

    _refuse_together(frontier=frontier, compare_person=compare_person, per_person=per_person)
    if frontier:
        if output is not None or solve is not SolveName.noise:
            refuse("--frontier: solves for noise and writes no spec; leave out --output, --solve")
        _frontier(specs.load(spec, changes or ()), target_epsilon, view, vary or (), as_json)
        return
    if vary:
        refuse("--vary: is for --frontier")
    if compare_person:
        if output is not None or solve is not SolveName.noise or view is not ViewName.server:
            refuse(
                "--compare-person: solves for noise against the server and writes no spec; leave "
                "out --output, --solve, --view"
            )
        _compare_person(specs.load(spec, changes or ()), target_epsilon, as_json)
        return

    loaded = specs.load(spec, changes or ())
    from dpfedadamw.run.calibrate import Solve, View, for_a_person
    from dpfedadamw.run.calibrate import calibrate as solve_for

    if per_person and (solve is not SolveName.noise or view is not ViewName.server):
        refuse("--per-person: solves for noise against the server; leave out --solve, --view")
    path = output or Path(f"{loaded.name}-calibrated.yaml")
    if path.exists():
        refuse(f"--output {path}: exists and is never overwritten; choose another name")
    with status("inverting the accountant", quiet=as_json):
        if per_person:
            found = for_a_person(loaded, target_epsilon)
        else:
            found = solve_for(loaded, target_epsilon, View(view.value), Solve(solve.value))
    try:
        path.write_text(specs.dump(found.spec), encoding="utf-8")
    except OSError as error:
        refuse(f"--output {path}: cannot be written ({error.strerror}); choose another place")
    if as_json:
        print_json(
            {"spec": str(path), "key": found.key, "value": found.value, "epsilon": found.epsilon}
        )
        return
    reader = "the server" if view is ViewName.server else "a third party"
    of = " of a person" if per_person else ""
    out.print(
        display.facts(
            [
                (found.key, Text(f"{found.value:g}", style="bold")),
                (
                    f"ε{of} against {reader}",
                    f"{display.epsilon_text(found.epsilon)}  (target {target_epsilon:g})",
                ),
                ("δ", f"{found.spec.privacy.delta:g}"),
                ("spec", str(path)),
            ]
        )
    )


def _refuse_together(**given: bool) -> None:
    """Refuse options of which each asks for something else."""
    names = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if len(names) > 1:
        refuse(f"{names[0]}: cannot be given with {' or '.join(names[1:])}; leave one out")


def _compare_person(spec: Spec, target_epsilon: float, as_json: bool) -> None:
    """Show the noise of both ways to meet a target for a person."""
    from dataclasses import asdict

    from dpfedadamw.run.calibrate import compare_person as compare

    with status("inverting the accountant", quiet=as_json):
        ways = compare(spec, target_epsilon)
    if as_json:
        print_json({"target_epsilon": target_epsilon, "ways": [asdict(way) for way in ways]})
        return
    columns = ("batches of", "σ", "B", "noise σC/B", "ε of a person")
    rows = [
        (
            way.sampled,
            f"{way.noise_multiplier:g}",
            f"{way.batch:,.4g}",
            f"{way.noise:.4g}",
            display.epsilon_text(way.epsilon),
        )
        for way in ways
    ]
    out.print(
        display.grid(columns, rows, title=f"a person, with all records, at ε = {target_epsilon:g}")
    )


def _frontier(
    spec: Spec, target_epsilon: float, view: ViewName, vary: Sequence[str], as_json: bool
) -> None:
    """Show what one budget buys."""
    from dataclasses import asdict

    from dpfedadamw.run.calibrate import View
    from dpfedadamw.run.frontier import frontier as solve_all

    values: dict[str, list[Any]] = {}
    for key, more in map(_values, vary):
        if key in values:
            refuse(f"--vary {key}: given twice; list all of its values once, {key}=A,B")
        values[key] = more
    with status("inverting the accountant", quiet=as_json):
        found = solve_all(spec, target_epsilon, View(view.value), values)
    if as_json:
        print_json(
            {
                "target_epsilon": found.target_epsilon,
                "delta": found.delta,
                "view": found.view.value,
                "combinations": [asdict(one) for one in found.combinations],
                "refused": [asdict(one) for one in found.refused],
            }
        )
        return
    for part in display_frontier(found):
        out.print(part)


def _values(text: str) -> tuple[str, list[Any]]:
    """A key and its values, of the text KEY=A,B."""
    import yaml

    key, equals, values = text.partition("=")
    try:
        found = yaml.safe_load(f"[{values}]")
    except yaml.YAMLError:
        found = None
    if not (key and equals and found and all(isinstance(one, int | float | str) for one in found)):
        refuse(f"--vary {text}: must be a key and values, federation.local_steps=1,5,20")
    return key.strip(), list(found)
