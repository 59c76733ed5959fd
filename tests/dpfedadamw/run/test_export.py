"""Exported models: read by transformers, by peft or by hand, they score as the run's model."""

from __future__ import annotations

import functools
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from dpfedadamw import cli
from dpfedadamw import spec as specs
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.filing import after_training as filing
from dpfedadamw.run import checkpoints
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.export import export, load_model
from dpfedadamw.run.training import Training
from dpfedadamw.rundir import RunDirectory, open_existing
from dpfedadamw.vectors.flat import layout_of
from reports.signatures import verification
from reports.signatures.verification import verify_and_read
from tests.runs import attest, begin, call, small_spec, verdicts

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

SIZES = {
    "image_size": 8,
    "num_channels": 1,
    "patch_size": 4,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 24,
}
PAIRS = "{kind: lora, rank: 2, alpha: 4, dropout: 0.1}"
B_OF_PAIRS = "{kind: lora, rank: 2, alpha: 4, dropout: 0.0, factors: b}"


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A published model: a small ViT with a head for other classes, and its images' scale."""
    folder = tmp_path_factory.mktemp("published")
    torch.manual_seed(5)
    config = transformers.ViTConfig(**SIZES, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5], "image_std": [0.5]})
    )
    return folder


def train(spec: specs.Spec, parent: Path) -> Training:
    """A whole training, without the probe that no export reads."""
    training = begin(spec, parent)
    with training.lock:
        engine_run.train(training)
    return training


def trained(folder: Path, parent: Path, weights: str, tuning: str) -> RunDirectory:
    model = f"{{name: transformers, source: {folder}, weights: {weights}, fine_tuning: {tuning}}}"
    spec = small_spec(rounds=1, overrides=(f"model={model}",))
    return train(spec, parent).run


@pytest.fixture(scope="module")
def run_of(published, tmp_path_factory):
    """Makes a run on the published weights, trained once for each way of tuning."""

    @functools.cache
    def run(tuning: str) -> RunDirectory:
        return trained(published, tmp_path_factory.mktemp("tuned"), "pretrained", tuning)

    return run


def scores(model, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(pixel_values=images).logits


IMAGES = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tuning", [PAIRS, B_OF_PAIRS])
def test_low_rank_pairs_are_written_alone_and_loaded_by_peft(published, run_of, tmp_path, tuning):
    run = run_of(tuning)
    stored = load_file(run.weights)
    assert all(".lora_" in name or "modules_to_save" in name for name in stored)
    assert sum(".lora_A." in name for name in stored) == sum(".lora_B." in name for name in stored)
    written = export(run, tmp_path / "out")
    assert (written.form, written.reads, written.base_folder) == ("adapters", "images", None)
    assert written.base == json.loads(run.model_config.read_text())["base"]
    base = transformers.AutoModelForImageClassification.from_pretrained(
        published, num_labels=10, ignore_mismatched_sizes=True
    )
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "out")
    assert torch.equal(scores(loaded, IMAGES), load_model(run)(IMAGES))
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()
    for path in (tmp_path / "out").rglob("*.json"):
        assert str(published) not in path.read_text(), path


@pytest.mark.thorough
def test_a_random_backbone_is_written_beside_its_pairs(published, tmp_path):
    run = trained(published, tmp_path, "random", PAIRS)
    written = export(run, tmp_path / "out")
    assert written.base_folder == tmp_path / "out" / "base"
    base = transformers.AutoModelForImageClassification.from_pretrained(written.base_folder)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "out")
    assert torch.equal(scores(loaded, IMAGES), load_model(run)(IMAGES))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tuning", ["all", "head"])
def test_whole_models_are_loaded_by_transformers(run_of, tmp_path, tuning):
    run = run_of(tuning)
    assert export(run, tmp_path / "out").form == "whole"
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert torch.equal(scores(loaded, IMAGES), load_model(run)(IMAGES))
    metadata = (tmp_path / "out" / "model.safetensors").read_bytes()[:2000]
    assert metadata.count(b'"__metadata__":{"format":"pt"}') == 1


