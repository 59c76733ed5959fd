"""Code that a file names: no command runs any that the user did not name herself.

Each attack leaves a file behind where its code was run, if only by being imported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from torch import nn

from dpfedadamw import api, cli
from dpfedadamw.errors import DpfedadamwError, ModelError
from dpfedadamw.models.own.permission import allowing
from dpfedadamw.run.export import export
from dpfedadamw.rundir import RunDirectory
from tests.runs import attest, begin, call, small_spec, train

CANARY = "somebody-else-was-here"
NETS = """
import functools
import os
import subprocess
from subprocess import getoutput as build
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Linear(64, classes)

    def forward(self, records):
        return self.body(records.flatten(1))

    @classmethod
    def made(cls, classes):
        return cls(classes)

class Shell:
    def __init__(self, command):
        os.system(command)

bound = functools.partial(os.system, "touch {canary}")

def loss(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")
"""
# What a spec can be asked without its model, and what needs it.
WITHOUT_THE_MODEL = (
    "spec validate {spec}",
    "spec show {spec}",
    "spec show {spec} --partition",
    "epsilon {spec}",
    "calibrate {spec} --target-epsilon 9 -o calibrated.yaml",
    "calibrate {spec} --target-epsilon 9 --frontier --vary federation.local_steps=1,2",
    "sweep {sweep} --dry-run",
    "list models",
)
WITH_THE_MODEL = (
    "spec show {spec} --blocks",
    "model check {spec}",
    "run {spec}",
    "run {spec} --set federation.workers=2",
    "run quickstart --set model={section}",
    "sweep {sweep}",
    "sweep {sweep} --smoke",
    "canaries {spec} --count 2",
    "audit --canaries 2 {spec}",
    "challenge intent {spec} --escrow key --output intent.json",
    "flower new {spec} project",
)
MODEL_ATTACKS = {
    "a shell": {"target": "subprocess:getoutput", "arguments": {"cmd": "touch {canary}"}},
    "the system": {"target": "os:system", "arguments": {"command": "touch {canary}"}},
    "an evaluation": {"target": "builtins:eval", "arguments": {"source": "open('{canary}', 'w')"}},
    "a file beside the spec": {"target": "here:Net"},
    "a package beside the spec": {"target": "package.within:Net"},
}
# Of a module that the user allowed: what it has from others, and what is no model.
ALLOWED_ATTACKS = {
    "nets:os.system": {"command": "touch {canary}"},
    "nets:subprocess.getoutput": {"cmd": "touch {canary}"},
    "nets:subprocess.Popen": {"args": ["touch", "{canary}"]},
    "nets:build": {"cmd": "touch {canary}"},
    "nets:Shell": {"command": "touch {canary}"},
    "nets:bound": {},
    "nets:functools.partial": {"func": "touch {canary}"},
    "nets:nn.Linear": {"in_features": 64, "out_features": 10},
    "nets:Net.__init__.__globals__": {},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of somebody else's, in which the user stands."""
    leave = f"open({str(tmp_path / CANARY)!r}, 'w').close()\n"
    (tmp_path / "here.py").write_text(leave + NETS.replace("{canary}", "x"))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(leave)
    (tmp_path / "package" / "within.py").write_text(NETS.replace("{canary}", "x"))
    (tmp_path / "nets.py").write_text(NETS.replace("{canary}", str(tmp_path / CANARY)))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("here", "package", "package.within", "nets"):
        sys.modules.pop(name, None)


def filled(value, canary: Path):
    """An attack with the place of what it leaves."""
    return json.loads(json.dumps(value).replace("{canary}", str(canary)))


def write_spec(folder: Path, model: dict, name: str = "evil", **more) -> Path:
    mapping = small_spec(rounds=2, clients_per_round=2).to_mapping()
    mapping["model"] = {"name": "python"} | filled(model, folder / CANARY)
    mapping["name"] = name
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(mapping | more))
    return path


