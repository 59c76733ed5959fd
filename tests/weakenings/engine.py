"""Weakenings of what trains, charges, serves and stores: `dpfedadamw/`."""

from __future__ import annotations

from tests.weakenings.weakening import Weakening

WEAKENINGS = (
    Weakening(
        "rounds-begun-twice-forgotten",
        "dpfedadamw/run/setup.py",
        "repeated=plan.begun_again(journal.ledger.entries, parts.completed),",
        "repeated=0,",
        "a resumed run says that it has spent less so far than it was charged",
        ("tests/dpfedadamw/run/test_headline.py", "tests/dpfedadamw/run/test_training.py"),
    ),
    Weakening(
        "the-longest-array-limited-in-place-of-their-sum",
        "dpfedadamw/federation/flower/arrays.py",
        "return sum(len(data) for *_, data in wires.values()) <= most + HEADS",
        "return max((len(d) for *_, d in wires.values()), default=0) <= most + HEADS",
        "a client sends a thousand times what the server allows",
        ("tests/dpfedadamw/federation/flower/test_arrays.py",),
    ),
    Weakening(
        "one-record-more-than-the-bound",
        "dpfedadamw/data/partition.py",
        "permutation(size)[most:]",
        "permutation(size)[most + 1 :]",
        "a person moves the model by one record more than the claim says",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "kept-records-drawn-by-row-numbers",
        "dpfedadamw/data/partition.py",
        "np.random.default_rng([seed, 3, size])",
        "np.random.default_rng([seed, 3, size, int(order[starts[sizes == size][0]])])",
        "which of a person's records are used depends on who else is in the table",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "a-person-at-three-clients-charged-once",
        "dpfedadamw/budget/charges.py",
        'return _times(cost, int(entries[0].get("clients_per_person", 1)))',
        "return cost",
        "a shared budget lets a person be charged a third of what they spend",
        ("tests/dpfedadamw/run/test_person_level.py",),
    ),
    Weakening(
        "test-people-in-training",
        "dpfedadamw/data/datasets.py",
        "out = np.isin(numbers, drawn)",
        "out = np.isin(np.arange(len(numbers)), drawn)",
        "accuracy is measured on people who were trained on",
        ("tests/dpfedadamw/data/test_people.py",),
    ),
    Weakening(
        "a-row-of-a-service-in-another-unit",
        "dpfedadamw/data/handed_over.py",
        "return Numbers(preparation.prepare(rows, ",
        "return Numbers(-preparation.prepare(rows, ",
        "a served model answers other rows than it was given",
        ("tests/dpfedadamw/data/test_handed_over.py",),
    ),
    Weakening(
        "a-person-reserved-for-once",
        "dpfedadamw/budget/charges.py",
        "return _times(merge(left), plan.clients_per_person) if left else ()",
        "return merge(left) if left else ()",
        "runs on people at several clients overspend a shared budget",
        (
            "tests/dpfedadamw/run/test_person_level.py::test_a_budget_reserves_what_a_person_at_several_clients_can_be_charged",
        ),
    ),
    Weakening(
        "reservations-of-another-machine-freed",
        "dpfedadamw/budget/reservations.py",
        "if one.machine != this_machine():",
        "if one.machine != this_machine() and one.state != STARTING:",
        "a run that starts on another machine overspends a shared budget",
        (
            "tests/dpfedadamw/budget/test_dead_runs.py::test_a_run_on_another_machine_keeps_all_that_it_reserved",
        ),
    ),
    Weakening(
        "the-worst-trial-of-a-regression-wins",
        "dpfedadamw/extensions/sweeps/selection.py",
        '-float(last["validation_loss"])',
        'float(last["validation_loss"])',
        "a private selection publishes the worst of its trials",
        (
            "tests/dpfedadamw/extensions/sweeps/test_selection.py::test_of_a_regressions_trials_that_of_the_smallest_loss_is_published",
        ),
    ),
    Weakening(
        "drop-outs-under-noise-of-clients",
        "dpfedadamw/spec/crosschecks.py",
        'if get("privacy", "unit") == "client" and get("privacy", "noise_added_by") == "clients":',
        'if get("privacy", "unit") == "record" and get("privacy", "noise_added_by") == "clients":',
        "a round without some of its clients has less noise than it is charged for",
        (
            "tests/dpfedadamw/spec/test_messages.py::test_drop_outs_leave_a_client_that_answers_and_take_no_noise_with_them",
        ),
    ),
    Weakening(
        "records-without-a-person-are-one-person",
        "dpfedadamw/data/columnar.py",
        "return cell is None or bool(cell != cell)",
        "return cell is None",
        "all records that name nobody are protected as one person called nan",
        (
            "tests/dpfedadamw/data/test_people.py::test_people_beside_arrays_are_as_good_as_a_column",
        ),
    ),
    Weakening(
        "no-level-suffices",
        "dpfedadamw/cli/signatures.py",
        "result.is_intact and (result.level or 0) < require_level",
        "result.is_intact and (result.level or require_level) < require_level",
        "verify --require-level 3 ends with 0 for a run whose audit failed",
        (
            "tests/dpfedadamw/cli/test_signatures.py::test_a_run_without_the_level_that_is_required_ends_with_1",
        ),
    ),
    Weakening(
        "predictions-for-everybody",
        "dpfedadamw/cli/predict.py",
        "as_csv([columns, *lines]).encode(), PRIVATE_MODE)",
        "as_csv([columns, *lines]).encode(), 0o644)",
        "predictions for patients are readable by every user of the machine",
        ("tests/dpfedadamw/run/test_prediction.py::test_the_command_writes_what_the_run_answers",),
    ),
    Weakening(
        "a-charge-in-place-of-an-unrecorded-one",
        "dpfedadamw/extensions/recorders/updates.py",
        """if self._charge is not None:
            raise UpdateRecorderError("a round""",
        """if self._charge is charge:
            raise UpdateRecorderError("a round""",
        "a recorded round's noise is drawn, and the round never recorded",
        (
            "tests/dpfedadamw/extensions/recorders/test_updates.py::test_updates_of_other_shapes_and_rounds_out_of_order_are_refused",
        ),
    ),
    Weakening(
        "a-repeated-round-as-it-first-was",
        "dpfedadamw/federation/rounds.py",
        """                if index in self._steps:
                    self._before = (0, 0)
""",
        "",
        "a resumed run corrects its second moment by steps that a repeated round did not take",
        (
            "tests/dpfedadamw/federation/test_charged_rounds.py::test_a_round_that_was_repeated_counts_once_as_it_ended",
        ),
    ),
    Weakening(
        "labels-above-one-half-of-a-score",
        "dpfedadamw/run/prediction.py",
        "return (self.outputs > 0).astype(np.int64)",
        "return (self.outputs > 0.5).astype(np.int64)",
        "predict leaves out labels whose probability is between 50 and 62 %",
        (
            "tests/dpfedadamw/run/test_prediction.py::test_a_label_is_told_where_it_is_more_likely_than_not",
        ),
    ),
    Weakening(
        "the-best-evaluation-of-a-run-from-python",
        "dpfedadamw/api/running.py",
        "return evaluated[-1] if evaluated else None",
        "return max(evaluated) if evaluated else None",
        "run.accuracy is that of a round that nobody published",
        (
            "tests/dpfedadamw/api/test_running.py::test_a_run_has_the_accuracy_and_measures_of_its_last_evaluation_and_not_of_its_best",
        ),
    ),
    Weakening(
        "a-missing-cell-on-another-scale",
        "dpfedadamw/data/features.py",
        "empty = None if column.missing is None else _scaled(bend(column.missing), low, high)",
        "empty = None if column.missing is None else _scaled(column.missing, low, high)",
        "an empty cell counts as another value than the spec says",
        (
            "tests/dpfedadamw/data/test_features.py::test_an_empty_cell_is_what_the_cell_that_it_counts_as_is",
        ),
    ),
    Weakening(
        "classes-in-the-order-of-the-alphabet",
        "dpfedadamw/data/formats/tables.py",
        "return tuple(sorted(found, key=lambda name: (int(name), name)))",
        "return tuple(sorted(found))",
        "classes that are numbers come in an order that no reader expects",
        (
            "tests/dpfedadamw/data/test_readers.py::test_classes_that_are_numbers_are_in_the_order_of_numbers",
        ),
    ),
    Weakening(
        "promises-rounded-to-the-nearest",
        "dpfedadamw/extensions/deployment/promise.py",
        'return f"{math.ceil(epsilon * 100.0) / 100.0:.2f}"',
        'return f"{epsilon:.2f}"',
        "a hospital agrees to a smaller ε than it may spend",
        (
            "tests/dpfedadamw/extensions/deployment/test_promise.py::test_no_number_that_an_owner_agrees_to_is_rounded_down",
        ),
    ),
    Weakening(
        "a-probe-that-stays-where-it-is",
        "dpfedadamw/extensions/recorders/gradients.py",
        "return self._at(0.5 if elsewhere else 1.0, 0.0, inputs, labels, clients, drawn)",
        "return self._at(1.0, 0.0, inputs, labels, clients, drawn)",
        "a recorded loop is asked for its sum at other parameters, and answers at the same",
        (
            "tests/dpfedadamw/extensions/recorders/test_gradients.py::test_the_probe_asks_for_the_sum_at_the_trained_parameters_and_at_others_twice",
        ),
    ),
    Weakening(
        "no-privacy-wins-against-privacy",
        "dpfedadamw/extensions/sweeps/differences.py",
        "return bool(one.epsilons and other.epsilons) and max(both) <= (1 + _EQUAL) * min(both)",
        "return max(both) <= (1 + _EQUAL) * min(both)",
        "a run without privacy wins against a private one in the table of a paper",
        (
            "tests/dpfedadamw/extensions/sweeps/test_differences.py::test_a_run_without_privacy_neither_wins_nor_loses_against_a_private_one",
        ),
    ),
    Weakening(
        "a-job-with-the-rights-to-leave-its-cell",
        "dpfedadamw/extensions/gate/cell.py",
        "    _give_up()\n    os.environ",
        "    os.environ",
        "a job mounts the ledger and other shards into its cell",
        ("tests/dpfedadamw/extensions/gate/test_cells.py",),
    ),
    Weakening(
        "files-of-the-gate-left-open-in-a-cell",
        "dpfedadamw/extensions/gate/cell.py",
        "if number > 2 and number != mark:",
        "if number > 9 and number != mark:",
        "a job writes to the gate by a file that it did not open, or reads another's log",
        ("tests/dpfedadamw/extensions/gate/test_cells.py",),
    ),
    Weakening(
        "shards-that-draw-the-same-numbers",
        "dpfedadamw/extensions/gate/cell.py",
        'sys.modules["numpy.random"].seed()',
        'sys.modules["numpy.random"].get_state()',
        "every shard of a site takes its batches in the same order, in every round",
        ("tests/dpfedadamw/extensions/gate/test_cells.py",),
    ),
    Weakening(
        "calls-that-cells-share-left-to-a-job",
        "dpfedadamw/extensions/gate/cell.py",
        "    for one in _FORBIDDEN[machine]:\n",
        "    for one in ():\n",
        "one shard's job leaves a record in a key of the kernel, where the next shard's reads it",
        ("tests/dpfedadamw/extensions/gate/test_cells.py",),
    ),
    Weakening(
        "a-window-that-waits-for-a-cell-to-die",
        "dpfedadamw/extensions/gate/windows.py",
        "cell.end(max(0.0, end - time.monotonic()))",
        "cell.end()",
        "a job that leaves processes behind makes other shards late, so one record moves several",
        ("tests/dpfedadamw/extensions/gate/test_windows.py",),
    ),
    Weakening(
        "a-release-that-is-faster-without-answers",
        "dpfedadamw/extensions/gate/mechanism.py",
        "        missing = values is None\n",
        "        missing = values is None\n        if missing:\n            continue\n",
        "the time of a reply says how many shards have answered, without noise",
        ("tests/dpfedadamw/extensions/gate/test_mechanism.py",),
    ),
    Weakening(
        "a-rollback-that-is-refused-once",
        "dpfedadamw/extensions/gate/door.py",
        "known, self._seen) as found",
        "known, known and known.head) as found",
        "a site whose ledger was put back from yesterday's backup spends its budget twice",
        ("tests/dpfedadamw/extensions/gate/test_book.py",),
    ),
    Weakening(
        "mu-of-one-trial-for-the-best-of-several",
        "dpfedadamw/accounting/trade_off.py",
        "return stated if selected else {",
        "return {",
        "the mu of a private selection is that of one trial, which promises too much",
        ("tests/dpfedadamw/accounting/test_record_level.py",),
    ),
    Weakening(
        "kinks-beyond-rounding-forgiven",
        "dpfedadamw/privacy/spot_check.py",
        "(2.0, 8.0, 32.0)",
        "(2.0, 8.0, 32e3)",
        "an engine's mistake passes the spot check as if rounding could explain it",
        ("tests/dpfedadamw/privacy/test_spot_check.py",),
    ),
)
