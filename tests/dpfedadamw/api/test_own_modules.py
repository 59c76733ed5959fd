"""Models of one's own from Python: run, audited, exported and taken up again, or refused."""

from __future__ import annotations

import json
import runpy
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dpfedadamw import api
from tests.runs import small_spec

SMALL = {
    name: part
    for name, part in small_spec(rounds=2, clients_per_round=2).to_mapping().items()
    if name != "model"
}


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
    assert any(
        one.startswith("nobody can derive the starting weights") for one in findings.qualifications
    )
    with pytest.raises(api.DpfedadamwError, match=r"passed from Python.*model=net"):
        _ = alone.model
    # Nothing has to be built for what is exported.
    folder = alone.export(tmp_path / "exported")
    loaded = api.load_model(folder, model=network())
    assert torch.equal(loaded[4].weight, trained[4].weight)
    # Architecture is what counts: neither first weights nor the place of a class.
    again = api.load_model(folder, model=network(seed=2))
    assert torch.equal(again[4].weight, trained[4].weight)
    assert torch.equal(api.Run(run.path, model=network(seed=2)).model[4].weight, trained[4].weight)
    other = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10, False)
    )
    message = r"4\.bias is of shape \(10,\) in the file, and not there in the model"
    with pytest.raises(api.DpfedadamwError, match=message):
        api.load_model(folder, model=other)


SCRIPT = """
from torch import nn
from dpfedadamw import api
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
    def forward(self, images):
        return self.head(images.flatten(1))
"""


@pytest.mark.thorough
def test_a_class_of_a_script_is_loaded_by_another_script_that_has_it_elsewhere(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "train.py").write_text(
        f"{SCRIPT}run = api.run({SMALL!r}, model=Net(), out='runs')\n"
        "print(run.model.head.bias[0])\n"
    )
    (tmp_path / "its_other_home.py").write_text(SCRIPT)
    (tmp_path / "serve.py").write_text(
        "from dpfedadamw import api\nfrom its_other_home import Net\n"
        "print(api.load_model('runs/latest', model=Net()).head.bias[0])\n"
        "print(api.Run('runs/latest', model=Net()).model.head.bias[0])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for script in ("train.py", "serve.py"):
        runpy.run_path(script, run_name="__main__")
    sys.modules.pop("its_other_home")
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tensor(")]
    assert len(told) == 3
    assert len(set(told)) == 1


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(64, each) for each in (64, 64, 10))
        self.second.weight = self.first.weight

    def forward(self, images):
        hidden = torch.tanh(self.first(images.flatten(1)))
        return self.head(torch.tanh(self.second(hidden)))


def test_tied_weights_are_one_parameter_in_training_in_the_audit_and_in_the_file(tmp_path):
    run = api.run(SMALL, model=Tied(), out=tmp_path)
    assert run.verdict == "PASS"
    assert "second.weight" not in load_file(run.path / "model.safetensors")
    loaded = api.load_model(run.path, model=Tied())
    assert loaded.second.weight is loaded.first.weight


def test_a_dictionary_with_a_model_beside_a_module_is_refused_and_its_keys_are_honoured(tmp_path):
    for named in ({"name": "mlp"}, {"name": "nonsense"}, "nonsense"):
        for call in (api.run, api.check_model):
            with pytest.raises(api.DpfedadamwError, match="leave spec\\['model'\\] out"):
                call(SMALL | {"model": named}, model=network())
    asked = {"name": "module", "replace_batch_norm": "group_norm"}
    (tmp_path / "spec.yaml").write_text(json.dumps(SMALL | {"model": asked}))
    for spec in (SMALL | {"model": asked}, tmp_path / "spec.yaml"):
        assert api.check_model(spec, model=network()).refused is None
    assert api.check_model("quickstart", model=network()).refused is not None


class Whole(nn.Module):
    """Reads whole numbers below 50."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 4), nn.Linear(24, 3)

    def forward(self, numbers):
        assert numbers.dtype == torch.int64
        return self.head(self.table(numbers).flatten(1))


@pytest.mark.thorough
def test_whole_numbers_reach_a_module_that_says_how_many_there_are(tmp_path):
    labels = torch.arange(300) % 3
    data = torch.randint(0, 50, (300, 6), generator=torch.Generator().manual_seed(0)), labels
    spec = SMALL | {
        "data": {"clients": 5, "partition": {"kind": "iid"}, "dataset": "given"},
    }
    with pytest.raises(api.DpfedadamwError, match=r"set model\.vocabulary for a model"):
        api.run(spec, model=Whole(), data=data, out=tmp_path / "runs")
    with pytest.raises(api.DpfedadamwError, match=r"set model\.length: 6"):
        api.run(spec | {"model": {"name": "module", "vocabulary": 50}}, model=Whole(), data=data)
    spec |= {"model": {"name": "module", "vocabulary": 50, "length": 6}}
    assert api.run(spec, model=Whole(), data=data, out=tmp_path).verdict == "PASS"


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


@pytest.mark.thorough
def test_a_run_of_a_module_is_taken_up_with_the_same_module_alone(tmp_path):
    changes = ["model.replace_batch_norm=group_norm"]
    cut = cut_off(tmp_path, model=network(), changes=changes)
    for other, message in (
        (None, r"pass it: .*api\.resume"),
        (network(seed=2), "does not have the weights that the run started with"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "are not those that the run started with"),
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
    message = r"the model's source has changed since the run began \(notebook_nets\); restore it"
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
        "model": {"name": "mlp", "hidden": []},
        "federation": SMALL["federation"] | {"clients_per_round": 4},
    }
    with pytest.raises(KeyboardInterrupt):
        api.run(spec, data=(records, labels), out=tmp_path, callbacks=[stop])
    (path,) = (one for one in tmp_path.iterdir() if not one.is_symlink())
    for other, message in (
        (None, r"pass them: api\.run"),
        ((records + 1.0, labels), "the data set has changed since the run began"),
    ):
        with pytest.raises(api.DpfedadamwError, match=message):
            api.resume(path, data=other)
    run = api.resume(path, data=(records, labels))
    assert run.verdict == "PASS"
    assert run.verify().outcome.value == "ALL HOLD"
    with pytest.raises(api.SpecError, match="this process only; give a file, or use 1"):
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
