//! What only a real PostgreSQL can show: killed sessions, a server that is killed and comes back,
//! lost responses, other isolation levels and time zones, and a table full of expired rows.
//! `cargo test -p tenure-conformance --test postgres -- faults` runs some of them.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod blocked;
mod faults;
mod foreign_clients;
mod late;
mod late_readers;
mod model;
mod modes;
mod notifications;
mod pooled;
mod pooler;
mod tables;
mod upgrade;

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure::backend::{Claim, Owner};
use tenure::{Client, Config, ErrorKind, Key};
use tenure_conformance::context::{SOON, soon, until};
use tenure_servers::wire::postgres::Postgres as Wire;
use tenure_servers::{Cluster, Options, Topology};

/// The limit of a case: one that hangs is a failure, not a hanging run.
pub(crate) const LONGEST: Duration = Duration::from_secs(150);

fn main() {
    let missing = shared().as_ref().err().map(|reason| format!("{reason:#}"));
    let cases = [
        blocked::CASES,
        faults::CASES,
        late::CASES,
        late_readers::CASES,
        model::CASES,
        modes::CASES,
        notifications::CASES,
        pooled::CASES,
        foreign_clients::CASES,
        tables::CASES,
        upgrade::CASES,
    ]
    .concat();
    let trials = cases.into_iter().map(|case| trial(case, missing.as_deref())).collect();
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(4);
    libtest_mimic::run(&arguments, trials).exit();
}

/// A test case and its name.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> BoxFuture<'static, Result<()>>,
}

/// Makes the list of a module's cases.
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(crate) const CASES: &[crate::Case] = &[$(
            crate::Case {
                name: concat!(module_path!(), "::", stringify!($name)),
                run: || Box::pin($name()),
            }
        ),+];
    };
}
pub(crate) use cases;

fn trial(case: Case, missing: Option<&str>) -> Trial {
    let name = case.name.trim_start_matches("postgres::");
    match missing {
        None => Trial::test(name, move || run(case)),
        Some(reason) => {
            let reason = format!("could not be had: {reason}");
            Trial::ignorable_test(name, move || {
                if tenure_servers::require("postgres") {
                    return Err(reason.into());
                }
                Ok(Completion::ignored_with(reason))
            })
        }
    }
}

fn run(case: Case) -> Result<(), Failed> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(async { tokio::time::timeout(LONGEST, (case.run)()).await })??;
    Ok(())
}

fn shared() -> &'static tenure_servers::Result<Cluster> {
    static SHARED: OnceLock<tenure_servers::Result<Cluster>> = OnceLock::new();
    SHARED.get_or_init(|| tenure_servers::start(Topology::Postgres, &Options::default()))
}

pub(crate) fn server() -> Result<&'static Cluster> {
    Ok(shared().as_ref().map_err(Clone::clone)?)
}

/// A server for this test only, which it may stop or change.
pub(crate) fn own_server() -> Result<Cluster> {
    Ok(tenure_servers::start(Topology::Postgres, &Options::default())?)
}

pub(crate) fn sql(cluster: &Cluster, text: &str) -> Result<Vec<String>> {
    Ok(Wire::connect(cluster.node().port())?.query(text)?)
}

/// The password in the cluster's URL.
pub(crate) fn password(cluster: &Cluster) -> Result<String> {
    cluster.node().password().context("a PostgreSQL has a password")
}

/// Makes a role that logs in with this password.
pub(crate) fn role(cluster: &Cluster, name: &str, rights: &str, password: &str) -> Result<()> {
    sql(cluster, &format!("CREATE ROLE {name} LOGIN {rights} PASSWORD '{password}'")).map(drop)
}

pub(crate) async fn connect(url: &str) -> Result<Client> {
    Ok(soon("connect", url.parse::<Config>()?.connect()).await??)
}

pub(crate) fn unique(name: &str) -> String {
    format!("{}/{name}", Owner::random())
}

pub(crate) fn claim(key: &str) -> Result<Claim> {
    Ok(Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(20)))
}

/// Repeats a call that a restarting server refuses, until there is a response.
pub(crate) async fn until_response<T, F: Future<Output = tenure::Result<T>>>(
    call: impl Fn() -> F,
) -> Result<T> {
    until(SOON, "a response", || async {
        match call().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(None),
            response => Ok(Some(response?)),
        }
    })
    .await
}
