"""Text that is fitted to a terminal: tables that leave out what has no room, names cut where they stay apart."""
