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
