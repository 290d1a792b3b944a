"""The wire protocol, sans-io: message types, their encoding under limits, topics, chunks and the byte tally."""
