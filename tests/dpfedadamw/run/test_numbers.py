"""Names, numbers and modes that a run directory, its resumes and its searches rest on."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

from dpfedadamw.run import (
    checkpoints,
    environment,
    evaluation,
    export,
    frontier,
    journal,
    model_check,
    simulated,
    tuning,
    workers,
)
from dpfedadamw.storage import disk, lock, mapped, merkle

TABLE: list[tuple[ModuleType, str, Any]] = [
    # Files and their names, as docs/run-directory.md says and resumes of older runs find them.
    (checkpoints, "_PARAMETERS", "parameters"),
    (disk, "UNFINISHED", ".unfinished"),
    (lock, "_LOCK", "lock"),
    (simulated, "_SHARED", "shared."),
    (tuning, "SECRET", "tuning"),
    # What anybody may read, what its owner alone, and a folder of its owner.
    (disk, "PUBLIC_MODE", 0o644),
    (disk, "PRIVATE_MODE", 0o600),
    (disk, "FOLDER_MODE", 0o700),
    (disk, "_FOLDER", getattr(os, "O_DIRECTORY", None)),
    # A Merkle tree of RFC 6962 (section 2.1): leaves and nodes are told apart by a byte.
    (merkle, "DIGEST_BYTES", 32),
    (merkle, "LEAF", b"\x00"),
    (merkle, "NODE", b"\x01"),
    # The last state may be torn, the one before it is not.
    (journal, "_KEPT_STATES", 2),
    (journal, "_MOST_CHANGES_TOLD", 3),
    # How long somebody who signs a lock is waited for: twenty times a hundredth of a second.
    (lock, "_ATTEMPTS", 20),
    (lock, "_SIGNATURE_BYTES", 400),
    (lock, "_SIGNING_SECONDS", 0.01),
    (mapped, "AT_ONCE", 2**24),
    # How often a run is evaluated, and by how many records at once, by the size of the model.
    (evaluation, "_NUMBERS", 2**24),
    (evaluation, "_BATCHES", ((10_000_000, 64), (1_000_000, 128), (0, 1024))),
    (evaluation, "_MOST_EVALUATIONS", 10),
    (evaluation, "_MOST_OF_A_ROUND", 0.05),
    (evaluation, "_COST_OF_TRAINING", 3.0),
    # Words of an exported model, and of a frontier's settings.
    (export, "ADAPTERS", "adapters"),
    (export, "WHOLE", "whole"),
    (export, "OWN", "own"),
    (frontier, "ROUNDS", "federation.rounds"),
    (frontier, "STEPS", "federation.local_steps"),
    (frontier, "CHOSEN", "federation.clients_per_round"),
    (frontier, "MOST_COMBINATIONS", 400),
    (frontier, "_HALVINGS", (0.25, 0.5, 1.0, 2.0)),
    (frontier, "_BATCHES", (0.5, 1.0, 2.0)),
    (model_check, "_MOST_RECORDS", 64),
    (model_check, "_REPETITIONS", 3),
    (simulated, "_MOST_NODES", 256),
    (workers, "_PATIENCE", 5.0),
]


@pytest.mark.parametrize(
    ("module", "name", "value"),
    TABLE,
    ids=[f"{one.__name__.removeprefix('dpfedadamw.')}.{name}" for one, name, _ in TABLE],
)
def test_what_a_run_rests_on_is_what_this_table_says(module, name, value):
    found = getattr(module, name)
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize(
    ("pattern", "good", "wrong"),
    [
        (
            environment._NAME,
            ("environment-00000.json", "environment-100000.json"),
            ("environment-0000.json", "environment-00000xjson", "environment-0000a.json"),
        ),
        (
            journal._STATE,
            ("state-00012.safetensors", "state-100000.safetensors"),
            ("state-0012.safetensors", "state-00012.npz", "a-state-00012.safetensors"),
        ),
        (
            journal._ROUND_EVIDENCE,
            (
                "round-00003.npz",
                "round-00003-00001.npz",
                "upload-00003-00001.safetensors",
                "state-00003.safetensors",
            ),
            ("round-0003.npz", "round-00003-1.npz", "other-00003.npz", "round-00003.txt"),
        ),
    ],
)
def test_files_of_rounds_are_told_by_their_names(pattern, good, wrong):
    assert [name for name in good if not pattern.fullmatch(name)] == []
    assert [name for name in wrong if pattern.fullmatch(name)] == []
