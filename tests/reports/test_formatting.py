"""How values are printed."""

from __future__ import annotations

from reports.formatting import settings


def test_settings_are_told_by_dotted_names_in_their_order():
    values = {
        "rounds": 20,
        "model": {"hidden": [], "bias": False},
        "privacy": {"sampling": {"secure": True, "rate": None, "kinds": ["poisson", "full"]}},
    }
    assert settings(values) == [
        ("rounds", "20"),
        ("model.hidden", "none"),
        ("model.bias", "no"),
        ("privacy.sampling.secure", "yes"),
        ("privacy.sampling.rate", "none"),
        ("privacy.sampling.kinds", "poisson, full"),
    ]
