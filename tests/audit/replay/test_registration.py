"""A replay is registered by its own file, or brought by another package, which is then named."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module

import pytest

import audit.replay
from audit.errors import UnverifiedError
from audit.replay import OWN, find_applied_mean, find_replay, register
from audit.verdict import Verdict
from tests.audit.corruptions import finding_of
from tests.audit.synthetic_run import Settings, build_run, rewrite_spec

GOOD = "from audit.replay import find_replay\n\nREPLAY = find_replay('dp-fedavg').replay\n"
REGISTERS = GOOD + "\nfrom audit.replay import register\n\nregister('my-fedavg', REPLAY)\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a package with one entry point, as a file of metadata on the path."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(audit.replay, "_BROUGHT", {})
    monkeypatch.setattr(audit.replay, "_BROUGHT_MEANS", set())

    def install(code, name="my-fedavg", value="{}:REPLAY", package="mine"):
        folder = tmp_path / "site" / f"{package}-1.2.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        point = f"[dpfedadamw.replays]\n{name} = {value.format(f'{package}_replays')}\n"
        (folder / "entry_points.txt").write_text(point)
        (tmp_path / "site" / f"{package}_replays.py").write_text(code)
        monkeypatch.delitem(sys.modules, f"{package}_replays", raising=False)

    yield install
    for module in [name for name in sys.modules if name.endswith("_replays")]:
        del sys.modules[module]


def uploads_of(path, name="my-fedavg"):
    """The finding on a correct run of federated averaging that calls itself by another name."""
    run = build_run(path / "run", replace(Settings(), algorithm="dp-fedavg"))
    rewrite_spec(run, lambda spec: spec["algorithm"].update(name=name))
    return finding_of(run, "uploads")


@pytest.mark.parametrize(
    ("code", "value"), [(GOOD, "{}:REPLAY"), (REGISTERS, "{}")], ids=["object", "module"]
)
def test_a_replay_from_another_package_is_used_and_named(code, value, installed, tmp_path):
    installed(code, value=value)
    finding = uploads_of(tmp_path)
    assert finding.verdict is Verdict.PASS, finding.measurement
    assert finding.details["replay"] == "mine 1.2"
    assert "mine 1.2" in finding.qualifications[0]


def test_a_replay_of_the_auditors_own_names_nobody(tmp_path):
    finding = uploads_of(tmp_path, "dp-fedavg")
    assert finding.verdict is Verdict.PASS
    assert "replay" not in finding.details
    assert finding.qualifications == ()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ZeroDivisionError('no luck')", "cannot be loaded (ZeroDivisionError: no luck)"),
        ("raise SystemExit(3)", "cannot be loaded (SystemExit: 3)"),
        ("OTHER = 1", "cannot be loaded (AttributeError"),
        ("REPLAY = 'text'", "the auditor has no replay of my-fedavg"),
        (
            "from audit.replay import Replay\nREPLAY = Replay(len, len, len)",
            "the replay of my-fedavg that mine 1.2 brings failed (TypeError)",
        ),
    ],
    ids=["raises", "exits", "holds nothing", "holds a text", "does not work"],
)
def test_a_replay_that_cannot_be_had_is_not_verified_and_told(code, says, installed, tmp_path):
    installed(code)
    finding = uploads_of(tmp_path)
    assert finding.verdict is Verdict.NOT_VERIFIED
    assert says in finding.measurement


def test_each_file_has_the_replays_that_are_said_to_be_in_it():
    for file in set(OWN.values()):
        own = import_module(f"audit.replay.{file}").REPLAYS
        assert set(own) == {name for name, where in OWN.items() if where == file}
        assert all(find_replay(name).replay is replay for name, replay in own.items())


def test_no_package_stands_in_for_a_replay_of_the_auditors_own(installed):
    before = find_replay("dp-fedavg")
    installed("raise ValueError('is never read')", name="dp-fedavg")
    assert find_replay("dp-fedavg") == before
    with pytest.raises(ValueError, match="already"):
        register("dp-fedavg", before.replay)


def test_two_packages_with_one_name_are_none(installed):
    installed(GOOD)
    installed(GOOD, package="theirs")
    with pytest.raises(UnverifiedError, match=r"mine 1\.2, theirs 1\.2"):
        find_replay("my-fedavg")


def test_at_client_level_a_package_says_that_its_server_adds_the_mean(installed):
    assert find_applied_mean("my-mean") is None
    code = "from audit.replay import register_applied_mean\n\nregister_applied_mean('my-mean')\n"
    installed(code, name="my-mean", value="{}")
    assert find_applied_mean("my-mean").source == "mine 1.2"
    assert find_applied_mean("dp-fedavg").source is None
