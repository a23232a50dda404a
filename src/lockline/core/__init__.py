"""The algorithms, once, for sync and asyncio: no socket, no thread, no loop and no wall clock in here."""
