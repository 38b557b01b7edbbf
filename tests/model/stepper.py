"""What all steps share: one actor in one state, and how the next states are made."""

from __future__ import annotations

from tests.model.facts import Content, Fact, Log, State, last
from tests.model.world import Actor, ModelWorld, Pc

Step = tuple[str, State]
"""What is done, for the story, and the state after it."""

Head = tuple[int, int | None, int | None]
"""Version of a table, the last checkpoint on it, and the one of which it has a part."""


class Stepper:
    """One actor in one state."""

    def __init__(self, world: ModelWorld, state: State, number: int) -> None:
        self.world, self.state, self.number = world, state, number
        self.actor: Actor = world.actors[number]
        self.log = state.log

    def broken(self, mutation: str) -> bool:
        return mutation in self.world.broken

    @property
    def attempt(self) -> str:
        """What this process signs its records with; after a power loss it is another process."""
        return self.actor.name + "'" * (self.world.power_losses - self.state.losses)

    def go(self, pc: Pc, **changed: object) -> State:
        """The state with this actor at `pc` and `changed` facts."""
        pcs = self.state.pcs
        return self.state._replace(pcs=(*pcs[: self.number], pc, *pcs[self.number + 1 :]), **changed)

    def create(self, pc: Pc, log: Log, *made: object) -> State:
        """A record was created: seen at once, but durable only after a sync if power can be lost."""
        if not self.state.losses or log == self.log:
            return self.go(pc, log=log)
        return self.go(("SYNC", made, pc), log=log, unsynced=self.state.unsynced | {made})

    def settled(self, ids: tuple[int | None, ...], pc: Pc) -> Pc:
        """`pc`, but first W2: make durable what these entries hold."""
        needed = self.state.losses and any(made[0] != "tombstone" and made[1] in ids for made in self.state.unsynced)
        return ("S", ids, pc) if needed else pc

    def fact(self, id: int | None) -> Fact | None:
        return self.log[id - 1] if id is not None and 1 <= id <= len(self.log) else None

    def window(self) -> tuple[Log, int]:
        """What a view holds: the log from the last settled entry on, and that entry's id."""
        first = max(self.state.hint, 1)
        return self.log[first - 1 :], first

    def elsewhere(self) -> tuple[tuple[int, Fact], ...]:
        """The run's entries below the view, found by the index that is never deleted."""
        if self.broken("ignore the run index"):
            return ()
        below = enumerate(self.log[: max(self.state.hint, 1) - 1], 1)
        return tuple((id, fact) for id, fact in below if fact.run == self.actor.run and fact.indexed)

    def head(self, table: int) -> Head:
        """What a publisher reads of a table."""
        commits, begun = self.state.tables[table], self.state.begun
        return len(commits), last(commits), begun[0] if begun is not None and table == 0 else None

    # -- creates that several steps need

    def index(self, id: int) -> Log:
        """runs/<run>/<id> exists."""
        return put(self.log, id, self.log[id - 1]._replace(indexed=True))

    def abort(self, id: int, pc: Pc) -> Step:
        """The abort of `id`, unless it is decided. Whether it won is for whoever reads next."""
        fact = self.log[id - 1]
        if fact.open:
            return f"aborts {id}", self.create(pc, put(self.log, id, fact._replace(aborted=True)), "decision", id)
        if self.broken("overwrite decision"):
            log = put(self.log, id, fact._replace(made=None, aborted=True))
            return f"overwrites the decision: {id} is aborted", self.go(pc, log=log)
        return f"finds {id} decided", self.go(pc)

    def commit(self, table: int, id: int, content: Content, pc: Pc) -> State:
        """The next version of a table. What it has of another entry stays there, for it was sent."""
        tables, begun = self.state.tables, self.state.begun
        from tests.model.rollback import commit_of

        if table == 0:
            if begun is not None and begun[0] != id:
                content = (*begun[1], *content)
            begun = None
        grown = (*tables[table], commit_of(self, table, id, content))
        return self.go(pc, tables=(*tables[:table], grown, *tables[table + 1 :]), begun=begun)

    def send_part(self, id: int, content: Content, pc: Pc) -> State:
        """The first of the two transactions in which table 0 takes an entry."""
        return self.go(pc, begun=(id, content[:1]))


def put(log: Log, id: int, fact: Fact) -> Log:
    """The log with entry `id` as given."""
    return (*log[: id - 1], fact, *log[id:])
