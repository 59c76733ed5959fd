"""Served predictions: those of the run on its own test rows, bit for bit, whatever the model."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpfedadamw import api, cli
from dpfedadamw import spec as specs
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.models.own.fitting import handed_over
from dpfedadamw.run import evaluation, prediction
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.export import export
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.tasks import Task
from tests.runs import begin, small_spec

COLUMNS = ("age", "ward", "pressure", "crp")
TORCH_ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dpfedadamw", "audit", "reports", "specs"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import numpy as np
import torch

torch.set_num_threads(1)
for folder in sys.argv[1:]:
    model = torch.export.load(f"{folder}/model.pt2").module()
    with torch.no_grad():
        records = torch.from_numpy(np.load(f"{folder}/records.npy"))
        # As many as there are, and one by itself.
        found = [model(records), model(records[:1])]
    np.save(f"{folder}/answers.npy", torch.cat(found).numpy())
"""


class Recurrent(nn.Module):
    """A GRU over five steps of two numbers."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.steps, self.head = nn.GRU(2, 5, batch_first=True), nn.Linear(5, classes)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self.head(self.steps(records)[0][:, -1])


class Tabular(nn.Module):
    """A table's row: an embedding of the ward beside the numbers."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.wards, self.head = nn.Embedding(4, 3), nn.Linear(6, outputs)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        ward = self.wards(rows[:, 1].long().clamp(0, 3))
        return self.head(torch.cat([rows[:, :1], rows[:, 2:], ward], 1))


class TwoInputs(nn.Module):
    """Two parts of a record, each with a branch of its own."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 4), nn.Linear(2, 4)
        self.head = nn.Linear(8, outputs)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        inputs = {"left": rows[:, :2], "right": rows[:, 2:]}
        branches = [self.left(inputs["left"]).relu(), self.right(inputs["right"]).tanh()]
        return self.head(torch.cat(branches, 1))


class Tagger(nn.Module):
    """A class for each token."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(12, 4), nn.Linear(4, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(tokens))


class Reader(nn.Module):
    """Two classes of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(300, 4), nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        known = (tokens != 0)[:, :, None]
        return self.head((self.words(tokens) * known).sum(1) / known.sum(1).clamp(min=1))


class Main(nn.Module):
    """As a class of a script is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(rows)


Main.__module__ = "__main__"


@dataclass(frozen=True)
class Case:
    """A model: its sections of a spec, its rows, and the module where one is handed over."""

    model: Mapping[str, Any]
    rows: str = "table"
    task: str = "classification"
    module: Callable[[], nn.Module] | None = None
    marks: tuple[Any, ...] = field(default=())


def own(module: Callable[[], nn.Module], rows: str = "table", task: str = "classification") -> Case:
    keys = {"vocabulary": 12, "length": 5} if task == "token_classification" else {}
    keys = {"vocabulary": 300, "length": 6} if rows == "texts" else keys
    return Case({"name": "module", **keys}, rows, task, module)


SMALL_VIT = {"name": "vit", "patch": 4, "width": 8, "depth": 1, "heads": 2}
CASES = {
    "mlp": Case({"name": "mlp", "hidden": [8]}, "images"),
    "cnn": Case({"name": "simple-cnn", "hidden": 8}, "images"),
    "resnet": Case({"name": "resnet18"}, "images", marks=(pytest.mark.slow,)),
    "vit": Case(SMALL_VIT, "images"),
    "gru": own(Recurrent, "sequences"),
    "tabular with embeddings": own(Tabular),
    "LoRA encoder": Case({"name": "transformers"}, "images"),
    "own module in __main__": own(Main),
    "several inputs": own(TwoInputs),
    "regression": Case({"name": "mlp", "hidden": [4]}, "table", "regression"),
    "several labels": Case({"name": "mlp", "hidden": []}, "table", "multi_label"),
    "tokens": own(Tagger, "tokens", "token_classification"),
    "texts": own(Reader, "texts"),
}


