"""A receiver of webhooks for tests: keeps what is posted to it, and answers what the test says."""

from typing import Any

from tests.fake_engine import FakeServer
from tests.fake_http import Answer, Exchange


class FakeWebhook(FakeServer):
    """`documents` are the JSON bodies in order of arrival, whatever they were answered; GET is 405."""

    def __init__(self, *, reply: Answer | None = None, port: int = 0) -> None:
        super().__init__(port=port)
        self.reply = Answer(204) if reply is None else reply

    @property
    def documents(self) -> list[Any]:
        return [call.body for call in list(self.calls) if call.method == "POST"]

    def answer(self, exchange: Exchange) -> Answer:
        return self.reply if exchange.call.method == "POST" else Answer(405, {"detail": "Method Not Allowed"})
