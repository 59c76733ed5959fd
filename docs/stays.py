"""Writes the table of docs/analyst.md: 20,000 made-up hospital stays, as Excel saves them.

    python docs/stays.py FOLDER [ROWS]

`stays.csv` has a BOM, semicolons, decimal commas, empty cells and NA; 8 % of the stays end badly.
`dictionary.csv` says what is known of its columns without looking at a row.
"""

from __future__ import annotations

import csv
import math
import random
import sys
from datetime import date, timedelta
from pathlib import Path

SEED = 20
HOSPITALS = ("Aalen", "Bergheim", "Celle", "Detmold", "Emden", "Fulda", "Gotha")
WARDS = ("cardiology", "surgery", "geriatrics", "oncology", "neurology", "trauma")
DICTIONARY = (
    ("name", "kind", "low", "high", "categories"),
    ("patient_id", "identifier", "", "", ""),
    ("age", "number", "0", "110", ""),
    ("sex", "category", "", "", "f|m"),
    ("ward", "category", "", "", "|".join(WARDS)),
    ("crp", "number", "0", "300", ""),
    ("creatinine", "number", "0", "6", ""),
    ("smoker", "boolean", "", "", ""),
    ("admitted", "date", "2019-01-01", "2024-12-31", ""),
)


def stay(draw: random.Random) -> list[str]:
    """One row."""
    age = min(max(draw.gauss(62, 17), 18), 104)
    crp, creatinine = math.exp(draw.gauss(2.3, 1.1)), math.exp(draw.gauss(0.05, 0.4))
    ward, smoker = draw.randrange(len(WARDS)), draw.random() < 0.27
    risk = -4.9 + 0.06 * (age - 62) + 0.85 * (math.log(crp) - 2.3) + 1.6 * (creatinine - 1)
    risk += 0.7 * smoker + (0.3, -0.4, 0.9, 0.6, 0.0, -0.9)[ward] + 0.9
    died = draw.random() < 1 / (1 + math.exp(-risk))
    day = date(2019, 1, 1) + timedelta(days=draw.randrange(2190))
    cells = [
        f"P{draw.randrange(16_000):05d}",
        HOSPITALS[min(int(draw.expovariate(0.5)), len(HOSPITALS) - 1)],
        f"{age:.0f}",
        draw.choice("fm"),
        WARDS[ward],
        f"{crp:.1f}".replace(".", ","),
        f"{creatinine:.2f}".replace(".", ","),
        "yes" if smoker else "no",
        f"{day:%d.%m.%Y}",
    ]
    # Tests that nobody ordered, and questions that nobody asked.
    for place, share, word in ((5, 0.12, ""), (6, 0.06, "NA"), (7, 0.2, ""), (2, 0.01, "")):
        if draw.random() < share:
            cells[place] = word
    return [*cells, str(int(died))]


def write(folder: Path, rows: int = 20_000) -> None:
    """Write both files."""
    draw = random.Random(SEED)
    names = [name for name, *_ in DICTIONARY[1:]]
    with (folder / "stays.csv").open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow([names[0], "hospital", *names[1:], "outcome"])
        table.writerows(stay(draw) for _ in range(rows))
    with (folder / "dictionary.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(DICTIONARY)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
