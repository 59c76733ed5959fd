"""Models of one's own: found, digested, looked through, mended or refused."""

from __future__ import annotations

import hashlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfedadamw.errors import ModelError
from dpfedadamw.models.own import sources
from dpfedadamw.models.own.fitting import (
    GROUP_NORM,
    code_digest,
    fit,
    given,
    groups_of,
    handed_over,
    loss_digest,
    weights_digest,
)
from dpfedadamw.models.own.permission import allowing
from dpfedadamw.models.own_modules import PythonModelSpec, plain_tokens
from dpfedadamw.models.registry import MODELS, build, loss_of, synthetic_records

NETS = """
from torch import nn
from layers.widths import WIDTH

class Net(nn.Module):
    def __init__(self, classes, input_shape, hidden=WIDTH):
        super().__init__()
        self.body = nn.Linear(input_shape[0], hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, records):
        return self.head(self.body(records).relu())

def number():
    return 3

def broken(classes):
    raise RuntimeError("first line\\nsecond line")
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A folder with a module of one's own, which imports a package beside it."""
    (tmp_path / "own_nets.py").write_text(NETS)
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "__init__.py").write_text("")
    (tmp_path / "layers" / "widths.py").write_text("WIDTH = 5\n")
    (tmp_path / "unused.py").write_text("raise RuntimeError('run')\n")
    monkeypatch.chdir(tmp_path)
    with allowing(["own_nets", "unused", "nowhere_at_all"]):
        yield tmp_path


def keys(target: str = "own_nets:Net", **more) -> PythonModelSpec:
    return PythonModelSpec(name="python", target=target, **more)


def test_a_target_of_the_current_folder_is_built_with_the_shapes_of_the_data(nets):
    model = build(keys(arguments={"hidden": 7}), (4,), 3, seed=1)
    assert (model.body.in_features, model.body.out_features) == (4, 7)
    again, other = (build(keys(arguments={"hidden": 7}), (4,), 3, seed=seed) for seed in (1, 2))
    assert torch.equal(model.body.weight, again.body.weight)
    assert not torch.equal(model.body.weight, other.body.weight)
    assert build(keys(), (4,), 3, seed=1).body.out_features == 5


def test_the_digest_covers_what_is_imported_from_the_same_folder_and_nothing_else(nets):
    found = sources.source_of("own_nets:Net")
    assert sorted(found.files) == ["layers", "layers.widths", "own_nets"]
    (nets / "unused.py").write_text("")
    assert sources.source_of("own_nets:Net") == found
    (nets / "layers" / "widths.py").write_text("WIDTH = 6\n")
    changed = sources.source_of("own_nets:Net")
    assert changed.sha256 != found.sha256
    assert changed.changed_from(found.files) == ["layers.widths"]


class Editable(MetaPathFinder):
    """Finds one module in a folder, as the hook of an editable installation does."""

    def __init__(self, name, folder):
        self.name, self.folder = name, str(folder)

    def find_spec(self, fullname, path=None, target=None):
        return PathFinder.find_spec(fullname, [self.folder]) if fullname == self.name else None


def test_what_is_installed_comes_before_the_current_folder_however_it_is_installed(
    nets, tmp_path_factory, monkeypatch
):
    installed = tmp_path_factory.mktemp("installed")
    (installed / "own_nets.py").write_text(NETS.replace("hidden=WIDTH", "hidden=9"))
    (installed / "layers").mkdir()
    (installed / "layers" / "__init__.py").touch()
    (installed / "layers" / "widths.py").write_text("WIDTH = 8\n")
    monkeypatch.setattr("sys.meta_path", [*sys.meta_path, Editable("own_nets", installed)])
    monkeypatch.syspath_prepend(installed.parent)
    expected = hashlib.sha256((installed / "own_nets.py").read_bytes()).hexdigest()
    assert sources.source_of("own_nets:Net").files["own_nets"] == expected
    monkeypatch.syspath_prepend(installed)
    assert build(keys(), (4,), 3, seed=1).body.out_features == 9


def test_a_file_that_was_edited_since_it_was_imported_is_imported_anew(nets):
    assert build(keys(), (4,), 3, seed=1).body.out_features == 5
    (nets / "layers" / "widths.py").write_text("WIDTH = 11\n")
    assert build(keys(), (4,), 3, seed=1).body.out_features == 11


