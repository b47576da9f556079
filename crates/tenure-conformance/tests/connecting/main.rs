//! How a client comes to its connections: at its first use, with credentials of the caller's own,
//! and under a name that operators see.
//! `cargo test -p tenure-conformance --test connecting -- lazy` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod credentials;
mod lazy;
mod names;
mod self_signed;

use tenure_conformance::trials;
use tenure_servers::Cluster;

fn main() {
    trials::main(3, &[credentials::CASES, lazy::CASES, names::CASES, self_signed::CASES])
}

/// The URL of the server without its password.
pub(crate) fn without_password(cluster: &Cluster) -> String {
    let url = cluster.url();
    match cluster.node().password() {
        Some(password) => url.replacen(&format!(":{password}@"), "@", 1),
        None => url,
    }
}
