"""Commands that write reports get each figure drawn once, as the reports' own tests do."""

from __future__ import annotations

from tests.reports import drawings

each_figure_once = drawings.each_figure_once
