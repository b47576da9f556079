//! Histories that somebody made up to do harm: whatever they say, they are checked and drawn to the
//! end, in little time and room.

use std::time::{Duration, Instant};

use super::*;
use crate::check;
use crate::history::{Event, Header, Kind, LATEST, Lane, Register, What};

/// Numbers that depend on the seed alone.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    /// A number where reckoning goes wrong, or a harmless one.
    fn number(&mut self) -> u64 {
        let edge = self.of(&[0, 1, 1_000_000, 1 << 32, LATEST, 1 << 63, u64::MAX]);
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
        self.of(&["A", "B", "C", "server", "", "</script>\u{1b}[2J", "\u{202e}x"]).to_owned()
    }

    fn what(&mut self) -> What {
        let hold = self.below(5);
        let (token, deadline) = (self.maybe(), self.maybe());
        let register = self.of(&[Register::Plain, Register::Write, Register::ReadWrite]);
        let (seq, value) = (self.number(), self.number());
        let (refused, stale) = (self.below(2) == 0, self.below(2) == 0);
        let (text, target, why) = (self.name(), self.name(), self.name());
        match self.below(15) {
            0 => What::Asked { hold, key: self.name() },
            1 | 2 => What::Granted { hold, token, deadline },
            3 => What::Refused { hold, why },
            4 => What::Unanswered { hold, why },
            5 => What::Renewed { hold, deadline },
            6 => What::Lost { hold, why },
            7 => What::Releasing { hold },
            8 => What::Released { hold, own: Some(stale) },
            9 => What::Read { hold, register, seq, value, token, refused },
            10 => What::Wrote { hold, register, seq, value, token, refused, stale },
            11 => What::Seen { holder: Some(text), until: deadline },
            12 => What::Fault { id: why, text, target, lasts: stale },
            13 => What::Healed { text, target },
            _ => What::Measured { name: text, value: value as f64 * 1e290, unit: why },
        }
    }

    fn history(&mut self, events: u64) -> History {
        let kinds = [Kind::Client, Kind::Fault, Kind::Resource, Kind::Server];
        let lane = |dice: &mut Dice| Lane { name: dice.name(), kind: dice.of(&kinds) };
        let header = Header {
            scenario: self.name(),
            about: self.name(),
            lock: self.name(),
            server: self.name(),
            seed: self.number(),
            expected: self.of(&["holds", "overlap|broken", "∞", "nonsense", ""]).to_owned(),
            lease: self.number(),
            lanes: (0..self.below(6)).map(|_| lane(self)).collect(),
        };
        let event =
            |dice: &mut Dice| Event { at: dice.number(), lane: dice.name(), what: dice.what() };
        History::new(header, (0..events).map(|_| event(self)).collect())
    }
}

/// Checks and draws it in every way there is: how long the longest result is.
fn everything(history: &History) -> usize {
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
        let mut dice = Dice((seed + 1_u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let events = 1 + seed % 40;
        let history = dice.history(events);
        let size = everything(&history);
        assert!(size < 400_000, "seed {seed}: {size} bytes of {events} events");
    }
    // Milliseconds each; an endless one would not end at all.
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
fn a_time_that_no_run_reaches_is_refused_with_its_line() {
    let late = LATEST + 1;
    for line in [
        format!(r#"{{"at":{late},"lane":"A","event":"note","text":""}}"#),
        format!(r#"{{"at":{},"lane":"A","event":"note","text":""}}"#, u64::MAX),
        format!(r#"{{"at":1,"lane":"A","event":"granted","hold":1,"token":1,"deadline":{late}}}"#),
        format!(r#"{{"at":1,"lane":"A","event":"renewed","hold":1,"deadline":{late}}}"#),
        format!(r#"{{"at":1,"lane":"s","event":"seen","holder":"A","until":{late}}}"#),
    ] {
        let refused = read(&line).expect_err("a time that no run reaches");
        assert!(format!("{refused:#}").starts_with("line 2: a time"), "{refused:#}");
    }
    let last = read(&format!(r#"{{"at":{LATEST},"lane":"A","event":"note","text":""}}"#));
    assert!(everything(&last.expect("the latest time of all")) > 0);
}

#[test]
fn a_deadline_before_its_grant_is_no_long_hold() {
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
fn many_clients_and_keys_are_checked_in_a_moment() {
    let header = read("").expect("a header").header;
    let mut events = Vec::new();
    for hold in 0..20_000 {
        let (lane, key) = (format!("c{hold}"), format!("k{hold}"));
        let asked = What::Asked { hold, key };
        events.push(Event { at: hold, lane: lane.clone(), what: asked });
        let granted = What::Granted { hold, token: Some(1), deadline: Some(hold + 9) };
        events.push(Event { at: hold + 2, lane, what: granted });
    }
    let lanes = (0..20_000).map(|at| Lane { name: format!("c{at}"), kind: Kind::Client }).collect();
    let history = History::new(Header { lanes, ..header }, events);
    let begin = Instant::now();
    assert!(everything(&history) > 0);
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}
