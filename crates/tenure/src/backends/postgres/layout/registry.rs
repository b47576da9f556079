//! The registry of `mode=session` and `mode=row`: who holds and who waits, in the table
//! `tenure_board`.
//!
//! In these modes the lock itself is in the server's lock manager, which knows neither owners nor
//! tokens nor an order of waiters. The registry adds them: for operators (`list`, `evict`), for the
//! order (a claim tries the lock only if no other waiter is in front of it), and to find the waiter
//! that a release has to wake. A row here never grants anything. It may name a holder whose session
//! has ended; statements that care compare it with `pg_locks` or `pg_stat_activity`.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;

use super::columns::{duration, get, key_bytes, note, token, ttl_seconds};
use crate::backend::{Busy, Claim, Holder, HolderInfo, Owner};
use crate::backends::postgres::config::LockMode;
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::{Sql, values};
use crate::backends::postgres::error;
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// How soon the first waiter rechecks although it was not woken: a holder whose connection broke
/// wakes no waiter.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Owner and channel of a grant.
pub(crate) struct RegisteredGrant {
    pub(crate) owner: Owner,
    pub(crate) channel: String,
}

/// Reads who holds the lock. For a claim that waits, also adds or refreshes its queue entry.
pub(crate) async fn busy(pool: &Arc<Pool>, claim: &Claim) -> Result<Busy> {
    let mode = pool.config.mode.name();
    let key = key_bytes(&claim.key);
    let owner = claim.owner.to_string();
    let rows = if claim.waits {
        let ttl = ttl_seconds(claim.ttl);
        let note = note(&claim.holder_info);
        let values = values![mode, key, owner, ttl, note, pool.channel.clone()];
        pool.query(&ENQUEUE, values).await?
    } else {
        pool.query(&READ, values![mode, key, owner]).await?
    };
    let mut busy = Busy::new(claim.key.clone());
    let Some(row) = rows.first() else { return Ok(busy) };
    let holder: Option<String> = get(row, "owner")?;
    let ahead: Option<i64> = get(row, "rank")?;
    busy.ahead = ahead.and_then(|ahead| u32::try_from(ahead).ok());
    if busy.ahead.is_none_or(|ahead| ahead == 0) {
        busy.retry_after = Some(RECHECK_INTERVAL);
    }
    if holder.is_some() {
        let note: String = get(row, "note")?;
        busy.holder = Some(Box::new(Holder {
            token: token(get(row, "token")?)?,
            held_for: Some(duration(get(row, "held_for")?)),
            ..Holder::new(&HolderInfo::decode(&note))
        }));
    }
    Ok(busy)
}

/// Removes a claim, whether it holds or waits, and wakes the waiter that is first now.
pub(crate) async fn remove_claim(pool: &Arc<Pool>, key: &Key, owner: Owner) -> Result<()> {
    let values = values![pool.config.mode.name(), key_bytes(key), owner.to_string()];
    pool.query(&REMOVE_CLAIM, values).await.map(drop)
}

/// Finds the grant with this token, if its session still holds the lock.
pub(crate) async fn find_grant(
    pool: &Arc<Pool>,
    key: &Key,
    token: FencingToken,
) -> Result<Option<RegisteredGrant>> {
    let is_row = pool.config.mode == LockMode::Row;
    let sql = if is_row { &FIND_ROW_GRANT } else { &FIND_SESSION_GRANT };
    let rows = pool.query(sql, values![key_bytes(key), token.as_i64()]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let owner: String = get(row, "owner")?;
    let owner = owner.parse().map_err(|_| error::unexpected("an owner that is not an id"))?;
    Ok(Some(RegisteredGrant { owner, channel: get(row, "chan")? }))
}

/// Ends the session that holds the grant with this token.
pub(crate) async fn terminate_session(
    pool: &Arc<Pool>,
    key: &Key,
    token: FencingToken,
) -> Result<()> {
    let is_row = pool.config.mode == LockMode::Row;
    let sql = if is_row { &TERMINATE_ROW_HOLDER } else { &TERMINATE_SESSION_HOLDER };
    pool.query(sql, values![key_bytes(key), token.as_i64()]).await.map(drop)
}

/// Whether the session that row `l` names has its advisory lock.
macro_rules! has_advisory_lock {
    () => {
        "l.owner IS NOT NULL AND EXISTS (SELECT 1 FROM pg_locks k WHERE k.locktype = 'advisory' \
         AND k.granted AND k.pid = l.pid AND k.objsubid = 1 AND k.database = (SELECT oid \
         FROM pg_database WHERE datname = current_database()) \
         AND ((k.classid::bigint << 32) | k.objid::bigint) = l.number)"
    };
}

/// Whether the transaction that row `l` names is the one that locked the row: it has the token in
/// its name for as long as it lasts.
macro_rules! has_row_lock {
    () => {
        "l.owner IS NOT NULL AND EXISTS (SELECT 1 FROM pg_stat_activity a \
         WHERE a.pid = l.pid AND a.application_name = 'tenure row ' || l.token)"
    };
}

/// Lists every held key from $1 on and before $2, or to the end if that is NULL.
macro_rules! list {
    ($mode:literal, $held:expr) => {
        Sql {
            text: concat!(
                "SELECT l.key, l.token, l.note, greatest(0, l.ttl - coalesce(extract(epoch
    FROM clock_timestamp() - (SELECT a.state_change FROM pg_stat_activity a
    WHERE a.pid = l.pid)), 0))::float8 AS ttl_left,
  extract(epoch FROM clock_timestamp() - l.since)::float8 AS held_for,
  ARRAY(SELECT e->>'n' FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i) AS waiters,
  ARRAY(SELECT extract(epoch FROM clock_timestamp() - (e->>'s')::timestamptz)::float8
        FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i)
        WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i) AS waiting_for
FROM @.tenure_board l WHERE l.mode = '",
                $mode,
                "' AND l.key >= $1 AND ($2 IS NULL OR l.key < $2) AND ",
                $held,
                " ORDER BY l.key"
            ),
            types: &[Type::BYTEA, Type::BYTEA],
        }
    };
}
pub(crate) static LIST_SESSIONS: Sql = list!("session", has_advisory_lock!());
pub(crate) static LIST_ROWS: Sql = list!("row", has_row_lock!());

