"""``challenge``: a run's noise and the part to open, chosen by neither trainer nor auditor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import (
    AuditorKeyOption,
    DeviceOption,
    JsonOption,
    SetOption,
    SpecArgument,
    TimestampOption,
    TrainerKeyOption,
)
from dpfedadamw.cli.terminal import err, out, print_json, refuse, status

if TYPE_CHECKING:
    from reports.signatures.challenges import Seen
    from reports.signatures.keyring import SigningKey
    from reports.signatures.keys import Role

EscrowOption = Annotated[
    Path,
    typer.Option(
        "--escrow",
        metavar="FILE",
        help="The run's key. Anyone who has it can subtract all noise.",
        show_default=False,
    ),
]


def _output(name: str, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help=f"Where {what} is written; {name} by default.",
        show_default=False,
    )
    return option


@may_run_named_code
def challenge_intent(
    spec: SpecArgument,
    escrow: EscrowOption,
    changes: SetOption = None,
    output: Annotated[Path, _output("intent.json", "the intent")] = Path("intent.json"),
    trainer_key: TrainerKeyOption = None,
    timestamp: TimestampOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Announce a run (trainer): sign its spec, its data and its keys, before an auditor's nonce.

    Draws the run's secret key into the escrow FILE (a new file, mode 0600) and writes an intent
    that reveals nothing about the key. The intent holds the spec's digest, a salted commitment to
    each client's records, and the root of a tree over one key per client and round. Send the intent
    to the auditor, and keep the escrow file: the run needs it.
    """
    from dpfedadamw import __version__
    from dpfedadamw import spec as specs
    from dpfedadamw.cli import challenge_files
    from dpfedadamw.experiment import pick_device, prepare
    from dpfedadamw.filing import after_training
    from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
    from dpfedadamw.run.start_options import promise
    from dpfedadamw.rundir import new_identifier
    from reports.signatures import challenges
    from reports.signatures.challenges import Promised

    wanted = specs.load(spec, changes or ())
    _refuse_existing(output, escrow)
    with status("reading the data and committing to them", quiet=as_json):
        experiment = prepare(wanted, pick_device(device))
        randomness, created = ReleaseRandomness(), challenges.now()
        found = promise(experiment, randomness)
        key = _key("trainer", trainer_key)
        authority = after_training.authority(timestamp)
        promised = Promised(
            run=new_identifier(experiment.spec.name, created),
            spec_sha256=found.spec_sha256,
            root=found.root,
            rounds=found.rounds,
            clients=found.clients,
            data=found.data,
            handle=challenge_files.data_handle(experiment.dataset.sha256),
        )
        intent = challenges.write_intent(promised, key, __version__, created)
        stamp = authority.stamp(intent) if authority is not None else None
        # An intent whose key is lost is worthless, so the key is written first.
        randomness.write_escrow(escrow)
        challenge_files.write_new(output, intent)
        if stamp is not None:
            challenge_files.write_new(challenge_files.stamp_of(output), stamp)
    if as_json:
        print_json({"run": promised.run, "intent": str(output), "escrow": str(escrow)})
        return
    rows = [
        ("run", promised.run),
        ("intent", f"{output}   send it to the auditor"),
        ("escrow", f"{escrow}   keep it: without it the run cannot start"),
        ("keys", f"{found.rounds} rounds of {found.clients} clients and a server"),
        ("signed by", key.fingerprint),
        ("next, the auditor", f"dpfedadamw challenge new {output}"),
    ]
    out.print(display.facts(rows))


