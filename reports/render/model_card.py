"""Writes the card that lies beside an exported model: Markdown with the hub's YAML header.

A card is read by everybody, so it is made of the public report and of nothing else: the claim
towards a third party, never what tells who took part.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from reports import formatting
from reports.content.clients import Clients
from reports.content.coverage import OutsideBudget
from reports.content.findings import Qualifications, Verdict
from reports.content.guarantee import NO_PRIVACY, Guarantee
from reports.content.identity import Governance, Identity
from reports.content.mechanism import Mechanism, Randomness
from reports.content.outcomes import MEASURES, Utility
from reports.content.parts import PUBLIC, Report, Setting
from reports.errors import ReportError
from reports.files import clean

# How a model is loaded, by the form in which it was exported.
_LIBRARIES = {"adapters": "peft", "whole": "transformers", "own": "dpfedadamw"}
_TASKS = {
    "images": "image-classification",
    "text": "text-classification",
    "records": "other",
}
_CLASSES = {
    "images": "AutoModelForImageClassification",
    "text": "AutoModelForSequenceClassification",
}
# What of the spec's section report everybody who uses the model should read.
_ON_THE_CARD = (
    "purpose",
    "governance.controller",
    "responsible",
    "governance.data_categories",
    "governance.collection",
    "governance.region",
    "governance.recipients",
    "risks",
    "measures",
)
UNKNOWN_LICENCE = "unknown"
# What Markdown reads within a line, and at its beginning, beyond words; HTML is escaped by itself.
_NO_NAME = re.compile(r"[^\w.+-]")
_MARKUP = re.compile(r"[\\\[\]`|!]|^[#+=~*-]|^\d+(?=[.)])")
_MEAN = """
Class scores are taken from the mean over a text's tokens; left to itself, the loaded class looks at
the first token, for which nothing was trained. With `batch` from the tokeniser:

```python
inner = model.get_base_model() if hasattr(model, "peft_config") else model
hidden = getattr(inner, inner.base_model_prefix)(**batch).last_hidden_state
mask = batch["attention_mask"][:, :, None]
scores = inner.classifier((hidden * mask).sum(1) / mask.sum(1))
```
"""


def write(
    report: Report,
    form: str,
    reads: str,
    base: Mapping[str, str] | None,
    with_backbone: bool,
    licence: str = UNKNOWN_LICENCE,
    *,
    program: bool = False,
    columns: Sequence[str] = (),
    tokens: bool = False,
) -> str:
    """Write the card of an exported model.

    Args:
        report: What `content.build` returned for the public audience.
        form: "adapters", "whole" or "own".
        reads: "images", "text" or "records".
        base: source, revision and weights_sha256 of the published weights, or None.
        with_backbone: Whether the folder ``base`` lies beside the card.
        licence: As the hub writes it.
        program: Whether model.pt2, a program of torch.export, lies beside the card.
        columns: Columns of numbers that a record is made of, in order; none of others.
        tokens: Whether a record is tokens, whole numbers.

    Raises:
        ReportError: The report is not for the public.
    """
    if report.audience != PUBLIC:
        raise ReportError("model card: needs the report for the public audience")
    identity = report[Identity]
    repository = base["source"] if base and "/" in base.get("source", "") else None
    header = yaml.safe_dump(
        _header(report, form, reads, repository, _flat(clean(licence, 100))),
        sort_keys=False,
        allow_unicode=True,
    )
    parts = [
        f"---\n{header}---\n",
        f"# {_shown(identity.name)}\n",
        _shown(identity.description) + "\n",
        _stated(report),
        "## Privacy\n",
        _privacy(report),
        "## How to load it\n",
        _loading(form, reads, base, repository, with_backbone, identity.classes)
        + _pooling(identity.model)
        + _program(program, columns, tokens, report[Utility]),
        "## Training\n",
        _training(report),
        "## Evaluation\n",
        _evaluation(report),
        "## What the claim does not cover\n",
        "".join(
            f"* **{_shown(one.title)}.** {_shown(one.text)}\n" for one in report[OutsideBudget].root
        ),
        "## How to check it\n",
        _checking(report),
    ]
    return "\n".join(part for part in parts if part)


def _header(
    report: Report, form: str, reads: str, repository: str | None, licence: str
) -> dict[str, Any]:
    utility, identity = report[Utility], report[Identity]
    name, data = _flat(identity.name), _flat(identity.dataset)
    header: dict[str, Any] = {"license": licence, "library_name": _LIBRARIES[form]}
    if repository:
        header["base_model"] = repository
    task = _TASKS[reads]
    if task != "other":
        header["pipeline_tag"] = task
    tags = ["federated-learning", "dpfedadamw"]
    if report[Guarantee].private:
        tags.insert(0, "differential-privacy")
    header["tags"] = tags
    others = [(one.name.removeprefix("test_"), one.value) for one in utility.measures]
    measures = [("accuracy", utility.final_accuracy), *others, ("loss", utility.final_loss)]
    header["metrics"] = ["accuracy", *(kind for kind, _ in others)]
    if others and utility.final_accuracy is None:
        header["metrics"] = [kind for kind, _ in others]
    metrics = [
        {"type": kind, "name": f"test {kind}", "value": round(value, 6)}
        for kind, value in measures
        if value is not None
    ]
    if metrics:
        dataset = {"name": data, "type": data, "split": "test"}
        result = {"task": {"type": task}, "dataset": dataset, "metrics": metrics}
        header["model-index"] = [{"name": name, "results": [result]}]
    return header


def _privacy(report: Report) -> str:
    guarantee, verdict = report[Guarantee], report[Verdict]
    if not guarantee.private:
        return f"This model was trained with **{NO_PRIVACY}**.\n"
    rows = [
        ("ε", formatting.epsilon(guarantee.epsilon)),
        ("δ", formatting.power(guarantee.delta)),
        ("protects", f"one {guarantee.unit}"),
        ("neighbours", guarantee.adjacency),
        ("towards", guarantee.towards),
        ("audit", f"{verdict.value}: {verdict.statement}"),
    ]
    notes = [f"**{_shown(text)}**" for text in report[Qualifications].root]
    return "\n\n".join(
        [
            _shown(guarantee.statement),
            _table(rows),
            *notes,
            "This holds under these assumptions:",
            _bullets(guarantee.assumptions),
        ]
    )


def _stated(report: Report) -> str:
    """What people state of purpose, data and use in the spec's section report."""
    said = {one.field: (one.label, one.text) for one in report[Governance].root}
    told = [said[name] for name in _ON_THE_CARD if name in said]
    lines = [f"* **{label}.** {_shown(text)}\n" for label, text in told if text is not None]
    return f"## Purpose and data\n\n{''.join(lines)}" if lines else ""


