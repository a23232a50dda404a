"""The one Redis transport, under `redis:` and `redlock:`: a server's address and login, connections, subscriptions, errors.

redis-py connects, encrypts and logs in; after that only bytes go over its socket, read by hiredis. Nothing here repeats a request:
whether that is harmless is for those to say who know what they sent.
"""
