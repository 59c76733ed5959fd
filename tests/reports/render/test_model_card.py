"""The model card: a header that the hub reads, the public claim, nothing of other circles."""

from __future__ import annotations

import copy
import json
import re
from types import SimpleNamespace

import pytest
import torch
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


def section_of(text: str, title: str) -> str:
    """What stands below a heading, without the empty lines around it."""
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0].strip("\n")


@pytest.fixture
def short(public) -> dict:
    """The public data of a run, in which short texts stand for its own."""
    public["identity"] |= {
        "name": "Letters", "description": "Reads letters.", "dataset": "letters", "classes": 26,
        "run": "letters-1", "package": "0.9", "parameters": 12_345,
        "hashes": [{"file": "model.safetensors", "sha256": "d" * 64}],
        "model": [{"name": "name", "value": "mlp"}],
    }  # fmt: skip
    public["guarantee"] |= {
        "statement": "It is private.", "epsilon": 1.001, "delta": 2.5e-6, "unit": "person",
        "adjacency": "leaving one out", "towards": "third parties",
        "assumptions": ["sizes are public.", "ledger.jsonl is whole."],
    }  # fmt: skip
    public["meaning"] |= {"promise": "A promise.", "guess": "that they took part", "epsilon": 1.001}
    public["verdict"] |= {"statement": "All passed."}
    public["qualifications"] = ["mind this", "And that?"]
    public["mechanism"] |= {
        "algorithm": "dp-x", "statement": "Noise is added.", "rounds": 1200,
        "rounds_completed": 1100, "local_steps": 7,
    }  # fmt: skip
    public["clients"] |= {"count": 1500, "records_total": 20_000}
    public["utility"] |= {
        "final_accuracy": 0.75, "final_loss": 0.5, "majority_rate": 0.8,
        "majority_statement": "It is no better.",
        "own": [{"name": "a|b", "value": 3.0}],
    }  # fmt: skip
    public["outside_budget"] = [
        {"title": "Search", "text": "Trials cost."}, {"title": "[Sizes]", "text": "# Public."}
    ]  # fmt: skip
    public["governance"] = [
        {"field": "risks", "label": "Risks", "text": "Few."},
        {"field": "purpose", "label": "Purpose", "text": "Sorting mail."},
        {"field": "necessity", "label": "Necessity", "text": "Not for users."},
        {"field": "measures", "label": "Measures", "text": None},
        {"field": "governance.controller", "label": "Controller", "text": "Example Ltd."},
    ]  # fmt: skip
    return public


