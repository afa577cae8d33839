"""The laboratory: experiments, evidence, studies, sweeps, pages and the command line.

Authors of experiments need only this import:

    from hmmscope.lab import Effect, Experiment, Figure, MeasuredTables, Measurement, Tables, claim, curve, lines
"""

from typing import TYPE_CHECKING

from hmmscope.facade import lazily

if TYPE_CHECKING:
    from hmmscope.lab.evidence.claim import Measurement as Measurement
    from hmmscope.lab.evidence.claim import claim as claim
    from hmmscope.lab.evidence.effects import Effect as Effect
    from hmmscope.lab.evidence.effects import EstimateWithError as EstimateWithError
    from hmmscope.lab.evidence.figure import DenseScatter as DenseScatter
    from hmmscope.lab.evidence.figure import Explorer as Explorer
    from hmmscope.lab.evidence.figure import Figure as Figure
    from hmmscope.lab.evidence.figure import Heatmap as Heatmap
    from hmmscope.lab.evidence.figure import Panel as Panel
    from hmmscope.lab.evidence.figure import Role as Role
    from hmmscope.lab.evidence.figure import Series as Series
    from hmmscope.lab.evidence.finding import Finding as Finding
    from hmmscope.lab.evidence.panels import bar as bar
    from hmmscope.lab.evidence.panels import bars as bars
    from hmmscope.lab.evidence.panels import curve as curve
    from hmmscope.lab.evidence.panels import heatmap as heatmap
    from hmmscope.lab.evidence.panels import level as level
    from hmmscope.lab.evidence.panels import lines as lines
    from hmmscope.lab.evidence.records import ClaimRecord as ClaimRecord
    from hmmscope.lab.evidence.records import Numbers as Numbers
    from hmmscope.lab.evidence.records import RuleParameters as RuleParameters
    from hmmscope.lab.evidence.records import parameter as parameter
    from hmmscope.lab.evidence.rows import PerSeed as PerSeed
    from hmmscope.lab.evidence.rows import Rows as Rows
    from hmmscope.lab.evidence.rows import Tables as Tables
    from hmmscope.lab.evidence.scaling_laws import ScalingLaw as ScalingLaw
    from hmmscope.lab.evidence.scatter_data import BeliefPlane as BeliefPlane
    from hmmscope.lab.evidence.verdicts import Above as Above
    from hmmscope.lab.evidence.verdicts import Always as Always
    from hmmscope.lab.evidence.verdicts import Below as Below
    from hmmscope.lab.evidence.verdicts import Gate as Gate
    from hmmscope.lab.evidence.verdicts import Printed as Printed
    from hmmscope.lab.evidence.verdicts import Within as Within
    from hmmscope.lab.experiments.experiment import Experiment as Experiment
    from hmmscope.lab.experiments.experiment import MeasuredTables as MeasuredTables
    from hmmscope.lab.experiments.series_styles import PREDICTORS as PREDICTORS

__getattr__, __dir__, __all__ = lazily(__name__)
