//! What only a real etcd can show: faults of members and of the way to them, `etcdctl lock` on the
//! same keys, logins, and the number of requests.
//! `cargo test -p tenure-conformance --test etcd -- faults` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod doctor;
mod faults;
mod links;
mod strangers;
mod traffic;

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure::backend::Owner;
use tenure_servers::wire::http::post;
use tenure_servers::{Cluster, Node, Options, Topology, require, start};

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(4);
    let cases =
        [doctor::CASES, faults::CASES, links::CASES, strangers::CASES, traffic::CASES].concat();
    let trials = cases.into_iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// A case and the servers it needs; they are its own, to hurt them.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) topology: Topology,
    pub(crate) run: for<'a> fn(&'a Cluster) -> BoxFuture<'a, Result<()>>,
}

/// The rows of a module: name and topology.
macro_rules! cases {
    ($($name:ident $topology:ident;)+) => {
        pub(crate) const CASES: &[crate::Case] = &[$(
            crate::Case {
                name: concat!(module_path!(), "::", stringify!($name)),
                topology: tenure_servers::Topology::$topology,
                run: |cluster| Box::pin($name(cluster)),
            }
        ),+];
    };
}
pub(crate) use cases;

fn trial(case: Case) -> Trial {
    Trial::ignorable_test(case.name, move || {
        let cluster = match start(case.topology, &Options::default()) {
            Ok(cluster) => cluster,
            Err(error) if error.is_missing() && !require(case.topology.name()) => {
                return Ok(Completion::ignored_with(error));
            }
            Err(error) => return Err(error.into()),
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            let run = tokio::time::timeout(LONGEST, (case.run)(&cluster)).await;
            run.map_err(|_| Failed::from(format!("not done after {LONGEST:?}")))??;
            Ok(Completion::Completed)
        })
    })
}

/// A name that no other case uses.
pub(crate) fn name() -> String {
    format!("k-{}", Owner::random().to_string().split_at(8).0)
}

/// A request to the JSON gateway of a node.
pub(crate) fn gateway(node: &Node, path: &str, body: &str) -> Result<String> {
    post(node.port(), path, body).with_context(|| format!("{path} {body}"))
}

/// Bytes as the gateway wants them.
pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.as_ref().chunks(3) {
        let part = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let number = part(0) << 16 | part(1) << 8 | part(2);
        for at in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * at) & 63) as usize];
            text.push(if at > chunk.len() { '=' } else { digit.into() });
        }
    }
    text
}

/// No case takes this long.
const LONGEST: Duration = Duration::from_secs(120);
