"""The routines of `sql/calls.py` as stored procedures: one atomic step each, and one answer.

A step that gives a place in a line, or takes one away from somebody, is alone with the slot of its name: it locks that row by its primary
key, at READ COMMITTED, where nothing locks a gap. The statement after that sees what the step before it has committed, and reads the
clock anew. A look, and a release, lock nothing and wait for nobody: to look is one statement, which sees the line as it was in one moment.

Nobody ever holds past a claim that has expired: whoever finds one removes it first, alone. So a renewal needs no lock but that of the
row itself, and a claim that is still there when it comes, lives. One that a guarded transaction keeps (`guard.py`) is left where it is, and
counts: that transaction has a share of its entry in the index `by_id`, which every removal needs whole and no renewal touches.

A lock that a step waits for is another step's, never a client's: they are short. Those that cross each other all the same (1213) are
undone whole, and asked again.
"""

from __future__ import annotations

from typing import Final

from ..sql.calls import revision_of
from . import hand_over, keeping

_WORDS: Final = {
    "ID": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
    "NAME": "VARBINARY(1024)",
    "TEXT": "CHARACTER SET utf8mb4",
    "DONE": """IF done THEN
            LEAVE walk;
        END IF;""",
    "FULL": """SET used = used + its_weight, room = LEAST(COALESCE(room, its_capacity), its_capacity);
        IF used > room THEN
            LEAVE walk;
        END IF;""",
    "NOW": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "UNDO": "DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END",
}
"""What routines have in common, put in where it is named. DONE and FULL end a walk along a line: at its end, and behind those who hold."""


def _procedure(name: str, takes: str, body: str) -> str:
    text = f"CREATE PROCEDURE lockline_{name}_v1({takes}) SQL SECURITY INVOKER MODIFIES SQL DATA\nstep: BEGIN{body}END"
    for word, meaning in _WORDS.items():
        text = text.replace("{" + word + "}", meaning)
    # In full: by completion_type the next transaction could begin at once, and stay open, or the session end.
    return text.replace("COMMIT;", "COMMIT AND NO CHAIN NO RELEASE;").replace(
        "ROLLBACK;", "ROLLBACK AND NO CHAIN NO RELEASE;"
    )


_BEGIN: Final = _procedure("begin", "", """
    -- Whoever may do everything could write on a replica too, where nobody would ever see it.
    IF @@global.read_only <> 0 THEN
        SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'the server is read-only';
    END IF;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION READ WRITE;
""")  # fmt: skip

_LOCK: Final = _procedure("lock", "IN slot INT, OUT newest BIGINT, OUT moment BIGINT", """
    CALL lockline_begin_v1();
    SELECT last INTO newest FROM lockline_slot WHERE number = slot FOR UPDATE;
    IF newest IS NULL THEN
        SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1146, MESSAGE_TEXT = 'the table of tickets is incomplete';
    END IF;
    SET moment = {NOW};
""")  # fmt: skip

_STANDS: Final = _procedure(
    "stands", """
    IN my_name {NAME}, IN my_id {ID}, IN moment BIGINT,
    OUT ticket BIGINT, OUT ahead BIGINT, OUT expiry DOUBLE, OUT dead BIGINT, OUT mine BIGINT, OUT behind {ID}
""", """
    DECLARE used, room BIGINT;
    SELECT COUNT(*) - 1, SUM(c.weight), MIN(c.capacity), MIN(IF(c.ticket < m.ticket, c.expires - moment, NULL)) / 1e6,
            COALESCE(SUM(c.expires <= moment), 0), MAX(m.ticket)
        INTO ahead, used, room, expiry, dead, mine
        FROM lockline_claim m JOIN lockline_claim c ON c.name = m.name AND c.ticket <= m.ticket WHERE m.id = my_id;
    IF mine IS NULL THEN
        SET ahead = NULL;
    ELSEIF used <= room THEN
        SET ticket = mine, ahead = NULL;
    ELSE
        SET behind = (SELECT id FROM lockline_claim c WHERE c.name = my_name AND c.ticket < mine ORDER BY c.ticket DESC LIMIT 1);
    END IF;
""")  # fmt: skip

