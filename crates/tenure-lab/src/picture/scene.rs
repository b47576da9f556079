//! What there is to draw, before any medium: lanes, bars, marks and bands on one axis of time.

use std::collections::{HashMap, HashSet};

use super::time::Time;
use crate::check::Report;
use crate::check::holds::{Hold, Holds};
use crate::check::resource::Tally;
use crate::history::{Event, History, Kind, Register, What};

/// Everything that is drawn.
pub(super) struct Scene<'a> {
    pub(super) time: Time,
    pub(super) clients: Vec<Client<'a>>,
    /// So many more clients are left out.
    pub(super) left_out: usize,
    pub(super) servers: Vec<Server<'a>>,
    pub(super) registers: Vec<Row>,
    pub(super) faults: Vec<Fault<'a>>,
    pub(super) bands: Vec<Band>,
    /// Whether bars have to say which key they hold.
    pub(super) many_keys: bool,
}

/// The lane of one client.
pub(super) struct Client<'a> {
    pub(super) name: &'a str,
    pub(super) waits: Vec<(u64, u64)>,
    pub(super) holds: Vec<Bar<'a>>,
    pub(super) marks: Vec<(u64, Mark)>,
    /// Stopped or cut off, from when to when.
    pub(super) out: Vec<(u64, u64)>,
}

/// One hold, as its client believed in it.
pub(super) struct Bar<'a> {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The part inside the deadlines.
    pub(super) sure: Vec<(u64, u64)>,
    pub(super) token: Option<u64>,
    pub(super) key: &'a str,
    pub(super) renewed: Vec<u64>,
}

/// What happened to a client at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    Refused,
    Unanswered,
    Lost,
    Ended,
}

/// What the server says of the lock.
pub(super) struct Server<'a> {
    pub(super) name: &'a str,
    /// Whose it is, from when to when, and when it would end by itself.
    pub(super) leases: Vec<(Option<&'a str>, u64, u64)>,
    pub(super) out: Vec<(u64, u64)>,
}

/// One register of the resource.
pub(super) struct Row {
    pub(super) register: Register,
    pub(super) works: Vec<Work>,
    pub(super) tally: Tally,
}

impl Row {
    fn new(register: Register, report: &Report) -> Row {
        Row { register, works: Vec::new(), tally: report.resource.of(register).clone() }
    }
}

/// One client's way through a register: it read, then wrote.
pub(super) struct Work {
    /// The client's place among those that are drawn.
    pub(super) client: Option<usize>,
    pub(super) read: Option<(u64, bool)>,
    pub(super) wrote: Option<(u64, Fate)>,
    pub(super) value: u64,
}

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    Accepted,
    Stale,
    Refused,
}

/// A fault, as the lab injected it.
pub(super) struct Fault<'a> {
    pub(super) id: &'a str,
    pub(super) text: &'a str,
    pub(super) from: u64,
    /// For one that lasts.
    pub(super) to: Option<u64>,
}

/// A stretch of time with more than one holder.
pub(super) struct Band {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Inside all deadlines.
    pub(super) certain: bool,
}

/// More lanes do not fit on a screen.
const CLIENTS: usize = 14;

