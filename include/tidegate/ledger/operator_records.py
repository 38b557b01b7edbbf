"""Records that people create: answers to verdicts that hold, requests about quarantined rows, and the audit log."""

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
    """Reads and creates the records of people. Each is settled by a create, like all others."""

    def create_answer(self, answer: Answer) -> Created[Answer]:
        """D5: create the answer. The one that is returned counts: a person's, or the time limit's."""
        seams.fault("S7.answer.before")
        created = self._create(f"{folder(answer.id)}/holds/{answer.gate}.json", answer)
        seams.fault("S7.answer.after")
        return created

    def answer(self, id: int, gate: str) -> Answer | None:
        """Return the answer to the gate's verdict on checkpoint `id`, if there is one."""
        path = f"{folder(id)}/holds/{gate}.json"
        answer = self._read(path, Answer, id)
        if answer is not None and answer.gate != gate:
            raise self._misplaced(path, f"gate {answer.gate!r}")
        return answer

    def settle_answer(self, answer: Answer) -> None:
        """W2: sync the answer. To be called before a checkpoint is decided by it."""
        self.store.settle(f"{folder(answer.id)}/holds/{answer.gate}.json")

    def age_of_ack(self, id: int, job: str) -> float | None:
        """Return the seconds since the job acked, by the store's clock alone."""
        return self.store.age(f"{folder(id)}/acks/{job}.json")

    def create_request(self, request: Request) -> Created[Request]:
        """Append a request to those that the caller has seen."""
        seams.fault("Q1.request.before")
        created = self._create(_request_path(request.gate, request.number), request)
        seams.fault("Q1.request.after")
        return created

    def requests(self, gate: str, after: int = 0) -> list[Request]:
        """Return the requests after number `after`, in order. A request that is not visible yet comes with the next
        call."""
        requests: list[Request] = []
        while (request := self._request(gate, after + len(requests) + 1)) is not None:
            requests.append(request)
        return requests

    def settle_request(self, request: Request) -> None:
        """W2: sync the request. To be called before a plan continues after it."""
        self.store.settle(_request_path(request.gate, request.number))

    def _request(self, gate: str, number: int) -> Request | None:
        path = _request_path(gate, number)
        request = self._read(path, Request)
        if request is not None and (request.gate, request.number) != (gate, number):
            raise self._misplaced(path, f"request {request.number} of gate {request.gate!r}")
        return request

    # -- the audit log of the pages ------------------------------------------------------------------

    def create_act(self, act: Act) -> str:
        """Record the request for an action, before it is performed. Return its key."""
        self._create(f"{AUDIT}/{act.key}.json", act)
        return act.key

    def act(self, key: str) -> Act | None:
        """Return the act with this key. The caller must have checked the key: it becomes part of a path."""
        path = f"{AUDIT}/{key}.json"
        act = self._read(path, Act)
        if act is not None and act.key != key:
            raise self._misplaced(path, f"act {act.key}")
        return act

    def create_acted(self, key: str, acted: Acted) -> None:
        """Record the outcome of an act."""
        masked = msgspec.structs.replace(acted, told=without_logins(acted.told))
        self._create(f"{AUDIT}/{key}.done.json", masked)

    def acts(self, last: int) -> list[tuple[Act, Acted | None]]:
        """Return the last `last` acts with their outcomes, newest first."""
        names = [name for name in self.store.names(AUDIT) if not name.endswith(".done.json")]
        keys = [name.removesuffix(".json") for name in names[-last:]]
        acts = []
        for key in reversed(keys):
            act = self._read(f"{AUDIT}/{key}.json", Act)
            if act is not None:
                acts.append((act, self._read(f"{AUDIT}/{key}.done.json", Acted)))
        return acts


def _request_path(gate: str, number: int) -> str:
    return f"asked/{gate}/{entry_name(number)}.json"
