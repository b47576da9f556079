//! What there is to draw, in any medium: lanes, bars, marks and bands on one axis of time.

use std::collections::{HashMap, HashSet};

use super::axis::TimeAxis;
use crate::check::Report;
use crate::check::hold::{Hold, Holds};
use crate::check::overlap::OverlapSpan;
use crate::check::resource::Tally;
use crate::history::{Event, EventKind, History, LaneKind, Register};

/// The most clients that are drawn; more lanes do not fit on a screen.
const MAX_CLIENTS: usize = 14;
/// The most overlaps that are drawn.
const MAX_BANDS: usize = 200;

/// Everything that is drawn of a run.
pub(super) struct Timeline<'a> {
    pub(super) axis: TimeAxis,
    pub(super) clients: Vec<ClientLane<'a>>,
    /// Number of clients that are left out.
    pub(super) left_out: usize,
    pub(super) servers: Vec<ServerLane<'a>>,
    pub(super) registers: Vec<RegisterLane>,
    pub(super) faults: Vec<FaultSpan<'a>>,
    pub(super) bands: Vec<OverlapBand>,
    /// Whether bars have to say which key they hold.
    pub(super) many_keys: bool,
}

/// The lane of one client.
pub(super) struct ClientLane<'a> {
    pub(super) name: &'a str,
    pub(super) waits: Vec<(u64, u64)>,
    pub(super) holds: Vec<HoldBar<'a>>,
    pub(super) marks: Vec<(u64, Mark)>,
    /// The spans in which it was stopped or cut off.
    pub(super) outages: Vec<(u64, u64)>,
}

/// One hold, for as long as the client acted as the holder.
pub(super) struct HoldBar<'a> {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The spans inside the deadlines.
    pub(super) inside: Vec<(u64, u64)>,
    pub(super) token: Option<u64>,
    pub(super) key: &'a str,
    pub(super) renewed: Vec<u64>,
}

/// Something that happened to a client at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    Refused,
    NoResponse,
    Lost,
    Ended,
}

/// The lane of a server: the leases that it showed.
pub(super) struct ServerLane<'a> {
    pub(super) name: &'a str,
    /// Each lease: the holder, the begin and the end.
    pub(super) leases: Vec<(Option<&'a str>, u64, u64)>,
    pub(super) outages: Vec<(u64, u64)>,
}

/// The lane of one register.
pub(super) struct RegisterLane {
    pub(super) register: Register,
    pub(super) updates: Vec<Update>,
    pub(super) tally: Tally,
}

impl RegisterLane {
    fn new(register: Register, report: &Report) -> RegisterLane {
        RegisterLane { register, updates: Vec::new(), tally: report.resource.of(register).clone() }
    }
}

/// One client's update of a register: it read, then wrote.
pub(super) struct Update {
    /// Index of the client among those that are drawn.
    pub(super) client: Option<usize>,
    /// When it read, and whether the fence refused that.
    pub(super) read: Option<(u64, bool)>,
    pub(super) wrote: Option<(u64, WriteOutcome)>,
    pub(super) value: u64,
}

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum WriteOutcome {
    Accepted,
    Stale,
    Refused,
}

/// A fault.
pub(super) struct FaultSpan<'a> {
    pub(super) text: &'a str,
    pub(super) from: u64,
    /// Its end, if it lasts.
    pub(super) to: Option<u64>,
}

/// A span of time with more than one holder.
pub(super) struct OverlapBand {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Whether all of them were inside their deadlines.
    pub(super) certain: bool,
}

