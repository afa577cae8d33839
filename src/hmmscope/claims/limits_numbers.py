"""Numbers that [Limits] prints in Tables 3 and 4."""

#: Table 3: final training loss by task and model; CT is with curriculum training.
TABLE_3: dict[str, dict[str, float]] = {
    "matmul": {
        "RNN": 2.3475e-6,
        "5 layers": 0.10927,
        "5 layers, CT": 0.09885,
        "6 layers": 0.11073,
        "6 layers, CT": 0.10999,
    },
    "cyclic-det": {
        "RNN": 2.2662e-7,
        "5 layers": 0.67059,
        "5 layers, CT": 0.76278,
        "6 layers": 0.68182,
        "6 layers, CT": 0.77835,
    },
    "cyclic-rnd": {"RNN": 3.7769e-6, "5 layers": 1.24707, "6 layers": 1.13770},
    "ran-hmm": {"RNN": 1.40139, "2 layers": 1.40107},
    "ran-lds": {"RNN": 2.58242, "2 layers": 2.61545},
}
#: Table 4: training loss of the 7-layer Transformer by epoch (of 100, of MatMul 200).
TABLE_4: dict[str, dict[int, float]] = {
    "cyclic-det": {60: 0.014, 70: 0.006, 80: 0.004, 90: 0.005, 100: 0.003},
    "cyclic-rnd": {60: 1.506, 70: 1.503, 80: 1.503, 90: 1.502, 100: 1.503},
    "matmul": {
        **{60: 0.1069, 70: 0.0999, 80: 0.0969, 90: 0.0934, 100: 0.0916},
        **{125: 0.0894, 150: 0.0885, 175: 0.0875, 200: 0.0870},
    },
}
