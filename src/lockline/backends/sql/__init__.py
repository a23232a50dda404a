"""The one SQL core, under `postgresql` and `mysql`: a step of a line is one call of a routine that the database keeps.

A dialect brings the routines (`enter`, `place`, `leave`, `leave_all`, `renew`, `look`, `names`, `evict`), the connections that call them, and
what its errors mean; `calls.py` says what each routine is given and what it answers. All else is here.
"""
