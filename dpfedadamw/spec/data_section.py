"""The section `data` of a spec: the records and who holds them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionSpec:
    """How the training records are dealt out to clients.

    Attributes:
        kind: "dirichlet" (label skew), "iid", "shards" or "column".
        alpha: Concentration of the Dirichlet distribution, > 0; None for other kinds.
        minimum_records: Fewest records a client may hold, ≥ 1.
        shards_per_client: Shards that each client gets, ≥ 1; "shards" only.
        column: Column of the table that names each record's client; "column" only.
        file: File that names each training record's client; "column" only.
    """

    kind: str
    alpha: float | None
    minimum_records: int
    shards_per_client: int | None = None
    column: str | None = None
    file: str | None = None


@dataclass(frozen=True)
class ValidationSpec:
    """Which held-out records are a public validation set.

    Attributes:
        fraction: Share of the test records, in [0, 0.9]; 0 for none.
        public: Whether they were declared public; true wherever there are any.
    """

    fraction: float = 0.0
    public: bool = False


@dataclass(frozen=True)
class DataSpec:
    """The records and who holds them. Split and partition are public metadata.

    A key that the data set does not have is None or empty.

    Attributes:
        dataset: One of the names in the schema.
        path: Folder or file that is read; None for "digits" and for the hub.
        clients: Number of clients N, ≥ 1.
        partition: How records are dealt out.
        test_fraction: Share of the records held out for testing, in [0.01, 0.9]; None where the
            data set brings its test records.
        seed: Seed of the split and the partition; not a secret.
        sha256: Digest that the data must have; None for any.
        validation: Which held-out records are a public validation set.
        cache: Folder for prepared records; None for the user's own.
        augmentation: Of "flip" and "crop": random views of training images.
        revision: Commit on the Hugging Face hub; None where a path is read.
        repository: Repository there; None for the usual one.
        split: Split of "emnist".
        size: Side that the images of "image-folder" are resized to, or None.
        channels: Channels of the images of "image-folder", 1 or 3.
        test_path: Second table, with the test records, or None; "table" only.
        label: Column of the class; "table" only.
        text: One or two columns of text; "table" only.
        numbers: Columns of numbers; "table" only.
        classes: Labels that may occur, empty for those that do; "table" only.
    """

    dataset: str
    path: str | None
    clients: int
    partition: PartitionSpec
    test_fraction: float | None
    seed: int
    sha256: str | None = None
    validation: ValidationSpec = ValidationSpec()
    cache: str | None = None
    augmentation: tuple[str, ...] | None = None
    revision: str | None = None
    repository: str | None = None
    split: str | None = None
    size: int | None = None
    channels: int | None = None
    test_path: str | None = None
    label: str | None = None
    text: tuple[str, ...] | None = None
    numbers: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
