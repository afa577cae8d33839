"""Requirements of every entry, which are tested before training and again afterwards."""

import warnings

import torch
from torch import nn

from hmmscope.analysis.activations import check_layers
from hmmscope.analysis.rehearsing import rehearsed
from hmmscope.datasets.process_dataset import Batch
from hmmscope.errors import HmmscopeError, InputError
from hmmscope.models.user_module import unwrapped
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import untrained_model
from hmmscope_studies.benchmark.scoring import ScoredSamples, answers_on
from hmmscope_studies.benchmark.tasks import BenchmarkTask

#: Largest difference of probabilities or vectors attributed to rounding.
ROUNDING = 1e-3
_TRIED = 32


def in_a_line(task: BenchmarkTask, error: BaseException) -> HmmscopeError:
    if isinstance(error, HmmscopeError) and not isinstance(error, InputError):
        return error
    told = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return InputError(f"{task.name}: {' '.join(told.split())[:300]}")


def try_entry(config: RunConfig, task: BenchmarkTask, layers: tuple[str, ...] | None) -> None:
    """Test the untrained model on some samples.

    Raises:
        InputError: The model has no trainable weights or weights that are not real numbers, lacks `layers`, changes
            during evaluation, or fails `require_causal`.
    """
    samples = ScoredSamples.of(task, "0" * 16)
    try:
        model = unwrapped(untrained_model(config, samples.trained.process))
        _require_weights(model)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        for line in rehearsed(model, samples.trained, task.asked(samples.trained)):
            warnings.warn(f"{task.name}: {line}", stacklevel=4)  # above `kept_running`
        require_causal(model, task, samples, _TRIED)
        after = model.state_dict()
        if before.keys() != after.keys():
            raise InputError("model: creates weights when it is called; create them in build")
        changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
        if changed:
            raise InputError(f"model: changes {changed[0]} in evaluation mode; change it only in training mode")
        if layers:
            check_layers(model, layers, field="LAYERS")
    except (Exception, SystemExit) as error:
        raise in_a_line(task, error) from None


def _require_weights(model: nn.Module) -> None:
    weights = list(model.parameters())
    if not any(one.requires_grad for one in weights):
        raise InputError("model: has no weights to train")
    if not all(one.is_floating_point() for one in weights):
        raise InputError("model: has weights that are not real numbers; use floating-point weights")


def require_causal(model: nn.Module, task: BenchmarkTask, samples: ScoredSamples, count: int) -> None:
    """Raise InputError if a prediction depends on later symbols, or differs when it is repeated.

    In each of `count` samples, the tokens after one position are replaced by those of the previous sample.
    """
    asked, batch = task.asked(samples.trained), samples.batch(samples.trained, count)
    columns = torch.from_numpy(asked.token_positions)
    last = columns[torch.arange(count) % len(columns)]
    later = torch.arange(batch.tokens.shape[1]) > last[:, None]
    later = later.reshape(*later.shape, *(1 for _ in batch.tokens.shape[2:]))
    others = Batch(torch.where(later, batch.tokens.roll(1, 0), batch.tokens), batch.observations, batch.states, None)
    answers, again, changed = (answers_on(model, asked, one) for one in (batch, batch, others))
    if asked.kind != "law":  # relative to the size of the vectors
        size = 1 + answers.abs().max()
        answers, again, changed = answers / size, again / size, changed / size
    if not (again - answers).abs().max() <= ROUNDING:
        raise InputError("model: gives other predictions for the same input; make evaluation mode deterministic")
    apart = (changed - answers).abs().amax(-1).where(columns <= last[:, None], 0.0)
    if not apart.max() <= ROUNDING:
        place = int(apart.amax(0).argmax())
        raise InputError(
            f"model: its prediction at position {int(columns[place])} depends on later symbols, or on other samples"
        )
