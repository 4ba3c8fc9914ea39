import math

import numpy as np
import pytest
import torch

from agentrl_workers.correction import truncated_weights
from agentrl_workers.losses import (
    clipped_loss,
    clipped_tokens,
    kl_k3,
    masked_sum,
    token_entropy,
    token_logps,
)


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture
def logits():
    return torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))


def test_each_token_has_its_log_probability_given_those_before(logits):
    ids = torch.tensor([[0, 1, 2, 3, 4], [6, 5, 4, 3, 2]])
    logps = token_logps(logits, ids, temperature=0.7)
    for row in range(2):
        assert logps[row, 0] == 0.0
        for place in range(1, 5):
            scaled = logits[row, place - 1].double().numpy() / 0.7
            expected = scaled[ids[row, place]] - np.log(np.exp(scaled).sum())
            assert logps[row, place].item() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(token_logps(logits, ids, temperature=0.0), token_logps(logits, ids, temperature=1.0))


def test_entropy_is_that_of_the_distribution_that_was_drawn_from(logits):
    entropy = token_entropy(logits, temperature=2.0)
    p = np.exp(logits[1, 2].double().numpy() / 2.0)
    p /= p.sum()
    assert entropy[1, 3].item() == pytest.approx(-(p * np.log(p)).sum(), abs=1e-6)
    assert entropy[:, 0].tolist() == [0.0, 0.0]


def test_what_lies_outside_the_mask_counts_for_nothing_even_nan():
    values = tensor([1.0, math.nan, 3.0], [math.inf, 5.0, -math.inf]).requires_grad_()
    total = masked_sum(values, torch.tensor([[True, False, True], [False, True, False]]))
    total.backward()
    assert total.item() == 9.0
    assert values.grad.tolist() == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.2, 2.0, -2.4, False),
        (1.5, 2.0, -2.56, True),  # Clipped at 1.28.
        (0.5, 2.0, -1.0, False),
        (1.5, -2.0, 3.0, False),
        (0.5, -2.0, 1.6, True),  # Clipped at 0.8.
        (9.0, -2.0, 6.0, False),  # Bounded by the dual clip at 3.
        (1.5, 0.0, 0.0, False),
    ],
)
def test_the_clipped_loss_by_hand(ratio, advantage, loss, is_clipped):
    logp, old = tensor([math.log(ratio)]), tensor([0.0])
    bounds = {"clip_low": 0.2, "clip_high": 0.28}
    found = clipped_loss(logp, old, tensor([advantage]), **bounds, dual_clip=3.0)
    assert found.item() == pytest.approx(loss)
    assert clipped_tokens(logp, old, tensor([advantage]), **bounds).item() is is_clipped


def test_without_the_dual_clip_a_negative_advantage_is_unbounded():
    found = clipped_loss(tensor([math.log(9.0)]), tensor([0.0]), tensor([-2.0]), clip_low=0.2, clip_high=0.28)
    assert found.item() == pytest.approx(18.0)


def test_the_gradient_is_the_policy_gradient_where_nothing_is_clipped():
    logp = tensor([-1.0, -2.0, -0.5]).requires_grad_()
    loss = clipped_loss(logp, logp.detach(), tensor([1.0, -2.0, 0.5]), clip_low=0.2, clip_high=0.28)
    loss.sum().backward()
    assert logp.grad.tolist() == [[-1.0, 2.0, -0.5]]


def test_gradients_agree_with_finite_differences():
    generator = torch.Generator().manual_seed(1)
    logp = torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    old = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    advantage = torch.randn(3, 4, generator=generator, dtype=torch.float64)

    def loss(logp):
        clipped = clipped_loss(logp, old, advantage, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
        return (clipped + 0.1 * kl_k3(logp, old)).sum()

    assert torch.autograd.gradcheck(loss, (logp,))


def test_k3_is_its_definition_never_negative_and_zero_where_equal():
    logp, reference = tensor([-1.0, -2.0, -3.0]), tensor([-1.0, -1.0, -5.0])
    expected = [0.0, math.e - 2.0, math.exp(-2.0) + 1.0]
    np.testing.assert_allclose(kl_k3(logp, reference)[0].numpy(), expected, atol=1e-12)


def test_k3_is_an_unbiased_estimate_of_the_divergence():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    exact = (p * (p / q).log()).sum()
    estimate = (p * kl_k3(p.log(), q.log())).sum()
    assert estimate.item() == pytest.approx(exact.item(), abs=1e-6)


def test_importance_weights_are_capped_and_carry_no_gradient():
    old = tensor([0.0, math.log(1.5), math.log(8.0)]).requires_grad_()
    weights = truncated_weights(old, tensor([0.0, 0.0, 0.0]), cap=2.0)
    np.testing.assert_allclose(weights.numpy(), [[1.0, 1.5, 2.0]])
    assert not weights.requires_grad
