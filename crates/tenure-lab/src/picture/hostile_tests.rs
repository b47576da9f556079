//! Histories that were made up to do harm: they are checked and drawn to the end, in little time
//! and memory.

use std::time::{Duration, Instant};

use super::*;
use crate::check;
use crate::history::{Event, EventKind, Header, LATEST, Lane, LaneKind, Register};
use crate::test_random::TestRandom;

/// A generator of hostile histories.
struct HostileRandom(TestRandom);

impl HostileRandom {
    fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    fn choose<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    /// A number at which arithmetic overflows, or a harmless one.
    fn number(&mut self) -> u64 {
        let edge = self.choose(&[0, 1, 1_000_000, 1 << 32, LATEST, 1 << 63, u64::MAX]);
        match self.below(4) {
            0 => edge.wrapping_sub(1),
            1 => edge.wrapping_add(self.below(3)),
            2 => edge,
            _ => self.below(5_000_000_000),
        }
    }

    fn maybe(&mut self) -> Option<u64> {
        (self.below(3) > 0).then(|| self.number())
    }

    fn name(&mut self) -> String {
        self.choose(&["A", "B", "C", "server", "", "</script>\u{1b}[2J", "\u{202e}x"]).to_owned()
    }

    fn event_kind(&mut self) -> EventKind {
        let hold = self.below(5);
        let (token, deadline) = (self.maybe(), self.maybe());
        let register = self.choose(&[Register::Plain, Register::Write, Register::ReadWrite]);
        let (seq, value) = (self.number(), self.number());
        let (refused, stale) = (self.below(2) == 0, self.below(2) == 0);
        let (text, target, why) = (self.name(), self.name(), self.name());
        match self.below(15) {
            0 => EventKind::Asked { hold, key: self.name() },
            1 | 2 => EventKind::Granted { hold, token, deadline },
            3 => EventKind::Refused { hold, why },
            4 => EventKind::Unanswered { hold, why },
            5 => EventKind::Renewed { hold, deadline },
            6 => EventKind::Lost { hold, why },
            7 => EventKind::Releasing { hold },
            8 => EventKind::Released { hold, own: Some(stale) },
            9 => EventKind::Read { hold, register, seq, value, token, refused },
            10 => EventKind::Wrote { hold, register, seq, value, token, refused, stale },
            11 => EventKind::Seen { holder: Some(text), until: deadline },
            12 => EventKind::Fault { id: why, text, target, lasts: stale },
            13 => EventKind::Healed { text, target },
            _ => EventKind::Measured { name: text, value: value as f64 * 1e290, unit: why },
        }
    }

    fn history(&mut self, events: u64) -> History {
        let kinds = [LaneKind::Client, LaneKind::Fault, LaneKind::Resource, LaneKind::Server];
        let lane =
            |random: &mut HostileRandom| Lane { name: random.name(), kind: random.choose(&kinds) };
        let header = Header {
            scenario: self.name(),
            about: self.name(),
            lock: self.name(),
            server: self.name(),
            seed: self.number(),
            expected: self.choose(&["holds", "overlap|broken", "∞", "nonsense", ""]).to_owned(),
            lease: self.number(),
            lanes: (0..self.below(6)).map(|_| lane(self)).collect(),
        };
        let event = |random: &mut HostileRandom| Event {
            at: random.number(),
            lane: random.name(),
            kind: random.event_kind(),
        };
        History::new(header, (0..events).map(|_| event(self)).collect())
    }
}

/// Checks and draws a history in every way: the length of the longest result.
fn check_and_draw(history: &History) -> usize {
    let report = check::check(history);
    let judgement = Judgement::of(&history.header, &report);
    let drawn = [
        html(history, &report, &judgement),
        svg(history, &report, &judgement),
        terminal(history, &report, &judgement, true),
        table(&report, &judgement),
        headline(&report),
    ];
    drawn.iter().map(String::len).max().unwrap_or_default()
}

#[test]
fn hostile_histories_are_drawn_to_the_end() {
    let begin = Instant::now();
    for seed in 0..700 {
        let mut random = HostileRandom(TestRandom::new(seed));
        let events = 1 + seed % 40;
        let history = random.history(events);
        let size = check_and_draw(&history);
        assert!(size < 400_000, "seed {seed}: {size} bytes of {events} events");
    }
    // Each takes milliseconds; an endless loop would not end at all.
    assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", begin.elapsed());
}

/// A header and this line.
fn read(line: &str) -> anyhow::Result<History> {
    let header = concat!(
        r#"{"scenario":"s","about":"","lock":"l","server":"","seed":1,"#,
        r#""expected":"holds","lanes":[]}"#
    );
    History::read(format!("{header}\n{line}").as_bytes())
}

#[test]
fn a_time_beyond_the_limit_is_refused_with_its_line() {
    let late = LATEST + 1;
    for line in [
        format!(r#"{{"at":{late},"lane":"A","event":"note","text":""}}"#),
        format!(r#"{{"at":{},"lane":"A","event":"note","text":""}}"#, u64::MAX),
        format!(r#"{{"at":1,"lane":"A","event":"granted","hold":1,"token":1,"deadline":{late}}}"#),
        format!(r#"{{"at":1,"lane":"A","event":"renewed","hold":1,"deadline":{late}}}"#),
        format!(r#"{{"at":1,"lane":"s","event":"seen","holder":"A","until":{late}}}"#),
    ] {
        let refused = read(&line).expect_err("a time beyond the limit");
        assert!(format!("{refused:#}").starts_with("line 2: a time"), "{refused:#}");
    }
    let last = read(&format!(r#"{{"at":{LATEST},"lane":"A","event":"note","text":""}}"#));
    assert!(check_and_draw(&last.expect("the latest time of all")) > 0);
}

#[test]
fn a_deadline_before_its_grant_makes_no_long_hold() {
    let history = read(concat!(
        r#"{"at":1000000000,"lane":"A","event":"renewed","hold":1,"deadline":2000000000}"#,
        "\n",
        r#"{"at":5000000000,"lane":"A","event":"granted","hold":1,"token":1,"deadline":7}"#,
        "\n",
        r#"{"at":6000000000,"lane":"A","event":"released","hold":1,"own":true}"#
    ));
    let report = check::check(&history.expect("a history"));
    assert_eq!((report.overlap.certain.count, report.fairness.starved), (0, 0), "{report:?}");
}

#[test]
fn many_clients_and_keys_are_checked_quickly() {
    let header = read("").expect("a header").header;
    let mut events = Vec::new();
    for hold in 0..20_000 {
        let (lane, key) = (format!("c{hold}"), format!("k{hold}"));
        let asked = EventKind::Asked { hold, key };
        events.push(Event { at: hold, lane: lane.clone(), kind: asked });
        let granted = EventKind::Granted { hold, token: Some(1), deadline: Some(hold + 9) };
        events.push(Event { at: hold + 2, lane, kind: granted });
    }
    let lanes =
        (0..20_000).map(|at| Lane { name: format!("c{at}"), kind: LaneKind::Client }).collect();
    let history = History::new(Header { lanes, ..header }, events);
    let begin = Instant::now();
    assert!(check_and_draw(&history) > 0);
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}