def test_of_an_installed_package_its_module_and_version_are_digested():
    with allowing(["torch.nn"]):
        found = sources.source_of("torch.nn.modules.linear:Linear").files
    assert {"torch.nn.modules.linear", "torch (package)"} == set(found)
    assert found["torch (package)"] == version("torch")


def test_a_pinned_digest_is_filled_in_and_holds_the_source_to_it(nets):
    pinned = MODELS["python"].pin(keys())
    assert pinned.sha256 == sources.source_of("own_nets:Net").sha256
    assert MODELS["python"].pin(pinned) == pinned
    (nets / "own_nets.py").write_text(NETS + "\n# edited\n")
    with pytest.raises(ModelError, match=r"model\.sha256: the spec pins .* restore the source"):
        build(pinned, (4,), 3, seed=1)


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("nowhere_at_all:Net", {}, "there is no such module; modules are searched"),
        ("own_nets:Nut", {}, "own_nets has no Nut"),
        ("own_nets:Net", {"depth": 1}, r"cannot be built with model\.arguments \(TypeError.*depth"),
        ("own_nets:broken", {}, r"\(RuntimeError: first line\)$"),
        ("own_nets:number", {}, r"returns int; it must be a torch\.nn\.Module"),
        ("own_nets:WIDTH", {}, "is neither a class nor a function"),
        ("unused:Net", {}, r"cannot be imported \(RuntimeError: run\); fix the module"),
    ],
)
def test_what_is_wrong_with_a_target_is_said_in_one_line(nets, target, arguments, message):
    with pytest.raises(ModelError, match=message) as caught:
        build(keys(target, arguments=arguments), (4,), 3, seed=1)
    assert str(caught.value).startswith(f"model.target: {target}: ")
    assert "\n" not in str(caught.value)


class Functional(nn.Module):
    """Drops some of 64 entries, so never the same twice, where no layer shows it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, records):
        spread = records.repeat(1, 16) + 1.0
        return self.head(functional.dropout(spread, 0.5, self.training))


class Counting(nn.Module):
    """Counts the batches that it has seen."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, records):
        if self.training:
            self.seen += 1
        return self.head(records)


