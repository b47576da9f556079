//! What only a real MariaDB can show: killed connections and servers, lost answers, other isolation
//! levels and time zones, strangers on the same locks, a million old rows, missing rights. Each
//! case has a server of its own, to hurt it.
//! `cargo test -p tenure-conformance --test mysql -- faults` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod faults;
mod strangers;
mod tables;

use std::time::Duration;

use anyhow::{Result, anyhow};
use futures_util::future::BoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure::{Attempt, Client, Guard, Lock};
use tenure_servers::wire::mysql::Mysql;
use tenure_servers::{Cluster, Options, Topology, require, start};

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(4);
    let cases = [faults::CASES, strangers::CASES, tables::CASES];
    let trials = cases.concat().into_iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// A case and its name.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: for<'a> fn(&'a Cluster) -> BoxFuture<'a, Result<()>>,
}

/// The rows of a module.
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(crate) const CASES: &[crate::Case] = &[$(
            crate::Case {
                name: concat!(module_path!(), "::", stringify!($name)),
                run: |cluster| Box::pin($name(cluster)),
            }
        ),+];
    };
}
pub(crate) use cases;

fn trial(case: Case) -> Trial {
    let name = case.name.trim_start_matches("mysql::");
    Trial::ignorable_test(name, move || {
        let cluster = match start(Topology::Mariadb, &Options::default()) {
            Ok(cluster) => cluster,
            Err(error) if error.is_missing() && !require("mariadb") => {
                return Ok(Completion::ignored_with(error));
            }
            Err(error) => return Err(error.into()),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime can be built");
        let run = async {
            let run = tokio::time::timeout(LONGEST, (case.run)(&cluster)).await;
            run.map_err(|_| anyhow!("not done after {LONGEST:?}"))?
        };
        runtime.block_on(run).map_err(Failed::from)?;
        Ok(Completion::Completed)
    })
}

pub(crate) fn admin(cluster: &Cluster) -> Result<Mysql> {
    Ok(Mysql::connect(cluster.node().port())?)
}

/// A client of this server with these options in its URL.
pub(crate) async fn client(cluster: &Cluster, query: &str) -> Result<Client> {
    Ok(tenure::connect(&format!("{}?{query}", cluster.url())).await?)
}

/// Takes a lock that must come free soon.
pub(crate) async fn take(lock: &Lock) -> Result<Guard> {
    Ok(soon(lock.acquire()).await??)
}

pub(crate) async fn is_busy(lock: &Lock) -> Result<bool> {
    Ok(matches!(soon(lock.try_acquire()).await??, Attempt::Busy(_)))
}

/// Awaits something that must come. Generous: it is only reached on failure.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> Result<T> {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, future).await.map_err(|_| anyhow!("not within {limit:?}"))
}

/// No case takes this long; one that hangs is a failure, not a hanging run.
const LONGEST: Duration = Duration::from_secs(170);
