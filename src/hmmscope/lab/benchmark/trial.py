"""What every entry must be able to do, tried before anything is written, and again with what was trained."""

import warnings

import torch
from torch import nn

from hmmscope.analysis.activations import check_layers
from hmmscope.analysis.rehearsing import rehearsed
from hmmscope.datasets.process_dataset import Batch
from hmmscope.errors import HmmscopeError, InputError
from hmmscope.lab.benchmark.scoring import ScoredSamples, answers_on
from hmmscope.lab.benchmark.tasks import BenchmarkTask
from hmmscope.models.user_module import unwrapped
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import untrained_model

#: Largest difference of two probabilities, or vectors, that is rounding.
ROUNDING = 1e-3
_TRIED = 32


def in_a_line(task: BenchmarkTask, error: BaseException) -> HmmscopeError:
    """What a model raised on a task; what is not its fault (a full disk, damaged data) stays as it is."""
    if isinstance(error, HmmscopeError) and not isinstance(error, InputError):
        return error
    told = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return InputError(f"{task.name}: {' '.join(told.split())[:300]}")


def try_entry(config: RunConfig, task: BenchmarkTask, layers: tuple[str, ...] | None) -> None:
    """Read some samples with the untrained model.

    Raises:
        InputError: no weights to train, weights that are not real numbers, layers that it does not have, a model that
            changes when it is only asked, or what `require_causal` refuses.
    """
    samples = ScoredSamples.of(task, "0" * 16)
    try:
        model = unwrapped(untrained_model(config, samples.trained.process))
        _require_weights(model)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        for line in rehearsed(model, samples.trained, task.asked(samples.trained)):
            warnings.warn(f"{task.name}: {line}", stacklevel=4)  # past `kept_running`
        require_causal(model, task, samples, _TRIED)
        after = model.state_dict()
        if before.keys() != after.keys():
            raise InputError("model: makes weights when it is called; make them in build")
        changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
        if changed:
            raise InputError(f"model: changes {changed[0]} when it is only asked; change it in training alone")
        if layers:
            check_layers(model, layers, field="LAYERS")
    except (Exception, SystemExit) as error:
        raise in_a_line(task, error) from None


def _require_weights(model: nn.Module) -> None:
    weights = list(model.parameters())
    if not any(one.requires_grad for one in weights):
        raise InputError("model: has no weights to train")
    if not all(one.is_floating_point() for one in weights):
        raise InputError("model: has weights that are not real numbers")


def require_causal(model: nn.Module, task: BenchmarkTask, samples: ScoredSamples, count: int) -> None:
    """InputError if an answer changes when what comes later does, or when it is asked again.

    In each of `count` samples what follows one column, another in each, is that of the sample before.
    """
    asked, batch = task.asked(samples.trained), samples.batch(samples.trained, count)
    columns = torch.from_numpy(asked.token_positions)
    last = columns[torch.arange(count) % len(columns)]
    later = torch.arange(batch.tokens.shape[1]) > last[:, None]
    later = later.reshape(*later.shape, *(1 for _ in batch.tokens.shape[2:]))
    others = Batch(torch.where(later, batch.tokens.roll(1, 0), batch.tokens), batch.observations, batch.states, None)
    answers, again, changed = (answers_on(model, asked, one) for one in (batch, batch, others))
    if asked.kind != "law":  # in units of the vectors, so that rounding is alike at every size
        size = 1 + answers.abs().max()
        answers, again, changed = answers / size, again / size, changed / size
    if not (again - answers).abs().max() <= ROUNDING:
        raise InputError("model: gives other answers when it is asked again")
    apart = (changed - answers).abs().amax(-1).where(columns <= last[:, None], 0.0)
    if not apart.max() <= ROUNDING:
        place = int(apart.amax(0).argmax())
        raise InputError(
            f"model: its answer at column {int(columns[place])} depends on what comes later, or on other samples"
        )
