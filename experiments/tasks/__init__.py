"""What a run learns: its data, its model and how it is judged, made from its configuration."""

from pathlib import Path

from experiments.tasks import language, translation
from experiments.tasks.task import Task
from flaxnmt.config import Config
from flaxnmt.models.config import DecoderOnlyConfig, EncoderOnlyConfig


def make_task(config: Config, directory: Path) -> Task:
    """The task of a configuration; what an earlier start of the run left is used again.

    Raises:
      ConfigError, DataError: for what cannot be learned, or not from this data.
    """
    model = config.model
    texts = isinstance(model, EncoderOnlyConfig) or (
        isinstance(model, DecoderOnlyConfig) and model.task == "language"
    )
    return (language if texts else translation).make(config, directory)
