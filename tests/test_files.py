"""Spoilt files are a sentence that names them; what the system refuses is one where a person can mend it."""

import errno
import json
import re

import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.files import read_json, read_lines, refused

DEEP = "[" * 100_000
SPOILT = {
    "cut": b'{"pid": 1',
    "binary": bytes(range(256)),
    "deep": DEEP.encode(),
    "deep objects": b'{"a":' * 100_000,
    "a number of 10,000 digits": b"9" * 10_000,
    "empty": b"",
    "half a character": "ä".encode()[:1],
}


@pytest.mark.parametrize("kind", SPOILT)
def test_what_cannot_be_read_is_one_sentence_that_names_the_file(tmp_path, kind):
    path = tmp_path / "status.json"
    path.write_bytes(SPOILT[kind])
    with pytest.raises(UserError) as caught:
        read_json(path, "delete it")
    said = str(caught.value)
    assert said.startswith(f"{path} cannot be read (")
    assert said.endswith("; delete it.")
    assert len(said) < 400
    assert "\n" not in said


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"pid": "abc", "host": "h"}, "pid is 'abc', and must be of type int"),
        ({"pid": True, "host": "h"}, "pid is 'True', and must"),
        ({"pid": None, "host": "h"}, "pid is 'None', and must"),
        ({"host": "h"}, "pid is missing, and must"),
        ({"pid": 1, "host": 2}, "host is '2', and must be of type str or NoneType"),
        ([1], "holds a list, not an object"),
        ("x", "holds a str, not an object"),
    ],
)
def test_text_where_a_number_is_due(tmp_path, record, said):
    (tmp_path / "x").write_text(json.dumps(record))
    with pytest.raises(UserError, match=re.escape(said)):
        read_json(tmp_path / "x", pid=int, host=(str, type(None)))


def test_what_is_whole_is_given_and_what_is_absent_is_the_callers_affair(tmp_path):
    (tmp_path / "x").write_text('{"pid": 7, "host": null, "more": [1]}')
    assert read_json(tmp_path / "x", pid=int, host=(str, type(None))) == {"pid": 7, "host": None, "more": [1]}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "y", pid=int)
    with pytest.raises(FileNotFoundError):
        list(read_lines(tmp_path / "y"))
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path)


def test_a_log_is_read_line_by_line_and_a_cut_end_is_passed_over(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n\n{"step": 2}\n{"step": 3, "lo')
    assert [e["step"] for e in read_lines(path)] == [1, 2]
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    assert [e["step"] for e in read_lines(path)] == [1, 2]
    for line in (b"\xff\xfe", DEEP.encode(), b"[1]", b"nonsense"):
        path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
        with pytest.raises(UserError, match=r"log\.jsonl, line 2, cannot be read"):
            list(read_lines(path))


def test_a_path_of_the_users_is_a_sentence_and_one_of_the_programs_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def opened(path, error=errno.ENOENT):
        return OSError(error, "No such file or directory", str(path))

    for words in (["train", "--config", "mine.yaml"], ["--config=mine.yaml"], [str(tmp_path / "mine.yaml")], ["."]):
        assert "mine.yaml: No such file" in (refused(opened("mine.yaml"), words) or ""), words
    assert refused(opened("/somewhere/else.py"), ["train", "--config", "mine.yaml"]) is None
    assert refused(opened("mine.yaml", errno.EIO), ["mine.yaml"]) is None
    assert refused(ValueError("mine.yaml"), ["mine.yaml"]) is None
    bug = TypeError("ours")
    bug.__context__ = opened("mine.yaml")
    assert refused(bug, ["mine.yaml"]) is None, "an error that was dealt with does not hide ours"


def test_a_full_disk_is_known_by_its_number_and_by_the_libraries_words():
    for e in (
        OSError(errno.ENOSPC, "No space left on device", "/runs/x"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 29056 vs 28944"),
        OSError("40000 requested and 8176 written"),
    ):
        assert "the disk is full" in refused(e)
        later = RuntimeError("unrelated")
        later.__context__ = e
        assert "the disk is full" in refused(later)
    assert "/runs/x could not be written" in refused(OSError(errno.ENOSPC, "No space", "/runs/x"))
    assert refused(RuntimeError("shape mismatch")) is None
