"""Which code the launches ran: each arm's own, and where head's differs from the base's."""
