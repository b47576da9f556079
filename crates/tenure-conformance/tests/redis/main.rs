//! What only a real Redis can show: faults, the layout on the wire, strangers on the same keys, the
//! number of commands. Each case has a server of its own, to hurt it.
//! `cargo test -p tenure-conformance --test redis -- redlock` runs some of them.

#![expect(clippy::unwrap_used, reason = "a case that panics fails")]

mod encrypted;
mod faults;
mod layout;
mod many;
mod mute;
mod redisson;
mod redlock;
mod runtimes;
mod strangers;
mod traffic;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure::backend::{Claim, Owner};
use tenure::{Attempt, Client, Guard, Key};
use tenure_servers::wire::redis::{Value, ask};
use tenure_servers::{Cluster, Node, Options, Topology, require, start};

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(4);
    let cases = [
        encrypted::CASES,
        faults::CASES,
        layout::CASES,
        many::CASES,
        redlock::CASES,
        runtimes::CASES,
        strangers::CASES,
        traffic::CASES,
    ];
    let mut trials: Vec<_> = cases.concat().into_iter().map(trial).collect();
    trials.extend(redisson::CASES.iter().map(|case| match redisson::not_wanted() {
        Some(reason) => {
            Trial::ignorable_test(name(case), move || Ok(Completion::ignored_with(reason)))
        }
        None => trial(*case),
    }));
    libtest_mimic::run(&arguments, trials).exit();
}

/// A case, the servers it needs and how they are started.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) topology: Topology,
    pub(crate) options: fn(Options) -> Options,
    pub(crate) run: for<'a> fn(&'a Cluster) -> futures_util::future::BoxFuture<'a, Result<()>>,
}

/// The rows of a module: name, topology, and options that differ from the default.
macro_rules! cases {
    ($($name:ident $topology:ident $($options:expr)?;)+) => {
        pub(crate) const CASES: &[crate::Case] = &[$(
            crate::Case {
                name: concat!(module_path!(), "::", stringify!($name)),
                topology: tenure_servers::Topology::$topology,
                options: crate::options!($($options)?),
                run: |cluster| Box::pin($name(cluster)),
            }
        ),+];
    };
}
pub(crate) use cases;

macro_rules! options {
    () => {
        |options| options
    };
    ($options:expr) => {
        $options
    };
}
pub(crate) use options;

fn name(case: &Case) -> &'static str {
    case.name.trim_start_matches("redis::")
}

fn trial(case: Case) -> Trial {
    Trial::ignorable_test(name(&case), move || {
        let cluster = match start(case.topology, &(case.options)(Options::default())) {
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
            Ok(done) => done.map(|()| Completion::Completed).map_err(|e| format!("{e:?}").into()),
            Err(_) => Err(format!("not done after {LONGEST:?}").into()),
        }
    })
}

/// A client of the whole cluster.
pub(crate) async fn connect(cluster: &Cluster, options: &str) -> Result<Client> {
    Ok(tenure::connect(&format!("{}?{options}", cluster.url())).await?)
}

/// A command that must succeed.
pub(crate) fn tell(node: &Node, words: &[&str]) -> Result<Value> {
    match ask(node.port(), words).with_context(|| words.join(" "))? {
        Value::Error(error) => bail!("{}: {error}", words.join(" ")),
        value => Ok(value),
    }
}

/// A number that a command answers.
pub(crate) fn number(node: &Node, words: &[&str]) -> Result<i64> {
    match tell(node, words)? {
        Value::Int(number) => Ok(number),
        other => bail!("{} answered {other:?}", words.join(" ")),
    }
}

/// The texts that a command answers.
pub(crate) fn texts(node: &Node, words: &[&str]) -> Result<Vec<String>> {
    match tell(node, words)? {
        Value::List(values) => {
            Ok(values.iter().map(|v| v.text().unwrap_or_default().to_owned()).collect())
        }
        Value::Text(text) => Ok(vec![text]),
        other => bail!("{} answered {other:?}", words.join(" ")),
    }
}

/// Takes a lock that must be free.
pub(crate) async fn take(client: &Client, key: &str, ttl: Duration) -> Result<Guard> {
    match client.lock(key).ttl(ttl).try_acquire().await? {
        Attempt::Granted(guard) => Ok(guard),
        Attempt::Busy(busy) => bail!("expected a free lock, but {busy}"),
    }
}

/// Waits for the lock in a task of its own.
pub(crate) fn wait_for(
    client: &Client,
    key: &str,
    ttl: Duration,
) -> tokio::task::JoinHandle<tenure::Result<Guard>> {
    tokio::spawn(client.lock(key).ttl(ttl).acquire())
}

/// Hand-overs that came by themselves, and not with the next look, which is 3.3 s away: judged by
/// the quickest, since a busy machine makes any one of them slow.
pub(crate) fn were_quick(times: &[Duration]) -> Result<()> {
    ensure!(times.iter().any(|time| *time < SECOND), "hand-overs took {times:?}");
    Ok(())
}

/// A claim as a client would make it.
pub(crate) fn claim(key: &str) -> Result<Claim> {
    Ok(Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(20)))
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// A lease so long that nothing in a case is due to its end.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// No case takes this long.
const LONGEST: Duration = Duration::from_secs(90);