_CLEAR: Final = _procedure("clear", "IN my_name {NAME}, IN moment BIGINT", """
    -- Drop whoever has expired. Whoever is kept by a guarded transaction, or renewed in this moment, stands until that is over.
    DECLARE my_id {ID};
    DECLARE free INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE expired CURSOR FOR SELECT id FROM lockline_claim WHERE name = my_name AND expires <= moment ORDER BY ticket;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    OPEN expired;
    walk: LOOP
        FETCH expired INTO my_id;
        {DONE}
        SELECT COUNT(*) INTO free FROM lockline_claim WHERE id = my_id AND expires <= moment FOR UPDATE SKIP LOCKED;
        IF free THEN
            DELETE FROM lockline_claim WHERE id = my_id;
        END IF;
    END LOOP;
""")  # fmt: skip

_ENTER: Final = _procedure(
    "enter", """
    IN at BIGINT, IN my_name {NAME}, IN my_id {ID}, IN my_ttl DOUBLE, IN my_weight INT, IN my_capacity INT, IN my_about MEDIUMTEXT {TEXT},
    IN may_wait BOOLEAN
""", """
    DECLARE newest, moment, mine, held, ahead, used, room, first, again, dead BIGINT;
    DECLARE expiry DOUBLE;
    DECLARE behind {ID};
    DECLARE cleared BOOLEAN DEFAULT FALSE;
    {UNDO};
    CALL lockline_lock_v1(at & 1023, newest, moment);
    look: LOOP
        SELECT COUNT(*), COALESCE(SUM(weight), 0), MIN(capacity), MIN(expires), COALESCE(SUM(id = my_id), 0), COALESCE(SUM(expires <= moment), 0)
            INTO ahead, used, room, first, again, dead FROM lockline_claim WHERE name = my_name;
        IF dead = 0 OR cleared THEN
            LEAVE look;
        END IF;
        CALL lockline_clear_v1(my_name, moment);
        SET cleared = TRUE;
    END LOOP;
    IF again THEN
        CALL lockline_stands_v1(my_name, my_id, moment, held, ahead, expiry, dead, mine, behind);
        COMMIT;
        SELECT held, ahead, expiry, mine, behind;
        LEAVE step;
    END IF;
    SET used = used + my_weight, room = LEAST(COALESCE(room, my_capacity), my_capacity);
    -- It was withdrawn before it came; whoever sent it waits for it no more.
    IF (used > room AND NOT may_wait) OR EXISTS (SELECT 1 FROM lockline_withdrawn w WHERE w.id = my_id AND w.until > moment) THEN
        COMMIT;
        SELECT NULL, NULL, NULL, NULL, NULL;
        LEAVE step;
    END IF;
    SET mine = GREATEST(newest + 1, moment);
    SET behind = (SELECT id FROM lockline_claim WHERE name = my_name ORDER BY ticket DESC LIMIT 1);
    UPDATE lockline_slot SET last = mine WHERE number = at & 1023;
    INSERT INTO lockline_claim (name, ticket, id, weight, capacity, ttl, expires, about, arrived, granted)
        VALUES (my_name, mine, my_id, my_weight, my_capacity, my_ttl, moment + ROUND(my_ttl * 1e6), my_about, moment, IF(used <= room, moment, NULL));
    COMMIT;
    IF used <= room THEN
        SELECT mine, NULL, NULL, NULL, NULL;
    ELSE
        SELECT NULL, ahead, (first - moment) / 1e6, mine, behind;
    END IF;
""")  # fmt: skip

