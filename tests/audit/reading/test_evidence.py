"""The private evidence: every array is read by its name, of one type and one shape alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from audit.reading import client_evidence, evidence, loop_evidence
from audit.reading.columns import read_histograms
from audit.reading.evidence import (
    Layout,
    read_coordinate_sums,
    read_holdings,
    read_layout,
    read_moments,
    read_people,
    read_probe,
    read_records,
    read_round,
)
from audit.reading.exchanges import read_exchange, read_release
from audit.untrusted.archives import Arrays
from audit.untrusted.fields import FieldError

BLOCKS, SAMPLED, PARAMETERS = 4, 5, 12
# A byte is a whole number of any width, so that a digest of it is that of the number.
KINDS = {"int": "iu", "byte": "iu", "float": "f", "bytes": "u", "text": "U"}


def layout(unit: str = "record", beta2: float | None = None, sampled: int = SAMPLED) -> Layout:
    """Four blocks of three coordinates, of which five are sampled."""
    return Layout(
        parameters=PARAMETERS,
        kind="tensor",
        names=("a", "b", "c", "d"),
        sizes=np.full(BLOCKS, 3),
        beta2=beta2,
        sample_coordinates=np.arange(sampled),
        round_files=2,
        unit=unit,
        tensors=(("w", PARAMETERS),),
        of_coordinate=np.repeat(np.arange(BLOCKS), 3),
    )


@dataclass(frozen=True)
class Column:
    """An array of an archive.

    Attributes:
        kind: of its numbers.
        shape: its axes, as letters or numbers; those with a star are of any length.
        place: where it is read to.
        leader: the array without which it is not asked for; its own name if it may be left out.
        any: whether numbers that are not finite are read too.
    """

    kind: str
    shape: tuple[str, ...]
    place: str
    leader: str | None = None
    any: bool = False


@dataclass(frozen=True)
class Archive:
    """An archive's arrays, and what reads them.

    Attributes:
        read: the reader.
        table: a line for each array: name, kind, axes, and then words that say the rest.
        values: numbers of arrays that must agree with others; those of all others are made up.
        letters: the lengths of axes.
    """

    read: Callable[[Arrays], Any]
    table: str
    values: Mapping[str, Any] = field(default_factory=dict)
    letters: Mapping[str, int] = field(default_factory=dict)

    def columns(self) -> dict[str, Column]:
        found = {}
        for line in filter(None, self.table.splitlines()):
            name, kind, shape, *words = line.split()
            rest = dict(word.split("=") for word in words if "=" in word)
            found[name] = Column(
                kind,
                () if shape == "-" else tuple(shape.split(",")),
                rest.get("as", name),
                rest.get("with", name if "optional" in words else None),
                "any" in words,
            )
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays that fit together; no two hold the same numbers."""
        rng = np.random.default_rng(7)
        lengths = {"B": BLOCKS, "m": SAMPLED, **self.letters}
        found: dict[str, np.ndarray] = {}
        for name, column in self.columns().items():
            axes = (axis.removesuffix("*") for axis in column.shape)
            shape = tuple(int(axis) if axis.isdigit() else lengths[axis] for axis in axes)
            match column.kind:
                case "int":
                    found[name] = rng.integers(0, 200, shape)
                case "byte":
                    found[name] = rng.integers(0, 256, shape)
                case "bytes":
                    found[name] = rng.integers(0, 256, shape, np.uint8)
                case "text":
                    found[name] = np.array([f"{name} {at}" for at in range(*shape)])
                case _:
                    found[name] = rng.random(shape)
            if name in self.values:
                found[name] = np.array(self.values[name], found[name].dtype)
                assert found[name].shape == shape, name
            if column.any:
                found[name] = found[name].astype(np.float32)
                found[name].flat[0], found[name].flat[-1] = np.nan, np.inf
        return found


