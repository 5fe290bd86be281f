import inspect

from sage_rlvr.verify import verifiable_reward


def test_strings_and_conversations():
    texts = [r"\boxed{\frac{10}{2}}", "<SOLUTION>6</SOLUTION>", "5", r"\boxed{x}"]
    golds = ["5", "5", "5", None]
    expected = [1.0, 0.0, 0.0, None]
    assert (
        verifiable_reward(
            completions=texts, answer=golds, prompts=["p"] * 4, completion_ids=[[1]] * 4, trainer_state=None
        )
        == expected
    )
    conversations = [[{"role": "assistant", "content": text}] for text in texts]
    assert verifiable_reward(completions=conversations, answer=golds) == expected


def test_the_last_assistant_message_counts():
    parts = [{"type": "text", "text": r"\boxed{"}, {"type": "image"}, {"type": "text", "text": "4}"}]
    conversations = [
        [
            {"role": "assistant", "content": r"\boxed{1}"},
            {"role": "tool", "content": r"\boxed{2}"},
            {"role": "assistant", "content": r"\boxed{3}"},
        ],
        [{"role": "assistant", "content": parts}],
        [{"role": "assistant", "content": None}],
        [{"role": "user", "content": r"\boxed{5}"}],
        [],
    ]
    assert verifiable_reward(completions=conversations, answer=["3", "4", "5", "5", "5"]) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_numbers_as_golds():
    assert verifiable_reward(completions=[r"\boxed{27}", r"\boxed{27}", r"\boxed{28}"], answer=[27.0, 27, 27.0]) == [
        1.0,
        1.0,
        0.0,
    ]


def test_what_trl_is_told():
    columns, metrics = {}, {}
    scores = verifiable_reward(
        completions=[r"\boxed{1}", "?", r"\boxed{2}", "?"],
        answer=["1", "1", "1", ""],
        log_extra=columns.__setitem__,
        log_metric=metrics.__setitem__,
    )
    assert scores == [1.0, 0.0, 0.0, None]
    assert columns == {"extracted_answer": ["1", "", "2", ""], "verdict": ["right", "no answer", "wrong", "empty gold"]}
    assert metrics == {"verifier/unverifiable_gold": 0.25, "verifier/killed": 0.0, "verifier/no_answer": 0.25}


def test_trl_can_call_it():
    assert verifiable_reward.__name__ == "verifiable_reward"
    assert not inspect.iscoroutinefunction(verifiable_reward)
    signature = inspect.signature(verifiable_reward)
    signature.bind(
        prompts=[],
        completions=[],
        completion_ids=[],
        answer=[],
        level=[],
        trainer_state=None,
        log_extra=print,
        log_metric=print,
    )
