"""A gate at a site's door: what another framework's job sends out is noised and charged here."""

from __future__ import annotations
