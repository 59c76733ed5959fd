"""Hypothesis strategies for specs: valid ones drawn from the schema, and ones broken on purpose.

`valid_specs` draws resolved mappings. `broken_specs` draws the bytes of a spec file with one fault
of a named kind; no reader may accept it, and none may answer with anything but a list of problems.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema
from hypothesis import assume
from hypothesis import strategies as st

from dpfedadamw import spec
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.spec import crosschecks, datasets, models
from dpfedadamw.spec.checks import fill_defaults
from dpfedadamw.spec.vocabulary import (
    discriminators,
    pick_branch,
    resolve_reference,
    the_schema,
    types_of,
)
from dpfedadamw.spec.yamltext import write

KeyPath = tuple[str | int, ...]

# Named, because hypothesis would try every character whether UTF-8 can write it.
_ANY_CHARACTER = st.characters(exclude_categories=["Cs"])
# Text that may stand in a spec: anything but control characters and halves of pairs.
texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.just("\n"), max_size=40)


@dataclass(frozen=True)
class Broken:
    """A spec file with a fault.

    Attributes:
        kind: What was done to it.
        content: The file's bytes.
    """

    kind: str
    content: bytes


@functools.cache
def valid_specs() -> st.SearchStrategy[dict[str, Any]]:
    """Resolved mappings that are valid, every key present."""
    return _values(spec.schema()).map(_coherent)


def broken_specs() -> st.SearchStrategy[Broken]:
    """Spec files with one fault each."""
    return st.one_of(_FAULTS)


def _values(part: Any) -> st.SearchStrategy[Any]:
    """Values that a part of the schema allows, in their long form."""
    part = resolve_reference(part)
    if "oneOf" in part:
        branches = [resolve_reference(branch) for branch in part["oneOf"]]
        return st.one_of([_values(branch) for branch in branches if "properties" in branch])
    if "properties" in part:
        children = {key: _values(child) for key, child in part["properties"].items()}
        return st.fixed_dictionaries(children)
    if "const" in part:
        return st.just(part["const"])
    if "enum" in part:
        return st.sampled_from(part["enum"])
    if "pattern" in part and types_of(part) > {"string"}:
        words = {**part, "type": "string"}
        others = sorted(types_of(part) - {"string"})
        return st.one_of(_values(words), *(_of_type(name, part) for name in others))
    if "pattern" in part:
        return st.from_regex(part["pattern"].replace("$", r"\Z"), alphabet=_ANY_CHARACTER)
    return st.one_of([_of_type(name, part) for name in sorted(types_of(part))])


def _of_type(name: str, part: Any) -> st.SearchStrategy[Any]:
    if name == "null":
        return st.none()
    if name == "boolean":
        return st.booleans()
    if name == "object":
        # Whatever YAML can hold: somebody else's code is given it.
        plain = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | texts
        names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True, alphabet=_ANY_CHARACTER)
        return st.dictionaries(names, plain | st.lists(plain, max_size=3), max_size=3)
    if name == "string":
        return texts.filter(lambda text: len(text) >= part.get("minLength", 0))
    if name == "array":
        sizes = {"min_size": part["minItems"], "max_size": part["maxItems"]}
        return st.lists(_values(part["items"]), **sizes)
    low = part.get("minimum", part.get("exclusiveMinimum"))
    high = part.get("maximum", part.get("exclusiveMaximum"))
    if name == "integer":
        return st.integers(low, high)
    open_ends = {
        "exclude_min": "exclusiveMinimum" in part,
        "exclude_max": "exclusiveMaximum" in part,
    }
    return st.floats(float(low), float(high), **open_ends)


def _make_sampling_coherent(sampling: dict[str, Any]) -> None:
    """The rate is stated once, or not at all, and is 1 at most."""
    if sampling.get("rate") is not None:
        sampling["reference_size"] = None
    if sampling.get("reference_size") is not None:
        least = sampling["expected_batch_size"]
        sampling["reference_size"] = max(sampling["reference_size"], least)


def _coherent(mapping: dict[str, Any]) -> dict[str, Any]:
    """Make drawn values agree with each other."""
    mapping = copy.deepcopy(mapping)
    federation, model, algorithm = mapping["federation"], mapping["model"], mapping["algorithm"]
    privacy = mapping["privacy"]
    drawn = federation["clients_per_round"]
    federation["clients_per_round"] = min(drawn, mapping["data"]["clients"])
    most = federation["clients_per_round"] - 1
    if privacy.get("noise_added_by") == "clients":
        most = 0
    federation["drop_outs"] = min(federation["drop_outs"], most)
    _make_task_coherent(mapping)
    _make_data_coherent(mapping["data"])
    _make_people_coherent(mapping)
    privacy = mapping["privacy"]
    if model["name"] == "vit":
        model["width"] = model["heads"] * max(1, min(model["width"] // model["heads"], 65536))
        if mapping["data"]["dataset"] == "digits":
            model["patch"] = 2 ** (model["patch"] % 4)
    if model["name"] == "cnn":
        groups = model["groups"] = min(model["groups"], 64)
        model["channels"] = [max(1, size // groups) * groups for size in model["channels"]]
    if model.get("vocabulary"):
        model["vocabulary"] = max(model["vocabulary"], 257)
    if model["name"] == "module" or mapping["data"]["dataset"] == "given":
        federation["workers"], federation["engine"] = 1, "inline"
    budgets = ("noise_multiplier", "target_epsilon")
    if privacy["unit"] != "none" and all(privacy[key] is None for key in budgets):
        privacy["noise_multiplier"] = 1.0
    if privacy["unit"] == "none":
        federation["max_epsilon"] = None
    else:
        mapping["evaluation"]["training"] = False
    shared = mapping["budget"]
    if privacy["unit"] == "none" or None in shared.values():
        mapping["budget"] = dict.fromkeys(shared)
    tune = mapping["tune"]
    if tune["selection"] == "private" and privacy["unit"] not in ("record", "person"):
        tune = mapping["tune"] = {"selection": "none"}
    if tune["selection"] == "private" or str(tune.get("score")).startswith("validation_"):
        mapping["data"]["validation"]["fraction"] = 0.5
    if tune["selection"] == "private":
        mapping["budget"] = dict.fromkeys(mapping["budget"])
        privacy["target_epsilon"], federation["max_epsilon"] = None, None
        privacy["noise_multiplier"] = privacy["noise_multiplier"] or 1.0
    if privacy["unit"] in ("record", "person"):
        privacy["adjacency"] = crosschecks._PAIRINGS[privacy["sampling"]["kind"]][0]
        _make_sampling_coherent(privacy["sampling"])
    if privacy["unit"] == "client":
        federation["client_sampling"] = "poisson"
    name = _fitting(algorithm["name"], privacy["unit"])
    if name != algorithm["name"]:
        bare = {**mapping, "algorithm": {"name": name}}
        algorithm = mapping["algorithm"] = fill_defaults(bare)["algorithm"]
    if privacy["unit"] == "client" and "averaging" in algorithm["server"]:
        algorithm["server"]["averaging"] = None
    if ALGORITHMS[algorithm["name"]].adaptive:
        federation["client_sampling"] = "fixed"
        sampling = privacy["sampling"]
        if ALGORITHMS[algorithm["name"]].budgeted and sampling["kind"] == "shuffled":
            sampling["kind"] = "fixed"
    if "local_iterations" in algorithm:
        # Its steps are fitted to a target.
        if tune["selection"] == "private":
            mapping["tune"] = {"selection": "none"}
        bounds = algorithm["local_iterations"]
        bounds["maximum"] = max(bounds["minimum"], bounds["maximum"])
        steps = max(bounds["minimum"], min(bounds["maximum"], federation["local_steps"]))
        federation["local_steps"] = steps
        for key in budgets:
            privacy[key] = privacy[key] or 1.0
    if "second_moment" in algorithm:
        second = algorithm["second_moment"]
        if algorithm["name"] == "fedadamw":
            second["debias"] = False
        if second["aggregation"] in ("full", "none"):
            second["denominator"] = "coordinate"
        if second["aggregation"] == "none":
            second["counter"] = "global"
    return mapping


def _make_people_coherent(mapping: dict[str, Any]) -> None:
    """People who are protected are named by the data, and what is counted by client is left out."""
    data, federation, privacy = mapping["data"], mapping["federation"], mapping["privacy"]
    if privacy["unit"] == "person" and "person" not in data:
        privacy = mapping["privacy"] = {**privacy, "unit": "record"}
        del privacy["records_per_person"]
    read = (data.get("label"), *data.get("targets", ()), *data.get("text", ()))
    if "person" in data and data["dataset"] != "visits" and data["person"] in read:
        data["person"] = None
    if data["dataset"] == "visits":
        data["person"] = data["person"] and _person(data)
        if data["partition"]["kind"] == "column":
            data["partition"]["column"], data["partition"]["file"] = "hospital", None
    if privacy["unit"] != "person":
        federation["clients_per_person"] = 1
        return
    data["person"] = _person(data)
    federation["clients_per_person"] = min(federation["clients_per_person"], data["clients"])
    mapping["compute"]["precision"] = "float32"
    federation["max_epsilon"] = None


def _make_task_coherent(mapping: dict[str, Any]) -> None:
    """A task that data and model can do, and data that say what it asks for."""
    task, data, model = mapping["task"], mapping["data"], mapping["model"]
    able = datasets()[data["dataset"]].has_targets and task["kind"] in models()[model["name"]].tasks
    language = task["kind"] == "causal_lm"
    if language:
        able = datasets()[data["dataset"]].has_texts and model["name"] == "transformers"
    if not able or (data["dataset"] == "table" and task["kind"] == "token_classification"):
        language = False
        task = mapping["task"] = {
            "kind": "classification", "loss": "cross_entropy", "focal_gamma": 2.0,
            "class_weights": [],
        }  # fmt: skip
    if language:
        mapping["evaluation"]["metrics"] = []
        task["loss_on"], model["pooling"] = "text", "published"
        if "columns" in data:
            data["columns"] = []
        if model["fine_tuning"]["kind"] == "head":
            model["fine_tuning"] = {"kind": "all"}
    if "gradient_checkpointing" in model and (not language or model["fine_tuning"].get("dropout")):
        model["gradient_checkpointing"] = False
    if mapping["evaluation"]["metrics"]:
        mapping["evaluation"]["public_test"] = True
    partition = data["partition"]
    if task["kind"] != "classification" and partition["kind"] in crosschecks._BY_CLASS:
        kept = {key: partition[key] for key in ("minimum_records", "seed")}
        data["partition"] = {"kind": "iid", **kept}
    if data["dataset"] == "table":
        classes = task["kind"] == "classification"
        data["label"] = (data["label"] or "diagnosis") if classes else None
        data["targets"] = [] if classes or language else data["targets"] or ["price"]
        named = [f"{place} {name[:100]}" for place, name in enumerate(data["classes"])]
        data["classes"] = named if classes and len(named) > 1 else []
        told = data["targets"] or [data["label"]]
        free = next(name for name in map("words{}".format, itertools.count()) if name not in told)
        data["text"] = [name for name in data["text"] if name not in told] or [free]
    tune = mapping["tune"]
    if task["kind"] == "regression" and str(tune.get("score")).endswith("_accuracy"):
        tune["score"] = tune["score"].replace("accuracy", "loss")


def _make_data_coherent(data: dict[str, Any]) -> None:
    if "revision" in data and (data["path"] is None) == (data["revision"] is None):
        data["path"], data["revision"] = "records", None
    if data["dataset"] == "given":
        data["numbers"], data["records"] = [], None
        told = data["targets"] or [data["label"]]
        data["text"] = [name for name in data["text"] if name not in told]
    if "most_records_per_person" in data and data["person"] is None:
        data["most_records_per_person"] = None
    if data["dataset"] in ("table", "given"):
        columns = data["columns"] = _columns_made_coherent(data["columns"])
        data["column_noise_multiplier"] = None
        data["text"] = [] if columns else data["text"][:1]
        data["numbers"] = []
    if data["dataset"] == "table":
        data["missing_values"] = [word for word in data["missing_values"] if word.startswith("N")]
        data["unlabelled"] = "refuse"
    if data["partition"]["kind"] == "column":
        of_table = data["dataset"] in ("table", "given")
        data["partition"]["column"] = "owner" if of_table else None
        data["partition"]["file"] = None if of_table else "owners.txt"
    data["validation"]["public"] = True


def _person(data: dict[str, Any]) -> str:
    """What names people: a pattern of the files' names, or a column."""
    return "{person}_" if data["dataset"] == "image-folder" else "patient_id"


