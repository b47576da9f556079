//! What the processes of a run execute: a client, the protected resource, or a whole run in a
//! network namespace of its own. The lab starts its own program again with `lab play ROLE`.
//!
//! - `protocol`: the lines that the runner and a client process exchange.
//! - `client`: a process that acquires the lock and works on the resource, on command.
//! - `tenure_client`: how a client uses a lock of tenure.
//! - `hand_written`: how a client uses a hand-written scheme.
//! - `resource`: the protected resource, three registers side by side.

mod client;
mod hand_written;
pub(crate) mod protocol;
mod resource;
mod tenure_client;

use anyhow::{Result, bail};

use self::protocol::end_with_parent;
use crate::netns;

/// Executes a role, in a process that the lab started: `client`, `resource:START` or
/// `network:CELL`.
///
/// # Errors
///
/// If the role is unknown or fails; the lab sees the process end.
pub fn play(role: &str) -> Result<()> {
    match role.split_once(':') {
        None if role == "client" => client::run(),
        Some(("resource", start)) => resource::run(start.parse()?),
        Some(("network", cell)) => {
            end_with_parent()?;
            netns::run_inside(cell)
        }
        _ => bail!("no such role: {role}"),
    }
}
