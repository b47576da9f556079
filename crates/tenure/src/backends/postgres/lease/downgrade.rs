//! Makes an exclusive grant shared.
//!
//! One statement moves the grant from the columns of its row into `holders`, with its token, and
//! lets the readers at the head of the queue in. It changes the grant of this token or nothing, so
//! that a late or repeated one is harmless: see `layout::holders`.

use std::sync::Arc;

use crate::backend::{Claim, Grant};
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::values;
use crate::backends::postgres::layout::columns::{get, key_bytes, ttl_seconds};
use crate::backends::postgres::layout::holders;
use crate::error::{Error, Result};
use crate::token::FencingToken;

pub(super) async fn downgrade(
    pool: &Arc<Pool>,
    claim: &Claim,
    token: FencingToken,
) -> Result<Grant> {
    let values = values![
        key_bytes(&claim.key),
        claim.owner.to_string(),
        token.as_i64(),
        ttl_seconds(claim.ttl),
    ];
    let rows = pool.query(&holders::DOWNGRADE, values).await?;
    let is_held = rows.first().map_or(Ok(false), |row| get(row, "is_held"))?;
    if !is_held {
        return Err(Error::not_held());
    }
    pool.mixed.set(&claim.key, true);
    Ok(pool.grant(claim, token))
}
