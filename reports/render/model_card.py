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
from reports.content.findings import Qualifications, Verdict
from reports.content.guarantee import NO_PRIVACY, Guarantee
from reports.content.identity import Identity
from reports.content.outcomes import MEASURES, Utility
from reports.content.parts import PUBLIC, Report, Setting
from reports.errors import ReportError
from reports.reading.files import clean
from reports.sections.clients import Clients
from reports.sections.mechanism import Mechanism
from reports.sections.outside_budget import OutsideBudget
from reports.sections.randomness import Randomness

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
) -> str:
    """Write the card of an exported model.

    Args:
        report: What `content.build` returned for the public audience.
        form: "adapters", "whole" or "own".
        reads: "images", "text" or "records".
        base: source, revision and weights_sha256 of the published weights, or None.
        with_backbone: Whether the folder ``base`` lies beside the card.
        licence: As the hub writes it.

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
        "## Privacy\n",
        _privacy(report),
        "## How to load it\n",
        _loading(form, reads, base, repository, with_backbone, identity.classes)
        + _pooling(identity.model),
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
            "`model.safetensors` holds the tensors, `model.json` says of which of dpfedadamw's "
            "architectures. `dpfedadamw.run.export.load_model` gives the model of a run.\n"
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
    if utility.final_accuracy is not None:
        told.insert(0, f"accuracy {formatting.percent(utility.final_accuracy)}")
    if not told:
        return "The final model was not evaluated.\n"
    if utility.final_loss is not None:
        loss = "mean loss" if utility.scored else "mean cross-entropy"
        told.append(f"{loss} {formatting.plain(utility.final_loss)}")
    text = f"On the test records: {', '.join(told)}."
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