class Picky(nn.Module):
    """Knows ten numbers alone."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(16, 3)

    def forward(self, records):
        return self.head(self.table(records.long()).flatten(1))


class OfOneLength(nn.Linear):
    """Answers batches alone whose records are equally long."""

    def forward(self, records):
        lengths = (records != 0).sum(1)
        if len(lengths.unique()) > 1:
            raise ValueError("lengths differ")
        return super().forward(records)


def of_one_memory() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    net[1].weight = nn.Parameter(net[0].weight.detach().t())
    return net


def of_memory_that_overlaps() -> nn.Module:
    whole = torch.zeros(7, 4)
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    net[0].weight, net[1].weight = nn.Parameter(whole[3:]), nn.Parameter(whole[:4])
    return net


def frozen() -> nn.Module:
    return nn.Linear(4, 3).requires_grad_(False)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: nn.Linear(4, 2), r"answers one record with shape \(1, 2\).*\(1, 3\)"),
        (lambda: nn.Linear(5, 3), r"its forward fails on a record of shape \(4,\)"),
        (frozen, "has no trainable parameter; unfreeze"),
        (Functional, "answers the same record differently each time"),
        (Counting, "its buffer seen changes in the forward pass"),
        (Picky, r"its forward fails on three made-up records .*IndexError.*set model\.vocabulary"),
        (
            lambda: OfOneLength(4, 3),
            r"its forward fails on two made-up records .*\(ValueError: lengths differ\)",
        ),
        (of_memory_that_overlaps, r"0\.weight and 1\.weight share their memory"),
        (of_one_memory, r"0\.weight and 1\.weight share their memory but are two parameters"),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
            r"layer '0' \(BatchNorm1d\).*model\.replace_batch_norm: group_norm",
        ),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_module_that_cannot_be_trained_by_record_is_refused_with_the_reason(
    module, message, training
):
    """It is looked at as it will be trained, also where it came in evaluation mode."""
    with pytest.raises(ModelError, match=f"^model: {message}"):
        fit(module().train(training), "model", (4,), 3, "never")


def test_batch_norm_becomes_group_norm_of_a_records_own_channels_on_request():
    module = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.LazyLinear(3))
    weight = module[1].weight
    fitted = fit(module, "model", (1, 5, 5), 3, GROUP_NORM)
    assert isinstance(fitted[1], nn.GroupNorm)
    assert fitted[1].weight is weight
    (note,) = fitted.mended
    assert (note.name, note.before) == ("1", "BatchNorm2d(6)")
    records = torch.randn(3, 1, 5, 5)
    assert torch.allclose(fitted(records)[:1], fitted(records[:1]), atol=1e-6)


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (2, 1), (6, 3), (7, 1), (64, 32), (96, 32)]
)
def test_groups_have_two_channels_or_more(channels, groups):
    assert groups_of(channels) == groups


def test_dropout_is_put_out_and_said():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3), nn.Dropout(0.0))
    fitted = fit(module, "model", (4,), 3, "never")
    assert [note.before for note in fitted.mended] == ["Dropout(0.5)"]
    assert torch.equal(fitted(torch.ones(1, 4)), fitted(torch.ones(1, 4)))


class Recurrent(nn.Module):
    """Two layers of a kind of torch's that has dropout of its own, or attention."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "MultiheadAttention":
            self.body: nn.Module = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        else:
            self.body = getattr(nn, kind)(4, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, records):
        given = (records,) * 3 if isinstance(self.body, nn.MultiheadAttention) else (records,)
        return self.head(self.body(*given)[0][:, -1])


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU", "MultiheadAttention"])
def test_dropout_inside_a_layer_is_put_out_and_said(kind):
    fitted = fit(Recurrent(kind), "model", (6, 4), 3, "never")
    assert [(note.name, note.before) for note in fitted.mended] == [
        ("body", f"{kind}, dropout 0.5")
    ]
    assert fitted.training
    records = torch.randn(2, 6, 4)
    assert torch.equal(fitted(records), fitted(records))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("Dropout", (4,)),
        ("AlphaDropout", (4,)),
        ("FeatureAlphaDropout", (4,)),
        ("Dropout1d", (4, 3)),
        ("Dropout2d", (4, 3, 3)),
        ("Dropout3d", (4, 3, 3, 3)),
    ],
)
def test_every_kind_of_dropout_is_put_out(kind, shape):
    module = nn.Sequential(getattr(nn, kind)(0.5), nn.Flatten(), nn.LazyLinear(3))
    fitted = fit(module, "model", shape, 3, "never")
    assert [note.before for note in fitted.mended] == [f"{kind}(0.5)"]
    records = torch.randn(2, *shape)
    assert torch.equal(fitted(records), fitted(records))


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(6), (6, 3)),
        (nn.BatchNorm2d(6), (6, 3, 3)),
        (nn.BatchNorm3d(6, affine=False), (6, 3, 3, 3)),
        (nn.BatchNorm2d(6, eps=0.5, track_running_stats=False), (6, 3, 3)),
        (nn.SyncBatchNorm(6), (6, 3)),
    ],
)
def test_every_layer_over_the_batch_is_refused_or_becomes_group_norm_of_the_same_form(norm, shape):
    def module():
        return nn.Sequential(nn.Sequential(nn.Identity(), norm), nn.Flatten(), nn.LazyLinear(3))

    with pytest.raises(ModelError, match=rf"layer '0.1' .{type(norm).__name__}. normalises"):
        fit(module(), "model", shape, 3, "never")
    fitted = fit(module(), "model", shape, 3, GROUP_NORM)
    new = fitted[0][1]
    assert (new.num_groups, new.num_channels, new.eps, new.affine) == (3, 6, norm.eps, norm.affine)
    assert [note.name for note in fitted.mended] == ["0.1"]
    if norm.affine:
        assert (new.weight is norm.weight, new.bias is norm.bias) == (True, True)
    records = torch.randn(2, *shape)
    assert torch.allclose(fitted(records)[:1], fitted(records[:1]), atol=1e-6)


def test_what_leaves_nothing_to_train_or_cannot_be_replaced_is_refused():
    with pytest.raises(ModelError, match="has nothing to train"):
        fit(nn.BatchNorm1d(4), "model", (4,), 4, GROUP_NORM)
    with pytest.raises(ModelError, match=r"layer '0' .LazyBatchNorm1d. normalises"):
        fit(nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(4, 3)), "model", (4,), 3, GROUP_NORM)
    whole = nn.Linear(4, 3)
    whole.register_parameter("counts", nn.Parameter(torch.zeros(2, dtype=torch.int64), False))
    with pytest.raises(ModelError, match="the parameter counts does not hold real numbers"):
        fit(whole, "model", (4,), 3, "never")


