"""Worker processes: their main function, their messages with the engine, and the pool that owns them."""
