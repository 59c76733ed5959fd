"""Runs: started, taken up again, and read."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from audit.protection import Against, in_front, unprotected_by
from dpfedadamw import rundir
from dpfedadamw.api import specs
from dpfedadamw.api.models import load_model, predict
from dpfedadamw.api.options import Callback, Given, Options, Round
from dpfedadamw.api.tables import Table, html_of
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.filing import running
from dpfedadamw.filing.running import Hooks, Watcher
from dpfedadamw.storage.foreign import read_json_lines

if TYPE_CHECKING:
    from torch import nn

    from audit.verdict import Findings
    from dpfedadamw.federation.rounds import RoundResult
    from dpfedadamw.filing.after_training import Finished
    from dpfedadamw.run.evaluation import Evaluation
    from dpfedadamw.run.prediction import Predictions
    from dpfedadamw.run.training import Training
    from dpfedadamw.spec import Spec
    from reports.signatures.verification import VerificationResult

RUNS = Path("runs")


class Run:
    """A run directory: its model, its claim, its verdict, its report.

    Every value is read from the files each time it is asked for.

    Args:
        path: The run's folder, or the link ``runs/latest``.
        model: The module that the run was given, where it was given one: no file can build it.
        allow_code: Modules whose code the run's spec may name; as of `run`.

    Raises:
        DpfedadamwError: If it is no run directory.
    """

    def __init__(
        self,
        path: str | Path,
        model: nn.Module | None = None,
        allow_code: Sequence[str] = (),
    ) -> None:
        self._directory = rundir.open_existing(Path(path))
        self._given, self._allowed = model, tuple(allow_code)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._directory.path

    @property
    def name(self) -> str:
        """The run's identifier: NAME-TIMESTAMP-ID."""
        return self._directory.identifier

    @property
    def claim(self) -> dict[str, Any]:
        """The privacy claim by view, as ``run --json`` prints it: not who took part how often.

        Raises:
            DpfedadamwError: If training is not over.
        """
        from dpfedadamw.filing.after_training import without_participation
        from dpfedadamw.run.journal import Journal

        claim = Journal(self._directory).claim
        if claim is None:
            raise DpfedadamwError(
                f"{self.path}: training has not finished, so there is no claim; finish it with "
                "api.resume(run.path)"
            )
        return without_participation(claim)

    @property
    def epsilon(self) -> float | None:
        """The ε that is claimed, at the δ of the claim; None of a run without privacy.

        At record level, the ε against the server of a client in every round. At client level, the ε
        against a third party, who sees the released models. For a private selection, the ε of
        publishing the best. `claim` has the other views and what they assume.
        """
        from dpfedadamw.accounting.registry import headline

        return headline(self.claim)

    @property
    def delta(self) -> float | None:
        """The δ of the claim; None of a run without privacy."""
        found = self.claim.get("delta")
        return None if found is None else float(found)

    @property
    def metrics(self) -> Table:
        """Public metrics, a row a round, from the untrained model (round 0) on.

        Raises:
            DpfedadamwError: If they cannot be read.
        """
        try:
            return Table(read_json_lines(self._directory.metrics))
        except (OSError, ValueError) as error:
            raise DpfedadamwError(f"{self._directory.metrics}: cannot be read ({error})") from None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the last round that was evaluated, in [0, 1]; None if none was.

        A regression has none; see `measures`.
        """
        found = [row.get("test_accuracy") for row in self.metrics]
        evaluated = [float(value) for value in found if value is not None]
        return evaluated[-1] if evaluated else None

    @property
    def measures(self) -> dict[str, float]:
        """Further measures of the last round that was evaluated, by their keys in `metrics`.

        ``test_rmse``, ``test_mae`` and ``test_r2`` of a regression, ``test_micro_f1`` of several
        labels, ``test_perplexity`` of a language model. Of a classification that is over
        ``test_auc``, ``test_average_precision``, ``test_f1``, ``test_balanced_accuracy``,
        ``test_log_loss`` and ``test_calibration_error``;
        ``test_majority_rate`` wherever there is an accuracy; and metrics of your own by their
        names.
        """
        from dpfedadamw.tasks import MEASURES

        for row in reversed(list(self.metrics)):
            found = {name: float(row[name]) for name in MEASURES if row.get(name) is not None}
            found |= row.get("test_own") or {}
            if found:
                return found
        return {}

    @property
    def verdict(self) -> str:
        """The audit's verdict as it was filed; NOT VERIFIED where none was."""
        from dpfedadamw.filing.after_training import filed_verdict

        return filed_verdict(self._directory)

    @property
    def unprotected_against(self) -> Against | None:
        """Against whom the claim gives no meaningful protection, whatever the verdict.

        "anyone" or "the server" where ε is above 20, else None.
        """
        from dpfedadamw.run.journal import Journal

        return unprotected_by(Journal(self._directory).claim)

    @property
    def model(self) -> nn.Module:
        """The trained model, in evaluation mode, on the CPU.

        Raises:
            DpfedadamwError: If training is not over, or the files do not fit each other.
        """
        return load_model(self.path, self._given, self._allowed)

    def predict(self, rows: Any) -> Predictions:
        """What the model answers to further records, as the function `predict`."""
        return predict(self.path, rows, self._given, self._allowed)

    def resume(self, **options: Unpack[Options]) -> Run:
        """Finish this run if it was cut off, as the function `resume`, whose options it takes."""
        options.setdefault("model", self._given)
        options.setdefault("allow_code", self._allowed)
        return resume(self.path, **options)

    def audit(self) -> Findings:
        """Judge the run's evidence again, check by check; writes nothing.

        ``dpfedadamw audit --write`` files and signs what it finds.

        Raises:
            audit.errors.AuditError: If the run cannot be judged at all.
        """
        from dpfedadamw.filing import after_training, earlier

        earlier.refuse_erased(self._directory)
        return after_training.audit(self._directory)

    def verify(
        self, trainer_key: str | Path | None = None, auditor_key: str | Path | None = None
    ) -> VerificationResult:
        """Check all signatures and files.

        Args:
            trainer_key: The public key that the trainer's signature must be by.
            auditor_key: The same for the auditor. Without them, a signer whose key is not your own
                is unknown.

        Returns:
            Its ``outcome`` is ALL HOLD, SIGNER UNKNOWN or NOT VALID, with ``problems``.

        Raises:
            reports.errors.ReportError: If a key cannot be read.
        """
        from reports.signatures.verification import verify

        trainer, auditor = (
            None if key is None else Path(key) for key in (trainer_key, auditor_key)
        )
        return verify(self.path, trainer, auditor)

    def report(self, audience: str = "internal") -> Path:
        """The report's PDF; one for the public is written and signed when it is first asked for.

        Args:
            audience: "internal", or "public": nothing tells who took part how often.

        Raises:
            reports.errors.ReportError: If it cannot be made.
            DpfedadamwError: If the audience is unknown, or the run is not finished.
        """
        from dpfedadamw.filing import after_training
        from reports.content.parts import INTERNAL, PUBLIC

        if audience not in (INTERNAL, PUBLIC):
            raise DpfedadamwError(f"audience {audience!r}: must be {INTERNAL} or {PUBLIC}")
        if not after_training.is_filed(self._directory):
            raise DpfedadamwError(f"{self.path}: is not finished; api.resume(run.path) does that")
        path = self.path / ("report.pdf" if audience == INTERNAL else f"report-{audience}.pdf")
        if not path.is_file():
            key = after_training.load_key("auditor", None, [])
            with after_training.writing(self._directory):
                path = after_training.file_report(self._directory, None, key, audience).files.pdf
        return path

    def export(
        self, folder: str | Path, licence: str = "unknown", program: bool | None = None
    ) -> Path:
        """Write the model as other tools load it, with a model card; as ``dpfedadamw export``.

        Args:
            folder: A new folder.
            licence: The model's licence, for its card.
            program: Whether the model is written as a program of torch.export too, which torch
                runs without this package; None does so but for models of transformers. Where it
                cannot be, a warning says why.

        Raises:
            DpfedadamwError: If a signature does not hold, or the folder is in use.
        """
        from dpfedadamw.filing.allowed_code import listed
        from dpfedadamw.filing.export import export
        from dpfedadamw.models.own.fitting import handed_over
        from dpfedadamw.models.own.permission import allowing

        code = allowing(self._allowed, listed, [self.path])
        with code, handed_over(self._given):
            written, _ = export(self._directory, Path(folder), licence, program=program)
        if written.no_program:
            warnings.warn(f"{folder}: holds no program, {written.no_program}", stacklevel=2)
        return Path(folder)

    def __repr__(self) -> str:
        return f"<Run {self.name}: {in_front(self.verdict, self.unprotected_against)}>"

    def _repr_html_(self) -> str:
        return html_of((), self._facts())

    def _facts(self) -> list[tuple[str, Any]]:
        """What stands in a notebook: the same as under a run in a terminal, in short."""
        from dpfedadamw.run.journal import Journal

        over = Journal(self._directory).claim is not None
        accuracy = self.accuracy
        rows: list[tuple[str, Any]] = [
            ("run", self.name),
            ("test accuracy", "" if accuracy is None else f"{accuracy:.1%}"),
        ]
        if measures := self.measures:
            rows = [row for row in rows if row[1]]
            rows += [(name.replace("_", " "), f"{value:.4g}") for name, value in measures.items()]
        epsilon = self.epsilon if over else None
        if epsilon is not None:
            from dpfedadamw.accounting.registry import rounded_up

            rows += [("ε", rounded_up(epsilon)), ("δ", self.delta)]
        elif over:
            rows.append(("privacy", "no differential privacy"))
        return [
            *rows,
            ("audit", in_front(self.verdict, self.unprotected_against)),
            ("folder", str(self.path)),
        ]