def test_a_loss_of_the_module_and_another_of_the_task_are_refused_together():
    from dpfedadamw.spec.task_section import ClassificationTask
    from dpfedadamw.tasks import Task

    def own(outputs, labels):
        return functional.cross_entropy(outputs, labels, reduction="none")

    for asked in ({"loss": "focal"}, {"class_weights": (1.0, 2.0, 1.0)}):
        task = Task(ClassificationTask.model_validate(asked))
        fit(nn.Linear(4, 3), "model", (4,), 3, "never", task=task)
        with pytest.raises(ModelError, match=r"^model\.loss: the model has its own loss"):
            fit(nn.Linear(4, 3), "model", (4,), 3, "never", loss=own, task=task)


def test_a_digest_of_weights_changes_with_any_name_type_shape_or_number():
    def net(name="weight", **changes):
        module = nn.Module()
        values = torch.arange(6.0)
        values[changes.get("place", 0)] += changes.get("more", 0.0)
        shaped = values.reshape(changes.get("shape", (2, 3))).to(changes.get("kind", torch.float32))
        module.register_buffer(name, shaped)
        return module

    digest = weights_digest(net())
    assert digest == weights_digest(net())
    others = [net("other"), net(shape=(3, 2)), net(kind=torch.float64), net(kind=torch.float16)]
    others += [net(place=place, more=0.5) for place in range(6)]
    assert len({digest, *map(weights_digest, others)}) == 1 + len(others)
    # Of the numbers themselves, not of the memory that they lie in.
    turned = net()
    turned.weight = torch.arange(6.0).reshape(2, 3).t().contiguous().t()
    assert weights_digest(turned) == digest
    # By hand: name, type and shape on a line, then the numbers as they are stored.
    line, numbers = b"weight torch.float32 (2, 3)\n", torch.arange(6.0).numpy().tobytes()
    assert digest == hashlib.sha256(line + numbers).hexdigest()


def test_a_module_is_handed_over_as_a_copy_and_only_while_it_is():
    module = nn.Linear(4, 3)
    with handed_over(module):
        copied = given()
        assert copied is not module
        assert weights_digest(copied) == weights_digest(module)
        copied.weight.data.add_(1.0)
    assert weights_digest(copied) != weights_digest(module)
    with pytest.raises(ModelError, match=r"pass it: .*api\.resume\(folder, model=net\)"):
        given()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (functional.cross_entropy, r"gives \(\) for 3 records.*reduction"),
        (lambda outputs, labels: outputs[:, 9], r"fails on outputs of shape \(3, 3\).*IndexError"),
        (lambda outputs, labels: labels.float(), "has no gradient"),
        (lambda outputs, labels: (outputs - outputs.mean(0)).sum(1), "other records of the batch"),
    ],
)
def test_a_loss_that_is_not_of_single_records_is_refused(loss, message):
    with pytest.raises(ModelError, match=rf"^model\.loss: .*{message}"):
        fit(nn.Linear(4, 3), "model", (4,), 3, "never", loss=loss)


def test_a_module_is_trained_by_its_own_loss_and_others_by_cross_entropy():
    def brier(outputs, labels):
        wanted = functional.one_hot(labels, outputs.shape[1])
        return (outputs.softmax(1) - wanted).square().sum(1)

    module = fit(nn.Linear(4, 3), "model", (4,), 3, "never", loss=brier)
    assert loss_of(module) is brier
    outputs, labels = torch.randn(5, 3), torch.arange(5) % 3
    expected = functional.cross_entropy(outputs, labels, reduction="none")
    assert torch.equal(loss_of(nn.Linear(4, 3))(outputs, labels), expected)
    assert loss_digest(brier) != loss_digest(functional.cross_entropy)


def test_a_loss_whose_lines_are_something_else_is_known_by_its_name(tmp_path):
    """As in a notebook, or in a program that was taken from a page."""
    page = tmp_path / "page.md"
    page.write_text("one's own loss (\nwhich has\n")
    names = {"__name__": "here"}
    exec(compile("def mine(outputs, labels):\n    return outputs", str(page), "exec"), names)
    assert loss_digest(names["mine"]) == hashlib.sha256(b"here.mine").hexdigest()


