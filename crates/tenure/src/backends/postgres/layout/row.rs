//! The statements of `mode=row`: a locked row of `tenure_row`, and the registry with it.
//!
//! Most of them are text without parameters, because they have to be part of one message: a message
//! of several statements is one batch that no other request can interleave with.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;

use super::columns::{key_bytes, key_literal, note, ttl_seconds};
use super::registry::REMOVE_CLAIM;
use crate::backend::{Claim, Owner};
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::{Sql, values};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// $1 key, $2 owner, $3 token, $4 process id, $5 ttl, $6 note, $7 channel. A registration that
/// comes late does not overwrite that of a later grant.
static REGISTER_HOLDER: Sql = Sql {
    text: concat!(
        "INSERT INTO @.tenure_board AS l (mode, key, owner, token, pid, ttl, note, chan) \
         VALUES ('row', $1, $2, $3, $4, $5, $6, $7) ON CONFLICT (mode, key) DO UPDATE SET \
         owner = excluded.owner, token = excluded.token, pid = excluded.pid, ttl = excluded.ttl, \
         since = excluded.since, note = excluded.note, chan = excluded.chan, queue = ",
        live_waiters!("clock_timestamp()", " AND e->>'o' <> excluded.owner"),
        " WHERE l.token < excluded.token"
    ),
    types: &[Type::BYTEA, Type::TEXT, Type::INT8, Type::INT4, Type::FLOAT8, Type::TEXT, Type::TEXT],
};

/// Reads the name of the current transaction.
pub(crate) const READ_NAME: &str = "SELECT current_setting('application_name')";
/// The first version with `transaction_timeout`.
const HAS_TRANSACTION_TIMEOUT: i32 = 170_000;

/// The name of the transaction that holds a lock, for as long as it lasts.
pub(crate) fn transaction_name(token: FencingToken) -> String {
    format!("tenure row {token}")
}

/// Makes the row if it is missing, begins a transaction and locks the row in it, unless another
/// waiter is first in the queue. The result is the token, or no row if the lock is busy.
///
/// The insert is committed first: an insert that is not committed would make every other client
/// wait in its own insert. `idle_in_transaction_session_timeout` frees the lock of a holder that
/// hangs: it ends the transaction a little after the lease, which the holder knows to be over by
/// then.
pub(crate) fn lock_text(claim: &Claim, version: i32) -> String {
    let key = key_literal(&claim.key);
    let owner = claim.owner;
    let limit: Duration = claim.ttl + claim.ttl / 4;
    let limit = limit.as_millis();
    let no_transaction_timeout =
        if version >= HAS_TRANSACTION_TIMEOUT { "SET LOCAL transaction_timeout = 0; " } else { "" };
    format!(
        "INSERT INTO @.tenure_row (key) VALUES ({key}) ON CONFLICT DO NOTHING; COMMIT; \
BEGIN; SET LOCAL idle_in_transaction_session_timeout = {limit}; {no_transaction_timeout}\
WITH r AS (SELECT key FROM @.tenure_row WHERE key = {key} AND NOT EXISTS (
    SELECT 1 FROM @.tenure_board b WHERE b.mode = 'row' AND b.key = {key} AND '{owner}' <>
    (SELECT e->>'o' FROM jsonb_array_elements(b.queue) WITH ORDINALITY x(e, i)
     WHERE (e->>'u')::timestamptz > clock_timestamp() ORDER BY i LIMIT 1))
  FOR UPDATE SKIP LOCKED),
t AS MATERIALIZED (SELECT nextval('@.tenure_token') AS token FROM r)
SELECT token, set_config('application_name', 'tenure row ' || token, true) FROM t"
    )
}

/// Reads the name of the transaction, ends it, removes the claim from the registry and wakes the
/// next waiter. The result is the name.
pub(crate) fn unlock_text(key: &Key, owner: Owner) -> String {
    let remove_claim = REMOVE_CLAIM.text.replace("$1", "'row'").replace("$2", &key_literal(key));
    let remove_claim = remove_claim.replace("$3", &format!("'{owner}'"));
    format!("{READ_NAME}; ROLLBACK; {remove_claim}")
}

/// Registers the holder of a row lock.
pub(crate) async fn register_holder(
    pool: &Arc<Pool>,
    claim: &Claim,
    token: FencingToken,
    pid: i32,
) -> Result<()> {
    let values = values![
        key_bytes(&claim.key),
        claim.owner.to_string(),
        token.as_i64(),
        pid,
        ttl_seconds(claim.ttl),
        note(&claim.holder_info),
        pool.channel.clone(),
    ];
    pool.query(&REGISTER_HOLDER, values).await.map(drop)
}
