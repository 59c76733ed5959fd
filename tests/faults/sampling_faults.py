"""Batches and clients that are not drawn as the accountant assumes."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from dpfedadamw.accounting import record_level
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.privacy.cohorts import FixedClients, PoissonClients
from dpfedadamw.privacy.oracle import PrivateOracle
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.sampling import FixedSizeSampling, PoissonSampling, ShuffledEpochs
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.runs import small_spec

SIX_STEPS = "federation.local_steps=6"
FIXED = (
    "privacy.adjacency=replace-one",
    "privacy.sampling={kind: fixed, batch_size: 24}",
    SIX_STEPS,
)
SHUFFLED = (
    "privacy.adjacency=replace-one",
    "privacy.sampling={kind: shuffled, batch_size: 24}",
    SIX_STEPS,
)
BY_CHANCE = (
    "federation.client_sampling=poisson",
    "federation.clients_per_round=1",
    "federation.rounds=8",
)


def epochs_as_poisson(patch: Patch) -> None:
    patch.setattr(PoissonSampling, "batches", ShuffledEpochs(24).batches)


def epochs_in_poisson_sizes(patch: Patch) -> None:
    """Sizes are those of a Poisson sample; only that no record repeats gives them away."""

    def batches(self, records, stream):
        while True:
            order = stream.permutation(records)
            start = 0
            while start < records:
                size = int(stream.bernoulli(self.rate(records), records).sum())
                yield order[start : start + size]
                start += max(size, 1)

    patch.setattr(PoissonSampling, "batches", batches)


def fixed_as_poisson(patch: Patch) -> None:
    patch.setattr(PoissonSampling, "draw", lambda self, records, stream: stream.choice(records, 24))


def epochs_as_fixed(patch: Patch) -> None:
    def batches(self, records, stream):
        whole = records - records % self.batch_size
        while True:
            order = stream.permutation(records)
            for start in range(0, whole, self.batch_size):
                yield order[start : start + self.batch_size]

    patch.setattr(FixedSizeSampling, "batches", batches)


def independent_as_epochs(patch: Patch) -> None:
    patch.setattr(ShuffledEpochs, "batches", FixedSizeSampling(24).batches)


def larger_batches(patch: Patch) -> None:
    """Batches are drawn half as large again as is accounted for."""
    patch.setattr(
        PoissonSampling,
        "draw",
        lambda self, records, stream: np.flatnonzero(
            stream.bernoulli(1.5 * self.rate(records), records)
        ),
    )


def small_batches(expected: int):
    """A spec of 320 batches of so many records on the average."""
    sampling = f"privacy.sampling={{kind: poisson, expected_batch_size: {expected}}}"
    return lambda: small_spec(rounds=16, overrides=(sampling, "federation.local_steps=5"))


def empty_batches_drawn_again(patch: Patch) -> None:
    draw = PoissonSampling.draw

    def until_there_is_one(self, records, stream):
        while not len(found := draw(self, records, stream)):
            pass
        return found

    patch.setattr(PoissonSampling, "draw", until_there_is_one)


def small_batches_drawn_again(patch: Patch) -> None:
    draw = PoissonSampling.draw

    def until_there_are_four(self, records, stream):
        while len(found := draw(self, records, stream)) < 4:
            pass
        return found

    patch.setattr(PoissonSampling, "draw", until_there_are_four)


def cut_at_one_and_a_half(patch: Patch) -> None:
    draw = PoissonSampling.draw

    def cut(self, records, stream):
        found = draw(self, records, stream)
        most = int(1.5 * self.expected_batch_size)
        return np.sort(found[stream.permutation(len(found))[:most]])

    patch.setattr(PoissonSampling, "draw", cut)


def the_first_in_anothers_place(patch: Patch) -> None:
    draw = PoissonSampling.draw

    def favoured(self, records, stream):
        found = draw(self, records, stream)
        if len(found):
            found[0] = 0
        return found

    patch.setattr(PoissonSampling, "draw", favoured)


STATED = ("privacy.sampling.rate=0.1", SIX_STEPS)


def stated():
    return small_spec(overrides=STATED)


def by_the_clients_size(patch: Patch) -> None:
    """The stated rate is accounted for, and batches are drawn to the expected size as ever."""
    patch.setattr(
        PoissonSampling,
        "draw",
        lambda self, records, stream: np.flatnonzero(
            stream.bernoulli(self.expected_batch_size / records, records)
        ),
    )


def divided_by_the_clients_size(patch: Patch) -> None:
    """The divisor is what a client's own size and the stated rate make it."""
    patch.setattr(
        PrivacyPlan,
        "fixed_divisor",
        lambda self, client: self.sampling_rate(client) * self.records[client],
    )


