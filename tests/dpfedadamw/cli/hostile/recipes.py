"""How each command is called on good files, and which of its files a stranger may have made."""

from __future__ import annotations

from dataclasses import dataclass, field

RUN, SECOND = "runs/small-20261122T120000Z-00000000", "runs/second-20261122T120000Z-00000002"
BEGUN = "begun-20261122T120000Z-00000003"

_FILES = (
    "", "spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.safetensors", "model.json",
    "evidence", "evidence/round-00000.npz", "evidence/layout.json", "evidence/salt",
    "attestation.json", "training.attestation.json", "audit.json", "report.json", "report.pdf",
    "trainer.pub",
)  # fmt: skip
_MORE = (
    "report.html", "report-public.json", "attestation-public.json", "VERIFY.md", "auditor.pub",
    "challenge.json", "intent.json", "evidence/records.npz", "evidence/partition.npz",
    "evidence/probe.npz", "evidence/coordinates.npz", "evidence/inputs.npz",
    "evidence/environment-00000.json", "evidence/findings.json",
    "evidence/upload-00000-00000.npz", "evidence/state-00000.safetensors",
)  # fmt: skip


def _of(run: str, *more: str) -> tuple[str, ...]:
    return tuple(f"{run}/{name}".rstrip("/") for name in (*_FILES, *more))


_RUN = _of(RUN, *_MORE)


@dataclass(frozen=True)
class Recipe:
    """One way to call a command.

    Attributes:
        arguments: After the program's name.
        files: What a stranger may have made of what it reads, relative to the working directory.
        codes: Exit codes that a call may have; 70 is never one of them.
        writes: What it may change or make, by the first part of its path.
        good: The exit code on good files; -1 where they are not good enough for it.
        carried: More files that it needs, which no stranger made.
        keys: The key folder of who calls it.
    """

    arguments: tuple[str, ...]
    files: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0, 1, 2)
    writes: tuple[str, ...] = ()
    good: int = 0
    carried: tuple[str, ...] = field(default=())
    keys: str = "keys"

    @property
    def needed(self) -> set[str]:
        """Names in the folder of good files that the call needs."""
        given = [
            part
            for one in (*self.arguments, *self.files, *self.carried)
            for part in (one, one.partition("=")[2])
        ]
        return {one.split("/")[0] for one in given if one}


def _r(text: str, *files: str, codes: tuple[int, ...] = (0, 2), writes: tuple[str, ...] = (), good: int = 0, carried: tuple[str, ...] = (), keys: str = "keys") -> Recipe:  # fmt: skip
    return Recipe(tuple(text.split()), files, codes, writes, good, carried, keys)


_VERDICT = (0, 1, 2)
_SPEC = ("spec.yaml",)
# For commands that read no file: the input is one more word of the command line.
ARGUMENT = "ARGUMENT"
_NOTHING = (ARGUMENT,)
_DATA = ("table.yaml", "table.csv")
_GATE = (
    "gate",
    "gate/gate.yaml",
    "gate/ledger",
    "gate/ledger/ledger.jsonl",
    "gate/ledger/head.json",
    "gate/ledger/gate.pub",
    "gate/ledger/refusals.json",
    "gate/ledger/replies",
    "gate/ledger/replies/000001.safetensors",
    "gate-anchor.json",
)

