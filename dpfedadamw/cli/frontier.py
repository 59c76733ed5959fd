"""Shows what one budget buys: one row per combination of rounds, local steps and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from audit.protection import protects_nothing
from dpfedadamw.cli.display import facts, unprotected_row

if TYPE_CHECKING:
    from dpfedadamw.run.frontier import Combination, Frontier

_SPECS_OWN = "> is the spec itself."
_RECORD_NOTE = (
    "gradient, client, training: standard deviation of the noise on one coordinate, in units of C. "
    "It is that of a mean gradient (σ/B), of one client's local steps before they are averaged "
    "(√K·σ/B), and of the mean of all gradients. uploads: vectors that all clients send. records: "
    f"expected number of per-record gradients computed. {_SPECS_OWN}"
)
_CLIENT_NOTE = (
    "noise: standard deviation on one coordinate of the mean of all updates, in units of C. "
    f"uploads: vectors that all clients send. {_SPECS_OWN}"
)


def display_frontier(found: Frontier) -> Iterator[RenderableType]:
    """A table of what meets the target, what its columns mean, and what was refused."""
    reader = "the server" if found.view.value == "server" else "a third party"
    by_record = any(one.gradient_noise is not None for one in found.combinations)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"at ε = {found.target_epsilon:g} against {reader}, δ = {found.delta:g}",
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    columns = [
        "",
        "rounds",
        "steps" if by_record else "clients",
        *(["B"] if by_record else []),
        "σ",
    ]
    columns += ["gradient", "client", "training"] if by_record else ["noise"]
    columns += ["uploads", *(["records"] if by_record else [])]
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for one in found.combinations:
        mark, style = (">", "bold") if one.is_the_specs else ("", None)
        table.add_row(mark, *_cells(one, by_record), style=style)
    if protects_nothing(found.target_epsilon):
        yield facts([unprotected_row("the server" if reader == "the server" else "anyone")])
    yield table
    yield Text(_RECORD_NOTE if by_record else _CLIENT_NOTE, style="dim")
    reasons: dict[str, list[str]] = {}
    for refused in found.refused:
        setting = ", ".join(
            f"{key.rpartition('.')[2]} {value}" for key, value in refused.values.items()
        )
        reasons.setdefault(refused.reason, []).append(setting)
    for reason, settings in reasons.items():
        yield Text(f"not shown: {'; '.join(settings)}: {reason}")


def _cells(one: Combination, by_record: bool) -> list[str]:
    noise = [f"{one.noise_multiplier:.4g}"]
    if not by_record:
        shown = [str(one.rounds), str(one.clients_per_round), *noise]
        return [*shown, f"{one.training_noise:.3g}", f"{one.uploads:,}"]
    return [
        str(one.rounds),
        str(one.local_steps),
        f"{one.batch_size:g}",
        *noise,
        f"{one.gradient_noise:.3g}",
        f"{one.client_noise:.3g}",
        f"{one.training_noise:.3g}",
        f"{one.uploads:,}",
        f"{one.records:,.0f}",
    ]
