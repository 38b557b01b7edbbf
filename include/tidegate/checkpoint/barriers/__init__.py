"""Barriers: when a job takes what other jobs have made for a checkpoint, and when that checkpoint goes past it.

Pure: events in, actions out. In a batch job's terms:

    channel i        what one job makes for this one
    barrier n on i   the job that makes it has acknowledged checkpoint n: all that belongs to n is there
    busy             an attempt of this job is at work on an earlier checkpoint
    cancel n         n was aborted
    time is up       n is as old as `aligned_timeout` allows alignment to last

`protocol.on_job` obeys `Alignment`, and at least once `Tracker`: what it answers to a task is what comes out of the
events that the log tells.
"""

from tidegate.checkpoint.barriers.alignment import Alignment as Alignment
from tidegate.checkpoint.barriers.events import Abort as Abort
from tidegate.checkpoint.barriers.events import Action as Action
from tidegate.checkpoint.barriers.events import Barrier as Barrier
from tidegate.checkpoint.barriers.events import Block as Block
from tidegate.checkpoint.barriers.events import Cancel as Cancel
from tidegate.checkpoint.barriers.events import Consume as Consume
from tidegate.checkpoint.barriers.events import Ended as Ended
from tidegate.checkpoint.barriers.events import Event as Event
from tidegate.checkpoint.barriers.events import Freed as Freed
from tidegate.checkpoint.barriers.events import Overtake as Overtake
from tidegate.checkpoint.barriers.events import Record as Record
from tidegate.checkpoint.barriers.events import Refuse as Refuse
from tidegate.checkpoint.barriers.events import Take as Take
from tidegate.checkpoint.barriers.events import TimeUp as TimeUp
from tidegate.checkpoint.barriers.modes import ALIGNED as ALIGNED
from tidegate.checkpoint.barriers.modes import Mode as Mode
from tidegate.checkpoint.barriers.tracking import Tracker as Tracker
