"""Writes the card that lies next to an exported model: Markdown with the hub's YAML header.

Everybody reads a card, so it is made of the public report alone: the claim against a third party,
never what says who took part.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from audit.protection import WHY, WORDS, in_front
from reports import formatting
from reports.content.assurance import LEVELS, MOST, Assurance
from reports.content.clients import Clients
from reports.content.coverage import OutsideBudget
from reports.content.findings import Qualifications, Verdict
from reports.content.guarantee import NO_PRIVACY, Guarantee
from reports.content.identity import Governance, Identity
from reports.content.meaning import Meaning, guess_in_words
from reports.content.mechanism import Mechanism, Randomness
from reports.content.outcomes import MEASURES, Utility
from reports.content.parts import PUBLIC, Report, Setting
from reports.document import ended, sentence
from reports.errors import ReportError
from reports.files import clean, mapping, number, sequence

# How a model is loaded, by the form in which it was exported.
_LIBRARIES = {"adapters": "peft", "whole": "transformers", "own": "dpfedadamw"}
_LANGUAGE = "language"
_TASKS = {
    "images": "image-classification",
    "text": "text-classification",
    _LANGUAGE: "text-generation",
    "records": "other",
}
_CLASSES = {
    "images": "AutoModelForImageClassification",
    "text": "AutoModelForSequenceClassification",
    _LANGUAGE: "AutoModelForCausalLM",
}
# What a task other than a classification is called by pipelines of transformers.
_PROBLEMS = {"regression": "regression", "multi_label": "multi_label_classification"}
# Parts of the spec's section report that everyone who uses the model should read, with its purpose.
_ON_THE_CARD = (
    "governance.controller",
    "responsible",
    "governance.data_categories",
    "governance.collection",
    "governance.region",
    "governance.recipients",
    "risks",
    "measures",
)
# Kinds of models whose class is code of somebody's own: named by the spec, or given from Python.
_CODE, _OBJECT = "python", "module"
# Classes and categories that a card names.
_MOST_LABELS = 12
UNKNOWN_LICENCE = "unknown"
# What Markdown reads within a line, and at its beginning, beyond words; HTML is escaped by itself.
_NO_NAME = re.compile(r"[^\w.+-]")
_MARKUP = re.compile(r"[\\\[\]`|!]|^[#+=~*-]")
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
_MEAN = """
Class scores are taken from the mean over a text's tokens. By default the loaded class looks at the
first token, for which nothing was trained. With `batch` from the tokeniser:

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
    inputs: Mapping[str, Any] | None = None,
    tokens: bool = False,
    shape: Sequence[int] = (),
) -> str:
    """Write the card of an exported model.

    Args:
        report: What `content.build` returned for the public audience.
        form: "adapters", "whole" or "own".
        reads: "images", "text", "language" (a text, which is continued) or "records".
        base: source, revision and weights_sha256 of the published weights, or None.
        with_backbone: Whether the folder ``base`` lies next to the card.
        licence: As the hub writes it.
        program: Whether model.pt2, a program of torch.export, lies next to the card.
        inputs: How records are read for it, as model.json has it.
        tokens: Whether a record is tokens, whole numbers.
        shape: Of a record; the card of a model of another library names it.

    Raises:
        ReportError: The report is not for the public.
    """
    if report.audience != PUBLIC:
        raise ReportError("model card: needs the report for the public audience")
    identity = report[Identity]
    columns = _Columns(inputs or {})
    repository = base["source"] if base and "/" in base.get("source", "") else None
    header = yaml.safe_dump(
        _header(report, form, reads, repository, _flat(clean(licence, 100))),
        sort_keys=False,
        allow_unicode=True,
    )
    parts = [
        f"---\n{header}---\n",
        f"# {_shown(identity.name)}\n",
        _shown(identity.description) + "\n" if identity.description else "",
        "## Intended use and data\n",
        _stated(report),
        "## Privacy\n",
        _privacy(report),
        "## How to load it\n",
        _loading(report, form, reads, base, repository, with_backbone, columns)
        + _pooling(identity.model)
        + (_program(form, columns, tokens, shape, report) if program else ""),
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
    against = verdict.unprotected_against
    if not guarantee.private:
        return f"This model was trained with **{NO_PRIVACY}**.\n"
    level = report[Assurance].level
    audited = "" if level is None else f" (level {level} of {MOST}, {LEVELS[level].name})"
    rows = [
        ("ε (privacy loss)", formatting.epsilon(guarantee.epsilon)),
        ("δ", formatting.power(guarantee.delta)),
        ("what is protected", f"one {guarantee.unit}"),
        ("neighbouring data sets", guarantee.adjacency),
        ("against", guarantee.towards),
        ("audit", in_front(f"{verdict.value}{audited}. {verdict.explanation}", against)),
    ]
    notes = [f"**{_shown(ended(sentence(text)))}**" for text in report[Qualifications].root]
    return "\n\n".join(
        [
            *([] if against is None else [f"**{WORDS[against]}. {WHY}**"]),
            _in_words(report),
            _table(rows),
            *notes,
            "The same as a formal statement:",
            _shown(guarantee.statement),
            "It holds under these assumptions:",
            _bullets([sentence(text) for text in guarantee.assumptions]),
        ]
    )


def _in_words(report: Report) -> str:
    """What ε means to somebody who uses the model."""
    meaning = report[Meaning]
    said = _shown(meaning.promise)
    if meaning.epsilon is None:
        return said
    return (
        f"{said}\n\nAt worst, someone who is 50 % sure {_shown(meaning.guess)} could become "
        f"{guess_in_words(0.5, meaning.epsilon)} sure. That is "
        f"ε = {formatting.epsilon(meaning.epsilon)}."
    )


def _stated(report: Report) -> str:
    """What the model answers, and what people state of purpose, data and use in the spec."""
    said = {one.field: one for one in report[Governance].root}
    purpose = said["purpose"].text if "purpose" in said else None
    lines = [
        f"**Intended use.** {_shown(purpose)}"
        if purpose
        else "**Intended use.** Its makers state none (report.purpose of the spec).",
        f"**Answers.** {_shown(_answers(report))}",
        f"**Training data.** {_shown(_trained_on(report))}",
    ]
    told = [said[name] for name in _ON_THE_CARD if name in said]
    lines += [f"**{one.label}.** {_shown(one.text)}" for one in told if one.text is not None]
    return "".join(f"* {line}\n" for line in lines)


def _answers(report: Report) -> str:
    labels, classes = report[Utility].labels, report[Identity].classes
    count = formatting.count(len(labels) or classes)
    found = f"One of {count} classes for each record"
    match report[Utility].task:
        case "regression":
            found = "Numbers for each record"
        case "causal_lm":
            return f"A score of each of {count} tokens, for each next token of a text."
        case "multi_label":
            found = f"Any of {count} labels for each record"
        case "token_classification":
            found = f"One of {count} classes for each token"
    if not labels:
        return f"{found}."
    more = len(labels) - _MOST_LABELS
    rest = f", and {more} more" if more > 0 else ""
    return f"{found}: {', '.join(labels[:_MOST_LABELS])}{rest}."


def _trained_on(report: Report) -> str:
    clients = report[Clients]
    said = f"Data set {report[Identity].dataset}"
    if clients.records_total is not None:
        said += f", {formatting.count(clients.records_total)} records"
        if clients.count is not None:
            said += f" of {formatting.count(clients.count)} clients"
    return f"{said}."


class _Columns:
    """The columns of a table that a record is made of, as model.json has them.

    Attributes:
        numbers: Columns of numbers that are used as they stand.
        prepared: Columns that are prepared: bounds, categories, days, empty cells.
        table: Whether records are rows of a table.
    """

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.numbers = [clean(name, 200) for name in sequence(inputs.get("numbers"))]
        self.prepared = [mapping(one) for one in sequence(inputs.get("columns"))]
        self.table = bool(self.numbers or self.prepared or sequence(inputs.get("text")))

    def described(self) -> str:
        """A table of the prepared columns; empty where there are none."""
        if not self.prepared:
            return ""
        rows = [(_shown(clean(one.get("name"), 200)), self._read_as(one)) for one in self.prepared]
        return (
            "\nA record has these columns. Their preparation is part of the model: `predict` holds "
            "numbers to the bounds, encodes categories and marks empty cells, as in training.\n\n"
            f"{_table(rows)}\n"
        )

    def _read_as(self, column: Mapping[str, Any]) -> str:
        kind = clean(column.get("kind"), 20)
        low, high = (clean(column.get(name), 40) for name in ("low", "high"))
        if kind == "number":
            low, high = (formatting.plain(number(column.get(name)), 6) for name in ("low", "high"))
            learnt = ", bounds learnt privately" if column.get("learn_quantiles") else ""
            return f"number from {low} to {high}{learnt}"
        if kind == "date":
            return f"day from {low} to {high}, written {clean(column.get('format'), 20)}"
        if kind == "boolean":
            return "yes or no"
        names = [clean(name, 60) for name in sequence(column.get("categories"))]
        if not names:
            return "category, hashed"
        more = f", and {len(names) - _MOST_LABELS} more" if len(names) > _MOST_LABELS else ""
        other = "; others count as one" if column.get("unseen") == "other" else ""
        return f"one of {', '.join(names[:_MOST_LABELS])}{more}{other}"


def _program(
    form: str, columns: _Columns, tokens: bool, shape: Sequence[int], report: Report
) -> str:
    """Lines that serve the model by torch alone."""
    if columns.prepared:
        return (
            "\n`model.pt2` is the same model as a program of torch.export. It reads records that "
            "are prepared already, and prepares none: use it only behind the same preparation. As "
            "all such files, load it only if you trust where it comes from.\n"
        )
    utility = report[Utility]
    kind = ", dtype=torch.int32" if tokens else ""
    imported, about = "import json\n\n", ""
    if form == "own":
        about = 'about = json.load(open("FOLDER/model.json", encoding="utf-8"))\n'
        reading = f'records = torch.zeros(1, *about["input_shape"]{kind})  # yours, prepared\n'
        labels = 'about.get("labels", range(about["classes"]))'
    else:
        # What another library reads has no model.json.
        imported = ""
        sides = ", ".join(map(str, (1, *shape)))
        reading = f"records = torch.zeros({sides}{kind})  # yours, prepared\n"
        labels = f"range({report[Identity].classes})"
        if utility.labels:
            labels = json.dumps(list(utility.labels), ensure_ascii=False)
    if columns.numbers:
        imported, reading = (
            f"import csv\n{imported}",
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
        f"{imported}import torch\n\n"
        'model = torch.export.load("FOLDER/model.pt2").module()\n'
        f"{about}{reading}{_answering(utility.task, labels)}```\n"
    )


def _answering(task: str, labels: str) -> str:
    """Lines that print what the program answers to records, by its labels."""
    if task == "causal_lm":
        return "tokens = model(records).argmax(-1)  # the likeliest behind each\nprint(tokens)\n"
    scaled = {"multi_label": ".sigmoid()", "regression": ""}.get(task, ".softmax(-1)")
    # Each token has its own answers.
    rows = "answers.flatten(0, 1)" if task == "token_classification" else "answers"
    return (
        f"answers = model(records){scaled}\n"
        f"labels = {labels}\n"
        f"for row in {rows}.tolist():\n    print(dict(zip(labels, row)))\n"
    )


def _loading(
    report: Report,
    form: str,
    reads: str,
    base: Mapping[str, str] | None,
    repository: str | None,
    with_backbone: bool,
    columns: _Columns,
) -> str:
    kind = _kind(report[Identity])
    if form == "own":
        rows = "rows.csv" if columns.table else "rows.npz"
        read = "" if columns.table else "`rows.npz` holds the records as the array `x`.\n\n"
        lines = (
            "```python\nfrom dpfedadamw import api\n\n"
            f'answers = api.predict("FOLDER", "{rows}")\ncolumns, rows = answers.table()\n'
            "for row in rows:\n    print(dict(zip(columns, row)))\n```\n"
        )
        code = ""
        if kind == _CODE:
            code = " --allow-code MODULE"
            lines = lines.replace(f'"{rows}")', f'"{rows}", allow_code=["MODULE"])')
            lines += "\nMODULE is the Python module that has the model's class.\n"
        if kind == _OBJECT:
            lines = (
                f'    api.predict("FOLDER", "{rows}", model=MODULE)\n\n'
                "MODULE is an object of the class that was trained, which is in no file here.\n"
            )
        return (
            "`model.safetensors` holds the tensors. `model.json` names the architecture, the "
            "outputs (`labels`) and the columns of a record (`inputs`).\n\n"
            f"    dpfedadamw predict FOLDER --input {rows} --output predictions.csv{code}\n\n"
            f"{read}The same from Python:\n\n{lines}{columns.described()}"
        )
    loaded_by = _CLASSES[reads]
    if form == "whole":
        return (
            f"```python\nfrom transformers import {loaded_by}\n\n"
            f'model = {loaded_by}.from_pretrained("FOLDER")\n```\n'
        )
    if with_backbone:
        where, pinned = '"FOLDER/base"', ""
    elif repository and base:
        where, pinned = json.dumps(repository), f", revision={json.dumps(base['revision'])}"
    else:
        where, pinned = '"BASE_FOLDER"', ""
    loaded = f"{where}{pinned}"
    if reads != _LANGUAGE:
        problem = _PROBLEMS.get(report[Utility].task, "single_label_classification")
        more = f'num_labels={report[Identity].classes},\n    problem_type="{problem}",\n'
        more += "    ignore_mismatched_sizes=True"
        loaded = f"\n    {loaded},\n    {more},\n"
    text = (
        f"```python\nfrom peft import PeftModel\nfrom transformers import {loaded_by}\n\n"
        f"base = {loaded_by}.from_pretrained({loaded})\n"
        'model = PeftModel.from_pretrained(base, "FOLDER")\n```\n'
    )
    if base:
        text += f"\nThe base's weights have the SHA-256 {_code(base['weights_sha256'])}.\n"
    return text


def _kind(identity: Identity) -> str:
    """The model's kind, as the spec names it."""
    return next((row.value for row in identity.model if row.name == "name"), "")


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
        ("data", identity.dataset),
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
    escaped = _MARKUP.sub(r"\\\g<0>", html.escape(_flat(text), quote=False))
    return _NUMBERED.sub(r"\1\\\2", escaped)


def _code(text: str) -> str:
    """A digest or a name, in which nothing else may stand."""
    return f"`{_NO_NAME.sub('?', text)}`"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {_shown(text)} |" for name, text in rows)]
    )


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"* {_shown(text)}" for text in texts) + "\n"
