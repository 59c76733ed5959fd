"""JSON and YAML: what two readers could take for two things is refused with its reason."""

from __future__ import annotations

import json
import time

import pytest

from audit.untrusted.documents import (
    MAXIMUM_DEPTH,
    MAXIMUM_YAML_BYTES,
    MAXIMUM_YAML_NODES,
    DocumentError,
    is_plain_json,
    is_tight_json,
    parse_json,
    parse_yaml,
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1e999}', "not finite"),
        (b'{"a":NaN}', "not a number"),
        (b'{"a":-Infinity}', "not a number"),
        (b'{"a":1,"a":2}', "duplicate"),
        (b"[" * 40 + b"]" * 40, "nested"),
        (b'{"a":' + b"9" * 5000 + b"}", "digits"),
        (b"\xff", "UTF-8"),
        (b"{", "valid JSON"),
    ],
)
def test_bad_json_is_refused_with_its_reason(text: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"a: &x [1]\nb: *x", "anchor"),
        (b"a: &x 1", "anchor"),
        (b"a: 1\na: 2", "duplicate"),
        (b"a: .inf", "not finite"),
        (b"a: !!python/object:os.system 1", "valid YAML"),
        (b"? [1]\n: 2", "not text"),
        (b"? {a: 1}\n: 2", "not text"),
        (b"? {a: 1, a: 2}\n: 3", "not text"),
        (b"a: {1: 2}", "not text"),
        (b"true: 1", "not text"),
        (b"null: 1", "not text"),
        (b"2026-01-02: 1", "not text"),
        (b"? !!binary YQ==\n: 1", "not text"),
        (b"a: " + b"[" * 40 + b"]" * 40, "nested"),
        (b"a: [", "valid YAML"),
        (b"a: 1\n---\nb: 2\n", "valid YAML"),
        (b"a: [0x" + b"f" * 300 + b"]", "^has an integer of more than 20 digits$"),
        (b"a: -1" + b"0" * 20, "^has an integer of more than 20 digits$"),
    ],
)
def test_bad_yaml_is_refused_with_its_reason(text: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        parse_yaml(text)


def test_yaml_numbers_without_a_dot_are_numbers() -> None:
    assert parse_yaml(b"a: -" + b"9" * 20) == {"a": -(10**20 - 1)}
    assert parse_yaml(b"a: 1e-5\nb: 1.0e-05\nc: 3\nd: null\n") == {
        "a": 1e-5,
        "b": 1e-5,
        "c": 3,
        "d": None,
    }


@pytest.mark.parametrize("text", ["[" * 40, '"' + "[{" * 40, "]" * 40 + '\\"{\\\\'])
def test_brackets_inside_of_texts_are_no_depth(text: str) -> None:
    written = json.dumps([text, {text: text}])
    assert parse_json(written.encode()) == json.loads(written)
    with pytest.raises(DocumentError, match="valid JSON"):
        parse_json(json.dumps(text)[:-1].encode())
    with pytest.raises(DocumentError, match="nested") as caught:
        parse_json(written.encode() + b"[" * 40)
    assert caught.value.nested


def test_the_deepest_document_that_is_accepted_is_read() -> None:
    deepest = "[" * MAXIMUM_DEPTH + '"[{"' + "]" * MAXIMUM_DEPTH
    assert parse_json(deepest.encode()) == json.loads(deepest)
    with pytest.raises(DocumentError, match="nested"):
        parse_json(b"[" + deepest.encode() + b"]")


def test_the_detail_of_a_refusal_names_the_key_or_number() -> None:
    for raw, detail in ((b'{"k":1,"k":2}', "'k' appears twice"), (b"[NaN]", "NaN is not a JSON")):
        with pytest.raises(DocumentError) as caught:
            parse_json(raw)
        assert detail in caught.value.detail


def test_a_yaml_text_is_refused_by_its_length_before_it_is_parsed() -> None:
    """A megabyte takes the parser seconds, whatever it says."""
    text = b"a: [" + b"1," * (MAXIMUM_YAML_BYTES // 2) + b"1]"
    started = time.process_time()
    with pytest.raises(DocumentError, match="is larger than 1048576 bytes"):
        parse_yaml(text)
    assert time.process_time() - started < 0.1


def test_a_spec_of_as_many_columns_as_a_run_keeps_is_read() -> None:
    """A run of 930 columns trained, and its own spec.yaml was refused at 128 KiB."""
    text = "a:\n" + "".join(
        f"  - {{name: g{i}, kind: number, low: 0.0, high: 1.0, note: {'x' * 80}}}\n"
        for i in range(1_900)
    )
    assert len(text) > 1 << 17
    assert len(parse_yaml(text.encode())["a"]) == 1_900


def test_a_yaml_text_is_refused_by_its_keys_and_values_before_more_of_them_are_read() -> None:
    fits = b"a: [" + b"1," * (MAXIMUM_YAML_NODES - 3) + b"]"  # with the mapping, key and list
    assert len(parse_yaml(fits)["a"]) == MAXIMUM_YAML_NODES - 3
    with pytest.raises(DocumentError, match=f"has more than {MAXIMUM_YAML_NODES} keys and values"):
        parse_yaml(fits.replace(b"]", b"1]"))


def test_the_last_of_many_keys_that_appears_twice_is_found_at_once() -> None:
    keys = [*range(19_000), 18_999]
    started = time.process_time()
    with pytest.raises(DocumentError) as caught:
        parse_yaml("".join(f"k{key}: 1\n" for key in keys).encode())
    assert "'k18999' appears twice" in caught.value.detail
    assert time.process_time() - started < 5


@pytest.mark.parametrize("end", ["1", "1.5"])
def test_a_number_in_sixties_takes_no_minutes_and_no_traceback(end: str) -> None:
    started = time.process_time()
    with pytest.raises(DocumentError, match="has a number of more than 400 characters"):
        parse_yaml(f"a: {'1:' * 500_000}{end}".encode())
    assert time.process_time() - started < 5


def test_a_number_in_sixties_beyond_all_floats_is_refused() -> None:
    with pytest.raises(DocumentError, match="is not valid YAML"):
        parse_yaml(f"a: {'1:' * 190}1.5".encode())


@pytest.mark.parametrize("value", [{"a": [1, 2.5e-9], "é": "\ud800"}, [], {"a": {}, "b": None}, 7])
def test_json_is_plain_as_python_writes_it_and_no_longer(value: object) -> None:
    for options in ({"separators": (",", ":")}, {}, {"indent": 2}, {"ensure_ascii": False}):
        raw = json.dumps(value, **options).encode(errors="surrogatepass")
        assert is_plain_json(raw, value)
        assert is_plain_json(raw + b"\n", value)
        assert is_tight_json(raw, value)
        for more in (b" ", b"\n\n", b"\t", b"\r\n"):
            assert not is_plain_json(raw + more, value)


def test_json_of_other_writers_is_tight_where_little_can_be_hidden_in_it() -> None:
    for raw in (
        b'{"a":1.50000000000000000000000000e+00, "b":[1,2]}',
        b'{\r\n    "a": 1.5,\r\n    "b": [\r\n        1,\r\n        2\r\n    ]\r\n}\r\n',
        b'{\n\t"a": 15e-1,\n\t"b": [1, 2]\n}\n',
    ):
        assert is_tight_json(raw, {"a": 1.5, "b": [1, 2]})
    for digits, tight in ((30, True), (31, False), (40, False)):
        assert is_tight_json(b'{"a":1.' + b"5" * digits + b"}", {"a": 1.5}) is tight
    assert not is_tight_json(b'{"a":1.5}' + b" \t" * 10, {"a": 1.5})
    # What a text holds is not its spelling.
    text = {"a": ' "9' * 50}
    assert is_tight_json(json.dumps(text).encode(), text)
