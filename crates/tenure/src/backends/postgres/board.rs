//! Who holds and who waits, where the lock itself is not in a table: for people, and for the order
//! of waiters. A row here never grants anything.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::fault;
use super::lanes::Lanes;
use super::lease::{get, note, seconds, span, token};
use super::limits::set_limits;
use super::link::{Sql, values};
use super::settings::Kind;
use crate::claim::{Busy, Claim, Holder, Note, Owner};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// Writes down the holder of a row lock.
pub(super) async fn post(
    lanes: &Arc<Lanes>,
    claim: &Claim,
    token: FencingToken,
    pid: i32,
) -> Result<()> {
    let values = values![
        claim.key.as_str().as_bytes().to_vec(),
        claim.owner.to_string(),
        token.as_i64(),
        pid,
        span(claim.ttl),
        note(&claim.note),
        lanes.channel.clone(),
    ];
    lanes.ask(&POST, values).await.map(drop)
}

/// Who is in the way. A claim that waits takes or refreshes its place.
pub(super) async fn busy(lanes: &Arc<Lanes>, claim: &Claim) -> Result<Busy> {
    let (mode, key) = (lanes.settings.mode.word(), claim.key.as_str().as_bytes().to_vec());
    let rows = if claim.waits {
        let owner = claim.owner.to_string();
        let (ttl, note) = (span(claim.ttl), note(&claim.note));
        let values = values![mode, key, owner, ttl, note, lanes.channel.clone()];
        lanes.ask(&QUEUE_UP, values).await?
    } else {
        lanes.ask(&LOOK, values![mode, key, claim.owner.to_string()]).await?
    };
    let mut busy = Busy::new(claim.key.clone());
    let Some(row) = rows.first() else { return Ok(busy) };
    let (owner, number): (Option<String>, i64) = (get(row, 0)?, get(row, 1)?);
    let (line, held_for): (String, f64) = (get(row, 2)?, get(row, 3)?);
    let ahead: Option<i64> = get(row, 4)?;
    busy.ahead = ahead.and_then(|ahead| u32::try_from(ahead).ok());
    if busy.ahead.is_none_or(|ahead| ahead == 0) {
        // A holder whose connection broke rings nobody: the first of the queue looks.
        busy.retry_after = Some(LOOK_AGAIN);
    }
    if owner.is_some() {
        let (token, held_for) = (token(number)?, Some(seconds(held_for)));
        let holder = Holder { token, held_for, ..Holder::new(&Note::decode(&line)) };
        busy.holder = Some(Box::new(holder));
    }
    Ok(busy)
}

/// Takes a claim off the board, held or waiting, and rings whoever is first now.
pub(super) async fn clear(lanes: &Arc<Lanes>, key: &Key, owner: Owner) -> Result<()> {
    let mode = lanes.settings.mode.word();
    let values = values![mode, key.as_str().as_bytes().to_vec(), owner.to_string()];
    lanes.ask(&CLEAR, values).await.map(drop)
}

/// The grant that is to be evicted.
pub(super) struct Found {
    pub(super) owner: Owner,
    pub(super) channel: String,
}

pub(super) async fn find(
    lanes: &Arc<Lanes>,
    key: &Key,
    token: FencingToken,
) -> Result<Option<Found>> {
    let sql = if lanes.settings.mode == Kind::Row { &FIND_ROW } else { &FIND_SESSION };
    let values = values![key.as_str().as_bytes().to_vec(), token.as_i64()];
    let rows = lanes.ask(sql, values).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (owner, channel): (String, String) = (get(row, 0)?, get(row, 1)?);
    let owner = owner.parse().map_err(|_| fault::odd("an owner"))?;
    Ok(Some(Found { owner, channel }))
}

/// Ends the connection that a grant hangs on.
pub(super) async fn terminate(lanes: &Arc<Lanes>, key: &Key, token: FencingToken) -> Result<()> {
    let sql = if lanes.settings.mode == Kind::Row { &END_ROW } else { &END_SESSION };
    let values = values![key.as_str().as_bytes().to_vec(), token.as_i64()];
    lanes.ask(sql, values).await.map(drop)
}