_PLACE: Final = _procedure("place", "IN at BIGINT, IN my_name {NAME}, IN my_id {ID}", """
    DECLARE newest, moment, mine, held, ahead, dead BIGINT;
    DECLARE expiry DOUBLE;
    DECLARE behind {ID};
    {UNDO};
    SET moment = {NOW};
    CALL lockline_stands_v1(my_name, my_id, moment, held, ahead, expiry, dead, mine, behind);
    IF dead > 0 THEN
        CALL lockline_lock_v1(at & 1023, newest, moment);
        CALL lockline_clear_v1(my_name, moment);
        CALL lockline_stands_v1(my_name, my_id, moment, held, ahead, expiry, dead, mine, behind);
        COMMIT;
    END IF;
    IF held IS NOT NULL THEN
        CALL lockline_granted_v1(my_name, held);
    END IF;
    SELECT held, ahead, expiry, mine, behind;
""")  # fmt: skip

_GRANTED: Final = _procedure("granted", "IN my_name {NAME}, IN mine BIGINT", """
    -- A release only removes its row: who waited for that finds out here that it holds. For people; the grant counts without it.
    DECLARE EXIT HANDLER FOR SQLEXCEPTION ROLLBACK;
    CALL lockline_begin_v1();
    UPDATE lockline_claim SET granted = {NOW} WHERE name = my_name AND ticket = mine AND granted IS NULL;
    COMMIT;
""")  # fmt: skip

_REMOVE: Final = _procedure("remove", "IN my_id {ID}, IN doubtful BOOLEAN, IN moment BIGINT, OUT was_there INT", """
    DELETE FROM lockline_claim WHERE id = my_id AND expires > moment;
    SET was_there = ROW_COUNT();
    IF was_there = 0 THEN
        DELETE FROM lockline_claim WHERE id = my_id;
    END IF;
    IF doubtful THEN
        -- A request of it may still be on the way: it shall find this when it comes.
        INSERT INTO lockline_withdrawn (id, until) VALUES (my_id, moment + 10000000) ON DUPLICATE KEY UPDATE until = moment + 10000000;
    END IF;
""")  # fmt: skip

_LEAVE: Final = _procedure("leave", "IN at BIGINT, IN my_name {NAME}, IN my_id {ID}, IN doubtful BOOLEAN", """
    DECLARE newest, moment BIGINT;
    DECLARE was_there INT;
    {UNDO};
    IF doubtful THEN
        CALL lockline_lock_v1(at & 1023, newest, moment);
    ELSE
        CALL lockline_begin_v1();
        SET moment = {NOW};
    END IF;
    CALL lockline_remove_v1(my_id, doubtful, moment, was_there);
    COMMIT;
    IF RAND() < 0.005 THEN
        CALL lockline_sweep_v1();
    END IF;
    SELECT was_there;
""")  # fmt: skip

_SWEEP: Final = _procedure("sweep", "", """
    -- Claims whose name nobody has come back to, and what was remembered of withdrawals. They are found without a lock, and removed in
    -- one order; what comes in the way of that is left to the next sweep.
    DECLARE old BIGINT DEFAULT {NOW} - 60000000;
    DECLARE my_id {ID};
    DECLARE free INT;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE expired CURSOR FOR SELECT id FROM lockline_claim WHERE expires < old ORDER BY name, ticket LIMIT 500;
    DECLARE withdrawn CURSOR FOR SELECT id FROM lockline_withdrawn WHERE until < old ORDER BY id LIMIT 500;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION ROLLBACK;
    CALL lockline_begin_v1();
    OPEN expired;
    walk: LOOP
        FETCH expired INTO my_id;
        {DONE}
        SELECT COUNT(*) INTO free FROM lockline_claim WHERE id = my_id AND expires < old FOR UPDATE SKIP LOCKED;
        IF free THEN
            DELETE FROM lockline_claim WHERE id = my_id;
        END IF;
    END LOOP;
    SET done = FALSE;
    OPEN withdrawn;
    walk: LOOP
        FETCH withdrawn INTO my_id;
        {DONE}
        DELETE FROM lockline_withdrawn WHERE id = my_id AND until < old;
    END LOOP;
    COMMIT;
""")  # fmt: skip

