"""Exact answers about small HMMs, in loops and fractions. Imports nothing of ours.

An HMM is three nested lists of fractions, (initial, transition, emission); `exact` makes them from arrays. `starts[t]`
says that state t is drawn anew from the initial law. Where a prefix is impossible, laws given it are all zero.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

UNIT = 2**32


def exact(matrices):
    """Arrays as nested lists of fractions; floating-point numbers are taken as they are."""

    def nested(entry):
        return [nested(item) for item in entry] if isinstance(entry, list) else Fraction(entry)

    return tuple(nested(matrix.tolist()) for matrix in matrices)


def first_only(observations):
    """The starts of one unbroken sequence."""
    return [t == 0 for t in range(len(observations))]


@dataclass
class Answer:
    """What is known after each observation t.

    prefix[t] = P(o_0..o_t);  belief[t][s] = P(state t = s | o_0..o_t);  following[t][v] = P(o_{t+1} = v | o_0..o_t)
    """

    prefix: list
    belief: list
    following: list


def enumerate_hidden_paths(hmm, observations, starts=None):
    """Every hidden path with P(path, o_0..o_t), for each t; a path of probability zero is left out from there on."""
    initial, transition, emission = hmm
    starts = starts or first_only(observations)
    paths, history = {(): Fraction(1)}, []
    for symbol, start in zip(observations, starts, strict=True):
        longer = {}
        for path, probability in paths.items():
            for state in range(len(initial)):
                arrive = initial[state] if start else transition[path[-1]][state]
                if arrive * emission[state][symbol] > 0:
                    longer[(*path, state)] = probability * arrive * emission[state][symbol]
        paths = longer
        history.append(paths)
    return history


def by_enumeration(hmm, observations, starts=None):
    """The answer by summing over hidden paths."""
    initial, transition, emission = hmm
    starts = starts or first_only(observations)
    answer = Answer([], [], [])
    for t, paths in enumerate(enumerate_hidden_paths(hmm, observations, starts)):
        total = sum(paths.values(), Fraction(0))
        joint = [Fraction(0)] * len(initial)
        following = [Fraction(0)] * len(emission[0])
        for path, probability in paths.items():
            joint[path[-1]] += probability
        for state, mass in enumerate(joint):
            for later in range(len(initial)):
                arrive = initial[later] if t + 1 < len(starts) and starts[t + 1] else transition[state][later]
                for symbol in range(len(emission[0])):
                    following[symbol] += mass * arrive * emission[later][symbol]
        answer.prefix.append(total)
        answer.belief.append([mass / total if total else Fraction(0) for mass in joint])
        answer.following.append([mass / total if total else Fraction(0) for mass in following])
    return answer


def by_forward(hmm, observations, starts=None):
    """P(o_0..o_t) and beliefs by the forward recursion in whole numbers, for sequences too long to enumerate.

    All probabilities must be multiples of 2^-32. The belief is of the last time only.
    """
    initial, transition, emission = (
        [int(x * UNIT) for x in hmm[0]],
        *([[int(x * UNIT) for x in row] for row in m] for m in hmm[1:]),
    )
    starts = starts or first_only(observations)
    states = range(len(initial))
    joint, scale, prefix = [1], 0, []
    for symbol, start in zip(observations, starts, strict=True):
        if start:
            arrive = [sum(joint) * initial[state] for state in states]
        else:
            arrive = [sum(joint[before] * transition[before][state] for before in states) for state in states]
        joint = [arrive[state] * emission[state][symbol] for state in states]
        scale += 64
        prefix.append((sum(joint), scale))
    total = sum(joint)
    belief = [Fraction(mass, total) if total else Fraction(0) for mass in joint]
    return [log_of_ratio(mass, 1 << bits) for mass, bits in prefix], belief


def mixture_by_enumeration(weights, hmms, observations, starts=None):
    """(P(o_0..o_t), P(component | o_0..o_t), P(o_{t+1} | o_0..o_t)) for each t."""
    answers = [by_enumeration(hmm, observations, starts) for hmm in hmms]
    prefix, posterior, following = [], [], []
    for t in range(len(observations)):
        joint = [weight * answer.prefix[t] for weight, answer in zip(weights, answers, strict=True)]
        total = sum(joint, Fraction(0))
        law = [mass / total if total else Fraction(0) for mass in joint]
        num_symbols = len(hmms[0][2][0])
        prefix.append(total)
        posterior.append(law)
        following.append(
            [sum(p * a.following[t][v] for p, a in zip(law, answers, strict=True)) for v in range(num_symbols)]
        )
    return prefix, posterior, following


def enumerate_labelled_paths(hmm, observations, starts=None):
    """As `enumerate_hidden_paths` for (initial, labelled): states after each observation; start states are summed over."""
    initial, labelled = hmm
    starts = starts or first_only(observations)
    paths, history = {(): Fraction(1)}, []
    for symbol, start in zip(observations, starts, strict=True):
        longer = {}
        for path, probability in paths.items():
            before = dict(enumerate(initial)) if start else {path[-1]: Fraction(1)}
            for state in range(len(initial)):
                arrive = sum(mass * labelled[symbol][origin][state] for origin, mass in before.items())
                if arrive > 0:
                    longer[(*path, state)] = probability * arrive
        paths = longer
        history.append(paths)
    return history


def smoothed_from_paths(paths, num_states, time):
    """(P(state t | all), P(state t, state t+1 | all)) from every path with its joint probability; zeros if there is none."""
    total = sum(paths.values(), Fraction(0))
    single = [[Fraction(0)] * num_states for _ in range(time)]
    pairs = [[[Fraction(0)] * num_states for _ in range(num_states)] for _ in range(max(time - 1, 0))]
    for path, probability in paths.items():
        for t, state in enumerate(path):
            single[t][state] += probability / total
            if t + 1 < time:
                pairs[t][state][path[t + 1]] += probability / total
    return single, pairs


def by_forward_backward(hmm, observations):
    """P(state t | o_0..o_{T-1}) by the forward and backward recursions in whole numbers, scaled by powers of two.

    All probabilities must be multiples of 2^-32. Zeros for an impossible sequence.
    """
    initial = [int(x * UNIT) for x in hmm[0]]
    transition, emission = ([[int(x * UNIT) for x in row] for row in m] for m in hmm[1:])
    states = range(len(initial))
    forward = [[initial[s] * emission[s][observations[0]] for s in states]]
    for symbol in observations[1:]:
        arrive = [sum(forward[-1][r] * transition[r][s] for r in states) for s in states]
        forward.append([arrive[s] * emission[s][symbol] for s in states])
    backward = [[1 for _ in states]]
    for symbol in reversed(observations[1:]):
        after = [emission[s][symbol] * backward[0][s] for s in states]
        backward.insert(0, [sum(transition[r][s] * after[s] for s in states) for r in states])
    answer = []
    for ahead, behind in zip(forward, backward, strict=True):
        joint = [a * b for a, b in zip(ahead, behind, strict=True)]
        answer.append([Fraction(mass, sum(joint)) if sum(joint) else Fraction(0) for mass in joint])
    return answer


def mixed_states_of(initial, labelled):
    """Every belief that a word leads to, as tuples of fractions; for processes with finitely many."""
    size = range(len(initial))
    found, waiting = {tuple(initial)}, [tuple(initial)]
    while waiting:
        belief = waiting.pop()
        for matrix in labelled:
            joint = [sum(belief[i] * matrix[i][j] for i in size) for j in size]
            if sum(joint):
                after = tuple(mass / sum(joint) for mass in joint)
                if after not in found:
                    found.add(after)
                    waiting.append(after)
    return found


def first_law(hmm):
    """P(o_0)."""
    initial, _, emission = hmm
    return [sum(initial[s] * emission[s][v] for s in range(len(initial))) for v in range(len(emission[0]))]


def log_of(probability):
    """Natural logarithm of a fraction in [0, 1]."""
    return log_of_ratio(probability.numerator, probability.denominator)


def log_of_ratio(numerator, denominator):
    """log(numerator / denominator) of whole numbers, right to the last digits also near one and below every float."""
    if numerator == 0:
        return -math.inf
    if 2 * numerator >= denominator:
        return math.log1p((numerator - denominator) / denominator)
    shift = denominator.bit_length() - numerator.bit_length()
    return math.log((numerator << shift) / denominator) - shift * math.log(2)


def completions(observations, num_symbols):
    """Every sequence that agrees with one whose missing observations are None."""
    found = [()]
    for seen in observations:
        found = [(*start, v) for start in found for v in (range(num_symbols) if seen is None else (seen,))]
    return found


def paths_with_gaps(enumerate_paths, hmm, observations, num_symbols, starts=None):
    """P(path, all that was observed) of every hidden path: summed over all completions. None is a missing observation."""
    joint = {}
    for whole in completions(observations, num_symbols):
        for path, probability in enumerate_paths(hmm, whole, starts)[-1].items():
            joint[path] = joint.get(path, Fraction(0)) + probability
    return joint
