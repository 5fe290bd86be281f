"""verify/: the pool of killable workers."""

from tests.mutants.mutant import within

VERIFIER, DEATHS, MEMORY = (f"tests/verify/test_{name}.py" for name in ("verifier", "deaths", "memory"))

MUTANTS = [
    *within(
        "verify/verifier.py",
        MEMORY,
        (
            "time-outs and deaths are remembered",
            "for pair, outcome in outcomes.items() if outcome in _LASTING)",
            "for pair, outcome in outcomes.items())",
            "test_what_may_have_been_the_machines_fault_is_judged_again",
        ),
        (
            "nothing is remembered",
            "for pair, outcome in outcomes.items() if outcome in _LASTING)",
            "for pair, outcome in outcomes.items() if False)",
            "test_what_would_be_the_same_next_time_is_remembered",
        ),
        (
            "the newest pair is forgotten",
            "self._cache.popitem(last=False)",
            "self._cache.popitem()",
            "test_the_pair_used_longest_ago_is_forgotten",
        ),
        (
            "a pair that is used again is forgotten first",
            "self._cache.move_to_end(pair)",
            "pass",
            "test_the_pair_used_longest_ago_is_forgotten",
        ),
    ),
    *within(
        "verify/verifier.py",
        VERIFIER,
        (
            "a pair is judged as often as it is asked for",
            "for pair in dict.fromkeys(",
            "for pair in list(",
            "test_identical_pairs_are_judged_once",
        ),
        (
            "a gold nobody can read makes answers wrong",
            'NO_GOLD: (None, "unverifiable gold")',
            'NO_GOLD: (0.0, "unverifiable gold")',
            f"{DEATHS}::test_a_gold_that_kills_or_cannot_be_read_is_unverifiable_for_all_its_answers",
        ),
        (
            "a forked child uses its parent's workers",
            "        self._pool, self._closer, self._lock = None, None, threading.RLock()",
            "        self._lock = threading.RLock()",
            "test_a_forked_child_has_its_own_pool",
        ),
    ),
    *within(
        "verify/pool.py",
        DEATHS,
        (
            "an answer that kills its worker makes its gold unverifiable",
            "                timeout, died = TIMEOUT, DIED",
            "                pass",
            "test_a_bad_worker_costs_one_item",
        ),
        (
            "a worker killed while it was idle costs an answer",
            "        for _ in range(2):\n            worker = worker or self._hire(",
            "        for _ in range(1):\n            worker = worker or self._hire(",
            "test_an_idle_worker_that_is_killed_costs_nothing",
        ),
        (
            "a worker that hangs is not killed",
            "        self._template.kill(worker.number)",
            "        pass",
            "test_a_worker_that_hangs_is_ended",
        ),
    ),
    *within(
        "verify/template.py",
        DEATHS,
        (
            "a worker may take all of the memory",
            "        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))",
            "        pass",
            "test_memory_stays_under_its_limit",
        ),
    ),
]
