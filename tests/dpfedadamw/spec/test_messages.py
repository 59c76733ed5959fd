"""What a user reads when a spec is refused: every refusal, word for word."""

from __future__ import annotations

import pytest

from dpfedadamw import spec
from dpfedadamw.errors import DpfedadamwError, SpecError
from dpfedadamw.spec import words, yamltext

MODELS = (
    "mlp, cnn, simple-cnn, resnet18, vit, vit-tiny, vit-base, swin-tiny, swin-base, roberta-base, "
    "transformers, python, module"
)
GOOD = """\
version: 1
name: good
data: {dataset: digits, clients: 10}
model: {name: mlp}
algorithm: {name: dp-fedadamw}
federation: {rounds: 2}
privacy:
  unit: record
  clipping_norm: 1.0
  noise_multiplier: 2.5
  delta: 1.0e-5
  sampling: {kind: poisson, expected_batch_size: 32}
"""


def problems_of(text: str, overrides: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec.loads(text, "a.yaml", overrides)
    return [str(problem) for problem in caught.value.problems]


def replaced(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_the_good_spec_is_good():
    assert spec.loads(GOOD).name == "good"


def test_spec_errors_are_errors_of_the_engine():
    with pytest.raises(DpfedadamwError):
        spec.loads("")


@pytest.mark.parametrize(
    "dataset", ["dataset=x", "dataset=[1]", "{clients: x, partition: 3}"], ids=str
)
def test_of_a_section_of_unknown_kind_what_all_kinds_share_is_checked_too(dataset):
    where = "data" if dataset.startswith("{") else "data."
    changes = (f"{where}={dataset}" if where == "data" else f"data.{dataset}", "data.clients=x")
    found = problems_of(GOOD, changes)
    assert any(": data.dataset: " in one for one in found)
    assert any('data.clients: found the text "x"; must be an integer' in one for one in found)


def test_two_wrong_keys_are_two_errors_and_no_bug():
    assert len(problems_of(GOOD, ("data.clients=x", "data.dataset=x"))) == 2


@pytest.mark.parametrize("junk", ["x", "[1]", "{a: 1}", "null", "-1", "true"])
@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("data.dataset", ("data.path", "data.label", "data.numbers", "data.validation.fraction")),
        ("model.name", ("model.hidden", "model.patch_size", "model.heads")),
        ("algorithm.name", ("algorithm.server.averaging", "algorithm.second_moment")),
        ("privacy.unit", ("privacy.target_epsilon", "privacy.sampling", "privacy.noise_added_by")),
        ("privacy.sampling.kind", ("privacy.sampling.expected_batch_size",)),
    ],
)
def test_no_junk_in_a_section_of_unknown_kind_is_a_bug(kind, others, junk):
    problems_of(GOOD, (f"{kind}=unknown", *(f"{one}={junk}" for one in others)))


