"""A second moment whose noise is corrected for wrongly."""

from __future__ import annotations

from dpfedadamw.algorithms.rules.adamw import AdamW
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.privacy import oracle
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.faults.sampling_faults import BY_CHANCE
from tests.runs import small_spec


def local_counter(patch: Patch) -> None:
    patch.setattr(
        AdamW, "_steps_behind", staticmethod(lambda step, earlier, aggregated, counter: step)
    )


def no_noise(patch: Patch) -> None:
    patch.setattr(
        oracle,
        "add_gaussian_noise",
        lambda total, deviation, *rest, dtype: total.to(dtype, copy=True),
    )


def half_the_variance(patch: Patch) -> None:
    """What is subtracted is the variance over two, as for the mean of two noised gradients."""
    noise_variance = oracle.PrivateOracle.__init__

    def begin(self, **wiring):
        noise_variance(self, **wiring)
        self.noise_variance /= 2.0

    patch.setattr(oracle.PrivateOracle, "__init__", begin)


def absolute_value_in_place_of_a_floor(patch: Patch) -> None:
    def root(self, estimate, noise_variance):
        return estimate.sub_(noise_variance).abs_().sqrt_().add_(self.epsilon)

    patch.setattr(AdamW, "denominator", root)


def empty_rounds_counted(patch: Patch) -> None:
    patch.setattr(Federation, "_earlier_steps", lambda self, before: before * self.plan.local_steps)


def with_moment(**changes: object):
    overrides = tuple(f"algorithm.second_moment.{key}={value}" for key, value in changes.items())
    return lambda: small_spec(overrides=overrides)


GROUP = FaultGroup(
    60,
    "The second moment",
    (
        Fault(
            "local-counter-debiasing",
            "v goes on from round to round and is corrected as if it restarted in each",
            "reference code of adaptive federated methods with shared moments",
            ("second-moment",),
            small_spec,
            local_counter,
        ),
        Fault(
            "local-counter-as-promised",
            "as before, where the spec asks for it: a choice that is said is still wrong",
            "papers whose algorithm divides by the local step's correction",
            ("second-moment",),
            with_moment(counter="local"),
        ),
        Fault(
            "debiasing-without-noise",
            "the variance of noise is subtracted that was never added",
            "ablations in which noise is switched off and its correction is not",
            ("second-moment", "noise-scale"),
            small_spec,
            no_noise,
        ),
        Fault(
            "debiasing-by-half-the-variance",
            "the term that is subtracted is not the variance of the noise that was added",
            "code that forgets a factor between sum and mean",
            ("second-moment",),
            small_spec,
            half_the_variance,
        ),
        Fault(
            "no-floor",
            "v̂ − Φ is negative at half of all coordinates, and only ϵ holds the step",
            "implementations of the debiasing formula as it is printed",
            ("second-moment",),
            with_moment(floor="{relative: 0}"),
            says="no floor held it",
        ),
        Fault(
            "absolute-value-in-place-of-a-floor",
            "the root is taken of the absolute value, and the evidence says that a floor was used",
            "patches that make a negative square root go away",
            ("uploads",),
            small_spec,
            absolute_value_in_place_of_a_floor,
        ),
        Fault(
            "empty-rounds-counted-as-steps",
            "rounds without clients count in the correction although v did not move",
            "counters that are advanced by the server's clock",
            ("second-moment",),
            lambda: small_spec(overrides=BY_CHANCE),
            empty_rounds_counted,
        ),
    ),
)
