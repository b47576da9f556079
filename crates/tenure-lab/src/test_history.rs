//! Histories for tests, written as text: one event per line, times in milliseconds.
//!
//! `10 A granted 1 7 2000`: at 10 ms attempt 1 of A is granted, with token 7 and a deadline at 2 s;
//! `-` stands for none.

use crate::history::{Event, EventKind, Header, History, Lane, LaneKind, Register};

/// A holder that is stopped past its lease, and writes afterwards.
pub(crate) const PAUSE: &str = "
    10 A asked 1
    18 A granted 1 1 2010
    18 redis seen A 2010
    20 A read 1 plain 1 0 1
    21 A read 1 write 1 0 1
    22 A read 1 read_write 1 0 1
    60 B asked 2
    300 A renewed 1 2300
    300 redis seen A 2300
    420 lab fault F03 A lasts A is stopped
    2304 B granted 2 2 4304
    2304 redis seen B 4304
    2310 B read 2 plain 2 0 2
    2311 B read 2 write 2 0 2
    2312 B read 2 read_write 2 0 2
    2420 lab healed A A is continued
    2440 A wrote 1 plain 3 1 1
    2441 A wrote 1 write 3 1 1
    2442 A wrote 1 read_write 3 1 1 refused
    2616 A releasing 1
    2620 A released 1 false
    2700 B renewed 2 4700
    2700 redis seen B 4700
    2900 B wrote 2 plain 4 1 2 stale
    2901 B wrote 2 write 4 1 2 stale
    2902 B wrote 2 read_write 4 1 2
    2910 B releasing 2
    2914 B released 2 true
    2914 redis seen - -
    2950 A ended done
    2960 B ended done";
/// Two holders inside their deadlines: the server lost the lock of the first.
pub(crate) const AMNESIA: &str = "
    5 A asked 1
    9 A granted 1 2 2005
    9 redis seen A 2005
    10 A read 1 plain 1 0 2
    11 A read 1 read_write 1 0 2
    400 lab fault F06 redis once redis is killed and started again, empty
    410 redis seen - -
    430 B asked 2
    436 B granted 2 2 2430
    436 redis seen B 2430
    440 B read 2 plain 2 0 2
    441 B read 2 read_write 2 0 2
    700 B wrote 2 plain 3 1 2
    701 B wrote 2 read_write 3 1 2
    705 B releasing 2
    708 B released 2 true
    708 redis seen - -
    800 A wrote 1 plain 4 1 2 stale
    801 A wrote 1 read_write 4 1 2 stale
    805 A releasing 1
    808 A released 1 false";
/// A holder that is killed: the next client waits for the end of the lease.
pub(crate) const KILLED: &str = "
    5 A asked 1
    9 A granted 1 1 2005
    9 redis seen A 2005
    12 A read 1 plain 1 0 1
    30 B asked 2
    500 lab fault F02 A once A is killed
    501 A ended killed by signal 9
    2010 B granted 2 2 4010
    2010 redis seen B 4010
    2011 B read 2 plain 2 0 2
    2100 B wrote 2 plain 3 1 2
    2110 B releasing 2
    2112 B released 2 true";

/// Parses these lines into a history with a lease of two seconds.
pub(crate) fn parse(expected: &str, lines: &str) -> History {
    let mut events = Vec::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = millis(words[0]);
        let lane = words[1].to_owned();
        events.push(Event { at, lane, kind: event_kind(words[2], &words[3..]) });
    }
    let mut lanes: Vec<Lane> = Vec::new();
    for event in &events {
        if !lanes.iter().any(|lane| lane.name == event.lane) {
            let kind = match &event.lane[..] {
                "lab" => LaneKind::Fault,
                "stock" => LaneKind::Resource,
                name if name.starts_with("redis") => LaneKind::Server,
                _ => LaneKind::Client,
            };
            lanes.push(Lane { name: event.lane.clone(), kind });
        }
    }
    let header = Header {
        scenario: "pause".into(),
        about: "The holder is stopped for longer than its lease.".into(),
        lock: "redis-unique".into(),
        server: "redis 7.0.15".into(),
        seed: 1,
        expected: expected.into(),
        lease: 2_000_000_000,
        lanes,
    };
    History::new(header, events)
}

fn event_kind(verb: &str, args: &[&str]) -> EventKind {
    let hold = || args[0].parse().expect("the number of an attempt");
    match verb {
        "asked" => EventKind::Asked { hold: hold(), key: args.get(1).unwrap_or(&"k").to_string() },
        "granted" => {
            EventKind::Granted { hold: hold(), token: number(args[1]), deadline: time(args[2]) }
        }
        "renewed" => EventKind::Renewed { hold: hold(), deadline: time(args[1]) },
        "refused" => EventKind::Refused { hold: hold(), why: "busy".into() },
        "unanswered" => EventKind::Unanswered { hold: hold(), why: "timed out".into() },
        "lost" => EventKind::Lost { hold: hold(), why: "expired".into() },
        "releasing" => EventKind::Releasing { hold: hold() },
        "released" => EventKind::Released { hold: hold(), own: args[1].parse().ok() },
        "read" => {
            let (register, seq, value, token, refused, _) = effect(args);
            EventKind::Read { hold: hold(), register, seq, value, token, refused }
        }
        "wrote" => {
            let (register, seq, value, token, refused, stale) = effect(args);
            EventKind::Wrote { hold: hold(), register, seq, value, token, refused, stale }
        }
        "seen" => {
            let holder = Some(args[0].to_owned()).filter(|name| name != "-");
            EventKind::Seen { holder, until: time(args[1]) }
        }
        "fault" => EventKind::Fault {
            id: args[0].into(),
            target: args[1].into(),
            lasts: args[2] == "lasts",
            text: args[3..].join(" "),
        },
        "healed" => EventKind::Healed { target: args[0].into(), text: args[1..].join(" ") },
        "ended" => EventKind::Ended { how: args.join(" ") },
        "measured" => EventKind::Measured {
            name: args[0].replace('_', " "),
            value: args[1].parse().expect("a figure"),
            unit: args[2].into(),
        },
        "note" => EventKind::Note { text: args.join(" ") },
        other => panic!("no event is called {other}"),
    }
}

fn effect(args: &[&str]) -> (Register, u64, u64, Option<u64>, bool, bool) {
    let register = match args[1] {
        "plain" => Register::Plain,
        "write" => Register::Write,
        _ => Register::ReadWrite,
    };
    let figure = |at: usize| number(args[at]).expect("a figure");
    let mark = args.get(5).copied().unwrap_or_default();
    (register, figure(2), figure(3), number(args[4]), mark == "refused", mark == "stale")
}

fn number(text: &str) -> Option<u64> {
    (text != "-").then(|| text.parse().expect("a number or -"))
}

fn time(text: &str) -> Option<u64> {
    (text != "-").then(|| millis(text))
}

fn millis(text: &str) -> u64 {
    (text.parse::<f64>().expect("milliseconds") * 1e6) as u64
}
