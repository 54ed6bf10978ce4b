"""Answers requests that arrive at about the same time in one trip to a thread.

A round begins for a whole cohort at once: each of its devices asks for its task. Alone, each
request would cost a thread and a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Batcher(Generic[Question, Answer]):
    """Gathers questions while earlier ones are being answered. Lives on the event loop."""

    def __init__(
        self,
        answer: Callable[[Sequence[Question]], Sequence[Answer | Exception]],
        max_batch: int,
    ) -> None:
        """`answer` runs in a thread; for each question it returns an answer or an error."""
        self._answer = answer
        self._max_batch = max_batch
        self._questions: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._answering: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """Return the answer, or raise the error, of this question."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._questions.append((question, future))
        if self._answering is None:
            # In an empty context: the task also works for callers other than this one.
            self._answering = asyncio.create_task(self._answer_all(), context=Context())
        return await future

    async def _answer_all(self) -> None:
        try:
            while self._questions:
                batch = self._questions[: self._max_batch]
                del self._questions[: self._max_batch]
                for (_, future), answer in zip(batch, await self._answers(batch), strict=True):
                    if future.done():  # the caller hung up
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._answering = None

    async def _answers(
        self, batch: Sequence[tuple[Question, asyncio.Future[Answer]]]
    ) -> Sequence[Answer | Exception]:
        try:
            return await asyncio.to_thread(self._answer, [question for question, _ in batch])
        except Exception as error:  # noqa: BLE001  # each caller gets it
            return [error] * len(batch)
