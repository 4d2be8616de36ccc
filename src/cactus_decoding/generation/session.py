"""Many responses at a time: some decoding together, some waiting for a place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.generation.engine import Batch, Decoding
from cactus_decoding.generation.events import Event
from cactus_decoding.generation.output import Output, output_of


class Session:
    """Continuous batching: a response joins as soon as a row is free and leaves as soon as it ends.

    Made by `Pair.session`. Memory is bounded by ``rows``, and what waits by ``waiting``: when that is full, `submit`
    runs the batch until there is room. Nothing runs but inside the calls of this object and its streams, one thread
    at a time.
    """

    def __init__(self, batch: Batch, prepare: Callable[..., Decoding], rows: int, waiting: int) -> None:
        self._batch = batch
        self.prepare = prepare
        self.rows = rows
        self.waiting = waiting
        self._queue: deque[Decoding] = deque()
        self._closed = False

    @property
    def running(self) -> int:
        """Responses that decode now."""
        return len(self._batch.decodings)

    @property
    def queued(self) -> int:
        """Responses that wait for a row."""
        return len(self._queue)

    @property
    def can_submit(self) -> bool:
        """Whether `submit` would return at once."""
        return self.running < self.rows or self.queued < self.waiting

    def submit(self, prompt: object, **options: object) -> Stream:
        """Take in a request, with the options of `Pair.stream`, and return its stream.

        Raises `InvalidParameter` or `InvalidPrompt` at once where the request is bad. Steps the batch while both the
        rows and the queue are full.
        """
        return self.submit_prepared(self.prepare(prompt, **options))

    def submit_prepared(self, decoding: Decoding) -> Stream:
        """`submit` of a request that was checked before."""
        self._require_open()
        while not self.can_submit:
            self.step()
        self._queue.append(decoding)
        self._admit()
        return Stream(self, decoding)

    def step(self) -> None:
        """One verifier call for all that are running, after free rows are given to those who wait.

        An exception out of it, other than a response's own error, closes the session.
        """
        self._require_open()
        self._admit()
        if self._batch.decodings:
            try:
                self._batch.step()
            except BaseException as error:
                for decoding in self._queue:
                    if isinstance(error, Exception):
                        decoding.error = error
                self.close()
                raise

    def run(self) -> None:
        """Step until nothing is running or waiting."""
        while self._queue or self._batch.decodings:
            self.step()

    def cancel(self, decoding: Decoding) -> None:
        """End a response where it stands; its row is free at once."""
        if decoding in self._queue:
            self._queue.remove(decoding)
            decoding.closed = True
        elif decoding in self._batch.decodings:
            self._batch.drop(decoding)

    def close(self) -> None:
        """Cancel everything and free all caches."""
        for decoding in self._queue:
            decoding.closed = True
        self._queue.clear()
        self._batch.close()
        self._closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admit(self) -> None:
        while self._queue and self.running < self.rows:
            self._batch.admit(self._queue.popleft())

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidParameter("this session is closed. Open a new one with pair.session().")


class Stream(Iterator[str]):
    """One response. Iterate for the pieces of text; `events` and, at the end, `output` tell the rest.

    No piece ends inside a character or may still turn out to begin a stop string. Iteration may pause and go on, and
    it steps the whole session: others move on meanwhile. `close` ends the response early and frees its caches at
    once.
    """

    def __init__(self, session: Session, decoding: Decoding) -> None:
        self._session = session
        self._decoding = decoding

    def __next__(self) -> str:
        while True:
            piece = self._decoding.stops.take_piece()
            if piece:
                return piece
            self._raise_error()
            if self._decoding.done:
                raise StopIteration
            self._session.step()

    def close(self) -> None:
        """End the response here and free its caches. What came so far is in `ids` and `events`."""
        self._session.cancel(self._decoding)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def done(self) -> bool:
        """Whether the response has ended, failed or was closed."""
        return self._decoding.done

    @property
    def error(self) -> Exception | None:
        """What ended it, if it failed."""
        return self._decoding.error

    @property
    def cap(self) -> int:
        """The most ids this response may have."""
        return self._decoding.job.max_new_tokens

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids emitted so far."""
        return tuple(self._decoding.ids)

    @property
    def events(self) -> list[Event]:
        """The events so far."""
        return self._decoding.events

    @property
    def output(self) -> Output:
        """The whole response. Raises its error if it failed, `InvalidParameter` if it has not ended."""
        self._raise_error()
        if self._decoding.stops.reason is None:
            raise InvalidParameter(
                "this response was not iterated to its end, so it has no whole output. `ids` and `events` hold what "
                "came so far."
            )
        return output_of(self._decoding)

    def _raise_error(self) -> None:
        if self._decoding.error is not None:
            raise self._decoding.error