def run(
    spec: specs.SpecLike,
    *,
    changes: Sequence[str] = (),
    out: str | Path = RUNS,
    replay: int | None = None,
    **options: Unpack[Options],
) -> Run:
    """Train, audit, report and sign, as ``dpfedadamw run``.

    What the audit finds is the run's `verdict`; a run that does not pass is returned all the same.

    Args:
        spec: A YAML file, a shipped spec's name, or what a YAML file would hold.
        changes: Fields to change, ``"federation.rounds=40"`` each.
        out: Folder that holds runs.
        replay: How many participations are computed again at the end, drawn after training, while
            the key of the noise is in memory: a PASS then has level 2 of 4, as ``verify().level``
            says. None: 20, where that takes about a minute at most and is possible. 0: none.
        options: By name, as `Options` describes them: ``model=``, ``loss=``, ``data=``,
            ``person=``, ``algorithm=``, ``device=``, ``engine=``, ``escrow=``, ``callbacks=``,
            ``trackers=``, ``metrics=``, ``trainer_key=``, ``auditor_key=``, ``timestamp=``,
            ``allow_code=``.

    Returns:
        The finished run.

    Raises:
        DpfedadamwError: If the spec is wrong, before anything is written; or if training fails.
        audit.errors.AuditError: If the run cannot be judged.
        reports.errors.ReportError: If a key cannot be read, or a report cannot be made.
    """
    given = Given.of(options)
    from dpfedadamw.experiment import pick_device, prepare
    from dpfedadamw.run.setup import start
    from dpfedadamw.run.start_options import StartOptions

    settings, watcher = given.settings, _Callbacks(tuple(given.callbacks))
    with given.handed_over():
        wanted = given.read(spec, changes)
        _check_replay(replay, wanted)
        running.check_trackers(settings.trackers)
        experiment = prepare(wanted, pick_device(settings.device))
        filing = running.load_filing(settings, watcher)
        kept = StartOptions(escrow=settings.escrow)
        training = start(experiment, Path(out), settings.engine, kept)
        try:
            finished = running.complete(training, filing, settings, replay, watcher)
        except BaseException as error:
            rundir.mark_resumable(error, training.run.path, settings.escrow is not None)
            raise
    return _stamped(finished, Run(training.run.path, given.model, given.allow_code))


