//! What only a real Consul can show: faults, strangers on the same keys, the number of requests.
//! Each case has servers of its own, to hurt them.
//! `cargo test -p tenure-conformance --test consul -- strangers` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod faults;
mod people;
mod strangers;
mod traffic;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure::backend::{Claim, Owner};
use tenure::{Client, Key};
use tenure_servers::wire::http::{json_field, request};
use tenure_servers::{Cluster, Node, Options, Topology, require, start};

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(3);
    let cases = [faults::CASES, people::CASES, strangers::CASES, traffic::CASES];
    let trials = cases.concat().into_iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// A case and the servers it needs.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) topology: Topology,
    pub(crate) run: for<'a> fn(&'a Cluster) -> futures_util::future::BoxFuture<'a, Result<()>>,
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
    let name = case.name.trim_start_matches("consul::");
    Trial::ignorable_test(name, move || {
        let cluster = match start(case.topology, &Options::default()) {
            Ok(cluster) => cluster,
            Err(error) if error.is_missing() && !require(case.topology.name()) => {
                return Ok(Completion::ignored_with(error));
            }
            Err(error) => return Err(error.into()),
        };
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().map_err(Failed::from)?;
        let run = async { tokio::time::timeout(LONGEST, (case.run)(&cluster)).await };
        match runtime.block_on(run) {
            Ok(done) => done.map(|()| Completion::Completed).map_err(|e| format!("{e:#}").into()),
            Err(_) => Err(format!("not done after {LONGEST:?}").into()),
        }
    })
}

/// A client of the whole cluster.
pub(crate) async fn connect(cluster: &Cluster) -> Result<Client> {
    Ok(tenure::connect(&url(&cluster.hosts(), "")).await?)
}

/// The URL of these servers, which allow short sessions.
pub(crate) fn url(hosts: &str, options: &str) -> String {
    format!("consul://{hosts}?min_ttl=1s&{options}")
}

/// A request that must succeed.
pub(crate) fn put(node: &Node, path: &str, body: &str) -> Result<String> {
    match request(node.port(), "PUT", path, body).with_context(|| path.to_owned())? {
        (200, answer) => Ok(answer),
        (status, answer) => bail!("{path}: status {status}: {answer}"),
    }
}

/// What is stored under a key, if it is there.
pub(crate) fn stored(node: &Node, key: &str) -> Result<Option<String>> {
    match request(node.port(), "GET", &format!("/v1/kv/{key}?consistent"), "")? {
        (200, entry) => Ok(Some(entry)),
        (404, _) => Ok(None),
        (status, answer) => bail!("{key}: status {status}: {answer}"),
    }
}

/// A field of what is stored under a key.
pub(crate) fn field(node: &Node, key: &str, name: &str) -> Result<String> {
    let entry = stored(node, key)?.with_context(|| format!("{key} is there"))?;
    json_field(&entry, name).with_context(|| format!("{entry} has {name}"))
}

/// All keys in Consul.
pub(crate) fn keys(node: &Node) -> Result<String> {
    match request(node.port(), "GET", "/v1/kv/?keys&consistent", "")? {
        (200, keys) => Ok(keys),
        (404, _) => Ok("[]".to_owned()),
        (status, answer) => bail!("status {status}: {answer}"),
    }
}

/// A claim as a client would make it.
pub(crate) fn claim(key: &str) -> Result<Claim> {
    Ok(Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(20)))
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// No case takes this long.
const LONGEST: Duration = Duration::from_secs(120);
