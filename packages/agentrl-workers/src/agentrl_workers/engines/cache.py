"""A key-value cache of slots, each with a length of its own, behind the cache interface of `transformers`."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(slots=True)
class _Access:
    """Where the next forward pass reads and writes; B rows, T new tokens each."""

    slots_B: torch.Tensor
    positions_BT: torch.Tensor
    kv_length: int


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, shaped [slot, position, head, channel]."""

    is_sliding = False

    def __init__(
        self, access: _Access, shape: tuple[int, int, int, int], *, dtype: torch.dtype, device: Any
    ) -> None:
        super().__init__()
        self.access = access
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the slots are allocated up front."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens of each row into its slot and return the slots' keys and values."""
        access = self.access
        assert self.keys is not None
        assert self.values is not None
        rows_B1 = access.slots_B[:, None]
        self.keys[rows_B1, access.positions_BT] = key_states.transpose(1, 2)
        self.values[rows_B1, access.positions_BT] = value_states.transpose(1, 2)
        keys = self.keys[:, : access.kv_length].index_select(0, access.slots_B)
        values = self.values[:, : access.kv_length].index_select(0, access.slots_B)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that the next forward pass sees."""
        del query_length
        return self.access.kv_length, 0

    def get_seq_length(self) -> int:
        """Slots differ in length; callers pass positions of their own."""
        return 0

    def get_max_length(self) -> int:
        """Positions in a slot."""
        assert self.keys is not None
        return self.keys.shape[1] - 1


class SlotCache(Cache):
    """Keys and values of `num_slots` independent sequences.

    One position more than `context_length` is allocated: padding of a batch is written there and never read.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        num_slots: int,
        context_length: int,
        dtype: torch.dtype,
        device: Any,
    ) -> None:
        self.padding_position = context_length
        self.access = _Access(torch.empty(0), torch.empty(0), 0)
        heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (num_slots, context_length + 1, heads, head_dim)
        layers: list[Any] = [
            _SlotLayer(self.access, shape, dtype=dtype, device=device)
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(layers=layers)

    def aim(self, slots_B: torch.Tensor, positions_BT: torch.Tensor, *, kv_length: int) -> None:
        """Set where the next forward pass writes (`positions_BT` of `slots_B`) and how far it reads."""
        self.access.slots_B = slots_B
        self.access.positions_BT = positions_BT
        self.access.kv_length = kv_length
