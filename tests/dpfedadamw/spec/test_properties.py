"""Properties of reading specs: what is valid round-trips, what is broken is refused in words."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfedadamw import spec
from dpfedadamw.errors import SpecError
from dpfedadamw.spec import checks, vocabulary
from dpfedadamw.spec.yamltext import decode, parse, write
from tests.specs.strategies import Broken, broken_specs, ordinary_validator, texts, valid_specs

# Drawing a whole spec is slow by hypothesis' standards, and some drawn faults turn out to be none.
_RELAXED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=20, suppress_health_check=_RELAXED)
@given(broken=broken_specs())
def test_every_broken_spec_is_refused_with_a_line_or_a_path_and_nothing_else(broken: Broken, part):
    with pytest.raises(SpecError) as caught:
        spec.loads(decode(broken.content, "broken.yaml"), "broken.yaml")
    assert any(problem.line or problem.path for problem in caught.value.problems)
    for problem in caught.value.problems:
        assert str(problem).startswith("broken.yaml")
        assert len(str(problem).splitlines()) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=10, suppress_health_check=_RELAXED)
@given(mapping=valid_specs())
def test_every_valid_spec_round_trips_through_its_dump(mapping, part):
    loaded = spec.loads(write(mapping))
    assert loaded.to_mapping() == mapping
    text = spec.dump(loaded)
    assert spec.loads(text) == loaded
    assert spec.dump(spec.loads(text)) == text
    assert text.endswith("\n")
    # Other readers must see the same: YAML 1.1 here, and a plain JSON Schema validator.
    assert yaml.safe_load(text) == mapping
    assert ordinary_validator().is_valid(mapping)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=10, suppress_health_check=_RELAXED)
@given(mapping=valid_specs())
def test_resolving_a_resolved_mapping_changes_nothing(mapping, part):
    assert spec.resolve(mapping) == mapping
    assert spec.resolve(spec.resolve(mapping)) == spec.resolve(mapping)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=10, suppress_health_check=_RELAXED)
@given(mapping=valid_specs())
def test_a_spec_is_resolved_by_the_sections_that_it_names_as_by_all_that_are_registered(
    mapping, part
):
    assert checks._resolved_by_names(mapping) == vocabulary.fill_defaults(mapping)
    assert not list(checks._schema_problems(mapping, set()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=100)
@given(
    values=st.dictionaries(
        texts, texts | st.integers() | st.floats(allow_nan=False) | st.booleans()
    )
)
def test_what_is_written_reads_back_the_same_here_and_elsewhere(values, part):
    finite = {k: v for k, v in values.items() if not isinstance(v, float) or math.isfinite(v)}
    finite.pop("<<", None)
    text = write(finite) or "{}"
    assert parse(text, "text").value == finite
    assert parse(text, "text").problems == []
    assert yaml.safe_load(text) == finite


@settings(max_examples=100)
@given(
    st.lists(
        st.text(max_size=30)
        | st.sampled_from(
            ["privacy=3", "privacy.target_epsilon=4", "model.hidden[0]=x", "model.hidden.1.2=3"]
        )
        | st.builds("{}={}".format, st.sampled_from(["a.b", "data.clients", "model"]), st.text()),
        min_size=1,
        max_size=4,
    )
)
def test_no_override_raises_anything_but_a_spec_error(overrides):
    try:
        spec.load("quickstart", overrides)
    except SpecError as error:
        for problem in error.problems:
            assert len(str(problem).splitlines()) == 1
