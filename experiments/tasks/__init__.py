"""What a run learns: its data, its model and how it is judged, made from its configuration.

The objective follows from the module (`flaxnmt.training.objectives`), and the loop knows nothing of either.
"""

from collections.abc import Callable
from pathlib import Path

from experiments.tasks import labelled, language, translation
from experiments.tasks.task import Task
from flaxnmt.config import Config
from flaxnmt.models.config import DecoderOnlyConfig, EncoderOnlyConfig


def make_task(config: Config, directory: Path, bring: Callable[[], None]) -> Task:
    """The task of a configuration; what an earlier start of the run left is used again.

    The first process makes what is missing, `bring` brings it to the others, and they open it.

    Raises:
      ConfigError, DataError: for what cannot be learned, or not from this data.
    """
    match config.model:
        case EncoderOnlyConfig(head="masked") | DecoderOnlyConfig(task="language"):
            return language.make(config, directory, bring)
        case EncoderOnlyConfig():
            return labelled.make(config, directory, bring)
    return translation.make(config, directory, bring)
