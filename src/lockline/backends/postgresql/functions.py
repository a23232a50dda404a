"""The routines of `sql/calls.py` in PL/pgSQL: one atomic step each.

Every step that may change a line first takes that line's advisory lock, until the end of its transaction: a step that finds nothing to
change then writes nothing, and costs no flush of the log. The next statement sees what the step before it has committed, which only
READ COMMITTED gives: under any other level a routine refuses to begin (LL001), and the client asks again with a level of its own.

Each step drops whoever has expired, so what it sees is what the rule sees. A claim that waited and now holds is told, once, on its
client's channel; nobody is told who hears of it by his own answer, so a lock that is free and that nobody watches costs no NOTIFY.
"""

from __future__ import annotations

from typing import Final

from ..sql.calls import revision_of
from .changes import CHANGES, IS_WATCHED
from .hand_over import HAND_OVER
from .keeping import KEEPING

WRONG_LEVEL: Final = "LL001"
NO_SLOTS: Final = "LL002"
FOREIGN: Final = "LL004"
LOCK_TIMEOUT_MS: Final = 1500
"""A step that waits longer for a lock is undone and asked again: sessions must not pile up behind a table that is locked. Shorter than
the client's usual patience, so that the session can be used again."""

_LEVEL: Final = """
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a step needs READ COMMITTED' USING ERRCODE = 'LL001';
    END IF;
"""
_STEP: Final = f"""{_LEVEL.rstrip()}
    PERFORM pg_advisory_xact_lock(at);
    now := clock_timestamp();
"""
_PAST_THE_DEAD: Final = """
    DELETE FROM {schema}.claim c WHERE c.name = my_name AND c.expires <= now;
    IF FOUND THEN
        PERFORM {schema}.admit_v1(my_name, %s);
    END IF;
"""
_AGAIN: Final = """
        -- A session that is ended while it waits for the replica has committed all the same. The commit of this change waits for it again.
        UPDATE {schema}.claim c SET told = c.told WHERE c.id = my_id AND c.name = my_name;
"""
OPENINGS: Final = {
    "patience": f"SET lock_timeout = '{LOCK_TIMEOUT_MS}ms'",
    "level": _LEVEL.strip(),
    "step": _STEP.strip(),
    "is_watched": IS_WATCHED,
    "again": _AGAIN.strip(),
    **{f"step_past_the_dead:{me}": (_STEP.rstrip() + _PAST_THE_DEAD % me).strip() for me in ("my_id", "NULL")},
}
"""How routines begin: with the right level, and alone with the line; and how long they wait for a lock. Put in where they are named: a call of a routine of their own would cost each step."""

_BEGIN: Final = """
-- The same stands in each routine that is called often.
CREATE OR REPLACE FUNCTION {schema}.begin_step_v1() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    {level}
END $$;

-- A push is only a hint, and must not fail the step: where the queue of the whole cluster is full, the commit would be refused.
CREATE OR REPLACE FUNCTION {schema}.push_v1(its_channel text, its_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.9 THEN
        PERFORM pg_notify(its_channel, its_id);
    END IF;
END $$;

-- Tell whoever has room now, but not the one who knows it already. In the order of tickets, as whoever renews many.
CREATE OR REPLACE FUNCTION {schema}.admit_v1(of_line bytea, me text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
    used bigint := 0;
    room integer;
BEGIN
    FOR one IN
        SELECT c.id, c.ticket, c.weight, c.capacity, c.told, c.channel
        FROM {schema}.claim c WHERE c.name = of_line ORDER BY c.ticket
    LOOP
        used := used + one.weight;
        room := least(room, one.capacity);
        EXIT WHEN used > room;
        CONTINUE WHEN one.told;
        UPDATE {schema}.claim c SET told = true, granted = clock_timestamp() WHERE c.id = one.id AND c.name = of_line;
        IF one.channel IS NOT NULL AND one.id IS DISTINCT FROM me THEN
            PERFORM {schema}.push_v1(one.channel, one.id);
        END IF;
    END LOOP;
END $$;

-- Claims whose name nobody has come back to, and what was remembered of withdrawals.
CREATE OR REPLACE FUNCTION {schema}.sweep_v1() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.claim c WHERE (c.id, c.name) IN (
        SELECT d.id, d.name FROM {schema}.claim d WHERE d.expires < clock_timestamp() - interval '1 minute' LIMIT 500 FOR UPDATE SKIP LOCKED
    );
    DELETE FROM {schema}.withdrawn w WHERE w.until < clock_timestamp();
END $$;
"""

