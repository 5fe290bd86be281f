"""The registry and the loader: counts as METHOD says, files of every kind, and a sentence for everything that is wrong."""

import gzip
import json
import socket
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.tasks import TASKS, Source, Task, get_task, load_task, read_task, register_task

COUNTS = [  # METHOD section 6 and the data folder's own list
    ("aime24", None, 30),
    ("amc23", None, 40),
    ("math500", None, 500),
    ("math500-l5", None, 134),
    ("minerva", None, 40),
    ("gsm8k", "train", 7473),
    ("gsm8k", "test", 1319),
    ("math", None, 7498),
    ("dapo-math-17k", None, 14026),
    ("knights-knaves", None, 200),
]
EXPECTED = {"aime24": 30, "aime25": 30, "aime": 60, "amc23": 40, "math500": 500, "math500-l5": 134, "minerva": 272}


def one_sentence(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def write(folder, name, rows):
    text = "\n".join(json.dumps(row) for row in rows)
    if name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress(text.encode()))
    else:
        (folder / name).write_text(text)


@pytest.mark.parametrize(("name", "split", "count"), COUNTS)
def test_counts(shared, name, split, count):
    problems = load_task(name, shared, split=split)
    assert len(problems) == count
    assert len({p.id for p in problems}) == count
    assert all(p.question and p.answer and p.task == name for p in problems)


def test_expected_counts():
    assert {name: get_task(name).count() for name in EXPECTED} == EXPECTED
    assert get_task("knights-knaves").count() == 600
    assert len(get_task("knights-knaves").splits["test"]) == 6  # 3 to 8 people


def test_level_five_is_level_five(shared):
    rows = [json.loads(line) for line in (shared / "math500.jsonl").read_text().splitlines()]
    hard = {row["unique_id"] for row in rows if row["level"] == 5}
    assert {p.id for p in load_task("math500-l5", shared)} == hard
    assert len(hard) == 134


def test_golds_are_cleaned(shared):
    assert [p.answer for p in load_task("amc23", shared, limit=2)] == ["27", "36"]  # 27.0 and 36.0 in the file
    assert all(p.answer.lstrip("-").isdigit() for p in load_task("amc23", shared))
    gsm8k = load_task("gsm8k", shared)
    assert all("#" not in p.answer and "," not in p.answer for p in gsm8k)
    gold = json.loads(load_task("knights-knaves", shared, limit=1)[0].answer)
    assert gold == {"names": ["Amelia", "Penelope", "Evelyn"], "solution": [True, True, False]}


def test_partial_copies_say_so(shared):
    assert "40 of 272" in read_task("minerva", shared).notes[0]
    note = read_task("knights-knaves", shared).notes[0]
    assert "200 of 600" in note
    assert "kk_8ppl_test.jsonl" in note


def test_limit_takes_the_first(shared):
    assert load_task("dapo-math-17k", shared, limit=2000) == load_task("dapo-math-17k", shared)[:2000]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet", ".parquet.gz"])
def test_every_kind_of_file(tmp_path, suffix):
    rows = [{"id": 60 + i, "problem": f"What is {i}?", "answer": f"0{i}"} for i in range(30)]
    if "parquet" in suffix:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "aime24.parquet")
        if suffix.endswith(".gz"):
            plain = tmp_path / "aime24.parquet"
            (tmp_path / "aime24.parquet.gz").write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
    else:
        write(tmp_path, f"aime24{suffix}", rows)
    loaded = read_task("aime24", tmp_path)
    assert loaded.notes == []
    assert [(p.id, p.answer) for p in loaded.problems[:2]] == [("aime24-60", "0"), ("aime24-61", "1")]


def test_a_union_is_both_or_an_error(tmp_path):
    write(tmp_path, "aime24.jsonl", [{"problem": f"p{i}", "answer": i} for i in range(30)])
    with pytest.raises(UserError, match="aime25") as error:
        load_task("aime", tmp_path)
    assert "aime25.jsonl" in one_sentence(error)
    write(tmp_path, "aime25.jsonl", [{"problem": f"q{i}", "answer": i} for i in range(30)])
    problems = load_task("aime", tmp_path)
    assert len(problems) == 60 == len({p.id for p in problems})
    assert {p.task for p in problems} == {"aime"}


def test_math_from_the_hub_has_solutions_only(tmp_path):
    row = {"problem": "1+1?", "solution": r"So $\boxed{\frac{4}{2}}$ it is.", "level": "Level 1", "type": "Algebra"}
    write(tmp_path, "math_train.jsonl", [row, {**row, "solution": "no box"}])
    loaded = read_task("math", tmp_path)
    assert [p.answer for p in loaded.problems] == [r"\frac{4}{2}"]
    assert loaded.skipped == ["math_train-1"]


def test_sft_keeps_numeric_answers(tmp_path):
    answers = ["12", "-3.5", "1e3", r"\frac{1}{2}", "x+1", "", "3 cm", None]
    rows = [{"problem": "p", "expected_answer": a, "generated_solution": "s"} for a in answers]
    write(tmp_path, "openmathreasoning_mini_cot.jsonl", rows)
    assert [p.answer for p in load_task("openmathreasoning-mini", tmp_path)] == ["12", "-3.5", "1e3"]