RECIPES: dict[str, tuple[Recipe, ...]] = {
    "init": (
        _r("init new.yaml --data table.csv --label label --numbers a --model mlp --unit record --epsilon 4", "table.csv", writes=("new.yaml",)),
        _r("init new.yaml --data table.csv --label label --bounds a=0:1 --epsilon 4", "table.csv", writes=("new.yaml",)),
        _r("init new.yaml --data records.npz --model mlp --unit record --epsilon 4", "records.npz", writes=("new.yaml",), carried=("records.npz",)),
    ),
    "run": (
        _r("run spec.yaml --out out", *_SPEC, codes=_VERDICT, writes=("out",)),
        _r("run table.yaml --out out", *_DATA, codes=_VERDICT, writes=("out",)),
        _r("run budget.yaml --out out", "budget.sqlite", codes=_VERDICT, writes=("out", "budget.sqlite"), carried=("budget.yaml",)),
        _r("run small.yaml --out out --challenge challenge.json --escrow key.escrow", "challenge.json", "key.escrow", codes=_VERDICT, writes=("out",), carried=("small.yaml",)),
        _r(f"run --resume {BEGUN}", *_of(BEGUN), codes=_VERDICT, writes=(BEGUN, "latest")),
        _r("run --resume cut", *_of("cut", "checkpoint"), codes=_VERDICT, writes=("cut", "latest")),
    ),
    "audit": (
        _r(f"audit {RUN}", *_RUN, codes=_VERDICT),
        _r(f"audit {RUN} --write", *_RUN, codes=_VERDICT, writes=("runs",)),
        _r(f"audit {RUN} --replay 1 --escrow key.escrow", *_RUN, "key.escrow", codes=_VERDICT),
        _r(f"audit {RUN} --draw draw.json --openings openings.json", *_RUN, "draw.json", "openings.json", codes=_VERDICT, keys="auditor-keys"),
        _r("audit --paper-claim claim.yaml", "claim.yaml", codes=_VERDICT, good=-1),
        _r("audit gate", *_GATE, codes=_VERDICT),
        _r("audit gate --key keys/gate.pub --anchor gate-anchor.json", *_GATE, "keys/gate.pub", codes=_VERDICT),
        _r("audit recorded", *_of("recorded")[1:8], codes=_VERDICT, good=-1),
    ),
    "claim": (_r("claim claim.yaml", "claim.yaml", codes=_VERDICT, good=-1),),
    "canaries": (
        _r(f"canaries {SECOND} --count 2 --out out", SECOND, f"{SECOND}/spec.yaml", f"{SECOND}/ledger.jsonl", codes=_VERDICT, writes=("out",), good=-1),
        _r("canaries spec.yaml --count 2 --out out", *_SPEC, codes=_VERDICT, writes=("out",), good=-1),
    ),
    "replay": (
        _r(f"replay {SECOND}", *_of(SECOND), codes=_VERDICT),
        _r(f"replay {RUN} --escrow key.escrow", *_RUN, "key.escrow", codes=_VERDICT),
    ),
    "report": (
        _r(f"report {RUN}", *_RUN, codes=_VERDICT, writes=("runs",)),
        _r(f"report {RUN} --audience public", *_RUN, codes=_VERDICT, writes=("runs",)),
        _r(f"report --compare {RUN} {SECOND} --output out", *_RUN, codes=_VERDICT, writes=("out",)),
    ),
    "verify": (
        _r(f"verify {RUN}", *_RUN, codes=(0, 1, 2, 3), good=3),
        _r(f"verify {RUN} --trainer-key keys/trainer.pub --revocations list/trainer.revocations.json", "keys/trainer.pub", "list/trainer.revocations.json", codes=(0, 1, 2, 3), good=3),
        _r("verify public", "public", "public/report-public.json", "public/model.safetensors", "public/attestation-public.json", codes=(0, 1, 2, 3), good=3),
        _r("verify comparison", "comparison", "comparison/comparison.json", codes=(0, 1, 2, 3)),
        _r(f"verify annex.pdf --of {RUN} --signer-key keys/auditor.pub", "annex.pdf", *_RUN, "keys/auditor.pub", codes=(0, 1, 2, 3)),
        _r("verify annex.pdf --tsa-root keys/auditor.crt", "annex.pdf", "keys/auditor.crt", codes=(0, 1, 2, 3), good=-1),
        _r(f"verify {RUN}/report.pdf", f"{RUN}/report.pdf", codes=(0, 1, 2, 3), good=-1),
    ),
    "sign": (_r(f"sign {RUN}", *_RUN, codes=_VERDICT, writes=("runs",)),),
    "compare": (
        _r(f"compare {RUN} {SECOND}", *_RUN, codes=_VERDICT),
        _r(f"compare {RUN} {SECOND} --csv", *_RUN, codes=_VERDICT),
        _r(f"compare {RUN} {SECOND} --markdown", *_RUN, codes=_VERDICT),
        _r(f"compare {RUN} {SECOND} --latex", *_RUN, codes=_VERDICT),
        _r(f"compare {RUN} {SECOND} --json", *_RUN, codes=_VERDICT),
    ),
    "figures": (
        _r(f"figures {SECOND} --out out", *_of(SECOND), writes=("out",)),
        _r(f"figures {RUN} {SECOND} --out out --figure second-moment-variance --figure drift --figure update-norms", *_RUN, writes=("out",)),
    ),
    "export": (_r(f"export {RUN} --output out --registry --statements statements.yaml", *_RUN, "statements.yaml", codes=_VERDICT, writes=("out", ".out.partial")),),
    "new": (_r("new out", *_NOTHING, writes=("out",)),),
    "predict": (_r(f"predict {RUN} --input rows.npz --output out.csv", *_RUN, "rows.npz", writes=("out.csv",)),),
    "site": (_r("site runs out", "runs", *_RUN, codes=_VERDICT, writes=("out",)),),
    "bundle": (
        _r(f"bundle {RUN} --audience auditor --output out", *_RUN, codes=_VERDICT, writes=("out", "runs")),
        _r(f"bundle {RUN} --audience public --output out", *_RUN, codes=_VERDICT, writes=("out", "runs")),
    ),
    "erase": (_r(f"erase {RUN} --yes", *_RUN, codes=_VERDICT, writes=("runs",)),),
    "epsilon": (
        _r("epsilon spec.yaml", *_SPEC),
        _r("epsilon table.yaml", *_DATA),
    ),
    "calibrate": (
        _r("calibrate spec.yaml --target-epsilon 4 --output out.yaml", *_SPEC, writes=("out.yaml",)),
        _r("calibrate table.yaml --target-epsilon 4", *_DATA, writes=("table-calibrated.yaml",)),
    ),
    "sign-off": (
        _r(f"sign-off {RUN} --output out.pdf --decision Yes --name A --key keys/auditor.key --answers statements.yaml", *_RUN, "statements.yaml", "keys/auditor.key", codes=_VERDICT, writes=("out.pdf",)),
    ),
    "list": tuple(_r(f"list {kind}", *_NOTHING) for kind in ("algorithms", "models", "datasets", "specs")),
    "spec validate": (
        _r("spec validate spec.yaml", *_SPEC),
        _r("spec validate table.yaml --json", *_DATA),
    ),
    "spec show": (
        _r("spec show spec.yaml", *_SPEC),
        _r("spec show spec.yaml --json", *_SPEC),
        _r("spec show table.yaml --partition --labels", *_DATA),
        _r("spec show spec.yaml --blocks", *_SPEC),
    ),
    "spec schema": (_r("spec schema", *_NOTHING),),
    "sweep run": (
        _r("sweep run matrix.yaml --out out --dry-run", "matrix.yaml", writes=("out",)),
        _r("sweep run matrix.yaml --out out", "matrix.yaml", codes=_VERDICT, writes=("out",)),
    ),
    "sweep merge": (
        _r("sweep merge sweeps/one sweeps/two/results.csv --output out.csv", "sweeps/one", "sweeps/one/results.csv", "sweeps/two/results.csv", writes=("out.csv",)),
    ),
    "sweep table": (
        _r("sweep table sweeps/one --rows axis.method", "sweeps/one", "sweeps/one/results.csv"),
        _r("sweep table sweeps/one/results.csv --rows axis.method --latex --against a", "sweeps/one/results.csv"),
    ),
    "budget show": (
        _r("budget show budget.sqlite", "budget.sqlite"),
        _r("budget show budget.sqlite --json", "budget.sqlite"),
    ),
    "model check": (
        _r("model check spec.yaml", *_SPEC),
        _r("model check table.yaml", *_DATA),
    ),
    "evidence check": (
        _r(f"evidence check {RUN}", *_RUN),
        _r("evidence check recorded", "recorded", "recorded/ledger.jsonl", "recorded/evidence/layout.json", good=-1),
    ),
    "evidence close": (_r("evidence close recorded", *_of("recorded")[:8], "recorded/evidence/coordinates.npz", "recorded/evidence/paused.json", writes=("recorded",)),),
    "evidence merge": (_r(f"evidence merge {RUN} {SECOND}", *_RUN, codes=_VERDICT, good=-1),),
    "keys new": (_r("keys new --role auditor --directory list", "list", "list/trainer.pub", "list/trainer.revocations.json", writes=("list",)),),
    "keys import": (
        _r("keys import --role auditor --key others/trainer.key --certificate others/trainer.crt --directory new", "others/trainer.key", "others/trainer.crt", writes=("new",)),
    ),
    "keys show": (
        _r("keys show --directory list", "list", "list/trainer.pub", "list/trainer.crt", "list/trainer.key", "list/trainer.revocations.json"),
        _r("keys show --directory others --json", "others", "others/trainer.pub", "others/trainer.rotations.json"),
    ),
    "keys rotate": (_r("keys rotate --role trainer --directory others", "others", "others/trainer.pub", "others/trainer.key", "others/trainer.rotations.json", writes=("others",)),),
    "keys revoke": (
        _r("keys revoke --role trainer --reason superseded --directory others --yes", "others", "others/trainer.pub", "others/trainer.rotations.json", writes=("others",)),
        _r("keys revoke --role trainer --reason superseded --directory others --yes --key list/trainer.pub", "list/trainer.pub", writes=("others",), good=-1, carried=("others",)),
    ),
    "flower new": (
        _r("flower new spec.yaml out", *_SPEC, writes=("out",)),
        _r("flower new table.yaml out", *_DATA, writes=("out",)),
    ),
    "flower poc": (_r("flower poc spec.yaml --out out", *_SPEC, codes=_VERDICT, writes=("out",), good=-1),),
    # A federation that was led to its end, so that neither waits for the other.
    "flower superlink": (_r("flower superlink project/server", "project/server", "project/server/federation.json", "project/server/spec.yaml", "project/server/test.npz", "project/server/superlink.crt", "project/server/nodes", writes=("project",)),),
    # Without Flower, which only its own environment has, the files are read and the command ends.
    "flower supernode": (_r("flower supernode project/clients/00/supernode", "project/clients/00/supernode", "project/clients/00/supernode/supernode.json", "project/clients/00/supernode/key", "project/clients/00/supernode/ca.crt", writes=("project",), good=2),),
    "flower client": (_r("flower client project/clients/00", "project/clients/00", "project/clients/00/site.json", "project/clients/00/spec.yaml", "project/clients/00/share.npz", "project/clients/00/federation.json", "project/clients/00/ledger.jsonl", "project/clients/00/key", writes=("project",), good=0),),
    "flower collect": (
        _r("flower collect project/server project/clients/00 project/clients/01 project/clients/02 --out out", "project/server", "project/clients/00", "project/clients/00/site.json", "project/clients/00/ledger.jsonl", "project/clients/00/share.npz", "project/clients/00/federation.json", "project/clients/00/evidence", "project/server/federation.json", "project/server/spec.yaml", codes=_VERDICT, writes=("out",), good=-1),
    ),
    "gate init": (_r("gate init new --unit record --shards 3 --clip 1 --epsilon 2 --delta 1e-5 --releases 5 --model gate.safetensors --anchor new-anchor.json", "gate.safetensors", writes=("new", "new-anchor.json")),),
    "gate shards": (
        _r("gate shards gate/gate.yaml table.csv out", *_GATE, "gate/ledger/sharding.key", "table.csv", writes=("out", "gate")),
    ),
    "gate show": (_r("gate show gate/gate.yaml", *_GATE, codes=_VERDICT), _r("gate show gate/gate.yaml --json", *_GATE, codes=_VERDICT)),
    "gate verify": (
        _r("gate verify gate/gate.yaml", *_GATE, "keys/gate.pub", codes=_VERDICT),
        _r("gate verify gate/gate.yaml --key keys/gate.pub", *_GATE, "keys/gate.pub", codes=_VERDICT),
    ),
    "gate measure": (
        _r("gate measure before.safetensors after.safetensors --delta 1e-5", "before.safetensors", "after.safetensors", codes=_VERDICT),
    ),
    "gate report": (_r("gate report gate/gate.yaml --from 2026-01-01 --to 2099-12-31 --out page.pdf", *_GATE, "keys/gate.pub", codes=_VERDICT, writes=("page.pdf", "keys")),),
    # Without Flower the command ends before it reads a file; its own tests have the rest.
    "gate supernode": (_r("gate supernode gate/gate.yaml --superlink 127.0.0.1:1 --data shards", *_GATE, good=2, carried=("shards",)),),
    # Nor does this one without NVFlare.
    "gate nvflare": (_r("gate nvflare gate/gate.yaml shards --data shards", *_GATE, good=2, carried=("shards",)),),
    "challenge intent": (_r("challenge intent small.yaml --escrow new.escrow --output out.json", "small.yaml", writes=("new.escrow", "out.json", "keys")),),
    "challenge new": (_r("challenge new intent.json --output out.json", "intent.json", "auditor-keys/intents.jsonl", writes=("out.json", "auditor-keys"), keys="auditor-keys"),),
    "challenge draw": (_r(f"challenge draw {RUN} --participations 2 --output out.json", *_RUN, "auditor-keys/intents.jsonl", codes=_VERDICT, writes=("out.json", "auditor-keys"), keys="auditor-keys"),),
    "challenge open": (_r(f"challenge open {RUN} --draw draw.json --escrow key.escrow --output out.json", *_RUN, "draw.json", "key.escrow", codes=_VERDICT, writes=("out.json",)),),
}  # fmt: skip