_ENTER: Final = """
CREATE OR REPLACE FUNCTION {schema}.enter_v1(
    at bigint, my_name bytea, my_id text, my_ttl double precision, my_weight integer, my_capacity integer, my_about text,
    my_channel text, may_wait boolean,
    OUT ticket bigint, OUT ahead integer, OUT change double precision, OUT mine bigint, OUT behind text
) LANGUAGE plpgsql {patience} AS $$
DECLARE
    now timestamptz;
    used bigint := 0;
    room integer;
    first timestamptz;
    again boolean := false;
    holds boolean;
    watched boolean;
BEGIN
    {step}
    -- A line that is empty, which most are, is not counted. And this goes by the index itself, which then forgets the dead of this line.
    WHILE EXISTS (SELECT FROM {schema}.claim c WHERE c.name = my_name) LOOP
        SELECT count(*), sum(c.weight), min(c.capacity), min(c.expires), bool_or(c.id = my_id)
            INTO ahead, used, room, first, again FROM {schema}.claim c WHERE c.name = my_name;
        EXIT WHEN first > now;
        DELETE FROM {schema}.claim c WHERE c.name = my_name AND c.expires <= now;
        ahead := 0;
        used := 0;
        room := NULL;
        again := false;
        PERFORM {schema}.admit_v1(my_name, my_id);
    END LOOP;
    IF again THEN
        {again}
        SELECT * INTO ticket, ahead, change, mine, behind FROM {schema}.stands_v1(my_name, my_id, now);
        RETURN;
    END IF;
    holds := used + my_weight <= least(room, my_capacity);
    -- It was withdrawn before it came; whoever sent it waits for it no more.
    IF (NOT holds AND NOT may_wait) OR EXISTS (SELECT FROM {schema}.withdrawn w WHERE w.id = my_id AND w.until > now) THEN
        ahead := NULL;
        RETURN;
    END IF;
    UPDATE {schema}.slot s SET last = greatest(s.last + 1, floor(extract(epoch FROM now) * 1000000)::bigint)
        WHERE s.number = (at & 1023)::integer RETURNING s.last, holds AND {is_watched} INTO mine, watched;
    IF mine IS NULL THEN
        RAISE EXCEPTION 'the table of tickets is incomplete' USING ERRCODE = 'LL002';
    END IF;
    IF watched THEN
        PERFORM {schema}.tell_v1(my_name);
    END IF;
    IF NOT holds THEN
        SELECT c.id INTO behind FROM {schema}.claim c WHERE c.name = my_name ORDER BY c.ticket DESC LIMIT 1;
    END IF;
    INSERT INTO {schema}.claim (id, name, ticket, weight, capacity, ttl, expires, told, channel, about, arrived, granted) VALUES (
        my_id, my_name, mine, my_weight, my_capacity, my_ttl, now + my_ttl * interval '1 second', holds, my_channel, my_about,
        now, CASE WHEN holds THEN now END
    );
    IF holds THEN
        ticket := mine;
        ahead := NULL;
    ELSE
        change := extract(epoch FROM first - now);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.stands_v1(
    my_name bytea, my_id text, now timestamptz,
    OUT ticket bigint, OUT ahead integer, OUT change double precision, OUT mine bigint, OUT behind text
) LANGUAGE plpgsql AS $$
DECLARE
    used bigint;
    room integer;
    first timestamptz;
BEGIN
    SELECT c.ticket INTO mine FROM {schema}.claim c WHERE c.id = my_id AND c.name = my_name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(*) - 1, sum(c.weight), min(c.capacity), min(c.expires) FILTER (WHERE c.ticket < mine)
        INTO ahead, used, room, first FROM {schema}.claim c WHERE c.name = my_name AND c.ticket <= mine;
    IF used <= room THEN
        ticket := mine;
        ahead := NULL;
    ELSE
        change := extract(epoch FROM first - now);
        SELECT c.id INTO behind FROM {schema}.claim c WHERE c.name = my_name AND c.ticket < mine ORDER BY c.ticket DESC LIMIT 1;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.place_v1(
    at bigint, my_name bytea, my_id text, my_channel text,
    OUT ticket bigint, OUT ahead integer, OUT change double precision, OUT mine bigint, OUT behind text
) LANGUAGE plpgsql {patience} AS $$
DECLARE
    now timestamptz;
BEGIN
    {step_past_the_dead:my_id}
    UPDATE {schema}.claim c SET channel = my_channel WHERE c.id = my_id AND c.name = my_name AND c.channel IS DISTINCT FROM my_channel;
    SELECT * INTO ticket, ahead, change, mine, behind FROM {schema}.stands_v1(my_name, my_id, now);
END $$;
"""