def silent_about_sizes(patch: Patch) -> None:
    claim = record_level.claim

    def without(*some, **more):
        made = claim(*some, **more)
        said = [one for one in made["assumptions"] if "number of records" not in one]
        return {**made, "assumptions": said}

    patch.setattr(record_level, "claim", without)


def always_the_same(law):
    return lambda patch: patch.setattr(law, "draw", lambda self, clients, stream: np.arange(2))


def a_rota(patch: Patch) -> None:
    turn = itertools.count()
    patch.setattr(
        FixedClients, "draw", lambda self, clients, stream: np.array([next(turn) % clients])
    )


def telling_how_many(patch: Patch) -> None:
    patch.setattr(
        RecordLevel,
        "traffic",
        lambda self, current: (
            1000 * len(current.answers),
            len(current.message) * len(current.answers),
        ),
    )


def twelve_rounds(how: str):
    return lambda: small_spec(
        overrides=(
            f"federation.client_sampling={how}",
            "federation.clients_per_round=2",
            "federation.rounds=12",
        )
    )


def of_a_second_batch(draw, noted):
    """The second query of a sharpness-aware step is answered on a batch of its own.

    Args:
        draw: From the oracle and the size of the first batch to the places of the second one.
        noted: Whether the evidence is told.
    """

    def patch(patch: Patch) -> None:
        gradient = PrivateOracle.gradient

        def again(self, parameters):
            if self._asked == 1:
                indices = draw(self, len(self._batch[1]))
                chosen = torch.from_numpy(indices)
                # What the oracle looks at is what notes the batch; this looks past it.
                inputs = self._inputs if noted else getattr(self._inputs, "_inputs", self._inputs)
                selection = inputs[chosen]
                if noted and self._evidence is not None:
                    rows = getattr(selection, "rows", None)
                    self._evidence.batch(indices, len(self._labels), rows)
                self._batch = (selection, self._labels[chosen])
            return gradient(self, parameters)

        patch.setattr(PrivateOracle, "gradient", again)

    return patch


def as_sampled(oracle, size):
    return next(oracle._draws)


def of_the_same_size(oracle, size):
    """So many others as were drawn before, in turn."""
    everyone = len(oracle._labels)
    return np.sort((np.arange(size) * 3 + 7 * oracle.steps) % everyone)


def sam():
    return small_spec("dp-fedsam")