NUMBER = "a number from 0.0001 to 1000000000"
SAMPLING = "{kind: poisson, expected_batch_size: 32}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # One value
        (
            "rounds: 2",
            "rounds: 0",
            "6:22: federation.rounds: found 0; must be an integer from 1 to 1000000",
        ),
        (
            "rounds: 2",
            "rounds: 2.0",
            "6:22: federation.rounds: found 2.0; must be an integer from 1 to 1000000; write 2",
        ),
        (
            "rounds: 2",
            "rounds: '2'",
            '6:22: federation.rounds: found the text "2"; must be an integer from 1 to 1000000; '
            "write 2 without quotes",
        ),
        (
            "rounds: 2",
            "rounds: true",
            "6:22: federation.rounds: found true; must be an integer from 1 to 1000000",
        ),
        (
            "rounds: 2",
            "rounds:",
            "6:21: federation.rounds: found nothing (null); must be an integer from 1 to 1000000",
        ),
        (
            "rounds: 2",
            "rounds: 1_000",
            '6:22: federation.rounds: found the text "1_000"; must be an integer from 1 to '
            "1000000; write 1000 without quotes",
        ),
        (
            "clipping_norm: 1.0",
            "clipping_norm: -1",
            f"9:18: privacy.clipping_norm: found -1; must be {NUMBER}",
        ),
        (
            "clipping_norm: 1.0",
            "clipping_norm: [1.0]",
            f"9:18: privacy.clipping_norm: found a list; must be {NUMBER}",
        ),
        (
            "delta: 1.0e-5",
            "delta: 1",
            "11:10: privacy.delta: found 1; must be a number at least 1e-10 and less than 1; a "
            "delta of 1/n or more would allow publishing a record outright: take it well below "
            "1/n, with n the number of records",
        ),
        ("version: 1", "version: 2", "1:10: version: found 2; must be 1"),
        (
            "name: good",
            "name: 12",
            "2:7: name: found 12; must be a name of 1 to 64 letters, digits, dots, dashes and "
            'underscores that starts with a letter or digit; put it in quotes: "12"',
        ),
        (
            "name: good",
            "name: ../up",
            '2:7: name: found the text "../up"; must be a name of 1 to 64 letters, digits, dots, '
            "dashes and underscores that starts with a letter or digit",
        ),
        (
            "name: good",
            f"description: {'x' * 2001}",
            f'2:14: description: found the text "{"x" * 59}…"; must be text of at most 2000 '
            "characters",
        ),
        (
            "{name: mlp}",
            "{name: mlp, hidden: [8, 0]}",
            "4:32: model.hidden[1]: found 0; must be an integer from 1 to 65536",
        ),
        (
            "{name: mlp}",
            "{name: mlp, hidden: 8}",
            "4:28: model.hidden: found 8; must be a list of 0 to 8 items, each an integer from 1 "
            "to 65536",
        ),
        (
            "{name: dp-fedadamw}",
            "{name: dp-fedadamw, schedule: cosin}",
            '5:42: algorithm.schedule: found the text "cosin"; must be one of cosine, constant; '
            "did you mean cosine?",
        ),
        (
            "{name: dp-fedadamw}",
            "{name: dp-fedadamw, second_moment: {debias: yes}}",
            '5:56: algorithm.second_moment.debias: found the text "yes"; must be true or false',
        ),
        (
            "federation: {rounds: 2}",
            "federation: {rounds: 2, workers: many}",
            '6:34: federation.workers: found the text "many"; must be an integer from 1 to 1024, '
            "or auto",
        ),
        (
            "federation: {rounds: 2}",
            "federation: 2",
            "6:13: federation: found 2; must be a section with the keys rounds, "
            "clients_per_round, clients_per_person, client_sampling, local_steps, max_epsilon, "
            "engine, workers, "
            "drop_outs",
        ),
        # Keys
        (
            "federation: {rounds: 2}",
            "federation: {round: 2}",
            "6:14: federation.round: unknown key; did you mean rounds?",
        ),
        ("name: good", "rounds: 2", "2:1: rounds: unknown key; did you mean federation.rounds?"),
        (
            "name: good",
            "xyzzy: 2",
            "2:1: xyzzy: unknown key; known here: version, name, description, data, model, task, "
            "algorithm, federation, privacy, randomness, budget, tune, evaluation, compute, report",
        ),
        ("  clipping_norm: 1.0\n", "", f"7:1: privacy.clipping_norm: missing; must be {NUMBER}"),
        (
            "model: {name: mlp}\n",
            "",
            "1:1: model: missing; must be a section whose name is one of " + MODELS,
        ),
        # Unions
        (
            "{name: mlp}",
            "{name: vitt}",
            '4:15: model.name: found the text "vitt"; must be one of '
            + MODELS
            + "; did you mean vit?",
        ),
        ("{name: mlp}", "{hidden: [3]}", "4:1: model.name: missing; must be one of " + MODELS),
        (
            "{name: mlp}",
            "mlp",
            '4:8: model: found the text "mlp"; must be a section whose name is one of ' + MODELS,
        ),
        (
            "{name: mlp}",
            "{name: mlp, depth: 2}",
            "4:20: model.depth: not used when name is mlp (it uses seed, hidden); remove it",
        ),
        (
            "{name: dp-fedadamw}",
            "{name: dp-fedavg, beta1: 0.9}",
            "5:30: algorithm.beta1: not used when name is dp-fedavg (it uses learning_rate, "
            "schedule, weight_decay, server); remove it",
        ),
        (
            "{name: dp-fedadamw}",
            "{name: dp-localadamw, alignment: 0.5}",
            "5:34: algorithm.alignment: not used when name is dp-localadamw (it uses "
            "learning_rate, schedule, beta1, beta2, epsilon, server, weight_decay, decay); "
            "remove it",
        ),
        (
            "clients: 10}",
            "path: x.npz}",
            '3:31: data.path: found the text "x.npz"; must be left out (null); digits comes with '
            "the package",
        ),
        (
            "{dataset: digits, clients: 10}",
            "{dataset: arrays}",
            "3:1: data.path: missing; must be text of 1 to 4096 characters",
        ),
        (
            "clients: 10}",
            "partition: {kind: iid, alpha: 1}}",
            "3:48: data.partition.alpha: not used when kind is iid (it uses minimum_records, "
            "seed); remove it",
        ),
        (
            f"sampling: {SAMPLING}",
            "sampling: {kind: poisson, expected_batch_size: 32, q: 0.05}",
            "12:54: privacy.sampling.q: unknown key; did you mean rate?",
        ),
        (
            f"sampling: {SAMPLING}",
            "sampling: {kind: poisson, expected_batch_size: 32, rate: 0.05, reference_size: 640}",
            "12:60: privacy.sampling.rate: given together with reference_size, which also states "
            "the rate; give one of them",
        ),
        (
            f"sampling: {SAMPLING}",
            "sampling: {kind: poisson, expected_batch_size: 32, reference_size: 16}",
            "12:70: privacy.sampling.reference_size: found 16.0, but "
            "privacy.sampling.expected_batch_size is 32.0: the rate would exceed 1; must be at "
            "least 32",
        ),
        (
            f"sampling: {SAMPLING}",
            "sampling: {kind: poisson, expected_batch_size: 32, rate: 1.5}",
            "12:60: privacy.sampling.rate: found 1.5; must be a number greater than 0 and at most "
            "1 or null",
        ),
        (
            f"sampling: {SAMPLING}",
            "sampling: {kind: full}",
            '12:20: privacy.sampling.kind: found the text "full"; must be one of poisson, fixed, '
            "shuffled; no accountant covers any other sampler of single records",
        ),
        (
            f"sampling: {SAMPLING}",
            "sampling: {kind: fixed, batch_size: 32}",
            "7:1: privacy.adjacency: found add-remove (the default), but privacy.sampling.kind is "
            "fixed, which is accounted under replace-one alone: adding a record changes who else "
            "is drawn; use adjacency replace-one, or sampling.kind poisson",
        ),
        (
            "federation: {rounds: 2}",
            "federation: {rounds: 2, client_sampling: all}",
            '6:42: federation.client_sampling: found the text "all"; must be one of fixed, poisson',
        ),
        (
            "{name: dp-fedadamw}",
            "{name: dp-fedadamw, second_moment: {floor: {relative: 1, absolute: 1e-8}}}",
            "5:69: algorithm.second_moment.floor.absolute: given together with relative; give "
            "exactly "
            "one of relative and absolute",
        ),
        (
            "{name: dp-fedadamw}",
            "{name: dp-fedadamw, second_moment: {floor: {}}}",
            "5:55: algorithm.second_moment.floor: found an empty section; give exactly one of "
            "relative and absolute",
        ),
        (
            "name: good",
            "randomness: {mode: release, seed: 3}",
            "2:35: randomness.seed: found 3; must be left out (null); a stored seed would let "
            "anyone remove the noise",
        ),
        (
            "name: good",
            "randomness: reproducable",
            '2:13: randomness: found the text "reproducable"; must be one of release, '
            "reproducible; did you mean reproducible?",
        ),
        # Keys against each other
        (
            "clients: 10",
            "clients: 5",
            "6:1: federation.clients_per_round: found 10 (the default), but data.clients is 5; "
            "must be at most 5",
        ),
        (
            "rounds: 2",
            "clients_per_round: 11",
            "6:33: federation.clients_per_round: found 11, but data.clients is 10; must be at "
            "most 10",
        ),
        (
            "{name: mlp}",
            "{name: vit, width: 30}",
            "4:27: model.width: found 30, but model.heads is 4 (the default); must be a multiple "
            "of 4, such as 28 or 32",
        ),
        (
            "{name: mlp}",
            "{name: vit, patch: 3}",
            "4:27: model.patch: found 3, but digits are 8 x 8 pixels; must be one of 1, 2, 4, 8",
        ),
        (
            "{name: mlp}",
            "{name: cnn, channels: [16, 18]}",
            "4:35: model.channels[1]: found 18, but model.groups is 4 (the default); must be a "
            "multiple of 4, such as 16 or 20",
        ),
        (
            "  noise_multiplier: 2.5\n",
            "",
            "7:1: privacy.noise_multiplier: missing; give noise_multiplier, or target_epsilon to "
            "have it solved for",
        ),
        (
            "{name: dp-fedadamw}",
            "{name: fedadamw}",
            "5:19: algorithm.name: fedadamw adds no noise, but privacy.unit is record; use "
            "dp-fedadamw, or privacy.unit none",
        ),
        (
            "{name: dp-fedadamw}",
            "{name: dp-fedadamw, second_moment: {aggregation: full, denominator: block}}",
            "5:80: algorithm.second_moment.denominator: found block, but aggregation full has no "
            "blocks; use coordinate, or an aggregation with blocks (heads, hessian, tensor, "
            "layer)",
        ),
        (
            "{name: dp-fedadamw}",
            "{name: dp-fedadamw, second_moment: {aggregation: none, counter: local}}",
            "5:76: algorithm.second_moment.counter: found local, but aggregation none restarts "
            "the second moment every round, so both counters are the same; leave it at global",
        ),
        # YAML
        (
            "rounds: 2",
            "rounds: 2, rounds: 3",
            "6:25: federation.rounds: the key is already on line 6; keep one of them",
        ),
        (
            "rounds: 2",
            "rounds: &a 2",
            "6:22: federation.rounds: anchors (&a) are not allowed; write each value out",
        ),
        (
            "rounds: 2",
            "rounds: *a",
            "6:22: federation.rounds: aliases (*a) are not allowed; write the value out",
        ),
        (
            "rounds: 2",
            "rounds: !!int 2",
            "6:22: federation.rounds: tags (tag:yaml.org,2002:int) are not allowed; leave the tag "
            "out",
        ),
        (
            "rounds: 2",
            "<<: {rounds: 2}",
            "6:14: federation.<<: merge keys (<<) are not allowed; write the values out",
        ),
        (
            "rounds: 2",
            "[a]: 2",
            "6:14: federation: a key must be a word, not a list, section or alias",
        ),
        (
            "clipping_norm: 1.0",
            "clipping_norm: .inf",
            "9:18: privacy.clipping_norm: .inf is not a finite number; give a finite one",
        ),
        (
            "clipping_norm: 1.0",
            "clipping_norm: .nan",
            "9:18: privacy.clipping_norm: .nan is not a finite number; give a finite one",
        ),
        (
            "clipping_norm: 1.0",
            "clipping_norm: 1e999",
            "9:18: privacy.clipping_norm: 1e999 is too large for a number; give a smaller one",
        ),
        (
            "clipping_norm: 1.0",
            f"clipping_norm: {'9' * 5000}",
            "9:18: privacy.clipping_norm: a number of 5000 characters; give at most 400",
        ),
        (
            "name: good",
            'name: "go\\0od"',
            "2:7: name: the character U+0000 is not text; leave it out",
        ),
        (
            "  clipping_norm",
            "\tclipping_norm",
            "9:1: a tab; YAML is indented with spaces: replace tabs with spaces",
        ),
        (
            "name: good",
            "name: go\0od",
            "2:9: the character U+0000 is not text; leave it out",
        ),
        (
            "name: good",
            "name: good: better",
            "2:11: this is not YAML: mapping values are not allowed here; check the indentation; "
            "text with ': ' needs quotes",
        ),
        (
            "name: good",
            f"extra: {'[' * 30}{']' * 30}",
            "2:28: nested deeper than 20 levels; a spec has five",
        ),
        (
            "name: good",
            f"extra: [{'1,' * 20001}]",
            "2:40003: more than 20000 values; a spec has about a hundred",
        ),
    ],
)
def test_each_refusal_says_what_where_and_what_would_be_right(old, new, message):
    assert problems_of(replaced(old, new)) == [f"a.yaml:{message}"]


