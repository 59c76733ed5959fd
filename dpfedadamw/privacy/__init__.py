"""The trusted core: if these files are right, a run's claim holds, whatever else the engine does.

Sampler, clipper, noise and accounting event come from one plan and cannot disagree.
"""

from __future__ import annotations