def typed(command: str, folder: Path, model: dict) -> int:
    """A command about a spec with this model, and about a sweep of it."""
    spec = write_spec(folder, model)
    sweep = write_spec(folder, model, "evils", matrix={"federation.local_steps": [1, 2]})
    section = json.dumps({"name": "python"} | filled(model, folder / CANARY))
    places = {"spec": str(spec), "sweep": str(sweep), "section": section}
    return call(*(word.format(**places) for word in command.split()))


# Every command with a target of Python's own and with one beside the spec, each attack in turn.
COMMANDS = (*WITHOUT_THE_MODEL, *WITH_THE_MODEL)
OWN = [name for name in MODEL_ATTACKS if "beside" not in name]
BESIDE = [name for name in MODEL_ATTACKS if "beside" in name]
TRIED = [
    (command, attacks[place % len(attacks)])
    for place, command in enumerate(COMMANDS)
    for attacks in (OWN, BESIDE)
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("command", "attack"), TRIED)
def test_no_command_runs_code_that_only_a_spec_names(command, attack, folder, capsys):
    code = typed(command, folder, MODEL_ATTACKS[attack])
    told = capsys.readouterr()
    assert not (folder / CANARY).exists()
    lies_here = "beside" in attack
    assert code == (0 if command in WITHOUT_THE_MODEL and lies_here else code)
    if command in WITH_THE_MODEL:
        (line,) = [one for one in told.err.splitlines() if "model.target: " in one]
        said = "is code named in this file; to run it add --allow-code" if lies_here else (
            "is of Python's own library, which holds no model"
        )  # fmt: skip
        assert (code, said in line) == (2, True), told.err
        assert "Traceback" not in told.err
        assert not list((folder / "runs").glob("*-*"))
        assert not (folder / "project").exists()


def test_the_refusal_has_file_line_and_column_and_what_to_add(folder, capsys):
    path = write_spec(folder, {"target": "here:Net"})
    at = path.read_text().splitlines().index("  target: here:Net") + 1
    message = "model.target: here:Net is code named in this file; to run it add --allow-code here"
    assert call("model", "check", "evil.yaml") == 2
    assert capsys.readouterr().err.strip() == f"evil.yaml:{at}:11: {message}"
    change = "model={name: python, target: 'here:Net'}"
    assert call("model", "check", "quickstart", "--set", change, "--json") == 2
    told = capsys.readouterr()
    assert told.err.strip() == f"--set {change}: {message}"
    assert json.loads(told.out)["error"]["problems"][0]["path"] == "model.target"


def test_validate_says_that_the_model_was_not_built_and_what_builds_it(folder, capsys):
    write_spec(folder, {"target": "here:Net"})
    assert call("spec", "validate", "evil.yaml") == 0
    assert "model check evil.yaml --allow-code here" in " ".join(capsys.readouterr().out.split())
    assert call("spec", "validate", "evil.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["not_built"] == "here:Net"


@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "fed-smp"])
def test_epsilon_of_a_model_that_is_not_built_is_that_of_any_other(algorithm, folder):
    spec = small_spec(algorithm, rounds=2, clients_per_round=2).to_mapping()
    own = spec | {"model": {"name": "python", "target": "here:Net"}}
    assert api.epsilon(own).epsilon == api.epsilon(spec).epsilon
    assert not (folder / CANARY).exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ALLOWED_ATTACKS)
def test_an_allowed_module_lends_no_name_that_is_not_its_own(target, folder, capsys):
    write_spec(folder, {"target": target, "arguments": ALLOWED_ATTACKS[target]})
    assert call("model", "check", "evil.yaml", "--allow-code", "nets") == 2
    told = capsys.readouterr().err
    assert not (folder / CANARY).exists()
    assert len(told.splitlines()) == 1
    assert f"model.target: {target}" in told


@pytest.mark.parametrize("loss", ["here:loss", "nets:os.system", "nets:build", "nets:bound"])
def test_a_loss_is_held_to_the_same_rule(loss, folder, capsys):
    write_spec(folder, {"target": "nets:Net", "loss": loss})
    assert call("model", "check", "evil.yaml", "--allow-code", "nets") == 2
    assert not (folder / CANARY).exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert "model.loss: " in line


