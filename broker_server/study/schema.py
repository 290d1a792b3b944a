"""The tables of a study (`study.sqlite`). Every row but those of `runs` names its run, by number.

Times are seconds on the run's clock since it began, sizes bytes, fractions in [0, 1]; NULL is "undefined" (NaN).
Round 0 is what happened before round 1 opened. Directions are "up" (device to server) and "down".

runs          what was asked for; `completed`, `reason`, seconds and the hash over all final parameters are NULL until
              the run has ended. `seconds_wall` passed for the person waiting, `seconds_clock` on the run's clock
rounds        opened: the cohort was called; closed: the last upload was in, or time was up; published: the broadcast
              was handed over; `deadline_s` NULL without one; `diagnostics` is what the method says of it, as JSON
participants  the fate of each upload that was called for
transfers     messages, the bytes of their tensors (`payload_bytes`) and of their msgpack bodies (`message_bytes`), as
              counted by each end (`side`): the difference is what was lost
wire          what crossed a device's emulated link: `stream_bytes` is what a capture of the TCP payload sees,
              `wire_bytes` adds the modelled TCP/IP headers of its `segments`, `ack_bytes` are the pure
              acknowledgements that travelled in this direction
evaluations   one device's model on its test set, after an epoch (from 1) of a phase
stages        seconds that a device spent in each stage of a round, and when that began and ended, NULL where it is not
              known; evaluations made meanwhile are in the span and not in the seconds
attacks       what a curious server could extract from one device, by attack, by what the attacker `knows` beyond the
              paper's, and by the `round` whose upload was attacked (R + 1: of one more round, which never was); higher
              `ntmse` and lower `excess_cosine` mean less leakage, `details` is JSON; of equal settings the newest
events        what was late, duplicate, stale, foreign, malformed or told, `count` times; `device` NULL: the server says
              it of all. Of one device: "useless", how many messages of no use it sent, with their kinds; "excluded",
              why nothing of it was read any more in this round; "unread", how many messages that concerned;
              "reported_...", how a round went amiss for it, or its remark on one that did not
"""

VERSION = 2

ATTACKS = """
CREATE TABLE IF NOT EXISTS attacks (
    run INTEGER NOT NULL, device TEXT NOT NULL, attack TEXT NOT NULL, knows TEXT NOT NULL, round INTEGER NOT NULL,
    starts INTEGER NOT NULL, steps INTEGER NOT NULL, ntmse REAL, excess_cosine REAL, details TEXT NOT NULL,
    PRIMARY KEY (run, device, attack, knows, round, starts, steps)
);
"""
"""Not in every study: made when a study is attacked, which may be long after its run."""

TABLES = """
CREATE TABLE runs (
    run INTEGER PRIMARY KEY, name TEXT NOT NULL, dataset TEXT NOT NULL, method TEXT NOT NULL, seed INTEGER NOT NULL,
    devices INTEGER NOT NULL, rounds INTEGER NOT NULL, completed INTEGER, reason TEXT,
    seconds_wall REAL, seconds_clock REAL, state_sha256 TEXT
);
CREATE TABLE rounds (
    run INTEGER NOT NULL, round INTEGER NOT NULL, opened_s REAL NOT NULL, closed_s REAL NOT NULL,
    published_s REAL NOT NULL, deadline_s REAL, diagnostics TEXT NOT NULL, PRIMARY KEY (run, round)
);
CREATE TABLE participants (
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL,
    fate TEXT NOT NULL CHECK (fate IN ('accepted', 'late', 'rejected', 'missing')), PRIMARY KEY (run, round, device)
);
CREATE TABLE transfers (
    run INTEGER NOT NULL, side TEXT NOT NULL CHECK (side IN ('server', 'device')), round INTEGER NOT NULL,
    device TEXT NOT NULL, direction TEXT NOT NULL, kind TEXT NOT NULL,
    messages INTEGER NOT NULL, payload_bytes INTEGER NOT NULL, message_bytes INTEGER NOT NULL
);
CREATE TABLE wire (
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, direction TEXT NOT NULL,
    stream_bytes INTEGER NOT NULL, wire_bytes INTEGER NOT NULL, segments INTEGER NOT NULL, ack_bytes INTEGER NOT NULL
);
CREATE TABLE evaluations (
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, phase TEXT NOT NULL, epoch INTEGER NOT NULL,
    loss REAL, threshold REAL, accuracy REAL, auroc REAL, average_precision REAL
);
CREATE TABLE stages (
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, stage TEXT NOT NULL, seconds REAL NOT NULL,
    began_s REAL, ended_s REAL
);
CREATE TABLE events (
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT, kind TEXT NOT NULL, count INTEGER NOT NULL, detail TEXT
);
"""

OF_ROUNDS = ("rounds", "participants", "transfers", "wire", "evaluations", "stages", "events")
"""The tables whose rows belong to a round."""
