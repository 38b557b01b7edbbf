"""What a process does, one access to the store per step; every decision is the protocol's own function.

A process is one run's whole chain, as doubled tasks of Airflow would do it: trigger, jobs, completion,
publish. It may stop forever after any step (it is simply never chosen again: a crash) and may continue
any time later (a zombie). Its program counter says where it stands and what it remembers:

    T                            read the log, ask on_trigger
    TR  first, count, seen       reading the log entry by entry
    TA  id, ahead                create the abort of id (ahead: what a broken coordinator plans next)
    TC  id, base, start          create entry id
    TI  id                       create the run's index
    J   id, job                  read entry and base, ask on_job
    JA  id, job, part            create the ack
    C   id                       read entry and base, ask on_completion
    CA  id                       create the abort
    CH  id, approve              create the answer to what holds it
    CI  id, made                 create the run's index
    CD  id, made                 create the decision: THE commit point
    R   target                   read the log, choose a checkpoint to go back to, ask on_rollback
    RA  id, target               create the abort of what is open
    RC  id, base, target         create the rollback's entry
    RD  id, target               create its decision
    LB  line                     begin a line, or continue with it
    LP  line, origin, lowest        pin where it is forked from
    LC  line, origin, lowest        check that this is not retired
    LF  line, origin, lowest        fork it
    LR  line                     read how far the line is
    LRV line, fact               read the log, ask on_replay
    LA  line, seen, ids …        complete a checkpoint of the line
    LS  line                     read how far the line is
    LSV line, fact               read the log, ask on_swap
    NO  line                     told the user that the line cannot continue
    LX  line, id                 create the abort of id
    LN  line, id                 create an entry that never counts
    LQ  line, id, base …         pin the ways back
    LE  line, id, base …         create the swap's entry
    LT  line, id                 check that the line is not discarded
    LK  line, id                 copy an ack of the line
    LI  line, id                 create the run's index
    LD  line, id                 create the swap's decision
    DB  line                     create the tombstone of a line
    DR  line                     read the log, ask on_discard
    DA  line, id                 create the abort of id
    DF  line, named by           delete the line's files
    DX  line                     delete the line's records
    DP  line                     unpin its origin
    G                            read log and pins: what may be retired?
    GT  id                       create its tombstone
    GR  id                       read log and pins again
    GX  id                       delete it
    V                            read the head of table 0, to divert what waits for it
    VV  last                     read the log
    VC  id, base, last           create the divert's entry
    VS  id, applied, table …     note whether a divert applied
    P   table, contradicted …    read the table's head
    PV  table, head …            read the log, ask on_publish
    PC  table, head, id …        commit by compare-and-swap
    H   upto                     read the log for the hint
    HI  ids, next                index the intervals that these completed; interval pipelines only
    HW  id                       write the hint
    S   ids, next                settle what others wrote; only where power can be lost
    SYNC record, next            settle what it has just created itself; likewise
    END                          done
    CORRUPT why                  told the user that something is damaged
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model import chain, diverts, intervals, lines, publishing, retention, rollback
from tests.model.facts import State
from tests.model.stepper import Step, Stepper
from tests.model.world import ModelWorld

_STEPS: dict[object, Callable[..., Iterator[Step]]] = {
    "T": chain.trigger,
    "TR": chain.trigger_reads,
    "TA": chain.trigger_abort,
    "TC": chain.trigger_create,
    "TI": chain.trigger_index,
    "J": chain.job,
    "JA": chain.job_ack,
    "C": chain.completion,
    "CA": chain.complete_abort,
    "CH": chain.complete_answer,
    "CI": chain.complete_index,
    "CD": chain.complete_decide,
    "R": rollback.read,
    "RA": rollback.abort,
    "RC": rollback.create,
    "RD": rollback.decide,
    "LB": lines.begin,
    "LP": lines.pin_origin,
    "LC": lines.check_origin,
    "LF": lines.fork,
    "LR": lines.replay,
    "LRV": lines.replay_log,
    "LRL": lines.replay_line,
    "LA": lines.replayed,
    "LS": lines.swap_read,
    "LSV": lines.swap_log,
    "LX": lines.swap_abort,
    "LN": lines.fill_up,
    "LQ": lines.swap_pin,
    "LE": lines.swap_create,
    "LT": lines.swap_tombstone,
    "LK": lines.swap_copies,
    "LI": lines.swap_index,
    "LD": lines.swap_decide,
    "LW": lines.swap_pin_late,
    "DB": lines.discard,
    "DE": lines.discard_entomb,
    "DR": lines.discard_look,
    "DA": lines.discard_abort,
    "DF": lines.discard_files,
    "DX": lines.discard_records,
    "DP": lines.discard_pin,
    "G": retention.look,
    "GT": retention.claim,
    "GR": retention.look_again,
    "GX": retention.delete,
    "V": diverts.look,
    "VV": diverts.plan,
    "VC": diverts.create,
    "VS": diverts.settle,
    "P": publishing.publish_head,
    "PV": publishing.publish_view,
    "PC": publishing.publish_commit,
    "H": publishing.hint_read,
    "HI": intervals.index,
    "HW": publishing.hint_write,
    "S": publishing.settle,
    "SYNC": publishing.sync,
}


def steps(world: ModelWorld, state: State, number: int) -> Iterator[Step]:
    """All that this actor could do next, each with a description."""
    pc = state.pcs[number]
    step = _STEPS.get(pc[0])
    if step is not None:
        yield from step(Stepper(world, state, number), *pc[1:])