ROUND = """
clients int S
attempt int -
batch_size int S,K
record_offsets int q
raw_norms float n any
clipped_norms float n any
inclusions int i*
nonfinite int S,K
divisor float S,K
noise_sum_squares float S,K,B
noise_sample float S,K,m
clean_sum_squares float S,K,B
upload_sha256 byte S,32
commitment byte S,32 optional
noise_silent int S,K optional
noise_largest float S,K optional
rows_sha256 byte S,32 optional
rows_used int i* optional
seen_rows int s optional as=seen.rows
seen_clients int s with=seen_rows as=seen.clients
seen_batches byte s,8 optional as=seen.batches
seen_contents byte s,16 with=seen_rows as=seen.contents
"""
MOMENT = """
v_noisy float S,B as=second_moment.noisy
v_clean float S,B as=second_moment.clean
v_corrected float S,B as=second_moment.corrected
subtracted float S as=second_moment.subtracted
tau int S as=second_moment.steps
floored int S,B as=second_moment.floored
"""
OF_ROUND: dict[str, Any] = {
    "values": {"record_offsets": [0, 2, 2, 5, 6, 8, 9]},
    "letters": {"S": 2, "K": 3, "q": 7, "n": 9, "i": 6, "s": 8},
}
REACH = "".join(
    f"\n{name} {kind} c with=spanning as=reach.{name}"
    for name, kind in {
        "least": "float",
        "greatest": "float",
        "lowest": "int",
        "highest": "int",
        "continuous": "int",
    }.items()
)

ARCHIVES = {
    "round": Archive(lambda arrays: read_round(arrays, layout()), ROUND, **OF_ROUND),
    "round of an adaptive rule": Archive(
        lambda arrays: read_round(arrays, layout(beta2=0.9)), ROUND + MOMENT, **OF_ROUND
    ),
    "round at client level": Archive(
        lambda arrays: client_evidence.read_round(arrays, layout("client")),
        """
clients int S
attempt int -
raw_norms float S any
clipped_norms float S any
nonfinite int -
divisor float -
noise_sum_squares float B
noise_sample float m
upload_noise_sum_squares float S,B optional
clean_sample float m
sample_places int m
further_tensors text f*
kept_digest byte 32 optional
upload_kept_digests byte S,32 with=kept_digest
elsewhere_sum_squares float - with=kept_digest
released float r* with=kept_digest
commitment byte S,32 optional
released_sample float m optional
noise_silent int - optional
noise_largest float - with=noise_silent
upload_noise_silent int S optional
upload_noise_largest float S with=upload_noise_silent
rows_sha256 byte S,32 optional
seen_rows int s optional as=seen.rows
seen_clients int s with=seen_rows as=seen.clients
seen_batches byte s,8 optional as=seen.batches
seen_contents byte s,16 with=seen_rows as=seen.contents
""",
        letters={"S": 3, "f": 2, "r": 6, "s": 7},
    ),
    "file of a loop": Archive(
        lambda arrays: loop_evidence.read_round(arrays, layout("loop")),
        """
clients int 1
attempt int -
attachment int -
batch_size int 1,K
rows int r optional
row_offsets int q with=rows
record_offsets int q
raw_norms float n any
clean_sample float K,m as=clean
expected_sample float K,m as=expected any
released_sample float K,m as=released
before_sample float K,m as=before
after_sample float K,m as=after
clean_sum_squares float 1,K,B
noise_sum_squares float 1,K,B
noise_sample float 1,K,m
noise_silent int 1,K
noise_largest float 1,K
divisor float 1,K as=measured_divisor
before_fingerprint int K
after_fingerprint int K
settings float K,G*,8
group int m
unused int K
skipped int K
""",
        values={
            "batch_size": [[2, 0, 5]],
            "record_offsets": [0, 2, 2, 7],
            "row_offsets": [0, 3, 3, 6],
            "group": [0, 1, 1, 0, 1],
        },
        letters={"K": 3, "q": 4, "n": 7, "r": 6, "G": 2},
    ),
    "end of a loop": Archive(
        loop_evidence.read_loop_end, "fingerprint int -\nunused int -\nskipped int -"
    ),
    "sums at coordinates of a loop": Archive(
        lambda arrays: read_coordinate_sums(arrays, layout("loop")),
        "rounds int -\nchosen int k as=-\nsquares float k",
        values={"chosen": [0, 4, 11]},
        letters={"k": 3},
    ),
    "sums at coordinates": Archive(
        lambda arrays: read_coordinate_sums(arrays, layout()),
        "rounds int -\nbefore float d as=-\nlast float d",
        letters={"d": PARAMETERS},
    ),
    "probe": Archive(
        read_probe,
        """
names text p
kind text p as=kinds
clipping_norm float -
batch_size int p
difference_norm float p any
norm_with float p any
norm_without float p any
""",
        letters={"p": 3},
    ),
    "probe with its sums": Archive(
        read_probe,
        """
names text p
kind text p as=kinds
clipping_norm float -
batch_size int p
difference_norm float p any as=-
sums_with float p,d any as=-
sums_without float p,d any as=-
""",
        letters={"p": 3, "d": 4},
    ),
    "people": Archive(
        read_people,
        "stored byte a*,16 as=-\ntest byte b*,16 optional as=-",
        letters={"a": 3, "b": 2},
    ),
    "records": Archive(
        read_records,
        """
records int -
rows int r
labels int r
contents byte r,16 optional
test_contents byte t*,16 with=contents
""",
        letters={"r": 4, "t": 3},
    ),
    "partition": Archive(
        read_holdings,
        """
client_of_record int a*
held int h
held_offsets int q* as=offsets
held_contents byte h,16 optional as=contents
""",
        values={"held_offsets": [0, 2, 2, 6]},
        letters={"a": 9, "h": 6, "q": 4},
    ),
    "moments": Archive(
        read_moments,
        """
numbers int c
mean float c
deviation float c
varying int c
spanning int c optional as=reach.spanning
"""
        + REACH.lstrip(),
        values={"numbers": [900, 900, 900], "varying": [0, 900, 3], "continuous": [200, 200, 200]},
        letters={"c": 3},
    ),
    "histograms": Archive(
        lambda arrays: read_histograms(arrays, 3, 6),
        "counts int c,e\nnoised float c,e",
        letters={"c": 3, "e": 6},
    ),
    "participation": Archive(
        lambda arrays: read_exchange(arrays, 7, BLOCKS, SAMPLED),
        """
broadcast bytes a*
upload bytes b*
memory_before bytes c*
memory_after bytes e*
points float Q,d any
gradients float Q,d any
square_sums float Q,B any optional
clean_sample float Q,m any
""",
        letters={"a": 3, "b": 4, "c": 5, "e": 6, "Q": 2, "d": 7},
    ),
    "release": Archive(
        lambda arrays: read_release(arrays, 7),
        "broadcast bytes a*\ncombined bytes b*\nreleased float d any",
        letters={"a": 3, "b": 4, "d": 7},
    ),
}

