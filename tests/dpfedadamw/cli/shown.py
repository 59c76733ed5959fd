"""What a terminal shows, as the texts of its lines."""

from __future__ import annotations

import re

from rich.console import Console, RenderableType

_FRAME = " │╭╮╰╯─━"


def cells(*shown: RenderableType, width: int = 200) -> list[list[str]]:
    """The texts of each line, which two spaces part, without frames and without empty lines."""
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(*shown)
    lines = [line.strip(_FRAME) for line in captured.get().splitlines()]
    return [re.split(" {2,}", line) for line in lines if line]
