//! `tenure lab play`: the part of a client or of the resource, in a process that the lab started.

use super::failed;
use crate::exit;
use crate::failure::Failure;

/// Play a part in a run; started by the lab itself
#[derive(Debug, clap::Args)]
pub(crate) struct Play {
    /// Which part
    part: String,
}

pub(super) fn run(args: &Play) -> Result<u8, Failure> {
    match tenure_lab::stage::play(&args.part) {
        Ok(()) => Ok(exit::DONE),
        Err(error) => Err(failed("this part cannot be played", &error)),
    }
}