EVERY_ARCHIVE = pytest.mark.parametrize("archive", ARCHIVES)


def refused(archive: Archive, arrays: Arrays) -> bool:
    try:
        archive.read(arrays)
    except FieldError:
        return True
    return False


def found_at(result: Any, place: str) -> Any:
    for part in place.split("."):
        result = None if result is None else getattr(result, part)
    return result


def plain(value: Any) -> np.ndarray:
    """What was read as one row of numbers or texts, however it is held."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, tuple) and value and isinstance(value[0], bytes):
        return np.frombuffer(b"".join(value), np.uint8)
    return np.ravel(value)


@EVERY_ARCHIVE
def test_each_array_is_read_to_its_own_place(archive: str) -> None:
    one = ARCHIVES[archive]
    arrays = one.arrays()
    result = one.read(arrays)
    for name, column in one.columns().items():
        if column.place == "-":
            continue
        read, there = plain(found_at(result, column.place)), plain(arrays[name])
        if column.kind == "float":
            assert np.array_equal(read, there.astype(np.float64), equal_nan=True), name
        else:
            assert read.tolist() == there.tolist(), name


@EVERY_ARCHIVE
def test_an_array_is_missed_unless_an_older_run_may_not_have_it(archive: str) -> None:
    one = ARCHIVES[archive]
    arrays, columns = one.arrays(), one.columns()
    for name, column in columns.items():
        rest = {other: there for other, there in arrays.items() if other != name}
        if column.leader != name:
            assert refused(one, rest), name
            continue
        result = one.read(rest)
        for led in columns.values():
            if led.leader == name and led.place not in ("-", "row_offsets"):
                assert found_at(result, led.place) is None, name


def other_types(column: Column, there: np.ndarray) -> Iterator[np.ndarray]:
    for kind in (np.int64, np.uint8, np.float32, np.bool_, np.str_):
        if np.dtype(kind).kind not in KINDS[column.kind]:
            with np.errstate(invalid="ignore"):
                is_text = column.kind == "text"
                yield np.zeros(there.shape, kind) if is_text else there.astype(kind)


def other_shapes(column: Column, there: np.ndarray) -> Iterator[np.ndarray]:
    yield there[None]
    for axis, letter in enumerate(column.shape):
        yield there[(slice(None),) * axis + (0,)]
        if not letter.endswith("*"):
            yield np.take(there, range(there.shape[axis] - 1), axis)
            yield np.concatenate([there, np.take(there, [-1], axis)], axis)


@EVERY_ARCHIVE
def test_an_array_of_another_type_or_shape_is_refused(archive: str) -> None:
    one = ARCHIVES[archive]
    arrays = one.arrays()
    for name, column in one.columns().items():
        others = [*other_types(column, arrays[name])]
        if name != "fingerprint":
            others += other_shapes(column, arrays[name])
        for other in others:
            assert refused(one, {**arrays, name: other}), (name, other.dtype, other.shape)


@EVERY_ARCHIVE
def test_a_number_that_cannot_be_is_refused_wherever_it_stands(archive: str) -> None:
    """Norms, which the trainer cannot choose, may be infinite or no numbers."""
    one = ARCHIVES[archive]
    arrays = one.arrays()
    for name, column in one.columns().items():
        impossible: tuple[float, ...] = ()
        if column.kind == "int" and name != "fingerprint":
            impossible = (-1, 2**53 + 1)
        if column.kind == "byte":
            impossible = (-1, 256)
        if column.kind == "float" and not column.any:
            impossible = (np.nan, np.inf, -np.inf)
        for value in impossible:
            for place in (0, -1):
                there = arrays[name].copy()
                there.flat[place] = value
                assert refused(one, {**arrays, name: there}), (name, value, place)


def changed(archive: str, array: str, place: Any, value: Any) -> Any:
    """An archive read with one number changed, or a whole array."""
    arrays = ARCHIVES[archive].arrays()
    if place is None:
        arrays[array] = np.array(value, arrays[array].dtype)
    else:
        arrays[array][place] = value
    return ARCHIVES[archive].read(arrays)


@pytest.mark.parametrize(
    ("archive", "array", "place", "fits", "does_not"),
    [
        ("round", "record_offsets", 0, 0, 1),
        ("round", "record_offsets", -1, 9, 8),
        ("round", "record_offsets", -1, 9, 10),
        ("round", "record_offsets", 2, 2, 1),
        ("file of a loop", "record_offsets", 0, 0, 1),
        ("file of a loop", "record_offsets", 1, 2, 1),
        ("file of a loop", "batch_size", (0, 0), 2, 3),
        ("file of a loop", "row_offsets", 0, 0, 1),
        ("file of a loop", "row_offsets", -1, 6, 5),
        ("file of a loop", "row_offsets", -1, 6, 7),
        ("file of a loop", "row_offsets", 2, 3, 2),
        ("file of a loop", "group", 0, 1, 2),
        ("file of a loop", "group", -1, 0, 2),
        ("round at client level", "kept_digest", -1, 255, 256),
        ("round at client level", "upload_kept_digests", (-1, -1), 255, 256),
        ("sums at coordinates of a loop", "chosen", 1, 1, 0),
        ("sums at coordinates of a loop", "chosen", -1, PARAMETERS - 1, PARAMETERS),
        ("sums at coordinates of a loop", "squares", -1, 0.0, -1e-300),
        ("sums at coordinates", "before", -1, 0.0, -1e-300),
        ("sums at coordinates", "last", -1, 0.0, -1e-300),
        ("partition", "held_offsets", 0, 0, 1),
        ("partition", "held_offsets", -1, 6, 5),
        ("partition", "held_offsets", -1, 6, 7),
        ("partition", "held_offsets", 2, 2, 1),
        ("moments", "deviation", -1, 0.0, -1e-300),
        ("moments", "varying", -1, 900, 901),
        ("moments", "spanning", -1, 200, 201),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(
    archive: str, array: str, place: Any, fits: float, does_not: float
) -> None:
    changed(archive, array, place, fits)
    with pytest.raises(FieldError):
        changed(archive, array, place, does_not)


def emptied(archive: str, letters: str, **others: np.ndarray) -> dict[str, np.ndarray]:
    """An archive's arrays, zero, without anything along some axes; and others in their place."""
    found = {}
    for name, column in ARCHIVES[archive].columns().items():
        there = ARCHIVES[archive].arrays()[name]
        shape = [
            0 if axis.removesuffix("*") in letters.split() else side
            for axis, side in zip(column.shape, there.shape, strict=True)
        ]
        found[name] = np.zeros(shape, there.dtype)
    return {**found, **others}