_LEAVE: Final = """
CREATE OR REPLACE FUNCTION {schema}.leave_v1(
    at bigint, my_name bytea, my_id text, doubtful boolean, heir text, OUT was_there integer
)
LANGUAGE plpgsql {patience} AS $$
DECLARE
    now timestamptz;
    lived boolean;
    watched boolean;
BEGIN
    -- Its commit waits for no disk and no replica: a release that a crash forgets ends by its ttl, and whoever was let in after it
    -- still comes before all others. A grant, which must not be forgotten, waits for both, and brings along what came before it.
    IF NOT doubtful THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    {step}
    DELETE FROM {schema}.claim c WHERE c.id = my_id AND c.name = my_name RETURNING c.expires > now, c.told AND {is_watched} INTO lived, watched;
    was_there := coalesce(lived, false)::integer;
    IF watched THEN
        PERFORM {schema}.tell_v1(my_name);
    END IF;
    IF doubtful THEN
        -- A request of it may still be on the way: it shall find this when it comes.
        DELETE FROM {schema}.withdrawn w WHERE w.until < now;
        INSERT INTO {schema}.withdrawn AS w (id, until) VALUES (my_id, now + interval '10 seconds')
            ON CONFLICT (id) DO UPDATE SET until = excluded.until;
    END IF;
    IF EXISTS (SELECT FROM {schema}.claim c WHERE c.name = my_name) THEN
        DELETE FROM {schema}.claim c WHERE c.name = my_name AND c.expires <= now;
        PERFORM {schema}.admit_v1(my_name, heir);
    END IF;
    IF random() < 0.005 THEN
        PERFORM {schema}.sweep_v1();
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}.leave_all_v1(batch text) RETURNS SETOF integer LANGUAGE plpgsql {patience} AS $$
DECLARE
    each record;
    was_there integer[] := ARRAY[]::integer[];
BEGIN
    PERFORM {schema}.begin_step_v1();
    -- In one order for all, and before the first change: two batches never wait for each other.
    PERFORM pg_advisory_xact_lock(a.at) FROM (
        SELECT DISTINCT (e->>0)::bigint AS at FROM json_array_elements(batch::json) e ORDER BY 1
    ) a;
    -- The rows in the order of a renewal, which holds those of many lines and knows no line's lock.
    FOR each IN
        SELECT n::integer, (e->>0)::bigint AS at, decode(e->>1, 'hex') AS name, e->>2 AS id, (e->>3)::boolean AS doubtful
        FROM json_array_elements(batch::json) WITH ORDINALITY j(e, n)
        LEFT JOIN {schema}.claim c ON c.id = e->>2 AND c.name = decode(e->>1, 'hex') ORDER BY 3, c.ticket
    LOOP
        was_there[each.n] := {schema}.leave_v1(each.at, each.name, each.id, each.doubtful, NULL);
    END LOOP;
    RETURN QUERY SELECT w.there FROM unnest(was_there) WITH ORDINALITY w(there, n) ORDER BY w.n;
END $$;
"""