def test_each_section_of_the_card_says_what_the_report_says(short):
    text = model_card.write(report_of(short), "own", "records", None, False)
    assert re.findall("^#+ .*", text, re.MULTILINE) == [
        "# Letters", "## Intended use and data", "## Privacy", "## How to load it", "## Training",
        "## Evaluation", "## What the claim does not cover", "## How to check it",
    ]  # fmt: skip
    assert "\n# Letters\n\nReads letters.\n\n## Intended use" in text
    assert section_of(text, "Intended use and data").splitlines() == [
        "* **Intended use.** Sorting mail.",
        "* **Answers.** One of 26 classes for each record.",
        "* **Training data.** Data set letters, 20,000 records of 1,500 clients.",
        "* **Controller.** Example Ltd.",
        "* **Risks.** Few.",
    ]
    # e to the power of the printed 1.01, over one more: no less than the 73.12 % of 1.001.
    assert section_of(text, "Privacy").split("\n\n") == [
        "A promise.",
        "At worst, someone who is 50 % sure that they took part could become 73.3 % sure. That "
        "is ε = 1.01.",
        "| | |\n|---|---|\n"
        "| ε (privacy loss) | 1.01 |\n"
        "| δ | 2.5·10⁻⁶ |\n"
        "| what is protected | one person |\n"
        "| neighbouring data sets | leaving one out |\n"
        "| against | third parties |\n"
        "| audit | PASS (level 1 of 4, consistent). All passed. |",
        "**Mind this.**",
        "**And that?**",
        "The same as a formal statement:",
        "It is private.",
        "It holds under these assumptions:",
        "* Sizes are public.\n* ledger.jsonl is whole.",
    ]
    assert section_of(text, "Training") == (
        "| | |\n|---|---|\n"
        "| data | letters |\n"
        "| clients | 1,500 |\n"
        "| algorithm | dp-x |\n"
        "| rounds | 1,100 of 1,200 |\n"
        "| local steps a round | 7 |\n"
        "| trained parameters | 12,345 |\n"
        "| randomness | release |\n\n"
        "Noise is added."
    )
    assert section_of(text, "Evaluation") == (
        "On the test records: accuracy 75.0 % (majority rate 80.0 %), a\\|b 3, mean cross-entropy "
        "0.5. **It is no better.** Test metrics are published without noise."
    )
    assert section_of(text, "What the claim does not cover").splitlines() == [
        "* **Search.** Trials cost.",
        "* **\\[Sizes\\].** \\# Public.",
    ]
    assert section_of(text, "How to check it").startswith(
        "The run is `letters-1`, made by dpfedadamw 0.9. Its `model.safetensors` has the SHA-256 "
        f"`{'d' * 64}`, and "
    )
    assert section_of(text, "How to load it") == (
        "`model.safetensors` holds the tensors. `model.json` names the architecture, the outputs "
        "(`labels`) and the columns of a record (`inputs`).\n\n"
        "    dpfedadamw predict FOLDER --input rows.npz --output predictions.csv\n\n"
        "`rows.npz` holds the records as the array `x`.\n\n"
        "The same from Python:\n\n"
        "```python\nfrom dpfedadamw import api\n\n"
        'answers = api.predict("FOLDER", "rows.npz")\ncolumns, rows = answers.table()\n'
        "for row in rows:\n    print(dict(zip(columns, row)))\n```"
    )


def test_what_a_report_does_not_hold_is_left_out_of_the_card(short):
    short["identity"] |= {"description": "", "hashes": []}
    short["clients"] |= {"count": None}
    short["mechanism"] |= {"rounds": 20, "rounds_completed": 20}
    short["meaning"] |= {"epsilon": None}
    short["assurance"] |= {"level": None}
    short["qualifications"] = []
    short["utility"] |= {
        "final_loss": None, "own": [], "majority_rate": None, "majority_statement": "",
    }  # fmt: skip
    text = model_card.write(report_of(short), "own", "records", None, False)
    assert "\n# Letters\n\n## Intended use" in text
    assert "* **Training data.** Data set letters, 20,000 records.\n" in text
    assert section_of(text, "Privacy").startswith("A promise.\n\n| | |\n")
    assert "| audit | PASS. All passed. |\n\nThe same as" in text
    assert "| rounds | 20 |" in text
    assert section_of(text, "Evaluation") == (
        "On the test records: accuracy 75.0 %. Test metrics are published without noise."
    )
    assert "the SHA-256 `unknown`" in text
    short["clients"] |= {"records_total": None}
    short["mechanism"] |= {"rounds": None}
    text = model_card.write(report_of(short), "own", "records", None, False)
    assert "* **Training data.** Data set letters.\n" in text
    assert "| rounds | unknown |" in text


def test_a_claim_that_protects_nobody_says_so_first_and_before_the_verdict(short):
    short["verdict"] |= {"unprotected_against": "the server"}
    text = section_of(model_card.write(report_of(short), "own", "records", None, False), "Privacy")
    assert text.startswith("**No meaningful protection against the server. An ε above 20 ")
    assert "| audit | NO MEANINGFUL PROTECTION AGAINST THE SERVER · PASS (level 1 " in text


