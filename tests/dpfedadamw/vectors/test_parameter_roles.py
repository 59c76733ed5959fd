"""Blocks of parameters: by head, by neuron, by row, by tensor, by layer, as the model says."""

from __future__ import annotations

import pytest

from dpfedadamw.vectors.parameter_roles import NO_ROLES, FusedHeads, ParameterRoles, block_labels

# Two heads of three coordinates, six inputs.
ROLES = ParameterRoles(
    attention_heads={"query.weight": 2, "query.bias": 2, "value.weight": 2, "turned.weight": 2},
    values=frozenset({"value.weight"}),
    row_wise=frozenset({"tokens.weight", "places"}),
    fused={"all.weight": FusedHeads(2), "all_by_head.bias": FusedHeads(2, by_head=True)},
    columns=frozenset({"turned.weight", "out.weight", "out.bias"}),
    whole=frozenset({"norm.weight"}),
)


def labels(name: str, shape: tuple[int, ...], kind: str, roles: ParameterRoles = ROLES):
    found, repeats = block_labels(name, shape, kind, roles)
    return list(found), repeats


@pytest.mark.parametrize("kind", ["heads", "hessian"])
def test_queries_and_keys_are_cut_by_head(kind):
    assert labels("query.weight", (6, 5), kind) == (["query[head 0]", "query[head 1]"], 1)
    assert labels("query.bias", (6,), kind) == (["query[head 0]", "query[head 1]"], 1)


def test_values_are_cut_by_head_and_for_the_hessian_by_neuron():
    assert labels("value.weight", (6, 5), "heads") == (["value[head 0]", "value[head 1]"], 1)
    assert labels("value.weight", (3, 5), "hessian") == (
        ["value[neuron 0]", "value[neuron 1]", "value[neuron 2]"],
        1,
    )


def test_where_outputs_are_the_last_axis_the_labels_follow_one_another_for_each_input():
    assert labels("turned.weight", (5, 6), "heads") == (["turned[head 0]", "turned[head 1]"], 5)
    assert labels("out.weight", (5, 2), "hessian") == (["out[neuron 0]", "out[neuron 1]"], 5)
    # Only a matrix has two axes to choose from.
    assert labels("out.bias", (2,), "hessian") == (["out.bias"], 1)
    assert labels("out.bias", (2, 3, 4), "hessian")[1] == 1


def test_queries_keys_and_values_in_one_tensor_are_told_apart():
    by_part = ["query[head 0]", "query[head 1]", "key[head 0]", "key[head 1]"]
    assert labels("all.weight", (12, 5), "heads") == (
        [f"all.{part}" for part in [*by_part, "value[head 0]", "value[head 1]"]],
        1,
    )
    assert labels("all_by_head.bias", (12,), "heads") == (
        [
            f"all_by_head.{part}[head {head}]"
            for head in (0, 1)
            for part in ("query", "key", "value")
        ],
        1,
    )


def test_for_the_hessian_fused_queries_and_keys_go_by_head_and_values_by_neuron():
    # Two coordinates a head.
    expected = [f"all.{part}[head {head}]" for part in ("query", "key") for head in (0, 0, 1, 1)]
    expected += [f"all.value[neuron {neuron}]" for neuron in range(4)]
    assert labels("all.weight", (12, 5), "hessian") == (expected, 1)
    expected = [
        *["all_by_head.query[head 0]"] * 2,
        *["all_by_head.key[head 0]"] * 2,
        "all_by_head.value[neuron 0]",
        "all_by_head.value[neuron 1]",
        *["all_by_head.query[head 1]"] * 2,
        *["all_by_head.key[head 1]"] * 2,
        "all_by_head.value[neuron 2]",
        "all_by_head.value[neuron 3]",
    ]
    assert labels("all_by_head.bias", (12,), "hessian") == (expected, 1)


def test_for_the_hessian_tables_are_cut_by_row():
    rows = ["tokens[row 0]", "tokens[row 1]", "tokens[row 2]"]
    assert labels("tokens.weight", (3, 4), "hessian") == (rows, 1)
    # A table of places as ViT has it: one batch of places.
    assert labels("places", (1, 3, 4), "hessian") == ([f"places[row {row}]" for row in range(3)], 1)
    assert labels("places", (1, 4), "hessian") == (["places[row 0]"], 1)
    assert labels("places", (2, 3, 4), "hessian") == (["places[row 0]", "places[row 1]"], 1)


def test_for_the_hessian_all_else_is_cut_by_neuron_and_vectors_stay_whole():
    assert labels("fc.weight", (2, 5), "hessian", NO_ROLES) == (["fc[neuron 0]", "fc[neuron 1]"], 1)
    assert labels("fc.bias", (2,), "hessian", NO_ROLES) == (["fc.bias"], 1)
    # A bare parameter has no layer whose other tensors belong with it.
    assert labels("a.table", (2, 5), "hessian", NO_ROLES)[0] == [
        "a.table[neuron 0]",
        "a.table[neuron 1]",
    ]
    assert labels("norm.weight", (2, 5), "hessian") == (["norm.weight"], 1)
    assert labels("scale", (), "hessian", NO_ROLES) == (["scale"], 1)


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("heads", "block.fc"),
        ("layer", "block.fc"),
        ("tensor", "block.fc.weight"),
        ("full", "block.fc.weight"),
    ],
)
def test_what_has_no_heads_is_one_block_by_layer_or_by_tensor(kind, label):
    assert labels("block.fc.weight", (2, 5), kind, NO_ROLES) == ([label], 1)
    assert labels("alone", (2, 5), "layer", NO_ROLES) == (["alone"], 1)
