//! What tenure stores in a PostgreSQL database: its tables, and the statements that use them.
//!
//! - `schema`, `schema.sql`: the tables and the sequence, and how they are created
//! - `lease`: the statements of `mode=lease` on `tenure_lease`, for keys that only exclusive claims
//!   use
//! - `holders`: the same for keys with holders or waiters of other modes
//! - `rule`: what the queue hands out, as an expression
//! - `renewal`: the renewals of both
//! - `registry`: holders and waiters of `mode=session` and `mode=row`, in `tenure_board`
//! - `advisory`: the statements of `mode=session` on advisory locks
//! - `row`: the statements of `mode=row` on `tenure_row`
//! - `columns`: conversions between columns and the types of tenure

/// The array of the waiters of row `l` that have not expired at `$clock`, in their order. `$and` is
/// a further condition on a waiter `e`.
macro_rules! live_waiters {
    ($clock:literal, $and:literal) => {
        concat!(
            "coalesce((SELECT jsonb_agg(e ORDER BY i) ",
            "FROM jsonb_array_elements(l.queue) WITH ORDINALITY x(e, i) ",
            "WHERE (e->>'u')::timestamptz > ",
            $clock,
            $and,
            "), '[]')"
        )
    };
}

/// The tombstones of row `l` that have not expired at `n`.
macro_rules! live_tombstones {
    () => {
        "CASE WHEN l.gone = '[]' THEN l.gone ELSE coalesce((SELECT jsonb_agg(e) \
         FROM jsonb_array_elements(l.gone) g(e) WHERE (e->>'u')::timestamptz > n), '[]') END"
    };
}

/// Whether row `l` is mixed: has a holder or a waiter that is not exclusive. Such a row is changed
/// only by the statements of `holders`.
macro_rules! is_mixed {
    () => {
        "(coalesce(l.owner ^@ '~', false) OR l.queue @> '[{\"m\":1}]')"
    };
}

#[macro_use]
mod rule;

pub(crate) mod advisory;
pub(crate) mod columns;
pub(crate) mod holders;
pub(crate) mod lease;
pub(crate) mod registry;
pub(crate) mod renewal;
pub(crate) mod row;
pub(crate) mod schema;
