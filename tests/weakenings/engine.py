"""Weakenings of what trains, charges, serves and stores: `dpfedadamw/`."""

from __future__ import annotations

from tests.weakenings.weakening import Weakening

WEAKENINGS = (
    Weakening(
        "rounds-begun-twice-forgotten",
        "dpfedadamw/run/setup.py",
        "repeated=plan.begun_again(journal.ledger.entries, parts.completed),",
        "repeated=0,",
        "a resumed run says that it has spent less so far than it was charged",
        ("tests/dpfedadamw/run/test_headline.py", "tests/dpfedadamw/run/test_training.py"),
    ),
    Weakening(
        "the-longest-array-limited-in-place-of-their-sum",
        "dpfedadamw/federation/flower/arrays.py",
        "return sum(len(data) for *_, data in wires.values()) <= most + HEADS",
        "return max((len(d) for *_, d in wires.values()), default=0) <= most + HEADS",
        "a client sends a thousand times what the server allows",
        ("tests/dpfedadamw/federation/flower/test_arrays.py",),
    ),
    Weakening(
        "one-record-more-than-the-bound",
        "dpfedadamw/data/partition.py",
        "permutation(size)[most:]",
        "permutation(size)[most + 1 :]",
        "a person moves the model by one record more than the claim says",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "kept-records-drawn-by-row-numbers",
        "dpfedadamw/data/partition.py",
        "np.random.default_rng([seed, 3, size])",
        "np.random.default_rng([seed, 3, size, int(order[starts[sizes == size][0]])])",
        "which of a person's records are used depends on who else is in the table",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "a-person-at-three-clients-charged-once",
        "dpfedadamw/budget/charges.py",
        'return _times(cost, int(entries[0].get("clients_per_person", 1)))',
        "return cost",
        "a shared budget lets a person be charged a third of what they spend",
        ("tests/dpfedadamw/run/test_person_level.py",),
    ),
    Weakening(
        "test-people-in-training",
        "dpfedadamw/data/datasets.py",
        "out = np.isin(numbers, drawn)",
        "out = np.isin(np.arange(len(numbers)), drawn)",
        "accuracy is measured on people who were trained on",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "a-row-of-a-service-in-another-unit",
        "dpfedadamw/data/handed_over.py",
        "return Numbers(preparation.prepare(rows, ",
        "return Numbers(-preparation.prepare(rows, ",
        "a served model answers other rows than it was given",
        ("tests/dpfedadamw/data/test_handed_over.py",),
    ),
)
