"""The section `data` of a spec: what all data sets have, and who holds the records.

Further keys stand with the data set that has them, in the file that registers it. Keys that
several have are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from dpfedadamw.registration import Registry
from dpfedadamw.spec.section import (
    LARGEST_SEED,
    AbsentInteger,
    AbsentNumber,
    AbsentText,
    AbsentTexts,
    Keys,
    Registered,
    Section,
    key,
    one_of,
    one_registered,
    registry,
)

PATH = (
    "Folder or file of the data set, in its publisher's layout (docs/data.md); a "
    "relative path starts at the working directory."
)


class PartitionSpec(Section, title="Partition"):
    """How the training records are dealt out to clients."""

    kind: str = key(..., "How training records are divided among clients.")
    alpha: AbsentNumber = None
    shards_per_client: AbsentInteger = None
    column: AbsentText = None
    file: AbsentText = None
    minimum_records: int = key(
        1,
        "Fewest training records that a client may hold. A random partition is redrawn until every "
        "client has them; if that fails, records are moved from the largest clients to the "
        "smallest. A client with few records is sampled at a high rate and spends more privacy. "
        "With data.person, this is the fewest people per client.",
        unit="records",
        ge=1,
        le=1_000_000_000,
        examples=(40,),
    )
    seed: int | None = key(
        None,
        "Seed of the partition alone, so that one split can be divided in different ways; public "
        "metadata. Null for data.seed.",
        title="Partition seed",
        ge=0,
        le=LARGEST_SEED,
        unit="none",
        examples=(None, 1),
    )


class DirichletPartition(PartitionSpec, title="Label-skewed partition"):
    """Each class is dealt out in proportions drawn from a symmetric Dirichlet distribution."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = key(
        0.6,
        "Concentration of the Dirichlet distribution: near 0 each client sees few classes, "
        "large values approach an even split.",
        title="Concentration",
        gt=0,
        le=1_000_000,
        examples=(0.1, 0.6),
    )


class EvenPartition(PartitionSpec, title="Even partition"):
    """Records are shuffled and dealt out evenly."""

    kind: Literal["iid"] = "iid"


class ShardsPartition(PartitionSpec, title="Shards"):
    """Records sorted by label are cut into equal shards (McMahan et al. 2017).

    Each client gets a few at random, and so sees few classes.
    """

    kind: Literal["shards"] = "shards"
    shards_per_client: int = key(
        2, "Shards that each client gets.", unit="shards", ge=1, le=1_000_000
    )


class GivenPartition(PartitionSpec, title="Given partition"):
    """The data say whose each record is: a column of the table, or a file.

    data.clients must be the number of clients there.
    """

    kind: Literal["column"] = "column"
    column: str | None = key(
        None,
        "Column of the table that names each record's client. Null if file is given.",
        min_length=1,
        max_length=200,
        examples=("hospital", None),
    )
    file: str | None = key(
        None,
        "A text file with the client of each training record, one per line in the records' order. "
        "Null if column is given.",
        min_length=1,
        max_length=4096,
        examples=("clients.txt", None),
    )


class ValidationSpec(Section, title="Validation"):
    """A part of the held-out records that settings may be tuned on.

    It is evaluated without noise, so it must be public.
    """

    fraction: float = key(
        0.0,
        "Share of the held-out test records to use as the validation set; 0 for none.",
        title="Validation fraction",
        ge=0,
        le=0.9,
        examples=(0.0, 0.1),
    )
    public: bool = key(
        False,
        "Declares that the validation records are public; without it there is no validation set.",
        examples=(True,),
    )


