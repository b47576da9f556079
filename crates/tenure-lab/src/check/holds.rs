//! The attempts of a history, each with all its events together: what every checker starts from.

use std::collections::{BTreeSet, HashMap};

use crate::history::{Event, History, What};

/// All attempts of a run.
#[derive(Clone, Debug)]
pub struct Holds<'a> {
    /// In the order of asking.
    pub all: Vec<Hold<'a>>,
    /// The last time that anything happened.
    pub end: u64,
    /// The longest lease that a client was given; none if no client knows a deadline.
    pub lease: Option<u64>,
}

/// One attempt to take the lock, and what became of it.
#[derive(Clone, Debug)]
pub struct Hold<'a> {
    /// Its number.
    pub id: u64,
    /// The client.
    pub lane: &'a str,
    /// The lock's key.
    pub key: &'a str,
    /// When it was asked for.
    pub asked: u64,
    /// When it was given.
    pub granted: Option<u64>,
    /// The fencing token.
    pub token: Option<u64>,
    /// When it was surely not given.
    pub refused: Option<u64>,
    /// When the client gave up on an answer.
    pub unanswered: Option<u64>,
    /// From when to when the client was sure to hold by its own deadline: more than one stretch if
    /// a renewal came after a deadline. `u64::MAX` stands for no deadline.
    pub sure: Vec<(u64, u64)>,
    /// When it was renewed.
    pub renewed: Vec<u64>,
    /// When the client learnt that it no longer holds.
    pub lost: Option<u64>,
    /// When the client began to give back.
    pub releasing: Option<u64>,
    /// When that was answered, and whether it was still its own.
    pub released: Option<(u64, Option<bool>)>,
    /// When the client's process ended, if that was during the attempt.
    pub ended: Option<u64>,
}

impl<'a> Hold<'a> {
    fn new(id: u64, lane: &'a str, key: &'a str, asked: u64) -> Hold<'a> {
        Hold {
            id,
            lane,
            key,
            asked,
            granted: None,
            token: None,
            refused: None,
            unanswered: None,
            sure: Vec::new(),
            renewed: Vec::new(),
            lost: None,
            releasing: None,
            released: None,
            ended: None,
        }
    }

    /// When the client stopped to act as a holder, whatever its deadline said; `u64::MAX` if never.
    pub fn belief_end(&self) -> u64 {
        let released = self.released.map(|(at, _)| at);
        let ends = [self.releasing, released, self.lost, self.ended];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// The stretches in which the client was certainly inside: given, before its deadline, not yet
    /// giving back, and alive.
    pub fn certain(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = self.belief_end();
        let cut = move |&(from, to): &(u64, u64)| (from, to.min(end));
        self.sure.iter().map(cut).filter(|(from, to)| from < to)
    }

    /// When the last certain stretch ends: from then on nobody may count on this hold.
    pub fn certain_end(&self) -> Option<u64> {
        self.granted.map(|granted| self.certain().last().map_or(granted, |(_, to)| to))
    }

    /// The last deadline that the client knew of; none if it knows none.
    pub fn deadline(&self) -> Option<u64> {
        self.sure.last().map(|&(_, to)| to).filter(|&to| to != u64::MAX)
    }

    /// When waiting for the answer ended; `u64::MAX` if it never did.
    pub fn answered(&self) -> u64 {
        let ends = [self.granted, self.refused, self.unanswered, self.ended, self.releasing];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    fn extend(&mut self, at: u64, deadline: Option<u64>) {
        let to = deadline.unwrap_or(u64::MAX);
        match self.sure.last_mut() {
            Some(last) if at <= last.1 => last.1 = last.1.max(to),
            _ => self.sure.push((at, to)),
        }
    }

    fn is_over(&self) -> bool {
        let granted_over = self.released.is_some() || self.lost.is_some();
        granted_over || self.refused.is_some() || self.ended.is_some()
    }
}

impl<'a> Holds<'a> {
    /// Puts the events of each attempt together. Events of attempts that nobody asked for count as
    /// asked for at that moment: a history that was cut can still be judged.
    pub fn of(history: &'a History) -> Holds<'a> {
        let mut holds = Holds { all: Vec::new(), end: 0, lease: None };
        let mut index: HashMap<u64, usize> = HashMap::new();
        let mut open: HashMap<&str, BTreeSet<usize>> = HashMap::new();
        for event in &history.events {
            holds.end = holds.end.max(event.at);
            if let What::Ended { .. } = event.what {
                for at in open.remove(event.lane.as_str()).unwrap_or_default() {
                    let hold = &mut holds.all[at];
                    hold.ended = Some(event.at).filter(|_| !hold.is_over());
                }
            }
            let Some(id) = id(event) else { continue };
            let number = *index.entry(id).or_insert_with(|| {
                let key = if let What::Asked { key, .. } = &event.what { key } else { "" };
                holds.all.push(Hold::new(id, &event.lane, key, event.at));
                open.entry(&event.lane).or_default().insert(holds.all.len() - 1);
                holds.all.len() - 1
            });
            let lease = holds.all[number].take(event);
            holds.lease = holds.lease.max(lease);
            if holds.all[number].is_over() {
                open.entry(&event.lane).or_default().remove(&number);
            }
        }
        holds
    }

    /// The attempts that were granted.
    pub fn granted(&self) -> impl Iterator<Item = &Hold<'a>> {
        self.all.iter().filter(|hold| hold.granted.is_some())
    }

    /// The attempts of each key, keys in the order of first use.
    pub fn by_key(&self) -> Vec<(&'a str, Vec<&Hold<'a>>)> {
        let mut keys: Vec<(&str, Vec<&Hold<'_>>)> = Vec::new();
        let mut index: HashMap<&str, usize> = HashMap::new();
        for hold in &self.all {
            let at = *index.entry(hold.key).or_insert(keys.len());
            if at == keys.len() {
                keys.push((hold.key, Vec::new()));
            }
            keys[at].1.push(hold);
        }
        keys
    }
}

impl Hold<'_> {
    /// Takes in one event, and gives the length of the lease if it brought one.
    fn take(&mut self, event: &Event) -> Option<u64> {
        let at = event.at;
        let first = |slot: &mut Option<u64>| *slot = slot.or(Some(at));
        match &event.what {
            What::Granted { token, deadline, .. } => {
                first(&mut self.granted);
                self.token = self.token.or(*token);
                self.extend(at, *deadline);
                return deadline.map(|deadline| deadline.saturating_sub(at));
            }
            What::Renewed { deadline, .. } => {
                self.renewed.push(at);
                self.extend(at, *deadline);
                return deadline.map(|deadline| deadline.saturating_sub(at));
            }
            What::Refused { .. } => first(&mut self.refused),
            What::Unanswered { .. } => first(&mut self.unanswered),
            What::Lost { .. } => first(&mut self.lost),
            What::Releasing { .. } => first(&mut self.releasing),
            What::Released { own, .. } => self.released = self.released.or(Some((at, *own))),
            _ => {}
        }
        None
    }
}

/// The attempt that an event belongs to.
pub fn id(event: &Event) -> Option<u64> {
    match event.what {
        What::Asked { hold, .. }
        | What::Granted { hold, .. }
        | What::Refused { hold, .. }
        | What::Unanswered { hold, .. }
        | What::Renewed { hold, .. }
        | What::Lost { hold, .. }
        | What::Releasing { hold }
        | What::Released { hold, .. } => Some(hold),
        _ => None,
    }
}