PUBLIC = "data: {dataset: digits, clients: 10, validation: {fraction: 0.5, public: true}}"
ONE_RUN = (
    "is the ε of one run, but a private selection of several costs more; give only "
    "noise_multiplier, and see its cost with `dpfedadamw epsilon`"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "noise_multiplier: 2.5",
            "target_epsilon: 3",
            f"10:19: privacy.target_epsilon: {ONE_RUN}",
        ),
        (
            "{rounds: 2}",
            "{rounds: 2, max_epsilon: 3}",
            f"6:38: federation.max_epsilon: {ONE_RUN}",
        ),
        (
            "data: {dataset: digits, clients: 10}",
            "data: {dataset: digits, clients: 10, validation: {fraction: 0, public: true}}",
            "3:61: data.validation.fraction: 0, and candidates are scored on public validation "
            "records; give data.validation: {fraction: 0.5, public: true}",
        ),
        (
            "{rounds: 2}",
            "{rounds: 2}\nbudget: {file: b, epsilon: 8, delta: 1.0e-5}",
            "7:16: budget.file: a private selection runs all trials that are drawn, and its ε "
            "does not cover one that stops for a budget; remove it",
        ),
        (
            "selection: private",
            "selection: secret",
            '13:19: tune.selection: found the text "secret"; must be one of none, private, public, '
            "unaccounted",
        ),
        (
            "selection: private",
            "selection: private, mean_trials: 1",
            "13:41: tune.mean_trials: found 1; must be a number greater than 1 and at most 1000",
        ),
    ],
)
def test_what_a_private_selection_rests_on_is_asked_for(old, new, message):
    text = replaced("data: {dataset: digits, clients: 10}", PUBLIC) + "tune: {selection: private}\n"
    if old.startswith("data"):
        old = PUBLIC
    assert text.count(old) == 1
    assert problems_of(text.replace(old, new)) == [f"a.yaml:{message}"]


