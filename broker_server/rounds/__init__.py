"""The rounds of a run, sans-io: who is in, what is asked of whom, what comes, what is answered.

A message's way: `gate` (may it be heard at all), `conduct` (is its sender in order), then `coordinator`, which hands it
to `door` (a join), `intake` (a chunk of an upload) or `reports`; `actions` are what comes out, `herald` words them.
"""