_LEAVE_ALL: Final = _procedure("leave_all", "IN batch LONGTEXT {TEXT}", """
    DECLARE slot INT;
    DECLARE newest, moment BIGINT;
    DECLARE my_id {ID};
    DECLARE doubtful, was_there INT;
    DECLARE told TEXT {TEXT} DEFAULT '';
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE slots CURSOR FOR
        SELECT DISTINCT j.at & 1023 FROM JSON_TABLE(batch, '$[*]' COLUMNS (at BIGINT PATH '$[0]', doubtful INT PATH '$[3]')) j
        WHERE j.doubtful ORDER BY 1;
    DECLARE claims CURSOR FOR
        SELECT j.id, j.doubtful FROM JSON_TABLE(
            batch, '$[*]' COLUMNS (n FOR ORDINALITY, id VARCHAR(64) PATH '$[2]', doubtful INT PATH '$[3]')
        ) j ORDER BY j.n;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {UNDO};
    CALL lockline_begin_v1();
    -- In one order for all, and before the first change: two batches never wait for each other.
    OPEN slots;
    walk: LOOP
        FETCH slots INTO slot;
        {DONE}
        SELECT last INTO newest FROM lockline_slot WHERE number = slot FOR UPDATE;
    END LOOP;
    SET done = FALSE;
    SET moment = {NOW};
    OPEN claims;
    walk: LOOP
        FETCH claims INTO my_id, doubtful;
        {DONE}
        CALL lockline_remove_v1(my_id, doubtful, moment, was_there);
        SET told = CONCAT(told, was_there);
    END LOOP;
    COMMIT;
    SELECT told;
""")  # fmt: skip

_RENEW: Final = _procedure("renew", "IN batch LONGTEXT {TEXT}", """
    DECLARE my_id {ID};
    DECLARE my_name {NAME};
    DECLARE moment, mine, lives, known BIGINT;
    DECLARE my_ttl DOUBLE;
    DECLARE my_weight INT;
    DECLARE my_about MEDIUMTEXT {TEXT};
    DECLARE told TEXT {TEXT} DEFAULT '';
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE claims CURSOR FOR
        SELECT UNHEX(j.name), j.id, j.ttl, j.weight, j.about FROM JSON_TABLE(batch, '$[*]' COLUMNS (
            n FOR ORDINALITY, name VARCHAR(2048) PATH '$[1]', id VARCHAR(64) PATH '$[2]', ttl DOUBLE PATH '$[3]', weight INT PATH '$[4]', about MEDIUMTEXT PATH '$[5]'
        )) j ORDER BY j.n;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {UNDO};
    CALL lockline_begin_v1();
    OPEN claims;
    walk: LOOP
        FETCH claims INTO my_name, my_id, my_ttl, my_weight, my_about;
        {DONE}
        SET moment = {NOW};
        -- By its place, not by its id: so it needs nothing of what a guarded transaction keeps. A hand-over may give it another in between.
        REPEAT
            SET mine = (SELECT ticket FROM lockline_claim WHERE id = my_id);
            SELECT COUNT(*), COUNT(granted) INTO lives, known FROM lockline_claim WHERE name = my_name AND ticket = mine AND expires > moment FOR UPDATE;
        UNTIL lives OR mine <=> (SELECT ticket FROM lockline_claim WHERE id = my_id) END REPEAT;
        IF lives THEN
            -- The weight only ever downwards: what is given back here may let others in.
            UPDATE lockline_claim SET
                about = IF(my_weight < weight, my_about, about), weight = LEAST(weight, my_weight),
                expires = GREATEST(expires, moment + ROUND(my_ttl * 1e6))
            WHERE name = my_name AND ticket = mine;
            -- Its client may have given it the turn of another claim of its own, and then never asked for its place.
            IF NOT known AND (SELECT SUM(weight) <= MIN(capacity) FROM lockline_claim WHERE name = my_name AND ticket <= mine) THEN
                UPDATE lockline_claim SET granted = moment WHERE name = my_name AND ticket = mine;
            END IF;
        END IF;
        SET told = CONCAT(told, lives);
    END LOOP;
    COMMIT;
    SELECT told;
""")  # fmt: skip

