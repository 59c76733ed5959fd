"""Updates of a loop: what may move the parameters, and by how much rounding may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import checks_of
from audit.checks.loop.steps import RULES, _moved, _Settings, _State
from audit.checks.loop.steps import _judge_steps as _judge
from audit.reading.loop_evidence import SETTINGS
from audit.reading.units import LOOP


def at(**values: float) -> list[float]:
    return [values.get(name, 0.0) for name in SETTINGS]


def test_without_momentum_there_is_nothing_to_dampen() -> None:
    """As torch has it: a momentum of 0 keeps no buffer, whatever the dampening."""
    settings = _Settings(np.array([at(learning_rate=0.5, dampening=0.25, nesterov=1.0)]))
    state = _State()
    for gradient in (1.0, -2.0, 4.0):
        update = RULES["sgd"](state, np.array([gradient]), np.array([9.0]), settings)
        state.steps += 1
        assert update.tolist() == [-0.5 * gradient]


def test_each_coordinate_is_moved_by_the_settings_of_its_own_group() -> None:
    values = np.array([at(learning_rate=0.5), at(learning_rate=2.0)])
    evidence: Any = SimpleNamespace(
        before=np.zeros((1, 3)),
        after=np.array([[-2.0, -0.5, -2.0]]),
        released=np.ones((1, 3)),
        settings=values[None],
        group=np.array([1, 0, 1]),
    )
    reasons: list[str] = []
    _moved(0, evidence, "sgd", _State(), reasons)
    assert reasons == []
    evidence.group = np.array([1, 1, 0])
    _moved(7, evidence, "sgd", _State(), reasons)
    assert [reason.split(" (")[0] for reason in reasons] == [
        "file 7: an update is not what sgd computes from the noised gradient"
    ]


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_settings_whose_updates_have_no_size_allow_none(rule: str) -> None:
    """An infinite update would allow any other one to differ from it."""
    evidence: Any = SimpleNamespace(
        before=np.full((1, 2), 1e3),
        after=np.zeros((1, 2)),
        released=np.full((1, 2), 1e3),
        settings=np.array([[at(learning_rate=1e308, weight_decay=1e308, beta1=0.9, beta2=0.99)]]),
        group=np.zeros(2, np.int64),
    )
    reasons: list[str] = []
    _moved(7, evidence, rule, _State(), reasons)
    assert [reason.split(" (")[0] for reason in reasons] == [
        f"file 7: an update is not what {rule} computes from the noised gradient"
    ]


def off_by(amount: float, before: tuple[float, float], released: tuple[float, float]) -> bool:
    """Whether an update may be off by so much at the second of two coordinates."""
    start, gradient = np.array([before]), np.array([released])
    evidence: Any = SimpleNamespace(
        before=start,
        after=start - gradient + np.array([[0.0, amount]]),
        released=gradient,
        settings=np.array([[at(learning_rate=1.0)]]),
        group=np.zeros(2, np.int64),
    )
    reasons: list[str] = []
    _moved(0, evidence, "sgd", _State(), reasons)
    return reasons == []


@pytest.mark.parametrize(
    ("before", "released", "allowed"),
    [
        # 2^-21 of the parameter, 2e-4 of its own update and of the largest, and 1e-12.
        ((0.0, 1024.0), (0.0, 0.0), 1024.0 / 2_097_152.0),
        ((0.0, -1024.0), (0.0, 0.0), 1024.0 / 2_097_152.0),
        ((1024.0, 0.0), (0.0, 0.0), 1e-12),
        ((0.0, 0.0), (0.0, 1.0), 4e-4),
        ((0.0, 0.0), (0.0, -1.0), 4e-4),
        ((0.0, 0.0), (-3.0, 1.0), 8e-4),
        ((0.0, 0.0), (0.0, 0.0), 1e-12),
        ((0.0, 1024.0), (1.0, 0.5), 1024.0 / 2_097_152.0 + 3e-4),
    ],
)
def test_an_update_is_off_by_the_rounding_of_float32_at_most(
    before: tuple[float, float], released: tuple[float, float], allowed: float
) -> None:
    near = 1e-9 if allowed > 1e-9 else 1e-3
    for sign in (1.0, -1.0):
        assert off_by(sign * allowed * (1.0 - near), before, released)
        assert not off_by(sign * (allowed + 2e-12) * (1.0 + near), before, released)
    if allowed == 1e-12 and before == (0.0, 0.0):
        assert off_by(1e-12, before, released)
        assert not off_by(1.01e-12, before, released)


def test_every_step_of_a_file_is_replayed_with_what_the_ones_before_left() -> None:
    lr, b1, b2, eps = 0.1, 0.8, 0.95, 0.01
    x, m, v = 0.7, 0.0, 0.0
    before, after, gradients = [], [], [0.5, -2.0, 1.5, 0.25]
    for step, g in enumerate(gradients, start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        before.append([x])
        x -= lr * (m / (1 - b1**step)) / ((v / (1 - b2**step)) ** 0.5 + eps)
        after.append([x])
    settings = np.array([[at(learning_rate=lr, beta1=b1, beta2=b2, eps=eps)]] * 4)
    state, reasons = _State(), list[str]()
    for first, last in ((0, 3), (3, 4)):
        evidence: Any = SimpleNamespace(
            before=np.array(before[first:last]), after=np.array(after[first:last]),
            released=np.array(gradients[first:last])[:, None], settings=settings[first:last],
            group=np.zeros(1, np.int64),
        )  # fmt: skip
        _moved(0, evidence, "adam", state, reasons)
    assert (state.steps, reasons) == (4, [])
    # One wrong step is told once, and the steps after it are not looked at.
    evidence.after = evidence.after + 1.0
    _moved(2, evidence, "adam", state, reasons)
    assert (len(reasons), reasons[0].startswith("file 2: an update is not what adam")) == (1, True)


def a_file(begins: list[int], ends: list[int], **changes: Any) -> Any:
    made = {
        "attachment": 0,
        "before_fingerprint": np.array(begins),
        "after_fingerprint": np.array(ends),
        "released": np.ones((len(ends), 1)),
        "before": np.zeros((len(ends), 1)),
        "after": np.full((len(ends), 1), -1.0),
        "settings": np.array([[at(learning_rate=1.0)]] * len(ends)),
        "group": np.zeros(1, np.int64),
    }
    return SimpleNamespace(**{**made, **changes})


def judged(files: list[Any], end: int | None, rule: str = "sgd") -> Any:
    bundle: Any = SimpleNamespace(
        header=SimpleNamespace(producer=SimpleNamespace(optimizer=rule)),
        loop_rounds=lambda: list(enumerate(files)),
        loop_end=lambda: SimpleNamespace(fingerprint=end),
    )
    return _judge(bundle)


BETWEEN = "something moved the parameters between two noised steps"
AFTER = "something moved the parameters after the last noised step"
STILL = "a step did not change the model"


@pytest.mark.parametrize(
    ("files", "end", "said"),
    [
        ([a_file([5, 6], [6, 7]), a_file([7], [8])], 8, []),
        # A checksum may be 0 like any other number.
        ([a_file([5], [0]), a_file([0], [8])], 8, []),
        ([a_file([5], [0]), a_file([1], [8])], 8, [f"file 1: {BETWEEN}"]),
        ([a_file([0], [1]), a_file([1], [0])], 0, []),
        ([a_file([5, 9], [6, 7])], 7, [f"file 0: {BETWEEN}"]),
        ([a_file([5, 6, 9], [6, 7, 8])], 8, [f"file 0: {BETWEEN}"]),
        ([a_file([5, 6], [6, 7]), a_file([6], [8])], 8, [f"file 1: {BETWEEN}"]),
        ([a_file([5], [6]), a_file([9], [8], attachment=1)], 8, []),
        ([a_file([5], [6], attachment=1), a_file([6], [8], attachment=1)], 8, []),
        (
            [a_file([5], [6], attachment=1), a_file([9], [8], attachment=1)],
            8,
            [f"file 1: {BETWEEN}"],
        ),
        ([a_file([5, 6], [6, 7])], 6, [AFTER]),
        ([], 6, [AFTER]),
        ([a_file([5, 5], [5, 6])], 6, [f"file 0: {STILL}"]),
        ([a_file([5, 6], [6, 6], released=np.array([[0.0], [1.0]]))], 6, [f"file 0: {STILL}"]),
        ([a_file([5], [5], released=np.zeros((1, 1)), after=np.zeros((1, 1)))], 5, []),
    ],
)
def test_nothing_moves_the_parameters_between_two_steps(
    files: list[Any], end: int, said: list[str]
) -> None:
    found = judged(files, end)
    told = [one.split(" (")[0] for one in found.measurement.split("; ")]
    still = [one.split(": the optimiser's")[0] for one in told]
    updates = [one for one in still if "an update is not what" not in one]
    assert updates == said if said else found.verdict.value == "PASS"
    assert found.details == {"steps": sum(len(one.before) for one in files), "optimizer": "sgd"}


def test_an_unknown_optimiser_s_checksums_are_judged_all_the_same() -> None:
    moved = judged([a_file([5, 9], [6, 7], after=np.full((2, 1), 3.0))], 7, rule="lion")
    assert moved.verdict.value == "FAIL"
    assert moved.measurement.startswith(f"file 0: {BETWEEN}")
    assert "an update is not" not in moved.measurement
    assert moved.details == {"steps": 2, "optimizer": "lion"}
    unseen = judged([a_file([5], [6])], None)
    assert unseen.verdict.value == "NOT VERIFIED"


def test_an_optimiser_begins_anew_with_each_attachment() -> None:
    momentum = np.array([[at(learning_rate=1.0, momentum=0.5)]])

    def moving(update: float, attachment: int) -> Any:
        begin = 5 if attachment == 0 else 6
        return a_file(
            [begin], [begin + 1], settings=momentum, attachment=attachment,
            after=np.array([[update]]),
        )  # fmt: skip

    # The second step of one stretch goes on with the first one's momentum; a new stretch does not.
    assert judged([moving(-1.0, 0), moving(-1.0, 1)], 7).verdict.value == "PASS"
    assert judged([moving(-1.0, 0), moving(-1.5, 1)], 7).verdict.value == "FAIL"
    second = moving(-1.5, 1)
    second.attachment = 0
    assert judged([moving(-1.0, 0), second], 7).verdict.value == "PASS"


def test_the_check_is_asked_of_loops_by_its_name() -> None:
    (check,) = (one for one in checks_of(LOOP) if one.name == "steps")
    assert check.rule.__module__ == "audit.checks.loop.steps"
