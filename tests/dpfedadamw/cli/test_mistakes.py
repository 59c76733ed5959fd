"""What people type wrongly is told in one line each, as it is written down, and leaves nothing."""

from __future__ import annotations

import json

import pytest

from dpfedadamw import cli
from dpfedadamw import spec as specs
from tests.dpfedadamw.cli import mistakes


@pytest.mark.filterwarnings("ignore")
def test_forty_mistakes_get_the_messages_that_are_written_down():
    golden = mistakes.GOLDEN.read_text(encoding="utf-8")
    assert mistakes.listing() == golden, "python -m tests.dpfedadamw.cli.mistakes writes it anew"
    answers = [one.splitlines() for one in golden.strip().split("\n\n")]
    assert len(answers) == len(mistakes.MISTAKES) >= 40
    for _, *message, code in answers:
        assert (len(message), code) == (1, "  [2]")


def command(capsys, *arguments: str) -> tuple[object, str]:
    """A command's exit code and what it printed."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    return ended.value.code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ((), ("digits", "mlp", "dp-fedadamw", 4.0)),
        (("--unit", "client", "--epsilon", "2"), ("digits", "mlp", "dp-fedavg", 2.0)),
        (("--unit", "none"), ("digits", "mlp", "fedadamw", None)),
        (
            ("--data", "t.tsv", "--text", "letter", "--client", "who", "--model", "nets:Net"),
            ("table", "python", "dp-fedadamw", 4.0),
        ),
        (("--data", "r.npz", "--model", "cnn"), ("arrays", "cnn", "dp-fedadamw", 4.0)),
        (("--data", "."), ("image-folder", "mlp", "dp-fedadamw", 4.0)),
    ],
)
def test_init_writes_a_spec_that_is_valid(flags, found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, printed = command(capsys, "init", "new.yaml", *flags)
    assert code == 0
    assert "dpfedadamw run new.yaml" in printed
    spec = specs.load("new.yaml")
    target = getattr(spec.privacy, "target_epsilon", None)
    assert (spec.data.dataset, spec.model.name, spec.algorithm.name, target) == found


def test_init_asks_in_a_terminal_and_never_writes_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = {"data": "digits", "model": "cnn", "what": "record", "algorithm": "dp-fedavg"}
    monkeypatch.setattr(
        "typer.prompt", lambda text, **_: answers.get(text.split()[0].strip(":"), "3")
    )
    assert command(capsys, "init")[0] == 0
    spec = specs.load("spec.yaml")
    assert (spec.model.name, spec.algorithm.name, spec.privacy.target_epsilon) == (
        "cnn",
        "dp-fedavg",
        3.0,
    )
    answers["model"] = "lstm"
    assert command(capsys, "init", "wrong.yaml")[0] == 2
    assert not (tmp_path / "wrong.yaml").exists()


def test_claim_is_a_command_and_the_old_form_says_the_same(capsys):
    new = command(capsys, "claim", "ali-dpfl-epsilon-2", "--json")
    old = command(capsys, "audit", "--paper-claim", "ali-dpfl-epsilon-2", "--json")
    assert new == old
    assert json.loads(new[1])["verdict"]
