"""Threads that work beside requests for as long as a service runs."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from service.errors import DatabaseError
from service.store.wakeup import Wakeup

log = logging.getLogger(__name__)


class Background(ABC):
    """Base of classes that repeat `step` in a thread of their own. A failed step is logged and repeated.

    Args:
        name: of the thread.
        poll_s: the time from one step to the next.
        bell: has the next step begin at once.
    """

    patience_s: float | None = None  # for the end of its last step; None: as long as that takes

    def __init__(self, name: str, poll_s: float, bell: Wakeup | None = None) -> None:
        self._name = name
        self._poll_s = poll_s
        self._bell = bell or Wakeup()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def step(self) -> object:
        """Do what is due."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current step."""
        self._stopping.set()
        self._bell.notify()
        if self._thread is not None:
            self._thread.join(self.patience_s)

    def _loop(self) -> None:
        away = False  # the database
        while not self._stopping.is_set():
            try:
                seen = self._bell.count
                self.step()
                away = False
                self._bell.wait(seen, self._poll_s)
            except Exception as error:
                if not isinstance(error, DatabaseError):
                    log.exception("the %s goes on after an error", self._name)
                elif not away:  # once, however long it lasts
                    log.warning("the %s waits until the database answers: %s", self._name, error)
                away = isinstance(error, DatabaseError)
                self._stopping.wait(self._poll_s)
