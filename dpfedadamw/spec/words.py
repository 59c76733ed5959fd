"""Words for a value that does not fit: what was found, what would be right, what was meant.

What papers and other libraries call keys and choices of a spec stands here too, so that messages
understand it. None of these names is taken for a key: a spec means the same to every reader.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Sequence
from typing import Any

from dpfedadamw.spec.document import one_line
from dpfedadamw.spec.vocabulary import Schema, discriminators, resolve_reference, types_of


def mismatch(value: Any, schema: Schema) -> str:
    """Say what was found, what must be there, and, if it can be guessed, what was meant."""
    message = f"found {show(value)}; must be {expected(schema)}"
    choices = [choice for choice in schema.get("enum", []) if isinstance(choice, str)]
    types = types_of(schema)
    if isinstance(value, str) and choices:
        known, absent = choice_of(value, choices), _ABSENT.get(value.lower().replace("-", "_"))
        if absent is not None and absent[0] in choices:
            return f"{message}; {absent[1]}"
        near = [known] if known else difflib.get_close_matches(value.lower(), choices, 1)
        if near and len(choices) > 1:
            message += f"; did you mean {near[0]}?"
    elif isinstance(value, str) and {"integer", "number"} & types:
        number = _number_in(value)
        message += f"; write {number} without quotes" if number else ""
    elif "string" in types and not choices and isinstance(value, int | float):
        message += f'; put it in quotes: "{_number(value)}"'
    elif types == {"integer"} and isinstance(value, float) and value.is_integer():
        message += f"; write {value:.0f}" if abs(value) < 1e15 else ""
    return message + (f"; {schema['x-why']}" if "x-why" in schema else "")


def expected(schema: Schema) -> str:
    """Say in words what a part of the schema allows."""
    schema = resolve_reference(schema)
    if "x-expected" in schema:
        return str(schema["x-expected"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return one_of(schema["enum"])
    if "x-discriminator" in schema:
        key = schema["x-discriminator"]
        section = f"a section whose {key} is {one_of(list(discriminators(schema)))}"
        short = f", or {one_of(list(discriminators(schema)))}" if "x-short-form" in schema else ""
        return section + short
    if "x-exactly-one" in schema:
        return f"a section with exactly one of {' and '.join(schema['x-exactly-one'])}"
    words = []
    for name in schema["type"] if isinstance(schema["type"], list) else [schema["type"]]:
        if name in ("integer", "number"):
            words.append(_range_in_words("an integer" if name == "integer" else "a number", schema))
        elif name == "string":
            words.append(f"text of at most {schema['maxLength']} characters")
            if schema.get("minLength"):
                words[-1] = f"text of {schema['minLength']} to {schema['maxLength']} characters"
        elif name == "array":
            size = f"{schema['minItems']} to {schema['maxItems']}"
            words.append(f"a list of {size} items, each {expected(schema['items'])}")
        elif name == "object":
            words.append(f"a section with the keys {', '.join(schema['properties'])}")
        else:
            words.append({"boolean": "true or false", "null": "null"}[name])
    return " or ".join(words) if words != ["null"] else "left out (null)"


def _range_in_words(noun: str, schema: Schema) -> str:
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "greater than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    if "minimum" in schema and "maximum" in schema:
        return f"{noun} from {_number(schema['minimum'])} to {_number(schema['maximum'])}"
    parts = [f"{word} {_number(schema[key])}" for key, word in limits.items() if key in schema]
    return f"{noun} {' and '.join(parts)}" if parts else noun


def one_of(choices: Sequence[Any]) -> str:
    """Write choices as `one of a, b, c`, or the only one as it is."""
    words = ", ".join(
        choice if isinstance(choice, str) else json.dumps(choice) for choice in choices
    )
    return f"one of {words}" if len(choices) > 1 else words


def show(value: Any) -> str:
    """Show a found value in a few words, in one line."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the text "{one_line(value)}"'
    if isinstance(value, int | float):
        return one_line(_number(value))
    return "a list" if isinstance(value, list) else "a section"


def _number(value: int | float) -> str:
    if isinstance(value, int):
        # Beyond 4300 digits Python refuses to print.
        return str(value) if abs(value) < 10**300 else "an enormous number"
    return repr(value)


def _number_in(text: str) -> str | None:
    try:
        value = float(text.replace("_", "").replace(",", "."))
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value)


