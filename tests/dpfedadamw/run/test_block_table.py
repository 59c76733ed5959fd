"""The table of blocks: everything that is trained is in it once."""

from __future__ import annotations

import json

import pytest

from dpfedadamw import cli
from dpfedadamw import spec as specs
from dpfedadamw.run.block_table import table_of
from tests.runs import small_spec

VIT = "model={name: vit, patch: 2, width: 16, depth: 2, heads: 4, mlp_ratio: 2}"


@pytest.mark.parametrize("kind", ["heads", "hessian", "tensor", "layer", "full", "none"])
def test_groups_add_up_to_the_model(kind: str):
    spec = small_spec(overrides=(VIT, f"algorithm.second_moment.aggregation={kind}"))
    found = table_of(spec)
    assert sum(group.coordinates for group in found.groups) == found.trained
    assert sum(group.blocks for group in found.groups) == found.blocks
    assert found.frozen == 0


def test_blocks_of_one_layer_share_a_row():
    groups = {group.name: group for group in table_of(small_spec(overrides=(VIT,))).groups}
    queries = groups["layers.1.attention.query[head 0 … 3]"]
    assert (queries.blocks, queries.coordinates) == (4, 16 * 16 + 16)
    assert queries.tensors == (
        "layers.1.attention.query.weight",
        "layers.1.attention.query.bias",
    )


def test_the_command_prints_a_table_and_json(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(small_spec(overrides=(VIT,))))
    cli.app(["spec", "show", "--blocks", str(path)], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "blocks: heads" in shown
    assert "layers.0.attention.value[head 0 … 3]" in shown
    cli.app(["spec", "show", "--blocks", "--json", str(path)], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["kind"] == "heads"
