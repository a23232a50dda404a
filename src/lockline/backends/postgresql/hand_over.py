"""The routine `hand_over` in PL/pgSQL: a claim takes the place of one that holds, and whoever waits gets a higher ticket, in the same order."""

from __future__ import annotations

from typing import Final

HAND_OVER: Final = """
CREATE OR REPLACE FUNCTION {schema}.hand_over_v1(
    at bigint, my_name bytea, old text, my_id text, my_ttl double precision, my_about text, my_channel text, OUT ticket bigint
) LANGUAGE plpgsql {patience} AS $$
DECLARE
    now timestamptz;
    before record;
    one record;
    used bigint := 0;
    room integer;
    waiters integer;
    behind bigint;
    newest bigint;
BEGIN
    {step_past_the_dead:NULL}
    SELECT c.ticket INTO ticket FROM {schema}.claim c WHERE c.id = my_id AND c.name = my_name;
    IF FOUND THEN
        {again}
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM {schema}.withdrawn w WHERE w.id = my_id AND w.until > now) THEN
        RETURN;
    END IF;
    SELECT c.ticket, c.weight, c.capacity INTO before FROM {schema}.claim c WHERE c.id = old AND c.name = my_name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- The last ticket of those who hold.
    FOR one IN SELECT c.ticket, c.weight, c.capacity FROM {schema}.claim c WHERE c.name = my_name ORDER BY c.ticket LOOP
        used := used + one.weight;
        room := least(room, one.capacity);
        EXIT WHEN used > room;
        behind := one.ticket;
    END LOOP;
    IF before.ticket > behind THEN
        ticket := -1;
        RETURN;
    END IF;
    SELECT count(*) INTO waiters FROM {schema}.claim c WHERE c.name = my_name AND c.ticket > behind;
    UPDATE {schema}.slot s SET last = greatest(s.last + 1, floor(extract(epoch FROM now) * 1000000)::bigint) + waiters
        WHERE s.number = (at & 1023)::integer RETURNING s.last - waiters INTO newest;
    IF newest IS NULL THEN
        RAISE EXCEPTION 'the table of tickets is incomplete' USING ERRCODE = 'LL002';
    END IF;
    DELETE FROM {schema}.claim c WHERE c.id = old AND c.name = my_name;
    INSERT INTO {schema}.claim (id, name, ticket, weight, capacity, ttl, expires, told, channel, about, arrived, granted) VALUES (
        my_id, my_name, newest, before.weight, before.capacity, my_ttl, now + my_ttl * interval '1 second', true, my_channel, my_about, now, now
    );
    UPDATE {schema}.claim c SET ticket = newest + w.number FROM (
        SELECT d.id, row_number() OVER (ORDER BY d.ticket) AS number FROM {schema}.claim d
        WHERE d.name = my_name AND d.ticket > behind AND d.ticket < newest
    ) w WHERE c.id = w.id AND c.name = my_name;
    PERFORM {schema}.tell_v1(my_name);
    ticket := newest;
END $$;
"""
