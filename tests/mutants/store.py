"""store/: samples that are neither lost nor doubled, and one writer."""

from tests.mutants.mutant import within

SAMPLES, KEPT, LOCK = "tests/store/test_samples.py", "tests/store/test_kept.py", "tests/test_lock.py"

MUTANTS = [
    *within(
        "store/keys.py",
        SAMPLES,
        (
            "a sample doubled in a later shard counts twice",
            "new[first[~bits[places]]] = True",
            "new[first] = True",
            "test_a_doubled_sample_counts_once_and_the_first_stays",
        ),
        (
            "growing forgets what was there",
            "    out[: array.shape[0], : array.shape[1]] = array\n",
            "",
            f"{KEPT}::test_keys_grow_and_keep_what_they_hold",
        ),
        (
            "two tasks' problems of one name are one",
            "code = (task_of * len(problems.dictionary) + problem_of) * len(seeds) + seed_of",
            "code = problem_of * len(seeds) + seed_of",
            f"{KEPT}::test_keys_grow_and_keep_what_they_hold",
        ),
    ),
    *within(
        "store/samples.py",
        SAMPLES,
        (
            "a smaller n takes samples back",
            "max(n, old.n)",
            "n",
            "test_asking_again_adds",
        ),
        (
            "the next shard takes the last one's name",
            "self._waiting, self._next = [], self._next + 1",
            "self._waiting = []",
            "test_what_goes_in_comes_out, test_shards_are_written_by_rows_by_time_and_by_bytes",
        ),
        (
            "a shard is renamed before it is on the disk",
            "                os.fsync(file.fileno())",
            "                pass",
            f"{KEPT}::test_a_shard_is_on_the_disk_before_it_has_its_name",
        ),
        (
            "what a re-scoring with another label had done is believed",
            'again = mark is not None and label is not None and mark["label"] == label',
            "again = mark is not None",
            f"{KEPT}::test_a_rescoring_under_another_label_starts_over",
        ),
        (
            "any writer may open a store that is being written",
            '            lock.acquire(self.folder / "writer.lock")',
            "            pass",
            "test_a_second_writer_is_refused_while_the_first_lives",
        ),
    ),
    *within(
        "lock.py",
        LOCK,
        (
            "of two that start at the same instant both win",
            "        if e.errno in (errno.EAGAIN, errno.EACCES):\n            return False",
            "        if e.errno in (errno.EAGAIN, errno.EACCES):\n            return True",
            "test_of_those_that_start_at_the_same_instant_exactly_one_wins",
        ),
        (
            "a child lets go of its parent's lock",
            "    if pid == os.getpid() and file is not None:",
            "    if file is not None:",
            "test_a_child_neither_inherits_the_lock_nor_lets_go_of_it",
        ),
    ),
    *within(
        "processes.py",
        LOCK,
        (
            "a process that was given a dead writer's number holds its lock",
            'return all(who.get(name) in (None, now[name]) for name in ("boot", "start"))',
            "return True",
            "test_a_number_that_another_process_has_now_holds_nothing",
        ),
        (
            "a writer on another machine is taken for dead",
            "        return None\n    pid = who.get",
            "        return False\n    pid = who.get",
            "test_another_machine_is_believed_and_the_way_out_is_said",
        ),
    ),
    *within(
        "store/settings.py",
        SAMPLES,
        (
            "a setting that the store does not know is not looked at",
            "for k in {**a, **b}}",
            "for k in a}",
            f"{KEPT}::test_a_setting_that_was_not_there_is_a_difference",
        ),
    ),
]