def test_without_privacy_there_is_nothing_that_a_private_selection_could_start_from():
    text = replaced("data: {dataset: digits, clients: 10}", PUBLIC)
    head, _, _ = text.partition("privacy:")
    head = head.replace("{name: dp-fedadamw}", "{name: fedavg}")
    text = (
        f"{head}privacy: {{unit: none, sampling: {{kind: full}}}}\ntune: {{selection: private}}\n"
    )
    (problem,) = problems_of(text)
    assert problem.endswith(
        "tune.selection: found private, but a run without privacy has no ε for a selection to "
        "build on; use privacy.unit record or client, or selection public or unaccounted"
    )


def test_a_key_of_the_same_section_under_another_choice_is_not_suggested_for_itself():
    problems = problems_of(replaced("{name: dp-fedadamw}", "{name: fedadam, server: {rule: adam}}"))
    assert problems[-1] == (
        "a.yaml:5:37: algorithm.server.rule: unknown key; known here: learning_rate, "
        "averaging, beta1, beta2, epsilon"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: the spec is empty; see quickstart for one"),
        ("# nothing\n", "1:1: the spec is empty; see quickstart for one"),
        ("- 1\n", "1:1: found a list; a spec is a section with keys such as data and model"),
        (
            "words\n",
            '1:1: found the text "words"; a spec is a section with keys such as data and model',
        ),
        (f"{GOOD}---\n{GOOD}", "13:1: a second document starts; a spec is one document"),
    ],
)
def test_what_is_no_spec_at_all_is_refused(text, message):
    assert problems_of(text) == [f"a.yaml:{message}"]


def test_a_spec_without_privacy_refuses_the_keys_of_privacy():
    text = GOOD.replace("unit: record", "unit: none").replace("dp-fedadamw", "dp-fedavg")
    uses = "not used when unit is none (it uses sampling); remove it"
    assert problems_of(text) == [
        "a.yaml:5:19: algorithm.name: dp-fedavg needs privacy.unit record, but it is none; use "
        "fedavg, or privacy.unit record",
        f"a.yaml:9:3: privacy.clipping_norm: {uses}",
        f"a.yaml:10:3: privacy.noise_multiplier: {uses}",
        f"a.yaml:11:3: privacy.delta: {uses}",
        'a.yaml:12:20: privacy.sampling.kind: found the text "poisson"; must be one of full, '
        "shuffled",
    ]


