//! The attempts of a history, each with all of its events: the input of every checker.

use std::collections::{BTreeSet, HashMap};

use crate::history::{Event, EventKind, History};

/// All attempts of a run.
#[derive(Clone, Debug)]
pub struct Holds<'a> {
    /// In the order of their requests.
    pub all: Vec<Hold<'a>>,
    /// Time of the last event.
    pub end: u64,
    /// The longest lease that a client was granted; none if no grant has a deadline.
    pub lease: Option<u64>,
}

/// One attempt to acquire the lock, and what became of it.
#[derive(Clone, Debug)]
pub struct Hold<'a> {
    /// Number of the attempt.
    pub id: u64,
    /// Name of the client.
    pub lane: &'a str,
    /// Key of the lock.
    pub key: &'a str,
    /// When it was requested.
    pub requested: u64,
    /// When it was granted.
    pub granted: Option<u64>,
    /// The fencing token.
    pub token: Option<u64>,
    /// When it was refused.
    pub refused: Option<u64>,
    /// When the client gave up, without a response.
    pub unanswered: Option<u64>,
    /// The spans inside the client's own deadlines: more than one if a renewal came after a
    /// deadline. `u64::MAX` stands for no deadline.
    pub inside: Vec<(u64, u64)>,
    /// When it was renewed.
    pub renewed: Vec<u64>,
    /// When the client learned that it no longer holds.
    pub lost: Option<u64>,
    /// When the client began to release.
    pub releasing: Option<u64>,
    /// When the release ended, and whether the client still held the lock.
    pub released: Option<(u64, Option<bool>)>,
    /// When the client's process ended, if that was during the attempt.
    pub ended: Option<u64>,
}

impl<'a> Hold<'a> {
    fn new(id: u64, lane: &'a str, key: &'a str, requested: u64) -> Hold<'a> {
        Hold {
            id,
            lane,
            key,
            requested,
            granted: None,
            token: None,
            refused: None,
            unanswered: None,
            inside: Vec::new(),
            renewed: Vec::new(),
            lost: None,
            releasing: None,
            released: None,
            ended: None,
        }
    }

    /// When the client stopped acting as the holder, whatever its deadline was; `u64::MAX` if
    /// never.
    pub fn belief_end(&self) -> u64 {
        let released = self.released.map(|(at, _)| at);
        let ends = [self.releasing, released, self.lost, self.ended];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// The spans in which the client certainly held: granted, before its deadline, before its
    /// release, and alive.
    pub fn certain(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = self.belief_end();
        let cut = move |&(from, to): &(u64, u64)| (from, to.min(end));
        self.inside.iter().map(cut).filter(|(from, to)| from < to)
    }

    /// When the last certain span ends; from then on another client may hold.
    pub fn certain_end(&self) -> Option<u64> {
        self.granted.map(|granted| self.certain().last().map_or(granted, |(_, to)| to))
    }

    /// The last deadline of the client; none if it has none.
    pub fn deadline(&self) -> Option<u64> {
        self.inside.last().map(|&(_, to)| to).filter(|&to| to != u64::MAX)
    }

    /// When the wait for the outcome ended; `u64::MAX` if it never did.
    pub fn decided(&self) -> u64 {
        let ends = [self.granted, self.refused, self.unanswered, self.ended, self.releasing];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    fn extend(&mut self, at: u64, deadline: Option<u64>) {
        let to = deadline.unwrap_or(u64::MAX);
        match self.inside.last_mut() {
            Some(last) if at <= last.1 => last.1 = last.1.max(to),
            _ => self.inside.push((at, to)),
        }
    }

    fn is_over(&self) -> bool {
        let granted_over = self.released.is_some() || self.lost.is_some();
        granted_over || self.refused.is_some() || self.ended.is_some()
    }
}

impl<'a> Holds<'a> {
    /// Groups the events by attempt. An attempt without a request counts as requested at its first
    /// event, so that a history whose beginning is missing can still be judged.
    pub fn of(history: &'a History) -> Holds<'a> {
        let mut holds = Holds { all: Vec::new(), end: 0, lease: None };
        let mut index: HashMap<u64, usize> = HashMap::new();
        let mut open: HashMap<&str, BTreeSet<usize>> = HashMap::new();
        for event in &history.events {
            holds.end = holds.end.max(event.at);
            if let EventKind::Ended { .. } = event.kind {
                for at in open.remove(event.lane.as_str()).unwrap_or_default() {
                    let hold = &mut holds.all[at];
                    hold.ended = Some(event.at).filter(|_| !hold.is_over());
                }
            }
            let Some(id) = id(event) else { continue };
            let number = *index.entry(id).or_insert_with(|| {
                let key = if let EventKind::Asked { key, .. } = &event.kind { key } else { "" };
                holds.all.push(Hold::new(id, &event.lane, key, event.at));
                open.entry(&event.lane).or_default().insert(holds.all.len() - 1);
                holds.all.len() - 1
            });
            let lease = holds.all[number].apply(event);
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
    /// Applies one event. Returns the length of the lease, if the event has one.
    fn apply(&mut self, event: &Event) -> Option<u64> {
        let at = event.at;
        let first = |slot: &mut Option<u64>| *slot = slot.or(Some(at));
        match &event.kind {
            EventKind::Granted { token, deadline, .. } => {
                first(&mut self.granted);
                self.token = self.token.or(*token);
                self.extend(at, *deadline);
                return deadline.map(|deadline| deadline.saturating_sub(at));
            }
            EventKind::Renewed { deadline, .. } => {
                self.renewed.push(at);
                self.extend(at, *deadline);
                return deadline.map(|deadline| deadline.saturating_sub(at));
            }
            EventKind::Refused { .. } => first(&mut self.refused),
            EventKind::Unanswered { .. } => first(&mut self.unanswered),
            EventKind::Lost { .. } => first(&mut self.lost),
            EventKind::Releasing { .. } => first(&mut self.releasing),
            EventKind::Released { own, .. } => self.released = self.released.or(Some((at, *own))),
            _ => {}
        }
        None
    }
}

/// The attempt that an event belongs to.
pub fn id(event: &Event) -> Option<u64> {
    match event.kind {
        EventKind::Asked { hold, .. }
        | EventKind::Granted { hold, .. }
        | EventKind::Refused { hold, .. }
        | EventKind::Unanswered { hold, .. }
        | EventKind::Renewed { hold, .. }
        | EventKind::Lost { hold, .. }
        | EventKind::Releasing { hold }
        | EventKind::Released { hold, .. } => Some(hold),
        _ => None,
    }
}
