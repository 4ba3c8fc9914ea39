from hypothesis import given
from hypothesis import strategies as st

from agentrl_workers.chat import ChatRenderer
from agentrl_workers.engines import Generation
from agentrl_workers.serve.replies import Reply
from agentrl_workers.warmstart.tokenizer import train_tokenizer


@given(st.binary(max_size=24), st.lists(st.sampled_from(["a", "ab", "é", "\n\n", "x"]), max_size=2))
def test_tokens_one_by_one_give_the_text_of_all_at_once(data: bytes, stops: list[str]) -> None:
    renderer = ChatRenderer(train_tokenizer(["abab"], vocabulary=261))
    vocabulary = renderer.tokenizer.get_vocab()
    alphabet = byte_alphabet()
    ids = [vocabulary[alphabet[byte]] for byte in data]
    text = data.decode(errors="replace")
    cuts = [text.index(stop) for stop in stops if stop in text]
    one_by_one, at_once = Reply(renderer, stops), Reply(renderer, stops)
    shown = ""
    for token_id in ids:
        is_enough = one_by_one.add(token_id, -1.0)
        certain = one_by_one.text[: one_by_one.certain(with_tools=False)]
        assert certain.startswith(shown)
        shown = certain
        if is_enough:
            break
    end = Generation(
        token_ids=tuple(ids),
        logps=(-1.0,) * len(ids),
        segments=(),
        finish_reason="length",
        cached_tokens=0,
    )
    one_by_one.finish(end)
    at_once.finish(end)
    assert at_once.text == text[: min(cuts, default=None)]
    assert one_by_one.text.startswith(shown)
    assert one_by_one.text == at_once.text


def byte_alphabet() -> list[str]:
    shifted = iter(range(256, 512))
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return [chr(byte) if byte in plain else chr(next(shifted)) for byte in range(256)]
