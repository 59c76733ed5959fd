"""Weakenings of what judges a run: `audit/`."""

from __future__ import annotations

from tests.weakenings.weakening import Weakening

WEAKENINGS = (
    Weakening(
        "level-of-canary-bounds-not-shared",
        "audit/canaries/bounds.py",
        "level = (1.0 - CONFIDENCE) / len(guesses)",
        "level = 1.0 - CONFIDENCE",
        "a bound on ε that is called 95 % is wrong in one of seven runs without any leakage",
        ("tests/audit/canaries/test_canaries.py",),
    ),
    Weakening(
        "negative-correlations-of-noise-dropped",
        "audit/statistics/noise_values.py",
        "cross = np.abs(unit[start : start + _CHUNK] @ unit.T)",
        "cross = unit[start : start + _CHUNK] @ unit.T",
        "noise that cancels between two queries passes",
        ("tests/audit/statistics/test_noise_values.py",),
    ),
    Weakening(
        "a-record-swapped-in-a-batch-of-equal-size",
        "audit/checks/shared/recomputed.py",
        "if not np.array_equal(included, counts):",
        "if included.sum() != counts.sum():",
        "a trainer swaps records inside batches of equal size, and the re-execution agrees",
        (
            "tests/audit/checks/shared/test_recomputed.py::test_each_difference_of_a_participation_is_named_with_its_client",
        ),
    ),
    Weakening(
        "as-many-clients-as-the-key-draws",
        "audit/checks/shared/recomputed.py",
        "sorted(again.cohort) != sorted(item.asked)",
        "len(again.cohort) != len(item.asked)",
        "the trainer chooses who takes part, and the re-execution agrees",
        ("tests/audit/checks/test_reexecution.py::test_a_cohort_that_the_key_does_not_draw_fails",),
    ),
    Weakening(
        "bounds-from-the-scores-that-they-explain",
        "audit/canaries/e_values.py",
        "(second, second.log_density(first.likeliest()))",
        "(second, second.log_density(second.likeliest()))",
        "intervals of the noise that are said to hold with 95 % have no level",
        (
            "tests/audit/canaries/test_e_values.py::test_an_e_value_against_the_truth_has_mean_one_at_most",
        ),
    ),
    Weakening(
        "two-bounds-at-the-level-of-one",
        "audit/canaries/e_values.py",
        "interval = known.noise_interval(level / 2.0)",
        "interval = known.noise_interval(level)",
        "a bound of two parts fails more often than the 5 % that it states",
        (
            "tests/audit/canaries/test_e_values.py::test_where_noise_and_contribution_are_bounded_apart_each_has_half_of_the_level",
        ),
    ),
    Weakening(
        "answers-to-canaries-left-out",
        "audit/checks/canaries.py",
        "made.get((item.round, client), 0) != queries",
        "made.get((item.round, client), 0) > queries",
        "the trainer leaves out the answers that betray canaries, and passes",
        (
            "tests/audit/checks/test_canaries.py::test_every_answer_to_a_client_with_canaries_must_be_there",
        ),
    ),
    Weakening(
        "times-that-end-in-zeros-are-whole",
        "audit/checks/disclosure.py",
        "(type(seconds) is int and 0 <=",
        "(isinstance(seconds, int | float) and seconds == int(seconds) and 0 <=",
        "a private number travels in how a public time is written",
        (
            "tests/audit/checks/test_disclosure.py::test_a_time_that_is_no_whole_number_of_seconds_could_be_anything",
        ),
    ),
    Weakening(
        "participants-of-the-round-before",
        "audit/checks/weights.py",
        "present = {item.round + 1: len(item.clients)",
        "present = {item.round: len(item.clients)",
        "public metrics tell how many took part, and the check looks at the wrong round",
        (
            "tests/audit/checks/client/test_client_level.py::test_a_public_count_of_participants_is_caught_under_any_name",
        ),
    ),
    Weakening(
        "frozen-tensors-compared-at-the-end",
        "audit/checks/weights.py",
        """for item in bundle.readable_ledger.rounds:
        noted""",
        """for item in bundle.readable_ledger.rounds[-1:]:
        noted""",
        "a frozen embedding that was trained on records and put back passes",
        (
            "tests/audit/checks/test_weights.py::test_what_is_not_trained_is_in_every_round_what_the_run_began_with",
        ),
    ),
    Weakening(
        "a-key-used-in-two-resumptions",
        "audit/checks/randomness.py",
        "elif len({header.commitment, *resumed}) != 1 + len(resumed):",
        "elif header.commitment in resumed:",
        "noise repeats in a run that was resumed twice, and the audit passes",
        (
            "tests/audit/checks/test_records_and_randomness.py::test_a_released_run_is_committed_to_a_new_key_whenever_it_goes_on",
        ),
    ),
    Weakening(
        "what-was-not-verified-ends-well",
        "audit/__main__.py",
        "good = findings.verdict in (Verdict.PASS, Verdict.NO_CLAIM)",
        "good = findings.verdict is not Verdict.FAIL",
        "python -m audit ends with 0 for a run that could not be verified",
        (
            "tests/audit/test_auditor.py::test_the_command_ends_with_0_where_a_run_passed_or_claims_nothing",
        ),
    ),
    Weakening(
        "any-mu-that-covers-what-is-likely",
        "audit/accounting/comparison.py",
        "recomputed = _Curve(history, _END_OF_PROFILE)\n    end",
        "recomputed = _Curve(history, 1e-3)\n    end",
        "a claimed mu that is too small for unlikely events passes the audit",
        ("tests/audit/accounting/test_comparison.py",),
    ),
    Weakening(
        "claims-that-nobody-reads",
        "audit/checks/shared/claimed.py",
        "for name in unknown_fields(claim, _read_of(header)):",
        "for name in ():",
        "a claim states an epsilon of 0.5 in a field that no check compares, and the audit passes",
        ("tests/audit/checks/record/test_claims.py", "tests/audit/checks/client/test_views.py"),
    ),
    Weakening(
        "headers-of-tensors-with-room-for-more",
        "audit/untrusted/archives.py",
        """if length - len(text) > _MOST_PADDING or not is_plain_json(text, header):""",
        """if length - len(text) > _MOST_PADDING:""",
        "an upload carries a record's bits in the white space of its header",
        ("tests/audit/untrusted/test_archives.py",),
    ),
    Weakening(
        "a-mean-of-clients-looked-at-where-noise-is-sampled",
        "audit/checks/client/uploads.py",
        "    if short or not np.all(lengths - noise <= room):",
        "    if short:",
        "a mean of whole clients with more in it than noise and clipped updates passes",
        ("tests/audit/checks/client/test_server_rounds.py",),
    ),
    Weakening(
        "an-end-at-the-target-of-a-run-that-was-not-cut-off",
        "audit/checks/shared/agreement.py",
        'if privacy.get("target_epsilon") is None or not ledger.resumes:',
        'if privacy.get("target_epsilon") is None:',
        "a trainer stops at the round that it likes best, and says that a limit on ε did",
        ("tests/audit/checks/shared/test_epsilon_limit.py",),
    ),
    Weakening(
        "a-last-model-off-its-grid-in-any-run",
        "audit/checks/client/uploads.py",
        "    if bits is not None and resumed and off_grid",
        "    if bits is not None and off_grid",
        "what the last round leaves may hold more than its mean in the bits that are rounded away",
        ("tests/audit/checks/client/test_server_rounds.py",),
    ),
    Weakening(
        "a-line-that-a-stranger-wrote",
        "audit/__main__.py",
        '    lines += [f"note     {printable(text)}" for text in findings.qualifications]',
        '    lines += [f"note     {text}" for text in findings.qualifications]',
        "a hostile gate adds a line 'verdict  PASS' to what an auditor reads",
        ("tests/audit/test_auditor.py",),
    ),
    Weakening(
        "charges-that-differ-within-a-file",
        "audit/checks/loop/ledger.py",
        "if len(charges[item.round]) > 1:",
        "if len(charges[item.round]) > 64:",
        "a forged recording passes with a quarter of its ε",
        ("tests/audit/checks/loop/test_integrity.py",),
    ),
    Weakening(
        "weights-said-to-be-given",
        "audit/checks/initial_weights.py",
        "    if due != initial.origin:",
        "    if due not in (initial.origin, 'seed'):",
        "a trainer starts from weights that were trained on the private records",
        ("tests/audit/checks/test_initial_weights.py",),
    ),
    Weakening(
        "one-person-counted-as-several",
        "audit/untrusted/archives.py",
        "if array.max(initial=0) > 255:",
        "if array.max(initial=0) > 2**53:",
        "others than before training are behind the committed digest of people",
        ("tests/audit/reading/test_evidence.py",),
    ),
    Weakening(
        "a-round-seen-twice-confirmed-once",
        "audit/accounting/sampling.py",
        "return max(rounds, bisect_left(self.released, rounds))",
        "return rounds",
        "third parties saw one round more than the confirmed ε pays for",
        (
            "tests/conformance/test_conformance.py::test_a_round_that_is_run_again_costs_twice_against_a_third_party",
        ),
    ),
)
