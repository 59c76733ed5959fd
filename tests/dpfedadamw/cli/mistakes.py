"""What people type wrongly, and the message that each gets: `mistakes.txt`.

    python -m tests.dpfedadamw.cli.mistakes

writes that file anew; a test keeps it the same. Whoever changes a message reads them all again.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import tempfile
from pathlib import Path

from dpfedadamw import cli
from dpfedadamw.cli.terminal import err, out

GOLDEN = Path(__file__).with_name("mistakes.txt")
_FILES = {
    "list.yaml": "- version: 1\n",
    "tab.yaml": "version: 1\n\tname: x\n",
    "empty.yaml": "",
    "table.csv": "age,label\n3,1\nmuch,0\n",
    "numbers.csv": "age,price\n3,1.5\n4,0\n",
    "nets.py": "from torch import nn\n\ndef net(classes):\n"
    "    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))\n\n"
    "def averaged(outputs, labels):\n    return nn.functional.cross_entropy(outputs, labels)\n",
    "broken.py": "import no_such_library\n",
}
_STAYS = "hospital,age,ward,smoker,seen,outcome\n" + "".join(
    f"{'AB'[n % 2]},{20 + 3 * n},{'xyz'[n % 3]},{('yes', 'no')[n % 5 < 2]},2020-01-{n + 1:02d},"
    f"{n % 4 // 3}\n"
    for n in range(24)
)
_DICTIONARY = "name,kind,low,high,categories\n"
_FILES |= {
    "stays.csv": _STAYS,
    "copy.csv": _STAYS,
    "gap.csv": _STAYS.replace("20,x", ",x"),
    "odd.csv": _STAYS.replace("20,x", "1_000,x"),
    "comma.csv": _STAYS.replace(",", ";").replace("20;x", "20,5;x"),
    "arabic.csv": _STAYS.replace("20,x", "\u0662\u0660,x"),
    "words.csv": _STAYS.replace("20,x", "young,x"),
    "new.csv": _STAYS.replace("20,x", "20,w"),
    "maybe.csv": _STAYS.replace("x,no", "x,maybe"),
    "never.csv": _STAYS.replace("2020-01-01", "2020-02-30"),
    "nobody.csv": _STAYS.replace("A,20", ",20"),
    "open.csv": _STAYS.replace("2020-01-01,0", "2020-01-01,"),
    "one.csv": _STAYS.replace(",1\n", ",0\n"),
    "none.csv": _STAYS.replace(",1\n", ",\n").replace(",0\n", ",\n"),
    "short.csv": _STAYS.replace(",2020-01-03", ""),
    "twice.csv": _STAYS.replace("ward", "age"),
    "headless.csv": "1,2,3\n4,5,6\n",
    "nothing.csv": "",
    "header.csv": "age,outcome\n",
    "book.xlsx": "PK",
    "latin.csv": _STAYS.replace("x", "\udce4"),
    "quote.csv": _STAYS.replace("x,no", '"x,no'),
    "empty-dictionary.csv": "",
    "headless-dictionary.csv": "age,number,0,120,\n",
    "kind-dictionary.csv": _DICTIONARY + "age,nmber,0,120,\n",
    "bounds-dictionary.csv": _DICTIONARY + "age,number,120,0,\n",
    "words-dictionary.csv": _DICTIONARY + "age,number,low,high,\n",
    "twice-dictionary.csv": _DICTIONARY + "age,number,0,120,\nage,number,0,90,\n",
    "short-dictionary.csv": _DICTIONARY + "age,number\n",
    "format-dictionary.csv": "name,format\nseen,DD-MM-YY\n",
    "missing-dictionary.csv": "name,kind,missing\nage,number,unknown\n",
    "other-sample.csv": "weight,height\n60,170\n70,180\n",
}
_TABLE = "data={dataset: table, path: table.csv, label: label, numbers: [age]}"
_NUMBERS = "data={dataset: table, path: numbers.csv, targets: [price], numbers: [age]}"
_OWN = "model={name: python, target: 'nets:net'%s}"
_AGE = "{name: age, kind: number, low: 0, high: 120}"
_SIGMA = ", column_noise_multiplier: 20"
_OF_CLIENTS = "{unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}"
_OF_PEOPLE = (
    "{unit: person, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5, "
    "records_per_person: 2, sampling: {kind: poisson, expected_batch_size: 8}}"
)
_FIXED = (
    "{unit: record, adjacency: replace-one, clipping_norm: 1.0, noise_multiplier: 2.0, "
    "delta: 1.0e-5, sampling: {kind: fixed, batch_size: 8}}"
)


def _columns(columns: str, path: str = "stays.csv", more: str = "") -> str:
    """A run of a table with these items of `data.columns`."""
    data = f"dataset: table, path: {path}, label: outcome, columns: [{columns}]{more}"
    return f'run quickstart --set "data={{{data}}}" --set federation.clients_per_round=1'


def _learnt(keys: str, noise: str = _SIGMA, more: str = "") -> str:
    """A run of a table with these further keys of a column of numbers."""
    return f"{_columns(f'{_AGE[:-1]}, {keys}}}', more=noise)} {more}".strip()


def _init(flags: str, data: str = "stays.csv") -> str:
    """A spec to start from, of a table."""
    return f"init new.yaml --data {data} {flags}".strip()


TABLES = (
    # The file.
    _columns(_AGE, "nowhere.csv"),
    _columns(_AGE, "book.xlsx"),
    _columns(_AGE, "latin.csv"),
    _columns(_AGE, "nothing.csv"),
    _columns(_AGE, "header.csv"),
    _columns(_AGE, "short.csv"),
    _columns(_AGE, "quote.csv"),
    _columns(_AGE, "twice.csv"),
    # Its cells.
    _columns(_AGE, "gap.csv"),
    _columns(_AGE, "odd.csv"),
    _columns(_AGE, "comma.csv"),
    _columns(_AGE, "arabic.csv"),
    _columns(_AGE, "words.csv"),
    _columns(_AGE, more=", decimal: comma, targets: [outcome]"),
    _columns("{name: ward, kind: category, categories: [x, y, z]}", "new.csv"),
    _columns("{name: smoker, kind: boolean}", "maybe.csv"),
    _columns("{name: seen, kind: date, low: 2020-01-01, high: 2020-12-31}", "never.csv"),
    _columns("{name: seen, kind: date, low: 2020-01-01, high: 2020-12-31, format: DD.MM.YYYY}"),
    _columns(_AGE, "nobody.csv", ", clients: 2, partition: {kind: column, column: hospital}"),
    _columns(_AGE, more=", clients: 3, partition: {kind: column, column: hospital}"),
    # Its labels.
    _columns(_AGE, "open.csv"),
    _columns(_AGE, "one.csv"),
    _columns(_AGE, "none.csv"),
    _columns(_AGE, more=", classes: ['0']"),
    _columns(_AGE, more=", classes: ['0', '1', '']"),
    _columns(_AGE, more=", classes: ['0', '1', NA], missing_values: [NA]"),
    _columns(_AGE, more=", classes: ['0', 'yes']"),
    _columns(_AGE, more=", classes: ['0', '1', '0']"),
    _columns(_AGE, more=", unlabelled: drop"),
    _columns(_AGE, more=", unlabelled: leave_out, partition: {kind: column, file: owners.txt}"),
    # What a spec says of its columns.
    _columns("{name: agee, kind: number, low: 0, high: 120}"),
    _columns("{name: outcome, kind: boolean}"),
    _columns(f"{_AGE}, {_AGE}"),
    _columns("{name: age, kind: numeric, low: 0, high: 120}"),
    _columns("{name: age, low: 0, high: 120}"),
    _columns("{kind: number, low: 0, high: 120}"),
    _columns("{name: age, kind: number, low: 0}"),
    _columns("{name: age, kind: number, low: 0, high: auto}"),
    _columns("{name: age, kind: number, low: 120, high: 0}"),
    _columns("{name: age, kind: number, low: 0, high: 120, mean: 60}"),
    _columns("{name: age, kind: number, low: 0, high: 120, missing: median}"),
    _columns("{name: age, kind: number, low: 0, high: 120, categories: [a]}"),
    _columns("{name: age, kind: number, low: 0, high: 120, scale: sqrt}"),
    # Bounds that are learnt.
    _learnt("learn_quantiles: [0.01, 0.99], learn_bins: 0"),
    _learnt("learn_quantiles: [0.01, 0.99], learn_bins: many"),
    _learnt("learn_quantiles: [0, 0.99]"),
    _learnt("learn_quantiles: [0.01, 1]"),
    _learnt("learn_quantiles: [0.99, 0.01]"),
    _learnt("learn_quantiles: [0.5]"),
    _learnt("learn_quantiles: [0.1, 0.5, 0.9]"),
    _learnt("learn_quantiles: auto"),
    _learnt("scale: bins, learn_quantiles: [0.01, 0.99]"),
    _learnt("learn_quantiles: [0.01, 0.99]", noise=""),
    _learnt("learn_quantiles: [0.01, 0.99]", noise=", column_noise_multiplier: 0"),
    _learnt("missing: 40"),
    _columns(
        "{name: age, kind: number, low: 120, high: 0, learn_quantiles: [0.01, 0.99]}", more=_SIGMA
    ),
    _learnt(
        "learn_quantiles: [0.01, 0.99]",
        more=f"--set 'privacy={_OF_CLIENTS}' --set 'algorithm={{name: dp-fedavg}}'",
    ),
    _learnt(
        "learn_quantiles: [0.01, 0.99]",
        noise=f"{_SIGMA}, person: ward",
        more=f"--set 'privacy={_OF_PEOPLE}'",
    ),
    _learnt(
        "learn_quantiles: [0.01, 0.99]",
        more="--set 'privacy={unit: none}' --set 'algorithm={name: fedavg}'",
    ),
    _learnt("learn_quantiles: [0.01, 0.99]", more=f"--set 'privacy={_FIXED}'"),
    _columns(
        "{name: ward, kind: category, buckets: 8, learn_quantiles: [0.01, 0.99]}", more=_SIGMA
    ),
    _columns("{name: ward, kind: category}"),
    _columns("{name: ward, kind: category, categories: auto}"),
    _columns("{name: ward, kind: category, categories: [x, y], buckets: 8}"),
    _columns("{name: ward, kind: category, categories: [x, y, y]}"),
    _columns("{name: ward, kind: category, categories: [x, y], missing: w}"),
    _columns("{name: ward, kind: category, categories: [x, y], unseen: drop}"),
    _columns("{name: ward, kind: category, buckets: 8, unseen: other}"),
    _columns("{name: ward, kind: category, categories: [x, NA]}", more=", missing_values: [NA]"),
    _columns("{name: smoker, kind: boolean, true_words: [yes], false_words: [YES]}"),
    _columns("{name: seen, kind: date, low: 2020-01-01, high: 2020-02-31}"),
    _columns("{name: seen, kind: date, low: 1.1.2020, high: 2020-12-31}"),
    _columns("{name: seen, kind: date, low: 2020-01-01, high: 2020-12-31, format: '%Y'}"),
    _columns("age"),
    _columns(_AGE, more=", numbers: [age]"),
    _columns(_AGE, more=", decimal: ','"),
    _columns(_AGE, more=", partition: {kind: column, column: outcome}"),
    _columns(_AGE, more=", partition: {kind: column, column: hospitl}"),
    _columns("{name: age, kind: number, low: 0, high: 120}", more=", delimiter: ';'"),
    _columns("{name: agee, kind: number, low: 0, high: 120}").replace("run", "spec validate", 1),
    _columns(_AGE, more=", partition: {kind: column, column: clinic}").replace("run", "epsilon", 1),
    _columns(_AGE, more=", test_path: numbers.csv"),
    # Flags of init.
    _init("", "nowhere.csv"),
    _init("--label outcome", "book.xlsx"),
    _init("--label outcome", "headless.csv"),
    _init("--label outcome", "nothing.csv"),
    _init("--label outcome", "header.csv"),
    _init("--label outcome", "twice.csv"),
    _init("--label outcome", "short.csv"),
    _init(""),
    _init("--label outcom"),
    _init("--label outcome", "one.csv"),
    _init("--label outcome", "none.csv"),
    _init("--label outcome --client hospitl"),
    _init("--label outcome --client outcome"),
    _init("--label outcome --client hospital --clients 5"),
    _init("--label outcome --classes 0,yes"),
    _init("--label outcome --numbers agee"),
    _init("--label outcome --numbers ward"),
    _init("--label outcome --numbers outcome"),
    _init("--label outcome --numbers age --text ward"),
    _init("--label outcome --bounds agee=0:120"),
    _init("--label outcome --bounds age=0-120"),
    _init("--label outcome --bounds age=120:0"),
    _init("--label outcome --bounds age=young:old"),
    _init("--label outcome --categories ward"),
    _init("--label outcome --categories wards=x,y"),
    _init("--label outcome --leave-out wards"),
    _init("--label outcome " + " ".join(f"--leave-out {one}" for one in _STAYS.split(",")[:5])),
    _init("--label outcome --dictionary nowhere.csv"),
    *(
        _init(f"--label outcome --dictionary {one}-dictionary.csv")
        for one in ("empty", "headless", "kind", "bounds", "words", "twice", "short", "format")
    ),
    _init("--label outcome --dictionary missing-dictionary.csv"),
    _init("--label outcome --public-sample copy.csv"),
    _init("--label outcome --public-sample other-sample.csv"),
    _init("--label outcome --public-sample nowhere.csv"),
    _init("--label outcome --unit patient"),
    _init("--label outcome --algorithm 2"),
    _init("--label outcome --model lstm"),
    _init("--label outcome --epsilon 0"),
    _init("--label outcome --rounds 0"),
    _init("--label outcome --delta 1"),
    _init("--label outcome --text ward"),
    "init new.yaml --data nowhere.npz",
    "init new.yaml --data mnist",
    "init new.yaml --data digits --clients 0",
    "init new.yaml --data digits --label outcome",
    "init new.yaml --data digit",
)
MISTAKES = (
    "run quickstrat",
    "run",
    "run quickstart --set algorithm.lr=0.1",
    "run quickstart --set privacy.sigma=2",
    "run quickstart --set federation.epochs=3",
    "run quickstart --set federation.num_rounds=3",
    "run quickstart --set num_clients=3",
    "run quickstart --set privacy.max_grad_norm=1",
    "run quickstart --set privacy.epsilon=3",
    "run quickstart --set algorithm.name=fedprox",
    "run quickstart --set algorithm.name=dp-sgd",
    "run quickstart --set model.name=lstm",
    "run quickstart --set model.name=resnet",
    "run quickstart --set data.dataset=csv",
    "run quickstart --set privacy.unit=user",
    "run quickstart --set federation.rounds=0",
    "run quickstart --set federation.rounds=ten",
    "run quickstart --set federation.rounds=5.5",
    "run quickstart --set federation.rounds='\"5\"'",
    "run quickstart --set federation.clients_per_round=11",
    "run quickstart --set privacy.delta=1",
    "run quickstart --set rounds",
    "run quickstart --set model.hidden[3]=5",
    "run quickstart --set 'data.path=/tmp/x'",
    "run quickstart --set 'data={dataset: mnist}'",
    "run quickstart --set 'data={dataset: mnist, path: nowhere}'",
    f'run quickstart --set "{_TABLE}"',
    f'run quickstart --set "{_TABLE}" --set data.label=labl',
    f'run quickstart --set "{_TABLE}" --set data.label=age',
    f'run quickstart --set "{_NUMBERS}" --set task=regression '
    "--set data.partition.kind=iid --set data.numbers=[age,price]",
    "run list.yaml",
    "run tab.yaml",
    "run empty.yaml",
    "run nowhere.yaml",
    "run quickstart --device gpu",
    "run quickstart --device mps",
    "run quickstart --set task=regresion",
    "run quickstart --set 'task={kind: classification, loss: focl}'",
    "run quickstart --set 'task={kind: classification, class_weights: [1, 9]}'",
    "run quickstart --set 'task={kind: classification, class_weights: [1, -9]}'",
    "run quickstart --set 'task={kind: classification, loss: focal, focal_gamma: 0.5}'",
    "run quickstart --set 'evaluation.metrics=[a b]'",
    f"run quickstart --set '{_TABLE}' --set evaluation.metrics=[cost]",
    "predict",
    "predict nowhere --input table.csv",
    "predict . --input table.csv",
    "predict . --input table.csv --output .",
    "run quickstart --set task=regression --set 'data.partition={kind: iid}'",
    "run quickstart --set task=token_classification "
    "--set 'data={dataset: arrays, path: tags.npz, partition: {kind: iid}}'",
    f"run quickstart --set '{_TABLE}' --set data.partition.kind=iid --set task=regression",
    f"run quickstart --set '{_NUMBERS}' --set task=regression",
    f"run quickstart --set '{_NUMBERS}' --set data.partition.kind=iid --set task=multi_label",
    f"run quickstart --set '{_NUMBERS}'",
    "run quickstart --tracker tensorbord",
    "run --resume nowhere",
    "run quickstart --resume nowhere",
    'run quickstart --set "' + _OWN % "" + '"',
    'run quickstart --allow-code nets --set "' + _OWN % "" + '"',
    'run quickstart --allow-code nets --set "'
    + _OWN % ", replace_batch_norm: group_norm, loss: 'nets:averaged'"
    + '"',
    "run quickstart --allow-code nets --set \"model={name: python, target: 'nets:Net'}\"",
    "run quickstart --allow-code nets --set \"model={name: python, target: 'nets:nn.Linear'}\"",
    "run quickstart --set \"model={name: python, target: 'nets.net'}\"",
    "run quickstart --set \"model={name: python, target: 'subprocess:getoutput'}\"",
    "run quickstart --allow-code subprocess",
    "run quickstart --allow-code ./nets.py",
    "run quickstart --allow-code broken --set \"model={name: python, target: 'broken:net'}\"",
    "run quickstart --allow-code nowhere_at_all --set "
    "\"model={name: python, target: 'nowhere_at_all:net'}\"",
    "run quickstart --set 'model={name: module}'",
    "run quickstart --set 'data={dataset: given}'",
    "audit nowhere",
    "claim nowhere.yaml",
    "canaries quickstart --count 0",
    "canaries quickstart --kind label",
    "init list.yaml",
    "init new.yaml --data table.csv",
    "init new.yaml --text letter",
    "verify nowhere",
)


def told(command: str) -> str:
    """What a command says of a mistake, and its exit code; run in a folder of its own."""
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
        consoles = [(one, one.file) for one in (out, err)]
        for console, _ in consoles:
            console.file = said
        code: object = 0
        try:
            cli.main(shlex.split(command))
        except SystemExit as ended:
            code = ended.code
        finally:
            for console, _ in consoles:
                console.file = None
    lines = [line.rstrip() for line in said.getvalue().splitlines() if line.strip()]
    return "\n".join([f"$ dpfedadamw {command}", *(f"  {line}" for line in lines), f"  [{code}]"])


def listing() -> str:
    """Every mistake with its message."""
    before, width = Path.cwd(), os.environ.get("COLUMNS")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in _FILES.items():
            (Path(folder) / name).write_text(content, "utf-8", "surrogateescape")
        os.chdir(folder)
        os.environ |= {"COLUMNS": "1000", "DPFEDADAMW_KEYS": f"{folder}/keys"}
        try:
            said = "\n\n".join(told(command) for command in (*MISTAKES, *TABLES))
            kept = sorted(one.name for one in Path(folder).iterdir())
        finally:
            os.chdir(before)
            os.environ.pop("DPFEDADAMW_KEYS")
            os.environ.pop("COLUMNS")
            if width is not None:
                os.environ["COLUMNS"] = width
    assert [name for name in kept if name != "__pycache__"] == sorted(_FILES), kept
    return said.replace(str(Path(folder).resolve()), "FOLDER").replace(folder, "FOLDER") + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(listing(), encoding="utf-8")
    sys.exit(0)