ALI = "{name: ali-dpfl, local_iterations: {minimum: 2, maximum: 6}}"
BOTH = "noise_multiplier: 2.5\n  target_epsilon: 8"
NEEDS_BOTH = "ali-dpfl fits its local steps to target_epsilon at noise_multiplier"


@pytest.mark.parametrize(
    ("algorithm", "budget", "rounds", "message"),
    [
        (
            ALI,
            "noise_multiplier: 2.5",
            "rounds: 2",
            f"7:1: privacy.target_epsilon: missing; {NEEDS_BOTH}, so it needs both",
        ),
        (
            ALI,
            "target_epsilon: 8",
            "rounds: 2",
            f"7:1: privacy.noise_multiplier: missing; {NEEDS_BOTH}, so it needs both",
        ),
        (
            ALI,
            BOTH,
            "rounds: 2, local_steps: 7",
            "6:38: federation.local_steps: found 7, the first round's, but "
            "algorithm.local_iterations allows 2 to 6; choose one of these, or change minimum or "
            "maximum",
        ),
        (
            ALI.replace("minimum: 2", "minimum: 7"),
            BOTH,
            "rounds: 2",
            "5:57: algorithm.local_iterations.minimum: found 7, but "
            "algorithm.local_iterations.maximum is 6; must be at most 6",
        ),
        (
            "{name: adap-dpfl, noise_decay: {factor: 1.5}}",
            BOTH,
            "rounds: 2",
            "5:52: algorithm.noise_decay.factor: found 1.5; must be a number greater than 0 and at "
            "most 1",
        ),
    ],
)
def test_rules_that_adapt_say_what_they_need(algorithm, budget, rounds, message):
    text = replaced("{name: dp-fedadamw}", algorithm).replace("noise_multiplier: 2.5", budget)
    assert problems_of(text.replace("rounds: 2", rounds)) == [f"a.yaml:{message}"]


@pytest.mark.parametrize("algorithm", [ALI, "{name: adap-dpfl}"])
def test_rules_that_go_by_the_last_round_refuse_clients_drawn_independently(algorithm):
    text = replaced("{name: dp-fedadamw}", algorithm).replace("noise_multiplier: 2.5", BOTH)
    name = algorithm.split(",")[0].strip("{}").removeprefix("name: ")
    assert (
        f"a.yaml:6:42: federation.client_sampling: found poisson, but {name} uses what the "
        "previous round released, and with independent draws a round may have no clients; use "
        "fixed"
    ) in problems_of(text.replace("rounds: 2", "rounds: 2, client_sampling: poisson"))


def test_a_limit_on_steps_refuses_epochs_that_begin_anew_in_each_participation():
    text = replaced("{name: dp-fedadamw}", ALI).replace("noise_multiplier: 2.5", BOTH)
    epochs = "sampling: {kind: shuffled, batch_size: 32}\n  adjacency: replace-one"
    assert [
        line.partition(": ")[2]
        for line in problems_of(text.replace(f"sampling: {SAMPLING}", epochs))
    ] == [
        "privacy.sampling.kind: found shuffled, but ali-dpfl limits the steps of all rounds "
        "together, while shuffled epochs restart in each participation; use fixed, or poisson with "
        "adjacency add-remove"
    ]


def test_debiasing_is_refused_where_there_is_no_noise():
    text = """\
data: {dataset: digits}
model: {name: mlp}
algorithm: {name: fedadamw, second_moment: {debias: true}}
privacy: {unit: none}
"""
    assert problems_of(text) == [
        "a.yaml:3:53: algorithm.second_moment.debias: found true; must be false; without noise "
        "there is nothing to subtract"
    ]


def test_all_problems_are_listed_at_once_in_the_order_of_the_file():
    text = replaced("rounds: 2", "rounds: .nan, local_steps: 0").replace("good", "b/c")
    assert [line.split(": ")[:2] for line in problems_of(text)] == [
        ["a.yaml:2:7", "name"],
        ["a.yaml:6:22", "federation.rounds"],
        ["a.yaml:6:41", "federation.local_steps"],
    ]


def test_a_hopeless_file_gets_fifty_problems_and_a_count():
    text = "".join(f"key{index}: 1\n" for index in range(100))
    lines = problems_of(text)
    # A hundred unknown keys and four missing sections.
    assert len(lines) == 51
    assert lines[-1].endswith("… and 54 more problems")


def test_a_resolved_mapping_is_checked_like_a_file():
    with pytest.raises(SpecError) as caught:
        spec.resolve({"data": {"dataset": "digits", "seed": float("nan")}, "model": object()})
    lines = [str(problem) for problem in caught.value.problems]
    assert "<mapping>: data.seed: nan is not a finite number; give a finite one" in lines
    assert "<mapping>: model: a spec cannot hold a value of type object" in lines
    # Of a value that cannot be read nothing else is said.
    paths = [problem.path for problem in caught.value.problems]
    assert (paths.count("data.seed"), paths.count("model")) == (1, 1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "algorithm.name=dp-fedavg",
            "alignment, second_moment of quickstart are not used when name is dp-fedavg; replace "
            "the whole section: --set 'algorithm={name: dp-fedavg}'",
        ),
        (
            "model.name=vit",
            "hidden of quickstart is not used when name is vit; replace the whole section: "
            "--set 'model={name: vit}'",
        ),
    ],
)
def test_an_override_that_leaves_keys_of_another_choice_is_told_what_to_write(override, message):
    """The shipped file is right, and nobody can edit it where packages are installed."""
    with pytest.raises(SpecError) as caught:
        spec.load("quickstart", [override])
    assert str(caught.value) == f"--set {override}: {message}"
    spec.load("quickstart", [message.partition("--set ")[2].strip("'")])


