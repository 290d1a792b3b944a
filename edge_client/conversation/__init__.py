"""A device's conversation with the server: what it hears (`mailbox`), what it says (`outbox`), and when (`session`)."""