def _program(program: bool, columns: Sequence[str], tokens: bool, utility: Utility) -> str:
    """Lines that serve the model by torch alone."""
    if not program:
        return ""
    answers = "model(records).softmax(-1)"
    if utility.measure("test_micro_f1") is not None:
        answers = "model(records).sigmoid()"
    if utility.measure("test_rmse") is not None:
        answers = "model(records)"
    kind = ", dtype=torch.int32" if tokens else ""
    reading = f'records = torch.zeros(1, *about["input_shape"]{kind})  # yours, prepared\n'
    imported = ""
    if columns:
        imported, reading = (
            "import csv\n",
            (
                'with open("rows.csv", newline="", encoding="utf-8") as file:\n'
                "    rows = list(csv.DictReader(file))\n"
                'columns = about["inputs"]["numbers"]\n'
                "records = torch.tensor([[float(row[name]) for name in columns] for row in rows])\n"
            ),
        )
    return (
        "\n`model.pt2` is the same model as a program: torch alone runs it, without dpfedadamw. As "
        "all such files, load it only if you trust where it comes from.\n\n```python\n"
        f"{imported}import json\n\nimport torch\n\n"
        'model = torch.export.load("FOLDER/model.pt2").module()\n'
        'about = json.load(open("FOLDER/model.json", encoding="utf-8"))\n'
        f"{reading}answers = {answers}\n"
        'labels = about.get("labels", range(about["classes"]))\n'
        "for row in answers.tolist():\n    print(dict(zip(labels, row)))\n```\n"
    )