def test_keys_that_the_override_itself_brings_are_its_own():
    with pytest.raises(SpecError, match=r"algorithm\.alignment: not used when name is dp-fedavg"):
        spec.load("quickstart", ["algorithm={name: dp-fedavg, alignment: 0.5}"])
    (problem,) = problems_of(GOOD, ("algorithm.name=dp-fedavg", "algorithm.beta1=0.5"))
    assert problem.startswith("--set algorithm.beta1=0.5: algorithm.beta1: not used when name is")


def test_a_shipped_spec_is_called_as_the_user_called_it():
    with pytest.raises(SpecError) as caught:
        spec.load("quickstart", ["data.clients=3"])
    assert str(caught.value).startswith("quickstart:")


def test_drop_outs_leave_a_client_that_answers_and_take_no_noise_with_them():
    away = "federation.drop_outs: found {}, but"
    whole = "{unit: client, clipping_norm: 1.0, noise_multiplier: 2.5, delta: 1.0e-5, "
    text = GOOD[: GOOD.index("privacy:")].replace("dp-fedadamw", "blur")
    text = text.replace("rounds: 2", "rounds: 2, drop_outs: 1")
    (one,) = problems_of(text + "privacy: " + whole + "noise_added_by: clients}\n")
    assert one.startswith(f"a.yaml:6:36: {away.format(1)}"), one
    assert "share is lost" in one
    (one,) = problems_of(replaced("rounds: 2", "rounds: 2, drop_outs: 10"))
    assert "but at least one of a round's 10 clients must answer; use at most 9" in one
    fine = text + "privacy: " + whole + "noise_added_by: server}\n"
    assert spec.loads(fine).federation.drop_outs == 1


def test_models_are_averaged_only_where_the_average_is_replayed():
    for name in ("digits-ali-dpfl", "digits-adap-dpfl", "digits-blur"):
        with pytest.raises(SpecError, match=r"algorithm\.server\.averaging: unknown key"):
            spec.load(name, ["algorithm.server.averaging=8"])
    whole = ["algorithm={name: dp-fedavg, server: {averaging: 8}}"]
    with pytest.raises(
        SpecError, match="models are averaged at record level only, where the auditor"
    ):
        spec.load("digits-blur", whole)


TABLE = ("data={dataset: table, path: t.csv, label: ill, numbers: [age], clients: 10}",)
PRICES = (*TABLE, "task=regression", "data.label=null", "data.targets=[price]")
OPEN = ("privacy={unit: none}", "algorithm={name: fedavg}")
OF_CLIENTS = (
    "privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.5, delta: 1e-5}",
    "algorithm={name: blur}",
)
NO_NUMBERS = (*TABLE, "data.numbers=[]")
BUDGET = "budget={file: b.json, epsilon: 8.0, delta: 1e-5}"
FIXED = "privacy.sampling={kind: fixed, batch_size: 32}"
SHUFFLED = "privacy.sampling={kind: shuffled, batch_size: 32}"
REPLACED = "privacy.adjacency=replace-one"
BY_COLUMN = "data.partition={{kind: column, {}}}"
BOOLEANS = "[{{name: age, kind: boolean}}, {{name: {}, kind: boolean}}]"
SOLD = (*PRICES, "data.partition={kind: iid}")
CHECKPOINTS = "model.gradient_checkpointing=true"


def refusals(overrides: tuple[str, ...], name: str = "") -> list[tuple[str, str]]:
    """Paths and messages of what is refused in a shipped spec, or in the good one."""
    with pytest.raises(SpecError) as caught:
        _ = spec.load(name, overrides) if name else spec.loads(GOOD, "a.yaml", overrides)
    return [(one.path, one.message) for one in caught.value.problems]


def test_of_several_categories_the_one_that_is_there_twice_is_named():
    ward = "data.columns=[{{name: ward, kind: category, categories: [{}]}}]"
    ((path, message),) = refusals((*NO_NUMBERS, ward.format("a, b, c, b, d")))
    assert path.endswith("categories")
    assert message == "holds b twice; give it once"
    spec.loads(GOOD, "a.yaml", (*NO_NUMBERS, ward.format("a, b, c, d")))


