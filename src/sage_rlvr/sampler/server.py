"""TRL's vLLM server: when it does not answer, the run stops on every process, with a checkpoint and a sentence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sage_rlvr.errors import UserError

NOTHING: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "logprob_token_ids": []}


@contextmanager
def said_plainly(args: Any) -> Iterator[None]:
    """What TRL raises of a server that it cannot use has the way out in it."""
    try:
        yield
    except (OSError, RuntimeError) as e:
        if not (args.use_vllm and args.vllm_mode == "server" and "vLLM" in str(e)):
            raise
        raise UserError(" ".join(str(e).split())) from e


class Server:
    """Where the first process talks to it, an error is kept and nothing is answered; all processes see that together."""

    def __init__(self, trainer: Any):
        self.trainer, generation = trainer, trainer.vllm_generation
        self.url = generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}"
        self.failed: Exception | None = None
        client = getattr(generation, "vllm_client", None)  # the first process has one
        for name in ("generate", "update_named_params", "reset_prefix_cache") if client is not None else ():
            setattr(client, name, self._kept(getattr(client, name)))

    def _kept(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **more: Any) -> Any:
            if self.failed is None:
                try:
                    return call(*args, **more)
                except Exception as e:
                    self.failed = e
            for weights in (x for x in args if isinstance(x, Iterator)):
                for _ in weights:  # the other processes gather them too
                    pass
            return NOTHING

        return watched

    def check(self, answered: bool) -> None:
        """Every process comes here, with the same ``answered``."""
        if answered:
            return
        why = None
        if self.failed is not None:
            how = (
                "does not answer" if isinstance(self.failed, OSError) else "refused a request"
            )  # requests' errors are OSErrors
            why = f"the vLLM server at {self.url} {how} ({' '.join(str(self.failed).split())[:200]})"
        self.trainer._guard.stop(why, self.failed)
