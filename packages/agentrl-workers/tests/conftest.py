import pytest
import torch
from transformers import PreTrainedModel

from agentrl_workers.chat import ChatRenderer
from agentrl_workers.warmstart.imitation import new_model
from agentrl_workers.warmstart.tokenizer import train_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def renderer() -> ChatRenderer:
    """A small tokenizer with a chat template."""
    texts = ['find the number from to higher lower correct {"name": "guess", "arguments": {"number": 7}}'] * 9
    return ChatRenderer(train_tokenizer(texts, vocabulary=330))


@pytest.fixture(scope="session")
def model_dir(renderer: ChatRenderer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny random model and its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    new_model(renderer.tokenizer, hidden_size=32, seed=0).save_pretrained(folder)  # type: ignore[arg-type]
    renderer.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def model(renderer: ChatRenderer) -> PreTrainedModel:
    """A tiny random model."""
    return new_model(renderer.tokenizer, hidden_size=32, seed=0).eval()  # type: ignore[arg-type]
