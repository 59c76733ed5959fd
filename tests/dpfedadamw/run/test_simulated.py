"""The same run in this process and by Flower's simulation; `tox run -e flower` runs this."""

from __future__ import annotations

import hashlib
import json

import pytest

from dpfedadamw.run.stations import FOLDER
from tests.dpfedadamw.cli.test_text import folder as texts  # noqa: F401  # a fixture
from tests.runs import call, small_spec

pytest.importorskip("flwr", reason="Flower has an environment of its own: tox run -e flower")

pytestmark = pytest.mark.flower

_OF_ONE_RUN = {"digest", "previous", "created", "run", "spec_sha256", "selection_sha256"}


def content(run):
    """The model's digest, and what the ledger says of header, spends, rounds and claim."""
    own = {*_OF_ONE_RUN, "participations_sha256"}
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    model = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    return model, [{k: v for k, v in line.items() if k not in own} for line in lines]


def spec_of(kind, request, tmp_path):
    from dpfedadamw import spec as specs

    if kind == "lora":
        place = request.getfixturevalue("texts")
        return place / "texts.yaml", ("federation.rounds=3", "randomness={mode: reproducible}")
    changes = ()
    if kind == "client":
        changes = ("privacy.noise_added_by=clients", "federation.client_sampling=poisson")
    algorithm = {"record": "dp-fedadamw", "client": "blur"}[kind]
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(small_spec(algorithm, rounds=3, overrides=changes)))
    return path, ()


@pytest.mark.parametrize("kind", ["record", "client", "lora"])
def test_flower_gives_the_same_model_to_the_last_bit_the_same_charges_and_a_signed_report(
    kind, request, tmp_path, capsys
):
    path, changes = spec_of(kind, request, tmp_path)
    sets = [part for change in changes for part in ("--set", change)]
    found = {}
    for engine in ("inline", "flower"):
        out = tmp_path / engine
        arguments = ("run", path, "--engine", engine, "--out", out, *sets, "--json")
        assert call(*map(str, arguments)) == 0, capsys.readouterr()
        assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"
        found[engine] = (out / "latest").resolve()
        assert call("verify", str(found[engine])) == 0
        capsys.readouterr()
    assert content(found["flower"]) == content(found["inline"])
    names = {one.name for one in (found["inline"] / "evidence").iterdir()}
    assert {one.name for one in (found["flower"] / "evidence").iterdir()} == names
    assert FOLDER not in names
