"""The product with one step taken out or moved, each of which the simulator must notice."""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dpfedadamw import rundir
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.run import setup, training
from dpfedadamw.run.journal import Journal
from dpfedadamw.storage import disk
from dpfedadamw.storage.lock import RunLock


@dataclass(frozen=True)
class Mutation:
    """One change to the product's source.

    Attributes:
        name: What is wrong then.
        function: Where.
        before: Source that is there once, without its common indentation.
        after: What is there instead.
        seed: The schedule to begin with, so that rare circumstances take no time in tests.
    """

    name: str
    function: Callable[..., Any]
    before: str
    after: str = "pass"
    seed: int = 0


def applied(mutation: Mutation) -> contextlib.AbstractContextManager[None]:
    """Let the product be wrong until the end of the block."""
    return _applied(inspect.unwrap(mutation.function), mutation)


@contextlib.contextmanager
def _applied(function: Any, mutation: Mutation) -> Iterator[None]:
    source = textwrap.dedent(inspect.getsource(function))
    source = source[source.index("def ") :]
    assert source.count(mutation.before) == 1, f"{mutation.name}: the product has changed"
    found: dict[str, Any] = {}
    code = source.replace(mutation.before, mutation.after)
    exec(compile(code, mutation.name, "exec", dont_inherit=True), function.__globals__, found)
    right, function.__code__ = function.__code__, found[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right


MUTATIONS = (
    Mutation("a file's content is not synced", disk.write_atomically, "disk.sync(file)"),
    Mutation("a file's name is not synced", disk.write_atomically, "disk.sync_folder(path.parent)"),
    Mutation("an append is not synced", disk.append, "disk.sync(file)"),
    Mutation(
        "an append goes wherever the end is", disk.append, "content, end)", "content, offset=None)"
    ),
    Mutation(
        "a run's name is not synced",
        rundir.starting,
        "disk.sync_folder(parent)",
    ),
    Mutation("runs' folder is not synced", disk.make_folders, "disk.sync_folder(folder.parent)"),
    Mutation(
        "a run appears before its first files",
        rundir.starting,
        "yield hidden, lock\n",
        "disk.rename(hidden.path, appeared(hidden).path)\n"
        "        disk.rename(appeared(hidden).path, hidden.path)\n"
        "        yield hidden, lock\n",
    ),
    Mutation(
        "noise is drawn before it is paid for",
        Federation._round,
        "    self.charge(self.unit.charges(current))\n",
        "",
    ),
    Mutation(
        "what is paid is noted before the ledger is synced",
        Journal.charge,
        "self.ledger.append_all(kind, spends)\n",
        "import json\n"
        "    size = self.ledger.size + 300 * len(spends)\n"
        "    append(_paid(self._run), _record(size), self._paid_size, self._disk)\n"
        "    self.ledger.append_all(kind, spends)\n",
    ),
    Mutation(
        "a round is over before its state is written",
        Journal.complete,
        "write_atomically(self._state(completed), state, PRIVATE_MODE, self._disk)\n",
        'early = {**entry, "state_sha256": hashlib.sha256(state).hexdigest()}\n'
        '    self.ledger.append("round", early)\n'
        "    write_atomically(self._state(completed), state, PRIVATE_MODE, self._disk)\n"
        "    return\n",
    ),
    Mutation(
        "a round is over before its evidence is safe",
        Journal.complete,
        "self._disk.sync_folder(self._run.evidence)",
    ),
    Mutation(
        "only the last state is kept, and removed too early",
        Journal.complete,
        'self.ledger.append("round", {**entry, "state_sha256": digest})\n',
        "for number in self._states():\n"
        "        if number != completed:\n"
        "            self._disk.remove(self._state(number))\n"
        '    self.ledger.append("round", {**entry, "state_sha256": digest})\n',
        seed=800,
    ),
    Mutation(
        "the claim is made before its evidence is safe",
        Journal.close,
        "self._disk.sync_folder(self._run.evidence)",
    ),
    Mutation(
        "the checkpoint goes before the claim is made",
        Journal.close,
        'self.ledger.append("claim", claim)\n    self.tidy()',
        'self.tidy()\n    self.ledger.append("claim", claim)',
    ),
    Mutation(
        "the claim is made before the model is written",
        training._train,
        "checkpoints.write_weights(run.weights, experiment.model)\n",
        "close_claim(training)\n    checkpoints.write_weights(run.weights, experiment.model)\n",
    ),
    Mutation(
        "any state is gone on from",
        Journal._last_good_state,
        "hashlib.sha256(state).hexdigest() == digests.get(completed)",
        "True",
        seed=9200,
    ),
    Mutation(
        "the ledger's chain is not looked at",
        Ledger._entry,
        'entry["previous"] == self._previous\n            and ',
        "",
        seed=560,
    ),
    Mutation(
        "torn lines are left in the ledger",
        Ledger._recover,
        "self._disk.cut(self._path, self.size)",
        "self.size = len(content)",
    ),
    Mutation(
        "a ledger that lost its end is gone on from",
        Ledger._recover,
        "if synced is not None and self.size < synced:",
        "if False:",
        seed=1700,
    ),
    Mutation(
        "a claim in memory alone is believed", Ledger._recover, "settle(self._path, self._disk)"
    ),
    Mutation("names in memory alone are believed", Journal.recover, "self._settle()"),
    Mutation(
        "later evidence is not forgotten",
        Journal.recover,
        "self._forget_evidence(found.completed)",
    ),
    Mutation(
        "later metrics are not forgotten", Journal.recover, "self._forget_metrics(found.completed)"
    ),
    Mutation(
        "missing metrics are not made again",
        Journal.lacks_metrics,
        "return not lines or _round_of(lines[-1]) != completed",
        "return False",
    ),
    Mutation(
        "a repeated round keeps its attempt's number",
        Federation._choose,
        "attempt = 1 + self._charged_rounds.attempts(index)",
        "attempt = 1",
    ),
    Mutation(
        "a resumed run goes back by a round too many",
        setup._recovered,
        "found = journal.recover()\n",
        "found = journal.recover()\n"
        "    if found.completed:\n"
        "        found = type(found)(found.completed - 1, found.state)\n",
    ),
    Mutation("nobody locks", RunLock._lock, "self._disk.lock(file)"),
    Mutation(
        "a lock that was removed meanwhile is held",
        RunLock._lock,
        "return self._disk.is_named(file)",
        "return True",
        seed=2750,
    ),
    Mutation(
        "a lock of another is removed",
        RunLock._let_go,
        "if self._disk.is_named(file):",
        "if True:",
        seed=2950,
    ),
    Mutation(
        "a start that is swept up by another gives up",
        rundir._hidden,
        "if not swept or attempt == _ATTEMPTS:",
        "if True:",
    ),
)
