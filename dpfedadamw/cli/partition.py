"""``spec show --partition``: how many records each client holds, as a table and as a picture.

Sizes are declared public metadata. Which labels a client holds is private: they are shown only on
request, to someone who has the data anyway, and every view of them says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpfedadamw.cli.terminal import err, out, print_json, refuse, status
from dpfedadamw.spec.task_section import CLASSIFICATION

if TYPE_CHECKING:
    from dpfedadamw.spec import Spec

PRIVATE = "label counts are private: for the holder of the data only"
_BAR = 24
_MOST_ROWS = 60
_MOST_COLUMNS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Division:
    """Who holds how much.

    Attributes:
        sizes: Training records of each client, int64 [N].
        counts: Records by client and label, int64 [N, classes]; None unless asked for.
        test: Test records.
        validation: Public validation records.
    """

    sizes: NDArray[np.int64]
    counts: NDArray[np.int64] | None
    test: int
    validation: int

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        shown = {"clients": len(self.sizes), "records": self.sizes.tolist()}
        shown |= {"test_records": self.test, "validation_records": self.validation}
        if self.counts is not None:
            shown |= {"private": PRIVATE, "labels": self.counts.tolist()}
        return shown


def show(spec: Spec, labels: bool, output: Path | None, as_json: bool) -> None:
    """Read a spec's data, divide them as a run would, and show the division."""
    if output is not None and output.suffix.lower() not in (".svg", ".png", ".pdf"):
        refuse(f"--output {output}: give a name that ends in .svg, .png or .pdf")
    if labels and spec.task.kind != CLASSIFICATION:
        refuse(f"--labels: counts classes, but task.kind is {spec.task.kind}; leave it out")
    from dpfedadamw.experiment import divide

    with status("reading the data and dividing them among clients", quiet=as_json):
        dataset, owner = divide(spec)
    clients, classes = spec.data.clients, dataset.classes
    counts = None
    if labels:
        both = np.bincount(owner * classes + dataset.train.labels, minlength=clients * classes)
        counts = both.reshape(clients, classes)
    division = Division(
        np.bincount(owner, minlength=clients),
        counts,
        len(dataset.test),
        len(dataset.validation) if dataset.validation is not None else 0,
    )
    if as_json:
        print_json(division.to_json())
    else:
        out.print(as_table(division, spec.name))
        if labels:
            err.print(Text(PRIVATE, style="yellow"))
    if output is not None:
        _save(division, spec.name, output)
        if not as_json:
            out.print(Text(f"wrote {output}"))


def as_table(division: Division, name: str) -> RenderableType:
    """The division as a table; of many clients, only the largest and the smallest."""
    sizes, total = division.sizes, int(division.sizes.sum())
    table = Table(box=box.SIMPLE_HEAD, title=f"{name}: records per client", title_justify="left")
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    counts = division.counts
    heat = counts is not None and counts.shape[1] <= _MOST_COLUMNS
    width = 0
    header = ""
    if heat and counts is not None:
        width = max(3, len(str(counts.max())) + 1)
        header = "".join(f"{label:^{width}}" for label in range(counts.shape[1]))
    table.add_column(header, no_wrap=True, overflow="crop")
    order = np.arange(len(sizes))
    if len(sizes) > _MOST_ROWS:
        ranked = np.argsort(-sizes, kind="stable")
        order = np.concatenate([ranked[: _MOST_ROWS // 2], ranked[-_MOST_ROWS // 2 :]])
    for place, client in enumerate(order):
        size = int(sizes[client])
        if heat and counts is not None:
            picture = _heat(counts[client], width)
        else:
            picture = Text(_bar(size / max(1, int(sizes.max()))), style="cyan")
        cells = (str(client), f"{size:,}", f"{size / total:.1%}")
        table.add_row(*cells, picture)
        if len(sizes) > _MOST_ROWS and place == _MOST_ROWS // 2 - 1:
            table.add_row("…", "…", "…", Text(f"{len(sizes) - _MOST_ROWS} more", style="dim"))
    held = [f"{division.test:,} records are held out for testing"]
    if division.validation:
        held.append(f"{division.validation:,} are a public validation set")
    middle = f"median {np.median(sizes):,.0f}, smallest {sizes.min():,}, largest {sizes.max():,}"
    lines = [f"{total:,} training records of {len(sizes)} clients: {middle}", "; ".join(held)]
    if counts is not None and not heat:
        lines.append(f"{counts.shape[1]} labels are too many for a terminal; use --output FILE.svg")
    return Group(table, *(Text(line, style="dim") for line in lines))


def _bar(share: float) -> str:
    """A bar of up to 24 characters, in eighths of one."""
    eighths = round(share * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _heat(counts: NDArray[np.int64], width: int) -> Text:
    """One cell a label, the count in it, darker for a larger share of the client's records."""
    text = Text()
    for count in counts.tolist():
        share = count / max(1, int(counts.sum()))
        grey = 235 - round(150 * share**0.5)
        ink = "white" if grey < 140 else "black"
        colour = f"rgb({grey - 60},{grey},{min(255, grey + 20)})"
        text.append(f"{count or '·':^{width}}", style=f"{ink} on {colour}")
    return text


def _save(division: Division, name: str, output: Path) -> None:
    """Draw the division by matplotlib: bars of sizes, or labels by client."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    sizes, counts = division.sizes, division.counts
    figure, axes = pyplot.subplots(figsize=(7.2, 3.4), layout="constrained")
    if counts is None:
        axes.bar(np.arange(len(sizes)), sizes, width=0.85, color="#2a6f97")
        axes.set(xlabel="client", ylabel="training records")
        axes.set_title(f"{name}: training records of each client", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    else:
        image = axes.imshow(counts.T, aspect="auto", cmap="Blues", interpolation="nearest")
        axes.set(xlabel="client", ylabel="label")
        axes.set_title(f"{name}: records by label ({PRIVATE})", loc="left", fontsize=8)
        figure.colorbar(image, ax=axes, label="training records")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(sizes) <= _MOST_COLUMNS:
        # A locator puts fractions between few clients, and below the first.
        axes.set_xticks(range(len(sizes)))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    try:
        figure.savefig(output, dpi=160)
    except OSError as error:
        refuse(f"--output {output}: cannot be written ({error.strerror}); use another place")
    finally:
        pyplot.close(figure)
    if counts is not None:
        output.chmod(0o600)
