"""How a division among clients is shown and drawn."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from dpfedadamw.cli import partition
from dpfedadamw.cli.partition import Division, as_table
from dpfedadamw.cli.terminal import Stop
from dpfedadamw.spec import task_of
from tests.dpfedadamw.cli.shown import cells
from tests.runs import small_spec

SIZES = np.array([30, 10, 60])
COUNTS = np.array([[30, 0], [4, 6], [0, 60]])


def drawn(division: Division, path: Path) -> list[str]:
    """The texts of a picture."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        partition._save(division, "a-spec", path)
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


def test_a_picture_names_its_axes_and_every_client(tmp_path: Path) -> None:
    sizes, labels = tmp_path / "sizes.svg", tmp_path / "labels.svg"
    of_sizes = drawn(Division(SIZES, None, 5, 0), sizes)
    of_labels = drawn(Division(SIZES, COUNTS, 5, 0), labels)
    assert {"client", "training records", "0", "1", "2"} <= set(of_sizes)
    assert {"client", "label", "training records", "0", "1", "2"} <= set(of_labels)
    for texts in (of_sizes, of_labels):
        assert any(text.startswith("a-spec: ") for text in texts)
    # Who holds which labels is private, and the picture is kept and says so.
    assert any("private" in text for text in of_labels)
    assert not any("private" in text for text in of_sizes)
    assert stat.S_IMODE(labels.stat().st_mode) == 0o600
    assert stat.S_IMODE(sizes.stat().st_mode) != 0o600


def test_a_table_has_every_client_s_records_and_share() -> None:
    rows = cells(as_table(Division(SIZES, None, 1500, 0), "a-spec"))
    assert rows[:2] == [["a-spec: records per client"], ["client", "records", "share"]]
    assert [row[:3] for row in rows[2:5]] == [
        ["0", "30", "30.0%"],
        ["1", "10", "10.0%"],
        ["2", "60", "60.0%"],
    ]
    # A bar of 24 characters is the largest client's.
    assert [row[3] for row in rows[2:5]] == ["█" * 12, "█" * 4, "█" * 24]
    assert rows[5][0].startswith(
        "100 training records of 3 clients: median 30, smallest 10, largest 60"
    )
    assert "1,500 records are held out" in rows[6][0]
    assert "validation" not in rows[6][0]
    held = cells(as_table(Division(SIZES, None, 1500, 25), "a-spec"))[6][0]
    assert "25 are a public validation set" in held


def test_labels_are_counted_by_client_where_they_fit() -> None:
    rows = cells(as_table(Division(SIZES, COUNTS, 5, 0), "a-spec"))
    assert rows[1] == ["client", "records", "share", "0", "1"]
    held = [" ".join(row[3:]).split() for row in rows[2:5]]
    assert held == [["30", "·"], ["4", "6"], ["·", "60"]]
    few, many = (np.ones((3, labels), dtype=np.int64) for labels in (20, 21))
    said = [str(cells(as_table(Division(SIZES, counts, 5, 0), "s"))) for counts in (few, many)]
    assert ["too many" in text for text in said] == [False, True]
    assert "21 labels" in said[1]


@pytest.mark.parametrize(("clients", "left_out"), [(60, 0), (61, 1), (100, 40)])
def test_of_many_clients_the_largest_and_the_smallest_are_shown(
    clients: int, left_out: int
) -> None:
    sizes = np.arange(1, clients + 1)
    rows = cells(as_table(Division(sizes, None, 5, 0), "a-spec"))[2:-2]
    shown = [int(row[0]) for row in rows if row[0] != "…"]
    if not left_out:
        assert shown == list(range(clients))
        return
    by_size = list(range(clients))[::-1]
    assert shown == by_size[:30] + by_size[-30:]
    assert rows[30] == ["…", "…", "…", f"{left_out} more"]


@pytest.mark.parametrize("kind", ["regression", "multi_label", "causal_lm"])
def test_labels_are_counted_where_each_record_has_one_class(kind: str) -> None:
    with pytest.raises(Stop) as caught:
        partition.show(small_spec().replace(task=task_of({"kind": kind})), True, None, False)
    assert caught.value.exit_code == 2
    said = f"--labels: counts classes, but task.kind is {kind}; leave it out"
    assert caught.value.message == said
