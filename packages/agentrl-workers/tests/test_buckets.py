import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_workers.weights.buckets import checksum, pack, plan_buckets, spec_of, unpack

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool]

tensors = st.builds(
    lambda shape, dtype, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.integers(0, 100),
)


@given(st.lists(tensors, max_size=12), st.integers(1, 400))
def test_every_tensor_arrives_whatever_the_bucket(given_tensors, bucket_bytes):
    named = {f"t{n}": tensor for n, tensor in enumerate(given_tensors)}
    manifest = [spec_of(name, tensor) for name, tensor in named.items()]
    buckets = plan_buckets(manifest, bucket_bytes=bucket_bytes)
    assert [spec for bucket in buckets for spec in bucket] == manifest
    received = {}
    for bucket in buckets:
        size = sum(spec.num_bytes for spec in bucket)
        assert size <= bucket_bytes or len([spec for spec in bucket if spec.num_bytes]) == 1
        data = pack(named[spec.name] for spec in bucket)
        assert data.numel() == size
        received.update(unpack(data, bucket))
    assert list(received) == list(named)
    for name, tensor in named.items():
        assert received[name].dtype == tensor.dtype
        assert received[name].shape == tensor.shape
        assert torch.equal(received[name], tensor)
        assert checksum(received[name]) == checksum(tensor)


def test_the_tensor_that_fills_a_bucket_is_in_it():
    manifest = [spec_of(name, torch.zeros(4)) for name in "abcd"]
    sizes = [[spec.name for spec in bucket] for bucket in plan_buckets(manifest, bucket_bytes=32)]
    assert sizes == [["a", "b"], ["c", "d"]]


def test_a_tensor_larger_than_a_bucket_goes_alone():
    manifest = [spec_of("a", torch.zeros(1)), spec_of("big", torch.zeros(100)), spec_of("b", torch.zeros(1))]
    plan = [[spec.name for spec in bucket] for bucket in plan_buckets(manifest, bucket_bytes=8)]
    assert plan == [["a"], ["big"], ["b"]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checksum_notices_one_bit_and_a_swap(dtype):
    tensor = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype)
    flipped = tensor.clone()
    flipped.view(torch.uint8)[13] ^= 1
    swapped = tensor.clone()
    swapped[[3, 4]] = tensor[[4, 3]]
    assert len({checksum(value) for value in (tensor, flipped, swapped)}) == 3
    assert checksum(torch.zeros(4)) != checksum(torch.zeros(5))
