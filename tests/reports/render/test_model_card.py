"""The model card: a header that the hub reads, the public claim, nothing of other circles."""

from __future__ import annotations

import copy
import re

import pytest
import yaml

from reports.content.parts import INTERNAL, PUBLIC
from reports.errors import ReportError
from reports.render import model_card
from tests.reports.data import data_of, report_of

PINNED = {"source": "some/model", "revision": "a" * 40, "weights_sha256": "b" * 64}
LOCAL = {"source": "a local folder", "revision": "", "weights_sha256": "b" * 64}


@pytest.fixture(scope="module")
def read(run_builder, tmp_path_factory) -> dict:
    return data_of(run_builder(tmp_path_factory.mktemp("card") / "run"), PUBLIC)


@pytest.fixture
def public(read) -> dict:
    """The public data of a run, to be changed."""
    return copy.deepcopy(read)


def header_of(text: str) -> dict:
    assert text.startswith("---\n")
    return yaml.safe_load(text[4:].split("\n---\n")[0])


def test_the_header_names_base_library_task_metrics_and_licence(public):
    header = header_of(
        model_card.write(report_of(public), "adapters", "text", PINNED, False, "apache-2.0")
    )
    assert header["license"] == "apache-2.0"
    assert header["library_name"] == "peft"
    assert header["base_model"] == "some/model"
    assert header["pipeline_tag"] == "text-classification"
    assert "differential-privacy" in header["tags"]
    result = header["model-index"][0]["results"][0]
    assert result["dataset"]["name"] == public["identity"]["dataset"]
    assert result["metrics"][0]["value"] == pytest.approx(public["utility"]["final_accuracy"])


AUC, RMSE = ("auc", 0.9123456789), ("rmse", 2.5)


@pytest.mark.parametrize(
    ("accuracy", "measures", "loss", "named"),
    [
        (0.75, [], 1.25, ["accuracy"]),
        (0.75, [AUC], 1.25, ["accuracy", "auc"]),
        (None, [RMSE], 1.25, ["rmse"]),
        (None, [RMSE, AUC], None, ["rmse", "auc"]),
    ],
)
def test_the_header_tells_each_measure_by_its_kind_and_none_that_was_not_taken(
    accuracy, measures, loss, named, public
):
    public["utility"] |= {
        "final_accuracy": accuracy,
        "final_loss": loss,
        "measures": [{"name": f"test_{kind}", "value": value} for kind, value in measures],
    }
    header = header_of(model_card.write(report_of(public), "own", "records", None, False))
    taken = [("accuracy", accuracy), *measures, ("loss", loss)]
    assert header["metrics"] == named
    (result,) = header["model-index"][0]["results"]
    assert result["metrics"] == [
        {"type": kind, "name": f"test {kind}", "value": round(value, 6)}
        for kind, value in taken
        if value is not None
    ]


def test_the_header_of_a_model_that_was_not_evaluated_has_no_results(public):
    public["utility"] |= {"final_accuracy": None, "final_loss": None, "measures": []}
    text = model_card.write(report_of(public), "own", "records", None, False)
    assert "model-index" not in header_of(text)
    assert "The final model was not evaluated." in text


