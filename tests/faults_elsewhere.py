"""Faults in random bits, corpora, training and storage that the tests must catch; as in `faults`."""

from faults import Fault

_POWER = "storage/test_rundir_attacks.py::test_power_cuts_lose_nothing"
_SAMPLED = "corpora/test_corpus.py::test_compiled_sampler_equals_plain"
_LONG = "inference/test_long_sequences.py::"

IN_BITS = (
    Fault(
        "nine rounds of Philox",
        "kernels/philox.py",
        "for _ in range(10):",
        "for _ in range(9):",
        ("kernels/test_kernels.py::test_philox_compiled_equals_plain",),
    ),
    Fault(
        "nine rounds in the plain Philox",
        "kernels/philox.py",
        "ROUNDS = 10",
        "ROUNDS = 9",
        ("kernels/test_kernels.py::test_philox_known_answers",),
    ),
    Fault(
        "one key word advanced for both",
        "kernels/philox.py",
        "k1 = (k1 + _W1) & _LOW",
        "k1 = (k1 + _W0) & _LOW",
        ("kernels/test_kernels.py::test_philox_compiled_equals_plain",),
    ),
    Fault(
        "paths drawn from the counters of components",
        "kernels/cpu.py",
        "np.uint64(block), np.uint64(KIND_PATH), low[lane]",
        "np.uint64(block), np.uint64(KIND_COMPONENT), low[lane]",
        (_SAMPLED,),
    ),
    Fault(
        "one word for the state and the symbol",
        "kernels/cpu.py",
        "state_words, symbol_words = words[2 * half], words[2 * half + 1]",
        "state_words, symbol_words = words[2 * half], words[2 * half]",
        (_SAMPLED,),
    ),
    Fault(
        "counters that overlap for neighbouring samples",
        "kernels/cpu.py",
        "low[lane], high[lane] = samples[row[lane]] & np.uint64(0xFFFFFFFF),",
        "low[lane], high[lane] = samples[row[lane]] & np.uint64(0xFFFFFFFE),",
        (_SAMPLED,),
    ),
    Fault(
        "starts of sequences ignored by the sampler",
        "kernels/cpu.py",
        "                if starts[t]:\n                    for lane",
        "                if t == 0:\n                    for lane",
        (_SAMPLED,),
    ),
    Fault(
        "alias threshold off by one",
        "kernels/alias.py",
        "remainder < entry >> np.uint64(bits)",
        "remainder <= entry >> np.uint64(bits)",
        ("kernels/test_kernels.py::test_draws_change_exactly_at_thresholds",),
    ),
    Fault(
        "an alias table without aliases",
        "kernels/alias.py",
        "(left[column] << bits) | giver)",
        "(left[column] << bits) | column)",
        ("kernels/test_kernels.py::test_alias_tables_hold_random_weights_exactly",),
    ),
    Fault(
        "left-over units to the smallest fractions",
        "kernels/quantise.py",
        "order = np.argsort(-fraction,",
        "order = np.argsort(np.where(fraction < 0.0, 2.0, fraction),",
        ("kernels/test_kernels.py::test_left_over_units_go_to_the_largest_fractions",),
    ),
    Fault(
        "zeros get a unit",
        "kernels/quantise.py",
        "if rows[row, i] > 0.0 else -1.0",
        "if rows[row, i] > 0.0 else 2.0",
        (
            "kernels/test_kernels.py::test_rows_are_quantised_within_a_unit",
            "kernels/test_kernels.py::test_awkward_rows_are_quantised_within_a_unit",
        ),
    ),
    Fault(
        "running mixture not rescaled",
        "kernels/forward.py",
        "total[n] *= scale",
        "total[n] *= 1.0",
        ("inference/test_fast.py::test_the_largest_weight_may_change_hands",),
    ),
    Fault(
        "logarithms of products taken too late",
        "kernels/lanes.py",
        "if least < 1e-100:",
        "if least < 0.0:",
        (f"{_LONG}test_hundred_thousand_observations",),
    ),
    Fault(
        "n-grams across delimiters",
        "kernels/ngram.py",
        "longest = min(max_order, position[t], position[u])",
        "longest = min(max_order, t, u)",
        ("analysis/test_curves.py::test_ngrams_do_not_cross_starts",),
    ),
    Fault(
        "streams of one seed that are the same",
        "seeds.py",
        '"train": 17,',
        '"train": 16,',
        ("processes/test_reading.py::test_streams_are_apart",),
    ),
)

