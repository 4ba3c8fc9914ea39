"""Models and tokenizers from a folder."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from agentrl_core import ConfigError


def load_model(path: str, *, dtype: str, device: torch.device | str = "cpu") -> PreTrainedModel:
    """A causal language model.

    Raises:
        ConfigError: the folder holds none.
    """
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(model_folder(path), dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`{path}` holds no causal language model that transformers can load: {error}"
        ) from error
    return model.to(torch.device(device))  # type: ignore[arg-type]


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model.

    Raises:
        ConfigError: the folder holds none.
    """
    try:
        return AutoTokenizer.from_pretrained(model_folder(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"`{path}` holds no tokenizer that transformers can load: {error}") from error


def default_device() -> torch.device:
    """The first CUDA device where there is one, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def model_folder(path: str) -> Path:
    """The folder, once it is known to be a model's.

    Raises:
        ConfigError: it has no config.json.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"`{path}` is no model folder: it has no config.json")
    return folder