impl<'a> Scene<'a> {
    pub(super) fn of(history: &'a History, report: &Report) -> Scene<'a> {
        let holds = Holds::of(history);
        let end = holds.end;
        let out = outages(history, end);
        let (names, left_out) = choose(history, &holds, report);
        let place: HashMap<&str, usize> =
            names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        let mut clients: Vec<_> = names.iter().map(|name| Client::new(name, &out)).collect();
        for hold in &holds.all {
            if let Some(&at) = place.get(hold.lane) {
                clients[at].take(hold, end);
            }
        }
        let first = history.events.iter().find(|event| is_drawn(&event.what));
        let mut keys = holds.all.iter().map(|hold| hold.key);
        let key = keys.next();
        let from = first.map_or(0, |event| event.at);
        let bands = bands(report);
        Scene {
            time: time(history, from, end, &bands),
            clients,
            left_out,
            servers: servers(history, &out, end),
            registers: registers(history, report, &holds, &place),
            faults: faults(history, end),
            bands,
            many_keys: keys.any(|other| Some(other) != key),
        }
    }
}

/// Folded only where two held at once: in other runs the waiting is the story.
fn time(history: &History, from: u64, to: u64, bands: &[Band]) -> Time {
    if bands.is_empty() {
        return Time::even(from, to);
    }
    let seen = |event: &&Event| is_drawn(&event.what) && !matches!(event.what, What::Seen { .. });
    let drawn = history.events.iter().filter(seen).map(|event| event.at);
    let edges = bands.iter().flat_map(|band| [band.from, band.to]);
    let mut moments: Vec<u64> = drawn.chain(edges).chain([from, to]).collect();
    moments.sort_unstable();
    let inside = |at| bands.iter().any(|band| band.from <= at && at < band.to);
    Time::folded(from, to, &moments, inside)
}

fn is_drawn(what: &What) -> bool {
    !matches!(what, What::Note { .. } | What::Measured { .. })
}

/// Which clients are drawn: all, or those that an overlap or a fault names, and then the first.
fn choose<'a>(history: &'a History, holds: &Holds<'a>, report: &Report) -> (Vec<&'a str>, usize) {
    let lanes = history.header.lanes.iter().filter(|lane| lane.kind == Kind::Client);
    let mut names: Vec<&str> = lanes.map(|lane| lane.name.as_str()).collect();
    for hold in &holds.all {
        if names.len() < 4 * CLIENTS && !names.contains(&hold.lane) {
            names.push(hold.lane);
        }
    }
    if names.len() <= CLIENTS {
        return (names, 0);
    }
    let overlaps = report.overlap.certain.first.iter().chain(&report.overlap.believed.first);
    let involved: Vec<u64> = overlaps.take(CLIENTS).flat_map(|band| band.holds.clone()).collect();
    let targets: Vec<&str> = history
        .events
        .iter()
        .filter_map(|event| match &event.what {
            What::Fault { target, .. } => Some(target.as_str()),
            _ => None,
        })
        .collect();
    let overlapping = holds.all.iter().filter(|hold| involved.contains(&hold.id));
    let of_interest: HashSet<&str> = overlapping.map(|hold| hold.lane).chain(targets).collect();
    let of_interest = |name: &&str| of_interest.contains(name);
    let all = names.clone();
    let mut chosen: Vec<&str> = names.iter().copied().filter(of_interest).take(CLIENTS).collect();
    names.retain(|name| !chosen.contains(name));
    chosen.extend(names.iter().take(CLIENTS - chosen.len()));
    // In the order of the header, whatever the reason to be drawn.
    let chosen: Vec<_> = all.iter().copied().filter(|name| chosen.contains(name)).collect();
    let left_out = all.len() - chosen.len();
    (chosen, left_out)
}

impl<'a> Client<'a> {
    fn new(name: &'a str, out: &HashMap<&str, Vec<(u64, u64)>>) -> Client<'a> {
        let out = out.get(name).cloned().unwrap_or_default();
        Client { name, waits: Vec::new(), holds: Vec::new(), marks: Vec::new(), out }
    }

    fn take(&mut self, hold: &Hold<'a>, end: u64) {
        self.waits.push((hold.asked, hold.answered().min(end)));
        let mark = |at: Option<u64>, mark| at.map(|at| (at, mark));
        self.marks.extend(mark(hold.refused, Mark::Refused));
        self.marks.extend(mark(hold.unanswered, Mark::Unanswered));
        self.marks.extend(mark(hold.lost, Mark::Lost));
        self.marks.extend(mark(hold.ended, Mark::Ended));
        let Some(granted) = hold.granted else { return };
        self.holds.push(Bar {
            from: granted,
            to: hold.belief_end().min(end),
            sure: hold.certain().map(|(from, to)| (from, to.min(end))).collect(),
            token: hold.token,
            key: hold.key,
            renewed: hold.renewed.clone(),
        });
    }
}

/// When each lane was under a fault that lasts.
fn outages(history: &History, end: u64) -> HashMap<&str, Vec<(u64, u64)>> {
    let mut out: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
    for event in &history.events {
        match &event.what {
            What::Fault { target, lasts: true, .. } => {
                out.entry(target).or_default().push((event.at, end));
            }
            What::Healed { target, .. } => {
                let spans = out.entry(target).or_default();
                if let Some(span) = spans.iter_mut().rev().find(|span| span.1 == end) {
                    span.1 = event.at;
                }
            }
            _ => {}
        }
    }
    out
}

fn faults(history: &History, end: u64) -> Vec<Fault<'_>> {
    let mut open: Vec<(&str, usize)> = Vec::new();
    let mut faults: Vec<Fault<'_>> = Vec::new();
    for event in &history.events {
        match &event.what {
            What::Fault { id, text, target, lasts } => {
                if *lasts {
                    open.push((target, faults.len()));
                }
                let to = lasts.then_some(end);
                faults.push(Fault { id, text, from: event.at, to });
            }
            What::Healed { target, .. } => {
                if let Some(at) = open.iter().rposition(|(name, _)| name == target) {
                    faults[open.remove(at).1].to = Some(event.at);
                }
            }
            _ => {}
        }
    }
    faults
}

