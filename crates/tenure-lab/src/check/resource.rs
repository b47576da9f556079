//! What the three registers went through, in the order that the resource itself gave: no clock is
//! involved.

use std::collections::HashMap;

use serde::Serialize;

use crate::history::{History, Register, What};

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

/// One register.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were accepted: each one an update that its client believes in.
    pub accepted: u64,
    /// Reads and writes that the fence refused.
    pub refused: u64,
    /// Accepted writes that rest on a read from before another client's write.
    pub stale: u64,
    /// Accepted updates that are not in the final value.
    pub lost: u64,
    /// Accepted writes whose token is lower than one that was accepted before.
    pub backwards: u64,
    /// What stood there first.
    pub initial: Option<u64>,
    /// What stands there at the end.
    pub value: Option<u64>,
}

impl Resource {
    /// One of them.
    pub fn of(&self, register: Register) -> &Tally {
        match register {
            Register::Plain => &self.plain,
            Register::Write => &self.write,
            Register::ReadWrite => &self.read_write,
        }
    }
}

struct Effect {
    seq: u64,
    hold: u64,
    value: u64,
    token: Option<u64>,
    refused: bool,
    writes: bool,
}

/// Plays the effects of each register again.
pub fn check(history: &History) -> Resource {
    let mut registers: HashMap<Register, Vec<Effect>> = HashMap::new();
    for event in &history.events {
        let (register, effect) = match event.what {
            What::Read { hold, register, seq, value, token, refused } => {
                (register, Effect { seq, hold, value, token, refused, writes: false })
            }
            What::Wrote { hold, register, seq, value, token, refused, .. } => {
                (register, Effect { seq, hold, value, token, refused, writes: true })
            }
            _ => continue,
        };
        registers.entry(register).or_default().push(effect);
    }
    let mut tally = |register| play(registers.remove(&register).unwrap_or_default());
    Resource {
        plain: tally(Register::Plain),
        write: tally(Register::Write),
        read_write: tally(Register::ReadWrite),
    }
}

fn play(mut effects: Vec<Effect>) -> Tally {
    effects.sort_by_key(|effect| effect.seq);
    let mut tally = Tally::default();
    // For each attempt: how many updates of others it had seen when it read.
    let mut based_on: HashMap<u64, u64> = HashMap::new();
    let mut highest = None;
    for effect in effects {
        if effect.refused {
            tally.refused += 1;
            continue;
        }
        if !effect.writes {
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
        // Its own update is no stranger's: it may write again.
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