# What is right; what is just wrong next to it; the keys that are refused for that, and no others.
@pytest.mark.parametrize(
    ("name", "common", "right", "wrong", "refused"),
    [
        ("federation.clients_per_person={}", (), "1", "2", None),
        ("federation.clients_per_round={}", (), "10", "11", None),
        ("federation.drop_outs={}", (), "9", "10", None),
        ("privacy.sampling.reference_size={}", (), "32", "31.9", None),
        ("evaluation.training={}", (), "false", "true", None),
        ("evaluation.training={}", OF_CLIENTS, "false", "true", None),
        ("federation.max_epsilon={}", OPEN, "null", "3", None),
        ("federation.client_sampling={}", OF_CLIENTS, "poisson", "fixed", None),
        ("algorithm={{name: {}}}", OPEN, "fedavg", "dp-fedavg", "algorithm.name"),
        ("algorithm={{name: {}}}", (), "dp-fedavg", "fedavg", "algorithm.name"),
        ("algorithm={{name: {}}}", (), "dp-fedavg", "blur", "algorithm.name"),
        ("algorithm={{name: {}}}", OF_CLIENTS[:1], "blur", "dp-scaffold", "algorithm.name"),
        ("data.validation={{fraction: 0.5, public: {}}}", (), "true", "false", None),
        ("data.validation={{fraction: {}, public: false}}", (), "0", "0.1", None),
        ("data.numbers={}", TABLE, "[age, weight]", "[age, ill]", None),
        ("data.text={}", NO_NUMBERS, "[letter]", "[ill]", None),
        ("data.columns={}", NO_NUMBERS, BOOLEANS.format("old"), BOOLEANS.format("ill"), None),
        ("tune={{selection: unaccounted, score: test_{}}}", SOLD, "loss", "accuracy", "tune.score"),
        ("data.person={}", TABLE, "who", "age", None),
        ("data.person={}", TABLE, "who", "ill", None),
        ("data.person={}", (*NO_NUMBERS, "data.text=[letter]"), "who", "letter", None),
        ("data.most_records_per_person={}", TABLE, "null", "3", None),
        (BY_COLUMN, TABLE, "column: who", "column: ill", None),
        (BY_COLUMN, TABLE, "file: f.txt", "column: who, file: f.txt", None),
        (BY_COLUMN, TABLE, "column: who", "minimum_records: 1", None),
        (BY_COLUMN, (), "file: f.txt", "column: who", None),
        ("data.partition={{kind: {}}}", PRICES, "iid", "shards", None),
        ("data.partition={{kind: {}}}", PRICES, "iid", "dirichlet", None),
        ("privacy.adjacency={}", (), "add-remove", "replace-one", None),
        ("privacy.adjacency={}", (FIXED,), "replace-one", "add-remove", None),
        ("privacy.adjacency={}", (SHUFFLED,), "replace-one", "add-remove", None),
    ],
)
def test_keys_that_contradict_each_other_are_refused_from_where_they_do(
    name, common, right, wrong, refused
):
    spec.loads(GOOD, "a.yaml", (*common, name.format(right)))
    found = {path for path, _ in refusals((*common, name.format(wrong)))}
    if refused is None:
        assert len(found) == 1
        assert found.pop().startswith(name.partition("=")[0])
    else:
        assert found == {refused}


@pytest.mark.parametrize(
    ("name", "right", "wrong", "refused"),
    [
        (
            "visits-people",
            "federation.clients_per_person=8",
            "federation.clients_per_person=9",
            "federation.clients_per_person",
        ),
        ("visits-people", "data.person=patient_id", "data.person=null", "data.person"),
        ("texts-lora", "task.loss_on=text", "task.loss_on=answer", "task.loss_on"),
        ("texts-lora", "model.pooling=published", "model.pooling=mean", "model.pooling"),
        (
            "texts-lora",
            "model.fine_tuning={kind: all}",
            "model.fine_tuning={kind: head}",
            "model.fine_tuning.kind",
        ),
        (
            "texts-lora",
            "model.fine_tuning.dropout=0.0",
            "model.fine_tuning.dropout=0.1",
            "model.gradient_checkpointing",
        ),
        (
            "texts-lora",
            "data.text=[question, answer]",
            "data={dataset: digits, clients: 4, partition: {kind: iid}}",
            "data.dataset",
        ),
    ],
)
def test_keys_of_people_and_of_language_models_are_refused_from_where_they_contradict(
    name, right, wrong, refused
):
    common = (CHECKPOINTS,) if name == "texts-lora" else ()
    spec.load(name, (*common, right))
    assert [path for path, _ in refusals((*common, wrong), name)] == [refused]


def test_data_that_name_no_people_are_told_which_do():
    keys = "unit: person, records_per_person: 1, clipping_norm: 1.0, noise_multiplier: 2.5, "
    keys += "delta: 1e-5, sampling: {kind: poisson, expected_batch_size: 32}"
    ((path, message),) = refusals((f"privacy={{{keys}}}",))
    assert path == "data.person"
    assert message.endswith("use dataset image-folder, table, arrays, given, visits")


@pytest.mark.parametrize("given", ["file: b.json", "epsilon: 8.0", "delta: 1e-5"])
def test_a_budget_is_given_whole_and_never_without_privacy(given):
    spec.loads(GOOD, "a.yaml", (BUDGET,))
    missing = {"budget.file", "budget.epsilon", "budget.delta"} - {f"budget.{given.split(':')[0]}"}
    assert {path for path, _ in refusals((f"budget={{{given}}}",))} == missing
    assert [path for path, _ in refusals((*OPEN, BUDGET))] == ["budget.file"]


@pytest.mark.parametrize(
    ("task", "datasets", "models"),
    [
        ("regression", "table, arrays, given", None),
        ("multi_label", "table, arrays, given", None),
        ("token_classification", "table, arrays, given", "python or module"),
        ("causal_lm", "table", "transformers"),
    ],
)
def test_a_task_that_data_or_model_do_not_serve_names_those_that_do(task, datasets, models):
    said = dict(refusals((f"task={task}", "data.partition={kind: iid}")))
    assert set(said) == {"data.dataset", *(["model.name"] if models else [])}
    assert f" {datasets}" in said["data.dataset"]
    if models:
        assert said["model.name"].endswith(f"; use {models}")