def _loading(
    form: str,
    reads: str,
    base: Mapping[str, str] | None,
    repository: str | None,
    with_backbone: bool,
    classes: int | None,
) -> str:
    if form == "own":
        return (
            "`model.safetensors` holds the tensors; `model.json` says of which architecture, what "
            "the outputs are called (`labels`) and which columns a record has, in order "
            "(`inputs`).\n\n"
            "    dpfedadamw predict FOLDER --input rows.csv --output predictions.csv\n\n"
            'From Python `api.load_model("FOLDER")` gives the module, and '
            '`api.predict("FOLDER", rows)` what it answers.\n'
        )
    kind = _CLASSES[reads]
    if form == "whole":
        return (
            f"```python\nfrom transformers import {kind}\n\n"
            f'model = {kind}.from_pretrained("FOLDER")\n```\n'
        )
    if with_backbone:
        where, pinned = '"FOLDER/base"', ""
    elif repository and base:
        where, pinned = json.dumps(repository), f", revision={json.dumps(base['revision'])}"
    else:
        where, pinned = '"BASE_FOLDER"', ""
    text = (
        f"```python\nfrom peft import PeftModel\nfrom transformers import {kind}\n\n"
        f"base = {kind}.from_pretrained(\n    {where}{pinned},\n    num_labels={classes},\n"
        "    ignore_mismatched_sizes=True,\n)\n"
        'model = PeftModel.from_pretrained(base, "FOLDER")\n```\n'
    )
    if base:
        text += f"\nThe base's weights have the SHA-256 {_code(base['weights_sha256'])}.\n"
    return text


def _pooling(model: Sequence[Setting]) -> str:
    """How to get class scores where the loaded class would take them from elsewhere."""
    settings = {row.name: row.value for row in model}
    return _MEAN if settings.get("pooling") == "mean" else ""


def _rounds(mechanism: Mechanism) -> str:
    planned, completed = formatting.count(mechanism.rounds), mechanism.rounds_completed
    if mechanism.rounds is None or completed >= mechanism.rounds:
        return planned
    return f"{formatting.count(completed)} of {planned}"


def _training(report: Report) -> str:
    identity, mechanism = report[Identity], report[Mechanism]
    rows = [
        ("data", f"{identity.dataset}, {identity.classes} classes"),
        ("clients", formatting.count(report[Clients].count)),
        ("algorithm", mechanism.algorithm),
        ("rounds", _rounds(mechanism)),
        ("local steps a round", formatting.count(mechanism.local_steps)),
        ("trained parameters", formatting.count(identity.parameters)),
        ("randomness", report[Randomness].mode),
    ]
    return f"{_table(rows)}\n\n{_shown(mechanism.statement)}\n"


def _evaluation(report: Report) -> str:
    utility = report[Utility]
    told = [f"{MEASURES[one.name]} {formatting.plain(one.value)}" for one in utility.measures]
    told += [f"{_shown(one.name)} {formatting.plain(one.value)}" for one in utility.own]
    if utility.final_accuracy is not None:
        rate = utility.majority_rate
        beside = "" if rate is None else f" (majority rate {formatting.percent(rate)})"
        told.insert(0, f"accuracy {formatting.percent(utility.final_accuracy)}{beside}")
    if not told:
        return "The final model was not evaluated.\n"
    if utility.final_loss is not None:
        loss = "mean loss" if utility.scored else "mean cross-entropy"
        told.append(f"{loss} {formatting.plain(utility.final_loss)}")
    text = f"On the test records: {', '.join(told)}."
    if utility.majority_statement:
        text += f" **{_shown(utility.majority_statement)}**"
    if utility.scored:
        text += f" {_shown(utility.scored)}"
    return f"{text} Test metrics are published without noise.\n"


def _checking(report: Report) -> str:
    identity = report[Identity]
    return (
        f"The run is {_code(identity.run)}, made by dpfedadamw {_shown(identity.package)}. Its "
        "`model.safetensors` has the SHA-256 "
        f"{_code(identity.digest('model.safetensors') or 'unknown')}, and the run's attestation "
        "signs that digest; `dpfedadamw verify` and the run's VERIFY.md say how to check it.\n"
    )


def _flat(text: str) -> str:
    return " ".join(text.split())


def _shown(text: str) -> str:
    """One line that a page shows as it stands: no HTML, no link, no picture, no code."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(_flat(text), quote=False))


def _code(text: str) -> str:
    """A digest or a name, in which nothing else may stand."""
    return f"`{_NO_NAME.sub('?', text)}`"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {_shown(text)} |" for name, text in rows)]
    )


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"* {_shown(text)}" for text in texts) + "\n"
