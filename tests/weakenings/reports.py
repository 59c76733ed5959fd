"""Weakenings of what people read and verify: `reports/`."""

from __future__ import annotations

from tests.weakenings.weakening import Weakening

WEAKENINGS = (
    Weakening(
        "other-participants-as-third-parties",
        "reports/content/units/record.py",
        """                who="The other participants",
                protected=held,
                epsilon=server,""",
        """                who="The other participants",
                protected=held,
                epsilon=least(known.get("third_party"), server),""",
        "page one gives other participants the smaller ε of those who see models only",
        ("tests/reports/content/test_front.py",),
    ),
    Weakening(
        "seeds-paired-by-their-order",
        "reports/paired.py",
        "return [first[seed] - other[seed] for seed in common]",
        "return [a - b for a, b in zip(first.values(), other.values(), strict=False)]",
        "a seed that failed in one method pairs all others with the wrong ones",
        ("tests/reports/test_paired.py",),
    ),
    Weakening(
        "no-correction-for-many-comparisons",
        "reports/paired.py",
        "LEVEL / (len(chances) - index)",
        "LEVEL",
        "of many methods that are alike, one is soon called better",
        ("tests/reports/test_paired.py",),
    ),
)
