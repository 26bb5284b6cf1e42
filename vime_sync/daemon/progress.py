"""How far a pass is: heard from the work itself, told to systemd's watchdog and, when asked for, to the log."""

from __future__ import annotations

from collections.abc import Callable

from vime_sync.daemon.notify import Notifier
from vime_sync.materialize.context import StopFlag, Tally


class Progress:
    """Listens to the tally of each pass; `asked` is set by a signal, and answered by whoever works next."""

    def __init__(
        self,
        notifier: Notifier,
        say: Callable[[str], None],
        stop: StopFlag | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._notifier = notifier
        self._stop = stop
        self._beat = beat
        self._told_stop = False
        self._say = say
        self._phase = ""
        self._counted = self._counted_of = self._done_bytes = self._total_bytes = 0
        self.asked = False

    def tally(self) -> Tally:
        return Tally(self._listen)

    def rest(self) -> None:
        """Between passes."""
        self._phase = ""
        self._alive()

    def _listen(self, event: str, counted: int, size_bytes: int) -> None:
        if event.startswith("start:"):
            self._phase = event.removeprefix("start:")
            self._counted, self._counted_of = 0, counted
            self._done_bytes, self._total_bytes = 0, size_bytes
        else:
            self._counted += counted
            self._done_bytes += size_bytes
        self._alive()

    def _alive(self) -> None:
        # Only from here: a process whose work stands still must look dead to systemd.
        self._notifier.progress()
        self._beat()
        if self._stop is not None and self._stop.signal_number is not None and not self._told_stop:
            self._told_stop = True
            self._say(
                f"{self._stop.signal_name}: ends at the next safe point ({self.text()}); a second one ends at once"
            )
        if self.asked:
            self.asked = False
            self._say(self.text())

    def text(self) -> str:
        if not self._phase:
            return "at rest: nothing is to be done"
        return (
            f"{self._phase}: {self._counted} of {self._counted_of} done, "
            f"{self._done_bytes} of {self._total_bytes} bytes"
        )
