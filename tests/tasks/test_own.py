"""A user's own data: what files hold, which columns are meant, and one sentence for each mistake."""

import csv
import gzip
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr import UserError
from sage_rlvr.tasks import TASKS, get_format, rows
from sage_rlvr.tasks.own import OwnData, own_task, read_data
from sage_rlvr.tasks.prompts import render, to_messages

ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1), "level": i % 3} for i in range(5)]
CHAT = [{"role": "user", "content": "2+3?"}]


@pytest.fixture(autouse=True)
def _forget(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)


def jsonl(path, lines):
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))


def test_one_content_in_every_kind_of_file(tmp_path):
    jsonl(tmp_path / "a.jsonl", ROWS)
    jsonl(tmp_path / "lines.json", ROWS)
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    DatasetDict({"train": Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "splits")
    with (tmp_path / "a.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    names = ("a.jsonl", "lines.json", "a.json", "a.jsonl.gz", "a.parquet", "saved", "splits")
    found = {name: read_data(name) for name in names}
    assert all(data.rows == ROWS for data in found.values())
    assert len({data.digest() for data in found.values()}) == 1, "of the rows, not of the file"
    assert read_data("a.csv").rows == [{k: str(v) for k, v in row.items()} for row in ROWS]
    jsonl(tmp_path / "a.jsonl", [*ROWS[:-1], {**ROWS[-1], "level": 9}])
    assert read_data("a.jsonl").digest() != found["a.json"].digest()


def test_a_place_is_the_line_in_the_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n{"prompt": "1", "answer": "1"}\n\n{"prompt": "2", "answer": "2"}\n')
    assert read_data("a.jsonl").places == ["a.jsonl:2", "a.jsonl:4"]


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_any_text_is_data_or_one_sentence(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    said = ""
    try:
        own_task(read_data(str(path)), judged=False)
    except UserError as e:
        said = str(e)
    assert "\n" not in said.strip()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("dat.jsonl", None, "there is no such file; did you mean data.jsonl?"),
        ("nowhere/at/all.jsonl", None, "there is no such file"),
        ("bad.jsonl", '{"prompt": "1"}\n{"prompt": \n', "bad.jsonl, line 2, is not JSON"),
        ("bad.jsonl", "[1]\n", "line 1, holds a list"),
        ("empty.jsonl", "", "--dataset empty.jsonl is empty"),
        ("empty.csv", "prompt,answer\n", "--dataset empty.csv is empty"),
        (
            "odd.csv",
            "prompt,answer\n1,2,3\n",
            "odd.csv, line 2, has more or fewer fields than the header (prompt, answer)",
        ),
        ("odd.json", "[1, 2]", "odd.json, row 1, holds a int: write a list of objects"),
        ("odd.json", "[{]", "odd.json is not JSON"),
        ("notes.txt", "x", "cannot read this kind of file; use .jsonl"),
        ("nobody/nothing-like-this", None, "cannot be loaded"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, name, content, sentence):
    jsonl(tmp_path / "data.jsonl", ROWS)
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as e:
        read_data(name)
    assert sentence in str(e.value)


def data(*lines):
    return OwnData("d.jsonl", list(lines), [f"d.jsonl:{i}" for i in range(1, len(lines) + 1)])


@pytest.mark.parametrize(
    ("lines", "named", "sentence"),
    [
        (
            [{"promt": "1", "answer": "1"}],
            {},
            "no column 'prompt' or 'question' or 'problem', it has promt, answer: write --prompt_column promt.",
        ),
        (
            [{"q": "1", "answer": "1"}],
            {"prompt_column": "x"},
            "no column 'x', it has q, answer: name it with --prompt_column.",
        ),
        ([{"prompt": "1", "gold": "1"}], {}, "name it with --answer_column, or judge with --reward"),
        (
            [{"prompt": "1", "answer": "1"}, {"prompt": 3, "answer": "1"}],
            {},
            "d.jsonl:2: 'prompt' must be text, or a list of messages",
        ),
        (
            [{"prompt": [{"role": "assistant", "content": "x"}], "answer": "1"}],
            {},
            "the last message of 'prompt' is of role 'assistant'",
        ),
        (
            [{"prompt": "1", "answer": "1"}, {"prompt": CHAT, "answer": "1"}],
            {},
            "d.jsonl:1 and d.jsonl:2 have prompts of two kinds",
        ),
        (
            [{"prompt": "1", "answer": "1"}, {"prompt": "2", "answer": 2}],
            {},
            "column 'answer': d.jsonl:1 holds text and d.jsonl:2 a number",
        ),
        ([{"prompt": "", "answer": "1"}, {"prompt": "2", "answer": None}], {}, "every row needs 'prompt' and 'answer'"),
    ],
)
def test_columns_that_do_not_fit_are_one_sentence(lines, named, sentence):
    with pytest.raises(UserError) as e:
        own_task(data(*lines), judged=True, **named)
    assert sentence in str(e.value)


def problems_of(task):
    return task.generate(100, 0, "train")


def test_the_gold_of_a_worked_solution():
    lines = [
        {"question": "a", "answer": "so it is 3\n#### 1,234"},
        {"question": "b", "answer": "thus \\boxed{\\frac{1}{2}}."},
        {"question": "c", "answer": "x+1"},
    ]
    found = problems_of(own_task(data(*lines), judged=True))
    assert [p.answer for p in found] == ["1234", "\\frac{1}{2}", "x+1"]
    assert problems_of(own_task(data({"question": "d", "solution": 7.0}), judged=True))[0].answer == "7"


def test_rows_with_a_reward_are_as_they_were_written():
    lines = [{"problem": "2+3=", "answer": "so\n#### 5", "tests": ["a", "b"], "task": "mine"}]
    (row,) = rows(problems_of(own_task(data(*lines), judged=False)), "as_is")
    assert row == {**lines[0], "prompt": "2+3="}
    (row,) = rows(problems_of(own_task(data(*lines), judged=True)), "as_is")
    assert row == {**lines[0], "prompt": "2+3=", "answer": "5"}


class Template:
    """A tokenizer that shows its turns."""

    chat_template, bos_token = "…", None

    def apply_chat_template(self, messages, **kwargs):
        return "".join(f"<{m['role']}>{m['content']}" for m in messages)


def test_text_is_continued_and_messages_are_a_conversation():
    (text,) = problems_of(own_task(data({"prompt": "2+3="}), judged=False))
    (chat,) = problems_of(own_task(data({"prompt": CHAT}), judged=False))
    system = [{"role": "system", "content": "Be brief."}, *CHAT]
    (told,) = problems_of(own_task(data({"prompt": system}), judged=False))
    assert rows([text], "as_is")[0]["prompt"] == "2+3="
    assert rows([chat], "as_is")[0]["prompt"] == CHAT
    assert to_messages(text, "plain") == [{"role": "user", "content": "2+3="}]
    boxed = {"role": "system", "content": get_format("boxed").system}
    assert to_messages(chat, "boxed") == [boxed, *CHAT]
    assert to_messages(told, "boxed") == system, "its own system turn stays"
    tokenizer = Template()
    assert render(text, "as_is", tokenizer) == "2+3=", "an evaluation asks as training does"
    assert render(chat, "as_is", tokenizer) == "<user>2+3?"
    with pytest.raises(UserError, match="words the question itself"):
        to_messages(chat, "symbols")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=12), st.integers(1, 6), st.randoms())
def test_held_out_prompts_are_the_same_in_any_order_and_are_not_trained_on(prompts, count, random):
    lines = [{"prompt": p, "row": i} for i, p in enumerate(prompts)]
    shuffled = random.sample(lines, len(lines))
    order = sorted(prompts, key=lambda p: hashlib.sha256(json.dumps(p).encode()).digest())
    if set(order[:count]) == set(prompts):
        with pytest.raises(UserError, match="leaves no row"):
            own_task(data(*lines), judged=False, holdout=count)
        return
    tasks = [own_task(data(*rows), judged=False, holdout=count) for rows in (lines, shuffled)]
    made = [{split: [p.question for p in t.generate(99, 0, split)] for split in ("train", "test")} for t in tasks]
    for splits in made:
        assert sorted(splits["test"]) == sorted(order[:count])
        assert not set(splits["train"]) & set(splits["test"])
        assert set(splits["train"]) | set(splits["test"]) == set(prompts)
