"""The tables of a study (`study.sqlite`). Times in seconds since the run began, sizes in bytes.

Message and payload bytes come from both ends (`side`), which is how lost messages show; wire bytes come from the
device's emulated link: `stream_bytes` is what a capture of the TCP payload sees, `wire_bytes` adds the modelled
TCP/IP headers, `ack_bytes` are the pure acknowledgements travelling in this direction.
"""

VERSION = 1

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
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, stage TEXT NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE events (
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT, kind TEXT NOT NULL, count INTEGER NOT NULL, detail TEXT
);
"""
