"""How every figure looks: colours, typeface and lines, shared by the reports' and comparisons'.

Colours are the Okabe-Ito palette, which readers with colour-blindness can tell apart; figures give
each series a dash and a marker of its own besides, so grey prints read the same.
"""

from __future__ import annotations

from typing import Any

BLUE, ORANGE, GREEN, INK, MUTED = "#0072B2", "#D55E00", "#009E73", "#1B2A38", "#6B7884"
# matplotlib measures with STIX, which it ships; the page's typeface has nearly the same widths.
MEASURED_FACE, PAGE_FACE = "STIXGeneral", "Libertinus Serif"
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpfedadamw",
    "font.family": [MEASURED_FACE, "DejaVu Sans"],
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E3E8EC",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "axes.unicode_minus": True,
    # A name with dollar signs is a name, not a formula.
    "text.parse_math": False,
}

# How a drawing that stands by itself looks: what a comparison draws, and figures of mechanism.
FORMATS = ("pdf", "svg", "png")
# A colour, a dash and a marker for each series.
LOOKS: tuple[tuple[str, Any, str], ...] = (
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    (GREEN, "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#E69F00", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#56B4E9", (0, (1, 1)), "P"),
    (INK, (0, (7, 2)), "X"),
)
# Type 42 embeds the face whole, as journals ask; outlines make an SVG look the same everywhere.
STANDALONE = {**STYLE, "svg.fonttype": "path", "pdf.fonttype": 42, "savefig.dpi": 200}
# Without a date and a creator the bytes depend on the data alone.
METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