def test_metrics_of_ones_own_need_public_test_records():
    """Those of a published data set are; those of others are where the spec says so."""
    metrics = "evaluation.metrics=[mine]"
    for overrides in ((metrics,), (*TABLE, metrics, "evaluation.public_test=true")):
        spec.loads(GOOD, "a.yaml", overrides)
    for overrides in ((*TABLE, metrics), (metrics, "evaluation.public_test=false")):
        assert [path for path, _ in refusals(overrides)] == ["evaluation.metrics"]
    spec.loads(GOOD, "a.yaml", (*TABLE, "evaluation.public_test=false"))


# As papers and other libraries call keys, and as they are called here.
OTHER_NAMES = {
    "rate": "q sample_rate sampling_rate sampling_probability",
    "reference_size": "dataset_size num_examples",
    "learning_rate": "lr eta step_size",
    "weight_decay": "wd",
    "noise_multiplier": "sigma noise_scale noise",
    "clipping_norm": "max_grad_norm l2_norm_clip clip clip_norm",
    "target_epsilon": "eps epsilon",
    "expected_batch_size": "batch_size lot_size",
    "local_steps": "epochs local_epochs",
    "rounds": "num_rounds global_rounds communication_rounds",
    "clients": "num_clients n_clients",
    "workers": "num_workers",
    "name": "optimizer",
    "proximal_weight": "mu",
    "hidden": "hidden_size",
    "target": "class",
    "arguments": "kwargs",
}
# And choices, of which the first that may be chosen there is meant.
OTHER_CHOICES = {
    "pe-dpfl": "fedprox dp-fedprox",
    "dp-fedavg": "dp-sgd dpsgd sgd",
    "fedavg": "sgd fedsgd",
    "local-adam": "adam",
    "dp-localadamw": "adamw dp-adam",
    "local-adamw": "adamw",
    "dp-fedopt": "dp-fedadam fedyogi",
    "table": "csv tsv parquet",
    "arrays": "npz numpy",
    "given": "pandas dataframe torch custom",
    "python": "torch custom lstm",
    "mlp": "logistic linear",
    "client": "user",
    "person": "people patient subject",
    "record": "sample example",
    "fixed": "uniform",
    "iid": "uniform random",
    "poisson": "subsampled",
    "dirichlet": "non-iid",
    "release": "secure",
    "reproducible": "deterministic",
    "constant": "step",
}


def test_what_papers_and_other_libraries_call_a_key_is_understood():
    for key, others in OTHER_NAMES.items():
        for other in others.split():
            assert words.key_of(other) == key, other
            assert words.key_of(other.upper()) == key, other
    of_other_units = ("epochs", "local_epochs", "noise_scale", "noise", "sigma")
    names = [one for others in OTHER_NAMES.values() for one in others.split()]
    assert {name for name in names if words.remark(name)} == set(of_other_units)


def test_what_papers_and_other_libraries_call_a_choice_is_understood():
    for own, others in OTHER_CHOICES.items():
        for other in others.split():
            assert words.choice_of(other, ["another", own]) == own, other
            assert words.choice_of(other.upper().replace("-", "_"), [own]) == own, other
            assert words.choice_of(other, ["another"]) is None, other


@pytest.mark.parametrize("other", ["seq2seq", "seq2seq-lm", "SEQ_2_SEQ_LM"])
def test_of_what_is_not_trained_it_is_said_why_and_what_is(other):
    ((path, message),) = refusals((f"task={other}", "data.partition={kind: iid}"))
    assert path == "task"
    assert "encoder-decoders are not trained" in message
    assert "did you mean" not in message


def test_of_packed_sequences_it_is_said_why_there_are_none():
    said = dict(refusals(("task.packing=true",), "texts-lora"))
    assert "cannot be clipped record by record" in said["task.packing"]


@pytest.mark.parametrize(
    ("text", "beyond", "said"),
    [
        (f"a: 0.{'9' * 398}", f"a: 0.{'9' * 399}", "a number of 401 characters; give at most 400"),
        (f"a: {'9' * 308}", f"a: {'9' * 309}", f"{'9' * 59}… is too large for a number"),
        (f"a: {'[' * 20}{']' * 20}", f"a: {'[' * 21}{']' * 21}", "nested deeper than 20 levels"),
    ],
    ids=["characters", "size", "levels"],
)
def test_what_is_read_of_a_file_ends_where_its_limits_say(text, beyond, said):
    assert yamltext.parse(text, "a.yaml").problems == []
    (problem,) = yamltext.parse(beyond, "a.yaml").problems
    assert problem.message.startswith(said)
    # As text it is no number of any size.
    value = {"a": beyond.removeprefix("a: ")}
    assert yamltext.parse(yamltext.write(value), "a.yaml").value == value


@pytest.mark.parametrize("levels", [20, 21])
def test_a_mapping_is_as_deep_as_a_file_may_be(levels):
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    with pytest.raises(SpecError) as caught:
        spec.resolve(value)
    said = any("nested deeper than 20 levels" in one.message for one in caught.value.problems)
    assert said == (levels > 20)
