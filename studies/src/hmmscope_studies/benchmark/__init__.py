"""HMM-bench: frozen tasks with exact optima, and submissions that anyone can score again."""

from typing import TYPE_CHECKING

from hmmscope.facade import lazily

if TYPE_CHECKING:
    from hmmscope_studies.benchmark.checking import check_submission as check_submission
    from hmmscope_studies.benchmark.submission import benchmark as benchmark

__getattr__, __dir__, __all__ = lazily(__name__)
