"""The digests of the tasks of HMM-bench, version 1. They never change: another task is another version."""

DIGESTS = {
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
}
