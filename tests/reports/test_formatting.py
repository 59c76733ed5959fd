"""How values are printed."""

from __future__ import annotations

from typing import Any

import pytest

from reports import formatting
from reports.formatting import formulated, settings, unformulated


def test_settings_are_told_by_dotted_names_in_their_order():
    values = {
        "rounds": 20,
        "model": {"hidden": [], "bias": False},
        "privacy": {"sampling": {"secure": True, "rate": None, "kinds": ["poisson", "full"]}},
    }
    assert settings(values) == [
        ("rounds", "20"),
        ("model.hidden", "none"),
        ("model.bias", "no"),
        ("privacy.sampling.secure", "yes"),
        ("privacy.sampling.rate", "none"),
        ("privacy.sampling.kinds", "poisson, full"),
    ]


def test_settings_that_somebody_made_too_long_too_many_or_too_deep_are_cut():
    """A spec may come from anywhere, and a page shows it."""
    within = [str(number) for number in range(32)]
    assert settings({"a": [*within, "one more"]}) == [("a", ", ".join(within))]
    assert settings({"a": ["b" * 40, "c" * 41]}) == [("a", f"{'b' * 40}, {'c' * 39}…")]
    assert settings({"a": "b" * 300, "c": "d" * 301}) == [
        ("a", "b" * 300), ("c", f"{'d' * 299}…"),
    ]  # fmt: skip
    assert settings({"a" * 61: {"b" * 61: 1}}) == [(f"{'a' * 59}….{'b' * 59}…", "1")]
    assert len(settings({f"key {number}": number for number in range(65)})) == 64
    assert settings({"a": {"b": {"c": {"d": {"e": 1}}}}}) == [("a.b.c.d", "{'e': 1}")]
    assert settings({"": 1, "a": 2}) == [("a", "2")]


PRINTED: list[tuple[Any, Any, str]] = [
    # A loss: rounded up, with two decimals, three digits if small, and none if large.
    (formatting.epsilon, None, "∞"),
    (formatting.epsilon, 0.0, "0"),
    (formatting.epsilon, 0.099901, "0.1000"),
    (formatting.epsilon, 0.1, "0.10"),
    (formatting.epsilon, 0.1001, "0.11"),
    (formatting.epsilon, 0.000123401, "0.000124"),
    (formatting.epsilon, 999.991, "1000.00"),
    (formatting.epsilon, 1000.0, "1,000"),
    (formatting.epsilon, 1000.01, "1,001"),
    (formatting.epsilon, 999_999_999_999.0, "999,999,999,999"),
    (formatting.epsilon, 1e12, "10¹²"),
    (formatting.power, None, "unknown"),
    (formatting.power, 0, "0"),
    (formatting.power, 0.001, "0.001"),
    (formatting.power, 0.0009996, "10⁻³"),
    (formatting.power, 0.00099, "9.9·10⁻⁴"),
    (formatting.power, -0.5, "-0.5"),
    (formatting.power, 10_000.0, "10⁴"),
    (formatting.power, -1.5e-7, "-1.5·10⁻⁷"),
    (formatting.power, 1.2346e-7, "1.23·10⁻⁷"),
    (formatting.decade, 1.0, "1"),
    (formatting.decade, 10.0, "10¹"),
    (formatting.decade, 1e-12, "10⁻¹²"),
    (formatting.decade, 1000.0, "10³"),
    (formatting.letters, 0, "A"),
    (formatting.letters, 25, "Z"),
    (formatting.letters, 26, "AA"),
    (formatting.letters, 51, "AZ"),
    (formatting.letters, 52, "BA"),
    (formatting.letters, 701, "ZZ"),
    (formatting.letters, 702, "AAA"),
    (formatting.count, None, "unknown"),
    (formatting.count, 1234.6, "1,235"),
    (formatting.count, 999, "999"),
    (formatting.plain, None, "unknown"),
    (formatting.plain, 3.0, "3"),
    (formatting.plain, 0.30000000000000004, "0.3"),
    (formatting.plain, 1234.56, "1235"),
    (formatting.plain, -2.5, "-2.5"),
    (formatting.plain, 0.001, "0.001"),
    (formatting.plain, 0.0005, "5·10⁻⁴"),
    (formatting.plain, 999_999.0, "999999"),
    (formatting.plain, 1_000_000.0, "10⁶"),
    (formatting.plain, 1_234_567.0, "1.235·10⁶"),
    (formatting.percent, None, "not measured"),
    (formatting.percent, 0.0, "0.0 %"),
    (formatting.percent, 1.0, "100.0 %"),
    # Half of a digit goes to the even one, as the decimal number was written.
    (formatting.percent, 0.8765, "87.6 %"),
    (formatting.percent, 0.8775, "87.8 %"),
    (formatting.percent, 1e12, "10¹²"),
    (formatting.size, None, "unknown"),
    (formatting.size, 0, "0 B"),
    (formatting.size, 999, "999 B"),
    (formatting.size, 1000, "1.0 kB"),
    (formatting.size, 1_550_000, "1.6 MB"),
    (formatting.size, 2.5e9, "2.5 GB"),
    (formatting.size, 1e12, "1.0 TB"),
    (formatting.size, 1.5e15, "1500.0 TB"),
]


