"""Right mechanisms under a wrong account: what is claimed is not what was spent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

from scipy import optimize, stats

from dpfedadamw import experiment
from dpfedadamw.accounting import pld, rdp, record_level, registry
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.privacy.composition import Composition, mu_gdp
from dpfedadamw.privacy.sampling import ShuffledEpochs
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run.header import header
from tests.faults.client_level_faults import client_spec
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.faults.sampling_faults import FIXED, SHUFFLED
from tests.runs import small_spec


def of_parts(change: Callable[[Composition], Composition]):
    """Every ε against the server is that of another composition, taken for the real one."""

    def patch(patch: Patch) -> None:
        for one in registry.accountants():
            told(patch, one.name, _changed(one.epsilon, change))

    return patch


def told(patch: Patch, name: str, epsilon: Callable[..., float]) -> None:
    """Another function under the name of an accountant."""
    changed = dataclasses.replace(registry.ACCOUNTANTS[name], epsilon=epsilon)
    patch.setitem(registry.ACCOUNTANTS._entries, name, changed)


def _changed(epsilon, change):
    def changed(parts, delta):
        parts = [parts] if isinstance(parts, Composition) else parts
        return epsilon([change(part) for part in parts], delta)

    return changed


def apart(part: Composition) -> Composition:
    """Two queries on one batch as two steps with a batch each."""
    return dataclasses.replace(part, steps=part.steps * part.queries_per_step, queries_per_step=1)


def amplified(part: Composition) -> Composition:
    """As if leaving out clients (2 of 5 take part) made a record's batches rarer."""
    return dataclasses.replace(part, sampling_rate=part.sampling_rate * 2 / 5)


def averaged_noise(patch: Patch) -> None:
    """As if the noise of S clients averaged out up to the release: σ√S against a third party."""
    accountant, leads = registry.leading()

    def larger(kinds, participation, delta):
        kinds = [
            (dataclasses.replace(part, noise_multiplier=part.noise_multiplier * math.sqrt(2)), many)
            for part, many in kinds
        ]
        return leads.mixture(kinds, participation, delta)

    changed = dataclasses.replace(leads, mixture=larger)
    patch.setitem(
        registry.ACCOUNTANTS._entries,
        accountant.name,
        dataclasses.replace(accountant, leads=changed),
    )


def by_the_central_limit(patch: Patch) -> None:
    """ε of a Gaussian with the μ to which many small steps tend."""

    def epsilon(parts, delta):
        parts = [parts] if isinstance(parts, Composition) else parts
        mu = math.sqrt(sum(mu_gdp(part) ** 2 for part in parts))

        def excess(value: float) -> float:
            upper = stats.norm.cdf(mu / 2 - value / mu)
            return upper - math.exp(value) * stats.norm.cdf(-mu / 2 - value / mu) - delta

        return float(optimize.brentq(excess, 0.0, 200.0))

    told(patch, "pld", epsilon)


def classical_gaussian(patch: Patch) -> None:
    """ε = sqrt(2·ln(1.25/δ))·Δ/σ, whose proof ends at ε = 1, for what costs far more."""

    def epsilon(parts, delta):
        parts = [parts] if isinstance(parts, Composition) else parts
        noise = sum((part.steps / part.noise_over_sensitivity**2) for part in parts) ** -0.5
        return math.sqrt(2.0 * math.log(1.25 / delta)) / noise

    told(patch, "pld", epsilon)


def with_little_noise():
    return small_spec(overrides=(*SHUFFLED, "privacy.noise_multiplier=1.0"))


def classic_as_tight(patch: Patch) -> None:
    told(patch, "pld", partial(rdp.epsilon_rdp, conversion="classic"))


def lower_end_of_the_error(patch: Patch) -> None:
    """ε less an error that the auditor's own accountant may have too."""
    epsilon = registry.ACCOUNTANTS["pld"].epsilon
    told(patch, "pld", lambda parts, delta: 0.997 * epsilon(parts, delta))


def with_fewer_digits(patch: Patch) -> None:
    """Every ε of the leading accountant is rounded down, by 0.04 % of it."""
    accountant, leads = registry.leading()

    def mixture(kinds, participation, delta):
        return 0.9996 * leads.mixture(kinds, participation, delta)

    changed = dataclasses.replace(
        accountant,
        epsilon=lambda parts, delta: 0.9996 * accountant.epsilon(parts, delta),
        leads=dataclasses.replace(leads, mixture=mixture),
    )
    patch.setitem(registry.ACCOUNTANTS._entries, accountant.name, changed)


