"""What a client agreed to at its first start, which no file that changes later can weaken.

The client's process is started again whenever it ends, by whatever starts it, from files that
somebody may have changed in between. So the first line of its ledger, signed by its key, pins what
its promise rests on: the spec, the facts, its records, the salt, the noise, and how many
participations it pays for. Everything but that last number stays as it was; to run anything else
takes a new project. The number alone can be set again, by its owner, on the command line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpfedadamw import spec as specs
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.identity import PIN, is_signed, public_of, sealed, sign
from dpfedadamw.extensions.deployment.site import Site
from dpfedadamw.units.plan import RunPlan

KIND = "pin"
MOST = "most_charges"
_CHAIN = frozenset(("kind", "previous", "digest", "signature"))
_FILES = {
    "spec_sha256": "spec.yaml",
    "facts_sha256": "federation.json",
    "share_seal": "share.npz",
    "salt_sha256": "salt",
    "key": "key",
}
_PARTICIPATION = re.compile(r"(?:participation|upload)-([0-9]+)-([0-9]+)\.(?:npz|safetensors)")


def of_files(site: Site, client: int, key: Ed25519PrivateKey) -> dict[str, Any]:
    """What a folder's files are: digests, and the key's public part.

    Records are sealed by the key: the ledger is handed in, and nobody who reads it may try out
    which records would give the digest.
    """
    return {
        "client": client,
        "key": public_of(key),
        "spec_sha256": _sha256(site.spec.read_bytes()),
        "facts_sha256": _sha256(site.facts.read_bytes()),
        "salt_sha256": _sha256(site.salt.read_bytes()),
        "share_seal": sealed(key, site.share.read_bytes()),
    }


def of_plan(plan: RunPlan, client: int) -> dict[str, Any]:
    """The numbers of a plan that a client's promise rests on."""
    of_people = {
        "records_per_person": plan.records_per_person,
        "clients_per_person": plan.clients_per_person,
    }
    return {
        **(of_people if plan.unit.of_people else {}),
        "unit": plan.unit.name,
        "adjacency": plan.adjacency,
        "delta": plan.delta,
        "noise_multiplier": plan.noise_multiplier,
        "noise_added_by": plan.noise_added_by,
        "clipping_norm": plan.clipping_norm,
        "rounds": plan.rounds,
        "local_steps": plan.local_steps,
        "queries_per_step": plan.queries_per_step,
        "records": plan.records[client],
        "sampling": plan.sampling.event_kind,
        "sampling_rate": plan.sampling_rate(client),
        "expected_batch_size": plan.divisor(client),
        "clients": len(plan.records),
        "clients_per_round": plan.clients_per_round,
        "client_sampling": plan.client_sampling,
    }


def signed(key: Ed25519PrivateKey, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A pin as the ledger has it."""
    return {**fields, "signature": sign(key, PIN, fields).hex()}


def last(
    entries: Sequence[Mapping[str, Any]], key: Ed25519PrivateKey, site: Site
) -> Mapping[str, Any] | None:
    """The pin that holds; None where the folder was never pinned.

    Raises:
        DeploymentError: If one is not signed by the client's key.
    """
    found: dict[str, Any] | None = None
    for entry in entries:
        if entry["kind"] != KIND:
            continue
        fields = {name: value for name, value in entry.items() if name not in _CHAIN}
        try:
            good = is_signed(public_of(key), bytes.fromhex(entry["signature"]), PIN, fields)
        except (KeyError, ValueError, TypeError):
            good = False
        if not good or type(fields.get(MOST)) is not int:
            raise DeploymentError(
                f"{site.ledger}: the terms of this client's first start are not signed by its key; "
                "restore its ledger and its key"
            )
        found = fields
    return found


def check(site: Site, pinned: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a folder that is not what it was at the client's first start.

    Args:
        site: The folder.
        pinned: What `last` gave.
        now: The part of it that is known now.

    Raises:
        DeploymentError: With what differs.
    """
    changed = [name for name in now if name in pinned and pinned[name] != now[name]]
    if not changed:
        return
    told = []
    for name in changed:
        if name in _FILES:
            told.append(_FILES[name])
            if name == "spec_sha256":
                told[-1] += _numbers(site, pinned)
        else:
            told.append(f"{name.replace('_', ' ')} (was {pinned[name]}, is {now[name]})")
    raise DeploymentError(
        f"{site.path}: changed since this client's first start: {', '.join(told)}; restore it, or "
        "make a new project for another spec, other records or other keys: dpfedadamw flower new"
    )


def check_evidence(site: Site, spends: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a folder whose evidence has participations that its ledger does not charge.

    Raises:
        DeploymentError: If it does: lines of the ledger, or all of it, are gone.
    """
    if not site.evidence.is_dir():
        return
    paid = {(int(entry["round"]), int(entry["attempt"])) for entry in spends}
    for path in sorted(site.evidence.iterdir()):
        found = _PARTICIPATION.fullmatch(path.name)
        if found and (int(found[1]), int(found[2])) not in paid:
            raise DeploymentError(
                f"{site.ledger}: does not charge round {int(found[1])}, attempt {int(found[2])}, "
                "for which evidence/ has a file; lines were removed from it: restore all of it"
            )


def check_spends(
    site: Site, plan: RunPlan, client: int, spends: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse to pin a folder that was used before, under another plan than its spec has now.

    Raises:
        DeploymentError: With the first charge that does not fit.
    """
    bound = plan.spending_bound
    whole = plan.unit.name == "client"
    rate = plan.participation if whole else plan.sampling_rate(client)
    for entry in spends:
        index = int(entry["round"])
        noise = entry["noise_multiplier"]
        least = bound.noise_multiplier_of(index) * (1.0 - 1e-12)
        fits = (
            0 <= index < plan.rounds
            and (noise == plan.noise_multiplier if plan.adaptation is None else noise >= least)
            and entry["clipping_norm"] == plan.clipping_norm
            and entry["sampling_rate"] == rate
            and (whole or 1 <= entry["steps"] <= bound.most_local_steps)
            and (whole or entry["client"] == client)
        )
        if not fits:
            raise DeploymentError(
                f"{site.ledger}: charged round {index} at a noise multiplier of {noise:g}, a "
                f"clipping norm of {entry['clipping_norm']:g} and a sampling rate of "
                f"{entry['sampling_rate']:g}, which spec.yaml does not say. Restore the spec that "
                "this folder was used with"
            )


def _numbers(site: Site, pinned: Mapping[str, Any]) -> str:
    """Which of the spec's own numbers differ; the spec is read, and none of its code is run."""
    try:
        spec = specs.load_filed(site.spec)
    except DpfedadamwError:
        return " (is not a spec any more)"
    now = {
        "noise_multiplier": spec.privacy.noise_multiplier,
        "clipping_norm": spec.privacy.clipping_norm,
        "rounds": spec.federation.rounds,
        "local_steps": spec.federation.local_steps,
    }
    told = [
        f"{name.replace('_', ' ')} was {pinned[name]}, is {value}"
        for name, value in now.items()
        if name in pinned and pinned[name] != value
    ]
    return f" ({'; '.join(told)})" if told else ""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