_Partition = Annotated[
    PartitionSpec,
    one_of("kind", DirichletPartition, EvenPartition, ShardsPartition, GivenPartition),
]
_View = Annotated[
    Literal["flip", "crop"], key(..., "One kind of random view.", title="Kind", examples=("flip",))
]
RequiredPath = Annotated[
    str, key(..., PATH, title="Path", min_length=1, max_length=4096, examples=("data/images",))
]
CacheFolder = Annotated[
    str | None,
    key(
        None,
        "Where decoded and tokenised records are cached for the next run, readable by their owner "
        "only; null for $XDG_CACHE_HOME/dpfedadamw, or ~/.cache/dpfedadamw.",
        title="Cache folder",
        min_length=1,
        max_length=4096,
        examples=(None, "/scratch/records"),
    ),
]
PersonColumn = Annotated[
    str | None,
    key(
        None,
        "Column with the person that each record is about. Training, test and validation records "
        "then share no person, and a random partition divides people; every claim says what it "
        "means for the person with most records. Null if each record is about a different person.",
        title="Person column",
        min_length=1,
        max_length=200,
        examples=(None, "patient_id"),
    ),
]
MostRecordsPerPerson = Annotated[
    int | None,
    key(
        None,
        "Most training records that one person keeps; the others of the same person are not used. "
        "Which ones are kept follows from their number and data.seed alone. With privacy.unit "
        "record, the claim's ε for a person is then the one for so many records, whatever the data "
        "hold. Null keeps all, and that ε is for the person with most records.",
        title="Most records of a person",
        unit="records",
        ge=1,
        le=1000,
        examples=(None, 4),
    ),
]
TestFraction = Annotated[
    float,
    key(
        0.2,
        "Share of the records held out for testing, if the data set has no test records of its "
        "own.",
        ge=0.01,
        le=0.9,
    ),
]
HeldOut = Annotated[
    float | None,
    key(
        0.2,
        "Share of the records held out for testing, if the data have no test records of their own. "
        "If they do, none are held out, and the resolved spec says null.",
        title="Test fraction",
        ge=0.01,
        le=0.9,
        examples=(0.2, None),
    ),
]
Augmentation = Annotated[
    tuple[_View, ...],
    key(
        (),
        "Random views of training images, one per record and step, which leaves the sensitivity "
        "unchanged. Flip mirrors left to right with probability 1/2, crop moves by up to an eighth "
        "of the side.",
        max_length=2,
        examples=((), ("flip", "crop")),
    ),
]


class DataSpec(Section, title="Data"):
    """The records and who holds them."""

    dataset: str = key(
        ...,
        "Where the records come from; `dpfedadamw list datasets` describes each. Publishers' files "
        "and your own are read from path.",
    )
    path: AbsentText = None
    revision: AbsentText = None
    repository: AbsentText = None
    sha256: str | None = key(
        None,
        "Pins the data: any other data are refused, with both digests. A run's ledger and internal "
        "report hold the digest of the data read.",
        title="Digest",
        pattern=r"^[0-9a-f]{64}$",
        expected="64 hexadecimal digits in lower case, or null",
        examples=(None, "0" * 64),
    )
    cache: AbsentText = None
    person: AbsentText = None
    clients: int = key(
        10,
        "Number of clients N that hold the training records.",
        unit="clients",
        ge=1,
        le=100_000,
        examples=(10, 50),
    )
    partition: _Partition = key(
        DirichletPartition(),
        "How the training records are divided among clients; each record goes to exactly one "
        "client.",
    )
    test_fraction: AbsentNumber = None
    validation: ValidationSpec = ValidationSpec()
    augmentation: AbsentTexts = None
    seed: int = key(
        0,
        "Seed of the split and of the partition, which are public metadata: this seed is no "
        "secret.",
        title="Data seed",
        ge=0,
        le=LARGEST_SEED,
        unit="none",
        examples=(0, 1),
    )


class PublishedSpec(DataSpec):
    """What is read from its publisher's files or from the hub."""

    path: str | None = key(
        None,
        f"{PATH} Null where revision is given.",
        min_length=1,
        max_length=4096,
        examples=("data/fashion-mnist", None),
    )
    revision: str | None = key(
        None,
        "Commit of the data set on the Hugging Face hub, read instead of a path; needs the extra "
        "hub.",
        pattern=r"^[0-9a-f]{40}$",
        expected="a commit's 40 hexadecimal digits, or null",
        examples=(None, "0123456789abcdef0123456789abcdef01234567"),
    )
    repository: str | None = key(
        None,
        "Repository on the hub, such as a mirror's; null for the usual one.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$",
        expected="OWNER/NAME, or null",
        examples=(None, "uoft-cs/cifar10"),
    )
    cache: CacheFolder = None


class PublishedImagesSpec(PublishedSpec, title="Published images"):
    """Images in their publisher's files.

    MNIST and Fashion-MNIST (IDX), CIFAR (binary version), Tiny-ImageNet (folders).
    """

    augmentation: Augmentation = ()


@dataclass(frozen=True, kw_only=True)
class RegisteredDataset(Registered[Keys]):
    """What a spec goes by of a data set; ``data.registry.DatasetEntry`` says more.

    Attributes:
        record_shape: Shape of one record where it is known before any is read, or None.
        has_columns: Whether a column of it can say whose each record is.
        has_targets: Whether its targets may be other than one class a record.
        has_texts: Whether its records may be texts, which a language model learns.
        published: Whether all of it is public, and so its test records are.
    """

    record_shape: tuple[int, ...] | None = None
    has_columns: bool = False
    has_targets: bool = False
    has_texts: bool = False
    published: bool = False


def datasets() -> Registry[RegisteredDataset[Any]]:
    """Return every registered data set by name."""
    found: Registry[RegisteredDataset[Any]] = registry("data", "DATASETS")
    return found


DATA = one_registered("dataset", datasets)
