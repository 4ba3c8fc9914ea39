"""Estimates of memory against what torch really holds."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl_core import ConfigError
from agentrl_workers.config import ActorConfig, RolloutConfig
from agentrl_workers.engines.cache import SlotCache
from agentrl_workers.sizes import actor_bytes, engine_bytes, model_size, reference_bytes


@pytest.fixture(scope="module", params=[(64, 192, 2, 425, "float32"), (128, 512, 4, 2000, "bfloat16")])
def made(request, tmp_path_factory):
    hidden, intermediate, layers, vocabulary, dtype = request.param
    config = Qwen3Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, str(folder), dtype


def test_a_size_is_read_from_the_config_alone(made):
    model, folder, _ = made
    size = model_size(folder)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert (size.layers, size.hidden, size.vocabulary, size.context_length) == (
        model.config.num_hidden_layers,
        model.config.hidden_size,
        model.config.vocab_size,
        512,
    )
    assert (size.heads, size.kv) == (model.config.hidden_size, model.config.hidden_size // 2)


def test_weights_gradients_and_moments_are_what_training_holds(made):
    model, folder, dtype = made
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.zeros(1, 2, dtype=torch.int64)).logits.sum().backward()
    optimizer.step()
    held = actor_bytes(model_size(folder), ActorConfig(), dtype=dtype, longest=2)
    assert held["weights"] == sum(p.nbytes for p in model.parameters())
    assert held["gradients"] == sum(p.grad.nbytes for p in model.parameters())
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    assert held["optimiser"] == sum(moment.nbytes for moment in moments)
    two = actor_bytes(model_size(folder), ActorConfig(ranks=2), dtype=dtype, longest=2)
    assert two["weights"] == held["weights"] // 2


def test_activations_are_within_a_tenth_of_what_autograd_keeps(made):
    model, folder, dtype = made
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    ids = torch.zeros(4, 100, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    measured = sum(size for size, _ in kept.values())
    held = actor_bytes(model_size(folder), ActorConfig(micro_batch_tokens=400), dtype=dtype, longest=100)
    assert held["activations"] == pytest.approx(measured, rel=0.1)


def test_a_sequence_longer_than_the_budget_is_counted_whole(made):
    size = model_size(made[1])
    short, long = (
        actor_bytes(size, ActorConfig(micro_batch_tokens=100), dtype="float32", longest=n) for n in (100, 300)
    )
    assert long["activations"] == 3 * short["activations"]
    reference = reference_bytes(size, dtype="float32", micro_batch_tokens=100, longest=300)
    assert reference["logits"] == 300 * size.vocabulary * 16


def test_an_engine_holds_keys_and_values_of_every_slot(made):
    model, folder, dtype = made
    rollout = RolloutConfig(num_slots=3, context_length=32)
    held = engine_bytes(model_size(folder), rollout, dtype=dtype)
    cache = SlotCache(model.config, num_slots=3, context_length=32, dtype=getattr(torch, dtype), device="cpu")
    assert held["cache"] == sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def test_no_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        model_size(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "nobody"}')
    with pytest.raises(ConfigError, match="holds no causal language model"):
        model_size(str(tmp_path))
