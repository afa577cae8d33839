"""Permanent digests of HMM-bench's tasks by version, and the descriptions that enter these digests."""

DIGESTS = {
    "1": {
        "parity": "6b7464822d56bf6b6a5242c4b3e3a809ee59fd389d6f1b154d0f77179a4f3b65",
        "z60": "3ae8cedaa6fb76a1d468e67200e0398b65e52c9bbe901d2301dcd74b21b775f2",
        "a5": "c2e6252f39ad122c1ef67db6053dc725dec4d95f58e946e9e5ecb6b138cfb8a4",
        "s5": "7b85e0d06f803d3c5ffb440ee4cadeea4a98bf1d0667998a986ffa6531eb0b93",
        "forget-quick": "db3dbfd4b228d2f0cf55ca99a218ac8ce46895b5799386f2c19f05a15012004c",
        "forget-middling": "c2536ae360200512d431b77dbab2372f6d0285b16aae96eeec5d1170755edf96",
        "forget-slow": "96912ec34c46ab9f87650cf9b5e466d9eeb86c8e5c8bca27a7f2b1425ad5d8c7",
        "asked-rarely": "dcdb366c4e75d569669ec18466f7fa8bb17fd744cc5f9cdf37e83191955cb2a7",
        "composed": "fa0b9b1a6e0ac3232025845e765d008303bc04ef0a9cd73d71d464dbf77b470a",
        "markov": "7807422884a5ca2184c805a2730e102206038a5fa09622cebcb6326b5084b74a",
        "told": "d56777836db7d5e33395a2b510d609eb4579d927260edd2f62cfb4a4bf27690e",
        "mess3": "0a88436d7ed682276e0b5b7c01d7f348847b527ab01e904420baf0b5620d05ef",
        "rrxor": "4f46c88f06b8438bcb64f37cd8a26962382946d809eee22630f1cae2d216b863",
        "linear-gaussian": "f9b8bd5588c3c7fa0a62ab8fcfe22f98929f8d8511fcf10b55d6a81fa814f03f",
    },
    "2": {
        "parity": "5c184cb4f4202a5a8a13e0d26e8ebd43fc5e1bf582c990b69593bc830b4e51c9",
        "z60": "6e0b56bc97ee4f117e391ea168f6ef87fd7a2a504f1336f7b17bde15cc5cdcad",
        "a5": "da2b7e74e64db4da660d4c98aae07db8f08dc0a3d35ced12817d7a5559aae0b6",
        "s5": "1a5405536a1b7f1965550c2a0c4faf340c7ed07311a9233e59d8234d3325ec63",
        "forget-quick": "996651cbee0b391f6cf486210e3597e857631cd266e2472e091559993465d811",
        "forget-middling": "d4f3aa5242d95f0a127325ccd7cc98eec2af602b23d7eeb8652951b4ddf7677e",
        "asked-rarely": "b92b646e96671adfea8896151935d1afec6b3b0db78b5239e30303f71e6252ea",
        "more-states": "17ed7509eeca70a15d9aaf80738400714f12579bc486e0c856931bce79b4c9b8",
        "composed": "045baddb912636a30c715c0af97929fd804f71c66ad5767a62cb5445f1e4c04a",
        "which-cycle": "765145f3da8c50bf7cb31483a0bdc0774acb1dd4614cfce6112bda9b968a1da0",
        "markov": "d382577312b5f05da1fe315e53ee5df1a860d463da7e09f902a33e5dbcfa32f2",
        "told": "c82b8b3c03148be7cc3e76c6a0f2879c0dc366662482398c28ddcb4ed151c7fb",
        "rrxor": "db58d307f3721d60c01ecd9a5816b87c8626d3f9a70a39e9d4b6a6d781996eb3",
        "linear-gaussian": "9f71bd26e06aa2759098347170986aabb345286ef0078ed370f15093f1625767",
    },
}

#: Kind and description of each task as in its digest; cards have the kind. Readers see the fields `kind` and `about` of the
#: task, which may be reworded.
WORDS = {
    "parity": ("state tracking", "The parity of the bits so far."),
    "z60": ("state tracking", "The sum modulo 60 of two numbers, as they come: abelian."),
    "a5": ("state tracking", "The product so far of two elements of A5, the smallest group that is not solvable."),
    "s5": ("state tracking", "The product so far of two permutations of five things."),
    "forget-quick": (
        "forgetting",
        "A noisy cycle of 8 states and 4 symbols that is followed with probability 0.6: it forgets quickly.",
    ),
    "forget-middling": (
        "forgetting",
        "A noisy cycle of 8 states and 4 symbols that is followed with probability 0.9: it forgets middlingly.",
    ),
    "forget-slow": (
        "forgetting",
        "A noisy cycle of 8 states and 4 symbols that is followed with probability 0.99: it forgets slowly.",
    ),
    "more-states": (
        "sparse supervision",
        "Cyclic-HARD of 8 states: the state is shown once in eight actions, and all actions since then determine it.",
    ),
    "which-cycle": ("in context", "One of 16 noisy cycles of 8 states and 4 symbols, drawn for each sample."),
    "asked-rarely": (
        "sparse supervision",
        "Cyclic-HARD: the state shows once in sixteen actions, and is certain to who has followed all of them.",
    ),
    "composed": (
        "in context",
        "A pair of a cycle and an emission, of 12 states and 6 symbols, that was never seen in training.",
    ),
    "markov": ("in context", "A Markov chain of four symbols that is new in every sample."),
    "told": (
        "HMM in the prompt",
        "An HMM of 2 states and 2 symbols, new in every sample, whose matrices stand in the prompt.",
    ),
    "mess3": ("belief geometry", "Mess3, whose beliefs fill a fractal."),
    "rrxor": ("belief geometry", "Random-random-XOR: two fair bits, then their exclusive or."),
    "linear-gaussian": (
        "real numbers",
        "A linear system in two dimensions with orthogonal matrices and unit noise; the optimum is the Kalman filter.",
    ),
}
