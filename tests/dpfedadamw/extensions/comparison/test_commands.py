"""``compare`` as a user meets it: real runs side by side, exit codes, files."""

from __future__ import annotations

import csv
import io
import json
import shutil
import stat
from pathlib import Path

import pytest

from dpfedadamw.cli import terminal
from tests.runs import NOT_PRIVATE, PRIVATE, SMALL, call

TWO = (("dp-fedavg", PRIVATE), ("fedavg", NOT_PRIVATE))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """One finished run with privacy and one without, from fixed seeds."""
    parent = tmp_path_factory.mktemp("finished")
    found = {}
    for algorithm, privacy in TWO:
        spec = parent / f"{algorithm}.yaml"
        spec.write_text(
            SMALL.format(
                algorithm=algorithm,
                rounds=2,
                clients_per_round=5,
                privacy=privacy,
                mode="reproducible",
                seed=", seed: 1",
            )
        )
        assert call("run", str(spec), "--out", str(parent / algorithm), "--json") == 0
        found[algorithm] = (parent / algorithm / "latest").resolve()
    return found


def test_private_and_plain_runs_are_shown_and_not_ranked_together(runs, capsys):
    assert call("compare", *map(str, runs.values())) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "A: ε " in shown
    assert "B: no differential privacy" in shown
    assert "B is not ranked with A: no differential privacy vs protection of one record." in shown


def test_json_and_csv_give_what_the_run_said(runs, capsys):
    run = runs["dp-fedavg"]
    assert call("compare", str(run), "--json") == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    (entry,) = group["entries"]
    claim = json.loads((run / "ledger.jsonl").read_text().splitlines()[-1])
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    views = {view["key"]: view["epsilon"] for view in entry["runs"][0]["privacy"]}
    assert views == {
        key: claim[key]["epsilon"]["pld"] for key in ("server", "server_worst_case", "third_party")
    }
    assert entry["accuracy"]["mean"] == metrics[-1]["test_accuracy"]
    assert entry["bytes_up"] == sum(line["bytes_up"] for line in metrics)
    assert call("compare", str(run), "--csv") == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["accuracy_mean"]) == metrics[-1]["test_accuracy"]
    assert (row["audit"], row["signature"]) == ("PASS", "holds")


def test_a_public_comparison_has_no_realised_loss(runs, capsys):
    assert call("compare", str(runs["dp-fedavg"]), "--audience", "public", "--json") == 0
    printed = capsys.readouterr().out
    assert '"server_worst_case"' in printed
    assert '"server"' not in printed.replace('"towards": "server"', "")


def test_nothing_is_cut_off_in_80_columns(runs, tmp_path, monkeypatch, capsys):
    edited = tmp_path / "edited"
    shutil.copytree(runs["dp-fedavg"], edited)
    with (edited / "metrics.jsonl").open("a") as metrics:
        metrics.write("\n")
    monkeypatch.setattr(terminal.out, "width", 80)
    assert call("compare", str(runs["dp-fedavg"]), str(edited)) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = [line for line in lines if line.strip().startswith("rank")]
    assert head.split()[-1] == "signed"
    assert any(line.split()[-1:] == ["broken"] for line in lines)
    assert any("dp-fedavg" in line.split() for line in lines)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_a_figure_is_written_where_it_was_asked_for(kind, runs, tmp_path):
    figure = tmp_path / f"figure.{kind}"
    assert call("compare", *map(str, runs.values()), "--output", str(figure), "--json") == 0
    assert figure.stat().st_size > 1000
    assert stat.S_IMODE(figure.stat().st_mode) == 0o600


def test_every_damaged_or_foreign_directory_is_one_line_and_nothing_is_printed(
    runs, tmp_path, capsys
):
    damaged, foreign = tmp_path / "damaged", tmp_path / "foreign"
    shutil.copytree(runs["dp-fedavg"], damaged)
    (damaged / "ledger.jsonl").write_bytes(b'{"kind": ')
    foreign.mkdir()
    figure = tmp_path / "figure.pdf"
    folders = (runs["fedavg"], damaged, foreign, tmp_path / "none")
    assert call("compare", *map(str, folders), "-o", str(figure)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        str(damaged), str(foreign), str(tmp_path / "none"),
    ]  # fmt: skip
    assert "ledger.jsonl, line 1: not valid JSON" in lines[0]
    assert "give a run's folder" in lines[1]
    assert not figure.exists()


def test_markdown_and_latex_are_printed_alone_and_a_public_figure_is_for_everybody(
    runs, tmp_path, capsys
):
    run, figure = str(runs["dp-fedavg"]), tmp_path / "figure.svg"
    assert call("compare", run, "--markdown") == 0
    markdown = capsys.readouterr().out
    assert "|---" in markdown
    assert "tabular" not in markdown
    public = ("--audience", "public", "-o", str(figure))
    assert call("compare", run, "--latex", *public) == 0
    told = capsys.readouterr()
    assert r"\begin{tabular}" in told.out
    assert "|---" not in told.out
    assert f"figure: {figure}" in told.err
    assert stat.S_IMODE(figure.stat().st_mode) == 0o644


def test_what_all_rows_of_a_group_share_stands_above_them_and_in_no_column(
    runs, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(terminal.out, "_width", 200)
    assert call("compare", *map(str, runs.values())) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    heads = [line for line in lines if line.startswith("rank ")]
    assert [head.partition(" bytes")[0] for head in heads] == ["rank what accuracy, % runs"] * 2
    claim = json.loads((runs["dp-fedavg"] / "ledger.jsonl").read_text().splitlines()[-1])
    third = claim["third_party"]["epsilon"]["pld"]
    private = lines.index(next(line for line in lines if line.startswith("A: ε ")))
    assert f"{third:.3g}"[:3] in lines[private + 2]
    # Of no privacy there is nothing to say but that.
    plain = lines.index("B: no differential privacy")
    assert not any("privacy" in line or "ε" in line for line in lines[plain + 1 : plain + 3])


def test_runs_are_equal_in_epsilon_within_the_tolerance_in_percent(runs, capsys):
    """By default 1 %; what is asked for is told with the comparison."""
    run = str(runs["dp-fedavg"])
    for options, tolerance in (((), 0.01), (("--tolerance", "25"), 0.25)):
        assert call("compare", run, *options, "--json") == 0
        assert json.loads(capsys.readouterr().out)["tolerance"] == tolerance
    for options, towards in (((), "server"), (("--towards", "third-party"), "third-party")):
        assert call("compare", run, *options, "--json") == 0
        assert json.loads(capsys.readouterr().out)["towards"] == towards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--output", "figure.gif"), "must end with one of .pdf, .svg, .png"),
        (("--csv", "--json"), "give one of them"),
        (("--tolerance", "200"), "tolerance"),
        (("--output", "no/such/folder/figure.pdf"), "cannot be written"),
    ],
)
def test_options_that_make_no_sense_are_one_line(
    options, message, runs, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert call("compare", str(runs["dp-fedavg"]), *options) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