@pytest.mark.parametrize(
    "arguments",
    [
        {"classes": {"__class__": "os.system", "a": ["touch {canary}"]}},
        {"self": "touch {canary}", "cls": "os"},
        {"__init__": {"__reduce__": ["os.system", ["touch {canary}"]]}},
        {"classes": "__import__('os').system('touch {canary}')"},
    ],
)
def test_arguments_are_values_and_nothing_that_is_run(arguments, folder, capsys):
    write_spec(folder, {"target": "nets:Net", "arguments": arguments})
    assert call("model", "check", "evil.yaml", "--allow-code", "nets") == 2
    assert "cannot be built with model.arguments" in capsys.readouterr().err
    assert not (folder / CANARY).exists()


@pytest.mark.parametrize("named", ["subprocess", "os", "./nets.py", "nets:Net", "nets;os", ""])
def test_what_is_no_module_of_models_cannot_be_allowed(named, folder, capsys):
    write_spec(folder, {"target": "nets:Net"})
    assert call("model", "check", "evil.yaml", "--allow-code", named) == 2
    assert capsys.readouterr().err.startswith("error: --allow-code: ")


def test_what_a_module_finds_missing_is_not_taken_from_the_working_directory(
    folder, tmp_path_factory, monkeypatch
):
    """Libraries try to import others that they can do without; a file here may be called so."""
    library = tmp_path_factory.mktemp("library")
    text = "try:\n    import accelerator_of_others\nexcept ImportError:\n    pass\n"
    (library / "installed_here.py").write_text(text)
    monkeypatch.syspath_prepend(library)
    shutil.copy("here.py", "accelerator_of_others.py")
    (folder / "nets.py").write_text("import installed_here\n" + NETS)
    write_spec(folder, {"target": "nets:Net"})
    assert call("model", "check", "evil.yaml", "--allow-code", "nets") == 0
    assert not (folder / CANARY).exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A signed run of two rounds."""
    training, _ = train(
        small_spec(rounds=2, clients_per_round=2), tmp_path_factory.mktemp("finished")
    )
    attest(training)
    return training.run.path


@pytest.fixture
def edited(finished, folder, monkeypatch) -> Path:
    """A copy of the run that somebody gave code of their own as its model; the user is there."""
    run = folder / finished.name
    shutil.copytree(finished, run)
    edit(run, {"target": "here:Net"})
    shutil.copy("here.py", run / "here.py")
    monkeypatch.chdir(run)
    return run


def edit(run: Path, model: dict) -> None:
    section = {"name": "python"} | model
    mapping = yaml.safe_load((run / "spec.yaml").read_text())
    (run / "spec.yaml").write_text(yaml.safe_dump(mapping | {"model": section}))
    config = json.loads((run / "model.json").read_text())
    whole = {"seed": None, "replace_batch_norm": "never", "loss": None, "vocabulary": 0}
    whole |= {"length": 128, "tokeniser": "words", "sha256": None, "arguments": {}} | section
    (run / "model.json").write_text(json.dumps(config | {"model": whole}))


OF_RUNS = (
    "figures . --out ../drawn --figure loss-landscape --records 9",
    "figures . --out ../drawn --figure update-norms",
    "canaries . --count 2",
    "audit --canaries 2 .",
    "audit --replay 1 .",
    "replay .",
    "run --resume .",
    "predict . --input ../rows.npz",
)
THAT_READ_ALONE = (
    "export . --output ../model",
    "audit .",
    "verify .",
    "report .",
    "bundle . --audience public -o ../public",
    "sign .",
    "compare . .",
    "site .. ../page",
)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("attack", ["here:Net", "subprocess:getoutput"])
@pytest.mark.parametrize("command", [*OF_RUNS, *THAT_READ_ALONE])
def test_no_command_runs_code_that_a_run_directory_names(command, attack, edited, capsys):
    canary = edited.parent / CANARY
    shell = filled(MODEL_ATTACKS["a shell"], canary)
    edit(edited, shell if attack == shell["target"] else {"target": attack})
    # Where one may allow code at all, a module of the run's own folder is refused all the same.
    may = command in OF_RUNS or command.startswith("export")
    options = [[], ["--allow-code", "here"]] if may else [[]]
    for option in options:
        code = call(*command.split(), *option)
        told = capsys.readouterr().err
        assert not canary.exists()
        assert "Traceback" not in told
        assert code in (0, 1, 2)
        if command in OF_RUNS and "update" not in command and "resume" not in command:
            assert (code, "model.target: " in told) == (2, True), told


def test_a_folder_that_is_given_as_a_run_is_one_whatever_else_it_lacks(edited, capsys):
    """All but its spec is gone, so that nothing but the argument says that it is a run's."""
    for path in edited.iterdir():
        if path.name not in ("spec.yaml", "here.py"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for command in (("canaries", ".", "--count", "2"), ("audit", "--canaries", "2", str(edited))):
        assert call(*command, "--allow-code", "here") == 2
        assert "files of a run directory" in capsys.readouterr().err
    assert not (edited.parent / CANARY).exists()


def test_an_export_builds_no_model_that_a_run_names(edited, tmp_path):
    written = export(RunDirectory(edited), tmp_path / "exported")
    assert written.form == "own"
    assert (tmp_path / "exported" / "model.safetensors").is_file()
    assert not (edited.parent / CANARY).exists()
    assert (written.program, "neither allowed nor passed" in written.no_program) == (False, True)
    # Nor where its module is allowed: it lies in the run's own folder.
    with allowing(["here"]), pytest.raises(DpfedadamwError, match="files of a run directory"):
        export(RunDirectory(edited), tmp_path / "again")
    assert not (edited.parent / CANARY).exists()


def test_from_python_a_run_s_code_needs_to_be_allowed_too(edited):
    canary = edited.parent / CANARY
    with pytest.raises(ModelError, match=r'to run it give allow_code=\["here"\]'):
        _ = api.Run(edited).model
    with pytest.raises(ModelError, match=r"files of a run directory.* are never run"):
        api.load_model(edited, allow_code=["here"])
    edit(edited, {"target": "subprocess:getoutput", "arguments": {"cmd": f"touch {canary}"}})
    with pytest.raises(api.DpfedadamwError, match="Python's own library"):
        api.load_model(edited, allow_code=["here"])
    assert not canary.exists()


def test_a_loss_beside_a_module_that_python_gives_is_allowed_or_not_run(edited):
    canary = edited.parent / CANARY
    section = {"name": "module", "loss": "here:loss", "type": None, "weights_sha256": None}
    config = json.loads((edited / "model.json").read_text())
    keys = {"arguments", "target"}
    kept = {key: value for key, value in config["model"].items() if key not in keys}
    config["model"] = kept | section | {"loss_sha256": None}
    (edited / "model.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"model\.loss: here:loss is code named in this file"):
        api.load_model(edited, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert not canary.exists()


def test_a_run_that_was_cut_off_is_not_taken_up_with_code_that_was_not_named(folder, capsys):
    spec = write_spec(folder, {"target": "nets:Net"}, "cut")
    from dpfedadamw import spec as specs
    from dpfedadamw.models.own.permission import allowing

    with allowing(["nets"]):
        training = begin(specs.load(spec), folder / "runs")
    training.lock.release()
    run = str(training.run.path)
    capsys.readouterr()
    assert call("run", "--resume", run) == 2
    assert "spec.yaml:" in (told := capsys.readouterr().err)
    assert "nets:Net is code named in this file; to run it add --allow-code nets" in told
    assert call("run", "--resume", run, "--allow-code", "nets") == 0


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["nets:Net", "nets:Net.made"])
def test_what_the_user_names_is_run_in_every_process_of_the_run(target, folder, capsys):
    """Worker processes, and the runs of a sweep, are given the names as their arguments."""
    write_spec(folder, {"target": target, "loss": "nets:loss"})
    options = ("--allow-code", "nets", "--set", "federation.workers=2")
    assert call("run", "evil.yaml", *options) == 0, capsys.readouterr().err
    assert call("replay", "--allow-code", "nets") == 0


@pytest.mark.slow
def test_a_sweep_hands_the_names_on_to_its_runs(folder, capsys):
    write_spec(folder, {"target": "nets:Net"}, "own", matrix={"federation.local_steps": [1, 2]})
    assert call("sweep", "own.yaml", "--allow-code", "nets", "--json") == 0, capsys.readouterr().err
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2


def test_the_user_s_own_list_allows_code_unless_others_may_write_it(folder, monkeypatch, capsys):
    keys = folder / "keys of the user"
    keys.mkdir(mode=0o700)
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(keys))
    own = keys / "allow-code"
    own.write_text("# mine\nmodels_of_mine  # old\nnets\n")
    own.chmod(0o600)
    write_spec(folder, {"target": "nets:Net"})
    check = ("model", "check", "evil.yaml")
    assert call(*check) == 0, capsys.readouterr().err
    for place, mode in ((own, 0o620), (own, 0o602), (keys, 0o770)):
        place.chmod(mode)
        assert call(*check) == 2
        assert "another user may write to it" in capsys.readouterr().err
        place.chmod(0o700)
    own.write_text("nets, subprocess\n")
    assert call(*check) == 2
    assert "is not a module name" in capsys.readouterr().err
    own.write_text("subprocess\n")
    assert call(*check) == 2
    assert "Python's own library" in capsys.readouterr().err
    # A folder that is named relative to the working directory is whoever's who made that one.
    own.write_text("nets\n")
    monkeypatch.setenv("DPFEDADAMW_KEYS", "keys of the user")
    assert call(*check) == 2
    assert "to run it add --allow-code nets" in capsys.readouterr().err


SHADOWS = (
    "json", "pickle", "socket", "typing", "contextlib", "multiprocessing", "signal", "torch",
    "cloudpickle", "flwr", "ray",
)  # fmt: skip


def run_among_shadows(folder: Path, model: dict, *options: str) -> None:
    """Run a spec by the installed command, where files lie that are called as libraries are.

    A further one is what matplotlib reads its settings from, and has it call LaTeX for each text.
    """
    command = folder / "bin" / "dpfedadamw"
    command.parent.mkdir()
    start = "if __name__ == '__main__':\n    start()\n"
    command.write_text(f"from dpfedadamw.__main__ import start\n\n{start}")
    for name in SHADOWS:
        shutil.copy("here.py", f"{name}.py")
    Path("matplotlibrc").write_text("text.usetex: True\n")
    latex = folder / "bin" / "latex"
    latex.write_text(f"#!/bin/sh\ntouch {folder / CANARY}\nexit 1\n")
    latex.chmod(0o755)
    write_spec(folder, model)
    done = subprocess.run(
        [sys.executable, str(command), "run", "evil.yaml", "--json", *options],
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(latex.parent), os.environ["PATH"]]),
            "PYTHONPATH": str(Path(cli.__file__).parents[2]),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / CANARY).exists()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_of_the_working_directory_stands_for_no_library(workers, folder):
    """Processes that Python starts for others look there first, unless they are told not to."""
    mlp = {"name": "mlp", "hidden": []}
    run_among_shadows(folder, mlp, "--set", f"federation.workers={workers}")


@pytest.mark.flower
def test_nor_does_it_in_flower_s_simulation_whose_processes_run_what_the_user_named(folder):
    # Not Ray itself: what imports it without a token has later tests' simulations refused.
    pytest.importorskip(
        "flwr.app", reason="Flower has an environment of its own: tox run -e flower"
    )
    options = ("--engine", "flower", "--allow-code", "nets")
    run_among_shadows(folder, {"target": "nets:Net"}, *options)