/// The living waiters of row `l`.
macro_rules! live {
    ($and:literal) => {
        concat!(
            "coalesce((SELECT jsonb_agg(e ORDER BY i) ",
            "FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i) ",
            "WHERE (e->>'u')::timestamptz > clock_timestamp()",
            $and,
            "), '[]')"
        )
    };
}
pub(super) use live;

/// Whether the session that row `l` names has its advisory lock.
macro_rules! has_lock {
    () => {
        "l.owner IS NOT NULL AND EXISTS (SELECT 1 FROM pg_locks k WHERE k.locktype = 'advisory' \
         AND k.granted AND k.pid = l.pid AND k.objsubid = 1 AND k.database = (SELECT oid \
         FROM pg_database WHERE datname = current_database()) \
         AND ((k.classid::bigint << 32) | k.objid::bigint) = l.number)"
    };
}

/// Whether the transaction that row `l` names is the one that took the lock: its name says so.
macro_rules! has_row {
    () => {
        "l.owner IS NOT NULL AND EXISTS (SELECT 1 FROM pg_stat_activity a \
         WHERE a.pid = l.pid AND a.application_name = 'tenure row ' || l.token)"
    };
}

macro_rules! list {
    ($mode:literal, $held:expr) => {
        concat!(
            "SELECT l.key, l.token, l.note, greatest(0, l.ttl - coalesce(extract(epoch
    FROM clock_timestamp() - (SELECT a.state_change FROM pg_stat_activity a
    WHERE a.pid = l.pid)), 0))::float8,
  extract(epoch FROM clock_timestamp() - l.since)::float8,
  ARRAY(SELECT e->>'n' FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i),
  ARRAY(SELECT extract(epoch FROM clock_timestamp() - (e->>'s')::timestamptz)::float8
        FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i)
FROM @.tenure_board l WHERE l.mode = '",
            $mode,
            "' AND l.key >= $1 AND ($2 IS NULL OR l.key < $2) AND ",
            $held,
            " ORDER BY l.key"
        )
    };
}
/// Every held key from $1 on and before $2, or to the end if that is NULL.
pub(super) static LIST_SESSION: Sql =
    Sql { text: list!("session", has_lock!()), types: &[Type::BYTEA, Type::BYTEA] };
pub(super) static LIST_ROW: Sql =
    Sql { text: list!("row", has_row!()), types: &[Type::BYTEA, Type::BYTEA] };

macro_rules! grant {
    ($what:literal, $mode:literal, $held:expr) => {
        Sql {
            text: concat!(
                "SELECT ",
                $what,
                " FROM @.tenure_board l WHERE l.mode = '",
                $mode,
                "' AND l.key = $1 AND l.token = $2 AND ",
                $held
            ),
            types: &[Type::BYTEA, Type::INT8],
        }
    };
}
static FIND_SESSION: Sql = grant!("l.owner, l.chan", "session", has_lock!());
static FIND_ROW: Sql = grant!("l.owner, l.chan", "row", has_row!());
static END_SESSION: Sql = grant!("pg_terminate_backend(l.pid)", "session", has_lock!());
static END_ROW: Sql = grant!("pg_terminate_backend(l.pid)", "row", has_row!());

static POST: Sql = Sql {
    text: concat!(
        "INSERT INTO @.tenure_board AS l (mode, key, owner, token, pid, ttl, note, chan) \
         VALUES ('row', $1, $2, $3, $4, $5, $6, $7) ON CONFLICT (mode, key) DO UPDATE SET \
         owner = excluded.owner, token = excluded.token, pid = excluded.pid, ttl = excluded.ttl, \
         since = excluded.since, note = excluded.note, chan = excluded.chan, queue = ",
        live!(" AND e->>'o' <> excluded.owner"),
        " WHERE l.token < excluded.token"
    ),
    types: &[Type::BYTEA, Type::TEXT, Type::INT8, Type::INT4, Type::FLOAT8, Type::TEXT, Type::TEXT],
};

macro_rules! seen {
    () => {
        "l.owner, l.token, l.note, extract(epoch FROM clock_timestamp() - l.since)::float8, \
         (SELECT min(i) - 1 FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i) \
          WHERE e->>'o' = $3)"
    };
}

