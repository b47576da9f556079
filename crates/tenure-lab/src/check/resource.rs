//! Updates that the three registers lost, by the order that the resource itself gave: no clock is
//! involved.

use std::collections::HashMap;

use serde::Serialize;

use crate::history::{EventKind, History, Register};

/// The three registers side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Resource {
    /// Without a fence.
    pub plain: Tally,
    /// With a fence on writing.
    pub write: Tally,
    /// With a fence on reading and writing.
    pub read_write: Tally,
}

/// The reads and writes of one register.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Number of reads that were accepted.
    pub reads: u64,
    /// Number of writes that were accepted, each an update for its client.
    pub accepted: u64,
    /// Number of reads and writes that the fence refused.
    pub refused: u64,
    /// Number of accepted writes that are based on a read from before another client's write.
    pub stale: u64,
    /// Number of accepted updates that are not in the final value.
    pub lost: u64,
    /// Number of accepted writes whose token is lower than one that was accepted before.
    pub backwards: u64,
    /// The first value.
    pub initial: Option<u64>,
    /// The final value.
    pub value: Option<u64>,
}

impl Resource {
    /// The tally of a register.
    pub fn of(&self, register: Register) -> &Tally {
        match register {
            Register::Plain => &self.plain,
            Register::Write => &self.write,
            Register::ReadWrite => &self.read_write,
        }
    }
}

struct RegisterEffect {
    seq: u64,
    hold: u64,
    value: u64,
    token: Option<u64>,
    refused: bool,
    is_write: bool,
}

/// Counts the effects on each register.
pub fn check(history: &History) -> Resource {
    let mut registers: HashMap<Register, Vec<RegisterEffect>> = HashMap::new();
    for event in &history.events {
        let (register, effect) = match event.kind {
            EventKind::Read { hold, register, seq, value, token, refused } => {
                (register, RegisterEffect { seq, hold, value, token, refused, is_write: false })
            }
            EventKind::Wrote { hold, register, seq, value, token, refused, .. } => {
                (register, RegisterEffect { seq, hold, value, token, refused, is_write: true })
            }
            _ => continue,
        };
        registers.entry(register).or_default().push(effect);
    }
    let mut tally = |register| count(registers.remove(&register).unwrap_or_default());
    Resource {
        plain: tally(Register::Plain),
        write: tally(Register::Write),
        read_write: tally(Register::ReadWrite),
    }
}

fn count(mut effects: Vec<RegisterEffect>) -> Tally {
    effects.sort_by_key(|effect| effect.seq);
    let mut tally = Tally::default();
    // For each attempt: how many updates it had seen when it read.
    let mut based_on: HashMap<u64, u64> = HashMap::new();
    let mut highest = None;
    for effect in effects {
        if effect.refused {
            tally.refused += 1;
            continue;
        }
        if !effect.is_write {
            tally.reads += 1;
            tally.initial = tally.initial.or(Some(effect.value));
            based_on.insert(effect.hold, tally.accepted);
            continue;
        }
        tally.initial = tally.initial.or(Some(effect.value.saturating_sub(1)));
        let seen = based_on.get(&effect.hold).copied().unwrap_or(tally.accepted);
        tally.stale += u64::from(seen < tally.accepted);
        tally.backwards += u64::from(effect.token.is_some() && effect.token < highest);
        highest = highest.max(effect.token);
        tally.accepted += 1;
        // An attempt has seen its own update, so that it may write again.
        based_on.insert(effect.hold, tally.accepted);
        tally.value = Some(effect.value);
    }
    let progress = match (tally.initial, tally.value) {
        (Some(initial), Some(value)) => value.abs_diff(initial),
        _ => tally.accepted,
    };
    tally.lost = tally.accepted.saturating_sub(progress);
    tally
}
