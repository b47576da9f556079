//! The scenarios: what is done to a lock, step by step, each step triggered by an event.

mod pause;
mod sale;
mod table;

use anyhow::Result;
use tenure_servers::{Durability, Options, Topology};

use crate::schemes::Lock;
use crate::stage::Stage;

/// A scenario: a plan of faults, and what it shows.
#[derive(Debug)]
pub struct Scenario {
    /// What `tenure lab run` calls it.
    pub name: &'static str,
    /// Its number in the catalogue.
    pub id: &'static str,
    /// One sentence about it.
    pub about: &'static str,
    pub(crate) needs: Needs,
    pub(crate) play: fn(&mut Stage<'_>) -> Result<()>,
}

/// What a scenario does to its servers, and so whether others can use them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// It leaves them as they were: they are shared.
    Nothing,
    /// It shifts their clock.
    Clock,
    /// It kills or changes them: they are its own.
    Own,
    /// It restarts one that keeps nothing on disk.
    Amnesia,
    /// Two servers, the second of which follows the first.
    Replica,
    /// Three servers that elect a leader.
    Ensemble,
}

impl Scenario {
    /// The scenario of that name, or of that number in the catalogue.
    ///
    /// # Errors
    ///
    /// If there is none, with the names that there are.
    pub fn named(name: &str) -> Result<&'static Scenario> {
        let fits = |scenario: &&Scenario| {
            scenario.name == name || scenario.id.eq_ignore_ascii_case(name)
        };
        SCENARIOS.iter().find(fits).ok_or_else(|| {
            let known: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            anyhow::anyhow!("no scenario is called `{}`; known: {}", name, known.join(", "))
        })
    }

    /// What the catalogue expects of a lock: a verdict, or why the fault cannot happen to it.
    pub fn expected(&self, lock: &Lock) -> Result<&'static str, &'static str> {
        table::expected(self.name, lock.name)
    }

    /// The servers for a lock.
    pub(crate) fn topology(&self, lock: &Lock) -> Option<Topology> {
        match (self.needs, lock.topology?) {
            (Needs::Ensemble, Topology::Etcd) => Some(Topology::Etcd3),
            (Needs::Ensemble, Topology::Consul) => Some(Topology::Consul3),
            (Needs::Ensemble, Topology::Zookeeper) => Some(Topology::Zookeeper3),
            (Needs::Replica, Topology::Redis) => Some(Topology::RedisSentinel),
            (_, topology) => Some(topology),
        }
    }

    pub(crate) fn options(&self) -> Options {
        match self.needs {
            Needs::Clock => Options::default().clock(),
            Needs::Amnesia => Options::default().durability(Durability::Memory),
            _ => Options::default(),
        }
    }
}

/// Every scenario, the one to start with first.
pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "oversell",
        id: "F03",
        about: "a shop sells its last tickets while one of its clerks dozes off at the till",
        needs: Needs::Nothing,
        play: sale::oversell,
    },
    Scenario {
        name: "pause",
        id: "F03",
        about: "the holder is stopped past its lease, wakes up, writes and gives back",
        needs: Needs::Nothing,
        play: pause::pause,
    },
    Scenario {
        name: "wrong-owner",
        id: "F04",
        about: "one whose lease is over gives back; a third one asks while the second holds",
        needs: Needs::Nothing,
        play: pause::wrong_owner,
    },
];