@pytest.mark.parametrize(
    ("form", "value", "printed"),
    PRINTED,
    ids=[f"{form.__name__} {value}" for form, value, _ in PRINTED],
)
def test_a_value_is_printed_as_a_reader_expects_it(form: Any, value: Any, printed: str):
    assert form(value) == printed


@pytest.mark.parametrize("value", [0.0, 3e-7, 0.0999, 0.1, 4.7981, 999.999, 1000.5, 1e12, 3e14])
def test_the_number_of_a_printed_loss_is_what_stands_on_the_page(value: float):
    found = formatting.printed_epsilon(value)
    assert found >= value
    if value < 1e12:
        assert found == float(formatting.epsilon(value).replace(",", ""))
    else:
        assert found == value


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+SUM(A1)", "-cmd", "@x", "\tx", "\rx", " =1", "'=1", "''@x", "\uff1d1", "\uff0bx",
     "\uff0dx", "\uff20x"],
)  # fmt: skip
def test_no_cell_is_a_formula_and_each_is_read_back_as_it_was(text: str):
    assert unformulated(text) == f"'{text}"
    assert formulated(unformulated(text)) == text


@pytest.mark.parametrize(
    "text", ["", "name", "a=b", "'quoted", "-1", "+1.5", "-.5", "-1.", "-1e-05", "+2E+3", "1,2"]
)
def test_numbers_and_names_stand_in_a_cell_as_they_are(text: str):
    assert unformulated(text) == text
    assert formulated(text) == text


def test_rows_become_csv_that_any_reader_takes_apart_again():
    rows = [("name", "ε"), ("=1+1", 0.1), ('a "b", c', None), (True, 3)]
    assert formatting.as_csv(rows) == 'name,ε\n\'=1+1,0.1\n"a ""b"", c",\nTrue,3\n'


MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
}
# 1,234.5 as each language writes it, and how a date begins.
WRITTEN = {
    "en": ("en-GB", "1,234.5", "3 March 2026, 09:30 UTC"),
    "de": ("de-DE", "1.234,5", "3. März 2026, 09:30 UTC"),
    "fr": ("fr-FR", "1\u202f234,5", "3 mars 2026, 09:30 UTC"),
}


@pytest.mark.parametrize("language", formatting.LANGUAGES)
def test_each_language_has_its_own_months_signs_and_dates(language: str):
    writing = formatting.WRITING[language]
    tag, number, date = WRITTEN[language]
    assert list(writing.months) == MONTHS[language].split()
    assert (writing.tag, f"1{writing.thousands}234{writing.decimal}5") == (tag, number)
    moment = {"day": 3, "month": writing.months[2], "year": 2026, "time": "09:30"}
    assert writing.date.format(**moment) == date
    assert set(formatting.WRITING) == set(formatting.LANGUAGES) == set(MONTHS)
