"""``new``: a project to start from, with a module, its training, its service and a test."""

from __future__ import annotations

COMMANDS = {
    "new": ("Write a project to start from: a spec, a module, its training, a service and a test."),
}