_RENEW: Final = """
CREATE OR REPLACE FUNCTION {schema}.renew_v1(batch text, my_channel text) RETURNS SETOF integer LANGUAGE plpgsql {patience} AS $$
DECLARE
    now timestamptz;
    alive text[];
    lighter text[];
    each record;
BEGIN
    {level}
    -- Whoever gives back a part of its weight may let others in: a step of its line, which takes the line's lock before any row.
    PERFORM pg_advisory_xact_lock(a.at) FROM (
        SELECT DISTINCT (e->>0)::bigint AS at FROM json_array_elements(batch::json) e
        JOIN {schema}.claim c ON c.id = e->>2 AND c.name = decode(e->>1, 'hex') AND c.weight > (e->>4)::integer ORDER BY 1
    ) a;
    now := clock_timestamp();
    -- All others need no line's lock: each row by itself says whether it lives. The rows of a line in the order in which its steps go through it.
    WITH asked AS MATERIALIZED (
        SELECT decode(e->>1, 'hex') AS name, e->>2 AS id, (e->>3)::double precision AS ttl, (e->>4)::integer AS weight FROM json_array_elements(batch::json) e
    ), mine AS MATERIALIZED (
        SELECT c.id, c.name, c.weight > a.weight AS lighter, a.ttl FROM {schema}.claim c JOIN asked a ON c.id = a.id AND c.name = a.name
        WHERE c.expires > now ORDER BY c.name, c.ticket FOR NO KEY UPDATE OF c
    ), done AS (
        UPDATE {schema}.claim c SET
            expires = greatest(c.expires, now + m.ttl * interval '1 second'), channel = coalesce(my_channel, c.channel)
        FROM mine m WHERE c.id = m.id AND c.name = m.name RETURNING c.id, m.lighter
    )
    SELECT array_agg(d.id), array_agg(d.id) FILTER (WHERE d.lighter) INTO alive, lighter FROM done d;
    IF lighter IS NOT NULL THEN
        -- Only ever downwards: what is given back here may let others in.
        FOR each IN
            SELECT decode(e->>1, 'hex') AS name, e->>2 AS id, (e->>4)::integer AS weight, e->>5 AS about
            FROM json_array_elements(batch::json) e WHERE e->>2 = ANY (lighter) ORDER BY 1
        LOOP
            UPDATE {schema}.claim c SET weight = each.weight, about = each.about WHERE c.id = each.id AND c.name = each.name AND c.weight > each.weight;
            PERFORM {schema}.admit_v1(each.name, each.id);
        END LOOP;
    END IF;
    RETURN QUERY SELECT (l.id IS NOT NULL)::integer
        FROM json_array_elements(batch::json) WITH ORDINALITY j(e, n) LEFT JOIN unnest(alive) l(id) ON l.id = e->>2 ORDER BY n;
END $$;
"""

