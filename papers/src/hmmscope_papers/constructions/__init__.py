"""Networks with weights from the proofs of theorems."""

from typing import TYPE_CHECKING

from hmmscope.facade import lazily

if TYPE_CHECKING:
    from hmmscope_papers.constructions.arbitrary_precision import FilterInBits as FilterInBits
    from hmmscope_papers.constructions.deterministic_rnn import limits_theorem5_1 as limits_theorem5_1
    from hmmscope_papers.constructions.driven import driven_system as driven_system
    from hmmscope_papers.constructions.finite_precision import rounded_gelu_product as rounded_gelu_product
    from hmmscope_papers.constructions.finite_precision import rounding_errors as rounding_errors
    from hmmscope_papers.constructions.induction import induction_network as induction_network
    from hmmscope_papers.constructions.multitask import MultiTaskOptions as MultiTaskOptions
    from hmmscope_papers.constructions.multitask import multitask_theorem1 as multitask_theorem1
    from hmmscope_papers.constructions.multitask import multitask_theorem2 as multitask_theorem2
    from hmmscope_papers.constructions.multitask_network import MultiTaskTransformer as MultiTaskTransformer
    from hmmscope_papers.constructions.parity import delta_rule_parity as delta_rule_parity
    from hmmscope_papers.constructions.prefix_parts import gelu_product as gelu_product
    from hmmscope_papers.constructions.prefix_parts import layers_needed as layers_needed
    from hmmscope_papers.constructions.prefix_product import limits_theorem5_2 as limits_theorem5_2
    from hmmscope_papers.constructions.regression import LeastSquares as LeastSquares
    from hmmscope_papers.constructions.regression import RegressionSamples as RegressionSamples
    from hmmscope_papers.constructions.stochastic_filter import belief_operators as belief_operators
    from hmmscope_papers.constructions.stochastic_filter import limits_theorem5_3 as limits_theorem5_3

__getattr__, __dir__, __all__ = lazily(__name__)