IN_DATA = (
    Fault(
        "a delimiter in the wrong column",
        "corpora/layouts.py",
        "shift = self.sequence_index + 1 if",
        "shift = self.sequence_index if",
        ("corpora/test_layouts.py::test_prompt_columns_are_as_documented",),
    ),
    Fault(
        "the first observation taken for predicted",
        "corpora/layouts.py",
        "return np.flatnonzero(self.columns > 0)",
        "return np.flatnonzero(self.columns >= 0)",
        (
            "corpora/test_layouts.py::test_plain_layout_is_the_observations",
            "training/test_training.py::test_loss_of_sequences_leaves_out_the_first_observation",
        ),
    ),
    Fault(
        "a corpus digest without its seed",
        "corpora/corpus.py",
        "/{self.seed}/{self.stream}/{num_samples}",
        "/{self.stream}/{num_samples}",
        ("corpora/test_corpus.py::test_pinned_bits",),
    ),
    Fault(
        "rows that do not sum to one normalised silently",
        "processes/rows.py",
        "ROW_SUM_TOLERANCE = 1e-6",
        "ROW_SUM_TOLERANCE = 1.0",
        ("processes/test_processes.py::test_bad_matrices_are_refused_by_name_and_row",),
    ),
    Fault(
        "tiny probabilities rounded to zero silently",
        "processes/rows.py",
        "if not self.allow_drop_tiny:",
        "if False:",
        ("processes/test_processes.py::test_tiny_probabilities_are_dropped_only_on_request",),
    ),
    Fault(
        "a process digest of the initial law only",
        "processes/base.py",
        "for rows in (self.weights_M, *self.law.rows()):\n            sha",
        "for rows in (self.weights_M, *self.law.rows()[:1]):\n            sha",
        ("processes/test_processes.py::test_digests_tell_processes_apart",),
    ),
    Fault(
        "the same samples in every step",
        "training/schedules.py",
        "return np.arange(step * spec.batch_size, (step + 1) * spec.batch_size)",
        "return np.arange(spec.batch_size)",
        ("training/test_training.py::test_every_step_has_samples_of_its_own",),
    ),
)

ON_DISK = (
    Fault(
        "digests of a manifest unchecked",
        "storage/store.py",
        'if digest != expected["sha256"]:',
        'if digest == "":',
        ("storage/test_rundir.py::test_flipped_bits_of_a_checkpoint",),
    ),
    Fault(
        "a file not synced",
        "storage/disk.py",
        "            fsync(fd)\n            rename",
        "            pass\n            rename",
        (_POWER,),
    ),
    Fault(
        "the name of a file not synced",
        "storage/disk.py",
        "            os.close(fd)\n        fsync_dir(path.parent)\n",
        "            os.close(fd)\n",
        (_POWER,),
    ),
    Fault(
        "the name of a folder not synced",
        "storage/store.py",
        "    with disk.writing(path, 0):\n        disk.fsync_dir(path.parent)\n\n\ndef _make_and_open",
        "\n\ndef _make_and_open",
        (_POWER,),
    ),
    Fault(
        "metrics not synced before a checkpoint",
        "storage/rundir.py",
        "        self.metrics.sync()\n        journal =",
        "        journal =",
        (_POWER,),
    ),
    Fault(
        "old checkpoints removed before the new one is read back",
        "storage/rundir.py",
        "        verify_folder(target)\n        before =",
        "        before =",
        ("storage/test_rundir.py::test_old_checkpoint_stays_if_the_new_one_does_not_read_back",),
    ),
    Fault(
        "checkpoints with NaN",
        "storage/rundir.py",
        "            if bad := _non_finite(named):\n                raise NonFiniteError",
        "            if (bad := _non_finite(named)) and False:\n                raise NonFiniteError",
        ("storage/test_rundir.py::test_tensor_that_is_not_finite",),
    ),
    Fault(
        "two writers of one run",
        "storage/disk.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB)\n            os.ftruncate",
        "fcntl.LOCK_SH | fcntl.LOCK_NB)\n            os.ftruncate",
        ("storage/test_rundir_attacks.py::test_lock_names_its_owner_and_ends_with_it",),
    ),
    Fault(
        "a journal that is not cut at its checkpoint",
        "storage/journal.py",
        'no line ends at byte {length}")\n        self._cut(length)',
        'no line ends at byte {length}")',
        ("storage/test_store.py::test_journal_truncate",),
    ),
    Fault(
        "a torn line kept",
        "storage/journal.py",
        "        if self.length < len(data):",
        "        if False:",
        ("storage/test_store.py::test_journal_cut_at_every_length",),
    ),
    Fault(
        "lines before a checkpoint unchecked",
        "storage/rundir.py",
        "[:length]) != before:",
        "[:length]) == '':",
        ("storage/test_rundir.py::test_lines_before_a_checkpoint_are_as_they_were_written",),
    ),
    Fault(
        "short writes taken for whole ones",
        "storage/disk.py",
        "rest = rest[write(fd, rest) :]",
        "rest = rest[max(write(fd, rest), len(rest)) :]",
        ("storage/test_rundir_attacks.py::test_short_writes_are_completed_in_files_and_undone_in_journals",),
    ),
)

