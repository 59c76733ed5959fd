"""The document on one run: what stands on its first pages, from a report of short texts."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from reports.content import parts
from reports.content.parts import INTERNAL
from reports.document import Claim, Document
from reports.render.pages import _cell, claim, date_in_words, document, moment_of
from tests.reports import drawings
from tests.reports.data import data_of, report_of

MakeRun = Any  # the builder that conftest gives
LEFT_OPEN = "governance.retention"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "draw", drawings.nothing)


@pytest.fixture(scope="module")
def read(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pages") / "run"
    return data_of(run_builder(folder, rounds=2), INTERNAL)


@pytest.fixture
def data(read: dict[str, Any]) -> dict[str, Any]:
    """An internal report as data, in which short texts stand for those of a run."""
    found = copy.deepcopy(read)
    found["figures"] = []
    found["identity"] |= {
        "name": "Letters", "run": "letters-1", "created": "2026-03-01T23:30:00-01:00",
        "dataset": "letters", "parameters": 12_345, "model": [{"name": "name", "value": "mlp"}],
        "hashes": [{"file": "model.safetensors", "sha256": "d" * 64}],
    }  # fmt: skip
    found["clients"] |= {"count": 1500, "records_total": 20_000}
    found["sampling"] |= {"clients": 1500, "clients_per_round": 30, "participation": None}
    found["mechanism"] |= {
        "algorithm": "dp-x", "rounds": 1200, "rounds_completed": 1100, "local_steps_in_words": "7",
    }  # fmt: skip
    found["guarantee"] |= {"epsilon": 1.001, "delta": 2.5e-6, "unit": "record", "view": "server"}
    found["meaning"] |= {"epsilon": 1.001, "promise": "A promise."}
    found["utility"] |= {
        "final_accuracy": 0.75, "majority_rate": 0.5, "majority_statement": "", "measures": [],
    }  # fmt: skip
    found["budget"] |= {"epsilon": 3.0, "delta": 1e-5, "charged": 1.2345}
    for field in found["governance"]:
        field["text"] = None if field["field"] == LEFT_OPEN else f"It is {field['field']}."
    found["trust"] |= {"signer": "SHA256:auditor"}
    return found


def shown(data: dict[str, Any]) -> Document:
    return document(report_of(data))


def budget_of(data: dict[str, Any]) -> dict[str, Any]:
    return dict(shown(data).summary[0][1][0]["rows"])


def test_the_first_page_says_what_was_trained_for_what_on_whose_data(data: dict[str, Any]) -> None:
    assert shown(data).subject == (
        ("Trained", "mlp, 12,345 trainable parameters"),
        ("Purpose", "It is purpose."),
        ("Training", "dp-x: 1,100 of 1,200 rounds, 30 clients a round, 7 local steps"),
        ("People concerned", "It is governance.data_categories."),
        ("Data", "letters, 20,000 training records at 1,500 clients"),
        ("Controller", "It is governance.controller."),
        ("Test accuracy", "75.0 % (always the commonest answer: 50.0 %)"),
        ("Contact", "It is responsible."),
    )
    data["sampling"] |= {"participation": 0.02}
    data["utility"] |= {"majority_rate": None}
    facts = dict(shown(data).subject)
    assert facts["Training"].endswith("30 clients a round on average, 7 local steps")
    assert facts["Test accuracy"] == "75.0 %"


@pytest.mark.parametrize(
    ("accuracy", "measures", "told"),
    [
        (None, {}, [("Test accuracy", "not measured")]),
        (None, {"test_rmse": 2.5, "test_mae": 1.0}, [("Test RMSE", "2.5")]),
        (0.75, {"test_rmse": 2.5}, [("Test accuracy", "75.0 %")]),
        (0.75, {"test_perplexity": 12.5},
         [("Test perplexity", "12.5"), ("Test accuracy", "75.0 %")]),
    ],
)  # fmt: skip
def test_the_first_page_says_how_good_a_model_of_each_task_is(
    data: dict[str, Any], accuracy: float | None, measures: dict[str, float], told: Any
) -> None:
    data["utility"] |= {
        "final_accuracy": accuracy, "majority_rate": None,
        "measures": [{"name": name, "value": value} for name, value in measures.items()],
    }  # fmt: skip
    assert list(shown(data).subject[6:-1]) == told


def test_what_was_spent_and_what_is_left_are_numbers_of_the_run_and_its_budget(
    data: dict[str, Any],
) -> None:
    digest = [{"code": "d" * 64}]
    assert budget_of(data) == {
        "This run": "ε = 1.01 at δ = 2.5·10⁻⁶",
        "Releases": "the model after each of 1,100 rounds",
        "Budget": "ε = 3 at δ = 10⁻⁵ for all runs on these data",
        # 1.2345 is printed as 1.24, and that is what is left out.
        "Budget left": "ε = 1.76, after 1.24 spent or reserved",
        "Planned runs, other releases": "It is governance.other_releases.",
        "Kept until": "Not stated",
        "Noise": "secret: nobody can draw it again without its key",
        "Model file": digest,
    }
    data["budget"] |= {"charged": 5.0}
    assert budget_of(data)["Budget left"] == "ε = 0, after 5.00 spent or reserved"
    data["budget"] |= {"charged": None}
    assert budget_of(data)["Budget left"] == "not known"
    data["budget"] |= {"epsilon": None}
    data["identity"] |= {"hashes": []}
    data["randomness"] |= {"mode": "reproducible", "announced": "as announced"}
    rows = budget_of(data)
    assert rows["Budget"] == "No budget set"
    assert "Budget left" not in rows
    assert rows["Model file"] == "missing"
    assert rows["Noise"] == (
        "not secret: the seed in spec.yaml gives it again; as announced"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("private", "epsilon", "said"),
    [
        (False, None, "No limit: the run has no differential privacy"),
        (True, None, "No ε: the run ended without a finite one"),
        (True, 0.0, "ε = 0 at δ = 2.5·10⁻⁶"),
    ],
)
def test_a_run_without_a_finite_loss_spent_no_number(
    data: dict[str, Any], private: bool, epsilon: float | None, said: str
) -> None:
    data["guarantee"] |= {"private": private, "epsilon": epsilon}
    rows = budget_of(data)
    assert rows["This run"] == said
    assert ("Noise" in rows) == private


@pytest.mark.parametrize(
    ("clients", "records", "dataset", "told", "training", "releases"),
    [
        (None, 20_000, "letters", "letters, 20,000 training records",
         "dp-x: 1,100 recorded steps", "1,100 recorded steps"),
        (None, 20_000, "of the loop", "20,000 training records",
         "dp-x: 1,100 recorded steps", "1,100 recorded steps"),
        (1500, None, "letters", "letters, 1,500 clients",
         "dp-x: 1,100 recorded rounds, 30 clients a round", "1,100 recorded rounds"),
    ],
)  # fmt: skip
def test_a_recorded_loop_tells_only_what_it_recorded(
    data: dict[str, Any], clients: int | None, records: int | None, dataset: str, told: str,
    training: str, releases: str,
) -> None:  # fmt: skip
    data["clients"] |= {"count": clients, "records_total": records}
    data["sampling"] |= {"clients": clients}
    data["identity"] |= {"dataset": dataset}
    facts = dict(shown(data).subject)
    assert (facts["Data"], facts["Training"]) == (told, training)
    rows = budget_of(data)
    assert rows["Releases"] == f"the model after each of {releases}"
    assert "Noise" not in rows


def test_what_there_is_to_do_names_key_decision_open_statements_and_the_command(
    data: dict[str, Any],
) -> None:
    def to_do() -> list[Any]:
        ((title, blocks),) = shown(data).summary[1:]
        assert title == "For you to do"
        assert blocks[0]["ordered"]
        return list(blocks[0]["items"])

    check, decide, complete, sign = to_do()
    assert check[0] == {"strong": "Check: "}
    assert {"code": "SHA256:auditor"} in check
    assert decide[1].startswith("whether this ε suits the purpose")
    assert complete[0] == {"strong": "Complete: "}
    assert complete[1].startswith("1 statements on the processing are open (section ")
    assert sign[1] == {"code": "dpfedadamw sign-off RUN_DIR --audience internal"}
    for field in data["governance"]:
        field["text"] = "It is."
    data["trust"] |= {"signer": ""}
    check, _, sign = to_do()
    assert "Not stated" in check
    assert sign[0] == {"strong": "Sign: "}


def test_the_promise_has_its_numbers_and_says_whether_they_are_only_claimed(
    data: dict[str, Any],
) -> None:
    data["guarantee"] |= {"view": "third_party"}
    numbers = (
        ("50 % sure becomes at most", "73.3 %"),
        ("δ (probability that it fails)", "2.5·10⁻⁶"),
        ("protects one", "record"),
    )
    found = claim(report_of(data))
    assert (found.headline, found.statement, found.numbers[1:]) == ("", "A promise.", numbers)
    assert found.numbers[0][1] == "1.01"
    against = found.numbers[0][0].removeprefix("ε (privacy loss), ")
    assert against.startswith("against ")
    data["verdict"] |= {"value": "FAIL"}
    assert claim(report_of(data)).numbers[0][0] == f"ε (privacy loss), claimed, {against}"
    data["meaning"] |= {"epsilon": None}
    assert claim(report_of(data)) == Claim("", "A promise.", ())
    data["guarantee"] |= {"private": False}
    assert claim(report_of(data)) == Claim("No differential privacy", "A promise.", ())


def test_the_document_is_named_dated_and_marked_as_its_run(data: dict[str, Any]) -> None:
    found = shown(data)
    assert (found.title, found.label, found.identifier) == (
        "Letters",
        "Privacy report",
        "letters-1",
    )
    assert found.description == data["guarantee"]["statement"]
    assert found.keywords == ("run letters-1", f"model sha256:{'d' * 64}", "internal", "PASS")
    assert (found.created, found.date) == (data["identity"]["created"], "2 March 2026, 00:30 UTC")
    assert (found.footer, found.attachment) == ("Internal report", "report.json")
    assert found.glance == tuple(
        (check["verdict"], check["title"]) for check in data["audit"]["checks"]
    )
    data["qualifications"] = ["mind this", "spec.yaml is odd"]
    data["utility"] |= {"majority_statement": "It is no better."}
    assert shown(data).qualifications == ("Mind this.", "spec.yaml is odd.", "It is no better.")
    data["verdict"] |= {"value": "FAIL"}
    data["randomness"] |= {"caveat": "A seed."}
    assert shown(data).footer == "Internal report · FAIL · reproducible from a seed"
    data["guarantee"] |= {"private": False}
    data["identity"] |= {"hashes": []}
    found = shown(data)
    assert found.footer == (
        "Internal report · no differential privacy · reproducible from a seed"
    )  # fmt: skip
    assert found.keywords == ("run letters-1", "internal", "FAIL")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), ("block 1", "block 1"), (3, "3"), (0.123456789, "0.123457"), (1e-7, "10⁻⁷")],
)
def test_a_cell_of_a_figures_numbers_is_told_as_text(value: Any, shown: str) -> None:
    assert _cell(value) == shown


@pytest.mark.parametrize(
    ("created", "date", "german"),
    [
        ("2026-11-21T09:21:27Z", "21 November 2026, 09:21 UTC", "21. November 2026, 09:21 UTC"),
        ("2026-03-01T00:00:00", "1 March 2026, 00:00 UTC", "1. März 2026, 00:00 UTC"),
        ("2026-01-01T00:30:00+01:00", "31 December 2025, 23:30 UTC",
         "31. Dezember 2025, 23:30 UTC"),
        ("1970-01-01", "1 January 1970, 00:00 UTC", "1. Januar 1970, 00:00 UTC"),
        ("1969-12-31T23:59:59Z", "date not stated", "date not stated"),
        ("0001-01-01T00:00:00+14:00", "date not stated", "date not stated"),
        ("soon", "date not stated", "date not stated"),
        ("", "date not stated", "date not stated"),
    ],
)  # fmt: skip
def test_a_date_is_told_in_words_where_it_can_be_read(created: str, date: str, german: str) -> None:
    assert date_in_words(created) == date
    assert date_in_words(created, "de") == german
    moment = moment_of(f"{created[:-1]}.75Z" if created.endswith("Z") else created)
    assert (moment is None) == (date == "date not stated")
    assert moment is None or moment.microsecond == 0
