//! One cell of the matrix: a scenario on a lock, run, checked and judged.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tenure_servers::Topology;

use crate::check::{self, Report};
use crate::history::{Header, History};
use crate::netns::{self, NamespaceRun};
use crate::runner::{Runner, Unsupported};
use crate::scenarios::{Scenario, ServerNeeds};
use crate::schemes::LockSpec;
use crate::server_setup::ServerSetup;
use crate::verdict::{Judgement, Outcome};

/// The result of a cell.
#[derive(Debug)]
pub enum CellResult {
    /// The scenario was run.
    Run(Box<Run>),
    /// The fault cannot happen to this lock, with the reason.
    Inapplicable(&'static str),
    /// The scenario cannot be run on this machine, with the reason.
    Skipped(String),
}

/// A completed run.
#[derive(Debug)]
pub struct Run {
    /// What happened.
    pub history: History,
    /// What the checkers found.
    pub report: Report,
    /// The verdict, compared with the expected one.
    pub judgement: Judgement,
}

/// Everything about a run but its events, for programs.
#[derive(Debug, Serialize)]
pub struct RunSummary<'a> {
    header: &'a Header,
    report: &'a Report,
    judgement: &'a Judgement,
}

impl Run {
    /// Checks and judges a history.
    pub fn of(history: History) -> Run {
        let report = check::check(&history);
        let judgement = Judgement::of(&history.header, &report);
        Run { history, report, judgement }
    }

    /// Everything but the events.
    pub fn summary(&self) -> RunSummary<'_> {
        let Run { history, report, judgement } = self;
        RunSummary { header: &history.header, report, judgement }
    }
}

impl CellResult {
    fn of(history: History) -> CellResult {
        CellResult::Run(Box::new(Run::of(history)))
    }

    /// The outcome that counts for the exit code.
    pub fn outcome(&self) -> Outcome {
        match self {
            CellResult::Run(run) => run.judgement.outcome,
            CellResult::Inapplicable(_) | CellResult::Skipped(_) => Outcome::Skipped,
        }
    }
}

/// The servers that are kept for the next cell, and the lease for all cells.
#[derive(Debug, Default)]
pub struct ServerPool {
    kept: Vec<ServerSetup>,
    lease: Option<Duration>,
}

/// Runs a cell. `program` is the program that executes the roles when it is started with
/// `lab play ROLE`.
///
/// # Errors
///
/// If the run itself failed, which says nothing about the lock.
pub fn run(
    scenario: &'static Scenario,
    lock: &'static LockSpec,
    pool: &mut ServerPool,
    program: &Path,
) -> Result<CellResult> {
    let expected = match scenario.expected(lock) {
        Ok(expected) => expected,
        Err(reason) => return Ok(CellResult::Inapplicable(reason)),
    };
    if scenario.needs == ServerNeeds::NetworkNamespace && !netns::is_inside() {
        return Ok(match netns::run_cell((scenario, lock), pool.lease, program)? {
            NamespaceRun::Completed(history) => CellResult::of(history),
            NamespaceRun::Skipped(why) => CellResult::Skipped(why),
        });
    }
    let setup = match pool.take(scenario, lock) {
        Ok(setup) => setup,
        Err(error) => return Ok(CellResult::Skipped(format!("{error:#}"))),
    };
    let lease = pool.lease.unwrap_or_else(|| scenario.lease(lock));
    let limit = scenario.limit(lock, lease);
    let server = setup.description();
    let mut runner = Runner::start(&setup, lock, (lease, limit), program)?;
    match (scenario.run)(&mut runner) {
        Err(error) if is_missing(&error) => {
            return Ok(CellResult::Skipped(format!("{error:#}")));
        }
        completed => completed?,
    }
    let header = Header {
        scenario: scenario.name.to_owned(),
        about: scenario.about.to_owned(),
        lock: lock.name.to_owned(),
        server,
        seed: 0,
        expected: expected.replace('/', "|"),
        lease: 0,
        lanes: Vec::new(),
    };
    let history = runner.finish(header)?;
    pool.keep(setup, scenario.needs);
    Ok(CellResult::of(history))
}

/// Whether a run failed because something that it needs is missing on this machine.
fn is_missing(error: &anyhow::Error) -> bool {
    let server = error.downcast_ref::<tenure_servers::Error>();
    server.is_some_and(tenure_servers::Error::is_missing) || error.is::<Unsupported>()
}

impl ServerPool {
    /// Lets clients request this lease instead of each lock's usual one. A short lease makes many
    /// runs faster.
    #[must_use]
    pub fn with_lease(mut self, lease: Option<Duration>) -> ServerPool {
        self.lease = lease;
        self
    }

    /// Servers that were kept, or new ones.
    fn take(&mut self, scenario: &Scenario, lock: &'static LockSpec) -> Result<ServerSetup> {
        let topology = scenario.topology(lock);
        let shared = scenario.needs == ServerNeeds::Shared;
        let found = self.kept.iter().position(|setup| shared && setup.has_topology(topology));
        match found {
            Some(index) => {
                let mut setup = self.kept.swap_remove(index);
                setup.set_lock(lock);
                Ok(setup)
            }
            None => ServerSetup::start(lock, topology, &scenario.options()),
        }
    }

    /// Ends the kept servers that do not have this topology, to free their memory.
    pub fn retain(&mut self, topology: Option<Topology>) {
        self.kept.retain(|setup| setup.has_topology(topology));
    }

    fn keep(&mut self, setup: ServerSetup, needs: ServerNeeds) {
        if needs == ServerNeeds::Shared {
            self.kept.push(setup);
        }
    }
}
