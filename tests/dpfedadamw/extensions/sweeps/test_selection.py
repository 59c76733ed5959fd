"""A private selection's folder: what is drawn, what is published, and what is erased."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import SpecError
from dpfedadamw.extensions.sweeps import selection
from dpfedadamw.extensions.sweeps.folder import SweepError
from dpfedadamw.spec.matrix import load_private_selection, load_sweep
from tests.faults.tuning_faults import CLIENTS_SELECTED
from tests.runs import call, small_spec
from tests.sweeps import UNTUNED, swept

PRIVATE = UNTUNED.replace("fraction: 0.0\n    public: false", "fraction: 0.5\n    public: true")
TUNE = """
tune:
  selection: private
  mean_trials: 4
  grid: {algorithm.learning_rate: [0.1, 0.5]}
"""
NEEDLE = "0.123456789"


def spec_of(tmp_path: Path, text: str = TUNE, base: str = PRIVATE) -> Path:
    path = tmp_path / "selection.yaml"
    path.write_text(base + text)
    return path


def begun(tmp_path: Path, base: str = PRIVATE):
    sweep = load_sweep(spec_of(tmp_path, base=base))
    law = selection.planned(sweep).trials
    return sweep, law, selection.drawn(tmp_path / "out", sweep, law)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def pretend(
    one: selection.Selection,
    scores: list[float | None],
    measure: str = "validation_accuracy",
    diverged: int | None = None,
) -> None:
    """Finished runs, as far as a selection reads them; the number of one that diverged."""
    one.begin()
    for number, (cell, score) in enumerate(zip(one.cells(), scores, strict=True)):
        folder = one.folder.cell(cell)
        run = folder.runs / f"small-20260101T0000{number:02d}Z-0000000{number}"
        run.mkdir()
        claim = {"kind": "claim", "delta": float(NEEDLE)}
        claim |= {"diverged": {"rounds": 1}} if number == diverged else {}
        (run / "ledger.jsonl").write_text(json.dumps(claim) + "\n")
        last = {"validation_accuracy": None, **({} if score is None else {measure: score})}
        (run / "metrics.jsonl").write_text(json.dumps(last) + "\n")
        one.keep_score(folder)


def drawing(monkeypatch, trials: int) -> None:
    """As if the operating system had drawn what means so many trials."""
    law = selection.Trials(4.0, 1.0)
    numbers = (number.to_bytes(32, "big") for number in range(10_000))
    secret = next(one for one in numbers if law.drawn(one) == trials)
    monkeypatch.setattr(selection, "_secret", lambda cells: secret)


def test_of_a_regressions_trials_that_of_the_smallest_loss_is_published(tmp_path, monkeypatch):
    drawing(monkeypatch, 3)
    _, _, one = begun(tmp_path)
    pretend(one, [0.5, 0.2, 0.8], "validation_loss")
    wanted = one.folder.cell(one.cells()[1]).newest_run().identifier
    assert one.publish().identifier == wanted


@pytest.mark.parametrize(
    ("losses", "best"), [([None, 2.0, 8.0], 1), ([8.0, None], 0), ([None, None], 0)]
)
def test_a_trial_whose_loss_is_not_finite_is_over_and_worse_than_all_others(
    tmp_path, monkeypatch, losses, best
):
    drawing(monkeypatch, len(losses))
    _, _, one = begun(tmp_path)
    pretend(one, losses, "validation_loss")
    wanted = one.folder.cell(one.cells()[best]).newest_run().identifier
    assert one.publish().identifier == wanted


def test_a_trial_that_diverged_is_worse_than_all_others_whatever_its_accuracy(
    tmp_path, monkeypatch
):
    drawing(monkeypatch, 3)
    _, _, one = begun(tmp_path)
    pretend(one, [0.5, 0.9, 0.6], diverged=1)
    wanted = one.folder.cell(one.cells()[2]).newest_run().identifier
    assert one.publish().identifier == wanted


def test_the_best_trial_is_published_and_nothing_of_the_others_is_left(tmp_path, monkeypatch):
    drawing(monkeypatch, 3)
    _, _, one = begun(tmp_path)
    pretend(one, [0.5, 0.8, 0.8])
    wanted = one.folder.cell(one.cells()[1]).newest_run().identifier
    run = one.publish()
    assert run.identifier == wanted
    assert run.path.parent == tmp_path / "out" / "winner"
    assert not (tmp_path / "out" / "trials").exists()
    kept = {path.relative_to(tmp_path / "out").parts[:2] for path in files(tmp_path / "out")}
    assert kept - {("winner", "latest")} == {("selection.json",), ("winner", wanted)}
    assert one.secret.hex() not in (tmp_path / "out" / "selection.json").read_text()
    assert selection.finished(tmp_path / "out", one.sweep).identifier == wanted


def test_nothing_is_published_before_every_trial_is_over(tmp_path, monkeypatch):
    drawing(monkeypatch, 2)
    _, _, one = begun(tmp_path)
    one.begin()
    with pytest.raises(SweepError, match="and nothing is published before"):
        one.publish()
    assert selection.finished(tmp_path / "out", one.sweep) is None


def test_what_was_cut_off_between_publishing_and_erasing_is_erased_by_whoever_looks(
    tmp_path, monkeypatch
):
    drawing(monkeypatch, 2)
    _, _, one = begun(tmp_path)
    pretend(one, [0.1, 0.2])
    monkeypatch.setattr(selection.DISK, "remove_tree", lambda path: 1 / 0, raising=False)
    with pytest.raises(ZeroDivisionError):
        one.publish()
    monkeypatch.undo()
    assert (tmp_path / "out" / "trials").is_dir()
    assert selection.finished(tmp_path / "out", one.sweep) is not None
    assert not (tmp_path / "out" / "trials").exists()


def test_trials_are_private_and_the_same_command_takes_up_the_same_draw(tmp_path):
    sweep, law, one = begun(tmp_path)
    one.begin()
    trials = tmp_path / "out" / "trials"
    assert stat.S_IMODE(trials.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in trials.rglob("trial.json")} == {0o600}
    again = selection.drawn(tmp_path / "out", sweep, law)
    assert (again.secret, again.trials) == (one.secret, one.trials)
    assert one.trials == law.drawn(one.secret)


def test_release_mode_draws_anew_and_reproducible_mode_from_its_seed(tmp_path):
    release = PRIVATE.replace("mode: reproducible\n  seed: 1", "mode: release")
    assert "mode: release" in release
    secrets = []
    for name, base in (("a", release), ("b", release), ("c", PRIVATE), ("d", PRIVATE)):
        (tmp_path / name).mkdir()
        secrets.append(begun(tmp_path / name, base)[2].secret)
    assert len(set(secrets[:3])) == 3
    assert secrets[2] == secrets[3]


def test_trials_of_one_candidate_share_no_seed(tmp_path, monkeypatch):
    drawing(monkeypatch, 6)
    _, _, one = begun(tmp_path)
    seeds = [cell.spec.randomness.seed for cell in one.cells()]
    assert len(set(seeds)) == len(seeds) == 6
    # The spec of a trial is public when it wins, and tells neither its number nor how many.
    assert {cell.spec.tune for cell in one.cells()} == {one.sweep.tune}


def test_another_spec_may_not_go_on_with_a_selection(tmp_path):
    begun(tmp_path)
    other = load_sweep(spec_of(tmp_path, TUNE.replace("0.5", "0.7")))
    with pytest.raises(SweepError, match="a selection of another spec"):
        selection.finished(tmp_path / "out", other)


def test_two_sweeps_at_once_cannot_publish_two_winners(tmp_path):
    with (
        selection.held(tmp_path / "out"),
        pytest.raises(SweepError, match="another sweep is using this folder"),
    ):
        selection.held(tmp_path / "out")


def test_a_damaged_draw_is_not_drawn_anew(tmp_path):
    sweep, law, _ = begun(tmp_path)
    short = json.dumps({"secret": "ab" * 31})
    for content in ("{}", "[]", "{", short, '{"secret": "xy"}', '{"secret": 3}'):
        (tmp_path / "out" / "trials" / "secret.json").write_text(content)
        with pytest.raises(SweepError, match=r"secret\.json: is damaged"):
            selection.drawn(tmp_path / "out", sweep, law)


def test_each_trial_has_its_number_its_candidate_and_its_own_private_note(tmp_path, monkeypatch):
    drawing(monkeypatch, 3)
    _, _, one = begun(tmp_path)
    one.begin()
    cells = one.cells()
    assert [cell.digest for cell in cells] == [f"trial-0000000{number}" for number in (1, 2, 3)]
    for number, cell in enumerate(cells, start=1):
        chosen = selection.candidate(one.secret, number, 2)
        assert cell.candidate == one.sweep.cells[chosen].candidate
        assert cell.spec.algorithm.learning_rate == (0.1, 0.5)[chosen]
        note = json.loads(one.folder.cell(cell).trial.read_text())
        assert note == {"secret": one.secret.hex(), "trial": number, "trials": 3}


def test_a_trial_without_a_score_is_not_chosen_among(tmp_path, monkeypatch):
    drawing(monkeypatch, 1)
    _, _, one = begun(tmp_path)
    one.begin()
    folder = one.folder.cell(one.cells()[0])
    run = folder.runs / "small-20260101T000000Z-00000000"
    run.mkdir()
    (run / "spec.yaml").touch()
    for text in ("", "{}\n", '{"validation_accuracy": null, "validation_loss": null}\n'):
        (run / "metrics.jsonl").write_text(text)
        with pytest.raises(SweepError, match="has no score on validation records"):
            one.keep_score(folder)
    assert folder.result() is None


def test_a_folder_that_cannot_be_made_for_a_selection_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SweepError, match=r"^--out .*file/out: cannot be written \(Not a directory"):
        selection.held(tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("federation.local_steps: [2, 3]", "local_steps 3 and local_steps 2 cost different ε"),
        ("data.seed: [2, 3]", "candidates may not differ in data"),
        ("privacy.noise_multiplier: [2, 3]", "candidates may not differ in privacy"),
        # The law of the number of trials was the first candidate's, whatever the winner said.
        ("tune.mean_trials: [5, 50]", "candidates may not differ in tune"),
        ("tune.shape: [0, 1]", "candidates may not differ in tune"),
    ],
)
def test_candidates_cost_the_same_and_are_scored_on_the_same(tmp_path, grid, message):
    text = TUNE.replace("algorithm.learning_rate: [0.1, 0.5]", grid)
    with pytest.raises(SpecError, match=message):
        selection.planned(load_sweep(spec_of(tmp_path, text)))


CLIENTS = specs.dump(small_spec("dp-fedavg", overrides=CLIENTS_SELECTED))
CLIENTS = CLIENTS[: CLIENTS.index("tune:")]


def test_where_whole_clients_are_protected_rounds_cost_and_local_steps_do_not(tmp_path):
    text = TUNE.replace("algorithm.learning_rate: [0.1, 0.5]", "federation.local_steps: [2, 3]")
    plan = selection.planned(load_sweep(spec_of(tmp_path, text, CLIENTS)))
    assert plan.expected_claim()["tuning"].keys() == {"one_trial"}
    text = text.replace("local_steps", "rounds")
    with pytest.raises(SpecError, match="rounds 3 and rounds 2 cost different ε"):
        selection.planned(load_sweep(spec_of(tmp_path, text, CLIENTS)))


def test_clipping_norms_and_algorithms_may_be_searched_over(tmp_path):
    grid = "privacy.clipping_norm: [0.5, 1.0], algorithm.name: [dp-fedavg, pe-dpfl]"
    text = TUNE.replace("algorithm.learning_rate: [0.1, 0.5]", grid)
    base = PRIVATE[: PRIVATE.index("algorithm:")] + "algorithm: {learning_rate: 0.1}\n"
    base += PRIVATE[PRIVATE.index("federation:") :]
    assert selection.planned(load_sweep(spec_of(tmp_path, text, base))).trials is not None


def test_the_records_of_a_person_are_not_asked_of_a_search_whose_best_is_published(
    tmp_path, capsys
):
    assert call("epsilon", str(spec_of(tmp_path)), "--records-per-person", "2") == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("--records-per-person: ")
    assert shown.out == ""


def test_what_is_no_private_selection_is_none(tmp_path):
    assert load_private_selection(spec_of(tmp_path)) is not None
    other = TUNE.replace("private", "unaccounted").replace("  mean_trials: 4\n", "")
    assert load_private_selection(spec_of(tmp_path, other)) is None
    assert load_private_selection("quickstart") is None
    assert swept(tmp_path, "").grids == {}
