"""A new project trains, is served by HTTP and passes its own test, as it is written."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dpfedadamw import api
from dpfedadamw import spec as specs
from dpfedadamw.extensions.starter.templates import SERVE, files, records
from dpfedadamw.preprocessing import ImagePreprocessing
from dpfedadamw.run.prediction import Served
from dpfedadamw.tasks import CLASSES
from tests.runs import call


def ran(folder: Path, *words: str) -> str:
    told = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-2000:]
    return told.stdout


ASKED = """
import json, threading, urllib.error, urllib.request
from http.server import HTTPServer
import serve

server = HTTPServer(("127.0.0.1", 0), serve.Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"
def asked(body):
    try:
        return json.loads(urllib.request.urlopen(address, json.dumps(body).encode()).read())
    except urllib.error.HTTPError as error:
        return [error.code, json.loads(error.read())]
row = {"age": 0.9, "pressure": 0.5, "marker": 0.9}
print(json.dumps([asked([row]), asked([{"age": 1}]), asked(3), asked([])]))
"""


@pytest.mark.slow
def test_a_new_project_runs_as_it_is_written(tmp_path, capsys):
    folder = tmp_path / "my project"
    assert call("new", str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"] == sorted(p.name for p in folder.iterdir())
    said = ran(folder, "train.py")
    assert said.startswith("PASS epsilon")
    assert "test_auc" in said
    ran(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    (answered,), *refused = json.loads(ran(folder, "-c", ASKED))
    assert set(answered) == {"no", "yes"}
    assert answered["yes"] > 0.5
    assert [code for code, _ in refused] == [400, 400, 400]
    assert (folder / "model" / "model.pt2").is_file()


@pytest.mark.parametrize(
    "rows",
    [
        "[]", "3", "no JSON", "[" * 100_000, '[{"age": 1}]', '[[1, 2, 3]]',
        *(
            f'[{{"age": {cell}, "pressure": 0.5, "marker": 0.9}}]'
            for cell in ("null", "NaN", "Infinity", "1e300", "1" + "0" * 400, '"old"', "[1, 2]")
        ),
    ],
    ids=lambda rows: rows[:20],
)  # fmt: skip
def test_rows_that_the_service_cannot_read_are_refused_and_it_answers_the_next(rows, monkeypatch):
    read_by = {"dataset": "table", "numbers": ["age", "pressure", "marker"]}
    plain = (CLASSES, ImagePreprocessing(), ("no", "yes"), read_by, (3,))
    served = Served(torch.nn.Linear(3, 2).eval(), *plain)
    monkeypatch.setattr(api, "predictor", lambda *_: served)
    monkeypatch.setitem(sys.modules, "nets", SimpleNamespace(Net=lambda: None))
    exec(SERVE, written := {"__name__": "serve"})

    class Request(written["Handler"]):
        """One request without a connection."""

        def __init__(self, body: str) -> None:
            self.rfile, self.wfile = io.BytesIO(body.encode()), io.BytesIO()
            self.headers, self.codes = {"Content-Length": len(body)}, []

        def send_response(self, code: int) -> None:
            self.codes.append(code)

        def send_header(self, *_: str) -> None: ...

        def end_headers(self) -> None: ...

    good = '[{"age": 0.9, "pressure": 0.5, "marker": 0.9}]'
    answered = []
    for body in (rows, good):
        request = Request(body)
        request.do_POST()
        answered.append((request.codes, json.loads(request.wfile.getvalue())))
    (refused, said), (code, found) = answered
    assert (refused, code) == ([400], [200])
    assert said["error"].startswith("rows need numbers: age, pressure, marker (")
    assert sum(found[0].values()) == pytest.approx(1.0)


FILES = {"nets.py", "records.csv", "serve.py", "spec.yaml", "test_serve.py", "train.py"}


def test_new_writes_its_files_and_names_each_to_a_person_and_to_a_program(tmp_path, capsys):
    assert call("new", str(tmp_path / "read")) == 0
    printed = capsys.readouterr().out
    assert {*printed.split()} >= FILES
    assert "train.py; python -m pytest; python serve.py" in " ".join(printed.split())
    assert call("new", str(tmp_path / "parsed"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"folder": str(tmp_path / "parsed"), "files": sorted(FILES)}
    for folder in ("read", "parsed"):
        assert {one.name for one in (tmp_path / folder).iterdir()} == FILES


def test_a_folder_in_use_is_refused_and_nothing_is_written(tmp_path, capsys):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    assert call("new", str(tmp_path / "used")) == 2
    assert "exists and is not empty; name a new folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["my project", "--", "é" * 90, "2026"])
def test_a_new_project_has_a_good_spec_and_python_whatever_its_name(tmp_path, name):
    folder = tmp_path / "of" / name
    assert call("new", "--", str(folder)) == 0
    specs.load(folder / "spec.yaml", ["data.path=records.csv", "model={name: module}"])
    for file, text in files("x").items():
        if file.endswith(".py"):
            compile(text, file, "exec")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("my project", "my-project"), ("--", "project"), ("._-a.b_c-", "a.b_c-"), ("é", "project"),
        ("a" * 70, "a" * 64), ("_" * 70 + "b", "b"), ("2026", "2026"),
    ],
)  # fmt: skip
def test_a_new_projects_spec_has_the_folders_name_as_far_as_a_spec_may(folder, name, tmp_path):
    place = tmp_path / folder
    place.mkdir()
    assert call("new", "--json", "--", str(place)) == 0
    changes = ["data.path=records.csv", "model={name: module}"]
    assert specs.load(place / "spec.yaml", changes).name == name


def test_a_file_a_place_in_a_run_and_one_that_cannot_be_written_are_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert call("new", str(tmp_path / "file")) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert call("new", str(tmp_path / "file" / "in")) == 2
    assert "file/in: cannot be written (Not a directory)" in capsys.readouterr().err
    run = tmp_path / "run"
    run.mkdir()
    for name in ("spec.yaml", "ledger.jsonl"):
        (run / name).touch()
    assert call("new", str(run / "a" / "b")) == 2
    assert "is inside a signed run's folder" in capsys.readouterr().err
    assert {path.name for path in run.iterdir()} == {"spec.yaml", "ledger.jsonl"}


def test_the_made_up_rows_are_the_same_every_time_of_four_equal_sites_and_can_be_learnt():
    text = records()
    assert text == records()
    assert text.endswith("\n")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["site", "age", "pressure", "marker", "outcome"]
    assert Counter(row["site"] for row in rows) == {f"site-{number}": 150 for number in range(4)}
    # The first numbers of Python's generator from seed 0.
    assert [rows[0][name] for name in ("age", "pressure", "marker")] == ["0.844", "0.758", "0.421"]
    told = {
        outcome: [
            float(row["age"]) + float(row["marker"]) for row in rows if row["outcome"] == outcome
        ]
        for outcome in ("yes", "no")
    }
    assert sum(map(len, told.values())) == 600
    # Of uniform numbers, a third has a sum above 1.2; the noise lets some be told the other way.
    assert 0.25 < len(told["yes"]) / 600 < 0.4
    assert min(told["yes"]) < 1.15
    assert max(told["no"]) > 1.25
    wrong = sum(one <= 1.2 for one in told["yes"]) + sum(one > 1.2 for one in told["no"])
    assert 0.05 < wrong / 600 < 0.18