def challenge_new(
    intent: Annotated[Path, typer.Argument(metavar="INTENT", help="The trainer's intent.json.")],
    output: Annotated[Path, _output("challenge.json", "the challenge")] = Path("challenge.json"),
    auditor_key: AuditorKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer an intent (auditor): sign a nonce that the trainer could not know.

    Every random stream of the run follows from the trainer's keys together with this nonce. Each
    intent gets one nonce; asking again returns the same one. Your key folder remembers the intents
    (intents.jsonl). The challenge states how many of this trainer's intents came to nothing, that
    is, led to no run that you opened, recomputed and found to pass.

    A timestamp (intent.json.tsr) and a transparency log's proof (intent.json.tlog) in the intent's
    folder are checked and included.
    """
    from dpfedadamw.cli import challenge_files
    from reports.signatures import challenges, intent_log, transparency
    from reports.signatures.keys import default_directory

    read = challenges.read_intent(challenge_files.read_file(intent), str(intent))
    moment = challenges.now()
    if read.created > moment + challenges.CLOCKS:
        refuse(
            f"{intent}: is dated {read.created:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{moment:%Y-%m-%d %H:%M}; an intent comes before the nonce that answers it"
        )
    stamp = challenge_files.stamp_of(intent)
    stamped = challenge_files.read_file(stamp) if stamp.exists() else None
    if stamped is not None:
        challenge_files.check_stamp(stamped, read.envelope, stamp)
    proof = challenge_files.proof_of(intent)
    proven = challenge_files.read_file(proof) if proof.exists() else None
    if proven is not None:
        transparency.check(proven, read.envelope, (), str(proof))
    _refuse_existing(output)
    key = _key("auditor", auditor_key)
    with intent_log.opened(default_directory()) as log:
        known = log.find(read.sha256)
        given = log.challenge(read)
    answer = challenges.write_challenge(read, given.nonce, given.seen, key, moment, stamped, proven)
    challenge_files.write_new(output, answer)
    if known is not None:
        text = f"note: this intent got its nonce at {known.since}; the challenge repeats it"
        err.print(Text(text, style="yellow"), soft_wrap=True)
    if as_json:
        print_json(
            {
                "run": read.promised.run,
                "challenge": str(output),
                "trainer": read.fingerprint,
                "auditor": key.fingerprint,
                "intents": vars(given.seen),
            }
        )
        return
    rows = [
        ("run", read.promised.run),
        ("challenge", f"{output}   send it to the trainer"),
        ("trainer", read.fingerprint),
        ("signed by", key.fingerprint),
        ("intents", seen_in_words(given.seen)),
        ("next, the trainer", f"dpfedadamw run SPEC --challenge {output} --escrow FILE"),
    ]
    out.print(display.facts(rows))


def challenge_draw(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run's folder.")],
    participations: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=1_000_000,
            help="How many participations (one client in one round) to open.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, _output("draw.json", "the draw")] = Path("draw.json"),
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw what is opened of a finished run (auditor), bound to the ledger that its trainer signed.

    This second nonce and the ledger's digest decide which participations are drawn, without
    replacement. Each run has one draw: asking again returns the same nonce, and a larger N includes
    all that a smaller N does.
    """
    from dpfedadamw.cli import challenge_files
    from dpfedadamw.filing import after_training
    from dpfedadamw.rundir import open_existing
    from reports.signatures import challenges, intent_log
    from reports.signatures.keys import default_directory

    run = open_existing(run_dir)
    finished = challenge_files.finished(run)
    _refuse_existing(output)
    key = _key("auditor", auditor_key)
    authority = after_training.authority(timestamp)
    with intent_log.opened(default_directory()) as log:
        nonce = log.draw(finished.challenge.intent.sha256, finished.ledger_sha256, finished.name)
    count = min(participations, len(finished.participations))
    draw = challenges.write_draw(
        finished.name,
        nonce,
        count,
        finished.ledger_sha256,
        finished.attestation_sha256,
        key,
        challenges.now(),
    )
    stamp = authority.stamp(draw) if authority is not None else None
    challenge_files.write_new(output, draw)
    if stamp is not None:
        challenge_files.write_new(challenge_files.stamp_of(output), stamp)
    drawn = finished.drawn(challenges.read_draw(draw, str(output)))
    if as_json:
        print_json(
            {
                "run": finished.name,
                "draw": str(output),
                "of": len(finished.participations),
                "drawn": [[one.round, one.client] for one in drawn],
            }
        )
        return
    rows = [
        ("run", finished.name),
        ("draw", f"{output}   send it to the trainer"),
        ("drawn", f"{len(drawn)} of {len(finished.participations)} participations"),
        ("signed by", key.fingerprint),
        (
            "next, the trainer",
            f"dpfedadamw challenge open RUN_DIR --draw {output} --escrow FILE",
        ),
    ]
    out.print(display.facts(rows))


def challenge_open(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run's folder.")],
    draw: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The auditor's draw.json.", show_default=False),
    ],
    escrow: EscrowOption,
    output: Annotated[Path, _output("openings.json", "what is opened")] = Path("openings.json"),
    as_json: JsonOption = False,
) -> None:
    """Open what was drawn (trainer): the keys of these participations, and of no others.

    Anyone who reads the openings and the evidence learns the clean sums of the opened
    participations. Openings are therefore for the auditor alone, and never part of a run directory
    or a bundle. The rest of the run's noise stays secret.
    """
    from dpfedadamw.cli import challenge_files
    from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
    from dpfedadamw.rundir import open_existing
    from reports.signatures import challenges

    run = open_existing(run_dir)
    finished = challenge_files.finished(run)
    read = challenges.read_draw(challenge_files.read_file(draw), str(draw))
    drawn = finished.drawn(read)
    if read.fingerprint != finished.challenge.fingerprint:
        refuse(
            f"{draw}: is signed by {read.fingerprint}, but the run was challenged by "
            f"{finished.challenge.fingerprint}; open nothing for anyone else"
        )
    _refuse_existing(output)
    randomness = ReleaseRandomness.from_escrow(escrow)
    content = challenge_files.openings(finished, read, drawn, randomness, escrow)
    challenge_files.write_new(output, content, private=True)
    if as_json:
        print_json({"run": finished.name, "openings": str(output), "opened": len(drawn)})
        return
    rows = [
        ("run", finished.name),
        ("openings", f"{output}   private: for the auditor only"),
        ("opened", f"{len(drawn)} of {len(finished.participations)} participations"),
        ("asked for by", read.fingerprint),
    ]
    out.print(display.facts(rows))
    text = "its reader learns the clean sums of the participations that are opened"
    err.print(Text(text, style="yellow"), soft_wrap=True)