NO_OFFSETS = np.zeros(1, np.int64)


def test_an_archive_of_nothing_is_refused() -> None:
    for archive, arrays in (
        ("round", emptied("round", "S n", record_offsets=NO_OFFSETS)),
        ("round", emptied("round", "K n", record_offsets=NO_OFFSETS)),
        ("file of a loop", emptied("file of a loop", "K n", record_offsets=NO_OFFSETS)),
        ("file of a loop", emptied("file of a loop", "G")),
        ("sums at coordinates of a loop", emptied("sums at coordinates of a loop", "k")),
        ("probe", emptied("probe", "p")),
        ("probe with its sums", emptied("probe with its sums", "p")),
        ("partition", emptied("partition", "h q")),
    ):
        assert refused(ARCHIVES[archive], arrays), archive


def test_a_round_without_clients_is_read() -> None:
    found = ARCHIVES["round"].read(emptied("round", "S K n", record_offsets=NO_OFFSETS))
    assert found.clients.shape == (0,)
    assert found.batch_size.shape == (0, 0)
    assert found.second_moment is None
    one, last = ARCHIVES["round at client level"], emptied("round at client level", "S")
    assert one.read(last).clients.shape == (0,)


def test_a_loop_s_gradients_that_are_not_finite_are_counted_step_by_step() -> None:
    norms = [np.nan, 1.0, 2.0, np.inf, 3.0, 4.0, np.nan]
    found = changed("file of a loop", "raw_norms", None, norms)
    assert found.nonfinite.tolist() == [[1, 0, 2]]
    assert np.array_equal(found.clipped_norms, np.float32(norms), equal_nan=True)
    arrays = ARCHIVES["file of a loop"].arrays()
    more = {"batch_size": np.array([[2, 5, 0]]), "record_offsets": np.array([0, 2, 7, 7])}
    found = ARCHIVES["file of a loop"].read({**arrays, **more})
    assert found.nonfinite.tolist() == [[1, 1, 0]]


