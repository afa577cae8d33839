"""Faults in inference that the tests must detect: the original code, its faulty replacement, and tests that then fail.

`test_planted_faults.py` plants each of them into a copy of the package and runs the tests. The original code must occur
exactly once in its file, so that this table stays in agreement with the source.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault.

    Attributes:
        name: Short description.
        file: Path below src/hmmscope.
        original: Code that occurs once in the file.
        planted: Faulty replacement.
        tests: Node ids below tests/; at least one test must fail.
    """

    name: str
    file: str
    original: str
    planted: str
    tests: tuple[str, ...]


#: Small inputs take another implementation, so faults in loops over sequences need tests that force these loops.
_BOTH = "inference/test_side_by_side.py::test_both_roads_give_one_answer"
_UNDERFLOW = "inference/test_side_by_side.py::test_nothing_is_lost_to_underflow"
_ENUMERATED = "inference/test_filtering.py::test_filter_beliefs_equals_enumeration"
_MIXTURE = "inference/test_filtering.py::test_filter_mixture_equals_enumeration"
_SMOOTHED = "inference/test_smoothing.py::test_smoothing_equals_enumeration"
_ROADS = "inference/test_compiled.py::test_both_roads_of_every_answer"
_LONG = "inference/test_long_sequences.py::"

