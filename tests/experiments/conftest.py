"""Tables of these tests are made up, of few seeds with any spread: their rules are judged without asking for power."""

from made_up_tables import whatever_its_power, whichever_seeds_are_alike  # noqa: F401 - fixtures
