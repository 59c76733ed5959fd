"""Rounds of federated training: clients, messages, server."""

from __future__ import annotations
