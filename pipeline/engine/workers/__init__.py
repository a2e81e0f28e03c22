"""Worker processes: the messages they exchange with the engine, their main function, the pool that owns them."""