IN_MEASUREMENTS = (
    Fault(
        "interval of the excess over tokens",
        "analysis/curves.py",
        'bootstrap_means(self.measures["model"]["excess"].mean(1))',
        'bootstrap_means(self.measures["model"]["excess"].ravel())',
        ("analysis/test_scored_runs.py::test_the_interval_of_the_excess_is_over_samples",),
    ),
    Fault(
        "samples of a curve counted four times",
        "analysis/curves.py",
        "bootstrap_means(np.where(infinite, 0.0, averages))",
        "bootstrap_means(np.where(infinite, 0.0, np.tile(averages, (4, 1))))",
        ("analysis/test_scored_runs.py::test_each_sample_of_a_curve_counts_once",),
    ),
    Fault(
        "the trained model in place of the untrained one",
        "runs/pipeline.py",
        "    return model_at(run, 0)",
        "    return run.model",
        ("analysis/test_scored_runs.py::test_the_twin_is_the_model_before_training",),
    ),
    Fault(
        "a score on the samples that were trained on",
        "runs/pipeline.py",
        'evaluation = run.corpus("evaluate")',
        'evaluation = run.corpus("train")',
        ("analysis/test_scored_runs.py::test_a_run_is_scored_on_samples_that_are_not_trained_on",),
    ),
    Fault(
        "an oracle that ignores where sequences start",
        "corpora/targets.py",
        "return optimal_law(observer, batch.observations, starts=starts)[:, self._kept]",
        "return optimal_law(observer, batch.observations)[:, self._kept]",
        ("analysis/test_calibration.py::test_exact_answers_are_calibrated",),
    ),
    Fault(
        "an oracle that is off by one position",
        "corpora/targets.py",
        "return optimal_law(observer, batch.observations, starts=starts)[:, self._kept]",
        "return optimal_law(observer, batch.observations, starts=starts).roll(1, 1)[:, self._kept]",
        ("analysis/test_calibration.py::test_exact_answers_are_calibrated",),
    ),
    Fault(
        "beliefs that are off by one position",
        "corpora/targets.py",
        "return self._with_start(beliefs, self.process.initial_S)",
        "return self._with_start(beliefs.roll(1, 1), self.process.initial_S)",
        ("analysis/test_calibration.py::test_exact_beliefs_are_calibrated",),
    ),
    Fault(
        "an infinite floor taken for none",
        "analysis/curves.py",
        "invalid = miscalibrated(won, num_samples * part)",
        "invalid = None",
        ("analysis/test_calibration.py::test_an_optimum_that_calls_what_happened_impossible_is_invalid",),
    ),
)