/// Selects from the grant of key $1 with token $2.
macro_rules! select_from_grant {
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
static FIND_SESSION_GRANT: Sql =
    select_from_grant!("l.owner, l.chan", "session", has_advisory_lock!());
static FIND_ROW_GRANT: Sql = select_from_grant!("l.owner, l.chan", "row", has_row_lock!());
static TERMINATE_SESSION_HOLDER: Sql =
    select_from_grant!("pg_terminate_backend(l.pid)", "session", has_advisory_lock!());
static TERMINATE_ROW_HOLDER: Sql =
    select_from_grant!("pg_terminate_backend(l.pid)", "row", has_row_lock!());

/// The holder of row `l`, and the rank of owner $3 in its queue.
macro_rules! holder_and_rank {
    () => {
        "l.owner, l.token, l.note, \
         extract(epoch FROM clock_timestamp() - l.since)::float8 AS held_for, \
         (SELECT min(i) - 1 FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i) \
          WHERE e->>'o' = $3) AS rank"
    };
}

/// Adds or refreshes a queue entry, whose end is never moved back: a late request of the same claim
/// may be carried out after a newer one. $1 mode, $2 key, $3 owner, $4 ttl, $5 note, $6 channel.
static ENQUEUE: Sql = Sql {
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
        live_waiters!("clock_timestamp()", ""),
        " AS live OFFSET 0) q)
RETURNING ",
        holder_and_rank!()
    ),
    types: &[Type::TEXT, Type::BYTEA, Type::TEXT, Type::FLOAT8, Type::TEXT, Type::TEXT],
};

/// $1 mode, $2 key, $3 owner.
static READ: Sql = Sql {
    text: concat!(
        "SELECT ",
        holder_and_rank!(),
        " FROM @.tenure_board l WHERE l.mode = $1 AND l.key = $2"
    ),
    types: &[Type::TEXT, Type::BYTEA, Type::TEXT],
};

/// Removes a claim from row `l`, and returns the waiter `w` that is first now. $1 mode, $2 key,
/// $3 owner.
macro_rules! update_without_claim {
    () => {
        concat!(
            "UPDATE @.tenure_board l SET \
             owner = CASE WHEN l.owner = $3 THEN NULL ELSE l.owner END, queue = ",
            live_waiters!("clock_timestamp()", " AND e->>'o' <> $3"),
            " WHERE l.mode = $1 AND l.key = $2 AND (l.owner = $3 \
                OR l.queue @> jsonb_build_array(jsonb_build_object('o', $3::text))) \
             RETURNING l.queue->0 AS w"
        )
    };
}
pub(crate) use update_without_claim;

/// Removes a claim and wakes the waiter that is first now. $1 mode, $2 key, $3 owner.
pub(crate) static REMOVE_CLAIM: Sql = Sql {
    text: concat!(
        "WITH r AS (",
        update_without_claim!(),
        ") SELECT pg_notify(w->>'c', 'look ' || (w->>'o')) FROM r WHERE w IS NOT NULL"
    ),
    types: &[Type::TEXT, Type::BYTEA, Type::TEXT],
};