def test_a_module_without_shapes_has_no_digest():
    with pytest.raises(ModelError, match="run the module on one batch"):
        weights_digest(nn.LazyLinear(3))


def test_the_code_digest_knows_layers_and_sources():
    assert code_digest(nn.Linear(4, 3)) == code_digest(nn.Linear(4, 3))
    assert code_digest(nn.Linear(4, 3)) != code_digest(nn.Linear(4, 2))
    assert code_digest(Counting()) != code_digest(Functional())


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_texts_become_tokens_without_anything_learned(kind):
    form = plain_tokens(kind, 300, 6)
    records = form.encode(["A word, a", "ä"], None)
    assert records.shape == (2, 2, 6)
    assert (records < 300).all()
    assert (records[:, 1] == 0).all()
    # Half a pair of surrogates, as scraped JSON has it, is a character like another.
    assert form.encode(["a\ud800b"], None)[0, 0, 0] > 0
    if kind == "words":
        assert records[0, 0, 0] == records[0, 0, 3]
        assert (records[0, 0] > 0).sum() == 4
    else:
        assert records[1, 0].tolist() == [ord("ä".encode()[:1]) + 1, 165, 0, 0, 0, 0]
    assert torch.tensor(form.encode(["a"], ["b"])[0, 0, :2]).count_nonzero() == 2


def test_a_model_of_tokens_is_given_whole_numbers_and_made_up_ones_that_it_knows():
    module = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(24, 3))
    fitted = fit(module, "model", (2, 6), 3, "never", vocabulary=20)
    made_up = synthetic_records(fitted, torch.randn(5, 2, 6))
    assert int(made_up.max()) < 20
    assert fitted(made_up).shape == (5, 3)


class Words(nn.Module):
    """A mean over the places of a batch that is cut to its longest record."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        used = tokens != 0
        tokens = tokens[:, : 1 + int((used * torch.arange(tokens.shape[1])).amax())]
        counted = (tokens != 0) if self.masked else torch.ones_like(tokens, dtype=torch.bool)
        counted = counted.unsqueeze(2).float()
        return self.head((self.words(tokens) * counted).sum(1) / counted.sum(1).clamp(min=1))


def test_a_module_that_attends_the_padding_of_a_batch_is_refused_and_a_masked_one_is_not():
    fit(Words(masked=True), "model", (2, 6), 3, "never", vocabulary=20)
    with pytest.raises(ModelError, match="depends on the other records of the batch"):
        fit(Words(masked=False), "model", (2, 6), 3, "never", vocabulary=20)


def test_the_digest_of_a_class_and_of_a_loss_follows_their_source_though_names_stay(
    tmp_path, monkeypatch
):
    digests = []
    for number in ("1.0", "2.0"):
        source = f"def loss(outputs, labels):\n    return outputs * {number}\n"
        net = f"class Net(Module):\n    def forward(self, records):\n        return {number}\n"
        file = tmp_path / number / "mine.py"
        file.parent.mkdir()
        file.write_text(f"from torch.nn import Module\n\n\n{source}\n\n{net}")
        module = module_from_spec(found := spec_from_file_location("mine", file))
        monkeypatch.setitem(sys.modules, "mine", module)
        found.loader.exec_module(module)
        text = f"mine.loss\n{source}"
        assert loss_digest(module.loss) == hashlib.sha256(text.encode()).hexdigest()
        text = f"Net()\nmine.Net\n{net}"
        assert code_digest(module.Net()) == hashlib.sha256(text.encode()).hexdigest()
        digests += [loss_digest(module.loss), code_digest(module.Net())]
    assert len(set(digests)) == 4


def test_what_is_torchs_is_known_by_its_name_and_not_by_the_source_of_a_version():
    name = b"torch.nn.functional.cross_entropy"
    assert loss_digest(functional.cross_entropy) == hashlib.sha256(name).hexdigest()
    text = f"{nn.Linear(4, 3)!r}\ntorch.nn.modules.linear.Linear"
    assert code_digest(nn.Linear(4, 3)) == hashlib.sha256(text.encode()).hexdigest()