impl<'a> Timeline<'a> {
    pub(super) fn of(history: &'a History, report: &Report) -> Timeline<'a> {
        let holds = Holds::of(history);
        let end = holds.end;
        let outages = history.outages(end, false);
        let (names, left_out) = choose(history, &holds, report);
        let index: HashMap<&str, usize> =
            names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        let mut clients: Vec<_> =
            names.iter().map(|name| ClientLane::new(name, &outages)).collect();
        for hold in &holds.all {
            if let Some(&at) = index.get(hold.lane) {
                clients[at].add(hold, end);
            }
        }
        let first = history.events.iter().find(|event| is_drawn(&event.kind));
        let mut keys = holds.all.iter().map(|hold| hold.key);
        let key = keys.next();
        let from = first.map_or(0, |event| event.at);
        let bands = bands(report);
        Timeline {
            axis: axis(history, from, end, &bands),
            clients,
            left_out,
            servers: servers(history, &outages, end),
            registers: registers(history, report, &holds, &index),
            faults: faults(history, end),
            bands,
            many_keys: keys.any(|other| Some(other) != key),
        }
    }
}

/// The axis is folded only where two clients held at once; in other runs the waits matter.
fn axis(history: &History, from: u64, to: u64, bands: &[OverlapBand]) -> TimeAxis {
    if bands.is_empty() {
        return TimeAxis::unfolded(from, to);
    }
    let seen =
        |event: &&Event| is_drawn(&event.kind) && !matches!(event.kind, EventKind::Seen { .. });
    let drawn = history.events.iter().filter(seen).map(|event| event.at);
    let edges = bands.iter().flat_map(|band| [band.from, band.to]);
    let mut moments: Vec<u64> = drawn.chain(edges).chain([from, to]).collect();
    moments.sort_unstable();
    let inside = |at| bands.iter().any(|band| band.from <= at && at < band.to);
    TimeAxis::folded(from, to, &moments, inside)
}

fn is_drawn(kind: &EventKind) -> bool {
    !matches!(kind, EventKind::Note { .. } | EventKind::Measured { .. })
}

/// The clients that are drawn, and the number of those that are left out: all, or those of an
/// overlap or a fault, and then the first ones.
fn choose<'a>(history: &'a History, holds: &Holds<'a>, report: &Report) -> (Vec<&'a str>, usize) {
    let lanes = history.header.lanes.iter().filter(|lane| lane.kind == LaneKind::Client);
    let mut names: Vec<&str> = lanes.map(|lane| lane.name.as_str()).collect();
    for hold in &holds.all {
        if names.len() < 4 * MAX_CLIENTS && !names.contains(&hold.lane) {
            names.push(hold.lane);
        }
    }
    if names.len() <= MAX_CLIENTS {
        return (names, 0);
    }
    let overlaps = report.overlap.certain.first.iter().chain(&report.overlap.believed.first);
    let involved: Vec<u64> =
        overlaps.take(MAX_CLIENTS).flat_map(|band| band.holds.clone()).collect();
    let targets: Vec<&str> = history
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Fault { target, .. } => Some(target.as_str()),
            _ => None,
        })
        .collect();
    let overlapping = holds.all.iter().filter(|hold| involved.contains(&hold.id));
    let of_interest: HashSet<&str> = overlapping.map(|hold| hold.lane).chain(targets).collect();
    let of_interest = |name: &&str| of_interest.contains(name);
    let all = names.clone();
    let mut chosen: Vec<&str> =
        names.iter().copied().filter(of_interest).take(MAX_CLIENTS).collect();
    names.retain(|name| !chosen.contains(name));
    chosen.extend(names.iter().take(MAX_CLIENTS - chosen.len()));
    // In the order of the header.
    let chosen: Vec<_> = all.iter().copied().filter(|name| chosen.contains(name)).collect();
    let left_out = all.len() - chosen.len();
    (chosen, left_out)
}