OTHERS = {
    "regression": "The model predicts numbers, so there is no accuracy. RMSE and MAE are in the "
    "targets’ unit; R² is the share of their variance that the model explains.",
    "multi_label": "Accuracy is the share of test records all of whose labels are right (exact "
    "match).",
    "token_classification": "Accuracy is the share of tokens with the right class. Tokens that "
    "the task ignores are left out.",
    "causal_lm": "Accuracy is the share of tokens that the model foresees from those before "
    "them. Perplexity is the exponential of the mean cross-entropy per token; lower is better.",
}
NAMES = [f"l{number}" for number in range(13)]


@pytest.mark.parametrize(
    ("task", "labels", "answers"),
    [
        ("", [], "One of 26 classes for each record."),
        ("", ["a", "b"], "One of 2 classes for each record: a, b."),
        ("", NAMES[:12], f"One of 12 classes for each record: {', '.join(NAMES[:12])}."),
        ("", NAMES, f"One of 13 classes for each record: {', '.join(NAMES[:12])}, and 1 more."),
        ("regression", ["price"], "Numbers for each record: price."),
        ("regression", [], "Numbers for each record."),
        ("multi_label", ["a", "b"], "Any of 2 labels for each record: a, b."),
        ("token_classification", ["a"], "One of 1 classes for each token: a."),
        ("causal_lm", ["a"], "A score of each of 1 tokens, for each next token of a text."),
    ],
)
def test_the_card_says_what_a_model_of_each_task_answers_even_if_it_was_not_evaluated(
    task, labels, answers, short
):
    short["utility"] |= {
        "labels": labels, "scored": OTHERS.get(task, ""), "final_accuracy": None,
        "final_loss": None, "own": [],
    }  # fmt: skip
    text = model_card.write(report_of(short), "own", "records", None, False)
    assert f"* **Answers.** {answers}\n" in text
    assert "classes |" not in text


@pytest.mark.parametrize("task", OTHERS)
def test_the_card_says_what_the_measures_of_other_tasks_mean(task, short):
    short["utility"] |= {"scored": OTHERS[task], "own": [], "majority_statement": ""}
    short["utility"] |= {"final_accuracy": None, "measures": [{"name": "test_rmse", "value": 2.5}]}
    text = model_card.write(report_of(short), "own", "records", None, False)
    assert section_of(text, "Evaluation") == (
        f"On the test records: RMSE 2.5, mean loss 0.5. {OTHERS[task]} Test metrics are published "
        "without noise."
    )


@pytest.mark.parametrize(
    ("form", "reads", "base", "backbone", "lines"),
    [
        (
            "whole", "images", None, False,
            ["from transformers import AutoModelForImageClassification", "",
             'model = AutoModelForImageClassification.from_pretrained("FOLDER")'],
        ),
        (
            "adapters", "text", PINNED, False,
            ["from peft import PeftModel",
             "from transformers import AutoModelForSequenceClassification", "",
             "base = AutoModelForSequenceClassification.from_pretrained(",
             f'    "some/model", revision="{"a" * 40}",', "    num_labels=26,",
             '    problem_type="single_label_classification",',
             "    ignore_mismatched_sizes=True,", ")",
             'model = PeftModel.from_pretrained(base, "FOLDER")'],
        ),
        (
            "adapters", "language", LOCAL, True,
            ["from peft import PeftModel", "from transformers import AutoModelForCausalLM", "",
             'base = AutoModelForCausalLM.from_pretrained("FOLDER/base")',
             'model = PeftModel.from_pretrained(base, "FOLDER")'],
        ),
        (
            "adapters", "language", None, False,
            ["from peft import PeftModel", "from transformers import AutoModelForCausalLM", "",
             'base = AutoModelForCausalLM.from_pretrained("BASE_FOLDER")',
             'model = PeftModel.from_pretrained(base, "FOLDER")'],
        ),
    ],
)  # fmt: skip
def test_the_lines_that_load_a_model_of_another_library_are_complete(
    form, reads, base, backbone, lines, short
):
    text = section_of(
        model_card.write(report_of(short), form, reads, base, backbone), "How to load it"
    )
    code, rest = text.removeprefix("```python\n").split("\n```")
    assert code.splitlines() == lines
    compile(code, "card", "exec")
    told = f"The base's weights have the SHA-256 `{'b' * 64}`." if base else ""
    assert rest.strip() == told


