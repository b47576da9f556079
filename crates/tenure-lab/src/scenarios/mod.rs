//! The scenarios: what is done to a lock, step by step, each step triggered by an event.

mod blocker;
mod crash;
mod demoted;
mod failover;
mod herd;
mod names;
mod neighbour;
mod net;
mod pause;
mod release;
mod repeat;
mod sale;
mod server;
mod table;

use std::time::Duration;

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
    pub(crate) lasts: Lasts,
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
    /// A master with replicas, watched by sentinels.
    Sentinel,
    /// Masters that share the keys, or such as do not know each other.
    Shards,
    /// Three servers that elect a leader.
    Ensemble,
    /// A network of its own.
    Network,
}

/// Which lease a scenario is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// The lock's usual one: the scenario waits for its end.
    Lock,
    /// One that does not end during the run.
    Long,
    /// One that does not end while a server restarts, however slow the machine is.
    Restart,
    /// The usual one where there is a queue, whose places end with it; else a long one.
    Queue,
    /// A longer one for tenure's own, who look again after a third of it: so that a busy machine is
    /// not taken for one who waits for the end of a lease.
    Look,
    /// One of so many seconds, or the lock's usual one if that is longer: some of its renewals are
    /// part of the run.
    Seconds(u64),
}

impl Scenario {
    /// The scenario of that name, or of that number in the catalogue.
    ///
    /// # Errors
    ///
    /// If there is none, with the names that there are.
    pub fn named(name: &str) -> Result<&'static Scenario> {
        let fits =
            |scenario: &&Scenario| scenario.name == name || scenario.id.eq_ignore_ascii_case(name);
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
            (Needs::Sentinel, Topology::Redis) => Some(Topology::RedisSentinel),
            (Needs::Shards, Topology::Redis) => Some(Topology::RedisCluster),
            (_, topology) => Some(topology),
        }
    }

    /// The lease that clients ask for. Where the fault itself ends the lock, a long one: what is
    /// shown must not depend on how fast this machine is.
    pub(crate) fn lease(&self, lock: &Lock) -> Duration {
        match self.lasts {
            Lasts::Lock => lock.lease,
            Lasts::Look if lock.is_own() => Duration::from_secs(5).max(lock.lease),
            Lasts::Look => lock.lease,
            Lasts::Queue if lock.is_own() => lock.lease,
            Lasts::Restart => Duration::from_secs(30).max(lock.lease),
            Lasts::Seconds(seconds) => Duration::from_secs(seconds).max(lock.lease),
            Lasts::Long | Lasts::Queue => Duration::from_secs(10).max(lock.lease),
        }
    }

    /// How long one who waits is waited for: some leases where it is expected to be stuck, else
    /// for as long as a busy machine may take.
    pub(crate) fn limit(&self, lock: &Lock, lease: Duration) -> Duration {
        let stuck = self.expected(lock).is_ok_and(|cell| cell.starts_with("T+") || cell == "∞");
        if stuck { lease * 4 } else { LONGEST_WAIT }
    }

    pub(crate) fn options(&self) -> Options {
        match self.needs {
            Needs::Clock => Options::default().clock(),
            Needs::Amnesia => Options::default().durability(Durability::Memory),
            _ => Options::default(),
        }
    }
}

