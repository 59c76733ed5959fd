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
_TABLE = "data={dataset: table, path: table.csv, label: label, numbers: [age]}"
_NUMBERS = "data={dataset: table, path: numbers.csv, targets: [price], numbers: [age]}"
_OWN = "model={name: python, target: 'nets:net'%s}"
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
            (Path(folder) / name).write_text(content)
        os.chdir(folder)
        os.environ |= {"COLUMNS": "1000", "DPFEDADAMW_KEYS": f"{folder}/keys"}
        try:
            said = "\n\n".join(told(command) for command in MISTAKES)
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
