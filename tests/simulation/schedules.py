"""One schedule: a run that is cut off again and again by chance, and what must hold all the while.

A schedule is drawn from its seed alone, so that a number shows a failure again. What must hold:

* before noise is drawn, its spend is on the disk, where no crash can take it;
* no stream gives noise to two different things;
* no two spends have the same round, client and attempt: what sums by them would count too little;
* when the ledger says that a round is over, its evidence and state are on the disk; before the
  claim, all evidence and the model are;
* a run that is resumed once more, without a crash, ends with a claim that counts every spend, with
  each round once in its metrics, and a model that follows from its rounds; in reproducible mode it
  is the model of a run that was never cut off;
* nobody is refused, but where another process holds the run.

Where the disk loses or changes what was safe, which no order of steps can mend, a refusal is right
too; going on from what is not the run's own is not.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.evidence.states import state_file
from dpfedadamw.rundir import RunDirectoryError
from dpfedadamw.storage.lock import LockedError
from tests.simulation import trainer
from tests.simulation.machine import FAILED, KILLED, POWER, REPEATED, Killed, Machine, Process
from tests.simulation.storage import File, Folder, Storage
from tests.simulation.trainer import PARENT, Draw, Toy, World

EVENTS = (KILLED, KILLED, POWER, POWER, POWER, POWER, FAILED, REPEATED)
# Steps of a run of one round and of each further one, about.
_FIRST_STEPS, _ROUND_STEPS = 75, 25
_ZERO = bytes(16)
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
# Shares of schedules in which processes run at once, and in which the disk damages what was safe.
_TOGETHER, _DAMAGED = 0.12, 0.12


class ViolationError(Exception):
    """Something that must hold does not."""


@dataclass
class Watcher:
    """Holds a world to what must hold.

    Attributes:
        world: The world.
        damaged: Whether the disk lost or changed what was safe.
        broken: What did not hold, first of all.
    """

    world: World
    damaged: bool = False
    broken: str | None = None
    data: dict[tuple[Any, ...], bytes] = field(default_factory=dict)
    draws: dict[str, set[tuple[int, int, int]]] = field(default_factory=dict)
    drawn: int = 0

    def require(self, holds: object, what: str) -> None:
        """Note, and end the process, if something does not hold."""
        if not holds:
            self.broken = self.broken or what
            raise ViolationError(what)

    def drawing(self, draw: Draw, data: bytes) -> None:
        """Noise is about to be drawn."""
        self.drawn += 1
        where = (draw.round, draw.client, draw.attempt)
        ledger = self.world.machine.storage.durable(PARENT / draw.run / "ledger.jsonl")
        paid = {spend for entry in entries(ledger or b"") for spend in spends(entry)}
        self.require(where in paid, f"{draw} is drawn before it is paid for")
        self.draws.setdefault(draw.run, set()).add(where)
        release = draw.commitment is not None
        # In reproducible mode the attempt does not change the stream, on purpose.
        name = (draw.commitment, draw.purpose, draw.round, draw.client, release and draw.attempt)
        if not release:
            name = (draw.run, *name)
        before = self.data.setdefault(name, data)
        self.require(before == data, f"{draw} noises something else than before")

    def writing(self, path: Path, old: bytes, new: bytes) -> None:
        """A file is about to be written to."""
        if path.name != "ledger.jsonl" or self.damaged:
            return
        known = len(entries(old))
        run, found = path.parent, entries(new)
        for entry in found[known:]:
            if entry["kind"] == "round":
                self._is_over(run, entry)
            elif entry["kind"] == "claim":
                self._is_complete(run, entry, found)

    def _is_over(self, run: Path, entry: dict[str, Any]) -> None:
        over = int(entry["round"])
        self._evidence_is_safe(run, lambda name: f"-{over:05d}" in name)
        places = (
            run / "checkpoint" / f"state-{over + 1:05d}.safetensors",
            run / "evidence" / state_file(over),
        )
        states = map(self.world.machine.storage.durable, places)
        digests = [hashlib.sha256(state).hexdigest() for state in states if state is not None]
        good = entry["state_sha256"] in digests
        self.require(good, f"round {over} is over before its state is safe")

    def _is_complete(self, run: Path, claim: dict[str, Any], found: list[dict[str, Any]]) -> None:
        self._evidence_is_safe(run, lambda _: True)
        model = self.world.machine.storage.durable(run / "model.safetensors")
        self.require(model is not None, "the claim is made before the model is safe")
        paid = sum(entry["kind"] == "spend" for entry in found)
        self.require(claim["spends"] == paid, "the claim does not count every spend")

    def _evidence_is_safe(self, run: Path, concerned: Callable[[str], bool]) -> None:
        storage, folder = self.world.machine.storage, run / "evidence"
        present = storage.find(folder)
        assert isinstance(present, Folder)
        for path, content in self.world.evidence.items():
            # What an attempt that was cut off wrote is forgotten by the next.
            if path.parent == folder and concerned(path.name) and path.name in present.names:
                safe = storage.durable(path) == content
                self.require(safe, f"the ledger relies on {path.name} before it is safe")

    def after_a_crash(self) -> None:
        """Look at what is left."""
        # What was damaged may be missing, until somebody goes on as if it were not.
        for run in () if self.damaged else runs(self.world):
            self._is_paid(run, _ledger(self.world, run))

    def _is_paid(self, run: Path, found: list[dict[str, Any]]) -> None:
        paid = [spend for entry in found for spend in spends(entry)]
        lost = self.draws.get(run.name, set()) - set(paid)
        self.require(not lost, f"noise was drawn for {sorted(lost)}, and no spend is left of it")
        self.require(len(set(paid)) == len(paid), "two spends have one round, client and attempt")

    def _is_of_the_last_attempts(self, run: Path, found: list[dict[str, Any]]) -> None:
        """No evidence may be left of clients that were drawn for an attempt that was cut off."""
        over = {entry["round"]: entry["clients"] for entry in found if entry["kind"] == "round"}
        for name in self.world.machine.storage.folder(run / "evidence").names:
            if name.startswith("upload-"):
                index, client = map(int, name.removesuffix(".npz").split("-")[1:])
                self.require(client in over[index], f"{name} is left of a round that was cut off")

    def finished(self, run: Path) -> None:
        """Look at a run that has ended well."""
        storage = self.world.machine.storage
        content = storage.durable(run / "ledger.jsonl")
        self.require(content is not None, "the ledger can still be lost")
        assert content is not None
        found = entries(content)
        lines = content.splitlines(keepends=True)
        whole = len(lines) == len(found) and all(map(_is_canonical, lines))
        self.require(whole, "the ledger holds more than its chain")
        self._is_paid(run, found)
        self.require(found[-1]["kind"] == "claim", "the claim is not the last line")
        self._is_of_the_last_attempts(run, found)
        self._is_complete(run, found[-1], found[:-1])
        self.require(storage.find(run / "checkpoint") is None, "the checkpoint is still there")
        names = storage.folder(run).names
        self.require(".unfinished" not in names, "the place for unfinished files is still there")
        self._follows(run, found)

    def _follows(self, run: Path, found: list[dict[str, Any]]) -> None:
        storage, toy = self.world.machine.storage, self.world.toy
        model = storage.durable(run / "model.safetensors")
        assert model is not None
        if toy.mode == "reproducible":
            same = model == undisturbed(toy)
            self.require(same, "the model is not the one of a run that was never cut off")
        models = [model]
        for index in reversed(range(toy.rounds)):
            before = self.world.follows.get((run.name, index, models[-1]))
            self.require(before is not None, f"the model does not follow from round {index}")
            assert before is not None
            models.append(before)
        self.require(models[-1] == _ZERO, "the rounds do not begin at the beginning")
        if not self.damaged:
            lines = storage.file(run / "metrics.jsonl").content.splitlines()
            told = [(line["round"], line["test_accuracy"]) for line in map(json.loads, lines)]
            expected = [(at, trainer.told(one)) for at, one in enumerate(reversed(models))]
            self.require(told == expected, f"the metrics tell {told}, not {expected}")


def canonical(entry: dict[str, Any]) -> bytes:
    """A line of the ledger, written down once more apart from the product."""
    return _CANONICAL.encode(entry).encode()


@functools.lru_cache(1000)
def _is_canonical(line: bytes) -> bool:
    return line == canonical(json.loads(line)) + b"\n"


@functools.lru_cache(100)
def entries(ledger: bytes) -> list[dict[str, Any]]:
    """The lines of a ledger as far as its chain holds, read apart from the product.

    Nobody may change what is returned: it is kept for whoever asks for the same bytes again.
    """
    found, previous = [], "0" * 64
    for line in ledger.split(b"\n")[:-1]:
        entry, digest = _line(line)
        if entry.get("previous") != previous:
            break
        previous = digest
        found.append(entry)
    return found


@functools.lru_cache(1000)
def _line(line: bytes) -> tuple[dict[str, Any], str]:
    """A line and its digest; nothing where it is none."""
    try:
        entry = json.loads(line)
        unsigned = canonical({key: value for key, value in entry.items() if key != "digest"})
        good = entry["digest"] == hashlib.sha256(unsigned).hexdigest()
    except (ValueError, KeyError, AttributeError):
        good = False
    return entry if good else {}, hashlib.sha256(line).hexdigest()


def spends(entry: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Whose noise in which round and attempt a line of the ledger pays for."""
    if entry["kind"] != "spend":
        return []
    clients = [entry["client"]] if "client" in entry else [*entry["clients"], -1]
    return [(entry["round"], client, entry["attempt"]) for client in clients]


