"""People: who is drawn, what stands for them in a batch, where they are, and what is claimed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from dpfedadamw import experiment
from dpfedadamw.accounting import record_level
from dpfedadamw.accounting.worst_case import SpendingBound
from dpfedadamw.data import datasets
from dpfedadamw.experiment import Experiment
from dpfedadamw.privacy import oracle
from dpfedadamw.privacy.clipped_sum import PeopleEngine, joined
from dpfedadamw.privacy.oracle import PrivateOracle
from dpfedadamw.privacy.sampling import People
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import write_arrays
from dpfedadamw.spec import Spec
from dpfedadamw.units import record as unit_of_records
from tests.faults.fault import Fault, FaultGroup, Findings, Patch, filed
from tests.people import BY_HOSPITAL, RECORDS, people_spec
from tests.runs import begin


def at_hospitals():
    return people_spec(partition=BY_HOSPITAL, clients=8, s=3)


def said_to_be_at_one():
    return people_spec(partition=BY_HOSPITAL, clients=8, s=1)


def hardly_clipped():
    return people_spec(overrides=("privacy.clipping_norm=50",))


def divided_by_chance():
    return people_spec(clients=3, s=3)


def of_records():
    return people_spec(unit=RECORDS)


def few_of_each():
    return people_spec(unit=RECORDS, overrides=("data.most_records_per_person=2",))


def all_kept(patch: Patch) -> None:
    patch.setattr(datasets, "kept_of_people", lambda people, *_: np.arange(len(people)))


def kept_by_what_others_have(patch: Patch) -> None:
    """The rows that stay are drawn in one go, so that everybody's number decides which they are."""

    def shuffled(people, most, seed):
        order = np.random.default_rng([seed, 3]).permutation(len(people))
        kept: dict[int, list[int]] = {}
        for row in order.tolist():
            own = kept.setdefault(int(people[row]), [])
            if len(own) < most:
                own.append(row)
        return np.array(sorted(row for own in kept.values() for row in own))

    patch.setattr(datasets, "kept_of_people", shuffled)


def each_record_clipped(patch: Patch) -> None:
    """Records are clipped and added up; the norms that are written down are those of people."""
    summed = oracle.summed

    def by_record(engine, inputs, targets, sizes):
        honest = summed(engine, inputs, targets, sizes)
        if sizes is None:
            return honest
        ones = engine.of_people(inputs, targets, [1] * len(targets))
        return dataclasses.replace(honest, total=ones.total)

    patch.setattr(oracle, "summed", by_record)


def the_mean_over_the_mean_number(patch: Patch) -> None:
    """What a person brings is divided by how many records people have on average in the batch."""
    summed = oracle.summed

    def by_the_batch(engine, inputs, targets, sizes):
        honest = summed(engine, inputs, targets, sizes)
        if sizes is None:
            return honest
        starts, total = np.cumsum([0, *sizes]).tolist(), honest.total.clone().zero_()
        for size, start in zip(sizes, starts, strict=False):
            part = slice(start, start + size)
            one = engine.of_people(inputs[part], targets[part], [size])
            # Nobody's mean exceeds C in this spec.
            total += one.total * (size / np.mean(sizes))
        return dataclasses.replace(honest, total=total)

    patch.setattr(oracle, "summed", by_the_batch)


def all_of_their_records(patch: Patch) -> None:
    patch.setattr(People, "records_of", lambda self, drawn, _: [self._records[p] for p in drawn])


def one_record_twice(patch: Patch) -> None:
    records_of = People.records_of

    def doubled(self, drawn, stream):
        found = records_of(self, drawn, stream)
        return [np.repeat(one[:1], len(one)) if len(one) > 1 else one for one in found]

    patch.setattr(People, "records_of", doubled)


def drawn_by_their_records(patch: Patch) -> None:
    """Records are drawn at q, and anyone who has one among them is in the batch."""
    start = PrivateOracle.__init__

    def drawing(self, **given):
        start(self, **given)
        if self._people is None:
            return
        persons, sampling = self._people[0].persons, given["plan"].sampling
        rate = getattr(sampling, "expected_batch_size", None)
        if rate is None:
            return
        rate, stream = rate / self._units, given["batches"]

        def draws():
            while True:
                rows = np.flatnonzero(stream.bernoulli(rate, len(persons)))
                yield np.unique(persons[rows])

        self._draws = draws()

    patch.setattr(PrivateOracle, "__init__", drawing)


def one_person_as_two(patch: Patch) -> None:
    """Every second record of a person is drawn as if it were somebody else's."""
    whole = Experiment.people.fget

    def split(self):
        people = whole(self)
        parity = np.arange(len(people.persons)) % 2
        return People(2 * people.persons + parity, people.most)

    patch.setattr(Experiment, "people", property(split))