def charged_with_more_noise(patch: Patch) -> None:
    charges = RecordLevel.charges

    def told_more(self, current):
        richer = current.plan.noise_multiplier + 0.5
        plan = dataclasses.replace(current.plan, noise_multiplier=richer)
        return charges(dataclasses.replace(current, plan=plan))

    patch.setattr(RecordLevel, "charges", told_more)


def more_noise(part: Composition) -> Composition:
    return dataclasses.replace(part, noise_multiplier=part.noise_multiplier + 0.5)


def charged_for_one_query(patch: Patch) -> None:
    """Two gradients are asked for on each batch, and one is paid."""
    charges = RecordLevel.charges

    def once(self, current):
        plan = dataclasses.replace(current.plan, queries_per_step=1)
        return charges(dataclasses.replace(current, plan=plan))

    patch.setattr(RecordLevel, "charges", once)


def sensitivity_of_c(patch: Patch) -> None:
    """A replaced record counts as if it were only added."""
    pld._epsilon_pld.cache_clear()
    patch.setattr(Composition, "sensitivity", 1.0)
    # What is computed under the patch must not outlive it.
    patch.setattr(pld, "_epsilon_pld", pld._epsilon_pld.__wrapped__)


def epochs_over_the_whole_run(patch: Patch) -> None:
    """Rounds that end in mid-epoch do not fill each other up."""
    patch.setattr(
        ShuffledEpochs, "charged_steps", lambda self, records, steps: max(1, steps * 24 // records)
    )


def adjacency_of_the_claim(patch: Patch) -> None:
    claim = record_level.claim
    patch.setattr(
        record_level,
        "claim",
        lambda *some, **more: {**claim(*some, **more), "adjacency": "add-remove"},
    )


def adjacency_of_the_ledger(patch: Patch) -> None:
    patch.setattr(
        engine_setup, "header", lambda *some: {**header(*some), "adjacency": "add-remove"}
    )


def delta_above_one_over_n(patch: Patch) -> None:
    """The refusal is taken out: a plan for a small δ is made and gets the spec's afterwards."""
    make_plan = experiment.make_plan

    def careless(spec, *rest):
        small = spec.privacy.replace(delta=1e-6)
        plan = make_plan(spec.replace(privacy=small), *rest)
        return dataclasses.replace(plan, delta=spec.privacy.delta)

    patch.setattr(experiment, "make_plan", careless)


def sam():
    return small_spec("dp-fedsam")


GROUP = FaultGroup(
    40,
    "Accounting",
    (
        Fault(
            "two-queries-billed-as-one",
            "a sharpness-aware step asks for two gradients, and one is on the ledger",
            "sharpness-aware training with an accountant stepped once per optimiser step",
            ("promise",),
            sam,
            charged_for_one_query,
            says="more queries than were charged",
        ),
        Fault(
            "two-queries-billed-as-independent-batches",
            "two queries on one batch are composed as if each had a batch of its own",
            "sharpness-aware training with an accountant stepped twice",
            ("accounting",),
            sam,
            of_parts(apart),
        ),
        Fault(
            "client-amplification-at-record-level",
            "the rate of a record's batches is multiplied by the clients' participation",
            "federated papers that put q·l into a subsampling accountant",
            ("accounting",),
            lambda: small_spec(clients_per_round=2),
            of_parts(amplified),
        ),
        Fault(
            "noise-averaged-over-clients-for-adamw",
            "against a third party the noise is taken as σ√S, which steps that divide by it break",
            "adaptive federated methods that borrow a theorem on averaged gradients",
            ("views",),
            lambda: small_spec(clients_per_round=2),
            averaged_noise,
        ),
        Fault(
            "gdp-accountant-as-claim",
            "ε by the central limit theorem of Gaussian privacy, which lies below the truth",
            "training scripts that choose the accountant with the smallest number",
            ("accounting",),
            small_spec,
            by_the_central_limit,
        ),
        Fault(
            "classical-gaussian-beyond-one",
            "the classical formula of the Gaussian mechanism is used where ε is far beyond 1",
            "notebooks that solve σ = sqrt(2·ln(1.25/δ))/ε for any ε",
            ("accounting",),
            with_little_noise,
            classical_gaussian,
        ),
        Fault(
            "classic-conversion-as-tight",
            "a loose Rényi conversion under the name of the tight accountant",
            "comparisons in which the own method is composed tightly and the baseline is not",
            ("accounting",),
            small_spec,
            classic_as_tight,
            says="overstated",
        ),
        Fault(
            "lower-end-of-the-error-as-claim",
            "ε is claimed 0.3 % too low, by less than the auditor's own accountant may be off",
            "accountants that return a lower, a likely and an upper ε, of which the first is taken",
            ("views",),
            small_spec,
            lower_end_of_the_error,
            says="dp-accounting",
        ),
        Fault(
            "epsilon-rounded-down",
            "ε is claimed 0.04 % too low, as a number that is cut after its third digit",
            "papers and model cards that print 2.04 for 2.0408",
            ("accounting", "views"),
            small_spec,
            with_fewer_digits,
            says="is claimed",
        ),
        Fault(
            "epsilon-rounded-down-towards-hidden-participation",
            "the same where clients take part by chance and batches have a fixed size",
            "papers and model cards that print 2.04 for 2.0408",
            ("accounting", "views"),
            lambda: small_spec(clients_per_round=2, overrides=FIXED),
            with_fewer_digits,
            says="is claimed",
        ),
        Fault(
            "epsilon-of-clients-rounded-down",
            "the same where whole clients are protected, against a third party",
            "papers and model cards that print 2.04 for 2.0408",
            ("accounting",),
            client_spec,
            with_fewer_digits,
            says="third party: epsilon by pld is claimed",
        ),
        Fault(
            "epsilon-of-clients-rounded-down-towards-the-server",
            "the same where the clients add the noise, against the server too",
            "papers and model cards that print 2.04 for 2.0408",
            ("accounting",),
            lambda: client_spec("clients"),
            with_fewer_digits,
            says="client 0: epsilon by pld is claimed",
        ),
        Fault(
            "ledger-told-more-noise",
            "every charge names a larger noise multiplier than was used",
            "configuration files from which training and accounting read different keys",
            ("promise", "noise-scale"),
            small_spec,
            charged_with_more_noise,
        ),
        Fault(
            "accountant-told-more-noise",
            "ε is computed from a larger noise multiplier than is on the ledger",
            "notebooks whose privacy cell was run with other settings",
            ("accounting",),
            small_spec,
            of_parts(more_noise),
        ),
        Fault(
            "fixed-size-batches-accounted-with-sensitivity-c",
            "a record that is replaced moves a sum by 2C, and C is accounted for",
            "accountants fed with the noise multiplier of add-or-remove neighbours",
            ("accounting",),
            lambda: small_spec(overrides=FIXED),
            sensitivity_of_c,
        ),
        Fault(
            "epochs-accounted-with-sensitivity-c",
            "as before, for shuffled epochs",
            "accountants fed with the noise multiplier of add-or-remove neighbours",
            ("accounting",),
            lambda: small_spec(overrides=SHUFFLED),
            sensitivity_of_c,
        ),
        Fault(
            "epochs-counted-over-the-whole-run",
            "steps of different rounds are put together into epochs that nobody went through",
            "scripts that convert steps into epochs before accounting",
            ("accounting",),
            lambda: small_spec(overrides=(*SHUFFLED[:2], "federation.local_steps=9")),
            epochs_over_the_whole_run,
        ),
        Fault(
            "adjacency-mislabelled-in-the-claim",
            "replaced neighbours are accounted and added or removed ones are claimed",
            "papers that define one adjacency and use the accountant of the other",
            ("promise",),
            lambda: small_spec(overrides=FIXED),
            adjacency_of_the_claim,
        ),
        Fault(
            "adjacency-mislabelled-on-the-ledger",
            "the ledger names an adjacency under which its batches have no accounting",
            "papers that define one adjacency and use the accountant of the other",
            ("promise",),
            lambda: small_spec(overrides=FIXED),
            adjacency_of_the_ledger,
        ),
        Fault(
            "delta-above-one-over-n",
            "δ is so large that publishing one record outright would satisfy this",
            "scripts with δ = 1e-2 or 1/n by default",
            ("promise",),
            lambda: small_spec(overrides=("privacy.delta=0.01",)),
            delta_above_one_over_n,
            says="delta is not below 1/",
        ),
    ),
)
