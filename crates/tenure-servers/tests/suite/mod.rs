//! What the suites of this crate share: a case whose server is not available is ignored with the
//! reason, or fails if the server is required.

use libtest_mimic::{Completion, Failed, Trial};
use tenure_servers::{Cluster, Error, Options, Topology, require, start};

/// The result of a case.
pub(crate) type Done = Result<(), Failed>;

/// A case that starts its own cluster.
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

/// The result of a case whose server did not start.
pub(crate) fn missing(name: &str, error: Error) -> Result<Completion, Failed> {
    if error.is_missing() && !require(name) {
        Ok(Completion::ignored_with(error))
    } else {
        Err(error.into())
    }
}