def test_whole_models_know_the_names_of_their_classes(run_of, tmp_path):
    whole = run_of("all").path
    run = open_existing(shutil.copytree(whole, tmp_path / whole.name))
    config = json.loads(run.model_config.read_text())
    run.model_config.write_text(json.dumps({**config, "labels": list("abcdefghij")}))
    written = export(run, tmp_path / "out")
    assert (written.program, written.no_program) == (False, "")
    found = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (found.id2label[2], found.label2id["j"]) == ("c", 9)


def test_the_packages_own_models_are_written_as_they_are(tmp_path):
    own = "model={name: simple-cnn, hidden: 8}"
    run = train(small_spec(rounds=1, overrides=(own,)), tmp_path).run
    assert export(run, tmp_path / "out").form == "own"
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == run.weights.read_bytes()
    assert load_model(run)(IMAGES).shape == (4, 10)
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    assert torch.allclose(program(IMAGES), load_model(run)(IMAGES), atol=1e-5)
    with zipfile.ZipFile(tmp_path / "out" / "model.pt2") as archive:
        whole = b"".join(map(archive.read, archive.namelist()))
    # Neither where this machine keeps the sources, nor what is in them.
    assert str(Path(__file__).parents[3]).encode() not in whole
    assert b"stack_trace" not in whole
    assert not (tmp_path / "plain" / "model.pt2").exists()
    assert export(run, tmp_path / "plain", program=False).program is False
    assert not (tmp_path / "plain" / "model.pt2").exists()


def test_a_program_of_texts_answers_as_the_model_whatever_their_lengths(tmp_path):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 16}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 30}
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(
        json.dumps({"model_type": "bert", "pad_token_id": 0, **sizes, **layers})
    )
    generator = np.random.default_rng(0)
    texts = generator.integers(1, 30, (64, 12))
    texts[np.arange(12) >= generator.integers(1, 12, 64)[:, None]] = 0
    parts = {"x_train": texts[:48], "x_test": texts[48:]}
    classes = {"y_train": texts[:48, 0] % 3, "y_test": texts[48:, 0] % 3}
    np.savez(tmp_path / "texts.npz", **parts, **classes)
    data = f"{{dataset: arrays, path: {tmp_path}/texts.npz, clients: 2, partition: {{kind: iid}}}}"
    model = f"{{name: transformers, source: {tmp_path}/bert, weights: random, length: 12}}"
    changes = (f"data={data}", f"model={model}", "federation.clients_per_round=2")
    run = train(small_spec(rounds=1, clients_per_round=2, overrides=changes), tmp_path).run
    written = export(run, tmp_path / "out", program=True)
    assert (written.program, written.no_program, written.shape) == (True, "", (2, 12))
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    records = torch.from_numpy(np.stack([texts, np.zeros_like(texts)], 1)).int()
    short = records[(texts[:, 4] == 0)]
    assert 1 < len(short) < 64
    for some in (records, short, short[:1]):
        assert torch.allclose(program(some), load_model(run)(some), rtol=0, atol=1e-5)


def test_of_a_program_that_could_not_be_finished_no_half_is_left(tmp_path, monkeypatch):
    def cut_off(_program, path) -> None:
        Path(path).write_bytes(b"PK\x03\x04 half of a program")
        raise RuntimeError("this layer cannot be stored\nwith a long trace")

    run = train(small_spec(rounds=1), tmp_path).run
    monkeypatch.setattr(torch.export, "save", cut_off)
    written = export(run, tmp_path / "out")
    assert written.program is False
    assert "(RuntimeError: this layer cannot be stored)" in written.no_program
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in names
    assert "model.pt2" not in names


def test_the_loaded_model_is_the_one_that_was_trained(tmp_path):
    training = train(small_spec(rounds=2), tmp_path)
    expected = training.experiment.model.eval()(IMAGES)
    assert torch.equal(load_model(training.run)(IMAGES), expected)


