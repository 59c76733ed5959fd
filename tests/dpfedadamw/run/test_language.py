"""Language models end to end: trained, audited, told, and continued by transformers and peft."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest
import torch

from dpfedadamw import api
from dpfedadamw.errors import DpfedadamwError, SpecError
from dpfedadamw.experiment import read_data
from dpfedadamw.filing import after_training as filing
from dpfedadamw.run import export
from tests.dpfedadamw.models.small_language_models import (
    LENGTH,
    SMALLEST,
    VOCABULARY,
    folder_of,
    records_of,
)
from tests.faults.language_faults import language_spec
from tests.runs import attest, failing, train

AutoModelForCausalLM = pytest.importorskip("transformers").AutoModelForCausalLM
pytest.importorskip("peft")

GREEDY = {
    "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip
PAIRS = "model.fine_tuning={kind: lora, rank: 2, alpha: 4, dropout: 0.1}"
# What a stranger has: the exported folder, transformers and peft, and nothing of this package.
STRANGER = """
import sys
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
base = AutoModelForCausalLM.from_pretrained(folder + "/base")
model = PeftModel.from_pretrained(base, folder).eval()
tokeniser = AutoTokenizer.from_pretrained(folder)
asked = tokeniser("a cat", return_tensors="pt")["input_ids"]
said = model.generate(asked, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0)
assert "dpfedadamw" not in sys.modules
print(said[0].tolist())
"""


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A run of an adapter with what its network continued after each round."""
    continued = []

    def continues(done):
        continued.append(done.model().network.generate(**GREEDY, input_ids=torch.tensor([[5, 6]])))

    spec = language_spec((PAIRS,)).to_mapping()
    run = api.run(spec, out=tmp_path_factory.mktemp("runs"), callbacks=[continues])
    return run, continued


def test_an_adapter_is_trained_audited_told_and_exported(adapted, tmp_path):
    run, continued = adapted
    assert torch.equal(
        continued[-1], run.model.network.generate(**GREEDY, input_ids=torch.tensor([[5, 6]]))
    )
    findings = run.audit().to_json()
    assert findings["verdict"] == "PASS", failing(findings)
    first, *_, last = run.metrics
    assert 0.0 <= last["test_accuracy"] <= 1.0
    assert last["test_perplexity"] != first["test_perplexity"]
    assert run.measures["test_perplexity"] == last["test_perplexity"]
    assert "Perplexity is the exponential" in (run.path / "report.html").read_text()

    folder = run.export(tmp_path / "adapter", licence="mit")
    card = (folder / "README.md").read_text()
    assert "AutoModelForCausalLM" in card
    assert "text-generation" in card
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["task_type"] == "CAUSAL_LM"
    assert (folder / "tokenizer.json").is_file()
    # Called as it is, it answers with scores as its network does.
    tokens = torch.tensor([[5, 6, 7, 8, 9]])
    scores = run.model.network(input_ids=tokens).logits
    record = torch.stack([tokens, torch.ones_like(tokens)], 1)
    torch.testing.assert_close(run.model(record), scores)
    with pytest.raises(DpfedadamwError, match="continues texts and predicts nothing"):
        api.predict(run.path, [{"text": "a cat"}])


def test_a_program_of_a_language_model_answers_as_the_model_and_its_card_runs_it(adapted, tmp_path):
    run, _ = adapted
    folder = run.export(tmp_path / "adapter", program=True)
    program = torch.export.load(folder / "model.pt2").module()
    records = records_of([19, 4, 12])[0][:, :, : 2 * LENGTH]
    # Fewer than are asked at once, and places that no record reaches.
    for some in (records, records[1:2]):
        answered = run.model(some)
        found = program(some)[:, : answered.shape[1]]
        torch.testing.assert_close(found, answered, rtol=0, atol=1e-5)
    lines = (folder / "README.md").read_text().split("```python\n")[2].split("```")[0]
    exec(lines.replace("FOLDER", str(folder)), told := {})
    assert told["tokens"].shape == records[:1, 0].shape


@pytest.mark.thorough
def test_an_exported_adapter_is_continued_by_a_process_without_this_package(adapted, tmp_path):
    run, _ = adapted
    folder = run.export(tmp_path / "adapter", licence="mit")
    asked = [sys.executable, "-c", STRANGER, str(folder)]
    told = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=tmp_path)
    begun = torch.tensor([json.loads(told.stdout)[:5]])
    expected = run.model.network.generate(**GREEDY, input_ids=begun)
    assert expected[0].tolist() == json.loads(told.stdout)


@pytest.mark.thorough
def test_whole_tied_models_are_trained_for_people_and_pass_their_audit(tmp_path):
    tied = {**SMALLEST, "tie_word_embeddings": True}
    folder = folder_of("tied llama", tmp_path, configuration=tied)
    people = "{unit: person, records_per_person: 2, clipping_norm: 1.0, noise_multiplier: 2.0, "
    people += "delta: 1.0e-5, sampling: {kind: poisson, expected_batch_size: 4}}"
    changes = (f"model.source={folder}", f"privacy={people}", "data.person=author")
    training, _ = train(language_spec(changes), tmp_path)
    attest(training)
    findings = filing.audit(training.run).to_json()
    assert findings["verdict"] == "PASS", failing(findings)
    assert training.federation.worker.engine.name == "book-keeping"
    export.export(training.run, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    trained = training.experiment.model.network
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded.lm_head.weight, trained.lm_head.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task={kind: seq2seq}", "encoder-decoders are not trained"),
        ("task=seq2seq", "encoder-decoders are not trained"),
        ("task={kind: causal_lm, packing: true}", "records are never packed into one sequence"),
        ("model.fine_tuning=head", "has no fresh head"),
        ("model.pooling=mean", "which answers each token; leave it out"),
        ("data.label=author", "predicts the text itself; leave it out"),
        ("model={name: mlp}", "which gives no answer for each token"),
        (
            "data={dataset: digits, clients: 2, partition: {kind: iid}}",
            "read from table only",
        ),
        ("data.partition={kind: dirichlet, alpha: 1.0}", "divides by class"),
        ("task={kind: causal_lm, loss_on: answer}", "has no answer of its own"),
        ("evaluation={metrics: [cost], public_test: true}", "leave them out"),
    ],
)
def test_what_does_not_go_with_a_language_model_is_refused_in_one_line(change, message):
    with pytest.raises(SpecError) as error:
        language_spec((change,))
    lines = [line for line in str(error.value).splitlines() if message in line]
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((PAIRS,), "would need its dropout masks again; set model.fine_tuning.dropout: 0.0"),
        (
            (
                "data={dataset: digits, clients: 2, partition: {kind: iid}}",
                "task=classification",
            ),
            "only language models (task.kind: causal_lm) have it",
        ),
    ],
)
def test_layers_are_computed_again_of_language_models_without_dropout(changes, message):
    with pytest.raises(SpecError) as error:
        language_spec(("model.gradient_checkpointing=true", *changes))
    lines = [line for line in str(error.value).splitlines() if message in line]
    assert len(lines) == 1
    assert "model.gradient_checkpointing" in lines[0]


def test_a_text_of_many_sequences_is_one_record():
    spec = language_spec()
    with open(spec.data.path, newline="") as file:
        rows = list(csv.DictReader(file))
    data = read_data(spec)
    assert len(data.train) + len(data.test) == len(rows)
    marks = data.train.inputs.values[:, 1]
    assert int(marks.max()) == 2 * 2
    assert data.classes == VOCABULARY