_LOOK: Final = _procedure("look", "IN of_line {NAME}", """
    DECLARE moment BIGINT DEFAULT {NOW};
    SELECT id, ticket, weight, capacity, ttl, (expires - moment) / 1e6, about FROM lockline_claim
        WHERE name = of_line AND expires > moment ORDER BY ticket;
""")  # fmt: skip

_LINE: Final = _procedure("line", "IN of_line {NAME}", """
    DECLARE moment BIGINT DEFAULT {NOW};
    SELECT id, ticket, weight, capacity, ttl, (expires - moment) / 1e6, about, arrived / 1e6, granted / 1e6 FROM lockline_claim
        WHERE name = of_line AND expires > moment ORDER BY ticket;
""")  # fmt: skip

_NAMES: Final = _procedure("names", "IN first {NAME}, IN after {NAME}", """
    DECLARE moment BIGINT DEFAULT {NOW};
    SELECT DISTINCT name FROM lockline_claim WHERE name >= first AND name < after AND expires > moment;
""")  # fmt: skip

_EVICT: Final = _procedure("evict", "IN at BIGINT, IN of_line {NAME}, IN token BIGINT", """
    DECLARE newest, moment, mine, room BIGINT;
    DECLARE its_id {ID};
    DECLARE its_weight, its_capacity, free INT;
    DECLARE used, victims BIGINT DEFAULT 0;
    DECLARE done BOOLEAN DEFAULT FALSE;
    DECLARE line CURSOR FOR SELECT id, ticket, weight, capacity FROM lockline_claim WHERE name = of_line ORDER BY ticket;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = TRUE;
    {UNDO};
    CALL lockline_lock_v1(at & 1023, newest, moment);
    CALL lockline_clear_v1(of_line, moment);
    OPEN line;
    walk: LOOP
        FETCH line INTO its_id, mine, its_weight, its_capacity;
        {DONE}
        {FULL}
        IF token IS NULL OR token = mine THEN
            -- Not to wait here, alone with the slot, for the end of a guarded transaction: undone, and asked again (1205).
            SELECT COUNT(*) INTO free FROM lockline_claim WHERE id = its_id FOR UPDATE SKIP LOCKED;
            IF NOT free THEN
                SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'a transaction keeps the claim';
            END IF;
            DELETE FROM lockline_claim WHERE id = its_id;
            SET victims = victims + ROW_COUNT();
        END IF;
    END LOOP;
    COMMIT;
    SELECT victims;
""")  # fmt: skip

_HAND_OVER: Final = _procedure("hand_over", hand_over.TAKES, hand_over.BODY)

_KEPT: Final = _procedure("kept", keeping.KEPT_TAKES, keeping.KEPT)
_KEEP: Final = _procedure("keep", keeping.KEEP_TAKES, keeping.KEEP)

_STEPS: Final = (
    _BEGIN, _LOCK, _STANDS, _CLEAR, _ENTER, _PLACE, _GRANTED, _REMOVE, _SWEEP, _LEAVE, _LEAVE_ALL, _RENEW, _LOOK, _LINE, _NAMES, _EVICT, _HAND_OVER, _KEPT, _KEEP,
)  # fmt: skip
REVISION: Final = revision_of("".join(_STEPS))
_SETTINGS: Final = _procedure("settings", "", f"""
    SELECT VERSION(), @@global.read_only, @@innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog, @@global.max_connections, '{REVISION}';
""")  # fmt: skip
ROUTINES: Final = (*_STEPS, _SETTINGS)
