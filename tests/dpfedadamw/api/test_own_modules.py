"""Models of one's own from Python: run, audited, exported and taken up again, or refused."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from dpfedadamw import api
from tests.runs import small_spec

SMALL = small_spec(rounds=2).to_mapping()


def network(seed: int = 1) -> nn.Module:
    """A module that nobody here wrote, as a notebook would have it."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


def stop(_done):
    raise KeyboardInterrupt


def cut_off(tmp_path, **arguments) -> api.Run:
    """A run that was ended after its first round."""
    with pytest.raises(KeyboardInterrupt):
        api.run(SMALL, out=tmp_path, callbacks=[stop], **arguments)
    (path,) = (one for one in tmp_path.iterdir() if not one.is_symlink() and one.suffix != ".py")
    return api.Run(path)


def test_a_module_is_run_from_the_weights_that_it_has_and_is_left_as_it_was(tmp_path):
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    changes = ["model.replace_batch_norm=group_norm"]
    run = api.run(SMALL, model=net, changes=changes, out=tmp_path)
    assert run.verdict == "PASS"
    assert run.verify().outcome.value == "ALL HOLD"
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    trained = run.model
    assert isinstance(trained[1], nn.GroupNorm)
    assert not torch.equal(trained[4].weight, net[4].weight)
    alone = api.Run(run.path)
    findings = alone.audit()
    assert findings.verdict.value == "PASS"
    assert any(one.startswith("nobody can derive the weights") for one in findings.qualifications)
    with pytest.raises(api.DpfedadamwError, match=r"handed over from Python.*model=net"):
        _ = alone.model
    # Nothing has to be built for what is exported.
    folder = alone.export(tmp_path / "exported")
    loaded = api.load_model(folder, model=network())
    assert torch.equal(loaded[4].weight, trained[4].weight)
    with pytest.raises(api.DpfedadamwError, match=r"model\.weights_sha256"):
        api.load_model(folder, model=network(seed=2))


def brier(outputs, labels):
    """The squared distance of a record's scores to its class."""
    wanted = nn.functional.one_hot(labels, outputs.shape[1])
    return (outputs.softmax(1) - wanted).square().sum(1)


@pytest.mark.slow
def test_a_module_is_trained_by_a_loss_of_its_own_and_taken_up_with_it_alone(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(KeyboardInterrupt):
        api.run(SMALL, model=net, loss=brier, out=tmp_path, callbacks=[stop])
    (path,) = (one for one in tmp_path.iterdir() if not one.is_symlink())
    for other in (None, nn.functional.nll_loss):
        with pytest.raises(api.DpfedadamwError, match="the loss is not the one"):
            api.resume(path, model=net, loss=other)
    run = api.resume(path, model=net, loss=brier)
    assert run.verdict == "PASS"
    # A Brier score of ten classes; cross-entropy of as many begins at 2.3.
    assert 0.5 < run.metrics[0]["test_loss"] < 1.1
    assert run.model[1].weight.shape == (10, 64)
    with pytest.raises(api.DpfedadamwError, match="belongs to a module, model=net"):
        api.run(SMALL, loss=brier, out=tmp_path)


def test_a_run_of_a_module_is_taken_up_with_the_same_module_alone(tmp_path):
    changes = ["model.replace_batch_norm=group_norm"]
    cut = cut_off(tmp_path, model=network(), changes=changes)
    for other, message in (
        (None, r"give it again: api\.resume"),
        (network(seed=2), "does not have the weights that the run began with"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "are not those that the run began with"),
    ):
        with pytest.raises(api.DpfedadamwError, match=message):
            api.resume(cut.path, model=other)
    assert api.resume(cut.path, model=network()).verdict == "PASS"


def test_a_target_is_pinned_by_the_run_and_a_changed_source_is_named(tmp_path, monkeypatch):
    place = tmp_path / "notebook_nets.py"
    text = "from torch import nn\n\ndef loss(outputs, labels):\n"
    text += "    return nn.functional.cross_entropy(outputs, labels, reduction='none')\n\n"
    text += "def net(classes):\n    return "
    place.write_text(f"{text}nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n")
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    chosen = ["model={name: python, target: 'notebook_nets:net', loss: 'notebook_nets:loss'}"]
    allowed = {"allow_code": ["notebook_nets"]}
    cut = cut_off(runs, changes=chosen, **allowed)
    kept = place.read_text()
    place.write_text(kept.replace("64", "8 * 8"))
    message = r"the model's source has changed since the run began \(notebook_nets\); put it back"
    with pytest.raises(api.DpfedadamwError, match=message):
        api.resume(cut.path, **allowed)
    place.write_text(kept)
    run = api.Run(cut.path, **allowed).resume()
    assert run.verdict == "PASS"
    assert "  sha256: null" not in (run.path / "spec.yaml").read_text().partition("model:")[2]
    assert list(json.loads((run.path / "model.json").read_text())["source"]) == ["notebook_nets"]
    loaded = api.load_model(run.export("out"), **allowed)
    assert torch.equal(run.model[1].weight, loaded[1].weight)


def test_records_that_python_holds_are_run_and_given_again_to_take_up_the_run(tmp_path):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    records = torch.randn(300, 4, generator=generator) + labels[:, None]
    spec = SMALL | {
        "data": {"clients": 5, "partition": {"kind": "iid"}, "dataset": "given"},
        "federation": SMALL["federation"] | {"clients_per_round": 4},
    }
    with pytest.raises(KeyboardInterrupt):
        api.run(spec, data=(records, labels), out=tmp_path, callbacks=[stop])
    (path,) = (one for one in tmp_path.iterdir() if not one.is_symlink())
    for other, message in (
        (None, r"give them again: api\.run"),
        ((records + 1.0, labels), "the data set has changed since the run began"),
    ):
        with pytest.raises(api.DpfedadamwError, match=message):
            api.resume(path, data=other)
    run = api.resume(path, data=(records, labels))
    assert run.verdict == "PASS"
    assert run.verify().outcome.value == "ALL HOLD"
    with pytest.raises(api.SpecError, match="this process alone; give a file, or use 1"):
        api.run(spec, data=(records, labels), changes=["federation.workers=2"], out=tmp_path)


class Quoting(nn.Module):
    """Raises on a record of the data set, and quotes it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        if self.training and float(images.sum()) > 200:
            raise ValueError(f"bad record {images[0].flatten().tolist()}")
        return self.head(images.flatten(1))


def test_what_a_modules_own_code_says_of_a_record_is_not_shown(tmp_path):
    message = r"its own code failed on records.*test_own_modules\.py:\d+ in forward \(ValueError;"
    with pytest.raises(api.DpfedadamwError, match=message) as caught:
        api.run(SMALL, model=Quoting(), out=tmp_path)
    assert "bad record" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_module_cannot_be_run_in_other_processes(tmp_path):
    for change, message in (
        ("federation.workers=2", r"give its place as model\.name python, or use 1"),
        ("federation.engine=flower", r"model\.name python, or use inline"),
    ):
        with pytest.raises(api.SpecError, match=message):
            api.run(SMALL, model=network(), changes=[change], out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
