"""A privacy claim as a paper prints it: read from YAML, checked, and filled in where supposed.

`readings` computes what follows from a claim, `judgement` compares. A value that the paper does not
state is None here; nothing is guessed.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match

from audit.errors import AuditError
from audit.untrusted.documents import DocumentError, parse_yaml
from audit.untrusted.files import FileError, Refusal, read_bytes

MAXIMUM_BYTES = 1 << 16
_ENDING = ".yaml"
# What the loss of each unit's mechanism depends on, besides rounds, noise and delta.
_NEEDED = {"record": ("local_steps", "sampling_rate"), "client": ("participation",)}


class ClaimError(AuditError):
    """A claim cannot be read. The text names file, field, and what would be right."""


@dataclass(frozen=True)
class Claim:
    """What a paper states; None or "unstated" where it does not.

    Attributes:
        name: the file's name without its ending.
        paper: which paper.
        where: sections, tables and equations.
        says: what is stated, in one sentence.
        unit: "record" or "client".
        adjacency: "add-remove", "replace-one" or "unstated".
        delta: δ in (0, 1).
        clients: N.
        participation: l = S/N in (0, 1].
        client_sampling: "poisson", "fixed" or "unstated".
        local_steps: K.
        rounds: T.
        sampling: "poisson", "fixed", "shuffled" or "unstated".
        sampling_rate: q in (0, 1].
        clipping: "per-record", "batch-mean", "update" or "unstated".
        clipping_norm: C.
        noise_multiplier: σ.
        noise_printed: the noise's formula in the paper's letters.
        noise_standard_deviation: what that formula means: "sigma*C", "sigma*C^2" (both on the
            clipped sum) or "sigma*C/sqrt(m)" (on each of m uploads).
        divisor: "expected", "realised" or "unstated".
        queries_per_step: noised answers on each batch.
        accountant: "rdp", "pld", "closed-form" or "unstated".
        conversion: "improved", "classic" or "unstated".
        rate_printed_twice: whether the printed formula applies the sampling rate twice.
        epsilon: the claimed ε.
        times_one_query: or the claimed multiple of one query's ε.
        towards: "server", "third-party" or "unstated".
        supposed: what is filled in for illustration, by name.
        remarks: sentences that go with the claim.
    """

    name: str
    paper: str
    where: str
    says: str
    unit: str
    adjacency: str
    delta: float | None
    clients: int | None
    participation: float | None
    client_sampling: str
    local_steps: int | None
    rounds: int | None
    sampling: str
    sampling_rate: float | None
    clipping: str
    clipping_norm: float | None
    noise_multiplier: float | None
    noise_printed: str | None
    noise_standard_deviation: str
    divisor: str
    queries_per_step: int
    accountant: str
    conversion: str
    rate_printed_twice: bool
    epsilon: float | None
    times_one_query: float | None
    towards: str
    supposed: Mapping[str, Any]
    remarks: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """What a loss cannot be computed without and the paper does not state."""
        needed = ("rounds", "noise_multiplier", "delta", *_NEEDED[self.unit])
        return tuple(name for name in needed if getattr(self, name) is None)

    def filled(self) -> Claim:
        """The claim with every supposed value in place of what is not stated."""
        return replace(self, **self.supposed)


def schema_text() -> str:
    """The text of the JSON Schema of a claim."""
    return (
        files("audit.extensions.claims").joinpath("claim.schema.json").read_text(encoding="utf-8")
    )


def shipped() -> dict[str, Traversable]:
    """Every claim that comes with the auditor, by name."""
    folder = files("audit.extensions.claims").joinpath("papers")
    found = {
        entry.name.removesuffix(_ENDING): entry
        for entry in folder.iterdir()
        if entry.name.endswith(_ENDING)
    }
    return dict(sorted(found.items()))


def load_claim(source: str | Path) -> Claim:
    """Read a claim.

    Args:
        source: a file, or the name of a shipped claim.

    Raises:
        ClaimError: there is none, or it is not a claim.
    """
    known = shipped()
    path = Path(source)
    if not path.exists() and str(source) in known:
        return parse_claim(known[str(source)].read_bytes(), str(source))
    try:
        raw = read_bytes(path.parent, path.name, MAXIMUM_BYTES)
    except FileError as error:
        if error.refusal is Refusal.TOO_LARGE:
            raise ClaimError(
                f"{source}: is larger than {MAXIMUM_BYTES} bytes; a claim is about a page"
            ) from error
        reason = error.detail or error.what
        near = difflib.get_close_matches(str(source), known, n=3, cutoff=0.4) or list(known)[:3]
        raise ClaimError(
            f"{source}: cannot be read ({reason}); give a YAML file, or a shipped claim's name "
            f"such as {', '.join(near)}"
        ) from error
    return parse_claim(raw, str(source))


def parse_claim(raw: bytes, where: str) -> Claim:
    """Read a claim from its bytes; `where` names it in messages.

    Raises:
        ClaimError: not YAML, or not what the schema asks for.
    """
    try:
        content = parse_yaml(raw)
    except DocumentError as error:
        raise ClaimError(f"{where}: {error}") from error
    fault = best_match(_validator().iter_errors(content))
    if fault is not None:
        place = ".".join(str(part) for part in fault.absolute_path) or "the claim"
        meant = fault.schema.get("description") if isinstance(fault.schema, Mapping) else None
        hint = f" ({meant.rstrip('.')})" if meant and fault.absolute_path else ""
        message = " ".join(fault.message.split())[:300]
        raise ClaimError(f"{where}: {place}{hint}: {message}")
    return _claim(content, where)


@cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(json.loads(schema_text()))


def _claim(content: Mapping[str, Any], where: str) -> Claim:
    source, privacy, claimed = content["source"], content["privacy"], content["claimed"]
    federation = content.get("federation", {})
    sampling = content.get("sampling", {})
    mechanism = content.get("mechanism", {})
    accounting = content.get("accounting", {})
    noise = mechanism.get("noise", {})
    claim = Claim(
        name=Path(where).name.removesuffix(_ENDING),
        paper=source["paper"],
        where=source["where"],
        says=source["says"],
        unit=privacy["unit"],
        adjacency=privacy.get("adjacency", "unstated"),
        delta=privacy.get("delta"),
        clients=_whole(federation.get("clients")),
        participation=_participation(federation, where),
        client_sampling=federation.get("client_sampling", "unstated"),
        local_steps=_whole(federation.get("local_steps")),
        rounds=_whole(federation.get("rounds")),
        sampling=sampling.get("kind", "unstated"),
        sampling_rate=_rate(sampling, where),
        clipping=mechanism.get("clipping", "unstated"),
        clipping_norm=mechanism.get("clipping_norm"),
        noise_multiplier=mechanism.get("noise_multiplier"),
        noise_printed=noise.get("printed"),
        noise_standard_deviation=noise.get("standard_deviation", "sigma*C"),
        divisor=mechanism.get("divisor", "unstated"),
        queries_per_step=int(mechanism.get("queries_per_step", 1)),
        accountant=accounting.get("accountant", "unstated"),
        conversion=accounting.get("conversion", "unstated"),
        rate_printed_twice=accounting.get("rate_printed_twice", False),
        epsilon=claimed.get("epsilon"),
        times_one_query=claimed.get("times_one_query"),
        towards=claimed["towards"],
        supposed=_supposed(content.get("suppose", {})),
        remarks=tuple(content.get("remarks", ())),
    )
    for name in claim.supposed:
        if getattr(claim, name) is not None:
            raise ClaimError(f"{where}: suppose.{name}: is already stated; leave one of them out")
    if claim.epsilon is not None and claim.times_one_query is not None:
        raise ClaimError(f"{where}: claimed: give epsilon or times_one_query, not both")
    filled = claim.filled()
    steps = (filled.rounds or 1) * (filled.local_steps or 1)
    if steps > 10_000_000:
        raise ClaimError(f"{where}: federation: {steps} steps are more than 10,000,000")
    return claim


def _supposed(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _whole(value) if name in ("rounds", "local_steps") else value
        for name, value in given.items()
    }


def _whole(value: float | None) -> int | None:
    # The schema takes 5.0 for a whole number, as the standard says.
    return None if value is None else int(value)


def _participation(federation: Mapping[str, Any], where: str) -> float | None:
    chosen, clients = federation.get("clients_per_round"), federation.get("clients")
    share = federation.get("participation")
    if chosen is None:
        return None if share is None else float(share)
    if share is not None:
        raise ClaimError(f"{where}: federation: give participation or clients_per_round, not both")
    if clients is None or chosen > clients:
        raise ClaimError(f"{where}: federation.clients_per_round: needs at least as many clients")
    return float(chosen) / float(clients)


def _rate(sampling: Mapping[str, Any], where: str) -> float | None:
    rate, batch = sampling.get("rate"), sampling.get("batch_size")
    records = sampling.get("records_per_client")
    if rate is not None:
        if batch is not None and records is not None and abs(batch / records - rate) > 1e-3 * rate:
            raise ClaimError(f"{where}: sampling.rate: is not batch_size / records_per_client")
        return float(rate)
    if batch is None or records is None:
        return None
    if batch > records:
        raise ClaimError(f"{where}: sampling.batch_size: is more than records_per_client")
    return float(batch) / float(records)