def test_a_loop_of_which_no_coordinate_is_sampled_is_read() -> None:
    arrays = emptied("file of a loop", "m") | {
        name: ARCHIVES["file of a loop"].arrays()[name] for name in ("batch_size", "record_offsets")
    }
    offsets = ARCHIVES["file of a loop"].arrays()["row_offsets"]
    found = loop_evidence.read_round({**arrays, "row_offsets": offsets}, layout("loop", sampled=0))
    assert (found.clean.shape, found.group.shape) == ((3, 0), (0,))


def test_what_a_loop_does_not_have_is_empty_and_its_sums_are_divided_by_one() -> None:
    found = ARCHIVES["file of a loop"].read(ARCHIVES["file of a loop"].arrays())
    assert found.inclusions.tolist() == []
    assert found.upload_sha256.tolist() == [[0] * 32]
    assert found.divisor.tolist() == [[1.0] * 3]
    assert found.second_moment is None
    arrays = ARCHIVES["file of a loop"].arrays()
    del arrays["rows"]
    assert ARCHIVES["file of a loop"].read(arrays).row_offsets.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("archive", "module", "names"),
    [
        ("round", evidence, "clean_sum_squares"),
        ("round of an adaptive rule", evidence, "clean_sum_squares v_clean"),
        ("round at client level", client_evidence, "clean_sample"),
        ("file of a loop", loop_evidence, "clean_sum_squares clean_sample"),
    ],
)
def test_what_no_other_file_may_repeat_is_named_as_in_its_archive(
    archive: str, module: Any, names: str
) -> None:
    arrays = ARCHIVES[archive].arrays()
    found = module.private_numbers(ARCHIVES[archive].read(arrays))
    assert set(found) == {"raw_norms", "noise_sum_squares", "noise_sample", *names.split()}
    for name, values in found.items():
        assert np.array_equal(values, arrays[name].astype(np.float64), equal_nan=True), name