IN_INFERENCE = (
    Fault(
        "transposed transition matrix",
        "kernels/simd_over_sequences.py",
        "move(width, law, step[0], following)",
        "move(width, law, step[0].T.copy(), following)",
        (_BOTH,),
    ),
    Fault(
        "weights of a mixture ignored",
        "kernels/mixtures.py",
        "weight[m, :] = weights[m]",
        "weight[m, :] = 1 / components",
        (_MIXTURE,),
    ),
    Fault(
        "smoothing off by one",
        "kernels/simd_over_sequences.py",
        "        one, other = now[i], ahead[i]\n",
        "        one, other = now[i], weight[i]\n",
        (_ROADS,),
    ),
    Fault(
        "back-pointer of the time before",
        "kernels/viterbi.py",
        "at = pointers[t, at, lane]",
        "at = pointers[max(t - 1, 0), at, lane]",
        (_BOTH,),
    ),
    Fault(
        "half the Kalman gain",
        "processes/kalman.py",
        "mean = mean + innovation @ step.gain.T",
        "mean = mean + 0.5 * innovation @ step.gain.T",
        ("inference/test_kalman.py::test_filter_is_gaussian_conditioning",),
    ),
    Fault(
        "emission of the symbol before",
        "kernels/simd_over_sequences.py",
        "row[lane] = other[lane] * emission[np.uint64(seen[lane])",
        "row[lane] = other[lane] * emission[np.uint64(max(seen[lane] - size, 0))",
        (_BOTH,),
    ),
    Fault(
        "no initial law",
        "processes/params.py",
        "return self.initial_MS[component] * emission_VS, self",
        "return emission_VS / emission_VS.shape[1], self",
        (_ENUMERATED,),
    ),
    Fault(
        "starts of sequences ignored",
        "kernels/simd_over_sequences.py",
        "seen, starts[t], alive, law",
        "seen, t == 0, alive, law",
        (_BOTH,),
    ),
    Fault(
        "a restart revives an impossible sequence",
        "kernels/simd_over_sequences.py",
        "alive[lane] = alive[lane] if norm[lane] > 0.0 else 0.0",
        "alive[lane] = 1.0",
        (_BOTH,),
    ),
    Fault(
        "epsilon in place of zero",
        "inference/compiled.py",
        "terms = np.log(norms)",
        "terms = np.log(norms + 1e-300)",
        (_ENUMERATED,),
    ),
    Fault(
        "no logarithms for what may vanish",
        "inference/compiled.py",
        "(1e-100, 8)",
        "(0.0, 8)",
        (_UNDERFLOW,),
    ),
    Fault(
        "what may vanish is looked for too rarely",
        "inference/compiled.py",
        "every = steps_between_divisions(least, every)",
        "every = 64",
        ("../quality/test_loops_over_sequences.py::test_tiny_entries",),
    ),
    Fault(
        "rows in logarithms forget the emission",
        "kernels/underflow_safe.py",
        "_balanced(weight * emission[seen, j], top)",
        "_balanced(weight, top)",
        ("inference/test_forward.py::test_a_state_that_fell_below_every_float_comes_back",),
    ),
    Fault(
        "transposed labelled matrix",
        "kernels/simd_over_sequences.py",
        "np.uint64(i * size + j)",
        "np.uint64(j * size + i)",
        (_BOTH,),
    ),
    Fault(
        "first impossible position off by one",
        "inference/filtering.py",
        "return torch.where(found, impossible.to(torch.int8).argmax(1), -1)",
        "return torch.where(found, impossible.to(torch.int8).argmax(1) + 1, -1)",
        ("inference/test_forward.py::test_first_impossible",),
    ),
    Fault(
        "prediction of the observation that was just seen",
        "processes/params.py",
        "return self.transition_MSS[component] @ self.symbols()[component]",
        "return self.symbols()[component]",
        (_ENUMERATED,),
    ),
    Fault(
        "padding taken for observations",
        "inference/ragged.py",
        "inside = torch.arange(time, device=counts.device) < counts",
        "inside = torch.arange(time, device=counts.device) <= counts",
        ("inference/test_smoothing.py::test_padding_does_not_matter",),
    ),
    Fault(
        "answers beyond the end of a sequence",
        "inference/ragged.py",
        "if bool(inside_BT.all()):",
        "if True:",
        ("inference/test_filtering.py::test_a_column_with_the_lengths_of_its_sequences",),
    ),
    Fault(
        "a mixture predicts from beliefs not moved on",
        "processes/params.py",
        "return self.transition_MSS @ self.symbols()",
        "return self.symbols()",
        (_MIXTURE,),
    ),
    Fault(
        "predictions one step early",
        "inference/mixture_posterior.py",
        "return torch.cat([first, next_observation], 1)[:, :-1]",
        "return torch.cat([first, next_observation], 1)[:, 1:]",
        (
            "inference/test_filtering.py::test_filter_known_component_equals_enumeration",
            "analysis/test_curves.py::test_optimum_has_no_excess",
        ),
    ),
    Fault(
        "sums in float32",
        "kernels/many_states.py",
        "logs[b] += math.log(chance[b]) if",
        "logs[b] = np.float32(logs[b] + math.log(chance[b])) if",
        (f"{_LONG}test_many_states",),
    ),
    Fault(
        "underflow taken for impossibility",
        "inference/compiled.py",
        "in zip(work.rows[doubtful].tolist(), work.lengths[doubtful].tolist(), strict=True):",
        "in ():",
        ("inference/test_fast.py::test_what_vanishes_is_not_impossible",),
    ),
    Fault(
        "smoothing across restarts",
        "kernels/simd_over_sequences.py",
        "ends = t + 1 == longest or starts[t + 1]",
        "ends = t + 1 == longest",
        (_ROADS,),
    ),
    Fault(
        "hindsight loses what seemed negligible",
        "inference/compiled_backward.py",
        "for row, beliefs in filtered.underflow_risk.items():",
        "for row, beliefs in ():",
        ("inference/test_smoothing.py::test_what_seemed_negligible_comes_back",),
    ),
    Fault(
        "ties to the highest state",
        "kernels/simd_over_states.py",
        "top = i if here[i] > here[top] else top",
        "top = i if here[i] >= here[top] else top",
        ("inference/test_paths.py::test_ties_go_to_the_lowest_state",),
    ),
    Fault(
        "a best path without its emissions",
        "kernels/viterbi.py",
        "into[lane] += table[",
        "into[lane] += 0 * table[",
        (_BOTH,),
    ),
    Fault(
        "draws of what has weight zero",
        "kernels/underflow_safe.py",
        "if weights[i] > 0.0:\n                    later = i",
        "if True:\n                    later = i",
        ("inference/test_paths.py::test_weight_zero_is_never_drawn",),
    ),
    Fault(
        "drawn paths along transposed transitions",
        "kernels/underflow_safe.py",
        "column = transposed[0 if",
        "column = step[0 if",
        ("inference/test_paths.py::test_drawn_paths_follow_the_posterior",),
    ),
    Fault(
        "a Kalman prediction without noise",
        "processes/kalman.py",
        "predicted = transition @ covariance @ transition.T + process.state_noise",
        "predicted = transition @ covariance @ transition.T + 0.5 * process.state_noise",
        ("inference/test_kalman.py::test_filter_is_gaussian_conditioning",),
    ),
    Fault(
        "memory that starts from the initial law",
        "inference/memory.py",
        "prior_S = stationary_distribution(hmm)",
        "prior_S = hmm.initial",
        ("inference/test_memory.py::test_the_linear_predictor_of_transitions_that_emit",),
    ),
    Fault(
        "a certificate one step too good",
        "processes/params.py",
        "return self.transition_MSS[:1], memory_length",
        "return self.transition_MSS[:1], memory_length + 1",
        ("inference/test_memory.py::test_reference_certificate",),
    ),
    Fault(
        "a process taken for unifilar",
        "inference/entropy.py",
        "> 0).sum(2) <= 1).all()):",
        "> 0).sum(2) <= 2).all()):",
        ("inference/test_entropy.py::test_the_rate_of_the_simple_nonunifilar_source",),
    ),
    Fault(
        "beliefs that are not equal merged",
        "inference/mixed_states.py",
        "if distance <= self.tolerance:",
        "if distance <= self.tolerance + 1e-14 or True:",
        ("inference/test_entropy.py::test_number_and_position_of_mixed_states",),
    ),
    Fault(
        "observability twice too large",
        "inference/observability.py",
        "norms = np.abs(inverse[i] - inverse[j]).sum(1) / 2",
        "norms = np.abs(inverse[i] - inverse[j]).sum(1) / 4",
        ("inference/test_observability.py::test_reference_values",),
    ),
    Fault(
        "distances to states that are impossible",
        "inference/mixing.py",
        "* (possible_BI[:, :, None] & possible_BI[:, None, :])",
        "* 1",
        ("inference/test_mixing.py::test_distances_equal_enumeration",),
    ),
    Fault(
        "a stationary law by the wrong elimination",
        "kernels/fixed_order.py",
        "leaving += work[last, j]",
        "leaving = max(leaving, work[last, j])",
        ("inference/test_memory.py::test_the_stationary_law_is_stationary",),
    ),
)
