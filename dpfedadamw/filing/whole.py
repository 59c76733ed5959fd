"""A run from its first round to its signed report, without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpfedadamw.errors import FilingError
from dpfedadamw.filing import after_training
from dpfedadamw.filing.after_training import Filing, Trained
from dpfedadamw.filing.erasure import refuse_erased
from dpfedadamw.run.journal import Journal
from dpfedadamw.storage.lock import RunLock

if TYPE_CHECKING:
    from audit.reexecution import Replay
    from dpfedadamw.federation.rounds import RoundResult
    from dpfedadamw.run.evaluation import Evaluation
    from dpfedadamw.run.training import Training
    from dpfedadamw.rundir import RunDirectory


class ChangedSinceTrainingError(FilingError):
    """A file of a run was changed since it was trained, so nothing of it is signed anew."""


Stage = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Finished:
    """What a run came to once all that follows training was done.

    Attributes:
        summary: What may be told of it wherever output is kept: what ``run --json`` prints.
        findings: The audit's, as audit.json has them.
        unstamped: Why there is no timestamp although one was asked for, or None.
    """

    summary: dict[str, Any]
    findings: dict[str, Any]
    unstamped: str | None


def train(
    training: Training,
    on_round: Callable[[RoundResult, Evaluation], None] | None = None,
    on_probe: Callable[[], None] | None = None,
    on_client: Callable[[int, int], None] | None = None,
) -> Trained:
    """Run the rounds that are left, and record the probe before the claim.

    Args:
        training: A run that was started or taken up again.
        on_round: Called after each round.
        on_probe: Called before the private step is probed.
        on_client: Called after each client with (done, of the round).

    Raises:
        DpfedadamwError: As `dpfedadamw.run.training.train`.
    """
    from dpfedadamw.run import training as engine
    from dpfedadamw.run.training import probe_of

    def probed(training: Training) -> None:
        if on_probe is not None:
            on_probe()
        after_training.record_probe(training.run, probe_of(training))

    outcome = engine.train(training, on_round, on_client, before_claim=probed)
    return Trained(
        training.run,
        outcome.claim,
        outcome.accuracy,
        outcome.loss,
        outcome.engine,
        {f"test_{name}": value for name, value in outcome.measures.items()},
        outcome.own,
    )


def resume(
    run: RunDirectory,
    train_the_rest: Callable[[RunLock], Trained],
    filing: Callable[[], Filing],
    stage: Stage | None = None,
) -> Finished | None:
    """Finish a run that was cut off, wherever that was; hold it for as long as that takes.

    Args:
        run: Its directory.
        train_the_rest: Trains what is left under the lock, where the claim is not there yet.
        filing: Loads what it is signed with: before training, and only if something is left to do.
        stage: As of `finish`.

    Returns:
        What it came to; None where nothing was left to do.

    Raises:
        ChangedSinceTrainingError: If a file was changed since training; nothing is signed anew.
        DpfedadamwError: As `finish`; or if somebody else writes to the run, or it was erased.
    """
    refuse_erased(run)
    with RunLock(run.path) as lock:
        trained = after_training.trained(run)
        if trained is None:
            signed_with = filing()
            trained = train_the_rest(lock)
        else:
            if after_training.is_filed(run) and not lock.cut_off:
                problems = after_training.problems(run)
                changed = after_training.changed_since_training(problems)
                if changed is not None:
                    raise ChangedSinceTrainingError(f"{changed}; nothing was signed anew")
                if not problems:
                    return None
            signed_with = filing()
        return finish(trained, signed_with, stage or _unseen)


def _unseen(_what: str) -> AbstractContextManager[None]:
    return nullcontext()


def finish(
    trained: Trained, filing: Filing, stage: Stage = _unseen, replay: Replay | None = None
) -> Finished:
    """Attest, audit, report and sign; all of it can be done again.

    Args:
        trained: What training came to.
        filing: What it is signed with.
        stage: Surrounds each stage, whose name it is given.
        replay: Participations to be computed again for the audit; None for none.

    Raises:
        reports.errors.ReportError: If a report cannot be made or signed.
        audit.errors.AuditError: If it is no run directory that can be judged.
    """
    run = trained.run
    with stage("auditing"):
        # Signed once, right after training: what was changed since must not be signed anew.
        attested = after_training.is_attested(run)
        unstamped = after_training.stamped(
            lambda by: (
                after_training.stamp_training(run, by)
                if attested
                else after_training.attest_training(run, filing.signers, by)
            ),
            filing.authority,
        )
        findings = after_training.audit(run, replay=replay)
    with stage("writing and signing the report"):
        filed = after_training.file_report(
            run,
            findings,
            filing.signers.auditor,
            authority=None if unstamped else filing.authority,
            one_hand=True,
        )
    found = findings.to_json()
    # What weights that are no numbers score is that of a class by chance, and of no model.
    diverged = "diverged" in trained.claim
    summary = {
        "run": run.identifier,
        "directory": str(run.path),
        "test_accuracy": None if diverged else trained.accuracy,
        "test_loss": None if diverged else trained.loss,
        **({} if diverged else trained.measures),
        **({"test_own": dict(trained.own)} if trained.own and not diverged else {}),
        "privacy": without_participation(trained.claim),
        "verdict": found["verdict"],
        "level": findings.level,
        "qualifications": found["qualifications"],
        "engine": trained.engine,
    }
    return Finished(summary, found, unstamped or filed.unstamped)


def divergence_of(run: RunDirectory) -> str | None:
    """What is said of a run whose training diverged, one line; None of any other.

    Raises:
        DpfedadamwError: If its ledger cannot be read.
    """
    journal = Journal(run)
    ended = (journal.claim or {}).get("diverged")
    if ended is None:
        return None
    charged = ", and nothing was charged after it" if journal.header["unit"] != "none" else ""
    return (
        f"training diverged: after round {ended['rounds']} of {journal.header['rounds']} the model "
        f"held numbers that are not finite, so that it ended there{charged}; there is no model to "
        "use. Try a lower algorithm.learning_rate"
    )


def without_participation(claim: Mapping[str, Any]) -> dict[str, Any]:
    """The claim without who took part how often, because what is printed ends up in logs."""
    shown = {key: value for key, value in claim.items() if key != "profile"}
    if "server" in shown:
        shown["server"] = {key: value for key, value in shown["server"].items() if key != "clients"}
    if "tuning" in shown:
        # That of all trials together tells how many there were.
        shown["tuning"] = {"one_trial": shown["tuning"]["one_trial"]}
    return shown