def not_counted(patch: Patch) -> None:
    """Nobody looks at how many clients a person is."""
    people_of = datasets.Dataset.people_of_train

    def sizes(spec, owner, dataset):
        pairs = np.unique(np.stack([people_of.fget(dataset), owner]), axis=1)
        return tuple(np.bincount(pairs[1], minlength=spec.data.clients).tolist())

    patch.setattr(experiment, "_sizes", sizes)


def one_client_charged(patch: Patch) -> None:
    together = record_level.together
    patch.setattr(record_level, "together", lambda spends, _, delta: together(spends, 1, delta))


def one_client_at_worst(patch: Patch) -> None:
    patch.setattr(SpendingBound, "of_person", SpendingBound.everything)


def divided_by_those_who_came(patch: Patch) -> None:
    start = PrivateOracle.__init__

    def dividing(self, **given):
        start(self, **given)
        self._divisor = None

    patch.setattr(PrivateOracle, "__init__", dividing)


def claimed_as_of_records(patch: Patch) -> None:
    claim = unit_of_records._claim

    def silent(*given):
        made = claim(*given)
        return {name: made[name] for name in made if name not in ("unit", "clients_per_person")}

    patch.setattr(unit_of_records, "_claim", silent)


def another_bound(patch: Patch) -> None:
    fields = unit_of_records.private_fields
    patch.setattr(
        unit_of_records,
        "private_fields",
        lambda *given: fields(*given) | {"records_per_person": 30},
    )


def split_by_records(patch: Patch) -> None:
    divided = datasets._divided
    patch.setattr(
        datasets, "_divided", lambda share, records, _, drawn: divided(share, records, None, drawn)
    )


def dealt_out_by_records(patch: Patch) -> None:
    partition = experiment.partition
    patch.setattr(experiment, "partition", lambda data, labels, given, _: partition(data, labels))


def of_the_person_with_one(patch: Patch) -> None:
    with_people = engine_run.with_people

    def least(plan, claim, entries):
        return with_people(dataclasses.replace(plan, most_records=1), claim, entries)

    patch.setattr(engine_run, "with_people", least)


def multiplied(patch: Patch) -> None:
    with_people = engine_run.with_people

    def times(plan, claim, entries):
        told = with_people(plan, claim, entries)
        one = claim["server_worst_case"]["epsilon"]["pld"]
        return {**told, "person": {**told["person"], "epsilon": plan.most_records * one}}

    patch.setattr(engine_run, "with_people", times)


def neighbours_left_in(patch: Patch) -> None:
    """A person who is not finite takes the next one with them into one mean."""
    of_people = oracle.clipped_sum

    def merged(engine, flat, parameters, batch, together, sizes=None):
        if not sizes or len(sizes) < 2 or not isinstance(engine, PeopleEngine):
            return of_people(engine, flat, parameters, batch, together, sizes)
        honest = of_people(engine, flat, parameters, batch, together, sizes)
        both = [sizes[0] + sizes[1], *sizes[2:]]
        return dataclasses.replace(
            honest, total=joined([of_people(engine, flat, parameters, batch, together, both)]).total
        )

    patch.setattr(oracle, "clipped_sum", merged)


def _regrouped(spec: Spec, folder: Path) -> Findings:
    """A record of somebody is booked to somebody else once training is over.

    Both keep their first record and everybody is still at a client, so that nothing else changes.
    """
    training = begin(spec, folder)
    engine_run.train(training)
    file = training.run.evidence / "people.npz"
    with np.load(file) as archive:
        stored = archive["stored"].copy()
    train = np.load(training.run.evidence / "records.npz")["rows"]
    people = np.unique(stored[train], axis=0, return_inverse=True)[1].ravel()
    owner = training.experiment.owner
    first = np.unique(people, return_index=True)[1][people]
    for place in np.flatnonzero(first < np.arange(len(train)))[::-1]:
        at_client = owner == owner[place]
        alone = np.count_nonzero(at_client & (people == people[place])) == 1
        others = np.flatnonzero((first < place) & ~np.isin(people, people[at_client]))
        if alone and len(others):
            stored[train[place]] = stored[train[others[0]]]
            break
    write_arrays(file, {"stored": stored})
    return filed(training)


