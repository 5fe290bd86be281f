"""rollout_ahead: while a rollout batch is trained on, vLLM draws the next one, with the weights it had at the start.

The sampler is asked for the next batch's completions and answers with this batch's, which it was asked for one batch ago. So what
lies around the drawing (prompts gathered from all processes, completions handed out to them) stays TRL's, and only the drawing
itself runs beside training, in a thread. Weights are sent while nothing is being drawn.

Dimensions: train/trainer.py. A rollout batch serves ``every`` micro-steps; TRL's data loader repeats its rows for each of them.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from sage_rlvr.errors import UserError
from sage_rlvr.head import in_place
from sage_rlvr.runs.writer import same_everywhere

Rows = list[dict[str, Any]]
Ids = list[list[int]]  # of a batch's prompts


def check(args: Any) -> None:
    needed = [
        ("use_vllm", True, "only vLLM keeps a copy of the weights to draw with"),
        ("vllm_importance_sampling_correction", True, "it corrects for the older weights"),
        ("dynamic_sampling", 0, "new prompts would wait for the batch that is being drawn"),
    ]
    if args.vllm_mode == "colocate":
        needed += [
            ("vllm_enable_sleep_mode", False, "the engine would sleep while it should draw"),
            ("vllm_tensor_parallel_size", 1, "GPUs that draw together would block training's own communication"),
        ]
    for name, wanted, why in needed if args.rollout_ahead else ():
        if (value := getattr(args, name)) != wanted:
            raise UserError(
                f"rollout_ahead with {name}={value!r}: {why}; set {name}={wanted!r}, or leave rollout_ahead out."
            )


class Ahead:
    def __init__(self, trainer: Any):
        if trainer.tools or trainer.environment_factories or trainer.rollout_func or trainer._is_vlm:
            raise UserError(
                "rollout_ahead is for text that is drawn in one turn: leave it out with tools, environments, a rollout_func or "
                "images."
            )
        self.trainer = trainer
        self.every = trainer.args.steps_per_generation * trainer.num_iterations
        generation = trainer.vllm_generation
        server = generation.mode == "server"
        # where ``generate`` draws: with a server TRL asks for all processes, from the first, which alone has a client
        self.place = getattr(generation, "vllm_client", None) if server else generation
        self.forget()

    def forget(self) -> None:
        """Before a training's first batch."""
        self.source: Any = None
        self.queue: deque[Rows] = deque()  # read from the data loader, not yet trained on
        self.after: dict[int, Rows] = {}  # id(rows) → those of the next rollout batch, where there is one
        self.following: Rows | None = None
        self.begun: Ids | None = None  # the prompts, of this process, whose completions are being drawn
        self.drawn: Future[Any] | None = None  # what ``place.generate`` answers to them, where this process asks it

    # ---- which rows come next ----------------------------------------------------------------------------------------

    def reading(self, source: Iterator[Rows]) -> Iterator[Rows]:
        """What ``source`` gives, read one rollout batch ahead."""
        if source is not self.source:  # a new epoch
            self.source, self.queue, self.after = source, deque(), {}
        while True:
            while len(self.queue) <= self.every:
                rows = next(source, None)
                if rows is None:
                    break
                self.queue.append(rows)
            if not self.queue:
                return
            rows = self.queue.popleft()
            if len(self.queue) >= self.every:
                self.after[id(rows)] = self.queue[self.every - 1]
            yield rows

    def at(self, rows: Rows) -> None:
        """A micro-step begins with these; of an evaluation, none of them was read here."""
        self.following = self.after.pop(id(rows), None)

    def _next_prompts(self, count: int) -> Ids | None:
        trainer = self.trainer
        last = trainer._step + self.every >= trainer.state.max_steps * trainer.args.gradient_accumulation_steps
        if self.following is None or last:
            return None
        ids = trainer._tokenize_prompts([row["prompt"] for row in self.following])[0]
        assert len(ids) == count, "rollout batches are of one size"
        return ids

    # ---- what was drawn ------------------------------------------------------------------------------------------------

    def answer(self, draw: Callable[[Ids], Any], prompts: Ids) -> Any:
        """What ``draw(prompts)`` would answer, drawn one batch ago; the next batch's drawing begins. The first batch of an epoch
        is drawn now."""
        self.wait()
        coming = self._next_prompts(len(prompts))
        if self.begun is None:
            with self._drawing(self._now):
                out = draw(prompts)
        elif self.begun == prompts:
            out = None
        else:
            raise UserError(
                "the completions that were drawn ahead are for other prompts than the data gives now: resume with the data and "
                "the seed of that run, or with rollout_ahead=false."
            )
        self.begun = coming
        if coming is not None:
            with self._drawing(self._meanwhile):
                return draw(coming)
        if out is None:
            with self._drawing(self._last):
                out = draw(prompts)
        self.drawn = None
        return out

    def _drawing(self, how: Callable[..., Any]) -> AbstractContextManager[None]:
        if self.place is None:
            return nullcontext()
        own = self.place.generate
        return in_place(self.place, lambda *args, **more: how(own, *args, **more), "generate")

    def _now(self, own: Callable[..., Any], *args: Any, **more: Any) -> Any:
        self.drawn = Future()
        self.drawn.set_result(own(*args, **more))
        return self.drawn.result()

    def _meanwhile(self, own: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if "profiler" in more:
            more["profiler"] = None  # it writes to the run's tracker, which is this thread's
        before, self.drawn = self._last(), _beside(own, *args, **more)
        return before

    def _last(self, *_: Any, **__: Any) -> Any:
        assert self.drawn is not None
        return self.drawn.result()

    def wait(self) -> None:
        if self.drawn is not None:
            wait([self.drawn])

    # ---- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """With what is being drawn: the run that goes on trains on it too."""
        self.wait()
        server = self.trainer.server
        if server is not None and same_everywhere(server.failed is not None):
            return {"begun": None, "drawn": None}
        return {"begun": self.begun, "drawn": self._last() if self.drawn is not None else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.forget()
        self.begun = state["begun"]
        if state["drawn"] is not None:
            self.drawn = Future()
            self.drawn.set_result(state["drawn"])


def _beside(work: Callable[..., Any], *args: Any, **more: Any) -> Future[Any]:
    """``work`` in a thread, which nothing waits for when Python ends; on a GPU in a stream of its own, after what this thread has
    started there."""
    future: Future[Any] = Future()
    here = (
        (torch.cuda.current_device(), torch.cuda.current_stream().record_event())
        if torch.cuda.is_initialized()
        else None
    )

    def run() -> None:
        try:
            with _after(here):
                future.set_result(work(*args, **more))
        except BaseException as e:  # whoever asks for the result gets it
            future.set_exception(e)

    threading.Thread(target=run, name="rollout_ahead", daemon=True).start()
    return future


@contextmanager
def _after(here: tuple[int, torch.cuda.Event] | None) -> Iterator[None]:
    """What is started on the GPU inside waits for that event, and for nothing that training starts there later."""
    if here is None:
        yield
        return
    device, event = here
    torch.cuda.set_device(device)  # of this thread
    stream = torch.cuda.Stream()
    stream.wait_event(event)
    with torch.cuda.stream(stream):
        yield
