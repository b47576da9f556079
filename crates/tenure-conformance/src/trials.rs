//! The frame of the tests that are about one kind of server. Each case has servers of its own, to
//! hurt them; where they cannot be had it is ignored, with the reason.

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure_servers::{Cluster, Options, Topology, require, start};

use crate::program::Missing;

/// No case takes this long; one that hangs is a failure, not a hanging run. A case that builds a
/// program in another language first, on a machine that has none of it yet, needs most of it.
const LONGEST: Duration = Duration::from_secs(420);

/// A case, the servers it needs and how they are started.
#[derive(Clone, Copy)]
pub struct Case {
    /// The path of its function.
    pub name: &'static str,
    /// The servers.
    pub topology: Topology,
    /// What is not as by default.
    pub options: fn(Options) -> Options,
    /// Runs it.
    pub run: for<'a> fn(&'a Cluster) -> BoxFuture<'a, Result<Done>>,
}

/// How a case ended that did not fail.
pub enum Done {
    /// It held.
    Well,
    /// Something else that it needs cannot be had.
    Ignored(String),
}

impl From<()> for Done {
    fn from((): ()) -> Done {
        Done::Well
    }
}

/// The rows of a module, as its constant `CASES`: name, topology, and options that differ.
#[macro_export]
macro_rules! server_cases {
    ($($name:ident $topology:ident $($options:expr)?;)+) => {
        pub(crate) const CASES: &[$crate::trials::Case] = &[$(
            $crate::trials::Case {
                name: concat!(module_path!(), "::", stringify!($name)),
                topology: tenure_servers::Topology::$topology,
                options: $crate::server_cases!(@options $($options)?),
                run: |cluster| Box::pin(async move { $name(cluster).await.map(Into::into) }),
            }
        ),+];
    };
    (@options) => { |options| options };
    (@options $options:expr) => { $options };
}

/// Runs these cases, so many at a time, and ends the process.
pub fn main(at_a_time: usize, modules: &[&[Case]]) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(at_a_time);
    let trials = modules.concat().into_iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit()
}

fn trial(case: Case) -> Trial {
    // Without the name of the test program.
    let name = case.name.split_once("::").map_or(case.name, |(_, name)| name);
    Trial::ignorable_test(name, move || {
        let cluster = match start(case.topology, &(case.options)(Options::default())) {
            Ok(cluster) => cluster,
            Err(error) if error.is_missing() && !require(case.topology.name()) => {
                return Ok(Completion::ignored_with(error));
            }
            Err(error) => return Err(error.into()),
        };
        match run(case, &cluster) {
            Ok(Done::Well) => Ok(Completion::Completed),
            Ok(Done::Ignored(reason)) => Ok(Completion::ignored_with(reason)),
            Err(error) => match error.downcast_ref::<Missing>() {
                Some(missing) if !missing.is_failure() => Ok(Completion::ignored_with(missing)),
                _ => Err(Failed::from(format!("{error:?}"))),
            },
        }
    })
}

fn run(case: Case, cluster: &Cluster) -> Result<Done> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    let run = async { tokio::time::timeout(LONGEST, (case.run)(cluster)).await };
    runtime.block_on(run).with_context(|| format!("not done after {LONGEST:?}"))?
}
