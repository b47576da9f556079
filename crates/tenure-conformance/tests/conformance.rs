//! Every case over every fixture. `cargo test -p tenure-conformance --test conformance -- sqlite::`
//! runs one backend, `-- cancel` one promise.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tenure_conformance::cases::{self, Case};
use tenure_conformance::context::TestContext;
use tenure_conformance::fixtures::{self, Fixture};
use tenure_conformance::peer;

/// No case takes this long; one that hangs is a failure, not a hanging run.
const LONGEST: Duration = Duration::from_secs(300);

/// Cases that need the whole machine: tens of processes that never rest. Beside them a request with
/// a lease of a second or two would get no response in time.
const ALONE: &[&str] = &["racing_processes_count_exactly"];

/// Held for reading by a case that runs beside others, for writing by one of [`ALONE`].
static MACHINE: RwLock<()> = RwLock::new(());

fn main() {
    if peer::play() {
        return;
    }
    let mut arguments = Arguments::from_args();
    // Most cases wait most of the time.
    arguments.test_threads.get_or_insert(8);
    // A server that no trial needs is not started.
    let filter = arguments.filter.clone().unwrap_or_default();
    let wanted = filter.split_once("::").map(|(fixture, _)| fixture.to_owned());
    let fixtures = fixtures::all().into_iter();
    let fixtures = fixtures.filter(|f| wanted.as_deref().is_none_or(|name| name == f.name));
    let trials = fixtures.flat_map(trials).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// All cases for one fixture. What it promises is known only when it runs, so a store is started
/// here once, to read it.
fn trials(fixture: Fixture) -> Vec<Trial> {
    let probe = runtime().block_on(async { TestContext::new((fixture.start)().await?).await });
    let context = match probe {
        Ok(context) => context,
        Err(reason) => return vec![missing(&fixture, &reason)],
    };
    let able = cases::all().into_iter().filter(|case| (case.needs)(&context));
    able.map(|case| trial(&fixture, case)).collect()
}

fn trial(fixture: &Fixture, case: Case) -> Trial {
    let name = format!("{}::{}::{}", fixture.name, case.module, case.name);
    let start = fixture.start;
    Trial::test(name, move || {
        let alone = ALONE.contains(&case.name);
        let _alone = alone.then(|| MACHINE.write().unwrap_or_else(PoisonError::into_inner));
        let _beside = (!alone).then(|| MACHINE.read().unwrap_or_else(PoisonError::into_inner));
        runtime().block_on(async {
            let context = TestContext::new(start().await?).await?;
            let run = tokio::time::timeout(LONGEST, (case.run)(&context));
            run.await.map_err(|_| Failed::from(format!("not done after {LONGEST:?}")))??;
            context.ledger().verdict().await?;
            Ok(())
        })
    })
}

/// A store that cannot be had is shown with its reason; under `TENURE_REQUIRE` it is a failure.
fn missing(fixture: &Fixture, reason: &anyhow::Error) -> Trial {
    let required = std::env::var("TENURE_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|name| name == "all" || name == fixture.name);
    let reason = format!("could not be had: {reason:#}");
    Trial::ignorable_test(format!("{}::server", fixture.name), move || {
        if required { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) }
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be built")
}
