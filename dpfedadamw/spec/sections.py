"""A spec and its smaller sections; the larger ones have files of their own.

What everything downstream works with. A `Spec` that was loaded is complete, its values are in range
and do not contradict each other; one that was made by hand is only checked when it is loaded again.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from dpfedadamw.spec.algorithm_section import ALGORITHM, AlgorithmSpec
from dpfedadamw.spec.data_section import DATA, DataSpec
from dpfedadamw.spec.model_section import MODEL, ModelSpec
from dpfedadamw.spec.privacy_section import (
    ClientPrivacy,
    NoPrivacy,
    PersonPrivacy,
    PrivacySpec,
    RandomnessSpec,
    RecordPrivacy,
    ReleaseRandomnessSpec,
    ReproducibleRandomnessSpec,
)
from dpfedadamw.spec.section import (
    LARGEST_SEED,
    AbsentIntegers,
    AbsentNumber,
    AbsentText,
    Section,
    key,
    one_of,
)
from dpfedadamw.spec.task_section import TASK, ClassificationTask, TaskSpec

_SELECTION = key(
    ...,
    "How the hyper-parameters are chosen; one of {names}. none: they are given, and no search is "
    "known. private: only the best of a random number of trials is published, and ε covers the "
    "choice (Papernot & Steinke 2022). public: searched on public records. unaccounted: searched "
    "on the private records without any ε covering it, which the report says on its first page.",
)
_SCORE = key(
    "validation_accuracy",
    "The score that decides the best candidate: the highest accuracy or the lowest loss. A "
    "regression has only losses. A score on the test records chooses by the same records that the "
    "result is reported on, and `compare` says so.",
    examples=("validation_accuracy", "test_accuracy", "validation_loss"),
)
_Score = Literal["validation_accuracy", "test_accuracy", "validation_loss", "test_loss"]
_Seed = Annotated[
    int,
    key(..., "A seed of the search.", title="Seed", unit="none", ge=0, le=LARGEST_SEED,
        examples=(100,)),
]  # fmt: skip
_SEARCH_SEEDS = key(
    (),
    "Seeds with which the candidates were trained, if the best is then run again with others; a "
    "sweep records them in those runs. Empty in a trial, and if a trial is kept.",
    max_length=1000,
    examples=((), (100, 101)),
)


class TuneSpec(Section, title="Tuning"):
    """How the hyper-parameters were chosen, and what accounts for it."""

    selection: str = _SELECTION
    score: AbsentText = None
    mean_trials: AbsentNumber = None
    shape: AbsentNumber = None
    dataset: AbsentText = None
    search_seeds: AbsentIntegers = ()


class NotTuned(TuneSpec, title="No search"):
    """The hyper-parameters are given."""

    selection: Literal["none"] = "none"


class PrivateSelection(TuneSpec, title="Private selection"):
    """The best of a random number of trials, by its accuracy on the public validation records.

    The number of trials is drawn from a truncated negative binomial law. Every candidate must cost
    the same. Of a regression the lowest loss is best.
    """

    selection: Literal["private"] = "private"
    mean_trials: float = key(
        10.0,
        "Expected number of trials. More trials find a better candidate and cost more.",
        unit="trials",
        gt=1,
        le=1000,
        examples=(10, 30),
    )
    shape: float = key(
        1.0,
        "Shape η of the distribution of their number: 1 is the geometric distribution; 0, the "
        "logarithmic one, costs less and varies more.",
        ge=0,
        le=100,
        examples=(1, 0),
    )


class PublicSearch(TuneSpec, title="Search on public records"):
    """Every candidate is trained on public records, and the best then once on the private ones."""

    selection: Literal["public"] = "public"
    score: _Score = _SCORE
    dataset: str | None = key(
        None,
        "The public data set used for the search; a sweep records it.",
        max_length=200,
        examples=(None, "mnist"),
    )
    search_seeds: tuple[_Seed, ...] = _SEARCH_SEEDS


class UnaccountedSearch(TuneSpec, title="Unaccounted search"):
    """Every candidate is trained on the private records, and the best is kept, or run again."""

    selection: Literal["unaccounted"] = "unaccounted"
    score: _Score = _SCORE
    search_seeds: tuple[_Seed, ...] = _SEARCH_SEEDS


class FederationSpec(Section, title="Federation"):
    """Rounds and who takes part in them."""

    rounds: int = key(
        20,
        "Number of rounds T. ali-dpfl may end earlier, when its budget is used up, as may any run "
        "with max_epsilon.",
        unit="rounds",
        ge=1,
        le=1_000_000,
        examples=(20, 100),
    )
    clients_per_round: int = key(
        10,
        "Clients S drawn each round, or their expected number if client_sampling is poisson; at "
        "most data.clients.",
        unit="clients",
        ge=1,
        le=100_000,
        examples=(10, 5),
    )
    clients_per_person: int = key(
        1,
        "With privacy.unit person: the most clients s that may hold records of one person. Against "
        "the server, the s clients that spend most are counted together. Data with a person at "
        "more clients are refused.",
        unit="clients",
        ge=1,
        le=1000,
        examples=(1, 2),
    )
    client_sampling: Literal["fixed", "poisson"] = key(
        "fixed",
        "How the clients of a round are drawn: fixed (exactly S of the N, every such set equally "
        "likely) or poisson (each independently with probability S/N). With poisson a "
        "round may have none. With unit client it must be poisson, which is then the default.",
        default_by_unit={"client": "poisson"},
        examples=("fixed", "poisson"),
    )
    local_steps: int = key(
        5,
        "Steps K that each drawn client takes in a round; for ali-dpfl, in the first round.",
        unit="steps",
        ge=1,
        le=100_000,
        examples=(5, 20),
    )
    max_epsilon: float | None = key(
        None,
        "ε at which the run ends early: no round begins that could exceed it. It holds against the "
        "server with privacy.unit record or person, and against a third party with client. With "
        "client_sampling poisson, or clients_per_person above 1, the run ends where one with every "
        "client in every round would. Null for no limit.",
        gt=0,
        le=1000,
        examples=(None, 8),
    )
    engine: Literal["inline", "flower"] = key(
        "inline",
        "Where clients run: inline (in this process) or flower (in processes of Flower's "
        "simulation, which needs the extra dpfedadamw[flower]). With one seed, both give the same "
        "model and the same charges. An audit run with canaries is always inline.",
        examples=("inline", "flower"),
    )
    workers: Annotated[int, Ge(1), Le(1024)] | Literal["auto"] = key(
        1,
        "Processes that compute the clients of a round in parallel; 1 computes them one after "
        "another in the run's own process. auto: the number of processors, divided by the threads "
        "that torch uses for an operation. Model, charges and evidence do not depend on it. An "
        "audit run with canaries always has 1, and Flower's simulation has its own processes.",
        unit="processes",
        expected="an integer from 1 to 1024, or auto",
        examples=(1, "auto", 4),
    )
    drop_outs: int = key(
        0,
        "For clients on separate machines: how many clients of a round may give no usable answer "
        "before the round fails. The mean is over those that answer; at client level it is still "
        "divided by S. Every client that was asked stays charged. Not with privacy.noise_added_by "
        "clients, where a missing client's noise is missing too.",
        unit="clients",
        ge=0,
        le=100_000,
        examples=(0, 1),
    )


class BudgetSpec(Section, title="Budget"):
    """What all runs on the same data set may spend together; null for each run by itself.

    A run that could exceed it is refused before it begins. Give all three keys or none.
    """

    file: str | None = key(
        None,
        "The budget's file, an SQLite database on a local disk; the first run creates it. A "
        "relative path starts at the working directory. Null for no budget.",
        min_length=1,
        max_length=4096,
        examples=(None, "budget.sqlite"),
    )
    epsilon: float | None = key(
        None,
        "ε that all runs together may spend, composed from their events: against the server with "
        "privacy.unit record, against a third party with client. Every run on these data must "
        "state the same value.",
        gt=0,
        le=1000,
        examples=(None, 8),
    )
    delta: float | None = key(
        None,
        "δ of all runs together, at which their ε is computed. Every run on these data must state "
        "the same value.",
        ge=1e-10,
        lt=1,
        examples=(None, 1e-05),
    )


_Metric = Annotated[
    str,
    key(
        ...,
        "Name of a metric.",
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,39}$",
        expected="1 to 40 letters, digits and underscores, the first of them a letter",
        examples=("cost",),
    ),
]


class EvaluationSpec(Section, title="Evaluation"):
    """When the global model is tested."""

    every: Annotated[int, Ge(1), Le(1_000_000)] | Literal["auto"] = key(
        "auto",
        "Rounds between evaluations; 1 tests after every round. auto: after every round if that "
        "costs almost nothing, else at most ten times in all, and for less than 5 % of the rounds' "
        "time. The last round is always tested.",
        unit="rounds",
        expected="an integer from 1 to 1000000, or auto",
        examples=("auto", 1, 5),
    )
    training: bool = key(
        False,
        "Also measure accuracy and loss on the training records whenever the model is tested. Only "
        "with privacy.unit none: otherwise these are private.",
        examples=(False, True),
    )
    public_test: bool | None = key(
        None,
        "Declares that the test records are public. A confusion matrix and your own metrics are "
        "then published; with few test records these reveal single ones. Null means true for "
        "published data sets and false for all others; the resolved spec has true or false.",
        title="Public test records",
        examples=(None, True),
    )
    metrics: tuple[_Metric, ...] = key(
        (),
        "Names of functions passed to api.run(spec, metrics={name: function}), which fills them "
        "in. They are computed for the finished model, on public test records only.",
        title="Metrics of one's own",
        max_length=50,
        examples=((), ("cost",)),
    )


class ComputeSpec(Section, title="Compute"):
    """What changes memory and speed, results by rounding alone, and privacy not at all."""

    physical_batch_size: int = key(
        512,
        "Most records whose gradients are computed at once; a larger batch is split and its "
        "clipped sums are added.",
        unit="records",
        ge=1,
        le=1_000_000,
        examples=(64, 512),
    )
    precision: Literal["float32", "bfloat16"] = key(
        "float32",
        "Precision of the layers' multiplications: float32, or bfloat16 (torch's autocast: "
        "weights, clipping, sums and noise stay in float32). Refused where a record's gradient "
        "would then depend on the other records of its batch.",
        examples=("float32", "bfloat16"),
    )


def _text(description: str, example: str) -> Any:
    return key(None, description, max_length=20_000, examples=(example,))


class GovernanceSpec(Section, title="Governance"):
    """What else an assessment of the processing asks, and no run can know; null is open."""

    controller: str | None = _text(
        "Who decides on purposes and means (GDPR, Article 4(7)).", "Example Ltd., Data Street 1."
    )
    data_categories: str | None = _text(
        "Which data of which people, and whether special categories are among them.",
        "Handwriting of adults; no special categories.",
    )
    collection: str | None = _text(
        "How the data were collected, and what the people were told.", "Scanned forms, 2024."
    )
    access: str | None = _text(
        "Who may read records, evidence, ledger and internal report.", "Two engineers, by name."
    )
    retention: str | None = _text(
        "How long records, evidence and model are kept.", "Evidence is erased after the audit."
    )
    recipients: str | None = _text(
        "Who gets the model and the reports.", "The model is published; the report is internal."
    )
    other_releases: str | None = _text(
        "What else was or will be released from the same data: each release spends privacy too.",
        "Yearly counts by region, without noise.",
    )
    reidentification: str | None = _text(
        "What others know about these people and could link with what the model reveals.",
        "Membership in the survey is public.",
    )
    trust_model: str | None = _text(
        "Who is trusted with what, and why.",
        "Each hospital trusts only its own machine.",
    )
    region: str | None = _text(
        "What region the data are of, or whose law applies.", "European Union."
    )
    sector: str | None = key(
        None,
        "Sector of the model's use, in the words of OpenDP's registry of deployments.",
        pattern=r"^(Technology|Healthcare|Education|Government|Energy|Finance)$",
        expected="Technology, Healthcare, Education, Government, Energy or Finance",
        examples=("Healthcare",),
    )
    publication_date: str | None = key(
        None,
        "When the model is or was published.",
        pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$",
        expected="a date such as 2026-01-31",
        examples=("2026-01-31",),
    )
    registry_authors: str | None = _text(
        "Authors of the entry for the registry of deployments; names separated by semicolons.",
        "A. Person; B. Person",
    )


class ReportSpec(Section, title="Report"):
    """What only the people responsible can write in the report (null is open), and its paper."""

    purpose: str | None = _text("What the processing is for.", "Reading postal codes.")
    lawful_basis: str | None = _text("The legal basis of the processing.", "Consent.")
    necessity: str | None = _text(
        "Why the processing is necessary and proportionate.",
        "No less intrusive data would suffice.",
    )
    risks: str | None = _text("Risks to the people concerned.", "Membership in the training data.")
    measures: str | None = _text(
        "Measures against the risks.", "Differential privacy at record level."
    )
    responsible: str | None = _text(
        "Who is accountable for the processing.", "Data protection officer, Example Ltd."
    )
    governance: GovernanceSpec = GovernanceSpec()
    paper: Literal["a4", "letter"] = key("a4", "Paper of report.pdf.")
    language: Literal["en", "de", "fr"] = key(
        "en", "Language of report.pdf and report.html: English, German or French."
    )


class Spec(Section, title="Experiment"):
    """One federated experiment: data, model, algorithm, federation, privacy and randomness."""

    version: Literal[1] = key(1, "Version of the spec format.")
    name: str = key(
        "experiment",
        "Short name of the experiment; the run directory is named after it.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        expected="a name of 1 to 64 letters, digits, dots, dashes and underscores that starts "
        "with a letter or digit",
        examples=("quickstart",),
    )
    description: str = key(
        "",
        "Free text: what the experiment is for.",
        max_length=2000,
        examples=("A first private model.",),
    )
    data: Annotated[DataSpec, DATA]
    model: Annotated[ModelSpec, MODEL]
    task: Annotated[TaskSpec, TASK] = key(
        ClassificationTask(),
        "What the model is trained to predict about a record; the name of a kind alone is a short "
        "form.",
        examples=("classification", "regression", {"kind": "regression", "loss": "huber"}),
    )
    algorithm: Annotated[AlgorithmSpec, ALGORITHM]
    federation: FederationSpec = FederationSpec()
    privacy: Annotated[
        PrivacySpec, one_of("unit", RecordPrivacy, PersonPrivacy, ClientPrivacy, NoPrivacy)
    ]
    randomness: Annotated[
        RandomnessSpec,
        one_of("mode", ReleaseRandomnessSpec, ReproducibleRandomnessSpec, short_form=True),
    ] = key(
        ReleaseRandomnessSpec(),
        "Where sampling and noise come from; the name of a mode alone is a short form.",
        examples=("release", "reproducible", {"mode": "reproducible", "seed": 7}),
    )
    budget: BudgetSpec = BudgetSpec()
    tune: Annotated[
        TuneSpec,
        one_of("selection", NotTuned, PrivateSelection, PublicSearch, UnaccountedSearch),
    ] = NotTuned()
    evaluation: EvaluationSpec = EvaluationSpec()
    compute: ComputeSpec = ComputeSpec()
    report: ReportSpec = ReportSpec()