GROUP = FaultGroup(
    place=35,
    title="People",
    faults=(
        Fault(
            "records-of-a-person-clipped-one-by-one",
            "each record of a person is clipped to C and all are summed, so that a person moves "
            "the sum by as many times C as they have records",
            "user-level privacy that was added in the sampler alone",
            ("sensitivity",),
            people_spec,
            each_record_clipped,
            says="one person moves the sum by",
        ),
        Fault(
            "a-person-s-mean-over-the-batch-s-mean-number",
            "a person's gradients are divided by how many records people have on average in the "
            "batch, so that who else is there changes what they bring",
            "losses that are averaged over a padded batch of users",
            ("sensitivity",),
            hardly_clipped,
            the_mean_over_the_mean_number,
            says="together with others, one person moves the sum",
        ),
        Fault(
            "two-people-in-one-mean",
            "the first two people of a batch share one mean",
            "an index of groups that is off by one",
            ("sensitivity",),
            people_spec,
            neighbours_left_in,
        ),
        Fault(
            "more-records-of-a-person-than-the-bound",
            "all records of a drawn person stand in the batch, whatever the spec allows",
            "bounds on contributions that are applied to the data set's copy and not to the batch",
            ("partition",),
            people_spec,
            all_of_their_records,
            says="more records of a person are in a batch than 3",
        ),
        Fault(
            "all-records-of-a-person-where-the-spec-keeps-two",
            "the claim is for a person with two records, and all ten of somebody are trained on",
            "bounds on contributions that a spec states and no code applies",
            ("views", "partition"),
            few_of_each,
            all_kept,
            says="somebody has",
        ),
        Fault(
            "records-kept-by-a-draw-over-everybody",
            "which of a person's records stay is drawn over the whole table, so that another "
            "person who comes or goes changes it",
            "groupby().sample() with one seed for the table",
            ("partition",),
            few_of_each,
            kept_by_what_others_have,
            says="are not those that the spec's seed draws",
        ),
        Fault(
            "one-record-in-the-place-of-a-person-s-others",
            "the first of a person's drawn records stands there as often as there are",
            "rows that are looked up by the number of the person",
            ("partition",),
            people_spec,
            one_record_twice,
            says="a record is in a batch twice",
        ),
        Fault(
            "people-drawn-by-their-records",
            "records are drawn at rate q, and their people are the batch: a person with ten "
            "records is in it almost ten times as often as is accounted for",
            "DataLoaders over rows, grouped by user afterwards",
            ("sensitivity",),
            people_spec,
            drawn_by_their_records,
        ),
        Fault(
            "one-person-drawn-as-two",
            "a client takes every second record of a person for somebody else's",
            "identifiers that are read with and without leading zeros",
            ("partition",),
            people_spec,
            one_person_as_two,
        ),
        Fault(
            "people-at-more-clients-than-claimed",
            "nobody counts at how many clients a person is, and the claim is of one",
            "silos that each account for their own rows",
            ("partition",),
            said_to_be_at_one,
            not_counted,
            says="people have records at more clients than the 1",
        ),
        Fault(
            "a-record-booked-to-somebody-else-after-training",
            "once training is over, a record of one person is said to be about another, as would "
            "hide that somebody is at more clients than claimed",
            "identifiers that are linked again for the audit",
            ("partition",),
            at_hospitals,
            judge=_regrouped,
            says="whom the records are about is not what the ledger's header committed to",
        ),
        Fault(
            "one-client-charged-for-a-person-at-three",
            "the claim is the dearest client's, and a person is at three, whose losses add up",
            "cross-silo papers that report the largest epsilon of a silo",
            ("accounting",),
            at_hospitals,
            one_client_charged,
            says="headline epsilon is claimed",
        ),
        Fault(
            "the-worst-case-of-one-client-for-a-person-at-three",
            "the worst case counts one client in every round, and a person is at three",
            "the same",
            ("views",),
            at_hospitals,
            one_client_at_worst,
            says="the server's worst case is claimed",
        ),
        Fault(
            "divided-by-the-people-who-came",
            "a noisy sum is divided by how many people were drawn",
            "means over the users of a batch",
            ("promise",),
            people_spec,
            divided_by_those_who_came,
            says="was not divided by",
        ),
        Fault(
            "a-claim-on-people-that-reads-as-one-on-records",
            "the claim does not say that what it counts are people, or at how many clients",
            "reports that give epsilon without its unit",
            ("promise",),
            at_hospitals,
            claimed_as_of_records,
            says="does not say that it is about people",
        ),
        Fault(
            "another-bound-on-records-than-promised",
            "thirty records of a person stand in a batch, and the spec allows three",
            "settings that are overwritten on the way",
            ("promise",),
            people_spec,
            another_bound,
            says="records_per_person: the spec says 3",
        ),
        Fault(
            "test-records-of-people-who-are-trained-on",
            "records are held out one by one, so that the same people are on both sides",
            "random splits of the rows of a table of visits",
            ("partition",),
            of_records,
            split_by_records,
            says="held out for testing",
        ),
        Fault(
            "people-dealt-out-record-by-record",
            "a random partition deals out records, so that a person is at several clients",
            "partitioners that know rows and labels alone",
            ("partition",),
            divided_by_chance,
            dealt_out_by_records,
            says="the spec's seed draws",
        ),
        Fault(
            "the-epsilon-of-a-person-with-one-record",
            "the claim says of the person with most records what holds for a single one",
            "most published record-level numbers, read as those of a person",
            ("views",),
            of_records,
            of_the_person_with_one,
            says="somebody has",
        ),
        Fault(
            "epsilon-multiplied-by-the-records-of-a-person",
            "k times the epsilon of one record is stated for a person with k, at the same delta",
            "the group-privacy rule of thumb",
            ("views",),
            of_records,
            multiplied,
            says="is claimed",
        ),
    ),
)
