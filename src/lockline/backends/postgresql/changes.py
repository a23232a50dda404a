"""The routines `watch` and `tell` in PL/pgSQL: one who stands in no line is told of the next change of who holds.

Who watches has a row like that of a claim, at a name that no line has, and with the next change that row goes: so a name that changes
hands a thousand times a second costs one NOTIFY for each time that somebody asks. Whether there is such a row a step sees in a statement that it
needs anyway. There is no table for it, so a role has the rights that this takes, and one that died is swept with the claims.
"""

from __future__ import annotations

from typing import Final

WATCHED: Final = 60.0
"""Seconds for which one who watches is told; it asks again much sooner."""
_WATCHERS: Final = "decode('ff', 'hex') || "
"""Before a name: no text of UTF-8 begins like this, nor what a prefix makes of one."""
IS_WATCHED: Final = f"EXISTS (SELECT FROM {{schema}}.claim w WHERE w.name = {_WATCHERS}my_name)"

CHANGES: Final = """
CREATE OR REPLACE FUNCTION {schema}.watch_v1(
    at bigint, my_name bytea, my_id text, my_channel text, seconds double precision, OUT done integer
) LANGUAGE plpgsql {patience} AS $$
DECLARE
    now timestamptz;
BEGIN
    -- What a crash forgets is asked for again.
    PERFORM set_config('synchronous_commit', 'off', true);
    {step}
    INSERT INTO {schema}.claim AS c (id, name, ticket, weight, capacity, ttl, expires, told, channel, about) VALUES (
        my_id, {watchers}my_name, hashtextextended(my_id, 0), 1, 1, seconds, now + seconds * interval '1 second', false, my_channel, ''
    ) ON CONFLICT (id, name) DO UPDATE SET channel = excluded.channel, expires = excluded.expires;
    done := 1;
END $$;

CREATE OR REPLACE FUNCTION {schema}.tell_v1(of_line bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        DELETE FROM {schema}.claim w WHERE w.name = {watchers}of_line RETURNING w.id, w.channel, w.expires
    LOOP
        IF one.expires > clock_timestamp() THEN
            PERFORM {schema}.push_v1(one.channel, one.id);
        END IF;
    END LOOP;
END $$;
""".replace("{watchers}", _WATCHERS)
