"""The server as a second witness: its own checksums against what was sent."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from agentrl_workers.engines.base import EngineError

_FUSED = (
    (re.compile(r"\.(?:q|k|v)_proj\.(weight|bias)$"), r".qkv_proj.\1"),
    (re.compile(r"\.experts\.\d+\.(?:gate|up)_proj\.weight$"), r".experts.w13_weight"),
    (re.compile(r"\.experts\.\d+\.w[13]\.weight$"), r".experts.w13_weight"),
    (re.compile(r"\.experts\.\d+\.(?:down_proj|w2)\.weight$"), r".experts.w2_weight"),
    (re.compile(r"\.(?:gate|up)_proj\.(weight|bias)$"), r".gate_up_proj.\1"),
)
"""Tensors of a checkpoint that the server keeps as one."""

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_SHOWN = 5


def held_name(name: str) -> str:
    """What the server calls the tensor that a checkpoint's tensor becomes a part of."""
    for pattern, replacement in _FUSED:
        fused, count = pattern.subn(replacement, name)
        if count:
            return fused
    return name


class Witness:
    """Compares, load after load, which tensors changed here and which changed in the server.

    The two sides hash in ways of their own, so the sums are never compared across: a tensor of which
    something changed here must have another sum there, and one that stayed must keep its sum.
    """

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._held: Sequence[Mapping[str, str]] = ()

    def check(
        self,
        sent: Mapping[str, int],
        held: Sequence[Mapping[str, str]],
        *,
        narrowed: Collection[str] = (),
    ) -> None:
        """Judge a load.

        Args:
            sent: a checksum of each tensor that was sent.
            held: the server's checksums afterwards, one mapping a rank.
            narrowed: tensors that the server keeps in a smaller type, where a small change may vanish.

        Raises:
            EngineError: a tensor is unknown to the server, or one of the server's got nothing, or what
                changed here and what changed there disagree.
        """
        parts: dict[str, list[str]] = {}
        for name in sent:
            parts.setdefault(held_name(name), []).append(name)
        _check_names(parts, held)
        _check_head(sent, held)
        if self._sent.keys() == sent.keys() and len(self._held) == len(held):
            changed = {name for name in sent if sent[name] != self._sent[name]}
            self._check_changes(parts, changed, held, frozenset(narrowed))
        self._sent, self._held = dict(sent), [dict(rank) for rank in held]

    def _check_changes(
        self,
        parts: Mapping[str, Sequence[str]],
        changed: set[str],
        held: Sequence[Mapping[str, str]],
        narrowed: frozenset[str],
    ) -> None:
        lost, strayed = [], []
        for theirs, ours in parts.items():
            if not any(theirs in rank for rank in held):
                continue
            moved = any(now.get(theirs) != old.get(theirs) for now, old in zip(held, self._held, strict=True))
            if moved and not changed.intersection(ours):
                strayed.append(theirs)
            if not moved and changed.intersection(ours) - narrowed:
                lost += sorted(changed.intersection(ours) - narrowed)
        if lost:
            raise EngineError(f"the server's weights did not take in {_shown(lost)}, which changed")
        if strayed:
            raise EngineError(f"the server's {_shown(strayed)} changed, though what was sent did not")


def _check_names(parts: Mapping[str, Sequence[str]], held: Sequence[Mapping[str, str]]) -> None:
    theirs = set().union(*held)
    unknown = [name for fused, names in parts.items() if fused not in theirs for name in names]
    # The head of a tied model is its embedding; frequencies are computed from the settings.
    unknown = [name for name in unknown if name != _HEAD and not name.endswith(".inv_freq")]
    if unknown:
        raise EngineError(
            f"the server has no place for {_shown(unknown)}, and would drop it silently; `verify: false` "
            "skips this check for models whose tensors it keeps under other names"
        )
    missing = sorted(theirs - set(parts))
    if missing:
        raise EngineError(
            f"nothing was sent for the server's {_shown(missing)}; `verify: false` skips this check for "
            "models whose tensors it keeps under other names"
        )


def _check_head(sent: Mapping[str, int], held: Sequence[Mapping[str, str]]) -> None:
    """A server that has no head of its own uses the embedding for it; so must the model that was sent."""
    head, embedding = sent.get(_HEAD), sent.get(_EMBEDDING)
    if head != embedding and None not in (head, embedding) and not any(_HEAD in rank for rank in held):
        raise EngineError(
            f"the server uses `{_EMBEDDING}` as its head, but the `{_HEAD}` that was sent differs from it; "
            "start the server from a folder whose config.json has the same `tie_word_embeddings`"
        )


def _shown(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in listed[:_SHOWN]) + more