def runs(world: World) -> list[Path]:
    """The runs that have appeared."""
    parent = world.machine.storage.find(PARENT)
    names = sorted(parent.names) if isinstance(parent, Folder) else []
    return [PARENT / name for name in names if not name.startswith(".")]


def _ledger(world: World, run: Path) -> list[dict[str, Any]]:
    file = world.machine.storage.find(run / "ledger.jsonl")
    return entries(file.content) if isinstance(file, File) else []


def _is_finished(world: World, run: Path) -> bool:
    found = _ledger(world, run)
    left = {"checkpoint", ".unfinished"} & world.machine.storage.folder(run).names.keys()
    return bool(found) and found[-1]["kind"] == "claim" and not left


class Schedule:
    """One schedule, drawn from its seed.

    Args:
        seed: Its number.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = random.Random(seed)
        self.toy = Toy(
            unit=rng.choice(("record", "record", "client")),
            rounds=rng.choice((1, 1, 1, 2, 2, 3)),
            per_round=rng.choice((1, 1, 2)),
            cohort=rng.choice(("fixed-size", "poisson")),
            mode=rng.choice(("release", "reproducible")),
        )
        self._lives = rng.choice((1, 1, 1, 2, 2, 3))
        self._together = rng.random() < _TOGETHER
        self._damages = rng.random() < _DAMAGED
        self._rng = rng

    def run(self) -> Watcher:
        """Run it.

        Returns:
            What was watched; `broken` in it says what did not hold.
        """
        undisturbed(self.toy)
        world = trainer.WORLD = World(Machine(self._rng), self.toy)
        watcher = Watcher(world)
        world.noted, world.machine.writing = watcher.drawing, watcher.writing
        try:
            for _ in range(self._lives):
                if watcher.broken is None and (self._together or not self._ended(world)):
                    self._live(watcher)
            if watcher.broken is None and self._end(watcher):
                for run in runs(world):
                    watcher.finished(run)
        except ViolationError:
            pass
        return watcher

    def _live(self, watcher: Watcher) -> None:
        """Let processes run until they are cut off."""
        world, rng = watcher.world, self._rng
        world.set_clock()
        count = rng.choice((2, 2, 3)) if self._together else 1
        works = []
        for number in range(count):
            last = _FIRST_STEPS + _ROUND_STEPS * self.toy.rounds
            event = (rng.choice(EVENTS), rng.randint(1, last)) if rng.random() < 0.9 else None
            waiting = rng.randint(0, last) if number else 0
            process = Process("ABC"[number], event)
            works.append((process, self._work(watcher, process, waiting, count == 1)))
        world.machine.run(works)
        if self._damages and rng.random() < 0.5:
            self._damage(watcher)
        watcher.after_a_crash()

    @staticmethod
    def _ended(world: World) -> bool:
        return any(_is_finished(world, run) for run in runs(world))

    def _end(self, watcher: Watcher) -> bool:
        """Resume all runs that were cut off, undisturbed; False if that was rightly refused."""
        world = watcher.world
        for run in runs(world) or [None]:
            if run is None or not _is_finished(world, run):
                process = Process("last")
                world.machine.run([(process, self._work(watcher, process, 0, True, run))])
                if process.refused:
                    return False
        return watcher.broken is None

    def _work(
        self,
        watcher: Watcher,
        process: Process,
        waiting: int,
        alone: bool,
        which: Path | None = None,
    ) -> Callable[[], None]:
        """What a process does: after some looks, finish a run that was begun, or start one."""
        failing = process.event is not None and process.event[0] == FAILED

        def work() -> None:
            world = watcher.world
            try:
                for _ in range(waiting):
                    world.machine.look(process)
                begun = [run for run in runs(world) if not _is_finished(world, run)]
                if which is not None or begun:
                    trainer.resumed(which or self._rng.choice(begun))
                else:
                    trainer.first_run()
            except (Killed, ViolationError):
                pass
            except Exception as error:
                process.refused = True
                if failing and isinstance(error, OSError | RunDirectoryError):
                    return
                if watcher.damaged and isinstance(error, DpfedadamwError):
                    return
                if isinstance(error, LockedError) and not alone:
                    return
                watcher.broken = watcher.broken or traceback.format_exc()

        return work

    def _damage(self, watcher: Watcher) -> None:
        """Let the disk lose or change a file of a run that was safe."""
        world, rng = watcher.world, self._rng
        if watcher.damaged:
            return
        # Whether a finished run was changed is not the engine's to say, but the auditor's.
        begun = [run for run in runs(world) if _ledger(world, run)[-1]["kind"] != "claim"]
        files = [
            run / name
            for run in begun
            for name in ("spec.yaml", "metrics.jsonl", "ledger.jsonl", "ledger.jsonl")
        ]
        for folder in [run / "checkpoint" for run in begun]:
            found = world.machine.storage.folder(folder).names
            files += [folder / name for name in sorted(found)]
        if files:
            watcher.damaged = True
            _damage(rng.choice(files), world.machine.storage, rng)


def _damage(path: Path, storage: Storage, rng: random.Random) -> None:
    file = storage.file(path)
    content = bytearray(file.content)
    lines = file.content.splitlines(keepends=True)
    kind = rng.choice(
        ("lost", "cut", "changed", "a line is lost", "a line is there twice", "older")
    )
    if kind == "lost":
        storage.link(path, None)
        storage.sync_folder(storage.folder(path.parent))
        return
    if kind == "cut":
        del content[rng.randrange(len(content) + 1) :]
    elif kind == "older":
        others = sorted(storage.folder(path.parent).names)
        if path.name.startswith("state-"):
            content = bytearray(storage.file(path.with_name(others[-2])).content)
    elif kind == "changed" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif lines:
        at = rng.randrange(len(lines))
        lines[at : at + 1] = [] if kind == "a line is lost" else [lines[at]] * 2
        content = bytearray(b"".join(lines))
    storage.change(file, bytes(content))
    storage.sync(file)


@functools.cache
def undisturbed(toy: Toy) -> bytes:
    """The model of a run that is never cut off."""
    world = trainer.WORLD = World(Machine(random.Random(0)), toy)
    world.machine.run([(Process("only"), trainer.first_run)])
    return world.machine.storage.file(runs(world)[0] / "model.safetensors").content