GROUP = FaultGroup(
    30,
    "Sampling",
    (
        Fault(
            "shuffled-batches-billed-as-poisson",
            "each epoch goes through all records in random order, and Poisson batches are billed",
            "nearly every training loop around a shuffling data loader",
            ("sensitivity",),
            lambda: small_spec(overrides=(SIX_STEPS,)),
            epochs_as_poisson,
        ),
        Fault(
            "epochs-cut-into-poisson-sizes",
            "batches have the sizes of Poisson samples, but no record repeats within an epoch",
            "data loaders that imitate Poisson batches by varying their length",
            ("sensitivity",),
            lambda: small_spec(overrides=(SIX_STEPS,)),
            epochs_in_poisson_sizes,
        ),
        Fault(
            "fixed-size-batches-billed-as-poisson",
            "every batch has the same size, which no Poisson sample has",
            "federated simulators that call random.choice with a batch size",
            ("sensitivity",),
            small_spec,
            fixed_as_poisson,
        ),
        Fault(
            "shuffled-batches-billed-as-fixed-size",
            "epochs pose as independent draws without replacement",
            "training loops that drop the last short batch",
            ("sensitivity",),
            lambda: small_spec(overrides=FIXED),
            epochs_as_fixed,
        ),
        Fault(
            "independent-batches-billed-as-epochs",
            "records repeat although each epoch is accounted as using them once",
            "samplers with replacement behind an epoch counter",
            ("sensitivity",),
            lambda: small_spec(overrides=SHUFFLED),
            independent_as_epochs,
        ),
        Fault(
            "batches-larger-than-billed",
            "records are drawn at one and a half times the rate that is accounted for",
            "scripts in which a batch size is multiplied by the number of devices",
            ("sensitivity",),
            small_spec,
            larger_batches,
        ),
        Fault(
            "empty-batches-drawn-again",
            "a batch without a record is drawn again, so that each record is in it more often",
            "data loaders that skip a batch on which a loss cannot be computed",
            ("sensitivity",),
            small_batches(3),
            empty_batches_drawn_again,
            says="fewer batches are empty",
        ),
        Fault(
            "small-batches-drawn-again",
            "a batch of fewer than four records is drawn again",
            "contrastive training, which needs pairs in each batch",
            ("sensitivity",),
            small_batches(8),
            small_batches_drawn_again,
            says="fewer batches are small",
        ),
        Fault(
            "batches-cut-at-one-and-a-half",
            "what a batch has beyond one and a half times its expected size is left out",
            "samplers with a largest batch size that is set by memory",
            ("sensitivity",),
            small_batches(8),
            cut_at_one_and_a_half,
            says="fewer batches are large",
        ),
        Fault(
            "one-record-in-every-batch",
            "a client's first record takes another one's place in every batch that is not empty",
            "loaders that pin an example to each batch, as an anchor or to warm up caches",
            ("sensitivity",),
            lambda: small_spec(rounds=20, overrides=("federation.local_steps=1",)),
            the_first_in_anothers_place,
            says="a record is in more batches than the rate",
        ),
        Fault(
            "rate-of-the-clients-size",
            "a rate is stated and accounted for, and each client draws at B over its own size",
            "loaders that compute the sampling rate from the length of a data set",
            ("sensitivity",),
            stated,
            by_the_clients_size,
        ),
        Fault(
            "divisor-of-the-clients-size",
            "sums are divided by the stated rate times a client's own size, which one record moves",
            "engines that take the expected batch size from the length of a data set",
            ("promise",),
            stated,
            divided_by_the_clients_size,
        ),
        Fault(
            "claim-silent-about-sizes",
            "the claim does not say that sampling rates follow from sizes taken as public",
            "accountants that ask for a sample rate and not for where it comes from",
            ("outside-budget",),
            small_spec,
            silent_about_sizes,
            says="sampling rate",
        ),
        Fault(
            "the-same-clients-every-round",
            "the cohort is drawn once, so that its clients spend in every round",
            "simulators that take the first S of a list of clients",
            ("participation",),
            twelve_rounds("fixed"),
            always_the_same(FixedClients),
        ),
        Fault(
            "the-same-clients-billed-as-independent",
            "as before, where each client is said to join by itself",
            "simulators that take the first S of a list of clients",
            ("participation",),
            twelve_rounds("poisson"),
            always_the_same(PoissonClients),
        ),
        Fault(
            "a-rota-of-clients",
            "clients take turns, so that everybody knows who is next",
            "schedulers that spread the load evenly",
            ("participation",),
            lambda: small_spec(
                overrides=("federation.clients_per_round=1", "federation.rounds=40")
            ),
            a_rota,
        ),
        Fault(
            "a-second-batch-for-the-second-query",
            "the second query of a sharpness-aware step is answered on a batch of its own",
            "sharpness-aware training that calls the loader again for the second pass",
            ("sensitivity",),
            sam,
            of_a_second_batch(as_sampled, noted=False),
            says="do not share a batch",
        ),
        Fault(
            "a-second-batch-that-is-noted",
            "the same, and the evidence has it as one more batch",
            "sharpness-aware training that calls the loader again for the second pass",
            ("sensitivity",),
            sam,
            of_a_second_batch(as_sampled, noted=True),
            says="do not share a batch",
        ),
        Fault(
            "a-second-batch-of-the-same-size",
            "the same with as many records as the first batch had, of which nothing is noted",
            "sharpness-aware training that calls the loader again for the second pass",
            ("sensitivity",),
            sam,
            of_a_second_batch(of_the_same_size, noted=False),
            says="of batches that were not drawn",
        ),
        Fault(
            "a-second-batch-of-the-same-size-that-is-noted",
            "the same, and the evidence has it as one more batch",
            "sharpness-aware training that calls the loader again for the second pass",
            ("sensitivity",),
            sam,
            of_a_second_batch(of_the_same_size, noted=True),
            says="do not share a batch",
        ),
        Fault(
            "participants-told-by-traffic",
            "published traffic is a multiple of how many clients took part",
            "dashboards that log bytes per round",
            ("publication",),
            lambda: small_spec(
                overrides=("federation.client_sampling=poisson", "federation.clients_per_round=3")
            ),
            telling_how_many,
        ),
    ),
)