fn servers<'a>(
    history: &'a History,
    out: &HashMap<&str, Vec<(u64, u64)>>,
    end: u64,
) -> Vec<Server<'a>> {
    let lanes = history.header.lanes.iter().filter(|lane| lane.kind == Kind::Server);
    let mut servers: Vec<_> = lanes
        .map(|lane| Server {
            name: &lane.name,
            leases: Vec::new(),
            out: out.get(lane.name.as_str()).cloned().unwrap_or_default(),
        })
        .collect();
    for event in &history.events {
        let What::Seen { holder, until } = &event.what else { continue };
        let Some(server) = servers.iter_mut().find(|server| server.name == event.lane) else {
            continue;
        };
        let held = holder.is_some() || until.is_some();
        let holder = holder.as_deref().filter(|name| !name.is_empty());
        let last = server.leases.last_mut();
        if let Some(last) = last {
            last.2 = last.2.min(event.at);
            // The same holder again: the lease goes on.
            let goes_on = held && until.is_none_or(|to| to > event.at);
            if last.0 == holder && last.2 == event.at && goes_on {
                last.2 = until.unwrap_or(end).min(end);
                continue;
            }
        }
        if held {
            server.leases.push((holder, event.at, until.unwrap_or(end).min(end)));
        }
    }
    // A lane of which nothing is known says nothing.
    servers.retain(|server| !server.leases.is_empty() || !server.out.is_empty());
    servers
}

fn registers(
    history: &History,
    report: &Report,
    holds: &Holds<'_>,
    place: &HashMap<&str, usize>,
) -> Vec<Row> {
    let lanes: HashMap<u64, &str> = holds.all.iter().map(|hold| (hold.id, hold.lane)).collect();
    let order = [Register::Plain, Register::Write, Register::ReadWrite];
    let mut rows: Vec<_> = order.map(|register| Row::new(register, report)).into_iter().collect();
    let mut open: HashMap<(u64, Register), usize> = HashMap::new();
    for event in &history.events {
        match event.what {
            What::Read { hold, register, value, refused, .. } => {
                let works = &mut rows[register as usize].works;
                open.insert((hold, register), works.len());
                let client = lanes.get(&hold).and_then(|lane| place.get(lane)).copied();
                let read = Some((event.at, refused));
                works.push(Work { client, read, wrote: None, value });
            }
            What::Wrote { hold, register, value, refused, stale, .. } => {
                let works = &mut rows[register as usize].works;
                let fate = match (refused, stale) {
                    (true, _) => Fate::Refused,
                    (_, true) => Fate::Stale,
                    _ => Fate::Accepted,
                };
                let wrote = Some((event.at, fate));
                if let Some(at) = open.remove(&(hold, register)) {
                    works[at].wrote = wrote;
                    works[at].value = value;
                } else {
                    let client = lanes.get(&hold).and_then(|lane| place.get(lane)).copied();
                    works.push(Work { client, read: None, wrote, value });
                }
            }
            _ => {}
        }
    }
    rows.retain(|row| !row.works.is_empty());
    rows
}

/// Certain overlaps, and the rest of the believed ones where the run shows that they did harm.
fn bands(report: &Report) -> Vec<Band> {
    let certain = &report.overlap.certain.first;
    let band = |certain| {
        move |stretch: &crate::check::overlap::Stretch| Band {
            from: stretch.from,
            to: stretch.to,
            certain,
        }
    };
    let covered = |stretch: &&crate::check::overlap::Stretch| {
        !certain.iter().any(|inner| inner.from <= stretch.from && stretch.to <= inner.to)
    };
    let late = report.overlap.believed.first.iter().filter(covered).map(band(false));
    late.chain(certain.iter().map(band(true))).take(200).collect()
}
