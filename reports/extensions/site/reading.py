"""Each run of a folder as a page for everybody may show it.

Everything comes from what public reports are made of, so that nothing depends on who took part how
often. What was never published is left out: trials of a private selection, whose ε holds only if
nobody sees them. Audit runs with planted canaries are counted, and no more. A run's own files are
copied only where its signatures hold by keys that are known here: a stranger's report could hold
anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reports import formatting
from reports.content import assurance, findings, guarantee, outcomes, tuning
from reports.content.parts import PUBLIC
from reports.content.units.person import at_clients
from reports.errors import ReportError, SourceError
from reports.extensions.site import Auditor, LevelValue, SignatureState, SiteRun
from reports.files import clean, integer, mapping, parse_json, read_bytes
from reports.signatures import signing
from reports.signatures.copies import files_for
from reports.signatures.verification import Outcome, verify_and_read
from reports.source import RunSource, load

_MARK = "ledger.jsonl"
# What a private selection keeps to itself until it is over (`docs/sweeps.md`).
_SECRET = "trials"
_DEPTH = 6
_FEW = 4
_STATES: dict[Outcome, SignatureState] = {
    Outcome.ALL_HOLD: "hold",
    Outcome.SIGNER_UNKNOWN: "signer unknown",
    Outcome.NOT_VALID: "broken",
}


@dataclass(frozen=True)
class Keys:
    """Whose signatures the reader trusts, besides the keys of its own key folder.

    Attributes:
        trainer: Public key of the trainer, or None.
        auditor: Public key of the auditor, or None.
    """

    trainer: Path | None = None
    auditor: Path | None = None


@dataclass(frozen=True)
class SeenRun:
    """One run, and what the site keeps of it.

    Attributes:
        path: The run directory.
        row: What everybody may see. Its data set has no letter yet, and no files are named.
        finished: Whether it claims something; without, it is counted and not shown.
        planted: Whether canaries are planted in it, for an audit; then it is not shown either.
        same_data: What runs on the same data have in common. Not public: it would confirm a guess
            at the data.
        public: Names of the files that may be copied.
    """

    path: Path
    row: SiteRun
    finished: bool
    same_data: str
    public: tuple[str, ...]
    planted: bool = False


def run_folders(folder: Path) -> list[Path]:
    """Return the run directories in a folder or below it, sorted; no link is followed.

    Raises:
        SourceError: There is no such folder, or no run in it.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder; give one that holds runs")
    found = sorted(_below(folder.resolve(), 0))
    if not found:
        raise SourceError(f"{folder}: holds no run; give a folder of runs, such as runs")
    return found


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / _MARK).is_file():
        yield folder
        return
    if depth > _DEPTH or folder.name == _SECRET:
        return
    try:
        inner = [
            Path(entry)
            for entry in os.scandir(folder)
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        ]
    except OSError as error:
        raise SourceError(f"{folder}: cannot be read ({error.strerror})") from error
    for one in inner:
        yield from _below(one, depth + 1)


