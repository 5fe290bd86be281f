"""``sage-rlvr explore`` and ``report --watch``: the same page on 127.0.0.1, with every completion of the stores a request away.
Files are looked at every few seconds; a page that is open loads itself again at the reader's place."""

import json
import re
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from sage_rlvr.errors import UserError
from sage_rlvr.report.advantages import advantages
from sage_rlvr.report.completions import COLUMNS, key_of, records
from sage_rlvr.report.data import finite, page_data
from sage_rlvr.report.find import EvalRun, TrainRun, find_runs, state_of
from sage_rlvr.report.page import html, write_page
from sage_rlvr.report.traces import Key, Place, Traces, belongs, places_of
from sage_rlvr.stats.intervals import RESAMPLES
from sage_rlvr.store.keys import Keys

HOST, PORT = "127.0.0.1", 8765
EVERY = 5.0  # seconds between two looks at the files
PREVIEW = 400  # characters of a row in a list
WHOLE = 1 << 31  # characters: no text is longer
SLICE = 200_000  # characters of one reply
TRACE_TOKENS = 32_768
MOST_ROWS = 200
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


class Shelf:
    """One run's samples by problem: which row groups hold them, so that a request reads those and nothing else."""

    def __init__(self, run: EvalRun, trains: Sequence[TrainRun] = ()):
        self.run = run
        self.advantage = advantages(run, trains)
        self.lock = threading.Lock()

    @cached_property
    def traces(self) -> Traces:
        return Traces(self.run.folder)

    @cached_property
    def places(self) -> dict[tuple[str, str], list[Place]]:
        """(task, problem) → where its samples are."""
        out: dict[tuple[Any, ...], list[Place]] = {}
        for path in self.run.store.shards():
            if path.name not in self.run.store.damaged:
                for cell, place in places_of(path, ("task", "problem")):
                    out.setdefault(cell, []).append(place)
        return out

    def batches(self, task: str, problem: str) -> Iterator[pa.RecordBatch]:
        """Batches with all columns the page wants, each sample once; one problem's row groups, or the whole store."""
        if not problem:
            yield from self.run.store.scan(COLUMNS, task=task)
            return
        with self.lock:
            places = self.places.get((task, problem), [])
        seen = Keys()
        for path, group in places:
            with pq.ParquetFile(path) as file:
                table = file.read_row_group(group, columns=COLUMNS)
            table = table.filter(pc.and_(pc.equal(table["task"], task), pc.equal(table["problem"], problem)))
            for batch in table.combine_chunks().to_batches():
                yield batch.filter(pa.array(seen.add(batch)))

    def find(self, task: str, problem: str, verdict: str, search: str, offset: int, limit: int) -> dict[str, Any]:
        """A page of rows. One problem's are put in order and counted; over all of them the first that fit are given."""
        rows: list[dict[str, Any]] = []
        for batch in self.batches(task, problem):
            if search:
                batch = batch.filter(pc.match_substring(batch.column("completion"), search, ignore_case=True))
            for r in records(batch, WHOLE if search else PREVIEW):
                if verdict in ("", {1: "right", 0: "wrong"}.get(r["v"])):
                    r.pop("cut", None)
                    hit = re.search(re.escape(search), r["c"], re.IGNORECASE)
                    start = max(0, hit.start() - 60) if hit else 0  # a preview begins shortly before what was searched
                    r["c"] = ("…" if start else "") + r["c"][start : start + PREVIEW]
                    rows.append(r | {"traced": key_of(r) in self.traces})
            if not problem and len(rows) > offset + limit:
                break
        if problem:
            rows.sort(key=lambda r: (not r["traced"], r["s"], r["i"]))
        more, total = len(rows) > offset + limit, len(rows) if problem else None
        return {"rows": rows[offset : offset + limit], "total": total, "more": more}

    def sample(self, key: Key, start: int) -> dict[str, Any]:
        """One completion, ``SLICE`` characters of it from ``start`` on, with its trace where there is one."""
        for batch in self.batches(key[0], key[1]):
            same = pc.and_(pc.equal(batch.column("seed"), key[2]), pc.equal(batch.column("index"), key[3]))
            batch = batch.filter(same)
            if batch.num_rows:
                text = batch.column("completion")[0].as_py()
                record = records(batch, WHOLE)[0] | {"c": text[start : start + SLICE]}
                record["A"] = self.advantage(record)
                if len(text) > start + SLICE:
                    record["cut"] = len(text)
                trace = dict(self.traces.read([key], TRACE_TOKENS, SLICE)).get(key) if not start else None
                return record | ({"trace": trace} if trace and belongs(trace, text) else {})
        raise _Refused(HTTPStatus.NOT_FOUND, f"there is no sample {key[3]} with seed {key[2]} of {key[0]}/{key[1]}")


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str):
        super().__init__(why)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Four addresses and no files: nothing in a request ever becomes a path."""

    server: "Explorer"
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        try:
            # a page elsewhere that has its own name point here (DNS rebinding) sends that name
            if self.headers.get("Host", "") not in self.server.hosts:
                raise _Refused(HTTPStatus.FORBIDDEN, f"ask for {self.server.address}")
            parts = urlsplit(self.path)
            answer = self.server.routes.get(parts.path)
            if answer is None:
                raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing at this address")
            kind, content = answer({k: v[-1] for k, v in parse_qs(parts.query, keep_blank_values=True).items()})
            self._reply(HTTPStatus.OK, kind, content)
        except _Refused as e:
            self._reply(e.status, "application/json", json.dumps({"error": str(e)}))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the reader has gone
        except Exception as e:
            error = json.dumps({"error": f"{type(e).__name__}: {e}"})
            self._reply(HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", error)

    do_HEAD = do_GET

    def _reply(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode("utf-8", errors="replace")
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Explorer(ThreadingHTTPServer):
    """The server; ``address`` is where to look. With ``out`` each reading is also written there, as the file of ``report``."""

    daemon_threads = True

    def __init__(
        self,
        folders: Sequence[str | Path] | str | Path,
        port: int = 0,
        base: str | None = None,
        out: str | Path | None = None,
        resamples: int = RESAMPLES,
    ):
        self.folders, self.base, self.out, self.resamples = folders, base, out, resamples
        self.version, self.page = "", ""
        self.shelves: dict[str, Shelf] = {}
        self.routes: dict[str, Callable[[dict[str, str]], tuple[str, str]]] = {
            "/": lambda q: ("text/html", self.page),
            "/api/version": lambda q: ("text/plain", self.version),
            "/api/samples": self.list_samples,
            "/api/sample": self.one_sample,
        }
        self.look()
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as e:
            why = e.strerror if isinstance(e, OSError) else "ports end at 65535"
            raise UserError(f"port {port} cannot be used ({why}); choose another with --port, or 0 for any.") from e
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def look(self) -> None:
        """Reads the runs again where a file has changed. What cannot be read leaves the page as it is."""
        version = state_of(self.folders)
        if version == self.version:
            return
        runs = find_runs(self.folders, self.base)
        data = page_data(runs, resamples=self.resamples)
        shelves = {run.name: Shelf(run, runs.trains) for run in runs.evals}
        own = [shelf.traces for shelf in shelves.values()]
        firsts = [next(iter(t.places), ())[:2] or None for t in own]  # (task, problem)
        traces = [{"count": len(t.places), "with": t.settings, "first": first} for t, first in zip(own, firsts)]
        if self.out is not None:
            write_page(self.out, runs, data)
        live = data | {"live": version, "traces": finite(traces)}
        self.page, self.shelves, self.version = html(live, [], "SAGE report", connect="'self'"), shelves, version

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def list_samples(self, q: dict[str, str]) -> tuple[str, str]:
        if (verdict := q.get("verdict", "")) not in ("", "right", "wrong"):
            raise _Refused(HTTPStatus.BAD_REQUEST, f"verdict={verdict!r} must be right, wrong or empty")
        limit, offset = min(MOST_ROWS, max(1, _whole(q, "limit", 50))), max(0, _whole(q, "offset", 0))
        task, problem, search = (q.get(name, "") for name in ("task", "problem", "search"))
        rows = self._shelf(q).find(task, problem, verdict, search, offset, limit)
        return "application/json", json.dumps(finite(rows), ensure_ascii=False)

    def one_sample(self, q: dict[str, str]) -> tuple[str, str]:
        key = (q.get("task", ""), q.get("problem", ""), _whole(q, "seed"), _whole(q, "index"))
        sample = self._shelf(q).sample(key, max(0, _whole(q, "from", 0)))
        return "application/json", json.dumps(finite(sample), ensure_ascii=False)

    def _shelf(self, q: dict[str, str]) -> Shelf:
        """By name: a number would mean another run as soon as one is added."""
        if (name := q.get("run", "")) not in self.shelves:
            raise _Refused(HTTPStatus.NOT_FOUND, f"there is no run {name[:200]!r}")
        return self.shelves[name]


def _whole(q: dict[str, str], name: str, default: int | None = None) -> int:
    text = q.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{name}={text[:40]!r} must be a whole number")
    return int(text)


def explore(
    folders: Sequence[str | Path] | str | Path,
    port: int = PORT,
    show: bool = False,
    console: Console | None = None,
    base: str | None = None,
    out: str | Path | None = None,
    every: float = EVERY,
) -> None:
    """Serves the page until Ctrl-C, and looks at the files again ``every`` so many seconds."""
    console = console or Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    with Explorer(folders, port, base, out) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        wrong, took = "", 0.0
        try:
            say(f"{server.address} shows the runs and looks at their files every {every:g} s; Ctrl-C ends it.")
            if show:
                webbrowser.open(server.address)
            while True:
                time.sleep(max(every, took))  # a page that is slow to make leaves half of the core to others
                start, before, wrong = time.monotonic(), wrong, ""
                try:
                    server.look()
                except Exception as e:  # a file half written, a folder that was removed: the next look may do
                    wrong = f"not read again: {e if isinstance(e, UserError) else f'{type(e).__name__}: {e}'}"
                if wrong and wrong != before:
                    say(wrong)
                took = time.monotonic() - start
        except KeyboardInterrupt:
            say(f"ended; the page is {Path(out).resolve()}" if out is not None else "ended.")
        finally:
            server.shutdown()
