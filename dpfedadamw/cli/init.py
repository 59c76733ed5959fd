"""``init``: a spec to start from, made from options or, in a terminal, from questions."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import out, print_json, print_whole, refuse, status

if TYPE_CHECKING:
    from dpfedadamw.cli.init_table import Described

_TABLES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")
_BATCH = 32
# The option that sets each key of a spec.
_FLAGS = {
    "data.dataset": "data",
    "data.clients": "clients",
    "model.name": "model",
    "model.target": "model",
    "algorithm.name": "algorithm",
    "privacy.unit": "unit",
    "privacy.target_epsilon": "epsilon",
    "privacy.delta": "delta",
    "federation.rounds": "rounds",
    "federation.clients_per_round": "clients",
    "federation.clients_per_person": "clients-per-person",
}


def init(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The spec to write; must not exist.")
    ] = Path("spec.yaml"),
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME_OR_PATH",
            help="A data set's name (dpfedadamw list datasets), a table, an .npz, or a folder of "
            "images.",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="For a table: the column of the class; the one called label by default."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="For a table: a column of text. Repeatable.")
    ] = None,
    numbers: Annotated[
        list[str] | None,
        typer.Option(
            help="For a table: a column of numbers that is used unchanged. Repeatable. Without "
            "--text and --numbers all columns are prepared (data.columns)."
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(help="For a table: the column that names the client a record belongs to."),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(help="For a table: the column that names the person a record is about."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B", help="For a table: the labels that may occur.")
    ] = None,
    dictionary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For a table: a data dictionary, a CSV file with a row for each column: name, "
            "kind, low, high, categories (A|B|C), missing, format.",
        ),
    ] = None,
    public_sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For a table: another table with the same columns and public rows, from which "
            "bounds and categories are read.",
        ),
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOW:HIGH", help="For a table: bounds of a column. Repeatable."),
    ] = None,
    categories: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B", help="For a table: all categories of a column. Repeatable."
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="For a table: a column not to read. Repeatable."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model's name (dpfedadamw list models), or package.module:Net."),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="An algorithm's name: dpfedadamw list algorithms.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="What is protected: record, person, client, or none.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="Delta.")] = 1e-5,
    clients: Annotated[
        int | None,
        typer.Option(help="Number of clients; 10, or as many as --client names, by default."),
    ] = None,
    clients_per_person: Annotated[
        int | None,
        typer.Option(
            help="With --unit person: how many clients can hold records of one person; 1 by "
            "default."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Write a spec to start from, asking for what the options leave out or using defaults.

    For a table, --data t.csv --label outcome --client hospital --epsilon 3 is enough. Each column
    is shown with a guess of its content and how it will be prepared. The spec is checked against
    the data, as in a run, before it is written. An existing file is never changed.
    """
    from dpfedadamw.cli.init_table import Wanted, describe
    from dpfedadamw.cli.init_words import FORM

    if file.exists():
        refuse(f"{file}: exists already; name a new file")
    asking = sys.stdin.isatty() and not as_json
    named = data or _asked("data: a name, a table, an .npz or a folder of images", "digits", asking)
    wanted = Wanted(
        label, client, person, text or (), numbers or (), classes, dictionary, public_sample,
        bounds or (), categories or (), leave_out or (),
    )  # fmt: skip
    described: Described | None = None
    if _is_table(named):
        ask = (lambda question, usual: _asked(question, usual, True)) if asking else None
        with status("looking at the table", quiet=as_json or asking):
            described = describe(named, wanted, clients, ask)
        held = described.section
        if asking:
            _show(described)
    else:
        held = _data(named, wanted.given()) | {"clients": 10 if clients is None else clients}
    model = model or _asked("model: a name, or package.module:Net", "mlp", asking)
    unit = unit or _asked("what is protected: record, person, client or none", "record", asking)
    usual = {"client": "dp-fedavg", "none": "fedadamw"}.get(unit, "dp-fedadamw")
    algorithm = algorithm or _asked("algorithm", usual, asking)
    if described is None and unit == "record":
        # Every client needs at least one batch of records.
        held["partition"] = {"kind": "dirichlet", "minimum_records": _BATCH}
    if epsilon is None and unit != "none":
        epsilon = _number(_asked("target epsilon", "4", asking))
    mapping: dict[str, Any] = {
        "version": 1,
        "name": file.stem if file.stem.isidentifier() else "experiment",
        "data": held,
        "model": _model(model, described is not None),
        "algorithm": {"name": algorithm, **_steps(algorithm, described is not None)},
        "federation": {
            "rounds": rounds,
            # Sampling of clients needs more clients than take part in a round.
            "clients_per_round": max(1, held["clients"] // 2)
            if unit == "client"
            else held["clients"],
            **({} if clients_per_person is None else {"clients_per_person": clients_per_person}),
        },
        "privacy": _privacy(unit, epsilon, delta, described.smallest if described else None),
    }
    with status("checking", quiet=as_json):
        absent = _check(mapping)
    if absent is not None:
        refuse(f"--data {named}: there is no such file or folder")
    if described is not None and not asking and not as_json:
        _show(described)
    comments = [f"Omitted keys have defaults: dpfedadamw spec show {file}"]
    if described is not None:
        comments += [line.format(path=named) for line in FORM]
    _write(file, comments, mapping)
    if as_json:
        shown = (
            {} if described is None else {"table": described.summary, "look_at": described.warnings}
        )
        print_json({"file": str(file), "spec": mapping, **shown})
        return
    out.print(Text(f"wrote {file}"))
    allowed = f" --allow-code {model.partition(':')[0]}" if ":" in model else ""
    if unit != "none":
        out.print(Text(f"what it costs:  dpfedadamw epsilon {file}"))
    out.print(Text(f"run it:         dpfedadamw run {file}{allowed}"))


def _show(described: Described) -> None:
    print_whole(display.grid(("column", "looks like", "in the spec"), described.columns))
    out.print(Text(described.summary))
    for line in described.warnings:
        out.print(Text(f"look at: {line}", style="yellow"))


def _asked(question: str, usual: str, asking: bool) -> str:
    """The answer to a question in a terminal; elsewhere the default."""
    if not asking:
        return usual
    return str(typer.prompt(question, default=usual, show_default=bool(usual), err=True))


def _number(answer: str) -> float:
    try:
        return float(answer)
    except ValueError:
        refuse(f"target epsilon: {answer[:40]!r} is not a number; give one, such as 4")


def _is_table(named: str) -> bool:
    path = Path(named)
    return path.suffix.lower() in _TABLES or (path.is_file() and path.suffix.lower() != ".npz")


def _data(named: str, of_a_table: bool) -> dict[str, Any]:
    """The section `data` for a name or a path that is not a table."""
    if of_a_table:
        refuse(
            "--label, --text, --numbers, --client, --person, --classes, --dictionary, "
            "--public-sample, --bounds, --categories, --leave-out: name columns of a table; "
            "give one as --data"
        )
    path = Path(named)
    if path.suffix.lower() == ".npz":
        return {"dataset": "arrays", "path": named}
    if path.is_dir():
        return {"dataset": "image-folder", "path": named}
    from dpfedadamw.data.registry import DATASETS

    if named in DATASETS and DATASETS[named].bring is None:
        refuse(
            f"--data {named}: is read from its publisher's files, and init does not ask where "
            "these are; start from a shipped spec (dpfedadamw list specs) and set data.path"
        )
    return {"dataset": named}


def _model(named: str, of_a_table: bool) -> dict[str, Any]:
    if ":" in named:
        return {"name": "python", "target": named}
    # A table has few numbers, and a model with fewer parameters gets less noise and learns more.
    return {"name": named, **({"hidden": []} if of_a_table and named == "mlp" else {})}


def _steps(algorithm: str, of_a_table: bool) -> dict[str, Any]:
    """Settings that suit softmax regression on columns from −1 to 1."""
    return {"learning_rate": 0.1} if of_a_table and algorithm == "dp-fedadamw" else {}


def _privacy(
    unit: str, epsilon: float | None, delta: float, smallest: int | None
) -> dict[str, Any]:
    if unit == "none":
        return {"unit": "none"}
    found = {"unit": unit, "clipping_norm": 1.0, "target_epsilon": epsilon, "delta": delta}
    if unit == "client":
        return found
    if unit == "person":
        found["records_per_person"] = 4
    # A client with few records gets a small batch, or its sampling rate would be high. People are
    # fewer than their records: here up to eight times.
    share = 32 if unit == "person" else 4
    batch = _BATCH if smallest is None else max(1, min(128, smallest // share))
    return {**found, "sampling": {"kind": "poisson", "expected_batch_size": batch}}


def _check(mapping: dict[str, Any]) -> str | None:
    """Refuse what a run would refuse; return which data are missing here."""
    from dpfedadamw import spec as specs
    from dpfedadamw.errors import SpecError
    from dpfedadamw.experiment import check

    try:
        spec = specs.from_mapping(mapping)
    except SpecError as error:
        problems = []
        for one in error.problems:
            flag = _FLAGS.get(one.path)
            if flag is not None:
                one = dataclasses.replace(one, source=f"--{flag}", path="")
            if one not in problems:
                problems.append(one)
        raise SpecError(problems) from None
    return check(spec)


def _write(file: Path, comments: list[str], mapping: dict[str, Any]) -> None:
    from dpfedadamw.spec import yamltext
    from dpfedadamw.spec.document import one_line

    # A path that contains a line break must not start a line of the spec.
    written = "".join(f"# {one_line(line, 4096)}\n" for line in comments)
    written += yamltext.write(mapping)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(written)
    except OSError as error:
        refuse(f"{file}: cannot be written ({error.strerror}); name a file that you may write to")
