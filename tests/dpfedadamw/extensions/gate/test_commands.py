"""``gate``: what an operator types, and one line for what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfedadamw.cli import display
from dpfedadamw.extensions.gate import book, spending, verification
from dpfedadamw.extensions.gate.door import Gate
from dpfedadamw.extensions.gate.errors import Refused
from dpfedadamw.extensions.gate.settings import read
from dpfedadamw.storage import disk
from reports.render import pdf
from reports.signatures import pades
from tests.dpfedadamw.extensions.gate.replies import ask, facts_of
from tests.runs import call


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": np.zeros((3, 2), "f4")}, path)
    return path


def words(tmp_path, file, **changes):
    chosen = {
        "unit": "record", "shards": 5, "clip": 0.5, "epsilon": 2.0, "delta": 1e-5, "releases": 4,
        "model": file, "anchor": tmp_path / "anchor.json", **changes,
    }  # fmt: skip
    return [part for name, value in chosen.items() for part in (f"--{name}", str(value))]


def told(capsys, *arguments):
    assert call("gate", *map(str, arguments), "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_gate_that_was_begun_allows_as_many_releases_as_were_asked_for(tmp_path, model, capsys):
    made = told(capsys, "init", tmp_path / "gate", *words(tmp_path, model))
    settings = tmp_path / "gate" / "gate.yaml"
    assert made == {
        "settings": str(settings), "noise_multiplier": spending.noise_for(4, 2.0, 1e-5),
        "releases": 4, "key": book.load_key().fingerprint,
    }  # fmt: skip
    assert len(settings.read_text("utf-8").splitlines()) <= 12
    assert told(capsys, "show", settings)["releases_left"] == 4
    gate = Gate.open(settings)
    for number in range(4):
        ask(gate, str(number), job=f"job-{number % 2}")
    with pytest.raises(Refused):
        ask(gate, "5")
    shown = told(capsys, "show", settings)
    assert (shown["releases"], shown["releases_left"]) == (4, 0)
    assert 1.99 < shown["epsilon"] <= 2.0
    assert {job: one["releases"] for job, one in shown["jobs"].items()} == {"job-0": 2, "job-1": 2}
    alone = spending.epsilon_of([made["noise_multiplier"]] * 2, 1e-5)
    assert shown["jobs"]["job-0"]["epsilon_alone"] == alone
    assert (shown["unit"], shown["budget"]) == ("record", {"epsilon": 2.0, "delta": 1e-5})
    assert set(shown) == {
        "unit", "budget", "epsilon", "releases", "releases_left", "ends", "jobs",
    }  # fmt: skip
    checked = told(capsys, "verify", settings)
    assert checked["holds"]
    assert [one["check"] for one in checked["checks"]] == [
        "chain", "signature", "sensitivity", "noise", "budget", "settings", "dp-accounting",
    ]  # fmt: skip


def test_a_gate_whose_settings_could_not_be_written_is_begun_by_the_same_command(
    tmp_path, model, capsys, monkeypatch
):
    folder, whole = tmp_path / "gate", disk.write_atomically

    def full(path, *given):
        if path.name == "gate.yaml":
            raise OSError(28, "No space left on device")
        whole(path, *given)

    monkeypatch.setattr(disk, "write_atomically", full)
    begin = ("init", str(folder), *words(tmp_path, model))
    assert call("gate", *begin) == 2
    said = capsys.readouterr().err.replace("\n", "")
    assert f"{folder / 'gate.yaml'}: cannot be written (No space left on device)" in said
    assert not (folder / "gate.yaml").exists()
    monkeypatch.setattr(disk, "write_atomically", whole)
    told(capsys, *begin)
    assert told(capsys, "verify", folder / "gate.yaml")["holds"]
    gate = Gate.open(folder / "gate.yaml")
    ask(gate)
    # With a release in the ledger it is no beginning any more.
    (folder / "gate.yaml").unlink()
    assert call("gate", *begin) == 2
    assert "its budget is spent once" in " ".join(capsys.readouterr().err.split())


def test_a_ledger_beyond_its_budget_does_not_verify(gate, capsys):
    for number in range(3):
        ask(gate, str(number))
    settings = gate.settings.path
    assert call("gate", "verify", str(settings)) == 0
    settings.write_text(settings.read_text("utf-8").replace("epsilon: 1.8", "epsilon: 1.0"))
    assert call("gate", "verify", str(settings), "--json") == 1
    checks = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))["checks"]
    assert [one["check"] for one in checks if not one["holds"]] == ["settings"]


def test_what_a_command_prints_are_its_names_and_values(gate, tmp_path, model, capsys):
    assert call("gate", "init", str(tmp_path / "other"), *words(tmp_path, model)) == 0
    told = facts_of(capsys)
    assert told["settings"].endswith("gate.yaml")
    noise = spending.noise_for(4, 2.0, 1e-5)
    assert told["noise multiplier"] == f"{noise:g}, for 4 releases at ε = 2"
    assert told["signed by"] == book.load_key().fingerprint
    assert told["anchor"].replace(" ", "").endswith("/anchor.json")
    settings = str(gate.settings.path)
    assert call("gate", "show", settings) == 0
    empty = facts_of(capsys)
    assert empty["protects"] == "one record, added or removed"
    assert empty["budget"] == "ε = 1.8 at δ = 1e-05"
    assert (empty["spent"], empty["left"]) == ("ε = 0, 0 releases", "3 releases")
    ask(gate, job="a-job")
    assert call("gate", "show", settings) == 0
    shown = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in shown if line.strip().startswith("a-job")]
    assert row[1:3] == ["1", display.epsilon_text(spending.epsilon_of([4.0], 1e-5))]
    (head,) = [line for line in shown if "alone" in line]
    assert head.split() == ["job", "releases", "ε", "alone", "first", "last"]
    assert call("gate", "verify", settings) == 0
    shown = capsys.readouterr().out
    assert {"check", "result", "found"} < set(shown.split())
    assert ("holds" in shown, "DOES NOT" in shown) == (True, False)
    gate.settings.anchor.unlink()
    assert call("gate", "verify", settings) == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_the_end_of_a_budget_is_told_where_a_rate_is_known(begin, monkeypatch, capsys):
    gate = begin()
    monkeypatch.setattr(verification, "_end", lambda charges, left, at: "2099-01-01 00:00 UTC")
    assert call("gate", "show", str(gate.settings.path)) == 0
    assert facts_of(capsys)["left"] == (
        "3 releases, until 2099-01-01 00:00 UTC at the last 30 days' rate"
    )
    for number in range(3):
        ask(gate, str(number))
    assert call("gate", "show", str(gate.settings.path)) == 0
    assert facts_of(capsys)["left"] == "0 releases"


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("epsilon", 1e-6, 1e6), ("delta", 1e-10, 0.5), ("releases", 1, 100_000), ("shards", 1, 4096)],
)
def test_an_option_may_lie_from_its_least_to_its_most(
    tmp_path, model, capsys, monkeypatch, name, least, most
):
    monkeypatch.setattr(spending, "noise_for", lambda *asked: 4.0)
    for number, value in enumerate((least, most)):
        folder = tmp_path / str(number)
        anchor = folder / "anchor.json"
        made = words(tmp_path, model, anchor=anchor, **{name: value})
        assert told(capsys, "init", folder, *made)["noise_multiplier"] == 4.0
    for beyond in (0, most * 1.01 if name in ("epsilon", "delta") else most + 1):
        wrong = words(tmp_path, model, anchor=tmp_path / "a", **{name: beyond})
        assert call("gate", "init", str(tmp_path / "wrong"), *wrong) == 2
        assert f"--{name}" in capsys.readouterr().err


@pytest.mark.parametrize("unit", ["person", "site"])
def test_a_gate_may_protect_a_person_or_the_whole_site(tmp_path, model, capsys, unit):
    made = words(tmp_path, model, unit=unit, shards=1)
    told(capsys, "init", tmp_path / "gate", *made[:2], *made[4:])
    found = read(tmp_path / "gate" / "gate.yaml")
    assert (found.unit, found.shards) == (unit, 1)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, model, capsys):
    (tmp_path / "file").write_text("")
    assert call("gate", "init", str(tmp_path / "file" / "gate"), *words(tmp_path, model)) == 2
    assert "file/gate: cannot be written (Not a directory)" in capsys.readouterr().err.replace(
        "\n", ""
    )


def test_a_key_that_is_not_there_is_one_line(gate, capsys, tmp_path):
    for name in ("verify", "report"):
        span = ("--from", "2026-01-01", "--to", "2026-01-02") if name == "report" else ()
        asked = ("gate", name, str(gate.settings.path), *span, "--key", str(tmp_path / "none.pub"))
        assert call(*asked) == 2
        assert "name the gate's public key with --key" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "none"}, "cannot be read as a .safetensors file"),
        ({"unit": "site"}, "must be 1 where the unit is the site"),
        ({"clip": 0}, "clip: found 0.0; must be from"),
        ({"epsilon": 0}, "--epsilon, --delta: must be above 0"),
        ({"epsilon": 1e-6, "releases": 100000}, "do not fit into ε"),
    ],
)
def test_a_wrong_option_is_one_line_and_begins_nothing(tmp_path, model, capsys, changes, said):
    assert call("gate", "init", str(tmp_path / "gate"), *words(tmp_path, model, **changes)) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "gate").exists()


def test_a_gate_is_not_begun_twice(tmp_path, model, capsys):
    told(capsys, "init", tmp_path / "gate", *words(tmp_path, model))
    assert call("gate", "init", str(tmp_path / "gate"), *words(tmp_path, model)) == 2
    assert "a gate is begun once" in capsys.readouterr().err


def test_rows_are_divided_by_the_command(tmp_path, model, capsys):
    told(capsys, "init", tmp_path / "gate", *words(tmp_path, model))
    table = tmp_path / "t.csv"
    table.write_text("a,b\n" + "".join(f"{number},x\n" for number in range(100)), encoding="utf-8")
    found = told(capsys, "shards", tmp_path / "gate" / "gate.yaml", table, tmp_path / "out")
    assert sum(found["rows"]) == 100
    assert len(found["rows"]) == 5
    assert found["folder"] == str(tmp_path / "out")
    again = ("gate", "shards", str(tmp_path / "gate" / "gate.yaml"), str(table))
    assert call(*again, str(tmp_path / "again")) == 0
    said = f"again: 100 rows in 5 shards of {min(found['rows'])} to {max(found['rows'])}"
    assert said in capsys.readouterr().out.replace("\n", " ")


def test_a_missing_gate_is_one_line(tmp_path, capsys):
    for name in ("show", "verify"):
        assert call("gate", name, str(tmp_path / "gate.yaml")) == 2
        assert "gate.yaml: cannot be read" in capsys.readouterr().err


def test_audit_judges_a_gate_s_folder_by_the_key_and_the_anchor_that_it_is_given(gate, capsys):
    ask(gate)
    ledger, anchor = gate.settings.ledger, gate.settings.anchor
    given = ("--key", str(ledger / "gate.pub"), "--anchor", str(anchor))
    for folder in (ledger, ledger.parent):
        assert call("audit", str(folder), *given, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["verdict"] == "PASS"
        assert {one["name"] for one in found["checks"]} >= {"chain", "signature", "noise", "budget"}
    assert call("audit", str(ledger), *given) == 0
    assert "overall: PASS" in capsys.readouterr().out
    anchor.write_bytes(b"{}")
    assert call("audit", str(ledger), *given, "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "NOT VERIFIED"


def test_a_page_is_private_named_by_its_days_and_says_what_holds_without_an_anchor(
    gate, tmp_path, monkeypatch, capsys
):
    ask(gate)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pdf, "typeset", lambda _: b"pages of ")
    monkeypatch.setattr(pades, "sign", lambda pages, _, name, authority: pages + name.encode())
    span = ("--from", "2026-01-02", "--to", "2099-03-04")
    asked = ("gate", "report", str(gate.settings.path), *span, "--json")
    for more, name in (((), "gate-2026-01-02-2099-03-04.pdf"), (("--out", "q.pdf"), "q.pdf")):
        assert call(*asked, *more) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["report"], told["verdict"], told["releases"]) == (name, "PASS", 1)
        assert (told["from"], told["to"]) == ("2026-01-02", "2099-03-04")
        assert (tmp_path / name).read_bytes() == b"pages of " + name.encode()
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    gate.settings.anchor.unlink()
    assert call(*asked) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "NOT VERIFIED"