def read_all(paths: Sequence[Path], keys: Keys) -> list[SeenRun]:
    """Read runs, several at a time where there are several processors.

    Args:
        paths: Run directories. One that was copied counts once.
        keys: Whose signatures are trusted.

    Returns:
        The newest first, with the letters of their data sets.

    Raises:
        ReportError: Runs cannot be read, a line each: what is left out would be missing in sums.
    """
    workers = min(os.cpu_count() or 1, len(paths) // _FEW)
    if workers > 1:
        with ProcessPoolExecutor(workers) as pool:
            tried = list(pool.map(_try, paths, [keys] * len(paths), chunksize=_FEW))
    else:
        tried = [_try(path, keys) for path in paths]
    wrong = [one for one in tried if isinstance(one, str)]
    if wrong:
        raise ReportError("\n".join(wrong))
    once: dict[tuple[str, str], SeenRun] = {}
    for one in tried:
        if isinstance(one, SeenRun):
            once.setdefault((one.row.run, one.row.model_dump_json()), one)
    ordered = sorted(once.values(), key=lambda one: (one.row.created, one.row.run), reverse=True)
    return _lettered(ordered)


def _try(path: Path, keys: Keys) -> SeenRun | str | None:
    """Read a run; return a line where it cannot be read, None where it is not for others."""
    try:
        return read(path, keys)
    except ReportError as error:
        reason = str(error).removeprefix(f"{path}: ").replace(f" in {path}", "")
        return f"{clean(str(path), 400)}: {reason}"


def read(path: Path, keys: Keys) -> SeenRun | None:
    """Read one run; None where nothing of it is for others.

    Raises:
        ReportError: It cannot be read.
    """
    state, level, source = _signatures(path, keys)
    if source is None:
        source = load(path)
    if tuning.is_selected(source) and _SECRET in path.parts:
        return None
    planted = bool(source.header.get("canaries"))
    views = {view.key: view for view in guarantee.views(source, PUBLIC)}
    third = views.get("third_party")
    server = views.get("server_worst_case")
    utility = outcomes.utility(source, PUBLIC)
    ended = utility.final_round == source.rounds_completed
    spec = source.spec
    return SeenRun(
        path,
        SiteRun(
            run=source.run,
            name=clean(spec.get("name"), 300) or "unnamed",
            algorithm=clean(mapping(spec.get("algorithm")).get("name"), 100) or "unknown",
            created=clean(source.header.get("created"), 40),
            data="",
            dataset=clean(mapping(spec.get("data")).get("dataset"), 200) or "unknown",
            unit=clean(source.header.get("unit"), 40) or "none",
            adjacency=_adjacency(source),
            epsilon=third.epsilon if third else None,
            delta=third.delta if third else None,
            epsilon_server=server.epsilon if server else None,
            accuracy=utility.final_accuracy if ended else None,
            audit=findings.verdict(source, PUBLIC).value,
            unprotected_against=findings.against(source, PUBLIC),
            level=level,
            recomputed=assurance.facts_of(source).participations if (level or 0) > 1 else None,
            auditor=_auditor(path, source, state),
            signatures=state,
            reservations=tuple(_reservations(source)),
            files=(),
        ),
        finished=bool(source.claim),
        same_data=clean(source.header.get("data_sha256"), 200),
        public=_public(path) if state == "hold" and not planted else (),
        planted=planted,
    )


def _signatures(
    path: Path, keys: Keys
) -> tuple[SignatureState, LevelValue | None, RunSource | None]:
    """Check a run's signatures; return the level that follows, and the run where that read it."""
    envelopes = (signing.TRAINING_ENVELOPE, signing.RUN_ENVELOPE)
    if not any((path / name).exists() for name in envelopes):
        return "unsigned", None, None
    result, source = verify_and_read(path, keys.trainer, keys.auditor)
    state = _STATES[result.outcome]
    # By unknown keys anybody can sign any findings.
    level: Any = result.level if state == "hold" else None
    return state, level, source


def _auditor(path: Path, source: RunSource, state: SignatureState) -> Auditor:
    """Return who audited, as far as a signed report says it and `verify` held it to that."""
    if source.audit is None:
        return "nobody"
    if state in ("hold", "signer unknown"):
        for name in ("report-public.json", "report.json"):
            if (path / name).is_file():
                stated = mapping(mapping(parse_json(read_bytes(path / name), name)).get("trust"))
                return "another key" if stated.get("auditor") == "another key" else "trainer"
    return "trainer"


def _adjacency(source: RunSource) -> str:
    """Return which data sets are neighbours, with at how many clients a person may be."""
    if not source.private:
        return ""
    found, several = guarantee.adjacency(source), integer(source.header.get("clients_per_person"))
    if source.header.get("unit") == "person" and several not in (None, 1):
        # A claim for people at fewer clients says nothing of them.
        return f"{found}, at {at_clients(source)}"
    return found


def _reservations(source: RunSource) -> Iterator[str]:
    """Say what a table of numbers alone would hide."""
    if not source.private:
        return
    if source.header.get("randomness") == "reproducible":
        yield "no protection from anyone who knows the seed"
    if tuning.is_selected(source):
        yield "best of a random number of trials, which its ε covers"
    if tuning.selection(source) == "unaccounted":
        yield "settings chosen by looking at the private records, which no ε covers"
    against = {view.key: view.epsilon for view in guarantee.views(source, PUBLIC)}
    if source.claim and against.get("third_party") is None:
        yield "no ε against a third party is claimed"


def _public(path: Path) -> tuple[str, ...]:
    """Return the public files, none where no public report was signed."""
    if not (path / signing.PUBLIC_ENVELOPE).is_file():
        return ()
    return files_for(path, "public")


def _lettered(runs: Iterable[SeenRun]) -> list[SeenRun]:
    """Give each data set a letter, in the order of the page.

    The letter stands for equal digests, which stay here; without a digest, for the same name.
    """
    letters: dict[str, str] = {}
    found = []
    for one in runs:
        same = one.same_data or f"name {one.row.dataset}"
        letter = letters.setdefault(same, formatting.letters(len(letters)))
        found.append(replace(one, row=one.row.model_copy(update={"data": letter})))
    return found