def resume(run_dir: str | Path, **options: Unpack[Options]) -> Run:
    """Finish a run that was cut off, wherever that was, as ``dpfedadamw run --resume``.

    A run that is finished is returned as it is.

    Args:
        run_dir: Its folder.
        options: By name, as `Options` describes them. A run that was given a module, records or an
            algorithm needs them again, the module with the weights that it had.

    Raises:
        DpfedadamwError: As `run`; or if somebody else writes to the run, or its files are not what
            it wrote.
    """
    given = Given.of(options)
    settings, watcher = given.settings, _Callbacks(tuple(given.callbacks))
    running.check_trackers(settings.trackers)
    found = rundir.open_existing(Path(run_dir))
    try:
        with given.handed_over(found.path):
            finished = running.resume(found, settings, watcher)
    except BaseException as error:
        rundir.mark_resumable(error, found.path, settings.escrow is not None)
        raise
    return _stamped(finished, Run(found.path, given.model, given.allow_code))


def _check_replay(count: int | None, spec: Spec) -> None:
    """Refuse what cannot be computed again before anything is spent.

    Raises:
        DpfedadamwError: With what would be right.
    """
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise DpfedadamwError(f"replay {count!r}: must be a whole number, 0 or more")
    if count and spec.privacy.unit == "none":
        raise DpfedadamwError(
            f"replay {count}: this spec claims no privacy, so no participation has noise to "
            "recompute; to repeat the whole run use: dpfedadamw replay RUN_DIR"
        )


@dataclass(frozen=True)
class _Callbacks(Watcher):
    """Calls the user's own functions after each round; what else goes on is not shown.

    Attributes:
        called: The functions.
    """

    called: tuple[Callback, ...]

    def note(self, problem: str) -> None:
        """A warning."""
        warnings.warn(problem, stacklevel=5)

    def training(self, training: Training) -> contextlib.AbstractContextManager[Hooks]:
        """Each function gets what is public of a round."""
        rounds = training.experiment.spec.federation.rounds

        def after_round(result: RoundResult, evaluation: Evaluation) -> None:
            seen = Round(
                result.completed,
                rounds,
                evaluation.accuracy,
                evaluation.loss,
                training.epsilon,
                dict(evaluation.measures),
                lambda: _copied(training),
            )
            for callback in self.called:
                callback(seen)

        return contextlib.nullcontext(Hooks(on_round=after_round))


def _copied(training: Training) -> nn.Module:
    """A copy of the model as it is."""
    if training.experiment.spec.tune.selection == "private":
        raise DpfedadamwError(
            "callbacks: a private selection releases its best model alone, and none of a round"
        )
    return copy.deepcopy(training.experiment.model).cpu().eval()


def _stamped(finished: Finished | None, run: Run) -> Run:
    """The run, unless a timestamp that was asked for is missing."""
    if finished is not None and finished.unstamped is not None:
        raise DpfedadamwError(
            f"{finished.unstamped}; everything is signed, but without a timestamp; add one with "
            f"dpfedadamw sign {run.path} --timestamp URL"
        )
    return run
