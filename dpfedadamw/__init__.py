"""Differentially private federated learning that can be believed.

A YAML spec becomes a plan, the plan a run, the run leaves evidence, an independent auditor (package
``audit``) judges the evidence, and a signed report (package ``reports``) stands beside the model.
"""

from __future__ import annotations

__version__ = "0.1.0"