@pytest.mark.parametrize(
    ("task", "problem"),
    [("regression", "regression"), ("multi_label", "multi_label_classification")],
)
def test_the_lines_that_load_pairs_say_what_their_scores_are(task, problem, short):
    short["utility"] |= {"scored": OTHERS[task]}
    text = model_card.write(report_of(short), "adapters", "text", PINNED, False)
    assert f'    problem_type="{problem}",\n' in section_of(text, "How to load it")


@pytest.mark.parametrize(
    ("kind", "inputs", "python", "shell"),
    [
        ("mlp", None, 'api.predict("FOLDER", "rows.npz")', "rows.npz"),
        ("mlp", {"numbers": ["a"]}, 'api.predict("FOLDER", "rows.csv")', "rows.csv"),
        ("mlp", {"text": ["a"]}, 'api.predict("FOLDER", "rows.csv")', "rows.csv"),
        (
            "python", None, 'api.predict("FOLDER", "rows.npz", allow_code=["MODULE"])',
            "rows.npz",
        ),
        ("module", None, 'api.predict("FOLDER", "rows.npz", model=MODULE)', "rows.npz"),
    ],
)  # fmt: skip
def test_the_lines_that_load_a_model_of_this_package_are_complete(
    kind, inputs, python, shell, short
):
    short["identity"] |= {"model": [{"name": "name", "value": kind}]}
    text = section_of(
        model_card.write(report_of(short), "own", "records", None, False, inputs=inputs),
        "How to load it",
    )
    code = " --allow-code MODULE" if kind == "python" else ""
    command = f"    dpfedadamw predict FOLDER --input {shell} --output predictions.csv{code}\n"
    assert command in text
    assert ("as the array `x`" in text) == (shell == "rows.npz")
    assert text.count(python) == 1
    assert ("MODULE is the Python module" in text) == (kind == "python")
    if kind != "module":
        compile(text.split("```python\n")[1].split("```")[0], "card", "exec")
    assert "model.pt2" not in text


@pytest.mark.parametrize(
    ("task", "tokens", "inputs", "answers"),
    [
        ("", False, None, "model(records).softmax(-1)"),
        ("", True, None, "model(records).softmax(-1)"),
        ("multi_label", False, {"numbers": ["a", "b"]}, "model(records).sigmoid()"),
        ("regression", False, {"numbers": ["a", "b"]}, "model(records)"),
    ],
)
def test_the_lines_that_run_the_program_read_its_records_and_scale_its_answers(
    task, tokens, inputs, answers, short
):
    short["utility"] |= {"scored": OTHERS.get(task, "")}
    text = section_of(
        model_card.write(
            report_of(short), "own", "records", None, False, program=True, inputs=inputs,
            tokens=tokens,
        ),
        "How to load it",
    )  # fmt: skip
    code = text.split("```python\n")[2].split("```")[0]
    kind = ", dtype=torch.int32" if tokens else ""
    zeros = f'records = torch.zeros(1, *about["input_shape"]{kind})  # yours, prepared'
    table = [
        'with open("rows.csv", newline="", encoding="utf-8") as file:',
        "    rows = list(csv.DictReader(file))",
        'columns = about["inputs"]["numbers"]',
        "records = torch.tensor([[float(row[name]) for name in columns] for row in rows])",
    ]
    assert code.splitlines() == [
        *(["import csv"] if inputs else []),
        "import json",
        "",
        "import torch",
        "",
        'model = torch.export.load("FOLDER/model.pt2").module()',
        'about = json.load(open("FOLDER/model.json", encoding="utf-8"))',
        *(table if inputs else [zeros]),
        f"answers = {answers}",
        'labels = about.get("labels", range(about["classes"]))',
        "for row in answers.tolist():",
        "    print(dict(zip(labels, row)))",
    ]
    compile(code, "card", "exec")


