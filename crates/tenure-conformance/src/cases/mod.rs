//! The cases, by promise. Each module lists its own; a new one is a function and a row.

use anyhow::Result;
use futures_util::future::BoxFuture;

use crate::context::TestContext;

mod admin;
mod cancel;
mod client;
mod downgrade;
mod election;
mod exclusion;
mod lateness;
mod loss;
mod lost_responses;
mod outage;
mod permits;
mod process;
mod readers;
mod reentry;
mod release;
mod renewal;
mod sets;
mod storm;
mod tokens;
mod waiting;

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// The promise it belongs to.
    pub module: &'static str,
    /// The sentence that it tries to prove false.
    pub name: &'static str,
    /// Whether a context has what it needs.
    pub needs: fn(&TestContext) -> bool,
    /// Runs it.
    pub run: for<'a> fn(&'a TestContext) -> BoxFuture<'a, Result<()>>,
}

/// Every case.
pub fn all() -> Vec<Case> {
    [
        cancel::CASES,
        client::CASES,
        downgrade::CASES,
        election::CASES,
        exclusion::CASES,
        lateness::CASES,
        loss::CASES,
        lost_responses::CASES,
        outage::CASES,
        admin::CASES,
        permits::CASES,
        process::CASES,
        readers::CASES,
        reentry::CASES,
        release::CASES,
        renewal::CASES,
        sets::CASES,
        storm::CASES,
        tokens::CASES,
        waiting::CASES,
    ]
    .concat()
}

/// The rows of a module: `name` for a case that every backend must pass, else
/// `name if |context| …`.
macro_rules! cases {
    ($module:literal: $($name:ident $(if $needs:expr)?),+ $(,)?) => {
        pub(super) const CASES: &[crate::cases::Case] = &[$(
            crate::cases::Case {
                module: $module,
                name: stringify!($name),
                needs: crate::cases::needs!($($needs)?),
                run: |context| Box::pin($name(context)),
            }
        ),+];
    };
}
use cases;

macro_rules! needs {
    () => {
        |_| true
    };
    ($needs:expr) => {
        $needs
    };
}
use needs;
