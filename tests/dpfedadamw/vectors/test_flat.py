"""Flat parameters and blocks: every coordinate in exactly one block, in the right place."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpfedadamw.models.networks.cnn import GroupNormCNN
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.models.networks.vit import VisionTransformer
from dpfedadamw.vectors import flat as parameters
from dpfedadamw.vectors.flat import (
    Blocks,
    FlatParameters,
    ParameterError,
    Runs,
    blocks_of,
    copy_of,
    empty,
    layout_of,
    zeros_like,
)

KINDS = ("heads", "hessian", "tensor", "layer", "full", "none")
MODELS = {
    "mlp": lambda: MultiLayerPerceptron((1, 8, 8), [16], 10),
    "cnn": lambda: GroupNormCNN((1, 8, 8), [8, 16], 4, 10),
    "vit": lambda: VisionTransformer((1, 8, 8), 2, 16, 2, 4, 2, 10),
}


@pytest.mark.parametrize("least", [0, 2**40], ids=["held", "copied"])
def test_a_module_computes_at_what_it_holds_and_is_its_own_again_after(least, monkeypatch):
    monkeypatch.setattr(parameters, "_LEAST_HELD_BYTES", least)
    flat = FlatParameters(MODELS["mlp"]())
    first, second = torch.randn_like(flat.vector), torch.randn_like(flat.vector)
    kept = second.clone()

    def written():
        return torch.cat([one.detach().reshape(-1) for one in flat.module.parameters()])

    for vector in (first, second, first, second):
        flat.hold(vector)
        assert torch.equal(written(), vector)
        assert torch.equal(flat.vector, vector)
    assert (flat.vector.data_ptr() == second.data_ptr()) == (least == 0)
    flat.assign(first)
    assert torch.equal(written(), first)
    # What it held before is no longer written to, nor what was assigned.
    flat.vector.zero_()
    assert torch.equal(second, kept)
    assert float(first.abs().sum()) > 0.0
    assert float(written().abs().sum()) == 0.0


def test_a_module_lets_go_of_what_it_holds_and_keeps_what_is_its_own(monkeypatch):
    monkeypatch.setattr(parameters, "_LEAST_HELD_BYTES", 0)
    flat = FlatParameters(MODELS["mlp"]())
    own, next_one = flat.vector.clone(), flat.vector + 1.0
    memory = np.zeros(len(own), np.float32)
    flat.let_go(next_one)
    assert torch.equal(flat.vector, own)
    flat.hold(torch.from_numpy(memory))
    found = weakref.ref(memory)
    del memory
    assert found() is not None
    flat.let_go(next_one)
    assert found() is None
    assert all(torch.equal(flat.vector, vector) for vector in (next_one, own + 1.0))


def test_what_was_written_after_another_was_held_is_the_modules_own(monkeypatch):
    monkeypatch.setattr(parameters, "_LEAST_HELD_BYTES", 0)
    flat = FlatParameters(MODELS["mlp"]())
    flat.hold(torch.zeros_like(flat.vector))
    flat.assign(torch.ones_like(flat.vector))
    flat.let_go(torch.zeros_like(flat.vector))
    assert (flat.vector == 1.0).all()


@pytest.mark.parametrize("held", [True, False])
def test_a_module_computes_in_float64_for_a_while_and_is_bit_for_bit_what_it_was(held, monkeypatch):
    monkeypatch.setattr(parameters, "_LEAST_HELD_BYTES", 0)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval()
    module[0].bias.requires_grad_(False)
    flat = FlatParameters(module)
    if held:
        flat.hold(torch.randn_like(flat.vector))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    own = flat.vector

    def fails() -> None:
        with flat.in_float64():
            assert all(one.dtype == torch.float64 for one in module.parameters())
            assert torch.equal(flat.vector, own.double())
            # What is written to the vector is what the module computes with, here too.
            flat.assign(torch.full_like(flat.vector, 1 / 3))
            assert (module[0].weight == 1 / 3).all()
            module[1].running_mean.add_(module(torch.randn(4, 3, dtype=torch.float64))[0])
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(after[name].dtype == value.dtype for name, value in before.items())
    assert flat.vector is own
    flat.assign(torch.full_like(own, 0.25))
    assert (module[0].weight == 0.25).all()
    assert (flat.vector is own) is not held


def test_a_vector_of_another_type_is_copied_into_the_modules_own(monkeypatch):
    # Long enough to be held, were it of the module's own type.
    monkeypatch.setattr(parameters, "_LEAST_HELD_BYTES", 0)
    flat = FlatParameters(MODELS["mlp"]())
    flat.hold(torch.zeros(flat.layout.size, dtype=torch.float64))
    assert flat.vector.dtype == torch.float32
    assert float(flat.vector.abs().sum()) == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_blocks_cover_every_trainable_coordinate_exactly_once(model: str, kind: str):
    module = MODELS[model]()
    blocks = blocks_of(module, kind)
    assert blocks.index.shape == (layout_of(module).size,)
    assert blocks.index.min() == 0
    assert blocks.index.max() == len(blocks.names) - 1
    assert (blocks.sizes > 0).all()
    assert int(blocks.sizes.sum()) == layout_of(module).size
    assert len(set(blocks.names)) == len(blocks.names)


def test_pieces_of_rows_lie_one_after_another_and_each_has_its_blocks():
    # 70 rows of 1,000: more than are summed at once; and a row that is longer than that by itself.
    module = torch.nn.Sequential(torch.nn.Linear(1_000, 70), torch.nn.Linear(300_000, 1))
    blocks = blocks_of(module, "hessian")
    index, at = blocks.index, 0
    for start, stop, of_rows in blocks.pieces():
        assert start == at
        width = (stop - start) // len(of_rows)
        assert width * len(of_rows) == stop - start
        assert torch.equal(of_rows.repeat_interleave(width), index[start:stop])
        at = stop
    assert at == blocks.parameters == len(index)


def test_heads_cut_query_key_and_value_by_head_and_nothing_else():
    module = MODELS["vit"]()
    names = blocks_of(module, "heads").names
    for part in ("query", "key", "value"):
        assert sum(f"layers.0.attention.{part}[head" in name for name in names) == 4
    assert names.count("layers.0.attention.projection") == 1
    assert names.count("layers.0.expand") == 1
    assert names.count("head") == 1


def test_a_heads_block_holds_the_rows_of_that_head():
    module = MODELS["vit"]()
    blocks = blocks_of(module, "heads")
    part = next(s for s in layout_of(module).slices if s.name == "layers.1.attention.key.weight")
    rows = blocks.index[part.start : part.stop].view(4, 4, 16)
    for head in range(4):
        name = f"layers.1.attention.key[head {head}]"
        assert (rows[head] == blocks.names.index(name)).all()


def test_hessian_cuts_outputs_by_class_and_matrices_by_neuron():
    names = blocks_of(MODELS["vit"](), "hessian").names
    assert sum(name.startswith("head[row") for name in names) == 10
    assert sum(name.startswith("layers.0.expand[neuron") for name in names) == 32
    assert sum(name.startswith("layers.0.attention.value[neuron") for name in names) == 16
    assert sum(name.startswith("layers.0.attention.query[head") for name in names) == 4


def test_block_means_are_means_and_spread_puts_them_back():
    module = MODELS["cnn"]()
    blocks = blocks_of(module, "tensor")
    values = torch.randn(layout_of(module).size, dtype=torch.float64)
    for part, mean in zip(layout_of(module).slices, blocks.mean(values), strict=True):
        torch.testing.assert_close(mean, values[part.start : part.stop].mean())
    torch.testing.assert_close(blocks.mean(blocks.spread(blocks.mean(values))), blocks.mean(values))


def test_the_vector_and_the_module_are_one_memory():
    module = MODELS["mlp"]()
    flat = FlatParameters(module)
    flat.vector.fill_(0.25)
    assert all((p == 0.25).all() for p in module.parameters())
    flat.assign(torch.arange(flat.layout.size, dtype=torch.float32))
    assert module.body[1].weight[0, 1] == 1.0


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_memory_for_a_vector_is_of_the_kind_asked_for_and_nobody_elses(kind):
    vector = torch.arange(5).to(kind)
    zeros, copy = zeros_like(vector), copy_of(vector)
    assert zeros.dtype == copy.dtype == empty(5, kind, vector.device).dtype == kind
    assert zeros.tolist() == [0.0] * 5
    assert empty(5, kind, torch.device("meta")).device.type == "meta"
    vector.fill_(9.0)
    assert copy.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_every_parameter_lies_in_its_slice():
    module = MODELS["vit"]()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    flat = FlatParameters(module)
    for part in flat.layout.slices:
        stored = flat.vector[part.start : part.stop].view(part.shape)
        assert torch.equal(stored, before[part.name])


def test_frozen_parameters_are_left_out():
    module = MODELS["mlp"]()
    module.body.requires_grad_(False)
    assert [s.name for s in layout_of(module).slices] == ["head.weight", "head.bias"]


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(ParameterError, match="no trainable parameter"):
        layout_of(nn.Flatten())


def test_a_partition_that_there_is_not_is_named_with_those_that_there_are():
    with pytest.raises(ParameterError, match=r"'rows' is unknown; use one of .*'heads', 'hessian'"):
        blocks_of(MODELS["mlp"](), "rows")


@pytest.mark.parametrize("kind", ["tensor", "heads", "hessian"])
def test_sums_of_squares_are_those_of_the_blocks_values(kind):
    model = VisionTransformer((3, 8, 8), 4, 16, 2, 2, 2, 5)
    blocks = blocks_of(model, kind)
    values, minus = torch.randn(2, blocks.parameters)
    for found, expected in (
        (blocks.sum_of_squares(values), values),
        (blocks.sum_of_squares(values, minus=minus), values.double() - minus.double()),
    ):
        # float32 sums of at most a few thousand squares.
        torch.testing.assert_close(
            found, blocks.sum(expected.double().square()), rtol=1e-6, atol=1e-12
        )


# Below, at and above the longest sum in float32; even, odd and longer than a piece.
WIDTHS = [1, 7, 4096, 32_768, 36_864, 100_003, 300_000]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_sums_of_several_short_vectors_are_those_of_each(model: str, kind: str):
    blocks = blocks_of(MODELS[model](), kind)
    values = torch.randn(3, blocks.parameters, dtype=torch.float64)
    expected = torch.zeros(3, len(blocks.names), dtype=torch.float64)
    expected.index_add_(1, blocks.index, values)
    assert np.allclose(blocks.sums(values.numpy()), expected, rtol=0.0, atol=1e-10)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(WIDTHS)),
        min_size=1,
        max_size=4,
    )
)
def test_pieces_cover_every_coordinate_once_in_rows_short_enough_to_be_summed(
    shapes: list[tuple[int, int]],
) -> None:
    runs: list[Runs] = []
    sizes: list[float] = []
    start = 0
    for rows, width in shapes:
        blocks = torch.arange(len(sizes), len(sizes) + rows)
        runs.append(Runs("w", start, start + rows * width, blocks))
        sizes += [float(width)] * rows
        start += rows * width
    names = tuple(str(block) for block in range(len(sizes)))
    blocks = Blocks("layer", names, tuple(runs), torch.tensor(sizes, dtype=torch.float64))
    reached = 0
    for first, last, rows in blocks.pieces():
        assert first == reached
        assert first < last
        assert last - first <= parameters._PIECE
        assert (last - first) % len(rows) == 0
        assert (last - first) // len(rows) <= parameters._SUMMED
        reached = last
    assert reached == start
    # Whole numbers whose squares float32 sums without rounding, at most 64 * 32,768 = 2^21: the
    # root alone is rounded.
    values = torch.randint(-8, 9, (start,), generator=torch.Generator().manual_seed(start)).float()
    expected = torch.zeros(len(sizes), dtype=torch.float64)
    expected.index_add_(0, blocks.index, values.double().square())
    torch.testing.assert_close(blocks.sum_of_squares(values), expected, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(
        blocks.sum_of_squares(2 * values, values), expected, rtol=1e-6, atol=0.0
    )

    def look(part: slice, memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
        assert len(memory) == part.stop - part.start
        return memory.copy_(values[part]), values[part] * 3

    single, triple = blocks.sums_of_squares(values, look)
    torch.testing.assert_close(single, expected, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(triple, 9 * expected, rtol=1e-6, atol=0.0)
    assert torch.equal(blocks.spread(torch.arange(len(sizes))), blocks.index)


def test_a_long_row_is_cut_into_equal_parts_where_a_divisor_allows_it():
    most = parameters._SUMMED
    assert parameters._even_part(most) == most
    assert parameters._even_part(3 * most) == most
    # 98,310 = 5 · 19,662; of 99,999 no fourth to seventh part is whole.
    assert parameters._even_part(98_310) == 19_662
    assert parameters._even_part(99_999) == most


def test_rows_of_the_greatest_length_are_summed_to_float32s_precision():
    """The root mean square of 64 rows' relative errors; single rows are up to 1.5e-6 off."""
    rows, width = 64, parameters._SUMMED
    runs = (Runs("w", 0, rows * width, torch.arange(rows)),)
    sizes = torch.full((rows,), float(width), dtype=torch.float64)
    blocks = Blocks("layer", tuple(map(str, range(rows))), runs, sizes)
    values = torch.randn(rows * width, generator=torch.Generator().manual_seed(0))
    exact = values.double().square().view(rows, width).sum(1)
    errors = blocks.sum_of_squares(values) / exact - 1.0
    assert 0.0 < float(errors.square().mean().sqrt()) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_an_accelerator_computes_the_same_sums_over_blocks(kind, monkeypatch):
    torch.manual_seed(0)
    blocks = blocks_of(MODELS["vit"](), kind)
    values = torch.randn(blocks.parameters)
    expected = blocks.sum_of_squares(values), blocks.sum(values), blocks.spread(blocks.sizes)
    for most in (0, 1024):
        monkeypatch.setattr(parameters, "_MOST_AT_ONCE", most)
        other = blocks.to(torch.device("cpu"))
        monkeypatch.setattr(Blocks, "_in_cache", False)
        found = other.sum_of_squares(values), other.sum(values), other.spread(blocks.sizes)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-12)


