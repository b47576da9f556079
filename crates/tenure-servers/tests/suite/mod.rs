//! What the suites of this crate have in common: a case that needs a server is ignored with the
//! reason when the server cannot be had, or fails when it is required.

use libtest_mimic::{Completion, Failed, Trial};
use tenure_servers::{Cluster, Error, Options, Topology, require, start};

/// What a case answers.
pub(crate) type Done = Result<(), Failed>;

/// A case that starts a cluster of its own.
pub(crate) fn trial(
    topology: Topology,
    name: &str,
    options: Options,
    case: impl FnOnce(&Cluster) -> Done + Send + 'static,
) -> Trial {
    Trial::ignorable_test(format!("{topology}::{name}"), move || match start(topology, &options) {
        Ok(cluster) => case(&cluster).map(|()| Completion::Completed),
        Err(error) => missing(topology.name(), error),
    })
}

/// The end of a case whose server did not start.
pub(crate) fn missing(name: &str, error: Error) -> Result<Completion, Failed> {
    match error.is_missing() && !require(name) {
        true => Ok(Completion::ignored_with(error)),
        false => Err(error.into()),
    }
}