def test_a_probe_of_which_one_side_s_sums_are_kept_is_refused() -> None:
    arrays = ARCHIVES["probe"].arrays()
    for name in ("sums_with", "sums_without"):
        assert refused(ARCHIVES["probe"], {**arrays, name: np.zeros((3, 4))}), name


def test_a_fingerprint_below_zero_says_that_none_was_taken() -> None:
    for value, due in ((-1, None), (0, 0), (2**53, 2**53)):
        assert changed("end of a loop", "fingerprint", (), value).fingerprint == due


def test_sums_at_coordinates_are_those_before_the_last_round_and_its_own() -> None:
    arrays = ARCHIVES["sums at coordinates"].arrays()
    found = ARCHIVES["sums at coordinates"].read(arrays)
    assert found.squares.tolist() == (arrays["before"] + arrays["last"]).tolist()
    assert found.chosen is False
    chosen = ARCHIVES["sums at coordinates of a loop"]
    assert (chosen.read(chosen.arrays()).chosen, chosen.read(chosen.arrays()).last) == (True, None)


def test_norms_of_a_probe_follow_from_its_sums_where_these_are_kept() -> None:
    arrays = ARCHIVES["probe with its sums"].arrays()
    arrays["sums_with"] = np.array([[3.0, 4.0], [0.0, 0.0], [np.inf, 0.0]])
    arrays["sums_without"] = np.array([[0.0, 0.0], [5.0, 12.0], [np.inf, 0.0]])
    found = read_probe(arrays)
    assert found.norm_with.tolist() == [5.0, 0.0, np.inf]
    assert found.norm_without.tolist() == [0.0, 13.0, np.inf]
    assert found.difference_norm.tolist()[:2] == [5.0, 13.0]
    assert np.isnan(found.difference_norm[2])


def test_people_are_told_apart_by_their_digests_and_by_nothing_else() -> None:
    one, other, third = np.arange(48).reshape(3, 16)
    found = read_people({"stored": np.array([one, other, one]), "test": np.array([third, other])})
    assert found.test is not None
    numbers = [*found.stored.tolist(), *found.test.tolist()]
    assert numbers[0] == numbers[2] != numbers[1] == numbers[4]
    assert len(set(numbers)) == 3
    assert found.digests.tolist() == [row.tolist() for row in (one, other, one, third, other)]
    assert read_people({"stored": np.array([one, other])}).digests.shape == (2, 16)


LAYOUT: dict[str, Any] = {
    "format": 1,
    "parameters": PARAMETERS,
    "blocks": {
        "kind": "tensor",
        "names": ["first", "second"],
        "sizes": [6, 6],
        "runs": [
            {"name": "w", "stop": 8, "blocks": [0, 1]},
            {"name": "b", "stop": 12, "blocks": [1, 0]},
        ],
    },
    "beta2": 0.75,
    "sample_coordinates": [11, 0, 4],
    "per_round_files": 3,
    "unit": "client",
}