def test_a_processor_adds_up_piece_by_piece_and_an_accelerator_in_few_operations(monkeypatch):
    """Either order rounds the last bits in its own way, and a run is computed again by the same."""
    blocks = blocks_of(MODELS["mlp"](), "tensor")
    values = torch.randn(blocks.parameters)
    shared, at_once = [], []
    monkeypatch.setattr(parameters, "_shared_out", lambda *_: shared.append(1) or 1 / 0)
    for sums in (blocks.sum, blocks.sum_of_squares):
        with pytest.raises(ZeroDivisionError):
            sums(values)
    other = blocks.to(torch.device("meta"))
    assert len(shared) == 2
    monkeypatch.setattr(Blocks, "_squares_at_once", lambda *_: at_once.append(1) or [None])
    other.sum(values.to("meta"))
    other.sum_of_squares(values.to("meta"))
    assert (len(shared), len(at_once)) == (2, 1)


def test_a_piece_is_worked_on_in_memory_of_its_own_length():
    for size in (1, 5, parameters._PIECE, 3 * parameters._PIECE):
        vector = torch.empty(size)
        assert len(parameters.scratch(vector)) == min(size, parameters._PIECE)
        assert len(parameters.scratch(vector.to("meta"))) == size
    assert parameters.pieces(torch.empty(0)) == parameters.pieces(torch.empty(0, device="meta"))
    whole = torch.empty(2 * parameters._PIECE + 5)
    ends = [parameters._PIECE, 2 * parameters._PIECE, len(whole)]
    assert [part.stop for part in parameters.pieces(whole)] == ends
    long = torch.empty(3 * parameters._PIECE, device="meta")
    assert parameters.pieces(long) == [slice(0, len(long))]


def test_a_short_vector_takes_no_other_thread(monkeypatch):
    blocks = blocks_of(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5)), "tensor")
    values = torch.randn(blocks.parameters)
    sums, spread = blocks.sum_of_squares(values), blocks.spread(blocks.mean(values))
    monkeypatch.setattr(parameters, "share_out", lambda *_: pytest.fail("handed to a thread"))
    assert torch.equal(blocks.sum_of_squares(values), sums)
    assert torch.equal(blocks.spread(blocks.mean(values)), spread)
    parameters.in_pieces(values, lambda part, _: values[part].mul_(2.0))
    monkeypatch.undo()
