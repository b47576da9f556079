//! Random histories of a correct lock pass every checker; with one double hold in them, none of it
//! stays unseen. Large ones are checked fast.

use super::*;
use crate::history::{Event, Header};
use crate::verdict::Verdict;

/// Numbers that depend on the seed alone.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A lock with leases as it should be: grants after each other, each after it was asked for, left
/// in every way there is. The last number is how often it was granted.
fn correct(seed: u64, clients: usize, grants: u64) -> Vec<Event> {
    let mut dice = Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut events = Vec::new();
    let mut asked: Vec<(u64, String)> = Vec::new();
    let (mut now, mut hold, mut token) = (10, 0, 0);
    let mut idle: Vec<String> = (0..clients).map(|client| format!("c{client}")).collect();
    for _ in 0..grants {
        while asked.is_empty() || (!idle.is_empty() && dice.below(2) == 0) {
            let lane = idle.remove(dice.below(idle.len() as u64) as usize);
            hold += 1;
            now += dice.below(5);
            let what = What::Asked { hold, key: "k".into() };
            events.push(Event { at: now, lane: lane.clone(), what });
            asked.push((hold, lane));
        }
        let (hold, lane) = asked.remove(dice.below(asked.len() as u64) as usize);
        token += 1 + dice.below(3);
        let granted = now + 1 + dice.below(20);
        let mut deadline = granted + 1000;
        let mut add = |at, what| events.push(Event { at, lane: lane.clone(), what });
        let given = Some(token);
        add(granted, What::Granted { hold, token: given, deadline: Some(deadline) });
        now = granted + 1 + dice.below(900);
        if dice.below(3) == 0 {
            deadline = now + 1000;
            add(now, What::Renewed { hold, deadline: Some(deadline) });
        }
        now += dice.below(90);
        match dice.below(4) {
            0 => {
                // It never comes back to it; later it hears that it is too late.
                now = deadline;
                let late = deadline + 1 + dice.below(3000);
                add(late, What::Releasing { hold });
                add(late + 1, What::Released { hold, own: Some(false) });
            }
            1 => {
                add(now, What::Releasing { hold });
                now = deadline.max(now + 1);
                add(now + 1, What::Released { hold, own: None });
            }
            _ => {
                add(now, What::Releasing { hold });
                now += 1 + dice.below(5);
                add(now, What::Released { hold, own: Some(true) });
            }
        }
        idle.push(lane);
    }
    events
}

fn history(events: Vec<Event>) -> History {
    let header = Header {
        scenario: "random".into(),
        about: String::new(),
        lock: "random".into(),
        server: String::new(),
        seed: 0,
        expected: "holds".into(),
        lease: 1000,
        lanes: Vec::new(),
    };
    History::new(header, events)
}

#[test]
fn random_correct_histories_pass() {
    for seed in 0..300 {
        let clients = 2 + (seed % 7) as usize;
        let report = check(&history(correct(seed, clients, 60)));
        assert_eq!(report.granted, 60);
        assert_eq!(report.overlap.certain.count, 0, "seed {seed}");
        assert!(report.tokens.sound(), "seed {seed}: {:?}", report.tokens);
        assert_eq!(report.linear.broken, 0, "seed {seed}: {:?}", report.linear);
        assert_eq!(report.linear.undecided, 0, "seed {seed}");
    }
}

#[test]
fn an_injected_double_hold_is_found() {
    for seed in 0..300 {
        let mut events = correct(seed, 5, 60);
        let grants: Vec<_> = events
            .iter()
            .filter(|event| matches!(event.what, What::Granted { .. }))
            .map(|event| event.at)
            .collect();
        // A stranger is granted in the middle of somebody's hold, with a token of its own.
        let at = grants[(seed % 59) as usize] + 1;
        let lane = || "stranger".to_owned();
        let (hold, deadline) = (1_000_000, Some(at + 50));
        let asked = What::Asked { hold, key: "k".into() };
        events.push(Event { at: at - 1, lane: lane(), what: asked });
        let what = What::Granted { hold, token: Some(1_000_000), deadline };
        events.push(Event { at, lane: lane(), what });
        let report = check(&history(events));
        assert!(report.overlap.certain.count > 0, "seed {seed}");
        assert!(report.linear.broken + report.linear.undecided > 0, "seed {seed}");
        assert_ne!(Verdict::of(&report), Verdict::Holds, "seed {seed}");
    }
}

#[test]
fn large_histories_are_checked_to_the_end() {
    let history = history(correct(1, 32, 30_000));
    assert!(history.events.len() > 100_000, "{}", history.events.len());
    let begin = std::time::Instant::now();
    let report = check(&history);
    println!("{} events in {:?}", history.events.len(), begin.elapsed());
    assert_eq!((report.linear.broken, report.linear.undecided), (0, 0), "{:?}", report.linear);
}
