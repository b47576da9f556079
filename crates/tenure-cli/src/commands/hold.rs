//! `tenure hold`: a lock without a command, held by this program until the user ends it.

use crate::args::Hold;
use crate::failure::Failure;
use crate::runner::{self, Job};
use crate::store::Store;

/// The name of the holder that other clients see, unless the URL names another.
const OWNER: &str = "tenure-hold";

pub(super) fn run(store: &Store, args: Hold) -> Result<u8, Failure> {
    let job = super::run::job(store, &[args.key], args.acquire, OWNER)?;
    runner::run(&Job { json: args.json, ..job })
}
