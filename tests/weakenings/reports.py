"""Weakenings of what people read and verify: `reports/`."""

from __future__ import annotations

from tests.weakenings.weakening import Weakening

WEAKENINGS = (
    Weakening(
        "other-participants-as-third-parties",
        "reports/content/units/record.py",
        """                who="The other participants",
                protected=held,
                epsilon=server,""",
        """                who="The other participants",
                protected=held,
                epsilon=least(known.get("third_party"), server),""",
        "page one gives other participants the smaller ε of those who see models only",
        ("tests/reports/content/test_front.py",),
    ),
    Weakening(
        "seeds-paired-by-their-order",
        "reports/paired.py",
        "return [first[seed] - other[seed] for seed in common]",
        "return [a - b for a, b in zip(first.values(), other.values(), strict=False)]",
        "a seed that failed in one method pairs all others with the wrong ones",
        ("tests/reports/test_paired.py",),
    ),
    Weakening(
        "no-correction-for-many-comparisons",
        "reports/paired.py",
        "LEVEL / (len(chances) - index)",
        "LEVEL",
        "of many methods that are alike, one is soon called better",
        ("tests/reports/test_paired.py",),
    ),
    Weakening(
        "the-best-round-in-place-of-the-last",
        "reports/content/outcomes.py",
        "first, last = (measured[0], measured[-1]) if measured else (None, None)",
        """first, last = (
        (measured[0], max(measured, key=lambda row: row.test_accuracy or 0.0))
        if measured
        else (None, None)
    )""",
        "the page tells the accuracy of a round that nobody published as the model's",
        (
            "tests/reports/content/test_sources.py::test_a_rounds_accuracy_is_that_rounds_and_the_last_is_the_models",
        ),
    ),
    Weakening(
        "a-first-measurement-as-the-untrained-model",
        "reports/content/outcomes.py",
        "first.test_accuracy if first and first.round == 0 else None",
        "first.test_accuracy if first else None",
        "a trained model's accuracy is told as that of before training",
        (
            "tests/reports/content/test_sources.py::test_without_a_measurement_before_training_none_is_told_as_that",
        ),
    ),
    Weakening(
        "equal-to-one-answer-is-better",
        "reports/content/outcomes.py",
        "rate is None or accuracy > rate:",
        "rate is None or accuracy >= rate:",
        "of a model that always gives one answer nothing is said",
        (
            "tests/reports/content/test_sources.py::test_a_model_that_always_gives_one_answer_is_said_to_be_no_better_than_that",
        ),
    ),
    Weakening(
        "gradients-of-rounds-that-were-not-run",
        "reports/content/units/record.py",
        'number((ended or header).get("rounds"))',
        'number(header.get("rounds"))',
        "a run that ended early tells the computation of all its rounds",
        (
            "tests/reports/content/test_sources.py::test_a_run_that_ended_early_tells_the_gradients_of_the_rounds_that_it_ran",
        ),
    ),
    Weakening(
        "confused-classes-exchanged",
        "reports/content/utility.py",
        """class {labels[row]} answered as "
        f"{labels[column]}""",
        """class {labels[column]} answered as "
        f"{labels[row]}""",
        "who cannot see the matrix is told its worst error the wrong way round",
        (
            "tests/reports/content/test_sources.py::test_the_most_frequent_error_is_told_with_the_class_first_and_then_the_answer",
        ),
    ),
    Weakening(
        "accuracy-beside-the-next-rounds-loss",
        "reports/content/utility.py",
        """loss = spent.get(row.round)
""",
        """loss = spent.get(row.round + 1)
""",
        "the figure of accuracy by ε shows each accuracy at another round's ε",
        (
            "tests/reports/content/test_sources.py::test_an_accuracy_is_drawn_at_the_loss_of_its_own_round",
        ),
    ),
    Weakening(
        "a-second-library-on-the-wrong-side",
        "reports/content/accounting.py",
        "elif ours > 1.01 * theirs:",
        "elif theirs > 1.01 * ours:",
        "a claim below the second library's number is not said to be",
        (
            "tests/reports/content/test_sources.py::test_a_second_librarys_number_is_on_its_own_side_of_the_claim",
        ),
    ),
    Weakening(
        "the-smallest-clients-conversions",
        "reports/content/units/record.py",
        "return max(rows, key=lambda row: row.get(source.accountant) or 0.0, default={})",
        "return min(rows, key=lambda row: row.get(source.accountant) or 0.0, default={})",
        "conversions next to the headline are those of the client that spent least",
        (
            "tests/reports/content/test_sources.py::test_conversions_beside_the_headline_are_those_of_the_client_that_spent_most",
        ),
    ),
    Weakening(
        "a-reading-against-the-realised-loss-for-all",
        "reports/content/accounting.py",
        '"third" in towards.lower() and "printed" not in towards.lower()',
        '"third" in towards.lower()',
        "the public report tells on which side of a public number the realised ε lies",
        (
            "tests/reports/content/test_sources.py::test_a_reading_against_the_realised_loss_is_for_the_internal_report",
        ),
    ),
    Weakening(
        "clients-drawn-by-chance-everywhere",
        "reports/content/units/record.py",
        "chance = chosen / clients if by_chance and chosen and clients else None",
        "chance = chosen / clients if chosen and clients else None",
        "a chance to take part is told where clients are drawn in fixed numbers",
        (
            "tests/reports/content/test_sources.py::test_a_chance_to_take_part_is_told_where_clients_are_drawn_by_chance",
        ),
    ),
    Weakening(
        "the-median-client-is-the-mean",
        "reports/content/clients.py",
        "records_median=statistics.median(sizes)",
        "records_median=statistics.fmean(sizes)",
        "one large client hides that most are small",
        (
            "tests/reports/content/test_sources.py::test_the_clients_sizes_have_their_median_and_not_their_mean",
        ),
    ),
    Weakening(
        "the-table-of-the-least-losses",
        "reports/content/clients.py",
        "key=lambda row: -(row.epsilon.get(lead) or 0.0)",
        "key=lambda row: row.epsilon.get(lead) or 0.0",
        "the table of the clients with the largest losses shows the smallest",
        (
            "tests/reports/content/test_sources.py::test_of_many_clients_those_with_the_largest_losses_are_shown",
        ),
    ),
    Weakening(
        "an-audit-without-checks-passes",
        "reports/content/findings.py",
        'if unverified or not found or stated not in ("PASS", "NO CLAIM"):',
        'if unverified or stated not in ("PASS", "NO CLAIM"):',
        "an audit.json that says PASS and holds no check makes a report that says PASS",
        (
            "tests/reports/content/test_sources.py::test_an_audit_without_a_check_never_makes_a_report_that_passes",
        ),
    ),
    Weakening(
        "a-rejected-limit-looks-like-one-that-holds",
        "reports/content/coverage.py",
        'more = [] if report[Verdict].value == "PASS" else ["claimed"]',
        "more = []",
        "a limit that the audit rejected is printed without the word claimed",
        (
            "tests/reports/content/test_sources.py::test_a_limit_that_the_audit_did_not_pass_is_called_claimed",
        ),
    ),
    Weakening(
        "traffic-of-hidden-participants",
        "reports/content/outcomes.py",
        "return number(sum(known)) if known and shown else None",
        "return number(sum(known)) if known else None",
        "the public report's bytes tell how many took part",
        (
            "tests/reports/content/test_outcomes.py::test_traffic_is_kept_wherever_clients_are_drawn_by_chance",
        ),
    ),
    Weakening(
        "an-accuracy-of-before-the-end-ranks",
        "reports/run_rows.py",
        "accuracy=utility.final_accuracy if ended else None",
        "accuracy=utility.final_accuracy",
        "a run that was not tested at its end is ranked by an earlier model",
        (
            "tests/reports/test_run_rows.py::test_a_run_that_was_not_tested_after_its_last_round_has_no_accuracy_and_no_score",
        ),
    ),
    Weakening(
        "a-score-of-before-the-end",
        "reports/run_rows.py",
        'score = last.get("validation_accuracy") if ended else None',
        'score = last.get("validation_accuracy")',
        "a search chooses by a model that is not the one it publishes",
        (
            "tests/reports/test_run_rows.py::test_a_run_that_was_not_tested_after_its_last_round_has_no_accuracy_and_no_score",
        ),
    ),
    Weakening(
        "two-runs-of-one-seed-are-one",
        "reports/extensions/comparison/ranking.py",
        "return found if len(found) == len(self.runs) else None",
        "return found or None",
        "of two runs of one seed the test drops one, and the table shows both",
        (
            "tests/reports/extensions/comparison/test_comparison.py::test_runs_of_which_two_have_one_seed_do_not_pair",
        ),
    ),
    Weakening(
        "the-smallest-epsilon-in-the-spreadsheet",
        "reports/extensions/comparison/tables.py",
        "*(max(entry.epsilons(key), default=None) for key in keys)",
        "*(min(entry.epsilons(key), default=None) for key in keys)",
        "the spreadsheet has the least ε of a spec's runs",
        (
            "tests/reports/extensions/comparison/test_comparison.py::test_the_spreadsheet_has_the_largest_loss_of_a_specs_runs",
        ),
    ),
    Weakening(
        "one-hand-with-two-keys-is-two",
        "reports/signatures/verification/__init__.py",
        "another = bool(theirs) and not in_one_hand",
        "another = bool(theirs)",
        "anyone who has both keys reaches level 3 alone",
        ("tests/reports/signatures/test_verification.py::test_what_a_level_is_computed_from",),
    ),
    Weakening(
        "intents-without-a-verdict-are-not-dropped",
        "reports/signatures/intent_log.py",
        '!= "PASS" for entry',
        '== "FAIL" for entry',
        "a trainer announces until a nonce suits, and the count of dropped runs stays 0",
        (
            "tests/reports/signatures/test_intent_log.py::test_intents_that_came_to_nothing_are_counted_by_trainer_and_by_data",
        ),
    ),
    Weakening(
        "the-claims-delta-unread",
        "reports/verifier/verify.mjs",
        "same(said`δ of header and claim`, header.delta, claim?.delta);",
        "same(said`δ of header and claim`, header.delta, header.delta);",
        "the second verifier agrees with a claim at another δ than the run's",
        (
            "tests/conformance/test_conformance.py::test_no_number_of_a_promise_can_be_changed_alone",
        ),
    ),
    Weakening(
        "mu-rounded-down",
        "reports/content/accounting.py",
        "math.ceil(1000 * mu - 1e-9)",
        "math.floor(1000 * mu)",
        "the report promises a smaller mu than the rounds have",
        ("tests/reports/content/test_content.py",),
    ),
    Weakening(
        "a-challenge-by-anybody",
        "reports/signatures/verification/__init__.py",
        "        challengers & line_of(",
        "        challengers or line_of(",
        "a trainer challenges himself, has a stranger audit the run, and it says level 3",
        (
            "tests/reports/signatures/test_announcements.py",
            "tests/reports/signatures/test_public_files.py",
        ),
    ),
    Weakening(
        "a-gate-in-place-of-the-run",
        "reports/verifier/verify.mjs",
        """  if (OF_A_RUN.some(folder.has)) return null;
""",
        "",
        "a gate's ledger in a changed run's folder makes the page say ALL HOLD of it",
        (
            "tests/conformance/test_conformance.py::test_a_gate_in_the_folder_of_a_run_makes_it_no_gate",
        ),
    ),
    Weakening(
        "a-round-whose-number-is-a-list",
        "reports/source.py",
        'return {integer(line.get("round")): line for line',
        'return {line.get("round"): line for line',
        "a stranger's ledger ends `compare`, `site` and `report` in a traceback",
        ("tests/reports/test_source.py", "tests/reports/content/test_content.py"),
    ),
    Weakening(
        "english-read-out-as-german",
        "reports/extensions/languages/pages.py",
        'for one in given["items"]]}, said',
        'for one in given["items"]]}, [" "]',
        "a screen reader speaks the auditor's English words with German sounds",
        ("tests/reports/extensions/languages/test_translation.py",),
    ),
    Weakening(
        "half-the-epsilon-on-the-first-page",
        "reports/signatures/verification/contents.py",
        "if any(stated.get(key) != due[key] for key in _GUARANTEED):",
        "if any(key not in stated for key in _GUARANTEED):",
        "verify says ALL HOLD of a report that states half the ε of its run",
        ("tests/reports/signatures/test_verification.py",),
    ),
    Weakening(
        "a-limit-that-no-spec-has",
        "reports/verifier/verify.mjs",
        "federation.max_epsilon ?? null, header.max_epsilon ?? null);",
        "header.max_epsilon ?? null, header.max_epsilon ?? null);",
        "the second verifier agrees with any ε against third parties, by a forged limit",
        ("tests/conformance/test_conformance.py",),
    ),
)