def records_of(kind: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if kind == "images":
        return rng.integers(0, 256, (count, 1, 8, 8)).astype(np.uint8), rng.integers(0, 3, count)
    if kind == "sequences":
        return rng.normal(size=(count, 5, 2)).astype(np.float32), rng.integers(0, 3, count)
    tokens = rng.integers(1, 12, (count, 5))
    tokens[:, 3:] *= rng.integers(0, 2, (count, 1))
    tags = np.where(tokens == 0, -100, tokens % 3)
    return np.stack([tokens, np.zeros_like(tokens)], 1).astype(np.int32), tags


def write_table(path: Path, count: int, seed: int) -> None:
    """Rows whose columns stand in no particular order, with one that nobody reads."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["crp", "age", "outcome", "note", "ward", "pressure", "risk", "cost"])
        for _ in range(count):
            age, crp = rng.uniform(0, 1), rng.normal()
            sick = "yes" if age + crp > 0.5 else "no"
            risk = int(age > 0.3)
            note = " ".join(rng.choice(["well", "ill", "pale", "tired"], 3))
            lines.writerow(
                [crp, age, sick, note, rng.integers(0, 4), rng.normal(), risk, age - crp]
            )


def section(case: Case, folder: Path) -> dict[str, Any]:
    """The spec's section data, and the file of the test rows, which is what is served."""
    keys = {"cache": str(folder / "cache"), "clients": 4, "partition": {"kind": "iid"}}
    if case.rows in ("table", "texts"):
        write_table(folder / "train.csv", 160, 1)
        write_table(folder / "rows.csv", 41, 2)
        targets = {"regression": ["cost"], "multi_label": ["outcome_yes", "risk"]}.get(case.task)
        if case.task == "multi_label":
            for name in ("train.csv", "rows.csv"):
                text = (folder / name).read_text().replace(",outcome,", ",outcome_yes,")
                (folder / name).write_text(text.replace(",yes,", ",1,").replace(",no,", ",0,"))
        told = {"targets": targets} if targets else {"label": "outcome"}
        places = {"path": str(folder / "train.csv"), "test_path": str(folder / "rows.csv")}
        read = {"numbers": list(COLUMNS)} if case.rows == "table" else {"text": ["note"]}
        return {"dataset": "table", **places, **read, **told, **keys}
    x_train, y_train = records_of(case.rows, 160, 1)
    x_test, y_test = records_of(case.rows, 41, 2)
    np.savez(folder / "rows.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return {"dataset": "arrays", "path": str(folder / "rows.npz"), **keys}


def lora(folder: Path) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    torch.manual_seed(5)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    config = transformers.ViTConfig(
        image_size=8, num_channels=1, patch_size=4, intermediate_size=16, num_labels=3, **sizes
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder / "published")
    scale = json.dumps({"image_mean": [0.5], "image_std": [0.5]})
    (folder / "published" / "preprocessor_config.json").write_text(scale)
    tuning = {"kind": "lora", "rank": 2, "alpha": 4, "dropout": 0.0}
    source = {"source": str(folder / "published"), "weights": "pretrained"}
    return {"name": "transformers", **source, "fine_tuning": tuning}


@dataclass(frozen=True)
class Trained:
    """A run with what its own process answered to its test rows."""

    run: RunDirectory
    rows: Path
    answers: torch.Tensor
    module: nn.Module | None


def trained(name: str, folder: Path) -> Trained:
    case = CASES[name]
    mapping = small_spec("dp-fedavg", rounds=2, clients_per_round=2).to_mapping()
    mapping["data"], mapping["task"] = section(case, folder), case.task
    mapping["model"] = dict(case.model) if name != "LoRA encoder" else lora(folder)
    mapping["privacy"]["sampling"]["expected_batch_size"] = 4
    mapping["federation"]["local_steps"] = 1
    torch.manual_seed(7)
    module = case.module() if case.module else None
    with handed_over(module):
        training = begin(specs.from_mapping(mapping), folder / "runs")
        # Nothing here looks at a probe.
        with training.lock:
            engine_run.train(training)
    experiment = training.experiment
    model = experiment.model.eval()
    stored = experiment.dataset.test.inputs
    found = [one for _, one in evaluation.answers(model, stored, torch.device("cpu"))]
    rows = folder / ("rows.csv" if case.rows in ("table", "texts") else "rows.npz")
    # Another module of the same architecture: other weights, and no link with the run's.
    torch.manual_seed(8)
    return Trained(training.run, rows, torch.cat(found), case.module() if case.module else None)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=case.marks) for name, case in CASES.items()]
)
def test_served_predictions_are_the_runs_own_on_the_test_rows_bit_for_bit(name, tmp_path):
    one = trained(name, tmp_path)
    found = api.predict(one.run.path, one.rows, model=one.module)
    assert found.outputs.dtype == np.float32
    assert np.array_equal(found.outputs, one.answers.numpy())
    columns, lines = found.table()
    lines = list(lines)
    chances = found.probabilities
    if CASES[name].task == "regression":
        assert columns == ["row", "cost"]
        assert chances is None
        assert lines[3] == [4, float(found.outputs[3, 0])]
    elif CASES[name].task == "token_classification":
        assert len(lines) == int((np.load(one.rows)["x_test"][:, 0] != 0).sum())
    elif CASES[name].task == "multi_label":
        assert columns == ["row", "labels", "p_outcome_yes", "p_risk"]
        assert np.allclose(chances, torch.from_numpy(found.outputs).double().sigmoid())
    else:
        assert np.allclose(chances.sum(1), 1.0)
        assert lines[0][1] == found.labels[int(found.outputs[0].argmax())]
    if CASES[name].rows in ("table", "texts") and CASES[name].task == "classification":
        assert columns == ["row", "label", "p_no", "p_yes"]