LIBRARIES = {"adapters": "peft", "whole": "transformers", "own": "dpfedadamw"}
# As the hub names tasks; it has no name for the last.
TASKS = {
    "images": "image-classification",
    "text": "text-classification",
    "language": "text-generation",
    "records": None,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reads", TASKS)
@pytest.mark.parametrize("form", LIBRARIES)
def test_the_header_names_library_and_task_as_the_hub_does(form, reads, public):
    # No model of another library reads plain records.
    form, task = form if TASKS[reads] else "own", TASKS[reads]
    header = header_of(model_card.write(report_of(public), form, reads, None, False))
    assert header["library_name"] == LIBRARIES[form]
    assert header.get("pipeline_tag") == task
    (result,) = header["model-index"][0]["results"]
    assert result["task"] == {"type": task or "other"}
    name = public["identity"]["dataset"]
    assert result["dataset"] == {"name": name, "type": name, "split": "test"}
    assert header["tags"] == ["differential-privacy", "federated-learning", "dpfedadamw"]
    assert "base_model" not in header


def test_the_claim_says_how_much_of_what_and_towards_whom(public):
    text = model_card.write(report_of(public), "whole", "images", None, False)
    claim = public["guarantee"]
    assert claim["statement"] in text
    assert claim["towards"] in text
    assert all(" ".join(one.split()) in text for one in claim["assumptions"])


@pytest.mark.parametrize(
    ("form", "base", "backbone", "line"),
    [
        ("adapters", PINNED, False, f'"some/model", revision="{"a" * 40}"'),
        ("adapters", LOCAL, False, '"BASE_FOLDER"'),
        ("adapters", None, True, '"FOLDER/base"'),
        ("whole", None, False, 'from_pretrained("FOLDER")'),
        ("own", None, False, "dpfedadamw predict FOLDER --input rows.npz"),
    ],
)
def test_the_card_tells_how_to_load_each_form(public, form, base, backbone, line):
    text = model_card.write(
        report_of(public), form, "images" if form != "own" else "records", base, backbone
    )
    assert line in text


def test_the_card_says_what_the_model_is_for_on_what_it_was_trained_and_what_epsilon_means(public):
    text = model_card.write(report_of(public), "own", "records", None, False)
    assert "## Intended use and data" in text
    assert "* **Intended use.** Its makers state none" in text
    assert f"{public['clients']['records_total']:,} records of" in text
    assert public["meaning"]["promise"] in text
    assert "someone who is 50 % sure that a given record was used for training could" in text
    assert "| what is protected | one record |" in text
    assert "| against | " in text
    stated = copy.deepcopy(public)
    for field in stated["governance"]:
        if field["field"] == "purpose":
            field["text"] = "Planning of beds."
    assert "* **Intended use.** Planning of beds." in model_card.write(
        report_of(stated), "own", "records", None, False
    )


def test_the_card_of_prepared_columns_says_that_predict_prepares_them(public):
    columns = [
        {"name": "age", "kind": "number", "low": 0.0, "high": 110.0},
        {"name": "sex", "kind": "category", "categories": ["f", "m"], "unseen": "other"},
        {"name": "a|b", "kind": "date", "low": "2019-01-01", "high": "2024-12-31", "format": "D"},
    ]
    text = model_card.write(
        report_of(public), "own", "records", None, False, program=True, inputs={"columns": columns}
    )
    assert 'api.predict("FOLDER", "rows.csv")' in text
    assert "| age | number from 0 to 110 |" in text
    assert "| sex | one of f, m; others count as one |" in text
    assert "| a\\|b | day from 2019-01-01 to 2024-12-31, written D |" in text
    assert "prepares none" in text
    # No line would feed the program what nobody prepared.
    assert "torch.export.load" not in text


@pytest.mark.parametrize(
    ("kind", "line"),
    [("module", "model=MODULE"), ("python", "--allow-code MODULE"), ("mlp", "answers.table()")],
)
def test_a_model_whose_class_is_no_file_says_what_it_needs(public, kind, line):
    changed = copy.deepcopy(public)
    changed["identity"]["model"] = [{"name": "name", "value": kind}]
    assert line in model_card.write(report_of(changed), "own", "records", None, False)


def test_numbers_are_shown_as_they_are_and_begin_no_list():
    assert model_card._shown("3.00") == "3.00"
    assert model_card._shown("3. of three") == "3\\. of three"


def test_a_run_without_privacy_says_so_and_is_not_tagged_as_private(make_run):
    public = data_of(make_run(private=False), PUBLIC)
    text = model_card.write(report_of(public), "own", "records", None, False)
    assert "**no differential privacy**" in text
    assert "differential-privacy" not in header_of(text)["tags"]


def test_the_internal_report_is_refused(make_run):
    internal = data_of(make_run(), INTERNAL)
    with pytest.raises(ReportError, match="public audience"):
        model_card.write(report_of(internal), "own", "records", None, False)


def test_a_name_from_a_spec_cannot_break_the_header(public):
    odd = copy.deepcopy(public)
    odd["identity"]["name"] = "a: [b\n---\nlicense: mit"
    header = header_of(model_card.write(report_of(odd), "own", "records", None, False, 'x"\n---'))
    assert header["model-index"][0]["name"] == "a: [b --- license: mit"
    assert header["license"] == 'x" ---'


@pytest.mark.parametrize("form", ["adapters", "whole", "own"])
def test_the_hubs_own_reader_understands_the_header(public, form):
    """The hub publishes no schema of it; its client reads header and results, or refuses them."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    text = model_card.write(report_of(public), form, "images", PINNED, False, "mit")
    card = hub.ModelCard(text)
    assert card.data.license == "mit"
    assert card.data.base_model == "some/model"
    results = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert results["accuracy"] == pytest.approx(public["utility"]["final_accuracy"])
    assert card.data.eval_results[0].dataset_name == public["identity"]["dataset"]


HOSTILE = "<img src=x onerror=alert(1)> [a](javascript:x) ![b](http://x) `c` | # d"


def test_texts_of_a_run_are_shown_as_they_stand(public):
    hostile = copy.deepcopy(public)
    hostile["identity"] |= {"name": HOSTILE, "description": HOSTILE, "run": HOSTILE}
    hostile["mechanism"] |= {"algorithm": HOSTILE, "statement": HOSTILE}
    base = {"source": 'a/b"); import os; ("', "revision": HOSTILE, "weights_sha256": HOSTILE}
    text = model_card.write(report_of(hostile), "adapters", "text", base, False, HOSTILE)
    body = text.split("\n---\n", 1)[1]
    lines = [line for line in body.splitlines() if "revision=" not in line]
    assert not re.search(r"<img|(?<!\\)\[[ab]|(?<!\\)`c", "\n".join(lines))
    # What is given to be run names the base in a text, and nothing else.
    assert 'a/b\\"); import os; (\\"' in body
    assert header_of(text)["license"] == HOSTILE