def test_empty_golds_are_reported_and_skipped(tmp_path, caplog):
    golds = ["1", "", None, "  ", "nan", "2"]
    write(tmp_path, "math500.jsonl", [{"problem": "p", "answer": g, "unique_id": f"u{i}"} for i, g in enumerate(golds)])
    problems = load_task("math500", tmp_path)
    assert [p.id for p in problems] == ["u0", "u5"]
    assert "skipped 4 rows" in caplog.text
    assert "u1, u2, u3, u4" in caplog.text


def test_a_broken_assignment_is_no_gold(tmp_path):
    row = {"quiz": "who?", "names": ["A", "B"], "solution": [True, False]}
    bad = [{**row, "solution": [True]}, {**row, "names": ["A", "A"]}, {**row, "solution": ["x", "y"]}]
    write(tmp_path, "kk_3ppl_test.jsonl", [row, *bad])
    loaded = read_task("knights-knaves", tmp_path)
    assert (len(loaded.problems), len(loaded.skipped)) == (1, 3)


def test_no_gold_at_all_is_an_error(tmp_path):
    write(tmp_path, "amc23.jsonl", [{"question": "p", "answer": ""}])
    with pytest.raises(UserError, match="no usable problem") as error:
        load_task("amc23", tmp_path)
    one_sentence(error)


def test_wrong_schema_names_both_sides(tmp_path):
    write(tmp_path, "amc23.jsonl", [{"problem": "p", "answer": 1.0}])
    with pytest.raises(UserError) as error:
        load_task("amc23", tmp_path)
    assert "no field 'question'" in one_sentence(error)
    assert "problem, answer" in str(error.value)


def test_level_must_be_there_for_level_five(tmp_path):
    write(tmp_path, "math500.jsonl", [{"problem": "p", "answer": "1"}])
    with pytest.raises(UserError, match="no field 'level'"):
        load_task("math500-l5", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("amc23.jsonl", b'{"question": "a", "answer": 1}\n{oops}', "line 2"),
        ("amc23.jsonl", b"[1, 2]", "holds a list"),
        ("amc23.jsonl", b"\xff\xfe\x00", "cannot be read"),
        ("amc23.jsonl.gz", b"not gzip", "cannot be read"),
        ("amc23.jsonl.gz", gzip.compress(b'{"question": "a", "answer": 1}' * 50, mtime=0)[:-20], "cannot be read"),
        ("amc23.parquet", b"PAR1 not really", "cannot be read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says) as error:
        load_task("amc23", tmp_path)
    assert name in one_sentence(error)


def test_offline_without_the_file_is_one_sentence_and_nobody_is_called(tmp_path, monkeypatch):
    called = []
    for library in ("huggingface_hub.constants", "datasets.config"):  # no user said that it is offline
        monkeypatch.setattr(f"{library}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: called.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: called.append(args) or pytest.fail("asked"))
    with pytest.raises(UserError) as error:
        load_task("amc23", tmp_path)
    text = one_sentence(error)
    assert "zwhe99/amc23" in text
    assert "amc23.jsonl" in text
    assert called == [], "the client would try again and again"


def test_the_folder_is_found_without_a_flag(tmp_path, monkeypatch):
    rows = [{"question": "p", "answer": 3.0}]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "amc23.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    assert load_task("amc23")[0].answer == "3"
    (tmp_path / "named").mkdir()
    write(tmp_path / "named", "amc23.jsonl", [{"question": "p", "answer": 4.0}])
    monkeypatch.setenv("SAGE_RLVR_DATA", str(tmp_path / "named"))
    assert load_task("amc23")[0].answer == "4"
    monkeypatch.setenv("SAGE_RLVR_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="SAGE_RLVR_DATA"):
        load_task("amc23")


def test_the_hub_is_asked_as_registered(monkeypatch, tmp_path):
    import datasets

    calls = []

    def load_dataset(hub, config, split):
        calls.append((hub, config, split))
        return [{"quiz": "q", "names": ["A"], "solution": [True]}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(load_task("knights-knaves", tmp_path)) == 6
    assert calls == [("K-and-K/knights-and-knaves", "test", f"{n}ppl") for n in range(3, 9)]


def test_unknown_names_offer_near_ones(tmp_path):
    with pytest.raises(UserError, match="amc23"):
        get_task("amc-23")
    with pytest.raises(UserError, match="knights-knaves"):
        get_task("knight-knave")
    with pytest.raises(UserError, match="train and test"):
        load_task("gsm8k", tmp_path, split="validation")
    with pytest.raises(UserError, match="not a folder"):
        load_task("amc23", tmp_path / "nowhere")
    with pytest.raises(UserError, match="limit=0"):
        load_task("amc23", tmp_path, limit=0)


def test_the_room_is_light():
    """Importing it pulls in none of the heavy libraries."""
    heavy = "{'torch', 'transformers', 'trl', 'datasets', 'pyarrow', 'reasoning_gym'}"
    code = f"import sys, sage_rlvr.tasks; print(*({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


def test_a_task_of_ones_own(tmp_path):
    mine = Task("mine", "d", "train", "math", "MIT", "q", "a", {"train": (Source("me/mine", files=("mine",)),)})
    register_task(mine)
    try:
        write(tmp_path, "mine.jsonl", [{"q": "1+1", "a": 2}])
        assert [(p.question, p.answer) for p in load_task("mine", tmp_path)] == [("1+1", "2")]
        with pytest.raises(UserError, match="registered already"):
            register_task(mine)
        for broken in (replace(mine, kind="other"), replace(mine, splits={}), replace(mine, question="")):
            with pytest.raises(UserError, match="broken"):
                register_task(replace(broken, name="broken"))
    finally:
        del TASKS["mine"]