impl<'a> ClientLane<'a> {
    fn new(name: &'a str, outages: &HashMap<&str, Vec<(u64, u64)>>) -> ClientLane<'a> {
        let outages = outages.get(name).cloned().unwrap_or_default();
        ClientLane { name, waits: Vec::new(), holds: Vec::new(), marks: Vec::new(), outages }
    }

    fn add(&mut self, hold: &Hold<'a>, end: u64) {
        self.waits.push((hold.requested, hold.decided().min(end)));
        let mark = |at: Option<u64>, mark| at.map(|at| (at, mark));
        self.marks.extend(mark(hold.refused, Mark::Refused));
        self.marks.extend(mark(hold.unanswered, Mark::NoResponse));
        self.marks.extend(mark(hold.lost, Mark::Lost));
        self.marks.extend(mark(hold.ended, Mark::Ended));
        let Some(granted) = hold.granted else { return };
        self.holds.push(HoldBar {
            from: granted,
            to: hold.belief_end().min(end),
            inside: hold.certain().map(|(from, to)| (from, to.min(end))).collect(),
            token: hold.token,
            key: hold.key,
            renewed: hold.renewed.clone(),
        });
    }
}

fn faults(history: &History, end: u64) -> Vec<FaultSpan<'_>> {
    let mut open: Vec<(&str, usize)> = Vec::new();
    let mut faults: Vec<FaultSpan<'_>> = Vec::new();
    for event in &history.events {
        match &event.kind {
            EventKind::Fault { id: _, text, target, lasts } => {
                if *lasts {
                    open.push((target, faults.len()));
                }
                let to = lasts.then_some(end);
                faults.push(FaultSpan { text, from: event.at, to });
            }
            EventKind::Healed { target, .. } => {
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
    outages: &HashMap<&str, Vec<(u64, u64)>>,
    end: u64,
) -> Vec<ServerLane<'a>> {
    let lanes = history.header.lanes.iter().filter(|lane| lane.kind == LaneKind::Server);
    let mut servers: Vec<_> = lanes
        .map(|lane| ServerLane {
            name: &lane.name,
            leases: Vec::new(),
            outages: outages.get(lane.name.as_str()).cloned().unwrap_or_default(),
        })
        .collect();
    for event in &history.events {
        let EventKind::Seen { holder, until } = &event.kind else { continue };
        let Some(server) = servers.iter_mut().find(|server| server.name == event.lane) else {
            continue;
        };
        let held = holder.is_some() || until.is_some();
        let holder = holder.as_deref().filter(|name| !name.is_empty());
        let last = server.leases.last_mut();
        if let Some(last) = last {
            last.2 = last.2.min(event.at);
            // The same holder as before: its lease goes on.
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
    // A lane without content is left out.
    servers.retain(|server| !server.leases.is_empty() || !server.outages.is_empty());
    servers
}

fn registers(
    history: &History,
    report: &Report,
    holds: &Holds<'_>,
    index: &HashMap<&str, usize>,
) -> Vec<RegisterLane> {
    let lanes: HashMap<u64, &str> = holds.all.iter().map(|hold| (hold.id, hold.lane)).collect();
    let mut rows: Vec<_> =
        Register::ALL.map(|register| RegisterLane::new(register, report)).into_iter().collect();
    let mut open: HashMap<(u64, Register), usize> = HashMap::new();
    for event in &history.events {
        match event.kind {
            EventKind::Read { hold, register, value, refused, .. } => {
                let updates = &mut rows[register as usize].updates;
                open.insert((hold, register), updates.len());
                let client = lanes.get(&hold).and_then(|lane| index.get(lane)).copied();
                let read = Some((event.at, refused));
                updates.push(Update { client, read, wrote: None, value });
            }
            EventKind::Wrote { hold, register, value, refused, stale, .. } => {
                let updates = &mut rows[register as usize].updates;
                let outcome = match (refused, stale) {
                    (true, _) => WriteOutcome::Refused,
                    (_, true) => WriteOutcome::Stale,
                    _ => WriteOutcome::Accepted,
                };
                let wrote = Some((event.at, outcome));
                if let Some(at) = open.remove(&(hold, register)) {
                    updates[at].wrote = wrote;
                    updates[at].value = value;
                } else {
                    let client = lanes.get(&hold).and_then(|lane| index.get(lane)).copied();
                    updates.push(Update { client, read: None, wrote, value });
                }
            }
            _ => {}
        }
    }
    rows.retain(|row| !row.updates.is_empty());
    rows
}

/// The certain overlaps, and those believed ones that are not within a certain one.
fn bands(report: &Report) -> Vec<OverlapBand> {
    let certain = &report.overlap.certain.first;
    let band =
        |certain| move |span: &OverlapSpan| OverlapBand { from: span.from, to: span.to, certain };
    let covered = |span: &&OverlapSpan| {
        !certain.iter().any(|inner| inner.from <= span.from && span.to <= inner.to)
    };
    let late = report.overlap.believed.first.iter().filter(covered).map(band(false));
    late.chain(certain.iter().map(band(true))).take(MAX_BANDS).collect()
}
