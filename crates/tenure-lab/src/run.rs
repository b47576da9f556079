//! One cell of the matrix: a scenario on a lock, played, checked and judged.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tenure_servers::Topology;

use crate::check::{self, Report};
use crate::history::{Header, History};
use crate::network;
use crate::rig::Rig;
use crate::scenarios::{Needs, Scenario};
use crate::schemes::Lock;
use crate::stage::{Stage, Unplayable};
use crate::verdict::{Judgement, Outcome};

/// What came of a cell.
#[derive(Debug)]
pub enum Played {
    /// It was played.
    Run(Box<Run>),
    /// The fault cannot happen to this lock.
    Inapplicable(&'static str),
    /// It cannot be played here.
    Skipped(String),
}

/// A run that was played.
#[derive(Debug)]
pub struct Run {
    /// What happened.
    pub history: History,
    /// What the checkers found.
    pub report: Report,
    /// Whether that is what is expected.
    pub judgement: Judgement,
}

impl Run {
    /// All but the events, for programs.
    pub fn summary(&self) -> impl Serialize {
        #[derive(Serialize)]
        struct Summary<'a> {
            header: &'a Header,
            report: &'a Report,
            judgement: &'a Judgement,
        }
        let Run { history, report, judgement } = self;
        Summary { header: &history.header, report, judgement }
    }
}

impl Played {
    fn of(history: History) -> Played {
        let report = check::check(&history);
        let judgement = Judgement::of(&history.header, &report);
        Played::Run(Box::new(Run { history, report, judgement }))
    }

    /// How it counts.
    pub fn outcome(&self) -> Outcome {
        match self {
            Played::Run(run) => run.judgement.outcome,
            Played::Inapplicable(_) | Played::Skipped(_) => Outcome::Skipped,
        }
    }
}

/// The servers that are kept for the next cell, and what all cells have in common.
#[derive(Debug, Default)]
pub struct Rigs {
    kept: Vec<Rig>,
    lease: Option<Duration>,
}

/// Plays a cell. `program` is the program that plays the clients when started with
/// `lab play PART`.
///
/// # Errors
///
/// If the run itself went wrong, which says nothing about the lock.
pub fn play(
    scenario: &'static Scenario,
    lock: &'static Lock,
    rigs: &mut Rigs,
    program: &Path,
) -> Result<Played> {
    let expected = match scenario.expected(lock) {
        Ok(expected) => expected,
        Err(reason) => return Ok(Played::Inapplicable(reason)),
    };
    if scenario.needs == Needs::Network && !network::inside() {
        return Ok(match network::play((scenario, lock), rigs.lease, program)? {
            Ok(history) => Played::of(history),
            Err(why) => Played::Skipped(why),
        });
    }
    let rig = match rigs.get(scenario, lock) {
        Ok(rig) => rig,
        Err(error) => return Ok(Played::Skipped(format!("{error:#}"))),
    };
    let lease = rigs.lease.unwrap_or_else(|| scenario.lease(lock));
    let limit = scenario.limit(lock, lease);
    let server = rig.server();
    let mut stage = Stage::set(&rig, lock, (lease, limit), program)?;
    match (scenario.play)(&mut stage) {
        Err(error) if is_missing(&error) => return Ok(Played::Skipped(format!("{error:#}"))),
        played => played?,
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
    let history = stage.finish(header)?;
    rigs.keep(rig, scenario.needs);
    Ok(Played::of(history))
}

/// Whether a run went wrong because something that it needs is not here.
fn is_missing(error: &anyhow::Error) -> bool {
    let server = error.downcast_ref::<tenure_servers::Error>();
    server.is_some_and(tenure_servers::Error::is_missing) || error.is::<Unplayable>()
}

impl Rigs {
    /// Lets clients ask for this lease, rather than for the one that each lock usually has: a short
    /// one makes many runs go by faster.
    #[must_use]
    pub fn with_lease(mut self, lease: Option<Duration>) -> Rigs {
        self.lease = lease;
        self
    }

    fn get(&mut self, scenario: &Scenario, lock: &'static Lock) -> Result<Rig> {
        let topology = scenario.topology(lock);
        let shared = scenario.needs == Needs::Nothing;
        let found = self.kept.iter().position(|rig| shared && rig.fits(topology));
        match found {
            Some(place) => {
                let mut rig = self.kept.swap_remove(place);
                rig.lend(lock);
                Ok(rig)
            }
            None => Rig::start(lock, topology, &scenario.options()),
        }
    }

    /// Ends the servers that are not of this kind: room for the next.
    pub fn only(&mut self, topology: Option<Topology>) {
        self.kept.retain(|rig| rig.fits(topology));
    }

    fn keep(&mut self, rig: Rig, needs: Needs) {
        if needs == Needs::Nothing {
            self.kept.push(rig);
        }
    }
}
