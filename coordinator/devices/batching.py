"""Answers in one trip to a thread what is asked at about the same time.

A round begins for a whole cohort at once, and each of its devices asks for its task. One by one,
each would take a thread, a transaction, and the interpreter from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Together(Generic[Question, Answer]):
    """Gathers questions while those before them are answered. Lives on the event loop."""

    def __init__(
        self,
        answer: Callable[[Sequence[Question]], Sequence[Answer | Exception]],
        most_at_once: int,
    ) -> None:
        """`answer` is called in a thread; for each question it answers, or says what to raise."""
        self._answer = answer
        self._most_at_once = most_at_once
        self._asked: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._answering: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """The answer to this one."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.append((question, future))
        if self._answering is None:
            # In a context of nobody's: it goes on for others than who asks first.
            self._answering = asyncio.create_task(self._answer_all(), context=Context())
        return await future

    async def _answer_all(self) -> None:
        try:
            while self._asked:
                some = self._asked[: self._most_at_once]
                del self._asked[: self._most_at_once]
                for (_, future), answer in zip(some, await self._answers(some), strict=True):
                    if future.done():  # whoever asked has gone
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._answering = None

    async def _answers(
        self, asked: Sequence[tuple[Question, asyncio.Future[Answer]]]
    ) -> Sequence[Answer | Exception]:
        try:
            return await asyncio.to_thread(self._answer, [question for question, _ in asked])
        except Exception as error:  # noqa: BLE001  # each of those who asked gets it
            return [error] * len(asked)
