"""The process that runs one model for `octet eval`, so that its memory and settings are its own.

    python -m llama_octet.eval_child < requests > replies

A request is a line of JSON, a reply a line of JSON, after which the logits follow as raw f32:

    {"open": path, "stock": bool, "ctx": n, "threads": n}   -> {"vocab", "bos", …}
    {"tokenize": text, "bos": bool, "special": bool}        -> {"tokens"}
    {"feed": tokens, "past": n, "rows": n}                  -> {"seconds"}, logits of the last rows
    {"finish": true}                                        -> {"peak_rss_mib", "status"}

An error is {"error": text}, and the end. Whatever else this process prints goes to stderr.
"""

import ctypes
import json
import os
import sys
import time

from .commands.run import open_model, peak_rss_mib
from .errors import OctetError, one_line

BATCH = 512  # tokens at once, as llama_cpp.Llama does by default


class Server:
    """Answers the requests, one method each."""

    def __init__(self, replies):
        """`replies`: the binary stream to write to."""
        self.replies = replies
        self.llm = None

    def open(self, request: dict) -> None:
        """Load the model."""
        start = time.perf_counter()
        if self.llm:
            self.llm.close()
        self.llm, self.status = open_model(
            request["open"],
            request["stock"],
            n_ctx=request["ctx"],
            n_batch=BATCH,
            n_threads=request["threads"],
            n_threads_batch=request["threads"],
            verbose=False,
        )
        self.vocab = self.llm.n_vocab()
        bos = [self.llm.token_bos()] if self.llm._model.add_bos_token() else []
        self.reply(
            {
                "vocab": self.vocab,
                "bos": bos,
                "can_rewind": self._can_rewind(),
                "load_s": time.perf_counter() - start,
            }
        )

    def tokenize(self, request: dict) -> None:
        """Tokens of a text."""
        raw = request["tokenize"].encode("utf-8", "surrogateescape")
        tokens = self.llm.tokenize(raw, add_bos=request["bos"], special=request["special"])
        self.reply({"tokens": tokens})

    def feed(self, request: dict) -> None:
        """Tokens through the model, at most BATCH; `past` of its context is kept."""
        tokens, past, rows = request["feed"], request["past"], request["rows"]
        context, batch = self.llm._ctx, self.llm._batch
        start = time.perf_counter()
        if past == 0:
            context.kv_cache_clear()
        else:
            context.kv_cache_seq_rm(-1, past, -1)
        batch.set_batch(tokens, n_past=past, logits_all=False)
        for i in range(len(tokens) - rows, len(tokens)):
            batch.batch.logits[i] = True
        context.decode(batch)
        logits = context.get_logits()  # waits for the result
        seconds = time.perf_counter() - start
        self.reply({"seconds": seconds})
        if rows:
            floats = ctypes.c_float * (rows * self.vocab)
            self.replies.write(floats.from_address(ctypes.addressof(logits.contents)))
            self.replies.flush()

    def finish(self, request: dict) -> None:
        """What the process used and which kernels ran."""
        self.reply({"peak_rss_mib": peak_rss_mib(), "status": self.status()})

    def _can_rewind(self) -> bool:
        # A recurrent state cannot go back to an earlier position.
        import llama_cpp

        low, model = llama_cpp.llama_cpp, self.llm._model.model
        return not (low.llama_model_is_recurrent(model) or low.llama_model_is_hybrid(model))

    def reply(self, answer: dict) -> None:
        """One line."""
        self.replies.write(json.dumps(answer).encode() + b"\n")
        self.replies.flush()


def main() -> int:
    """Answer until there are no more requests."""
    server = Server(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # the runtime's libraries may print
    try:
        for line in sys.stdin:
            request = json.loads(line)
            getattr(server, next(iter(request)))(request)
    except OctetError as why:
        server.reply({"error": str(why), "exit_code": why.exit_code})
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as why:
        server.reply({"error": f"{type(why).__name__}: {one_line(why)}", "exit_code": 1})
    return 0


if __name__ == "__main__":
    sys.exit(main())