def ran(text: str, answers: torch.Tensor, monkeypatch) -> tuple[list[str], torch.Tensor]:
    """What the lines of a card print of a program that answers so, and what they asked it."""
    asked, printed = [], []

    def program(records):
        asked.append(records)
        return answers

    loaded = SimpleNamespace(module=lambda: program)
    monkeypatch.setattr(torch.export, "load", lambda _: loaded)
    code = section_of(text, "How to load it").split("```python\n")[-1].split("\n```")[0]
    exec(code, {"print": lambda shown: printed.append(shown)})
    return printed, asked[0]


@pytest.mark.parametrize("labels", [["no", 'a "b"\n```'], []])
def test_the_lines_that_run_a_program_of_transformers_need_no_file_of_this_package(
    labels, short, monkeypatch
):
    short["identity"] |= {"classes": 2}
    short["utility"] |= {"labels": labels, "scored": ""}
    text = model_card.write(
        report_of(short), "whole", "text", None, False, program=True, tokens=True, shape=(2, 6)
    )
    printed, asked = ran(text, torch.tensor([[0.0, 0.0]]), monkeypatch)
    assert printed == [dict.fromkeys(labels or range(2), 0.5)]
    assert (asked.shape, asked.dtype) == ((1, 2, 6), torch.int32)


def test_the_lines_of_a_program_that_answers_tokens_print_each_token_by_its_labels(
    short, monkeypatch, tmp_path
):
    short["utility"] |= {"scored": OTHERS["token_classification"]}
    text = model_card.write(
        report_of(short), "own", "records", None, False, program=True, tokens=True
    )
    about = {"input_shape": [2, 3], "classes": 2, "labels": ["out", "in"]}
    (tmp_path / "model.json").write_text(json.dumps(about))
    answers = torch.tensor([[[0.0, 0.0], [9e9, 0.0], [0.0, 9e9]]])
    printed, _ = ran(text.replace("FOLDER", str(tmp_path)), answers, monkeypatch)
    assert printed == [{"out": 0.5, "in": 0.5}, {"out": 1.0, "in": 0.0}, {"out": 0.0, "in": 1.0}]


CATEGORIES = [f"c{number}" for number in range(13)]


@pytest.mark.parametrize(
    ("column", "read_as"),
    [
        ({"kind": "number", "low": 0.5, "high": 1234567.5}, "number from 0.5 to 1.23457·10⁶"),
        (
            {"kind": "number", "low": 0, "high": 3.1415926, "learn_quantiles": [0.1, 0.9]},
            "number from 0 to 3.14159, bounds learnt privately",
        ),
        ({"kind": "boolean"}, "yes or no"),
        ({"kind": "category"}, "category, hashed"),
        (
            {"kind": "category", "categories": CATEGORIES[:12]},
            f"one of {', '.join(CATEGORIES[:12])}",
        ),
        (
            {"kind": "category", "categories": CATEGORIES, "unseen": "refuse"},
            f"one of {', '.join(CATEGORIES[:12])}, and 1 more",
        ),
    ],
)  # fmt: skip
def test_the_card_says_how_each_column_is_read(column, read_as, short):
    text = model_card.write(
        report_of(short), "own", "records", None, False,
        inputs={"columns": [{"name": "it", **column}]},
    )  # fmt: skip
    assert f"| it | {read_as} |" in text


def test_mean_pooling_comes_with_the_lines_that_repeat_it(short):
    short["identity"] |= {"model": [{"name": "pooling", "value": "mean"}]}
    text = model_card.write(report_of(short), "whole", "text", None, False)
    assert 'mask = batch["attention_mask"]' in text
    short["identity"] |= {"model": [{"name": "pooling", "value": "first"}]}
    assert "attention_mask" not in model_card.write(report_of(short), "whole", "text", None, False)