# Another name of a key, and the key's own.
_KEYS = {
    "q": "rate",
    "sample_rate": "rate",
    "sampling_rate": "rate",
    "sampling_probability": "rate",
    "dataset_size": "reference_size",
    "num_examples": "reference_size",
    "lr": "learning_rate",
    "eta": "learning_rate",
    "step_size": "learning_rate",
    "wd": "weight_decay",
    "sigma": "noise_multiplier",
    "noise_scale": "noise_multiplier",
    "noise": "noise_multiplier",
    "max_grad_norm": "clipping_norm",
    "l2_norm_clip": "clipping_norm",
    "clip": "clipping_norm",
    "clip_norm": "clipping_norm",
    "eps": "target_epsilon",
    "epsilon": "target_epsilon",
    "batch_size": "expected_batch_size",
    "lot_size": "expected_batch_size",
    "epochs": "local_steps",
    "local_epochs": "local_steps",
    "num_rounds": "rounds",
    "global_rounds": "rounds",
    "communication_rounds": "rounds",
    "num_clients": "clients",
    "n_clients": "clients",
    "num_workers": "workers",
    "optimizer": "name",
    "mu": "proximal_weight",
    "hidden_size": "hidden",
    "class": "target",
    "kwargs": "arguments",
}
# What is not the same in other units.
_REMARKS = {
    "epochs": "it counts steps of one batch each, not passes over the data",
    "local_epochs": "it counts steps of one batch each, not passes over the data",
    "noise_scale": "it is in units of the clipping norm",
    "noise": "it is in units of the clipping norm",
    "sigma": "it is in units of the clipping norm",
}
# Another name of what can be chosen, and its own here; the first that is among the choices.
_CHOICES: dict[str, tuple[str, ...]] = {
    "fedprox": ("pe-dpfl",),
    "dp-fedprox": ("pe-dpfl",),
    "dp-sgd": ("dp-fedavg",),
    "dpsgd": ("dp-fedavg",),
    "sgd": ("dp-fedavg", "fedavg"),
    "fedsgd": ("fedavg",),
    "adam": ("local-adam",),
    "adamw": ("dp-localadamw", "local-adamw"),
    "dp-adam": ("dp-localadamw",),
    "dp-fedadam": ("dp-fedopt",),
    "fedyogi": ("dp-fedopt",),
    "csv": ("table",),
    "tsv": ("table",),
    "parquet": ("table",),
    "npz": ("arrays",),
    "numpy": ("arrays",),
    "pandas": ("given",),
    "dataframe": ("given",),
    "torch": ("python", "given"),
    "custom": ("python", "given"),
    "lstm": ("python",),
    "logistic": ("mlp",),
    "linear": ("mlp",),
    "user": ("client",),
    "people": ("person",),
    "patient": ("person",),
    "subject": ("person",),
    "sample": ("record",),
    "example": ("record",),
    "uniform": ("fixed", "iid"),
    "subsampled": ("poisson",),
    "random": ("iid",),
    "non-iid": ("dirichlet",),
    "secure": ("release",),
    "deterministic": ("reproducible",),
    "step": ("constant",),
}


# What is not there, a choice next to which it would stand, and why it does not.
_SEQ2SEQ = (
    "causal_lm",
    "encoder-decoders are not trained, because their two texts have no place in a record of one "
    "sequence; use causal_lm, with the source and its answer as two columns of data.text",
)
_ABSENT = {"seq2seq": _SEQ2SEQ, "seq2seq_lm": _SEQ2SEQ, "seq_2_seq_lm": _SEQ2SEQ}
# Keys that are not there, a key next to which they would stand, and why they do not.
_ABSENT_KEYS = {
    "packing": (
        "sequences",
        "records are never packed into one sequence, because a gradient of several records at once "
        "cannot be clipped record by record; leave it out",
    ),
}


def absent_key(name: str, known: Sequence[str]) -> str | None:
    """Why there is no such key next to these; None of a key that nobody expects."""
    sibling, reason = _ABSENT_KEYS.get(name.lower(), ("", ""))
    return reason if sibling in known else None


def key_of(name: str) -> str | None:
    """The key that another name stands for, if it is known."""
    return _KEYS.get(name.lower())


def remark(name: str) -> str:
    """What must be said of the key that another name stands for, in brackets; "" for nothing."""
    found = _REMARKS.get(name.lower())
    return f" ({found})" if found else ""


def choice_of(name: str, choices: list[str]) -> str | None:
    """The choice that another name stands for, if it is among these."""
    found = _CHOICES.get(name.lower().replace("_", "-"), ())
    return next((one for one in found if one in choices), None)
