//! `tenure lab play`: the role of a client or of the resource, in a process that the lab started.

use super::failed;
use crate::exit;
use crate::failure::Failure;

/// Execute a role of a run; started by the lab itself
#[derive(Debug, clap::Args)]
pub(crate) struct Play {
    /// The role: `client`, `resource:START` or `network:CELL`
    role: String,
}

pub(super) fn run(args: &Play) -> Result<u8, Failure> {
    match tenure_lab::roles::play(&args.role) {
        Ok(()) => Ok(exit::DONE),
        Err(error) => Err(failed("this role failed", &error)),
    }
}