_OPERATOR: Final = """
CREATE OR REPLACE FUNCTION {schema}.line_v1(
    of_line bytea, OUT id text, OUT ticket bigint, OUT weight integer, OUT capacity integer, OUT ttl double precision,
    OUT remaining double precision, OUT about text, OUT arrived double precision, OUT granted double precision
) RETURNS SETOF record LANGUAGE sql {patience} AS $$
    SELECT c.id, c.ticket, c.weight, c.capacity, c.ttl, extract(epoch FROM c.expires - clock_timestamp())::double precision, c.about,
        extract(epoch FROM c.arrived)::double precision, extract(epoch FROM c.granted)::double precision
    FROM {schema}.claim c WHERE c.name = of_line AND c.expires > clock_timestamp() ORDER BY c.ticket
$$;

CREATE OR REPLACE FUNCTION {schema}.look_v1(
    of_line bytea, OUT id text, OUT ticket bigint, OUT weight integer, OUT capacity integer, OUT ttl double precision,
    OUT remaining double precision, OUT about text
) RETURNS SETOF record LANGUAGE sql {patience} AS $$
    SELECT l.id, l.ticket, l.weight, l.capacity, l.ttl, l.remaining, l.about FROM {schema}.line_v1(of_line) l ORDER BY l.ticket
$$;

CREATE OR REPLACE FUNCTION {schema}.names_v1(first bytea, after bytea) RETURNS SETOF bytea LANGUAGE sql {patience} AS $$
    SELECT DISTINCT c.name FROM {schema}.claim c WHERE c.name >= first AND c.name < after AND c.expires > clock_timestamp()
$$;

CREATE OR REPLACE FUNCTION {schema}.settings_v1(OUT name text, OUT setting text) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT s.name, s.setting FROM pg_settings s WHERE s.name IN (
        'fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'statement_timeout', 'server_version', 'max_connections'
    )
    UNION ALL SELECT 'revision', '{revision}'
    UNION ALL SELECT 'notify_queue', pg_notification_queue_usage()::text
    UNION ALL SELECT 'replicas', count(*)::text FROM pg_stat_replication
    -- What every role may see: pg_stat_activity hides the kind, the state and the times of other roles' sessions, but not their snapshots.
    UNION ALL SELECT 'sessions', sum(d.numbackends)::text FROM pg_stat_database d
    UNION ALL SELECT 'snapshot', greatest(
        (SELECT max(age(a.backend_xmin)) FROM pg_stat_activity a), (SELECT max(age(p.transaction)) FROM pg_prepared_xacts p), 0
    )::text
    UNION ALL SELECT 'oldest', coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::text FROM pg_stat_activity
        WHERE backend_type = 'client backend'
$$;

CREATE OR REPLACE FUNCTION {schema}.evict_v1(at bigint, of_line bytea, token bigint, OUT victims integer) LANGUAGE plpgsql {patience} AS $$
DECLARE
    one record;
    used bigint := 0;
    room integer;
BEGIN
    PERFORM {schema}.begin_step_v1();
    PERFORM pg_advisory_xact_lock(at);
    victims := 0;
    DELETE FROM {schema}.claim c WHERE c.name = of_line AND c.expires <= clock_timestamp();
    FOR one IN SELECT c.id, c.ticket, c.weight, c.capacity, c.channel FROM {schema}.claim c WHERE c.name = of_line ORDER BY c.ticket LOOP
        used := used + one.weight;
        room := least(room, one.capacity);
        EXIT WHEN used > room;
        CONTINUE WHEN token IS NOT NULL AND one.ticket <> token;
        DELETE FROM {schema}.claim c WHERE c.id = one.id AND c.name = of_line;
        victims := victims + 1;
        IF one.channel IS NOT NULL THEN
            PERFORM {schema}.push_v1(one.channel, one.id);
        END IF;
    END LOOP;
    PERFORM {schema}.admit_v1(of_line, NULL);
    PERFORM {schema}.tell_v1(of_line);
END $$;
"""

_GUARD: Final = """
-- Runs in the caller's own transaction, when that commits: from here to its end nobody can remove the claim, and so nobody holds after it.
-- A renewal is not in the way, nor is an older snapshot: both leave the claim's key as it is.
CREATE OR REPLACE FUNCTION {schema}.check_guard_v1() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ends timestamptz;
BEGIN
    SELECT c.expires INTO ends FROM {schema}.claim c WHERE c.id = NEW.id AND c.ticket = NEW.ticket FOR KEY SHARE;
    -- An older snapshot does not see the renewals since; that the claim is still there says enough.
    IF NOT FOUND OR (ends <= clock_timestamp() AND current_setting('transaction_isolation') = 'read committed') THEN
        RAISE EXCEPTION 'the lease with token % is gone', NEW.ticket
            USING ERRCODE = 'LL003', HINT = 'its work must not be committed: somebody else may hold the lock by now';
    END IF;
    DELETE FROM {schema}.guard g WHERE g.id = NEW.id AND g.ticket = NEW.ticket;
    RETURN NULL;
END $$;

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'check_guard_v1' AND tgrelid = '{schema}.guard'::regclass) THEN
        CREATE CONSTRAINT TRIGGER check_guard_v1 AFTER INSERT ON {schema}.guard DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION {schema}.check_guard_v1();
    END IF;
END $$;
"""

_FUNCTIONS: Final = _BEGIN + CHANGES + _ENTER + _LEAVE + _RENEW + _OPERATOR + _GUARD + HAND_OVER + KEEPING
REVISION: Final = revision_of(_FUNCTIONS + "".join(OPENINGS.values()))
FUNCTIONS: Final = _FUNCTIONS.replace("{revision}", REVISION)
