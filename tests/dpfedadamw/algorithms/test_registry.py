"""The table of algorithms, and what the schema, the rules and whole runs say of the same names."""

from __future__ import annotations

from typing import Any

import pytest

from dpfedadamw import spec
from dpfedadamw.algorithms.registry import ALGORITHMS, build, measured_beta2
from dpfedadamw.spec.section import keys_of
from dpfedadamw.spec.vocabulary import discriminators
from tests.dpfedadamw.algorithms.worlds import CLIENTS, model, section_of
from tests.runs import CLIENT_LEVEL as CLIENT_PRIVACY
from tests.runs import failing, judged, small_spec, verdicts

BRANCHES = discriminators(spec.schema()["properties"]["algorithm"])
PRIVATE = [name for name, entry in ALGORITHMS.items() if entry.unit == "record"]
CLIENT_LEVEL = [name for name, entry in ALGORITHMS.items() if "client" in entry.units]
NOT_PRIVATE = [name for name, entry in ALGORITHMS.items() if entry.unit == "none"]


def test_the_schema_has_the_names_of_the_table_and_no_other():
    assert set(BRANCHES) == set(ALGORITHMS)
    # Only what is private may be called so; other systems keep the names of their papers.
    assert all(ALGORITHMS[name].unit != "none" for name in BRANCHES if name.startswith("dp-"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_schema_takes_the_keys_of_the_algorithm_and_no_other(name):
    assert set(BRANCHES[name]["properties"]) == set(keys_of(ALGORITHMS[name].keys))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_under_every_other_unit_a_spec_is_told_what_to_use_instead(name):
    entry = ALGORITHMS[name]
    for unit in {"record", "client", "none"} - set(entry.units):
        if unit == "client" and entry.unit == "record":
            assert unit not in entry.relatives  # the message names all that there are
        else:
            assert (unit == "none") == (ALGORITHMS[entry.relatives[unit]].unit == "none")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_name_is_described(name):
    entry = ALGORITHMS[name]
    assert entry.summary[0] == entry.summary[0].lower() or entry.summary.startswith("AdamW")
    assert not entry.summary.endswith(".")
    assert entry.source
    assert name in BRANCHES[name]["properties"]["name"]["description"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rule_makes_as_many_queries_as_the_table_says(name):
    """The plan charges what the rule says; that it makes no more, the oracle enforces."""
    system = build(section_of(f"{{name: {name}}}"), model(), CLIENTS)
    assert system.local.queries_per_step == ALGORITHMS[name].queries_per_step


def _changed(value: Any, part: dict[str, Any]) -> Any:
    """Another value that the schema allows, for any leaf of an algorithm's section."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return next(choice for choice in part["enum"] if choice != value)
    if isinstance(value, int):
        return value + 1
    return value / 2 if value else 0.25


def _leaves(name: str) -> list[tuple[tuple[str, ...], Any]]:
    whole = section_of(f"{{name: {name}}}")
    found = []

    def walk(value: Any, part: Any, path: tuple[str, ...]) -> None:
        part = spec.vocabulary.resolve_reference(part)
        if "x-exactly-one" in part:
            found.append(((*path, "relative"), 0.5))
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, part["properties"][key], (*path, key))
        elif "const" not in part and len(part.get("enum", "ab")) > 1 and path != ("name",):
            found.append((path, _changed(value, part)))

    section = spec.vocabulary.fill_defaults({"algorithm": {"name": name}})["algorithm"]
    assert whole.name == name
    walk(section, BRANCHES[name], ())
    return found


# What only the federation uses, or what has no effect at the defaults of the other keys.
_ELSEWHERE = {("learning_rate",), ("schedule",)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_key_that_the_spec_takes_reaches_a_rule(name):
    plain = build(section_of(f"{{name: {name}}}"), model(), CLIENTS)
    for path, value in _leaves(name):
        if path in _ELSEWHERE:
            continue
        nested: Any = str(value).lower() if isinstance(value, bool) else value
        for key in reversed(path):
            nested = f"{{{key}: {nested}}}"
        section = f"{{name: {name}, {str(nested)[1:]}"
        changed = build(section_of(section), model(), CLIENTS)
        assert repr(changed) != repr(plain), f"{path} changes nothing"


def test_a_second_moment_is_measured_only_where_its_noise_is_known():
    def measured(section: str) -> float | None:
        return measured_beta2(section_of(section))

    assert measured("{name: dp-fedadamw, beta2: 0.99}") == 0.99
    assert measured("{name: dp-localadamw}") == 0.999
    # v contains λθ, or is a maximum, or is fed by one of two queries: there is nothing to compare.
    assert measured("{name: dp-fedadamw, decay: coupled}") is None
    assert measured("{name: dp-fedlada}") is None
    assert measured("{name: dp-fafed}") is None
    assert measured("{name: dp-fedopt}") is None


ABLATIONS = [
    "decay=coupled",
    *(f"second_moment.aggregation={kind}" for kind in ("full", "tensor", "layer", "hessian")),
    "second_moment.aggregation=none",
    "first_moment.aggregation=full",
    "second_moment.debias=false",
    "second_moment.floor={absolute: 1e-4}",
    "second_moment.denominator=block",
    "alignment=0",
    "weight_decay=0",
]


# The AdamW of its own, one of two queries a step, and one whose clients keep something.
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PRIVATE)
def test_every_private_name_trains_and_passes_its_audit(name, tmp_path):
    findings = judged(small_spec(name, rounds=2), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)


# Every name once, half of them with each party's noise; the other halves where slow tests are run.
BY = [
    pytest.param(name, by, marks=[pytest.mark.slow] if (place + turn) % 2 else [])
    for place, name in enumerate(CLIENT_LEVEL)
    for turn, by in enumerate(("server", "clients"))
]


# The server's noise, and the clients'.
@pytest.mark.sampled(11)
@pytest.mark.parametrize(("name", "by"), BY)
def test_every_name_of_client_level_trains_and_passes_its_audit(name, by, tmp_path):
    privacy = CLIENT_PRIVACY.replace("}", f", noise_added_by: {by}}}")
    findings = judged(small_spec(name, rounds=3, overrides=(f"privacy={privacy}",)), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)
    assert verdicts(findings)["views"] == "PASS"
    said = [text.startswith("no guarantee") for text in findings["qualifications"]]
    assert any(said) == (by == "server")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NOT_PRIVATE)
def test_every_name_without_privacy_trains_and_claims_nothing(name, tmp_path):
    assert judged(small_spec(name, rounds=2), tmp_path)["verdict"] == "NO CLAIM"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_ablation_of_dp_fedadamw_runs_from_the_spec_and_passes(ablation, tmp_path):
    findings = judged(small_spec(rounds=2, overrides=(f"algorithm.{ablation}",)), tmp_path)
    if ablation == "decay=coupled":
        # λθ is then part of v, and the noise that is subtracted from it cannot be told from it.
        assert findings["verdict"] == "NOT VERIFIED"
        # That nothing was computed again is said of every run, and of no weight in the verdict.
        assert {name for name, _ in failing(findings)} == {"second-moment", "reexecution"}
    else:
        assert findings["verdict"] == "PASS", failing(findings)