def test_a_label_is_told_where_it_is_more_likely_than_not():
    task = Task(specs.task_of({"kind": "multi_label"}))
    scores = np.array([[-0.1, 0.1], [0.3, 0.6], [-2.0, -0.3]], np.float32)
    found = prediction.Predictions(task, ("smokes", "coughs"), scores)
    assert np.array_equal(found.classes == 1, found.probabilities > 0.5)
    _, lines = found.table()
    assert [row[:2] for row in lines] == [[1, "coughs"], [2, "smokes;coughs"], [3, ""]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("mlp", "gru", "own module in __main__", "tokens"),
        pytest.param(tuple(CASES), marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_exported_programs_answer_alike_in_a_process_without_this_package(names, tmp_path):
    folders, expected = [], []
    for name in names:
        place = tmp_path / name.replace(" ", "-")
        place.mkdir()
        one = trained(name, place)
        with handed_over(one.module):
            written = export(one.run, place / "model", program=True)
        assert (written.program, written.no_program) == (True, "")
        with handed_over(one.module):
            served = prediction.load(one.run)
        stored = prediction.features(
            prediction.raw(one.rows, served.read_by), served.preprocessing, served.shape
        )
        np.save(place / "model" / "records.npy", stored[0 : len(stored)].numpy())
        folders.append(place / "model")
        expected.append(one.answers.numpy())
    subprocess.run([sys.executable, "-c", TORCH_ALONE, *map(str, folders)], check=True, timeout=300)
    for folder, wanted in zip(folders, expected, strict=True):
        found = np.load(folder / "answers.npy")
        assert np.allclose(found[:-1], wanted, rtol=1e-5, atol=1e-5), folder
        assert np.allclose(found[-1:], wanted[:1], rtol=1e-5, atol=1e-5), folder


@pytest.fixture(scope="module")
def of_a_table(tmp_path_factory) -> Trained:
    return trained("own module in __main__", tmp_path_factory.mktemp("table"))


@pytest.fixture(scope="module")
def of_images(tmp_path_factory) -> Trained:
    return trained("mlp", tmp_path_factory.mktemp("images"))


def test_a_frame_and_an_array_are_answered_as_the_file_is(of_a_table):
    pytest.importorskip("pyarrow")
    import pyarrow.csv

    served, module = of_a_table.run.path, of_a_table.module
    by_file = api.predict(served, of_a_table.rows, model=module)
    frame = pyarrow.csv.read_csv(of_a_table.rows)
    by_frame = api.predict(served, frame, model=module)
    array = np.stack([frame[name].to_numpy() for name in COLUMNS], 1).astype(np.float32)
    assert np.array_equal(by_file.outputs, by_frame.outputs)
    assert np.array_equal(by_file.outputs, api.predict(served, array, model=module).outputs)
    with pytest.raises(DpfedadamwError, match="rows: has no column 'ward' among its 7"):
        api.predict(served, frame.drop_columns(["ward"]), model=module)


def called(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["predict", *words])
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def test_the_command_writes_what_the_run_answers(of_images, tmp_path, capsys):
    out = tmp_path / "out.csv"
    words = (str(of_images.run.path), "--input", str(of_images.rows))
    assert called(capsys, *words, "--output", str(out))[0] == 0
    assert out.stat().st_mode & 0o777 == 0o600
    with out.open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["row", "label", "p_0", "p_1", "p_2"]
    chances = api.predict(of_images.run.path, of_images.rows).probabilities
    assert np.array_equal(np.array([row[2:] for row in lines], np.float64), chances)
    assert called(capsys, *words)[1] == out.read_text()
    printed = called(capsys, *words, "--json")[1]
    assert json.loads(printed)["records"] == 41


@pytest.mark.thorough
def test_a_process_of_its_own_has_the_same_answers_to_the_last_digit(of_images, tmp_path, capsys):
    out = tmp_path / "out.csv"
    words = (str(of_images.run.path), "--input", str(of_images.rows))
    assert called(capsys, *words, "--output", str(out))[0] == 0
    command = [sys.executable, "-m", "dpfedadamw", "predict", *words]
    alone = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert alone.stdout == out.read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("ward", "wrad", 1), "is 'ward'; did you mean 'wrad'?"),
        (lambda text: text.replace("\n", "\nx", 1), "line 2: the column crp holds no finite"),
        (lambda text: text.splitlines()[0] + "\n", "--input: holds no record"),
        (lambda text: "", "is empty; a table begins"),
    ],
)
def test_rows_that_are_not_such_as_the_run_read_are_one_line(of_a_table, tmp_path, change, said):
    (tmp_path / "bad.csv").write_text(change(of_a_table.rows.read_text()))
    with pytest.raises(DpfedadamwError) as caught:
        api.predict(of_a_table.run.path, tmp_path / "bad.csv", model=of_a_table.module)
    assert said in str(caught.value)
    assert "data.path" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_predicted_is_one_line_and_exit_code_2(
    of_a_table, of_images, tmp_path, capsys
):
    rows = str(of_a_table.rows)
    for words, said in (
        ((str(of_a_table.run.path), "--input", rows), "passed from Python"),
        ((str(of_images.run.path), "--input", rows), "arrays without column names"),
        ((str(tmp_path), "--input", rows), "neither a run nor an exported model"),
        ((str(of_images.run.path), "--input", str(tmp_path / "no.npz")), "there is no such file"),
        ((str(of_images.run.path), "--input", str(tmp_path / "no.csv")), "there is no such file"),
        (
            (str(of_images.run.path), "--input", str(of_images.rows), "--output",
             str(of_images.run.path / "out.csv")),
            "is inside a signed run's folder",
        ),
    ):  # fmt: skip
        code, out, err = called(capsys, *words)
        assert (code, out) == (2, ""), err
        assert said in " ".join(err.split())
        assert len(err.strip().splitlines()) == 1
    np.savez(tmp_path / "other.npz", x=np.zeros((2, 1, 9, 9), np.float32))
    with pytest.raises(DpfedadamwError, match=r"have shape \(1, 9, 9\), but the model reads"):
        api.predict(of_images.run.path, tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("inputs", {"dataset": "table", "numbers": 7}, "inputs: not in the form that a run writes"),
        ("inputs", {"dataset": "os"}, "arrays without column names"),
        ("inputs", [1], "inputs: must be a section"),
        ("labels", ["one"], "labels: must be 2 names"),
        ("labels", [1, 2], "labels: must be 2 names"),
    ],
)
def test_a_description_that_no_run_writes_is_refused(of_a_table, tmp_path, key, value, said):
    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes((of_a_table.run.path / name).read_bytes())
    config = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(DpfedadamwError) as caught:
        api.predict(tmp_path, of_a_table.rows, model=of_a_table.module)
    assert said in str(caught.value)