def with_value(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    source = copy.deepcopy(LAYOUT)
    node: Any = source
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return source


def test_a_layout_is_read_field_by_field() -> None:
    found = read_layout(LAYOUT)
    assert (found.parameters, found.kind, found.names) == (12, "tensor", ("first", "second"))
    assert (found.sizes.tolist(), found.sample_coordinates.tolist()) == ([6, 6], [11, 0, 4])
    assert (found.beta2, found.round_files, found.unit) == (0.75, 3, "client")
    assert found.tensors == (("w", 8), ("b", 4))
    assert found.of_coordinate.tolist() == [0] * 4 + [1] * 4 + [1] * 2 + [0] * 2


def test_runs_divide_their_own_tensor_wherever_it_begins() -> None:
    runs = [
        {"name": "w", "stop": 8, "blocks": [0, 1]},
        {"name": "b", "stop": 11, "blocks": [1, 0, 0]},
        {"name": "c", "stop": 12, "blocks": [1]},
    ]
    found = read_layout(with_value(("blocks", "runs"), runs))
    assert found.tensors == (("w", 8), ("b", 3), ("c", 1))
    assert found.of_coordinate.tolist() == [0] * 4 + [1] * 4 + [1, 0, 0] + [1]


def test_a_layout_of_the_least_and_of_the_most_is_read() -> None:
    for path, values in {
        ("beta2",): (None, 0.0, float(np.nextafter(1.0, 0.0))),
        ("sample_coordinates",): ([], [0], [11], [*range(12)]),
        ("per_round_files",): (0, 10**6),
        ("unit",): ("record", "person", "client", "loop"),
    }.items():
        for value in values:
            read_layout(with_value(path, value))
    one: dict[str, Any] = {"kind": "whole", "names": ["all"], "sizes": [1]}
    one["runs"] = [{"name": "w", "stop": 1, "blocks": [0]}]
    small = {**LAYOUT, "parameters": 1, "blocks": one, "sample_coordinates": [0]}
    assert read_layout(small).of_coordinate.tolist() == [0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 0),
        (("format",), 2),
        (("parameters",), 0),
        (("parameters",), 11),
        (("parameters",), 13),
        (("parameters",), 12.0),
        (("beta2",), -1e-9),
        (("beta2",), 1.0),
        (("beta2",), "0.9"),
        (("sample_coordinates",), [12]),
        (("sample_coordinates",), [-1]),
        (("sample_coordinates",), [3, 4, 3]),
        (("per_round_files",), -1),
        (("unit",), "none"),
        (("unit",), None),
        (("blocks", "kind"), 1),
        (("blocks", "names"), ["first"]),
        (("blocks", "names"), ["first", 2]),
        (("blocks", "names"), ["first", "second", "third"]),
        (("blocks", "sizes"), []),
        (("blocks", "sizes"), [12, 0]),
        (("blocks", "sizes"), [7, 5]),
        (("blocks", "sizes"), [6, 5]),
        (("blocks", "sizes"), [6, 6, 6]),
        (("blocks", "runs"), []),
        (("blocks", "runs", 0, "name"), 1),
        (("blocks", "runs", 0, "stop"), 0),
        (("blocks", "runs", 0, "stop"), 7),
        (("blocks", "runs", 0, "stop"), 12),
        (("blocks", "runs", 0, "blocks"), []),
        (("blocks", "runs", 0, "blocks"), [0, 1, 1]),
        (("blocks", "runs", 0, "blocks"), [0, 2]),
        (("blocks", "runs", 0, "blocks"), [0, -1]),
        (("blocks", "runs", 0, "blocks"), [0]),
        (("blocks", "runs", 1, "stop"), 8),
        (("blocks", "runs", 1, "stop"), 10),
        (("blocks", "runs", 1, "stop"), 13),
    ],
)
def test_a_layout_that_contradicts_itself_is_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(FieldError):
        read_layout(with_value(path, value))


def test_a_layout_has_no_more_parameters_than_its_reader_has_room_for() -> None:
    assert read_layout(LAYOUT, PARAMETERS).parameters == PARAMETERS
    with pytest.raises(FieldError, match="are more than model"):
        read_layout(LAYOUT, PARAMETERS - 1)


def test_a_hundred_thousand_million_parameters_are_the_most() -> None:
    """Beyond that the number itself is refused, and below only what does not add up to it."""

    def said(parameters: int) -> str:
        with pytest.raises(FieldError) as caught:
            read_layout(with_value(("parameters",), parameters))
        return str(caught.value)

    assert said(0) == said(10**11 + 1) != said(10**11) == said(13)


def test_a_block_without_coordinates_is_refused_though_all_else_agrees() -> None:
    for blocks in ([12, 0], [0, 12]):
        source = with_value(("blocks", "sizes"), blocks)
        for run in source["blocks"]["runs"]:
            run["blocks"] = [blocks.index(12)]
        with pytest.raises(FieldError):
            read_layout(source)


@pytest.mark.parametrize(
    "name", ["format", "parameters", "blocks", "sample_coordinates", "per_round_files", "unit"]
)
def test_a_layout_without_one_of_its_fields_is_refused(name: str) -> None:
    with pytest.raises(FieldError):
        read_layout({key: value for key, value in LAYOUT.items() if key != name})
