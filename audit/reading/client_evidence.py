"""The private evidence of one round at client level: norms of whole updates and the sum's noise.

The counterpart of `evidence`, which reads the record level. At client level a round is one query:
clipped updates are summed, noised once, and divided by a public number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from audit.reading.evidence import Layout, Seen, read_seen
from audit.reading.ledger_lines import DIGEST_BYTES
from audit.untrusted.archives import (
    Arrays,
    Floats,
    Integers,
    byte_rows,
    floats,
    integers,
    texts,
)


@dataclass(frozen=True)
class UpdateRound:
    """What one round left behind: m participants, B blocks, k sampled coordinates.

    Attributes:
        clients: [m] client numbers; m may be 0.
        attempt: which attempt of the round this is.
        raw_norms: [m] norms of the updates before clipping; may be NaN or inf.
        clipped_norms: [m] the same after clipping.
        nonfinite: updates that were not finite.
        divisor: what the noisy sum was divided by.
        noise_sum_squares: [B] sums of the squared noise on the sum of clipped updates.
        noise_sample: [k] that noise at the sampled coordinates over the clipping norm.
        upload_noise_sum_squares: [m, B] sums of the squared noise on each upload; None where no
            upload carries noise of its own.
        clean_sample: [k] the sum of clipped updates before noise at the sampled coordinates.
        sample_places: [k] the sampled coordinates in the whole vector.
        further_tensors: names of whatever uploads or memories held besides the update.
        kept_digest: SHA-256 of the public coordinates that the server read; None where all
            coordinates are released.
        upload_kept_digests: the same of every client, one each; None as before.
        elsewhere_sum_squares: sum of the squared release off those coordinates; None as before.
        released: [k'] mean update released at those coordinates; None as before.
        commitment: [m, 32] keyed digest of each clipped update; None in older runs.
        released_sample: [k] mean update released at the sampled coordinates; None where it is kept
            elsewhere.
        noise_silent: released coordinates on which the sum's noise is exactly 0; None in older
            evidence.
        noise_largest: its largest magnitude on any, over the clipping norm; None likewise.
        upload_noise_silent: [m] the same of each upload; None where none carries noise of its own.
        upload_noise_largest: [m] likewise.
        rows_sha256: [m, 32] keyed digest of the data set's rows that each client trained on; None
            where rows are not told apart.
        seen: one record of each batch, by content; None in older evidence.
    """

    clients: Integers
    attempt: int
    raw_norms: Floats
    clipped_norms: Floats
    nonfinite: int
    divisor: float
    noise_sum_squares: Floats
    noise_sample: Floats
    upload_noise_sum_squares: Floats | None
    clean_sample: Floats
    sample_places: Integers
    further_tensors: tuple[str, ...]
    kept_digest: bytes | None = None
    upload_kept_digests: tuple[bytes, ...] | None = None
    elsewhere_sum_squares: float | None = None
    released: Floats | None = None
    commitment: Integers | None = None
    released_sample: Floats | None = None
    noise_silent: int | None = None
    noise_largest: float | None = None
    upload_noise_silent: Integers | None = None
    upload_noise_largest: Floats | None = None
    rows_sha256: Integers | None = None
    seen: Seen | None = None


def read_round(arrays: Arrays, layout: Layout) -> UpdateRound:
    """One round's archive as UpdateRound; shapes must agree with each other and the layout.

    Raises:
        FieldError: an array is missing, or has another type, shape or range.
    """
    clients = integers(arrays, "clients", (None,))
    participants, blocks = (len(clients),), len(layout.sizes)
    uploads = None
    if "upload_noise_sum_squares" in arrays:
        uploads = floats(arrays, "upload_noise_sum_squares", (*participants, blocks))
    further: dict[str, Any] = {}
    if "kept_digest" in arrays:
        digests = byte_rows(arrays, "upload_kept_digests", (*participants, DIGEST_BYTES))
        further = {
            "kept_digest": bytes(byte_rows(arrays, "kept_digest", (DIGEST_BYTES,)).tolist()),
            "upload_kept_digests": tuple(bytes(row) for row in digests.tolist()),
            "elsewhere_sum_squares": float(floats(arrays, "elsewhere_sum_squares", ())),
            "released": floats(arrays, "released", (None,)),
        }
    sample = None
    if "released_sample" in arrays:
        sample = floats(arrays, "released_sample", (len(layout.sample_coordinates),))
    if "noise_silent" in arrays:
        further |= {
            "noise_silent": int(integers(arrays, "noise_silent", ())),
            "noise_largest": float(floats(arrays, "noise_largest", ())),
        }
    if "upload_noise_silent" in arrays:
        further |= {
            "upload_noise_silent": integers(arrays, "upload_noise_silent", participants),
            "upload_noise_largest": floats(arrays, "upload_noise_largest", participants),
        }
    return UpdateRound(
        released_sample=sample,
        clients=clients,
        attempt=int(integers(arrays, "attempt", ())),
        raw_norms=floats(arrays, "raw_norms", participants, finite=False),
        clipped_norms=floats(arrays, "clipped_norms", participants, finite=False),
        nonfinite=int(integers(arrays, "nonfinite", ())),
        divisor=float(floats(arrays, "divisor", ())),
        noise_sum_squares=floats(arrays, "noise_sum_squares", (blocks,)),
        noise_sample=floats(arrays, "noise_sample", (len(layout.sample_coordinates),)),
        upload_noise_sum_squares=uploads,
        clean_sample=floats(arrays, "clean_sample", (len(layout.sample_coordinates),)),
        sample_places=integers(arrays, "sample_places", (len(layout.sample_coordinates),)),
        further_tensors=texts(arrays, "further_tensors", None),
        commitment=byte_rows(arrays, "commitment", (*participants, DIGEST_BYTES))
        if "commitment" in arrays
        else None,
        rows_sha256=byte_rows(arrays, "rows_sha256", (*participants, DIGEST_BYTES))
        if "rows_sha256" in arrays
        else None,
        seen=read_seen(arrays),
        **further,
    )


def private_numbers(evidence: UpdateRound) -> Mapping[str, Floats]:
    """Arrays of a round that no other file may repeat."""
    names = ("raw_norms", "noise_sum_squares", "noise_sample", "clean_sample")
    return {name: getattr(evidence, name) for name in names}