def seen_in_words(seen: Seen) -> str:
    """How many intents were seen, in words."""
    if seen.for_data == 1:
        text = "the first for these data"
    else:
        text = f"number {seen.for_data} for these data, {seen.dropped} of which came to nothing"
    if seen.of_trainer > seen.for_data:
        in_all = seen.dropped_of_trainer
        text += f" (number {seen.of_trainer} of this trainer, {in_all} of which came to nothing)"
    return text


def _key(role: Role, named: str | None) -> SigningKey:
    """The key that signs; printed if it was made just now."""
    from dpfedadamw.filing import after_training

    made: list[Path] = []
    key = after_training.load_key(role, named, made)
    for path in made:
        err.print(Text(f"made a signing key: {path}", style="dim"), soft_wrap=True)
    return key


def _refuse_existing(*paths: Path) -> None:
    """Refuse names that are taken, before anything is drawn."""
    for path in paths:
        if path.exists() or path.is_symlink():
            refuse(f"{path}: exists and is never overwritten; choose another name")


app = typer.Typer(
    help="Let trainer and auditor fix a run's noise, and the part to open, so that neither can "
    "choose it.\n\nIn this order: intent (trainer), new (auditor), dpfedadamw run SPEC --challenge "
    "FILE --escrow FILE (trainer), draw (auditor), open (trainer).",
    no_args_is_help=True,
)
app.command("intent")(challenge_intent)
app.command("new")(challenge_new)
app.command("draw")(challenge_draw)
app.command("open")(challenge_open)
