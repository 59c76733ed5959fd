"""What a run is given from Python in addition to its spec: a module, records, callbacks, keys.

`Options` documents them; `Given` holds them with their defaults and lets a spec name them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from dpfedadamw.api import specs
from dpfedadamw.errors import DpfedadamwError

if TYPE_CHECKING:
    from torch import nn

    from dpfedadamw.algorithms.registry import AlgorithmEntry
    from dpfedadamw.filing.running import Settings
    from dpfedadamw.measures import Metric
    from dpfedadamw.models.own.fitting import Loss
    from dpfedadamw.spec import Spec

# What a spec says of its model where it is handed over.
HANDED_OVER = "model={name: module}"
DATA_HANDED_OVER = "data.dataset=given"
PEOPLE_HANDED_OVER = "data.person=person"


@dataclass(frozen=True)
class Round:
    """What a callback learns of a round: public values alone.

    Attributes:
        completed: Rounds completed.
        rounds: Rounds of the whole run.
        accuracy: Test accuracy, in [0, 1]; None where the round was not evaluated.
        loss: Test loss; None likewise.
        epsilon: ε of the rounds so far, of a client in every round at record level, and against a
            third party at client level; None without privacy, and of a trial of a private
            selection.
        measures: Further measures of the task, such as "rmse" of a regression.
        model: Called, a copy of the model after the round, in evaluation mode, on the CPU. Claims
            against a third party count the models of all rounds as seen. A trial of a private
            selection releases none, and raises a `DpfedadamwError`.
    """

    completed: int
    rounds: int
    accuracy: float | None
    loss: float | None
    epsilon: float | None
    measures: Mapping[str, float]
    model: Callable[[], nn.Module] = field(repr=False, compare=False)


Callback = Callable[[Round], None]


class Options(TypedDict, total=False):
    """What `run` and `resume` take alike; a run that was given something needs it again.

    Attributes:
        model: A module of your own. It takes the place of the model of a file or a shipped spec; a
            dictionary leaves ``model`` out, or has the keys of ``{"name": "module"}``. A copy of it
            is trained, from the weights that it has, which must not depend on private records.
        loss: What the module is trained by: outputs and labels (of classes [b, classes] and [b],
            of other tasks as ``docs/models.md`` says) to one loss a record, [b]; the task's own by
            default.
        data: Records that Python holds already: a frame of pandas, polars, pyarrow or Hugging
            Face, a pair (records, labels) of arrays, a data set of pairs as torch's, or a
            dictionary with "train" and "test" of these. The spec's ``data`` says what columns mean.
        person: Whom each of these records is about, in their order, as ``data.person`` says of a
            frame's column; a dictionary with "train" and "test" where ``data`` is one. Names and
            numbers stay in this process.
        algorithm: An `AlgorithmEntry` of your own. Where the spec does not name it, it takes the
            place of the spec's algorithm, with its own defaults. It is in this process alone.
        device: "auto" (the default), "cpu", "cuda" or "mps".
        engine: How clipped sums are computed: "auto" (the default), "book-keeping", "opacus",
            "vmap" or "loop".
        escrow: A file for the noise key, new for a new run; anyone who has it can subtract all
            noise.
        callbacks: Called after each round with a `Round`. What one raises ends the run, which
            `resume` takes up again.
        trackers: Trackers that get the public part of the run: "tensorboard", "mlflow", "wandb"
            (offline), or others that are installed. They write to ``tracking`` in the folder of the
            runs.
        metrics: Metrics of your own by name, each a function of what the finished model answered to
            the test records, before any softmax, and of their targets, two arrays, that returns a
            number. They are published, so the test records must be: `evaluation.public_test`.
        trainer_key: Private key that signs what was run; your own by default, made on first use.
        auditor_key: The same for what was found.
        timestamp: Address of a time-stamping authority (RFC 3161).
        allow_code: Python modules, ``["nets"]``, whose code the spec may name by ``model.target``
            and ``model.loss``, with all modules below them. Code of no other module is imported,
            except of those in the file ``allow-code`` in your key folder.
    """

    model: nn.Module | None
    loss: Loss | None
    data: Any
    person: Any
    algorithm: AlgorithmEntry[Any] | None
    device: str
    engine: str
    escrow: str | Path | None
    callbacks: Iterable[Callback]
    trackers: Sequence[str]
    metrics: Mapping[str, Metric] | None
    trainer_key: str | Path | None
    auditor_key: str | Path | None
    timestamp: str | None
    allow_code: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Given:
    """The same with its defaults."""

    model: nn.Module | None = None
    loss: Loss | None = None
    data: Any = None
    person: Any = None
    algorithm: AlgorithmEntry[Any] | None = None
    device: str = "auto"
    engine: str = "auto"
    escrow: str | Path | None = None
    callbacks: Iterable[Callback] = ()
    trackers: Sequence[str] = ()
    metrics: Mapping[str, Metric] | None = None
    trainer_key: str | Path | None = None
    auditor_key: str | Path | None = None
    timestamp: str | None = None
    allow_code: Sequence[str] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Given:
        """What was given by name.

        Raises:
            TypeError: If there is no such name.
        """
        known = [one.name for one in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(f"no option {name!r}; there are {', '.join(known)}")
        return cls(**options)

    @property
    def settings(self) -> Settings:
        """What a run is computed and signed with, as the command line gives it too."""
        from dpfedadamw.filing.running import Settings

        return Settings(
            device=self.device,
            engine=self.engine,
            escrow=None if self.escrow is None else Path(self.escrow),
            trackers=self.trackers,
            trainer_key=self.trainer_key,
            auditor_key=self.auditor_key,
            timestamp=self.timestamp,
        )

    @contextlib.contextmanager
    def handed_over(self, *run: Path) -> Iterator[None]:
        """Let a spec mean what was handed over and allowed, for as long as this lasts.

        Args:
            run: The folder of the run, where there is one: none of its files is imported.
        """
        from dpfedadamw.algorithms.registry import ALGORITHMS
        from dpfedadamw.data.handed_over import handed_over as holding
        from dpfedadamw.filing.allowed_code import listed
        from dpfedadamw.measures import handed_over as measuring
        from dpfedadamw.models.own.fitting import handed_over
        from dpfedadamw.models.own.permission import allowing

        module = handed_over(self.model, self.loss)
        code = allowing(self.allow_code, listed, run)
        data, metrics = holding(self.data, self.person), measuring(self.metrics)
        with code, module, data, metrics, ALGORITHMS.lent(self.algorithm):
            yield

    def read(self, spec: specs.SpecLike, changes: Sequence[str]) -> Spec:
        """The spec, with what was handed over in the place of what it names."""
        handed = changes_by_objects(spec, self.model, self.loss, self.data, self.person, changes)
        first = [*handed, *self._named_metrics()]
        if self.algorithm is None:
            return specs.read(spec, [*first, *changes])
        name = self.algorithm.name
        named = specs.named(spec, [*first, *changes], "algorithm") == name
        instead = [] if named else [f"algorithm={{name: {name}}}"]
        wanted = specs.read(spec, [*first, *instead, *changes])
        if wanted.algorithm.name != name:
            raise DpfedadamwError(
                f"algorithm: {name} was passed from Python, but changes name "
                f"{wanted.algorithm.name}; leave one of them out"
            )
        if wanted.federation.workers != 1 or wanted.federation.engine == "flower":
            raise DpfedadamwError(
                f"algorithm: {name} was passed from Python and exists in this process only; use "
                "federation.workers 1 and engine inline, or register it by an entry point"
            )
        return wanted

    def _named_metrics(self) -> list[str]:
        if not self.metrics:
            return []
        from dpfedadamw.measures import check_names

        check_names(self.metrics)
        return [f"evaluation.metrics=[{', '.join(self.metrics)}]"]


def changes_by_objects(
    spec: specs.SpecLike,
    model: nn.Module | None,
    loss: Loss | None,
    data: Any,
    person: Any = None,
    changes: Sequence[str] = (),
) -> list[str]:
    """What a spec says of a module and of records that are handed over, as changes of it.

    They come before the changes that were asked for.

    Raises:
        DpfedadamwError: If a loss is given without a module, people without records, or a
            dictionary names another model.
    """
    if person is not None and data is None:
        raise DpfedadamwError(
            "person: belongs to records passed from Python, data=…; for a table, name the column "
            "in data.person"
        )
    if loss is not None and model is None:
        raise DpfedadamwError(
            "loss: belongs to a module, model=net; with a spec's model.target, set model.loss: "
            "package.module:function"
        )
    records = [DATA_HANDED_OVER] if data is not None else []
    records += [PEOPLE_HANDED_OVER] if person is not None else []
    if model is None:
        return records
    if isinstance(spec, Mapping):
        named = spec.get("model", {"name": "module"})
        if not isinstance(named, Mapping) or named.get("name") != "module":
            raise DpfedadamwError(
                "model: the spec has a model, and model= gives another; leave spec['model'] out, "
                "or give {'name': 'module'} with its other keys"
            )
        return [*([] if "model" in spec else [HANDED_OVER]), *records]
    whole = specs.named(spec, [*records, *changes], "model") == "module"
    return [*([] if whole else [HANDED_OVER]), *records]