def _columns_made_coherent(columns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Columns of different names, whose bounds, categories and words agree."""
    for number, column in enumerate(columns):
        column["name"] = f"{column['name'][:100]} {number}"
        match column["kind"]:
            case "number":
                # tests/dpfedadamw/run/test_columns.py has specs of bounds that are learnt.
                column["learn_quantiles"] = []
                low, high = sorted((column["low"], column["high"]))
                column["low"], column["high"] = min(low, 1e29), max(high, low + 1.0, 1.01e29)
            case "date":
                column["low"], column["high"], column["missing"] = "2000-01-01", "2030-12-31", None
            case "category":
                column["missing"] = None
                column["categories"] = sorted({f"c{one[:100]}" for one in column["categories"]})
                if column["categories"]:
                    column["buckets"] = None
                else:
                    column["buckets"], column["unseen"] = column["buckets"] or 2, "refuse"
            case "boolean":
                column["true_words"] = [f"1{word[:40]}" for word in column["true_words"]]
                column["false_words"] = [f"0{word[:40]}" for word in column["false_words"]]
    return columns


def _fitting(name: str, unit: str) -> str:
    """The algorithm itself, or one that runs under this privacy unit."""
    entry = ALGORITHMS[name]
    unit = "record" if unit == "person" else unit
    if unit in entry.units:
        return name
    return "dp-fedavg" if unit == "client" else entry.relatives[unit]


def fields(mapping: dict[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every path of a resolved mapping, sections too, with its part of the schema."""

    def walk(part: Any, value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
        part = resolve_reference(part)
        yield path, part
        if isinstance(value, dict):
            branch = pick_branch(part, value) if "oneOf" in part else part
            assert branch is not None
            for key, child in branch.get("properties", {}).items():
                if key in value:
                    yield from walk(child, value[key], (*path, key))
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from walk(part["items"], item, (*path, index))

    yield from walk(the_schema(), mapping, ())


def _get(value: Any, path: KeyPath) -> Any:
    for part in path:
        value = value[part]
    return value


def _set(mapping: dict[str, Any], path: KeyPath, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(mapping)
    _get(changed, path[:-1])[path[-1]] = value
    return changed


def _breaks_schema(mapping: dict[str, Any]) -> bool:
    """Whether an ordinary JSON Schema validator, without any of our rules, refuses it."""
    return not ordinary_validator().is_valid(mapping)


@functools.cache
def ordinary_validator() -> jsonschema.Draft202012Validator:
    """A JSON Schema validator that knows nothing of ours."""
    return jsonschema.Draft202012Validator(spec.schema())


@st.composite
def _wrong_type(draw: st.DrawFn) -> Broken:
    mapping = draw(valid_specs())
    path, _ = draw(st.sampled_from([field for field in fields(mapping) if field[0]]))
    plain = st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | texts
    value = draw(st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
    changed = _set(mapping, path, value)
    assume(_breaks_schema(changed))
    return Broken(f"wrong type at {path}", write(changed).encode())


@st.composite
def _out_of_range(draw: st.DrawFn) -> Broken:
    mapping = draw(valid_specs())
    numeric = [field for field in fields(mapping) if types_of(field[1]) & {"integer", "number"}]
    path, part = draw(st.sampled_from([field for field in numeric if "const" not in field[1]]))
    beyond: list[Any] = [-(10**400), 10**400, 1e300, -1e300]
    for limit, step in (("minimum", -1), ("maximum", 1)):
        # A step that a large limit does not swallow: 1e30 + 1 is 1e30.
        beyond += [part[limit] + step * max(1, abs(part[limit]))] if limit in part else []
    beyond += [part[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if key in part]
    return Broken(
        f"out of range at {path}",
        write(_set(mapping, path, draw(st.sampled_from(beyond)))).encode(),
    )


@st.composite
def _unknown_key(draw: st.DrawFn) -> Broken:
    mapping = draw(valid_specs())
    sections = [path for path, _ in fields(mapping) if isinstance(_get(mapping, path), dict)]
    path = draw(st.sampled_from(sections))
    key = draw(texts)
    assume(key not in _get(mapping, path))
    changed = _set(mapping, (*path, key), draw(st.none() | st.integers() | texts))
    assume(_breaks_schema(changed))
    return Broken(f"unknown key in {path}", write(changed).encode())


@st.composite
def _missing_key(draw: st.DrawFn) -> Broken:
    mapping = draw(valid_specs())
    required: list[KeyPath] = []
    for path, part in fields(mapping):
        value = _get(mapping, path)
        if isinstance(value, dict):
            branch = pick_branch(part, value) if "oneOf" in part else part
            assert branch is not None
            required += [(*path, key) for key in branch.get("required", [])]
    path = draw(st.sampled_from(required))
    changed = copy.deepcopy(mapping)
    del _get(changed, path[:-1])[path[-1]]
    return Broken(f"missing {path}", write(changed).encode())


@st.composite
def _not_finite(draw: st.DrawFn) -> Broken:
    mapping = draw(valid_specs())
    path, _ = draw(st.sampled_from([f for f in fields(mapping) if "number" in types_of(f[1])]))
    marker = "placeholder-of-a-number"
    word = draw(st.sampled_from([".nan", ".NaN", ".inf", "-.inf", "+.Inf", "1e999", "-1e999"]))
    text = write(_set(mapping, path, marker)).replace(marker, word)
    return Broken(f"{word} at {path}", text.encode())


@st.composite
def _duplicate_key(draw: st.DrawFn) -> Broken:
    lines = write(draw(valid_specs())).splitlines()
    index = draw(st.sampled_from([i for i, line in enumerate(lines) if not line.endswith(":")]))
    lines.insert(index, lines[index])
    return Broken(f"line {index + 1} twice", "\n".join(lines).encode())


@st.composite
def _wrong_union(draw: st.DrawFn) -> Broken:
    mapping = draw(valid_specs())
    unions = [field for field in fields(mapping) if "x-discriminator" in field[1]]
    path, part = draw(st.sampled_from(unions))
    key = part["x-discriminator"]
    other = draw(st.sampled_from([*discriminators(part), "", "other"]))
    changed = _set(mapping, (*path, key), other)
    assume(_breaks_schema(changed))
    return Broken(f"{path} chooses {other}", write(changed).encode())


@st.composite
def _deep_nesting(draw: st.DrawFn) -> Broken:
    text = write(draw(valid_specs()))
    depth = draw(st.integers(21, 3000))
    start, end = draw(st.sampled_from([("[", "]"), ("{a: ", "}")]))
    return Broken(f"{depth} levels", f"{text}extra: {start * depth}{end * depth}\n".encode())


@st.composite
def _forbidden_yaml(draw: st.DrawFn) -> Broken:
    lines = write(draw(valid_specs())).splitlines()
    at = draw(st.sampled_from([i for i, line in enumerate(lines) if not line.endswith(":")]))
    key, _, value = lines[at].partition(": ")
    kind, line = draw(
        st.sampled_from(
            [
                ("anchor", f"{key}: &anchor {value}"),
                ("alias", f"{key}: *anchor"),
                ("tag", f"{key}: !!python/object:os.system {value}"),
                ("tab", f"{key}:\t{value}"),
                ("merge key", f"{key.replace(key.strip(), '<<')}: {value}"),
                ("second document", f"{lines[at]}\n---\n{lines[at]}"),
                ("open quote", f'{key}: "{value}'),
                ("open bracket", f"{key}: [{value}"),
                ("half a pair", f'{key}: "\\uD800"'),
                ("no such character", f'{key}: "\\UFFFFFFFF"'),
                ("complex key", f"{key.replace(key.strip(), '? [a]')}"),
            ]
        )
    )
    lines[at] = line
    return Broken(f"{kind} on line {at + 1}", "\n".join(lines).encode())


@st.composite
def _contradiction(draw: st.DrawFn) -> Broken:
    mapping = draw(valid_specs())
    data, federation, privacy = mapping["data"], mapping["federation"], mapping["privacy"]
    kinds = [
        "clients",
        "unit",
        "budget",
        "width",
        "channels",
        "floor",
        "pairing",
        "cohort",
        "records",
    ]
    kind = draw(st.sampled_from(kinds))
    if kind == "records":
        data["validation"] = {"fraction": 0.5, "public": False}
    elif kind == "clients":
        data["clients"] = draw(st.integers(1, 1000))
        federation["clients_per_round"] = data["clients"] + 1
    elif kind == "unit":
        other = "none" if privacy["unit"] != "none" else "record"
        name = _fitting(mapping["algorithm"]["name"], other)
        mapping["algorithm"] = {"name": name}
    elif kind == "budget":
        assume(privacy["unit"] != "none")
        privacy["noise_multiplier"] = privacy["target_epsilon"] = None
    elif kind == "pairing":
        assume(privacy["unit"] in ("record", "person"))
        other = {"add-remove": "replace-one", "replace-one": "add-remove"}
        privacy["adjacency"] = other[privacy["adjacency"]]
    elif kind == "cohort":
        assume(privacy["unit"] == "client")
        federation["client_sampling"] = "fixed"
    elif kind == "width":
        mapping["model"] = {"name": "vit", "width": 10, "heads": 4}
    elif kind == "channels":
        mapping["model"] = {"name": "cnn", "channels": [16, 18], "groups": 4}
    else:
        assume("second_moment" in mapping["algorithm"])
        both = {"relative": 1.0, "absolute": 1e-8}
        mapping["algorithm"]["second_moment"]["floor"] = draw(st.sampled_from([{}, both]))
    return Broken(f"contradiction: {kind}", write(mapping).encode())


@st.composite
def _garbage(draw: st.DrawFn) -> Broken:
    whole = write(draw(valid_specs())).encode()
    noise = draw(st.binary(min_size=1, max_size=200))
    at = draw(st.integers(0, len(whole)))
    how: Callable[[], bytes] = draw(
        st.sampled_from(
            [
                lambda: noise,
                lambda: whole[:at] + b"\xff" + whole[at:],
                lambda: whole[:at] + b"\x00" + whole[at:],
                lambda: whole[: len(whole) // 4] + noise,
                lambda: whole.decode().encode("utf-16"),
                lambda: b"",
            ]
        )
    )
    return Broken("garbage", how())


_FAULTS = [
    _wrong_type(),
    _out_of_range(),
    _unknown_key(),
    _missing_key(),
    _not_finite(),
    _duplicate_key(),
    _wrong_union(),
    _deep_nesting(),
    _forbidden_yaml(),
    _contradiction(),
    _garbage(),
]