/// A run takes twenty seconds at most.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// Every scenario, the one to start with first.
pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "oversell",
        id: "F03",
        about: "a shop sells its last tickets while one of its clerks dozes off at the till",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: sale::oversell,
    },
    Scenario {
        name: "pause",
        id: "F03",
        about: "the holder is stopped past its lease, wakes up, writes and gives back",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: pause::pause,
    },
    Scenario {
        name: "wrong-owner",
        id: "F04",
        about: "one whose lease is over gives back; a third one asks while the second holds",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: pause::wrong_owner,
    },
    Scenario {
        name: "suspend",
        id: "F26",
        about: "the holder's machine sleeps past its lease; it looks at its lock, then writes",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: pause::suspend,
    },
    Scenario {
        name: "crash-between",
        id: "F01",
        about: "a client dies after its request took effect and before it heard the answer",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: crash::between,
    },
    Scenario {
        name: "killed",
        id: "F02",
        about: "the holder is killed; how long until the next one gets the lock?",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: crash::killed,
    },
    Scenario {
        name: "dropped",
        id: "F21",
        about: "a client drops its ask after the request took effect",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: crash::dropped,
    },
    Scenario {
        name: "dead-waiters",
        id: "F23",
        about: "three waiters are killed in the queue, with a living one behind them",
        needs: Needs::Nothing,
        lasts: Lasts::Queue,
        play: crash::dead_waiters,
    },
    Scenario {
        name: "answer-lost",
        id: "F13",
        about: "the answer to an ask is lost with its connection; the client asks again",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: net::answer_lost,
    },
    Scenario {
        name: "late-grant",
        id: "F12",
        about: "the answer to an ask comes when its lease is over and another one holds",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: net::late_grant,
    },
    Scenario {
        name: "answers-lost",
        id: "F11",
        about: "the holder's requests arrive and answers do not",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: net::answers_lost,
    },
    Scenario {
        name: "wakeup-lost",
        id: "F14",
        about: "the message that wakes a waiter is lost with its connection",
        needs: Needs::Nothing,
        lasts: Lasts::Look,
        play: net::wakeup_lost,
    },
    Scenario {
        name: "partition",
        id: "F10",
        about: "the holder is cut off from the server, but not from the data",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: net::partition,
    },
    Scenario {
        name: "packets-lost",
        id: "F10",
        about: "the same, with packets that are really lost, in a network of the lab's own",
        needs: Needs::Network,
        lasts: Lasts::Lock,
        play: net::packets_lost,
    },
    Scenario {
        name: "session-killed",
        id: "F15",
        about: "an operator takes the lock away from a holder who lives",
        needs: Needs::Nothing,
        lasts: Lasts::Long,
        play: server::session_killed,
    },
    Scenario {
        name: "failover",
        id: "F05",
        about: "the master dies, cut off from its replicas; Sentinel promotes one of them",
        needs: Needs::Sentinel,
        lasts: Lasts::Long,
        play: failover::cut,
    },
    Scenario {
        name: "failover-slow",
        id: "F05",
        about: "the same, with a link that is slow and not cut",
        needs: Needs::Sentinel,
        lasts: Lasts::Long,
        play: failover::slow,
    },
    Scenario {
        name: "failover-renewed",
        id: "F05",
        about: "the holder renews while the link to the replicas is cut; then the master dies",
        needs: Needs::Sentinel,
        lasts: Lasts::Seconds(6),
        play: failover::renewed,
    },
    Scenario {
        name: "amnesia",
        id: "F06",
        about: "the server restarts and has forgotten what it did not write down",
        needs: Needs::Amnesia,
        lasts: Lasts::Restart,
        play: server::amnesia,
    },
    Scenario {
        name: "clock-forward",
        id: "F07",
        about: "the server's clock jumps forward by an hour",
        needs: Needs::Clock,
        lasts: Lasts::Long,
        play: server::clock_forward,
    },
    Scenario {
        name: "clock-back",
        id: "F08",
        about: "the server's clock jumps back by an hour, and the holder dies",
        needs: Needs::Clock,
        lasts: Lasts::Lock,
        play: server::clock_back,
    },
    Scenario {
        name: "client-clocks",
        id: "F09",
        about: "the clock of one client is an hour ahead",
        needs: Needs::Nothing,
        lasts: Lasts::Long,
        play: server::client_clocks,
    },
    Scenario {
        name: "leader-lost",
        id: "F17",
        about: "the holder dies, and the leader of the servers with it",
        needs: Needs::Ensemble,
        lasts: Lasts::Lock,
        play: server::leader_lost,
    },
    Scenario {
        name: "eviction",
        id: "F20",
        about: "the server is full and throws away what ends soonest",
        needs: Needs::Own,
        lasts: Lasts::Long,
        play: server::eviction,
    },
    Scenario {
        name: "release-lost",
        id: "F27",
        about: "a release fails, and the network heals when the lease is over",
        needs: Needs::Nothing,
        lasts: Lasts::Lock,
        play: release::unheard,
    },
    Scenario {
        name: "repeat-last",
        id: "F31",
        about: "a request is repeated, and its first copy is carried out last",
        needs: Needs::Nothing,
        lasts: Lasts::Seconds(2),
        play: repeat::arrives_last,
    },
    Scenario {
        name: "blocked-row",
        id: "F28",
        about: "somebody's transaction locks the row of one lock; what of the holder's others?",
        needs: Needs::Nothing,
        lasts: Lasts::Seconds(4),
        play: neighbour::blocked_row,
    },
    Scenario {
        name: "frozen-shard",
        id: "F29",
        about: "one of the servers freezes; what of the locks on the others?",
        needs: Needs::Shards,
        lasts: Lasts::Seconds(4),
        play: neighbour::frozen_shard,
    },
    Scenario {
        name: "read-only",
        id: "F30",
        about: "the server turns read-only after a failover, and its name leads to another",
        needs: Needs::Own,
        lasts: Lasts::Look,
        play: demoted::read_only,
    },
    Scenario {
        name: "herd",
        id: "F22",
        about: "twelve waiters: what does one hand-over cost the server?",
        needs: Needs::Nothing,
        lasts: Lasts::Long,
        play: herd::herd,
    },
    Scenario {
        name: "names",
        id: "F25",
        about: "locks with names that are meant to confuse",
        needs: Needs::Nothing,
        lasts: Lasts::Long,
        play: names::names,
    },
];