/// Takes or refreshes a place, whose end is never moved back. $1 mode, $2 key, $3 owner, $4 ttl, $5
/// note, $6 channel.
static QUEUE_UP: Sql = Sql {
    text: concat!(
        "INSERT INTO @.tenure_board AS l (mode, key, queue)
SELECT $1, $2, jsonb_build_array(jsonb_build_object('o', $3::text, 's', clock_timestamp(),
  'u', clock_timestamp() + make_interval(secs => $4), 'n', $5::text, 'c', $6::text))
ON CONFLICT (mode, key) DO UPDATE SET queue = (SELECT CASE
    WHEN live @> jsonb_build_array(jsonb_build_object('o', $3::text)) THEN
      (SELECT jsonb_agg(CASE WHEN e->>'o' = $3
                        THEN (excluded.queue->0) || jsonb_build_object('s', e->'s',
                          'u', greatest((e->>'u')::timestamptz,
                                        (excluded.queue->0->>'u')::timestamptz))
                        ELSE e END ORDER BY i)
       FROM jsonb_array_elements(live) WITH ORDINALITY x(e, i))
    WHEN jsonb_array_length(live) >= 256 THEN live
    ELSE live || excluded.queue END
  FROM (SELECT ",
        live!(""),
        " AS live OFFSET 0) q)
RETURNING ",
        seen!()
    ),
    types: &[Type::TEXT, Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::TEXT, Type::TEXT],
};

/// $1 mode, $2 key, $3 owner.
static LOOK: Sql = Sql {
    text: concat!("SELECT ", seen!(), " FROM @.tenure_board l WHERE l.mode = $1 AND l.key = $2"),
    types: &[Type::TEXT, Type::BYTEA, Type::TEXT],
};

/// Takes a claim off row `l` and finds who is first now. $1 mode, $2 key, $3 owner.
macro_rules! clear {
    () => {
        concat!(
            "UPDATE @.tenure_board l SET \
             owner = CASE WHEN l.owner = $3 THEN NULL ELSE l.owner END, queue = ",
            live!(" AND e->>'o' <> $3"),
            " WHERE l.mode = $1 AND l.key = $2 AND (l.owner = $3 \
                OR l.queue @> jsonb_build_array(jsonb_build_object('o', $3::text))) \
             RETURNING l.queue->0 AS w"
        )
    };
}
static CLEAR: Sql = Sql {
    text: concat!(
        "WITH r AS (",
        clear!(),
        ") SELECT pg_notify(w->>'c', 'look ' || (w->>'o')) FROM r WHERE w IS NOT NULL"
    ),
    types: &[Type::TEXT, Type::BYTEA, Type::TEXT],
};

/// The same as text, for a message in which it follows the end of a row lock.
pub(super) fn clear_text(key: &Key, owner: Owner) -> String {
    let (key, owner) = (hex(key), format!("'{owner}'"));
    let text = CLEAR.text.replace("$1", "'row'").replace("$2", &key);
    text.replace("$3", &owner)
}

/// A key as a literal: nothing but hex digits.
pub(super) fn hex(key: &Key) -> String {
    let digits: String = key.as_str().bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{digits}'")
}

/// The same, and gives the advisory lock back: whoever is rung, is rung when all of this is done.
/// $1 mode, $2 key, $3 owner, $4 number; $5, $6 the limits of the session from now on, or NULL.
pub(super) static UNLOCK_AND_CLEAR: Sql = Sql {
    text: concat!(
        "WITH u AS MATERIALIZED (SELECT pg_advisory_unlock($4) AS ok), r AS (",
        clear!(),
        ") SELECT ok, (SELECT pg_notify(w->>'c', 'look ' || (w->>'o')) FROM r \
         WHERE w IS NOT NULL), ",
        set_limits!("$5", "$6"),
        " FROM u"
    ),
    types: &[Type::TEXT, Type::BYTEA, Type::TEXT, Type::INT8, Type::TEXT, Type::TEXT],
};

/// How soon a waiter looks although nobody rang.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);