@pytest.mark.thorough
def test_published_weights_that_have_changed_are_refused(published, tmp_path):
    folder = tmp_path / "published"
    shutil.copytree(published, folder)
    run = trained(folder, tmp_path, "pretrained", PAIRS)
    torch.manual_seed(6)
    config = transformers.ViTConfig(**SIZES, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    with pytest.raises(DpfedadamwError, match="not those that the run started with"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_resumed_on_published_weights_that_have_changed(published, tmp_path):
    folder = tmp_path / "published"
    shutil.copytree(published, folder)
    model = f"{{name: transformers, source: {folder}, fine_tuning: {PAIRS}}}"
    training = begin(small_spec(rounds=1, overrides=(f"model={model}",)), tmp_path)
    training.lock.release()
    torch.manual_seed(6)
    config = transformers.ViTConfig(**SIZES, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    with pytest.raises(DpfedadamwError, match="published weights have changed"):
        engine_setup.resume(training.run, torch.device("cpu"))


def test_an_unfinished_run_and_a_folder_in_use_are_refused(tmp_path):
    training = begin(small_spec(rounds=1), tmp_path)
    with pytest.raises(DpfedadamwError, match="has no model yet"):
        export(training.run, tmp_path / "out")
    engine_run.train(training)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(DpfedadamwError, match="not empty; name a new folder"):
        export(training.run, tmp_path / "out")


def test_weights_of_another_model_are_refused(tmp_path):
    training = train(small_spec(rounds=1), tmp_path)
    checkpoints.write_weights(training.run.weights, torch.nn.Linear(2, 2))
    with pytest.raises(DpfedadamwError, match="not those of the model"):
        load_model(training.run)


@pytest.mark.thorough
def test_checkpoints_audit_and_probe_hold_the_trained_part_alone(published, tmp_path):
    model = f"{{name: transformers, source: {published}, fine_tuning: {PAIRS}}}"
    training = begin(small_spec(rounds=2, overrides=(f"model={model}",)), tmp_path)
    states = []

    def kept(*_):
        states.extend(map(load_file, training.run.path.glob("*/state-*")))

    with training.lock:
        engine_run.train(training, on_round=kept)
    size = layout_of(training.experiment.model).size
    whole = sum(p.numel() for p in training.experiment.model.parameters())
    assert size < whole / 5
    assert [state["parameters"].shape for state in states] == [(size,)] * 3
    assert sum(t.numel() for t in load_file(training.run.weights).values()) == size
    attest(training)
    found = verdicts(filing.audit(training.run).to_json())
    assert found["sensitivity"] == "PASS"
    # Nobody asked for participations to be computed again.
    assert found.pop("reexecution") == "NOT VERIFIED"
    assert set(found.values()) <= {"PASS", "NOT APPLICABLE"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished, signed run of a model of our own."""
    parent = tmp_path_factory.mktemp("finished")
    path = parent / "small.yaml"
    path.write_text(specs.dump(small_spec(rounds=2)))
    with pytest.raises(SystemExit):
        cli.main(["run", str(path), "--out", str(parent / "runs")])
    return (parent / "runs" / "latest").resolve()


def test_the_command_writes_model_and_card_and_leaves_the_run_as_it_was(finished, tmp_path):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert call("export", str(finished), "--output", str(tmp_path / "out"), "--licence", "mit") == 0
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    text = (tmp_path / "out" / "README.md").read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["license"] == "mit"
    assert header["model-index"][0]["results"][0]["metrics"][0]["type"] == "accuracy"
    assert call("verify", str(finished)) == 0


def test_the_command_says_what_it_wrote_for_people_and_as_json(finished, tmp_path, capsys):
    folder = tmp_path / "out"
    assert call("export", str(finished), "--output", str(folder), "--json", "--no-program") == 0
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(folder), "form": "own", "base": None, "program": False, "outcome": "ALL HOLD",
    }  # fmt: skip
    folder = tmp_path / "all"
    assert call("export", str(finished), "--output", str(folder), "--program") == 0
    shown = capsys.readouterr().out
    flat = "".join(shown.split())
    for name in ("README.md", "bom.cdx.json", "model.pt2"):
        assert (folder / name).is_file()
        assert str(folder / name) in flat
    assert "ALL HOLD" in shown
    # Answers are for an entry of the registry alone.
    asked = ("--output", str(tmp_path / "none"), "--statements", "answers.yaml")
    assert call("export", str(finished), *asked) == 2
    assert "--registry" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_card_holds_the_third_partys_claim_and_nothing_restricted(finished, tmp_path):
    assert call("export", str(finished), "--output", str(tmp_path / "out"), "--no-program") == 0
    text = (tmp_path / "out" / "README.md").read_text()
    ledger = [json.loads(line) for line in (finished / "ledger.jsonl").read_text().splitlines()]
    claim = next(entry for entry in ledger if entry["kind"] == "claim")
    assert f"ε = {-(-claim['third_party']['epsilon']['pld'] * 100 // 1) / 100:.2f}" in text
    assert "not a privacy guarantee to anyone who knows the seed" in text
    header = ledger[0]
    for secret in (header["data_sha256"], header["commitment"] or "no commitment"):
        assert secret not in text
    for entry in claim["server"]["clients"]:
        assert f"{entry['epsilon']['pld']:.4f}" not in text


def test_a_bill_of_materials_lies_beside_and_the_internal_one_is_for_its_owner(finished, tmp_path):
    header = json.loads((finished / "ledger.jsonl").read_text().splitlines()[0])
    for audience, mode in (("public", 0o644), ("internal", 0o600)):
        out = tmp_path / audience
        asked = ("--output", str(out), "--audience", audience, "--no-program")
        assert call("export", str(finished), *asked) == 0
        bill = out / "bom.cdx.json"
        assert (header["data_sha256"] in bill.read_text()) == (audience == "internal")
        assert bill.stat().st_mode & 0o777 == mode


def test_an_entry_for_the_registry_takes_what_the_spec_leaves_open_from_a_file(
    finished, tmp_path, capsys
):
    out, said = str(tmp_path / "out"), tmp_path / "said.yaml"
    assert call("export", str(finished), "--output", out, "--registry") == 2
    assert "report.governance.region" in capsys.readouterr().err
    said.write_text("governance: {sector: Farming}")
    wanted = ("export", str(finished), "--output", out, "--no-program")
    wanted += ("--registry", "--statements", str(said))
    assert call(*wanted) == 2
    assert "sector" in capsys.readouterr().err
    said.write_text(
        "purpose: Reading.\n"
        "governance: {controller: Us, region: EU, publication_date: '2026-01-31',"
        " registry_authors: Me}"
    )
    assert call(*wanted) == 0
    entry = yaml.safe_load((tmp_path / "out" / "registry_entry.yaml").read_text())
    assert entry["deployment"]["basic"]["data_product_region"] == "EU"
    assert call("export", str(finished), "--output", out, "--statements", str(said)) == 2


def test_a_run_that_was_tampered_with_is_not_exported(finished, tmp_path, capsys):
    copy = tmp_path / finished.name
    shutil.copytree(finished, copy)
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    assert call("export", str(copy), "--output", str(tmp_path / "out")) == 1
    assert "not exported, model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert open_existing(copy).weights.is_file()


@pytest.fixture
def copied(finished, tmp_path) -> RunDirectory:
    """A copy of the finished run, whose files may be changed."""
    shutil.copytree(finished, tmp_path / finished.name)
    return open_existing(tmp_path / finished.name)


def changed(run: RunDirectory, **changes) -> RunDirectory:
    config = json.loads(run.model_config.read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None}
    run.model_config.write_text(json.dumps(kept))
    return run


@pytest.mark.parametrize(
    "changes",
    [
        {"model": None},
        {"model": 7},
        {"input_shape": None},
        {"input_shape": 7},
        {"classes": None},
        {"classes": "ten"},
        {"classes": True},
        {"classes": -3},
        {"classes": 10**30},
        {"input_shape": "12"},
        {"input_shape": ["a", 8]},
        {"input_shape": [-1, 8]},
        {"task": {"kind": "regression", "loss": "none"}},
        {"model": {"name": "mlp", "hidden": "wide"}},
    ],
)
def test_a_description_that_does_not_say_what_the_model_is_is_refused(changes, copied):
    with pytest.raises(DpfedadamwError) as caught:
        load_model(changed(copied, **changes))
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(f"{copied.model_config}: cannot be read (")
    assert "https://" not in str(caught.value)


def test_no_memory_is_taken_for_a_model_that_its_weights_do_not_fill(copied):
    """Half a petabyte would end the process, and not in one line."""
    with pytest.raises(DpfedadamwError, match="its tensors are not those of the model"):
        load_model(changed(copied, classes=2**31 - 1, model={"name": "mlp", "hidden": [65_536]}))


def test_a_model_with_planted_canaries_is_not_for_release(copied, tmp_path):
    with pytest.raises(DpfedadamwError, match="planted canaries, and its model is not for release"):
        export(changed(copied, canaries=3), tmp_path / "out")


def test_published_weights_that_the_run_did_not_begin_with_are_refused(copied):
    with pytest.raises(DpfedadamwError, match="the published weights are not those"):
        load_model(changed(copied, base={"source": "elsewhere"}))


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_a_run_without_weights_or_description_has_no_model_yet(name, copied, tmp_path):
    (copied.path / name).unlink()
    with pytest.raises(DpfedadamwError, match="the run has no model yet"):
        export(copied, tmp_path / "out")


def test_a_model_is_not_written_into_the_run_whose_files_are_all_signed(copied, monkeypatch):
    before = sorted(copied.path.rglob("*"))
    monkeypatch.chdir(copied.path)
    for output in (Path("model"), copied.path / "evidence" / "model"):
        with pytest.raises(DpfedadamwError, match=f"--output {output}: lies in the run"):
            export(copied, output)
    assert sorted(copied.path.rglob("*")) == before


def test_a_model_is_written_into_a_new_folder_or_an_empty_one(copied, tmp_path):
    assert not load_model(copied).training
    new, empty, file = tmp_path / "a" / "new", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_bytes(b"")
    (tmp_path / ".empty.partial").mkdir()
    (tmp_path / ".empty.partial" / "left").write_bytes(b"by one that was cut off")
    for output in (new, empty):
        written = export(copied, output)
        assert (written.form, written.reads) == ("own", "records")
        assert (written.base, written.base_folder) == (None, None)
        names = {path.name for path in output.iterdir()}
        assert names == {"model.safetensors", "model.json", "model.pt2"}
        assert not output.with_name(f".{output.name}.partial").exists()
    with pytest.raises(DpfedadamwError, match="exists and is not empty; name a new folder"):
        export(copied, file)
    for here in (Path(), Path("..")):
        with pytest.raises(DpfedadamwError, match="is a folder that is in use; name a new folder"):
            export(copied, here)
    with pytest.raises(DpfedadamwError, match="cannot be written"):
        export(copied, file / "below")
    assert file.read_bytes() == b""


def test_what_is_exported_is_what_was_checked(finished, tmp_path, monkeypatch, capsys):
    """Between the check of the signatures and the copy somebody exchanges the weights."""
    copy = tmp_path / finished.name
    shutil.copytree(finished, copy)
    other = bytearray((copy / "model.safetensors").read_bytes())
    other[-1] ^= 1

    def checked(*arguments, **more):
        found = verify_and_read(*arguments, **more)
        (copy / "model.safetensors").write_bytes(other)
        return found

    monkeypatch.setattr(verification, "verify_and_read", checked)
    assert call("export", str(copy), "--output", str(tmp_path / "out")) == 2
    assert "differs from the file whose signature was checked" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
