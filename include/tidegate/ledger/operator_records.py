"""What people tell a pipeline: answers to verdicts that hold, and requests about rows in quarantine."""

from __future__ import annotations

import msgspec

from tidegate import seams
from tidegate.ledger.records import Created, Records, folder
from tidegate.records.masking import without_logins
from tidegate.records.names import entry_name
from tidegate.records.records import Act, Acted, Answer, Request

__all__ = ["OperatorRecords"]


AUDIT = "audit"


class OperatorRecords(Records):
    """Records that people make. Each is settled by a create, like all others."""

    def create_answer(self, answer: Answer) -> Created[Answer]:
        """D5: what counts is what comes back, a person's answer or the time limit's."""
        seams.fault("S7.answer.before")
        made = self._create(f"{folder(answer.id)}/holds/{answer.gate}.json", answer)
        seams.fault("S7.answer.after")
        return made

    def answer(self, id: int, gate: str) -> Answer | None:
        """What was said to the gate's verdict on checkpoint `id`, if anything."""
        path = f"{folder(id)}/holds/{gate}.json"
        found = self._read(path, Answer, id)
        if found is not None and found.gate != gate:
            raise self._misplaced(path, f"gate {found.gate!r}")
        return found

    def settle_answer(self, answer: Answer) -> None:
        """W2: before a checkpoint is decided by it."""
        self.store.settle(f"{folder(answer.id)}/holds/{answer.gate}.json")

    def age_of_ack(self, id: int, job: str) -> float | None:
        """Seconds since the job acked, by the store's clock alone."""
        return self.store.age(f"{folder(id)}/acks/{job}.json")

    def create_request(self, request: Request) -> Created[Request]:
        """Put a request behind those that the caller has seen."""
        seams.fault("Q1.request.before")
        made = self._create(_request_path(request.gate, request.number), request)
        seams.fault("Q1.request.after")
        return made

    def requests(self, gate: str, after: int = 0) -> list[Request]:
        """The requests behind number `after`, in order. What a listing does not show yet is in the next one."""
        found: list[Request] = []
        while (request := self._request(gate, after + len(found) + 1)) is not None:
            found.append(request)
        return found

    def settle_request(self, request: Request) -> None:
        """W2: before a plan goes on from behind it."""
        self.store.settle(_request_path(request.gate, request.number))

    def _request(self, gate: str, number: int) -> Request | None:
        path = _request_path(gate, number)
        found = self._read(path, Request)
        if found is not None and (found.gate, found.number) != (gate, number):
            raise self._misplaced(path, f"request {found.number} of gate {found.gate!r}")
        return found

    # -- who did what from the pages -----------------------------------------------------------------

    def create_act(self, act: Act) -> str:
        """Write down that somebody asks for something, before it is done. Answers with its key."""
        self._create(f"{AUDIT}/{act.key}.json", act)
        return act.key

    def act(self, key: str) -> Act | None:
        """What was asked for under this key, which must have been checked: it is a part of a path."""
        path = f"{AUDIT}/{key}.json"
        found = self._read(path, Act)
        if found is not None and found.key != key:
            raise self._misplaced(path, f"act {found.key}")
        return found

    def create_acted(self, key: str, acted: Acted) -> None:
        """What came of it."""
        told = msgspec.structs.replace(acted, told=without_logins(acted.told))
        self._create(f"{AUDIT}/{key}.done.json", told)

    def acts(self, last: int) -> list[tuple[Act, Acted | None]]:
        """The last so many, newest first."""
        names = [name for name in self.store.names(AUDIT) if not name.endswith(".done.json")]
        keys = [name.removesuffix(".json") for name in names[-last:]]
        found = ((self._read(f"{AUDIT}/{key}.json", Act), key) for key in reversed(keys))
        return [(act, self._read(f"{AUDIT}/{key}.done.json", Acted)) for act, key in found if act is not None]


def _request_path(gate: str, number: int) -> str:
    return f"asked/{gate}/{entry_name(number)}.json"
